//! The kernels that compute the operand of x for a product.

use quantloom_dsl::experts::{ExpertProduct, OperandOf};
use quantloom_dsl::format::Number;
use quantloom_dsl::{Activation, Scheme};
use quantloom_runtime::gpu::{Request, Stacked, StackedChoice};
use quantloom_runtime::source::{ExpertRole, KernelKey, Schedule, Work};

use super::JitError;
use super::compile::{self, layout_of, role, stack};
use crate::ir::Kernel;
use crate::schedule::activation::{ActivationProblem, Routed, activation};
use crate::schedule::experts::SortProblem;
use crate::schedule::{Chosen, Problem, Stack, order_with_operand, takes_order_with_operand};
use crate::target::{Feature, Target};

/// The name of these kernels' schedule in a key.
pub(super) const SCHEDULE: &str = "activation";

/// The parameter of a key whose operand warp groups alone read.
pub(super) const WARP_GROUPS: &str = "warp_groups";

/// The parameter of a key whose product copies whole token blocks.
pub(super) const WHOLE_BLOCKS: &str = "whole_blocks";

/// The operand of a product; `None` if the product reads x without preparation or conversion.
pub(super) fn problem(
    request: &Request<'_>,
    product: &Problem,
) -> Result<Option<ActivationProblem>, JitError> {
    let own = Number::Float(request.input_dtype);
    let converted = matches!(request.activation, Activation::Float(listed) if *listed != own);
    let made = product.input.prepared || converted;
    made.then(|| posed(product, own, request.x_columns)).transpose()
}

fn posed(
    product: &Problem,
    input_dtype: Number,
    columns: u64,
) -> Result<ActivationProblem, JitError> {
    Ok(product.operand(input_dtype, u32::try_from(columns).unwrap_or(u32::MAX))?)
}

/// The keys, in the order of the launches, for a product by a kernel; `None` for the product of most schedules.
pub(super) fn keys(
    request: &Request<'_>,
    product: &Problem,
    kernel: Option<&KernelKey>,
) -> Result<Vec<KernelKey>, JitError> {
    let chosen = chosen(kernel)?;
    if chosen.is_some_and(|chosen| chosen.schedule().makes_operand()) {
        return Ok(Vec::new());
    }
    let own = as_multiplied(product, chosen);
    let Some(problem) = problem(request, own)? else { return Ok(Vec::new()) };
    let work =
        Work::operand(request.scheme, request.activation, Number::Float(request.input_dtype));
    let more = of_warp_groups(product, own).iter().copied().chain(layout_of(product));
    Ok(launches(request, &problem, work, &more.collect::<Vec<_>>()))
}

/// The choices of a kernel.
fn chosen(kernel: Option<&KernelKey>) -> Result<Option<Chosen>, JitError> {
    let read = |kernel: &KernelKey| {
        let Schedule { name, parameters } = &kernel.schedule;
        Chosen::read(name, parameters)
    };
    Ok(kernel.map(read).transpose()?)
}

/// The product as a choice multiplies it.
fn as_multiplied(product: &Problem, chosen: Option<Chosen>) -> &Problem {
    chosen.map_or(product, |chosen| chosen.schedule().main_loop(product).problem)
}

/// The parameter of a product that is multiplied in another way.
fn of_warp_groups(product: &Problem, own: &Problem) -> &'static [(&'static str, u64)] {
    if own.input == product.input { &[] } else { &[(WARP_GROUPS, 1)] }
}

