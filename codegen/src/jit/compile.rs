//! The compiler, from a request to a kernel source and its launch rule: read it from top to bottom.
//!
//! [`choose`] computes the key of a kernel from a request (a scheme, an activation, N, K, a target) and M:
//! the problem with its plan, then a schedule with its free choices. [`compile`] computes the source from a
//! key: the same problem, the schedule's kernel, verified and printed, and its launch rule. A key determines
//! the source, so that a source can be cached by its key.

use std::borrow::Cow;

use quantloom_dsl::format::{FloatFormat, Number};
use quantloom_dsl::{Activation, INPUT_DTYPES, Scheme};
use quantloom_runtime::accumulation::{Decoded, ScaleDigits, ScaledWeights, Sums};
use quantloom_runtime::gpu::{
    Alternatives, ChoiceSource, ChosenKernel, Request, Stacked, StackedAlternatives, StackedChoice,
};
use quantloom_runtime::source::{ExpertRole, KernelKey, KernelText, Refusal, Schedule, Work};

use super::{JitError, Overrides, TRANSFORM, TileTable, experts, launch_rule, operand};
use crate::emit;
use crate::ir::{Element, Kernel, Verified, verify};
use crate::plan::DequantPlan;
use crate::schedule::activation::Routed;
use crate::schedule::experts::SortProblem;
use crate::schedule::transform::{Direction, NativeBufferKind, transform};
use crate::schedule::{
    Case, Chosen, Problem, Stack, Unscheduled, UnscheduledPart, candidates, candidates_stacked,
    choose_by_model, choose_stacked_of, measured, measured_case, measured_rows,
};
use crate::target::{Feature, TARGETS, Target};

/// The parameter of a key, 1, whose kernel takes numbers of [`Problem::param_ranges`] alone.
pub(super) const SCALES_IN_RANGE: &str = "scales_in_range";
/// The parameter of a key with [`Stacked::chosen_from`], where that is not the number of experts.
const CHOSEN_FROM: &str = "chosen_from";

/// The free choice that follows from the others, unless an override names it: no table of tiles has it.
pub(super) const MAKES_OPERAND: &str = "makes_operand";

/// The parameter of a key whose kernel makes its operand of x: the place of the type of x in [`INPUT_DTYPES`].
pub(super) const INPUT_DTYPE: &str = "input_dtype";

/// The choice of a skinny product that another choice may exclude.
const GROUPS_PAIRS: &str = "groups_pairs";

/// The type of x of a key.
fn input_dtype(number: u64) -> Option<FloatFormat> {
    INPUT_DTYPES.get(usize::try_from(number).ok()?).copied()
}

/// The parameter of a key, 1, whose weight is in the layout for numbers of [`Problem::param_ranges`] alone.
pub(super) const LAYOUT_OF_RANGE: &str = "layout_of_range";

/// The kernel for a request and M tokens: the tile that was measured on the device, in the table, or that the model chooses.
///
/// # Errors
/// Why there is none.
pub(super) fn choose(
    request: &Request<'_>,
    tokens: u64,
    tiles: Option<&dyn TileTable>,
) -> Result<ChosenKernel, Refusal> {
    let problem = problem(request)?;
    let most = size(tokens);
    let tuned = tiles.and_then(|tiles| tiles.fastest(&Case::new(&problem, most)));
    let tuned = tuned.filter(|chosen| chosen.runs(&problem, most));
    let tuned = tuned.map(|chosen| (chosen, ChoiceSource::Tuned));
    let found =
        tuned.or_else(|| measured(&problem, most).map(|chosen| (chosen, ChoiceSource::Measured)));
    let (chosen, by) = match found {
        Some(found) => found,
        None => (choose_by_model(&problem, most).map_err(JitError::from)?, ChoiceSource::Model),
    };
    Ok(choice(request, &problem, chosen.making_operand(&problem, most), by)?)
}

/// The kernels that are worth measuring for M tokens, the model's choice first.
///
/// # Errors
/// Why there is none.
pub(super) fn alternatives(request: &Request<'_>, tokens: u64) -> Result<Alternatives, Refusal> {
    let problem = problem(request)?;
    let most = Case::new(&problem, size(tokens)).m;
    // The reason, if there is none.
    choose_by_model(&problem, most).map_err(JitError::from)?;
    let kernels = candidates(&problem, most).into_iter().map(|chosen| {
        let chosen = chosen.making_operand(&problem, most);
        Ok::<_, Refusal>(choice(request, &problem, chosen, ChoiceSource::Override)?)
    });
    Ok(Alternatives { tokens: most.into(), kernels: kernels.collect::<Result<_, _>>()? })
}

