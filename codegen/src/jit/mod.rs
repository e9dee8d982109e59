//! Kernels made when they are asked for: the compiler as the runtime's source of texts.
//!
//! In: a [`KernelKey`] (or a [`Request`] and M, to choose one). Out: the text and its launch rule.
//! `compile` is the way from one to the other, a step after another; [`Jit::kernel`] stops before the
//! text, for the simulator. `rule` derives the launch rule from the kernel, `native` the constant buffers from the problem; `retuned` replaces free choices of
//! a schedule, those that `overrides` says, which the environment may say too; `simulator` (feature
//! `sim`) is an executor of these kernels on the CPU.

mod compile;
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
use quantloom_runtime::source::{KernelKey, KernelSource, KernelText, Refusal, Schedule, Work};

use crate::emit::EmitError;
use crate::ir::{Kernel, Verified};
use crate::schedule::transform::{Part, stores};
use crate::schedule::{Case, Chosen, Order, Problem, Unscheduled, candidates};
use compile::{choice, problem};

pub use overrides::{Overrides, VARIABLE, WrongOverride};
pub use retuned::Retuned;
pub use rule::{Unruled, launch_rule};
#[cfg(feature = "sim")]
pub use simulator::{KEPT_REPORTS, SimError, Simulator, Totals};

/// Why there is no kernel for a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
        compile::kernel(key)
    }
}

impl KernelSource for Jit {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        compile::compile(key)
    }
}

impl Products for Jit {
    fn arrangement(&self, request: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        let Problem { order, mapping, .. } = problem(request)?;
        Ok(order.map(|Order { segment, indexed, groups }| {
            // Products work through whole k-tiles.
            Arrangement {
                run: segment,
                indexed,
                groups,
                whole: mapping.k_tile.next_multiple_of(segment),
            }
        }))
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativePart>, Refusal> {
        Ok(native::parts(&problem(request)?)?)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<Choice, Refusal> {
        let choice = compile::choose(request, tokens)?;
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
        let number = Part::ALL.iter().position(|known| known.role() == part.role);
        let none = || JitError::Work(format!("`{}` as a transform", part.role));
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

/// The name of the schedule of transforms in a key.
const TRANSFORM: &str = "transform";