/// The keys for a product of an expert layer whose rows of x are those of slots, by a kernel with token
/// blocks of `slots` slots; `None` for the product of most schedules.
pub(super) fn keys_stacked(
    request: &Request<'_>,
    product: &Problem,
    stacked: &Stacked,
    (kernel, slots): (Option<&KernelKey>, u64),
) -> Result<Vec<KernelKey>, JitError> {
    let chosen = chosen(kernel)?;
    let own = as_multiplied(product, chosen);
    let Some(problem) = problem(request, own)? else { return Ok(Vec::new()) };
    let &Stacked { experts, shards, top_k, .. } = stacked;
    let role = role_of_operand(stacked);
    let routed = routed(stacked, (chosen, slots));
    let copies = routed.whole_blocks;
    let problem = problem.routed(routed);
    let dtype = Number::Float(request.input_dtype);
    let work = Work::expert_operand(request.scheme, request.activation, dtype, role);
    let sizes = [("experts", experts), ("shards", shards), ("top_k", top_k), ("slots", slots)];
    let whole = copies.then_some((WHOLE_BLOCKS, 1));
    let more = sizes.into_iter().chain(of_warp_groups(product, own).iter().copied());
    let more = more.chain(layout_of(product)).chain(whole);
    Ok(launches(request, &problem, work, &more.collect::<Vec<_>>()))
}

/// What a product is to its expert layer, as far as what it reads of x depends on that: what becomes of the sums does not matter.
fn role_of_operand(stacked: &Stacked) -> ExpertRole {
    let role = role(stacked);
    ExpertRole { gate: None, weighted: false, combined: false, shared: None, ..role }
}

/// The rows of x of a product of an expert layer by a choice, with token blocks of `slots` slots.
fn routed(stacked: &Stacked, (chosen, slots): (Option<Chosen>, u64)) -> Routed {
    let &Stacked { experts, shards, top_k, .. } = stacked;
    let stack = stack(role_of_operand(stacked), (experts, experts), (shards, top_k));
    let whole_blocks = chosen.is_some_and(|chosen| chosen.schedule().copies_token_blocks(stack));
    Routed { stack, slots: u32::try_from(slots).unwrap_or(u32::MAX), whole_blocks }
}

/// The parameters of a key whose first product writes the operand of a second one: that product's, and whether warp groups read it.
const OF_SECOND: [&str; 4] = ["second_n", "second_k", "second_x_columns", "second_warp_groups"];
/// The same, of a second weight in the layout for a range of numbers.
const SECOND_OF_RANGE: &str = "second_layout_of_range";

