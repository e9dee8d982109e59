//! The kernels of expert layers that are no products: their keys, and the kernels of keys.

use quantloom_dsl::format::{FloatFormat, Number};
use quantloom_runtime::gpu::{ExpertKernels, ExpertRequest};
use quantloom_runtime::source::{KernelKey, Refusal, Schedule, Work};

use super::JitError;
use super::compile::gpu;
use crate::ir::Kernel;
use crate::schedule::experts::{
    COUNTED_BY_ALL, CombineProblem, GateProblem, RouteProblem, SortProblem, WeighProblem, activate,
    combine, route, sort, weigh,
};
use crate::target::{Class, Target};

/// The name of these kernels' schedule in a key.
const SCHEDULE: &str = "experts";
/// The most blocks along an axis of a launch, by WebGPU's default limits.
const MOST_BLOCKS: u64 = 65_535;

/// The keys of a layer's kernels for M tokens and token blocks of `slots` slots; 0 if pairs are not sorted.
///
/// # Errors
/// A target without kernels.
pub(super) fn keys(
    request: &ExpertRequest<'_>,
    slots: u64,
    tokens: u64,
) -> Result<ExpertKernels, Refusal> {
    let &ExpertRequest { layer, experts, local, mapped, top_k, input_dtype, target, .. } = request;
    let &ExpertRequest { parts, output, weighted, shared, .. } = request;
    let of_shared = Number::Float(shared.unwrap_or(input_dtype));
    let own = Number::Float(input_dtype);
    let [parts, output] = [parts, output].map(Number::Float);
    let key = |work, sizes: &[(&str, u64)]| {
        let schedule = Schedule::new(SCHEDULE, sizes.iter().copied());
        KernelKey { work, schedule, target: target.to_owned() }
    };
    let blocks = [("local", local), ("slots", slots)];
    let sized = |more: &[(&'static str, u64)]| [&blocks[..], more].concat();
    let counted = are_counted(tokens, top_k);
    let order = |launch| {
        let sizes = [
            ("experts", experts),
            ("mapped", mapped.into()),
            ("counted", counted.into()),
            ("launch", launch),
        ];
        key(Work::Order, &sized(&sizes))
    };
    let (hidden, intermediate) = (layer.hidden, layer.intermediate);
    let route = [("experts", experts), ("top_k", top_k)];
    let sums = [
        ("hidden", hidden),
        ("top_k", top_k),
        ("weighted", weighted.into()),
        ("shared", shared.is_some().into()),
    ];
    let widest = hidden.max(intermediate).max(1) * layer.gate.shards() as u64;
    let elements = (1 << 31) / widest;
    let most_rows = match gpu(target)?.class {
        Class::Shader => elements.min(MOST_BLOCKS),
        _ => elements,
    };
    Ok(ExpertKernels {
        most_rows,
        route: key(Work::Route(layer.routing), &route),
        order: (0..=u64::from(counted)).map(order).collect(),
        weigh: key(Work::WeighRows { own }, &[("hidden", hidden)]),
        gate: key(Work::Gate { gate: layer.gate, own }, &sized(&[("intermediate", intermediate)])),
        combine: key(Work::Combine { parts, own: of_shared, output }, &sized(&sums)),
    })
}

/// Whether a kernel of its own counts the pairs of so many tokens.
fn are_counted(tokens: u64, top_k: u64) -> bool {
    tokens.saturating_mul(top_k) > u64::from(COUNTED_BY_ALL)
}

/// The order of a layer's pairs for M tokens and token blocks of `slots` slots.
///
/// # Errors
/// A target without kernels.
pub(super) fn sort_problem(
    request: &ExpertRequest<'_>,
    slots: u64,
    tokens: u64,
) -> Result<SortProblem, Refusal> {
    let &ExpertRequest { experts, local, mapped, top_k, target, .. } = request;
    let size = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
    Ok(SortProblem {
        target: gpu(target)?,
        experts: size(experts),
        local: size(local),
        mapped,
        slots: size(slots),
        counted: are_counted(tokens, top_k),
    })
}

/// The kernel of a key.
///
/// # Errors
/// A key of other work, without a size, or of a launch that does not exist.
pub(super) fn written(key: &KernelKey, target: &'static Target) -> Result<Kernel, JitError> {
    let Schedule { name, parameters } = &key.schedule;
    let none = || JitError::Work(Box::new(key.clone()));
    let size = |size: &'static str| {
        let missing = || JitError::Size { schedule: name.clone(), size };
        let found = parameters.get(size).copied().ok_or_else(missing)?;
        u32::try_from(found).map_err(|_| none())
    };
    let float = |number: Number| match number {
        Number::Float(format) => Ok::<FloatFormat, JitError>(format),
        _ => Err(none()),
    };
    if name != SCHEDULE {
        return Err(none());
    }
    Ok(match &key.work {
        Work::Route(routing) => {
            let (experts, top_k) = (size("experts")?, size("top_k")?);
            route(&RouteProblem { target, routing: *routing, experts, top_k })
        }
        Work::Order => {
            let problem = SortProblem {
                target,
                experts: size("experts")?,
                local: size("local")?,
                mapped: size("mapped")? != 0,
                slots: size("slots")?,
                counted: size("counted")? != 0,
            };
            let launch = size("launch")?;
            let kernel = sort(&problem).into_iter().nth(launch as usize);
            kernel.ok_or(JitError::Launch(launch.into()))?
        }
        Work::WeighRows { own } => {
            weigh(&WeighProblem { target, own: float(*own)?, hidden: size("hidden")? })
        }
        Work::Gate { gate, own } => activate(&GateProblem {
            target,
            gate: *gate,
            own: float(*own)?,
            intermediate: size("intermediate")?,
            local: size("local")?,
            slots: size("slots")?,
        }),
        Work::Combine { parts, own, output } => combine(&CombineProblem {
            target,
            parts: float(*parts)?,
            own: float(*own)?,
            output: float(*output)?,
            hidden: size("hidden")?,
            top_k: size("top_k")?,
            local: size("local")?,
            slots: Some(size("slots")?).filter(|slots| *slots > 0),
            weighted: size("weighted")? != 0,
            shared: size("shared")? != 0,
        }),
        Work::Product { .. }
        | Work::ProductWithOperand { .. }
        | Work::Operand { .. }
        | Work::OrderWithOperand { .. }
        | Work::ToNative(_)
        | Work::FromNative(_) => return Err(none()),
    })
}
