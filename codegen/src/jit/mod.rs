//! The compiler as the runtime's source of kernels, which are compiled on demand.
//!
//! In: a [`KernelKey`] (or a [`Request`] and M, to choose one). Out: the kernel source and its launch rule.
//! `compile` has every step in between; [`Jit::kernel`] stops before the source, for the simulator. `rule`
//! derives the launch rule from the kernel, `native` the constant buffers from the problem, `operand` the
//! kernels that prepare x, `experts` those of expert layers; `with_overrides` replaces free choices of a schedule by `overrides`, which may come from
//! the environment; `simulator` (feature `sim`) is an executor of these kernels on the CPU.

mod compile;
mod experts;
mod native;
mod operand;
mod overrides;
mod rule;
#[cfg(feature = "sim")]
mod simulator;
mod with_overrides;

use std::sync::Arc;

use quantloom_dsl::format::{F32, FloatFormat, Number};
use quantloom_dsl::{Accuracy, Activation, BufferRole, Diagnostics, Scheme};
use quantloom_runtime::gpu::{
    Alternatives, Arrangement, ChosenKernel, ExpertKernels, ExpertRequest, NativeBuffer,
    ParamRange, Products, RepackKernels, Request, Stacked, StackedAlternatives, StackedChoice,
};
use quantloom_runtime::source::{KernelKey, KernelSource, KernelText, Refusal, Schedule, Work};

use crate::emit::EmitError;
use crate::ir::{Kernel, Verified, VerifyErrors};
use crate::plan::scaled::NumberRange;
use crate::schedule::transform::{NativeBufferKind, stores};
use crate::schedule::{Case, Chosen, Measured, Order, Unscheduled};
use compile::{problem, problem_of_experts};

pub use overrides::{Overrides, VARIABLE, WrongOverride};
pub use rule::{LaunchRuleError, launch_rule};
#[cfg(feature = "sim")]
pub use simulator::{KEPT_REPORTS, SimError, Simulator, Totals};
pub use with_overrides::{JitWithOverrides, TileTable};

