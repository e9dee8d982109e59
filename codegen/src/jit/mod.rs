//! Kernels made when they are asked for: the compiler as the runtime's source of texts.
//!
//! In: a [`KernelKey`] (or a [`Request`] and M, to choose one). Out: the text and its launch rule.
//! The way is the same for everybody: key -> [`Problem`] -> schedule -> IR -> verified -> text;
//! [`Jit::kernel`] stops before the last step, for the simulator. `rule` derives the launch rule
//! from the kernel, `native` the constant buffers from the problem; `retuned` replaces free choices of
//! a schedule, those that `overrides` says, which the environment may say too; `simulator` (feature
//! `sim`) is an executor of these kernels on the CPU.

mod native;
mod operand;
mod overrides;
mod retuned;
mod rule;
#[cfg(feature = "sim")]
mod simulator;

use std::sync::Arc;

use quantloom_dsl::format::{F32, FloatFormat, Number};
use quantloom_dsl::{Activation, Scheme};
use quantloom_runtime::gpu::{Arrangement, Basis, Choice, Moves, NativePart, Products, Request};
use quantloom_runtime::op::{Decoded, Sums};
use quantloom_runtime::source::{KernelKey, KernelSource, KernelText, Refusal, Schedule, Work};

use crate::emit::{self, EmitError};
use crate::ir::{Kernel, Verified, verify};
use crate::plan::DequantPlan;
use crate::schedule::transform::{Direction, Part, stores, transform};
use crate::schedule::{
    Case, Chosen, Order, Problem, Unscheduled, candidates, choose_by_model, measured,
};
use crate::target::{TARGETS, Target};

pub use overrides::{Overrides, VARIABLE, WrongOverride};
pub use retuned::Retuned;
pub use rule::{Unruled, launch_rule};
#[cfg(feature = "sim")]
pub use simulator::{KEPT_REPORTS, SimError, Simulator, Totals};

