//! The kernels that compute the operand of x for a product.

use quantloom_dsl::format::Number;
use quantloom_dsl::{Activation, Scheme};
use quantloom_runtime::gpu::Request;
use quantloom_runtime::source::{KernelKey, Schedule, Work};

use super::JitError;
use crate::ir::Kernel;
use crate::schedule::activation::{ActivationProblem, activation};
use crate::schedule::{InputScale, Problem};
use crate::target::Feature;

/// The name of these kernels' schedule in a key.
pub(super) const SCHEDULE: &str = "activation";

/// The operand of a product; `None` if the product reads x without preparation or conversion.
pub(super) fn problem(
    request: &Request<'_>,
    product: &Problem,
) -> Result<Option<ActivationProblem>, JitError> {
    let own = Number::Float(request.own);
    let converted = matches!(request.activation, Activation::Float(listed) if *listed != own);
    let of = (request.scheme, request.activation, own);
    let made = product.input.prepared || converted;
    made.then(|| posed(product, of, request.x_columns)).transpose()
}

fn posed(
    product: &Problem,
    (scheme, activation, own): (&Scheme, &Activation, Number),
    columns: u64,
) -> Result<ActivationProblem, JitError> {
    let columns = u32::try_from(columns).unwrap_or(u32::MAX);
    let (operand, shape) = (product.input.operand, (columns, product.input.columns));
    let gathers = product.order.is_some();
    let target = product.target();
    let problem = ActivationProblem::new(scheme, activation, own, operand, target, shape, gathers)?;
    if product.input.codes {
        return Ok(problem.leaving_codes()?);
    }
    Ok(problem.in_segments(product.input.scale.and_then(InputScale::columns)))
}

/// The keys, in the order of the launches.
pub(super) fn keys(request: &Request<'_>, product: &Problem) -> Result<Vec<KernelKey>, JitError> {
    let Some(problem) = problem(request, product)? else { return Ok(Vec::new()) };
    let own = Number::Float(request.own);
    let key = |launch: u64| {
        let sizes = [
            ("n", request.n),
            ("k", request.k),
            ("x_columns", request.x_columns),
            ("launch", launch),
        ];
        let work = Work::operand(request.scheme, request.activation, own);
        let schedule = Schedule::new(SCHEDULE, sizes);
        KernelKey { work, schedule, target: request.target.to_owned() }
    };
    Ok((0..u64::from(problem.launches())).map(key).collect())
}

/// One of the kernels.
pub(super) fn written(
    product: &Problem,
    of: (&Scheme, &Activation, Number),
    (columns, launch): (u64, u64),
) -> Result<Kernel, JitError> {
    let problem = posed(product, of, columns)?;
    let kernels = activation(&problem, product.target().has(Feature::GridDependency));
    let kernel = usize::try_from(launch).ok().and_then(|launch| kernels.into_iter().nth(launch));
    kernel.ok_or(JitError::Launch(launch))
}