/// Why there is no kernel for a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JitError {
    /// No schedule supports the product.
    #[error(transparent)]
    Unscheduled(#[from] Unscheduled),
    /// The schedule of a key has no kernels for the key's work.
    #[error("the schedule {} has no kernels for: {}", .0.schedule.name, .0.work)]
    Work(Box<KernelKey>),
    /// A line for an exact product.
    #[error("the table of tiles has no lines of exact products")]
    ExactMeasured,
    /// A key names a native buffer, by its number among those of a weight, that does not exist.
    #[error("a weight has no native buffer {0}")]
    Part(u64),
    /// A buffer that no kernel repacks.
    #[error("there are no kernels yet for: `{0}` as a transform")]
    Transform(BufferRole),
    /// A key names a launch that the operand of x does not have.
    #[error("there are no kernels yet for: launch {0} of an operand")]
    Launch(u64),
    /// The key lacks a size that is a constant of the kernel source.
    #[error("the key of {schedule} does not say {size}, which its text needs")]
    Size {
        /// The schedule's name.
        schedule: String,
        /// `n`, `k`, `x_columns`, `part` or `launch`.
        size: &'static str,
    },
    /// The schedule has no free choice of that name.
    #[error("the schedule {schedule} has no free choice `{parameter}`; it has {}", known.join(", "))]
    Parameter {
        /// The schedule's name.
        schedule: String,
        /// The name.
        parameter: String,
        /// The schedule's free choices.
        known: Vec<String>,
    },
    /// The overrides in the environment cannot be read, or a schedule does not support them.
    #[error("the environment variable {VARIABLE}: {0}")]
    Environment(#[source] EnvironmentError),
    /// A schedule wrote a kernel that the verifier refuses: a fault of the schedule.
    #[error("the kernel of {schedule} is not valid: {errors}")]
    Invalid {
        /// The schedule's name.
        schedule: String,
        /// The errors of the verifier.
        #[source]
        errors: VerifyErrors,
    },
    /// The kernel cannot be printed.
    #[error(transparent)]
    Text(#[from] EmitError),
    /// The layout of a group parameter does not parse: a fault of the schedules.
    #[error("the layout of scales and zero points: {0}")]
    Layout(#[source] Diagnostics),
    /// The kernel cannot be launched by a rule.
    #[error(transparent)]
    Rule(#[from] LaunchRuleError),
}

/// Why the overrides in the environment have no effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// They cannot be read.
    #[error(transparent)]
    Wrong(#[from] WrongOverride),
    /// The schedule does not support them.
    #[error(transparent)]
    Refused(Box<JitError>),
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

/// The compiler as a source of kernels. It has no state: a key determines the kernel.
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

/// The kernel for a request and M tokens, with tiles measured on the device, and with the overrides of the environment.
///
/// # Errors
/// Why there is none, or if the overrides are wrong.
fn choose_of_environment(
    request: &Request<'_>,
    tokens: u64,
    tiles: Option<&dyn TileTable>,
) -> Result<ChosenKernel, Refusal> {
    let choice = compile::choose(request, tokens, tiles)?;
    let overrides = of_environment()?;
    let target = compile::gpu(request.target)?;
    let refused = |why| JitError::Environment(EnvironmentError::Refused(Box::new(why)));
    Ok(with_overrides::overridden(request, (target, tokens), choice, &overrides)
        .map_err(refused)?)
}

/// The overrides of the environment.
///
/// # Errors
/// If they are wrong.
fn of_environment() -> Result<Overrides, JitError> {
    Overrides::from_environment().map_err(|why: WrongOverride| JitError::Environment(why.into()))
}

impl Products for Jit {
    fn arrangement(&self, request: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        let problem = problem(request)?;
        let k_tile = problem.k_tile();
        Ok(problem.order.map(|Order { segment, indexed, groups }| {
            // Products work through whole k-tiles.
            Arrangement { segment, indexed, groups, whole: k_tile.next_multiple_of(segment) }
        }))
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativeBuffer>, Refusal> {
        Ok(native::parts(&problem(request)?)?)
    }

    fn param_ranges(&self, request: &Request<'_>) -> Result<Vec<ParamRange>, Refusal> {
        let range = |(buffer, range): (BufferRole, NumberRange)| {
            let NumberRange { number, least, most } = range;
            ParamRange { buffer, number, least, most }
        };
        Ok(problem(request)?.param_ranges().into_iter().map(range).collect())
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<ChosenKernel, Refusal> {
        choose_of_environment(request, tokens, None)
    }

    fn alternatives(&self, request: &Request<'_>, tokens: u64) -> Result<Alternatives, Refusal> {
        compile::alternatives(request, tokens)
    }

    fn choose_stacked(
        &self,
        request: &Request<'_>,
        stacked: &Stacked,
        tokens: u64,
    ) -> Result<StackedChoice, Refusal> {
        compile::choose_experts(request, stacked, tokens, (None, &[&of_environment()?]))
    }

    fn alternatives_stacked(
        &self,
        request: &Request<'_>,
        stacked: &Stacked,
        tokens: u64,
    ) -> Result<StackedAlternatives, Refusal> {
        compile::alternatives_of_experts(request, stacked, tokens)
    }

    fn operand(
        &self,
        request: &Request<'_>,
        product: Option<&KernelKey>,
    ) -> Result<Vec<KernelKey>, Refusal> {
        Ok(operand::keys(request, &problem(request)?, product)?)
    }

    fn operand_stacked(
        &self,
        request: &Request<'_>,
        stacked: &Stacked,
        product: Option<&KernelKey>,
        slots: u64,
    ) -> Result<Vec<KernelKey>, Refusal> {
        Ok(operand::keys_stacked(request, &problem(request)?, stacked, (product, slots))?)
    }

    fn expert_kernels(
        &self,
        request: &ExpertRequest<'_>,
        slots: u64,
        tokens: u64,
    ) -> Result<ExpertKernels, Refusal> {
        experts::keys(request, slots, tokens)
    }

    fn order_with_operand(
        &self,
        request: &Request<'_>,
        product: &KernelKey,
        (layer, slots, tokens): (&ExpertRequest<'_>, u64, u64),
    ) -> Result<Option<KernelKey>, Refusal> {
        let order = experts::sort_problem(layer, slots, tokens)?;
        let of = (&order, layer.top_k);
        Ok(operand::key_with_order(request, &problem(request)?, product, of)?)
    }

    fn product_with_operand(
        &self,
        [first, second]: [&Request<'_>; 2],
        [of_first, of_second]: [&Stacked; 2],
        choices: [&StackedChoice; 2],
    ) -> Result<Option<KernelKey>, Refusal> {
        let reads = problem_of_experts(second, of_second)?;
        let products = (&problem_of_experts(first, of_first)?, (second, of_second, &reads));
        Ok(operand::key_of_product(products, choices)?)
    }

    fn rounds_x(&self, request: &Request<'_>) -> Result<FloatFormat, Refusal> {
        let operand = problem(request)?.input.operand;
        Ok(match (request.activation, operand.number()) {
            // Of f32 nothing is lost.
            (Activation::Float(_), Number::Float(half)) if half != F32 => half,
            _ => request.input_dtype,
        })
    }

    fn repack_kernels(
        &self,
        request: &Request<'_>,
        part: &NativeBuffer,
    ) -> Result<RepackKernels, Refusal> {
        let number = NativeBufferKind::ALL.iter().position(|known| known.role() == part.role);
        let none = || JitError::Transform(part.role);
        let number = number.ok_or_else(none)?;
        // The form of some native buffers depends on the type of x.
        let activations = vec![request.activation.clone()];
        let scheme = Scheme { activations, ..request.scheme.clone() };
        let problem = problem(request)?;
        let stores = stores(&problem, &scheme, NativeBufferKind::ALL[number]);
        let stores = stores.map_err(JitError::from)?;
        let stores = stores.into_iter().map(|store| store.name.clone()).collect();
        let (order, mut sizes) = match problem.order {
            None => (false, vec![("n", request.n), ("k", request.k), ("part", number as u64)]),
            Some(_) => {
                let columns = ("x_columns", request.x_columns);
                let sizes = [("n", request.n), ("k", request.k), columns, ("part", number as u64)];
                (NativeBufferKind::ALL[number].is_sorted(), sizes.to_vec())
            }
        };
        sizes.extend(compile::layout_of(&problem));
        let key = |work| {
            let schedule = Schedule::new(TRANSFORM, sizes.clone());
            KernelKey { work, schedule, target: request.target.to_owned() }
        };
        let (to_native, from_native) = (Work::to_native(&scheme), Work::from_native(&scheme));
        Ok(RepackKernels {
            stores,
            order,
            to_native: key(to_native),
            from_native: key(from_native),
        })
    }
}

/// The line of the table of measured tiles ([`crate::schedule::measured`]) that says of a kernel that it is the fastest for M
/// tokens.
///
/// # Errors
/// A kernel of no schedule, or of an exact product: the table has one line for products of either accuracy.
pub fn measured_row(
    request: &Request<'_>,
    tokens: u64,
    fastest: &KernelKey,
) -> Result<Measured, Refusal> {
    row(request, Case::new(&problem(request)?, compile::size(tokens)), fastest)
}

/// The same of a product of an expert layer.
///
/// # Errors
/// As of [`measured_row`].
pub fn measured_row_of_experts(
    request: &Request<'_>,
    stacked: &Stacked,
    tokens: u64,
    fastest: &KernelKey,
) -> Result<Measured, Refusal> {
    let case = Case::new(&problem_of_experts(request, stacked)?, compile::size(tokens));
    row(request, case.in_blocks(stacked.slots.map(compile::size)), fastest)
}

fn row(request: &Request<'_>, case: Case, fastest: &KernelKey) -> Result<Measured, Refusal> {
    if request.scheme.accuracy == Accuracy::Exact {
        return Err(JitError::ExactMeasured.into());
    }
    let Schedule { name, mut parameters } = fastest.schedule.clone();
    // It follows from the others, for each product of a case.
    parameters.remove(compile::MAKES_OPERAND);
    let chosen = Chosen::read(&name, &parameters).map_err(JitError::from)?;
    Ok(Measured { case, chosen })
}

/// The name of the schedule of transforms in a key.
const TRANSFORM: &str = "transform";