/// Why there is no kernel for a key.
#[derive(Debug, thiserror::Error)]
pub enum JitError {
    /// No schedule takes it.
    #[error(transparent)]
    Unscheduled(#[from] Unscheduled),
    /// The work is none that this source makes kernels for.
    #[error("there are no kernels yet for: {0}")]
    Work(String),
    /// The key lacks a size that its text would hold as a constant.
    #[error("the key of {schedule} does not say {size}, which its text needs")]
    Size {
        /// The schedule's name.
        schedule: String,
        /// `n`, `k`, or `part`.
        size: &'static str,
    },
    /// The schedule has no free choice of that name.
    #[error("the schedule {schedule} has no free choice `{parameter}`; it has {known}")]
    Parameter {
        /// The schedule's name.
        schedule: String,
        /// The name.
        parameter: String,
        /// Those that it has.
        known: String,
    },
    /// What the environment says is no override, or none that the schedule takes.
    #[error("the environment variable {VARIABLE}: {0}")]
    Environment(String),
    /// A schedule wrote a kernel that the verifier refuses: a fault of the schedule.
    #[error("the kernel of {schedule} is not valid: {refusals}")]
    Invalid {
        /// The schedule's name.
        schedule: String,
        /// What the verifier says.
        refusals: String,
    },
    /// The kernel has no text.
    #[error(transparent)]
    Text(#[from] EmitError),
    /// The layout of scales and zero points is no layout: a fault of the schedules.
    #[error("the layout of scales and zero points: {0}")]
    Layout(String),
    /// The kernel cannot be launched by a rule.
    #[error(transparent)]
    Rule(#[from] Unruled),
}

impl From<JitError> for Refusal {
    fn from(error: JitError) -> Self {
        match error {
            JitError::Invalid { .. } | JitError::Layout(_) | JitError::Rule(_) => {
                Self::Fault(Arc::new(error))
            }
            limit => Self::Reason(Arc::new(limit)),
        }
    }
}

/// The compiler as a source of kernels. It holds nothing: the key decides everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jit;

impl Jit {
    /// The kernel of a key, verified and not yet printed.
    ///
    /// # Errors
    /// Why there is none.
    pub fn kernel(&self, key: &KernelKey) -> Result<Verified<Kernel>, Refusal> {
        Ok(verified(written(key, gpu(&key.target)?)?, key)?)
    }
}

/// The kernel of a key, if the verifier takes it. How many buffers a kernel has, a scheme's components
/// decide: too many for the target are a limit of ours, and no fault of the schedule.
fn verified(kernel: Kernel, key: &KernelKey) -> Result<Verified<Kernel>, JitError> {
    let (target, count) = (kernel.target, kernel.buffers.len());
    if let Some(most) = target.gpu.and_then(|gpu| gpu.buffers).filter(|most| count > *most as usize)
    {
        let what = format!("{count} arrays in a kernel, which takes {most} at most");
        return Err(Unscheduled::Scheme { target: target.name, what }.into());
    }
    let schedule = key.schedule.name.clone();
    verify(kernel)
        .map_err(|refusals| JitError::Invalid { schedule, refusals: refusals.to_string() })
}

impl KernelSource for Jit {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let kernel = self.kernel(key)?;
        let text = emit::source(&kernel).map_err(JitError::from)?;
        let rule = launch_rule(&kernel).map_err(JitError::from)?;
        Ok(KernelText {
            entry: kernel.name.clone().into(),
            text: text.into(),
            rule: std::borrow::Cow::Owned(rule),
        })
    }
}

impl Products for Jit {
    fn arrangement(&self, request: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        let Problem { order, mapping, .. } = problem(request)?;
        Ok(order.map(|Order { run, indexed, groups }| {
            // Products work through whole k-tiles.
            Arrangement { run, indexed, groups, whole: mapping.k_tile.next_multiple_of(run) }
        }))
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativePart>, Refusal> {
        Ok(native::parts(&problem(request)?)?)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<Choice, Refusal> {
        let problem = problem(request)?;
        let most = u32::try_from(tokens).unwrap_or(u32::MAX);
        let (chosen, by) = match measured(&problem, most) {
            Some(chosen) => (chosen, Basis::Measured),
            None => (choose_by_model(&problem, most).map_err(JitError::from)?, Basis::Model),
        };
        let choice = choice(request, &problem, chosen, by)?;
        let overrides = Overrides::from_environment()?;
        retuned::overridden(request, choice, &overrides).map_err(|why| match why {
            Refusal::Reason(why) => JitError::Environment(why.to_string()).into(),
            fault => fault,
        })
    }

    fn operand(&self, request: &Request<'_>) -> Result<Vec<KernelKey>, Refusal> {
        Ok(operand::keys(request, &problem(request)?)?)
    }

    fn rounds_x(&self, request: &Request<'_>) -> Result<FloatFormat, Refusal> {
        let operand = problem(request)?.input.operand;
        Ok(match (request.activation, operand.number()) {
            // Of f32 nothing is lost.
            (Activation::Float(_), Number::Float(half)) if half != F32 => half,
            _ => request.own,
        })
    }

    fn moves(&self, request: &Request<'_>, part: &NativePart) -> Result<Moves, Refusal> {
        let number = Part::ALL.iter().position(|known| known.buffer() == part.buffer);
        let none = || JitError::Work(format!("`{}` as a transform", part.buffer));
        let number = number.ok_or_else(none)?;
        // The native form of some parts depends on the type of x.
        let activations = vec![request.activation.clone()];
        let scheme = Scheme { activations, ..request.scheme.clone() };
        let problem = problem(request)?;
        let stores = stores(&problem, &scheme, Part::ALL[number]);
        let stores = stores.map_err(JitError::from)?;
        let stores = stores.into_iter().map(|store| store.name.clone()).collect();
        let (order, sizes) = match problem.order {
            None => (false, vec![("n", request.n), ("k", request.k), ("part", number as u64)]),
            Some(_) => {
                let columns = ("x_columns", request.x_columns);
                let sizes = [("n", request.n), ("k", request.k), columns, ("part", number as u64)];
                (Part::ALL[number].is_sorted(), sizes.to_vec())
            }
        };
        let key = |work| {
            let schedule = Schedule::new(TRANSFORM, sizes.clone());
            KernelKey { work, schedule, target: request.target.to_owned() }
        };
        let (to_native, from_native) = (Work::to_native(&scheme), Work::from_native(&scheme));
        Ok(Moves { stores, order, to_native: key(to_native), from_native: key(from_native) })
    }
}

/// All tiles that are worth measuring for M tokens, the model's choice first, and the case of the
/// table of tiles ([`crate::schedule::measured`]) that they are of.
///
/// # Errors
/// Why there is no product.
pub fn alternatives(
    request: &Request<'_>,
    tokens: u32,
) -> Result<(Case, Vec<(Chosen, Choice)>), Refusal> {
    let problem = problem(request)?;
    let choices = candidates(&problem, tokens)
        .into_iter()
        .map(|chosen| Ok((chosen, choice(request, &problem, chosen, Basis::Asked)?)));
    Ok((Case::new(&problem, tokens), choices.collect::<Result<_, Refusal>>()?))
}

/// The choice of a schedule for a request.
fn choice(
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

/// The name of the schedule of transforms in a key.
const TRANSFORM: &str = "transform";

/// A target whose kernels are texts of this compiler.
fn gpu(name: &str) -> Result<&'static Target, Refusal> {
    let kernels = |target: &&Target| target.gpu.is_some();
    let known = || TARGETS.iter().filter(kernels);
    known().find(|target| target.name == name).ok_or_else(|| Refusal::Target {
        target: name.to_owned(),
        known: known().map(|target| target.name.to_owned()).collect(),
    })
}

fn problem(request: &Request<'_>) -> Result<Problem, Refusal> {
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

/// The kernel that a key's schedule writes.
fn written(key: &KernelKey, target: &'static Target) -> Result<Kernel, JitError> {
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
            return Ok(Chosen::read(name, parameters)?.write(&problem()?.giving(*output)?)?);
        }
        Work::Operand { own, .. } if name == operand::SCHEDULE => {
            let (columns, launch) = (size("x_columns")?, size("launch")?);
            return operand::written(&problem()?, (scheme, activation, *own), (columns, launch));
        }
        Work::Operand { .. } => return Err(none()),
        Work::ToNative(_) => Direction::ToNative,
        Work::FromNative(_) => Direction::FromNative,
    };
    if name != TRANSFORM {
        return Err(none());
    }
    let part = usize::try_from(size("part")?).ok().and_then(|part| Part::ALL.get(part));
    let problem = problem()?;
    let columns = size(if problem.order.is_some() { "x_columns" } else { "k" })?;
    let columns = u32::try_from(columns).unwrap_or(u32::MAX);
    Ok(transform(&problem, scheme, columns, *part.ok_or_else(none)?, direction)?)
}
