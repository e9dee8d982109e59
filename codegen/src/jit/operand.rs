//! The kernels that compute the operand of x for a product.

use quantloom_dsl::Activation;
use quantloom_dsl::format::Number;
use quantloom_runtime::gpu::{Request, Stacked};
use quantloom_runtime::source::{ExpertRole, KernelKey, Schedule, Work};

use super::JitError;
use super::compile::{layout_of, role, stack};
use crate::ir::Kernel;
use crate::schedule::activation::{ActivationProblem, Routed, activation};
use crate::schedule::experts::SortProblem;
use crate::schedule::{Chosen, Problem, order_with_operand, takes_order_with_operand};
use crate::target::Feature;

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
    // What becomes of the sums does not matter here.
    let role = role(stacked);
    let role = ExpertRole { gate: None, weighted: false, combined: false, shared: None, ..role };
    let stack = stack(role, (experts, experts), (shards, top_k));
    let copies = chosen.is_some_and(|chosen| chosen.schedule().copies_token_blocks(stack));
    let routed =
        Routed { stack, slots: u32::try_from(slots).unwrap_or(u32::MAX), whole_blocks: copies };
    let problem = problem.routed(routed);
    let dtype = Number::Float(request.input_dtype);
    let work = Work::expert_operand(request.scheme, request.activation, dtype, role);
    let sizes = [("experts", experts), ("shards", shards), ("top_k", top_k), ("slots", slots)];
    let whole = copies.then_some((WHOLE_BLOCKS, 1));
    let more = sizes.into_iter().chain(of_warp_groups(product, own).iter().copied());
    let more = more.chain(layout_of(product)).chain(whole);
    Ok(launches(request, &problem, work, &more.collect::<Vec<_>>()))
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