/// The key of the one kernel that multiplies in the first product of an expert layer and makes what the second one reads of its rows, by
/// choices for both; `None` if there is none.
pub(super) fn key_of_product(
    (first, (request, stacked, second)): (&Problem, (&Request<'_>, &Stacked, &Problem)),
    [choice, of_second]: [&StackedChoice; 2],
) -> Result<Option<KernelKey>, JitError> {
    let kernel = &choice.choice.key;
    let Some(of_first_choice) = chosen(Some(kernel))? else { return Ok(None) };
    let reads = chosen(Some(&of_second.choice.key))?;
    let own = as_multiplied(second, reads);
    let Some(operand) = problem(request, own)? else { return Ok(None) };
    let operand = operand.routed(routed(stacked, (reads, choice.slots)));
    let written = first.clone().writing(operand);
    let taken = written.is_ok_and(|problem| of_first_choice.schedule().checked(&problem).is_ok());
    let Work::Product { scheme, output, experts: Some(role) } = &kernel.work else {
        return Ok(None);
    };
    let [first_activation] = &scheme.activations[..] else { return Ok(None) };
    let alike = stacked.operand == OperandOf::Row && choice.slots == of_second.slots;
    if !taken || !alike {
        return Ok(None);
    }
    let of = (&**scheme, first_activation);
    let second_of = (request.scheme, request.activation);
    let work = Work::product_with_operand(of, *output, *role, second_of);
    let of_warp_groups = u64::from(!of_warp_groups(second, own).is_empty());
    let sizes = [request.n, request.k, request.x_columns, of_warp_groups];
    let range = layout_of(second).map(|(_, value)| (SECOND_OF_RANGE, value));
    let more = OF_SECOND.into_iter().zip(sizes).chain(range);
    let mut schedule = kernel.schedule.clone();
    schedule.parameters.extend(more.map(|(name, value)| (name.to_owned(), value)));
    Ok(Some(KernelKey { work, schedule, target: kernel.target.clone() }))
}

/// The operand that the kernel of such a key writes of rows of a type, for a second product of a scheme in a layer of this stack. All slots of
/// token blocks in use are written, of however many slots.
pub(super) fn of_second(
    key: &KernelKey,
    (target, stack): (&'static Target, Stack),
    (scheme, own): (&Scheme, Number),
) -> Result<ActivationProblem, JitError> {
    let Schedule { name, parameters } = &key.schedule;
    let size = |size: &'static str| {
        let missing = || JitError::Size { schedule: name.clone(), size };
        parameters.get(size).copied().ok_or_else(missing)
    };
    let [n, k, columns, warp_groups] = OF_SECOND.map(size);
    let [activation] = &scheme.activations[..] else {
        return Err(JitError::Work(Box::new(key.clone())));
    };
    let of_range = parameters.get(SECOND_OF_RANGE) == Some(&1);
    let second = compile::posed(scheme, activation, target, ((n?, k?), of_range))?;
    let second = if warp_groups? == 1 { second.of_warp_groups() } else { &second };
    let (product, operand) = (ExpertProduct::Down, OperandOf::Row);
    let stack = Stack { product, shards: 1, gate: None, operand, ..stack };
    let routed = Routed { stack, slots: 1, whole_blocks: true };
    Ok(posed(second, own, columns?)?.routed(routed))
}

/// The key of the one kernel that also sorts the pairs of an expert layer with k experts a token, for its first product by
/// a kernel; `None` if there is none.
pub(super) fn key_with_order(
    request: &Request<'_>,
    product: &Problem,
    kernel: &KernelKey,
    (order, top_k): (&SortProblem, u64),
) -> Result<Option<KernelKey>, JitError> {
    let own = as_multiplied(product, chosen(Some(kernel))?);
    let top_k = u32::try_from(top_k).unwrap_or(u32::MAX);
    let problem = problem(request, own)?;
    let taken = problem.is_some_and(|problem| takes_order_with_operand(&problem, order, top_k));
    let &SortProblem { experts, local, mapped, slots, .. } = order;
    let dtype = Number::Float(request.input_dtype);
    let key = || {
        let work = Work::order_with_operand(request.scheme, request.activation, dtype);
        let sizes = [
            ("n", request.n),
            ("k", request.k),
            ("x_columns", request.x_columns),
            ("experts", experts.into()),
            ("local", local.into()),
            ("mapped", mapped.into()),
            ("slots", slots.into()),
        ];
        let more = of_warp_groups(product, own).iter().copied().chain(layout_of(product));
        let schedule = Schedule::new(SCHEDULE, sizes.into_iter().chain(more));
        KernelKey { work, schedule, target: request.target.to_owned() }
    };
    Ok(taken.then(key))
}

/// The kernel of such a key.
pub(super) fn written_with_order(
    product: &Problem,
    (input_dtype, columns): (Number, u64),
    order: &SortProblem,
) -> Result<Kernel, JitError> {
    Ok(order_with_operand(&posed(product, input_dtype, columns)?, order))
}

fn launches(
    request: &Request<'_>,
    problem: &ActivationProblem,
    work: Work,
    more: &[(&'static str, u64)],
) -> Vec<KernelKey> {
    let key = |launch: u64| {
        let sizes = [
            ("n", request.n),
            ("k", request.k),
            ("x_columns", request.x_columns),
            ("launch", launch),
        ];
        let schedule = Schedule::new(SCHEDULE, sizes.into_iter().chain(more.iter().copied()));
        KernelKey { work: work.clone(), schedule, target: request.target.to_owned() }
    };
    (0..u64::from(problem.launches())).map(key).collect()
}

/// One of the kernels; `routed` is the product of an expert layer whose experts read x in different ways.
pub(super) fn written(
    product: &Problem,
    (input_dtype, columns): (Number, u64),
    routed: Option<Routed>,
    launch: u64,
) -> Result<Kernel, JitError> {
    let problem = posed(product, input_dtype, columns)?;
    let problem = match routed {
        None => problem,
        Some(routed) => problem.routed(routed),
    };
    let kernels = activation(&problem, product.target().has(Feature::GridDependency));
    let kernel = usize::try_from(launch).ok().and_then(|launch| kernels.into_iter().nth(launch));
    kernel.ok_or(JitError::Launch(launch))
}