/// The kernel for a product of an expert layer and M tokens: the tile that was measured on the device, in the table, or that the
/// schedules' models choose; overrides, the last ones last, may replace any.
///
/// # Errors
/// Why there is none.
pub(super) fn choose_experts(
    request: &Request<'_>,
    stacked: &Stacked,
    tokens: u64,
    (tiles, overrides): (Option<&dyn TileTable>, &[&Overrides]),
) -> Result<StackedChoice, Refusal> {
    let problem = problem_of_experts(request, stacked)?;
    let (tokens, slots) = (size(tokens), stacked.slots.map(size));
    let only = overrides.iter().rev().find_map(|overrides| overrides.instead());
    let case = Case::new(&problem, tokens).in_blocks(slots);
    let of_slots = |chosen: &Chosen| slots.is_none_or(|of| problem.slots(*chosen) == Some(of));
    let tuned = tiles.and_then(|tiles| tiles.fastest(&case));
    let tuned = tuned.filter(|chosen| of_slots(chosen) && chosen.runs(&problem, tokens));
    let known = || {
        measured_case(measured_rows(), &case)
            .filter(|chosen| of_slots(chosen) && chosen.takes(&problem, tokens))
    };
    let found = match (only, tuned) {
        (Some(_), _) => None,
        (None, Some(tuned)) => Some((tuned, ChoiceSource::Tuned)),
        (None, None) => known().map(|known| (known, ChoiceSource::Measured)),
    };
    let (chosen, by) = match found {
        Some(found) => found,
        None => {
            let chosen = choose_stacked_of(&problem, (tokens, slots), only);
            (chosen.map_err(JitError::from)?, ChoiceSource::Model)
        }
    };
    let mut schedule = Schedule::new(chosen.name(), chosen.parameters());
    let groups_pairs = schedule.parameters.remove(GROUPS_PAIRS);
    let mut replaced = only.is_some();
    for overrides in overrides {
        replaced |= overrides.apply(&mut schedule)?;
    }
    let (chosen, by) = match replaced {
        true => (overridden(&schedule, groups_pairs, &problem)?, ChoiceSource::Override),
        false => (chosen, by),
    };
    let chosen = match schedule.parameters.contains_key(MAKES_OPERAND) {
        true => chosen,
        false => chosen.making_operand(&problem, tokens),
    };
    chosen.schedule().checked(&problem).map_err(JitError::from)?;
    Ok(choice_of_experts(request, stacked, &problem, (chosen, by))?)
}

/// What overrides have made of a choice, which groups pairs as before where they do not say whether, and where it may still.
fn overridden(
    schedule: &Schedule,
    groups_pairs: Option<u64>,
    problem: &Problem,
) -> Result<Chosen, JitError> {
    let as_before = || {
        let before = [(GROUPS_PAIRS.to_owned(), groups_pairs?)];
        let parameters = schedule.parameters.clone().into_iter().chain(before).collect();
        let chosen = Chosen::read(&schedule.name, &parameters).ok()?;
        chosen.schedule().checked(problem).is_ok().then_some(chosen)
    };
    let named = schedule.parameters.contains_key(GROUPS_PAIRS);
    let chosen = if named { None } else { as_before() };
    Ok(chosen.map_or_else(|| Chosen::read(&schedule.name, &schedule.parameters), Ok)?)
}

/// The kernels that are worth measuring for a product of an expert layer and M tokens, the model's choice first.
///
/// # Errors
/// Why there is none.
pub(super) fn alternatives_of_experts(
    request: &Request<'_>,
    stacked: &Stacked,
    tokens: u64,
) -> Result<StackedAlternatives, Refusal> {
    let problem = problem_of_experts(request, stacked)?;
    let (most, slots) = (Case::new(&problem, size(tokens)).m, stacked.slots.map(size));
    // The reason, if there is none.
    choose_stacked_of(&problem, (most, slots), None).map_err(JitError::from)?;
    let kernels = candidates_stacked(&problem, most, slots).into_iter().map(|chosen| {
        let of = (chosen.making_operand(&problem, most), ChoiceSource::Override);
        Ok::<_, Refusal>(choice_of_experts(request, stacked, &problem, of)?)
    });
    Ok(StackedAlternatives { tokens: most.into(), kernels: kernels.collect::<Result<_, _>>()? })
}

