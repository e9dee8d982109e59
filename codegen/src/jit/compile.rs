//! The compiler, from a request to a text and its launch rule: read it from top to bottom.
//!
//! [`choose`] goes from a request (a scheme, an activation, N, K, a target) and M to the key of a kernel:
//! problem (with its plan), then a schedule with its free choices. [`compile`] goes from a key to the
//! text: the same problem, the kernel that the schedule builds, verified, printed, with its launch rule.
//! A key decides everything, so that a text can be kept under the key.

use std::borrow::Cow;

use quantloom_dsl::format::Number;
use quantloom_dsl::{Activation, Scheme};
use quantloom_runtime::accumulation::{Decoded, Sums};
use quantloom_runtime::gpu::{Basis, Choice, Request};
use quantloom_runtime::source::{KernelKey, KernelText, Refusal, Schedule, Work};

use super::{JitError, TRANSFORM, launch_rule, operand};
use crate::emit;
use crate::ir::{Kernel, Verified, VerifyErrors, verify};
use crate::plan::DequantPlan;
use crate::schedule::transform::{Direction, Part, transform};
use crate::schedule::{Chosen, Problem, Unscheduled, choose_by_model, measured};
use crate::target::{TARGETS, Target};

/// The kernel for a request and M tokens.
///
/// # Errors
/// Why there is none.
pub(super) fn choose(request: &Request<'_>, tokens: u64) -> Result<Choice, Refusal> {
    let problem = problem(request)?;
    let most = u32::try_from(tokens).unwrap_or(u32::MAX);
    let (chosen, by) = match measured(&problem, most) {
        Some(chosen) => (chosen, Basis::Measured),
        None => (choose_by_model(&problem, most).map_err(JitError::from)?, Basis::Model),
    };
    choice(request, &problem, chosen, by)
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

/// The kernel of a key, if the verifier takes it. How many buffers a kernel has, a scheme's components
/// decide: too many for the target are a limit of ours, and no fault of the schedule.
pub(super) fn verified(kernel: Kernel, key: &KernelKey) -> Result<Verified<Kernel>, JitError> {
    let (target, count) = (kernel.target, kernel.buffers.len());
    if let Some(most) = target.gpu.and_then(|gpu| gpu.buffers).filter(|most| count > *most as usize)
    {
        let what = format!("{count} arrays in a kernel, which takes {most} at most");
        return Err(Unscheduled::Scheme { target: target.name, what }.into());
    }
    let schedule = key.schedule.name.clone();
    let invalid = |why: VerifyErrors| JitError::Invalid { schedule, refusals: why.to_string() };
    verify(kernel).map_err(invalid)
}

/// The kernel that a key's schedule builds.
pub(super) fn built(key: &KernelKey, target: &'static Target) -> Result<Kernel, JitError> {
    let none = || JitError::Work(key.work.to_string());
    let scheme = key.work.scheme();
    let [activation] = &scheme.activations[..] else { return Err(none()) };
    let Schedule { name, parameters } = &key.schedule;
    let size = |size: &'static str| {
        let missing = || JitError::Size { schedule: name.clone(), size };
        parameters.get(size).copied().ok_or_else(missing)
    };
    // What is multiplied, or would be.
    let problem = || posed(scheme, activation, target, (size("n")?, size("k")?));
    let direction = match &key.work {
        Work::Product { output, .. } => {
            let chosen = Chosen::read(name, parameters)?;
            return Ok(chosen.write(&problem()?.giving(*output)?)?);
        }
        Work::Operand { own, .. } if name == operand::SCHEDULE => {
            let (columns, launch) = (size("x_columns")?, size("launch")?);
            return operand::written(&problem()?, (scheme, activation, *own), (columns, launch));
        }
        Work::ToNative(_) if name == TRANSFORM => Direction::ToNative,
        Work::FromNative(_) if name == TRANSFORM => Direction::FromNative,
        Work::Operand { .. } | Work::ToNative(_) | Work::FromNative(_) => return Err(none()),
    };
    let part = usize::try_from(size("part")?).ok().and_then(|part| Part::ALL.get(part));
    let problem = problem()?;
    let columns = size(if problem.order.is_some() { "x_columns" } else { "k" })?;
    let columns = u32::try_from(columns).unwrap_or(u32::MAX);
    Ok(transform(&problem, scheme, columns, *part.ok_or_else(none)?, direction)?)
}

/// What a request multiplies.
///
/// # Errors
/// Why no schedule takes it.
pub(super) fn problem(request: &Request<'_>) -> Result<Problem, Refusal> {
    let target = gpu(request.target)?;
    let problem = posed(request.scheme, request.activation, target, (request.n, request.k))?;
    let output = request.scheme.output.unwrap_or(Number::Float(request.own));
    Ok(problem.giving(output).map_err(JitError::from)?)
}

fn posed(
    scheme: &Scheme,
    activation: &Activation,
    target: &'static Target,
    (n, k): (u64, u64),
) -> Result<Problem, JitError> {
    // What exceeds 32 bits is refused by the schedules' own limit, with its name.
    let size = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
    Ok(Problem::new(scheme, activation, target, (size(n), size(k)))?)
}

/// A target whose kernels are texts of this compiler.
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
/// If the operand of x cannot be made.
pub(super) fn choice(
    request: &Request<'_>,
    problem: &Problem,
    chosen: Chosen,
    by: Basis,
) -> Result<Choice, Refusal> {
    let sizes = [("n", request.n), ("k", request.k)];
    let schedule = Schedule::new(chosen.name(), chosen.parameters().into_iter().chain(sizes));
    let work = Work::product(request.scheme, request.activation, problem.output);
    let key = KernelKey { work, schedule, target: request.target.to_owned() };
    let operand = operand::problem(request, problem)?;
    let most = operand.map_or(u32::MAX, |operand| operand.most_tokens());
    let (tokens, meeting) = (chosen.tokens(problem).min(most), problem.plan.meeting());
    let sums = match chosen.schedule().main_loop(problem).instruction() {
        Some(product) if product.scaling.is_some() => Sums::Scaled,
        Some(_) => Sums::Matrix,
        None => Sums::Lanes,
    };
    let decoded = decoded(&problem.plan.dequant);
    Ok(Choice { key, tokens: u64::from(tokens), meeting, sums, decoded, by })
}

/// What a plan decodes codes to.
fn decoded(plan: &DequantPlan) -> Decoded {
    let (add, exponent) = plan.encoding();
    let rounded = match plan.operand.number() {
        Number::Float(format) if plan.rounds() => Some((format, exponent)),
        _ => None,
    };
    Decoded { add, rounded }
}