/// The problem of a product of an expert layer.
///
/// # Errors
/// Why no schedule supports it.
pub(super) fn problem_of_experts(
    request: &Request<'_>,
    stacked: &Stacked,
) -> Result<Problem, Refusal> {
    let &Stacked { experts, chosen_from, shards, top_k, output, .. } = stacked;
    let problem = problem(request)?.giving(Number::Float(output)).map_err(JitError::from)?;
    let stack = stack(role(stacked), (experts, chosen_from), (shards, top_k));
    Ok(problem.stacked(stack).map_err(JitError::from)?)
}

/// The choice of a schedule for a product of an expert layer.
///
/// # Errors
/// If no kernel computes the operand of x.
fn choice_of_experts(
    request: &Request<'_>,
    stacked: &Stacked,
    problem: &Problem,
    (chosen, by): (Chosen, ChoiceSource),
) -> Result<StackedChoice, JitError> {
    let &Stacked { experts, chosen_from, shards, top_k, output, .. } = stacked;
    let mut choice = choice(request, problem, chosen, by)?;
    let (scheme, activation) = (request.scheme, request.activation);
    choice.key.work =
        Work::expert_product(scheme, activation, Number::Float(output), role(stacked));
    let sizes = [("experts", experts), ("shards", shards), ("top_k", top_k)];
    let sizes = sizes.map(|(name, size)| (name.to_owned(), size));
    choice.key.schedule.parameters.extend(sizes);
    if chosen_from != experts {
        choice.key.schedule.parameters.insert(CHOSEN_FROM.to_owned(), chosen_from);
    }
    let most = problem.stack.map(|stack| stack.most_tokens(problem, chosen));
    choice.tokens = most.unwrap_or(choice.tokens);
    let slots = problem.slots(chosen).unwrap_or(1).into();
    Ok(StackedChoice { choice, slots, groups_pairs: chosen.schedule().groups_pairs() })
}

/// A size of 32 bits: the schedules' limits refuse larger ones, by name.
pub(super) fn size(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// What a product is to its expert layer.
pub(super) fn role(stacked: &Stacked) -> ExpertRole {
    let &Stacked { product, gate, direct, weighted, combined, shared, operand, .. } = stacked;
    ExpertRole { product, gate, direct, weighted, combined, shared, operand }
}

/// The stack of a product of an expert layer; sizes beyond 32 bits are refused with the problem.
pub(super) fn stack(
    role: ExpertRole,
    (experts, chosen_from): (u64, u64),
    (shards, top_k): (u64, u64),
) -> Stack {
    let (experts, chosen_from) = (size(experts), size(chosen_from));
    let (shards, top_k) = (size(shards), size(top_k));
    let ExpertRole { product, gate, direct, weighted, combined, shared, operand } = role;
    Stack {
        product,
        experts,
        chosen_from,
        shards,
        top_k,
        gate,
        direct,
        weighted,
        combined,
        shared,
        operand,
    }
}

/// The text of a key's kernel.
///
/// # Errors
/// Why there is none.
pub(super) fn compile(key: &KernelKey) -> Result<KernelText<'static>, Refusal> {
    let kernel = kernel(key)?;
    let text = emit::source(&kernel).map_err(JitError::from)?;
    let rule = launch_rule(&kernel).map_err(JitError::from)?;
    Ok(KernelText { entry: kernel.name.clone().into(), text: text.into(), rule: Cow::Owned(rule) })
}

/// The kernel of a key, verified and not yet printed.
///
/// # Errors
/// Why there is none.
pub(super) fn kernel(key: &KernelKey) -> Result<Verified<Kernel>, Refusal> {
    Ok(verified(built(key, gpu(&key.target)?)?, key)?)
}

/// The verified kernel of a key. The number of buffers follows from a scheme's components: more than the
/// target allows are a limit of this version, and not a fault of the schedule.
pub(super) fn verified(kernel: Kernel, key: &KernelKey) -> Result<Verified<Kernel>, JitError> {
    let (target, count) = (kernel.target, kernel.buffers.len());
    if let Some(most) = target.gpu.and_then(|gpu| gpu.buffers).filter(|most| count > *most as usize)
    {
        let part = UnscheduledPart::Arrays { count, most };
        return Err(Unscheduled::Scheme { target: target.name, part }.into());
    }
    let schedule = key.schedule.name.clone();
    verify(kernel).map_err(|errors| JitError::Invalid { schedule, errors })
}

/// The kernel that a key's schedule builds.
pub(super) fn built(key: &KernelKey, target: &'static Target) -> Result<Kernel, JitError> {
    let none = || JitError::Work(Box::new(key.clone()));
    let Some(scheme) = key.work.scheme() else { return experts::written(key, target) };
    let [activation] = &scheme.activations[..] else { return Err(none()) };
    let Schedule { name, parameters } = &key.schedule;
    let size = |size: &'static str| {
        let missing = || JitError::Size { schedule: name.clone(), size };
        parameters.get(size).copied().ok_or_else(missing)
    };
    let of_range = parameters.get(LAYOUT_OF_RANGE) == Some(&1);
    let problem = || posed(scheme, activation, target, ((size("n")?, size("k")?), of_range));
    // The product as what reads the operand multiplies it.
    let read_by = |problem: &Problem| match parameters.get(operand::WARP_GROUPS) {
        Some(1) => problem.of_warp_groups().clone(),
        _ => problem.clone(),
    };
    let product = |output, experts: Option<ExpertRole>| {
        let in_range = parameters.get(SCALES_IN_RANGE) == Some(&1);
        let problem = problem()?.giving(output)?.of_scales(in_range);
        let problem = match parameters.get(INPUT_DTYPE) {
            Some(&number) => problem.reading(input_dtype(number).ok_or_else(none)?),
            None => problem,
        };
        let Some(role) = experts else { return Ok::<_, JitError>(problem) };
        let experts = size("experts")?;
        let from = parameters.get(CHOSEN_FROM).copied().unwrap_or(experts);
        let sizes = (size("shards")?, size("top_k")?);
        Ok(problem.stacked(stack(role, (experts, from), sizes))?)
    };
    let direction = match &key.work {
        Work::Product { output, experts, .. } => {
            return Ok(Chosen::read(name, parameters)?.write(&product(*output, *experts)?)?);
        }
        Work::ProductWithOperand { own, role, second, .. } => {
            let problem = product(*own, Some(*role))?;
            let stack = problem.stack.ok_or_else(none)?;
            let operand = operand::of_second(key, (target, stack), (second, *own))?;
            return Ok(Chosen::read(name, parameters)?.write(&problem.writing(operand)?)?);
        }
        Work::Operand { own, experts, .. } if name == operand::SCHEDULE => {
            let (columns, launch) = (size("x_columns")?, size("launch")?);
            let routed = match experts {
                None => None,
                Some(role) => {
                    let experts = size("experts")?;
                    let sizes = (size("shards")?, size("top_k")?);
                    let slots = u32::try_from(size("slots")?).map_err(|_| none())?;
                    let whole_blocks = parameters.contains_key(operand::WHOLE_BLOCKS);
                    let stack = stack(*role, (experts, experts), sizes);
                    Some(Routed { stack, slots, whole_blocks })
                }
            };
            let of = (*own, columns);
            return operand::written(&read_by(&problem()?), of, routed, launch);
        }
        Work::OrderWithOperand { own, .. } if name == operand::SCHEDULE => {
            let columns = size("x_columns")?;
            let small = |name| u32::try_from(size(name)?).map_err(|_| none());
            let order = SortProblem {
                target,
                experts: small("experts")?,
                local: small("local")?,
                mapped: size("mapped")? != 0,
                slots: small("slots")?,
                counted: false,
            };
            let of = (*own, columns);
            return operand::written_with_order(&read_by(&problem()?), of, &order);
        }
        Work::ToNative(_) if name == TRANSFORM => Direction::ToNative,
        Work::FromNative(_) if name == TRANSFORM => Direction::FromNative,
        _ => return Err(none()),
    };
    let number = size("part")?;
    let part = usize::try_from(number).ok().and_then(|part| NativeBufferKind::ALL.get(part));
    let part = part.ok_or(JitError::Part(number))?;
    let problem = problem()?;
    let columns = size(if problem.order.is_some() { "x_columns" } else { "k" })?;
    let columns = u32::try_from(columns).unwrap_or(u32::MAX);
    Ok(transform(&problem, scheme, columns, *part, direction)?)
}

/// The problem of a request.
///
/// # Errors
/// Why no schedule supports the product.
pub(super) fn problem(request: &Request<'_>) -> Result<Problem, Refusal> {
    Ok(problem_on(gpu(request.target)?, request)?)
}

/// The problem of a request on its target.
///
/// # Errors
/// Why no schedule supports the product.
pub(super) fn problem_on(
    target: &'static Target,
    request: &Request<'_>,
) -> Result<Problem, JitError> {
    let of = ((request.n, request.k), request.layout_of_range);
    let problem = posed(request.scheme, request.activation, target, of)?;
    let output = request.scheme.output.unwrap_or(Number::Float(request.input_dtype));
    let problem = problem.giving(output)?.reading(request.input_dtype);
    Ok(problem.of_scales(request.scales_in_range))
}

pub(super) fn posed(
    scheme: &Scheme,
    activation: &Activation,
    target: &'static Target,
    ((n, k), of_range): ((u64, u64), bool),
) -> Result<Problem, JitError> {
    Ok(Problem::in_layout(scheme, activation, target, ((size(n), size(k)), of_range))?)
}

/// The parameter of a key whose kernel depends on the layout of a problem's weight.
pub(super) fn layout_of(problem: &Problem) -> Option<(&'static str, u64)> {
    problem.is_of_range().then_some((LAYOUT_OF_RANGE, 1))
}

/// The GPU target of a name.
pub(super) fn gpu(name: &str) -> Result<&'static Target, Refusal> {
    let kernels = |target: &&Target| target.gpu.is_some();
    let known = || TARGETS.iter().filter(kernels);
    known().find(|target| target.name == name).ok_or_else(|| Refusal::Target {
        target: name.to_owned(),
        known: known().map(|target| target.name.to_owned()).collect(),
    })
}

/// The choice of a schedule for a request.
///
/// # Errors
/// If no kernel computes the operand of x.
pub(super) fn choice(
    request: &Request<'_>,
    problem: &Problem,
    chosen: Chosen,
    by: ChoiceSource,
) -> Result<ChosenKernel, JitError> {
    let sizes = [("n", request.n), ("k", request.k)];
    let rounds = chosen.schedule().rounds_scaled_weights(problem);
    let of_range = rounds || problem.power_of_range().is_some();
    let in_range = (of_range && problem.scales_in_range()).then_some((SCALES_IN_RANGE, 1));
    let parameters = chosen.parameters().into_iter().chain(sizes).chain(in_range);
    let number = INPUT_DTYPES.iter().position(|known| *known == request.input_dtype);
    let of_x = number.filter(|_| chosen.schedule().makes_operand());
    let of_x = of_x.map(|number| (INPUT_DTYPE, number as u64));
    let parameters = parameters.chain(layout_of(problem)).chain(of_x);
    let schedule = Schedule::new(chosen.name(), parameters);
    let work = Work::product(request.scheme, request.activation, problem.output);
    let key = KernelKey { work, schedule, target: request.target.to_owned() };
    // The product as the schedule multiplies it.
    let main = chosen.schedule().main_loop(problem);
    let plan = &main.problem.plan;
    let operand = operand::problem(request, main.problem)?;
    let most = operand.map_or(u32::MAX, |operand| operand.most_tokens());
    let tokens = chosen.tokens(problem).min(most);
    let rounded = if rounds { "; weights times their scale are rounded to it" } else { "" };
    let compute_dtype = plan.compute_dtype() + rounded;
    let sums = match main.instruction() {
        Some(product) if product.scaling.is_some() => Sums::Scaled,
        Some(product) if product.a == Element::E4m3 && problem.target().has(Feature::Wgmma) => {
            Sums::Cut
        }
        Some(_) => Sums::Matrix,
        None => Sums::Lanes,
    };
    let exponent = main.problem.scaled_exponent();
    let scales = match plan.scale.parts() {
        None => ScaleDigits::Whole,
        Some(1) => ScaleDigits::Rounded,
        Some(_) => ScaleDigits::InParts,
    };
    let adds_term = plan.scale.parts().is_some() && main.problem.correction.is_some();
    let scaled = match plan.dequant.operand.number() {
        Number::Float(format) if rounds => {
            Some(ScaledWeights { format, exponent, scales, adds_term })
        }
        _ => None,
    };
    let unit = if plan.scale.folded.is_some() { exponent } else { 0 };
    let decoded = Decoded { scaled, exponent: unit, ..decoded(&plan.dequant) };
    Ok(ChosenKernel { key, tokens: u64::from(tokens), compute_dtype, sums, decoded, by })
}

/// The values of a plan's operands.
fn decoded(plan: &DequantPlan) -> Decoded {
    let (add, exponent) = plan.encoding();
    let rounded = match plan.operand.number() {
        Number::Float(format) if plan.rounds() => Some((format, exponent)),
        _ => None,
    };
    Decoded { add, rounded, scaled: None, exponent: 0 }
}
