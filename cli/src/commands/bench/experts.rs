//! `quantloom bench --experts`: whole expert layers, from the ids of experts to y.
//!
//! Each call has ids of its own, drawn uniformly, so that calls meet different experts and nothing stays
//! in a cache. Next to a time is that of reading the weights of the experts that a call meets, once.

use std::any::Any;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use quantloom::device::Device;
use quantloom::dsl::experts::ExpertLayer;
use quantloom::runtime::backend::Backend;
use quantloom::runtime::cpu::CpuDevice;
use quantloom::runtime::cuda::timing::time_each;
use quantloom::runtime::cuda::{Cuda, ImageCache, Stream};
use quantloom::runtime::element::ValuesMut;
use quantloom::runtime::experts::{ExpertCall, Routed};
use quantloom::runtime::gpu::{GpuDevice, GpuExpertLayer, PlanKey, RoutedBy};
use quantloom::runtime::op::Workspace;
use quantloom_tools::cuda::ReadRoofline;
use quantloom_tools::cuda::random::random_word;
use quantloom_tools::measure::{Memory, median, seconds};
use serde_json::json;

use super::super::random_experts::{RandomExperts, options};
use super::super::sizes::Tokens;
use super::super::{print_line, table};
use super::{Arguments, NormalX};
use crate::atomic_write::write_and_say;
use crate::progress::Progress;

/// Calls of a round, each with experts of its own.
const CALLS: usize = 12;
/// Time of a cell on the CPU.
const BUDGET: Duration = Duration::from_millis(600);
/// The scheme where none is asked for.
const USUAL: &str = "ct_w4a16";

/// A layer with one M.
struct Cell {
    scheme: String,
    tokens: usize,
    kernels: Vec<String>,
    /// Experts that a call meets, on average.
    experts: f64,
    /// Bytes of their codes and group parameters.
    bytes: f64,
    /// Microseconds a call.
    time: f64,
    /// The same without programmatic launch, on a GPU.
    serial: Option<f64>,
    /// Microseconds of reading the bytes.
    floor: f64,
    /// Microseconds of a call that ends after its first launch, its first two, and so on; empty if they were not measured.
    until: Vec<f64>,
}

impl Cell {
    /// Each measured launch: its kernel, the time until its end, and what it adds to the time of those before it.
    fn launches(&self) -> impl Iterator<Item = (&str, f64, f64)> {
        let before = [0.0].into_iter().chain(self.until.iter().copied());
        let times = self.until.iter().zip(before);
        let kernels = self.kernels.iter().map(String::as_str);
        kernels.zip(times).map(|(kernel, (until, before))| (kernel, *until, until - before))
    }
}

pub(super) fn run(arguments: &Arguments, layer: &ExpertLayer, device: &Device) -> Result<bool> {
    if arguments.launches && matches!(device, Device::Cpu(_)) {
        bail!("--launches is of an NVIDIA GPU: add `--backend cuda`");
    }
    let names: Vec<&str> = match arguments.schemes.as_slice() {
        [] => vec![USUAL],
        given => given.iter().map(String::as_str).collect(),
    };
    let Tokens(tokens) = &arguments.m;
    let mut cells = Vec::new();
    let progress = Progress::new("measuring", (names.len() * tokens.len()) as u64);
    for name in names {
        let scheme = arguments.products.scheme(name)?;
        let context = || format!("scheme {name}, {layer}");
        let weights = RandomExperts::new(&scheme, layer).with_context(context)?;
        let mut done = |cell: Cell| {
            cells.push(cell);
            progress.advance(1);
        };
        match device {
            Device::Cpu(device) => on_cpu(*device, layer, &weights, tokens, &mut done),
            Device::Cuda(device) => {
                on_cuda(device, layer, &weights, (tokens, arguments), &mut done)
            }
            other => bail!("there are no measurements of expert layers on {}", other.name()),
        }
        .with_context(context)?;
    }
    drop(progress);
    show(arguments, layer, &cells)?;
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&as_json(
            layer,
            (device.name(), arguments.sustained),
            &cells,
        ))?;
        write_and_say(path, &(text + "\n"))?;
    }
    Ok(!cells.is_empty())
}

/// The ids and router weights of a call.
struct Choice {
    ids: Vec<i32>,
    weights: Vec<f32>,
}

impl Choice {
    /// Different experts for each token, uniformly.
    fn new(layer: &ExpertLayer, tokens: usize, call: usize) -> Self {
        let (experts, k) = (layer.experts as usize, layer.top_k as usize);
        let mut ids = Vec::with_capacity(tokens * k);
        let mut order: Vec<i32> = (0..layer.experts as i32).collect();
        for token in 0..tokens {
            for choice in 0..k {
                let at = (token * k + choice) as u32;
                let left = (experts - choice) as u64;
                let next = (u64::from(random_word(at, call as u32 + 1)) * left) >> 32;
                order.swap(choice, choice + next as usize);
            }
            ids.extend_from_slice(&order[..k]);
        }
        Self { weights: vec![1.0 / k as f32; ids.len()], ids }
    }

    fn routed(&self) -> Routed<'_> {
        Routed::Chosen { ids: &self.ids, weights: &self.weights }
    }

    /// Experts that some token meets.
    fn experts(&self) -> usize {
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        ids.len()
    }
}

/// The calls of a round, and the experts that one meets on average.
fn choices(layer: &ExpertLayer, tokens: usize) -> (Vec<Choice>, f64) {
    let calls: Vec<Choice> = (0..CALLS).map(|call| Choice::new(layer, tokens, call)).collect();
    let experts: usize = calls.iter().map(Choice::experts).sum();
    (calls, experts as f64 / CALLS as f64)
}

fn on_cpu(
    device: CpuDevice,
    layer: &ExpertLayer,
    weights: &RandomExperts,
    tokens: &[usize],
    done: &mut dyn FnMut(Cell),
) -> Result<()> {
    let mut bytes = [0; 2];
    for (bytes, shards) in bytes.iter_mut().zip(&weights.matrices) {
        *bytes = device.prepare(&weights.scheme, &shards[0])?.bytes() as u64;
    }
    let bytes = weights.expert_bytes(layer, bytes) as f64;
    let op = device.prepare_experts(layer, weights, &options(layer))?;
    let memory = Memory::beyond_the_caches();
    for &tokens in tokens {
        let (calls, experts) = choices(layer, tokens);
        let x = NormalX::tokens(weights.own, tokens, layer.hidden);
        let mut y = vec![0.0f32; tokens * layer.hidden as usize];
        let mut workspace = Workspace::default();
        let (mut times, mut reads) = (Vec::new(), Vec::new());
        let start = Instant::now();
        while times.len() < CALLS || start.elapsed() < BUDGET {
            reads.push(memory.sample());
            for (at, call) in calls.iter().enumerate() {
                let call = ExpertCall { x: x.values(), routed: call.routed(), shared: None };
                let mut outcome = Ok(());
                let time = seconds(|| {
                    outcome = op.forward_into(&call, ValuesMut::F32(&mut y), &mut workspace);
                });
                outcome?;
                // The first call of a round meets what the sample left behind.
                if at > 0 {
                    times.push(time * 1e6);
                }
            }
        }
        let floor = experts * bytes / (median(&mut reads) * 1e3);
        done(Cell {
            scheme: weights.scheme.name.clone(),
            tokens,
            kernels: op.kernels(tokens),
            experts,
            bytes: experts * bytes,
            time: median(&mut times),
            serial: None,
            floor,
            until: Vec::new(),
        });
    }
    Ok(())
}

fn on_cuda(
    device: &GpuDevice<Cuda>,
    layer: &ExpertLayer,
    weights: &RandomExperts,
    (tokens, arguments): (&[usize], &Arguments),
    done: &mut dyn FnMut(Cell),
) -> Result<()> {
    let mut bytes = [0; 2];
    for (bytes, shards) in bytes.iter_mut().zip(&weights.matrices) {
        *bytes = device.prepare(&weights.scheme, &shards[0])?.bytes(weights.own);
    }
    let bytes = weights.expert_bytes(layer, bytes) as f64;
    let mut options = options(layer);
    if let Some(most) = arguments.most_f32_parts {
        options.most_f32_parts = most;
    }
    let op: Box<dyn Any> = device.prepare_experts(layer, weights, &options)?;
    let prepared = op
        .downcast::<GpuExpertLayer<Cuda>>()
        .map_err(|_| anyhow!("the device's expert layers are none of a GPU"))?;
    let stream = device.executor().stream();
    let floors =
        ReadRoofline::new(Stream::new(stream.context())?, &ImageCache::from_environment())?;
    for &tokens in tokens {
        let (calls, experts) = choices(layer, tokens);
        let x = NormalX::tokens(weights.own, tokens, layer.hidden);
        let tensors = calls.iter().map(|call| {
            let call = ExpertCall { x: x.values(), routed: call.routed(), shared: None };
            prepared.tensors(&call)
        });
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        // One workspace and one y for all calls, as engines have them.
        let first = ExpertCall { x: x.values(), routed: calls[0].routed(), shared: None };
        let mut shared = prepared.tensors(&first)?;
        if !tensors.iter().all(|call| shared.read_inputs_of(call)) {
            bail!("calls of {tokens} tokens have several plans");
        }
        let (element, routed) = (x.values().format(), RoutedBy::Chosen);
        let key = PlanKey { element, output: element, tokens: tokens as u64, routed, shared: None };
        let plan = prepared.plan(key)?;
        let launches = if arguments.launches { tensors[0].launches() } else { 0 };
        // All launches, one after another and overlapping; then overlapping ones of each smaller number.
        let calls = 2 + launches.saturating_sub(1);
        let timings = time_each(stream, (CALLS, arguments.lead()), calls, |of, call, _| {
            let launches = if of < 2 { usize::MAX } else { of - 1 };
            let _ = shared.read_inputs_of(&tensors[call]);
            prepared.queue_first(launches, &mut shared, of > 0)
        })?;
        let times: Vec<f64> = timings.iter().map(|timing| timing.microseconds).collect();
        let [serial, time, ref parts @ ..] = times[..] else { bail!("nothing was measured") };
        let until = parts.iter().chain((launches > 0).then_some(&time)).copied().collect();
        let floor = floors.time((experts * bytes) as u64)?;
        done(Cell {
            scheme: weights.scheme.name.clone(),
            tokens,
            kernels: plan.steps().iter().map(|step| step.kernel.to_string()).collect(),
            experts,
            bytes: experts * bytes,
            time,
            serial: Some(serial),
            floor: floor.overlapped.microseconds,
            until,
        });
    }
    Ok(())
}

fn show(arguments: &Arguments, layer: &ExpertLayer, cells: &[Cell]) -> Result<()> {
    print_line(format_args!("\n{layer}; microseconds a call, in brackets over the floor"))?;
    let header = ["scheme", "M", "time", "serial", "floor", "experts", "MB", "kernels"];
    let mut rows = table(&header);
    for cell in cells {
        let over = |time: f64| format!("{time:.1} ({:.2})", time / cell.floor);
        rows.add_row([
            cell.scheme.clone(),
            cell.tokens.to_string(),
            over(cell.time),
            cell.serial.map_or_else(String::new, over),
            format!("{:.1}", cell.floor),
            format!("{:.1}", cell.experts),
            format!("{:.1}", cell.bytes / 1e6),
            cell.kernels
                .iter()
                .map(|kernel| without_choices(kernel))
                .collect::<Vec<_>>()
                .join("; "),
        ]);
    }
    print_line(rows)?;
    print_line(format_args!(
        "time: from ids to y, each call with other experts; serial: without programmatic launch; \
         floor: reading the weights of the experts that a call meets; --json has the choices of kernels{}",
        arguments.note()
    ))?;
    show_launches(cells)
}

/// What a kernel does and by which schedule, without the numbers that were chosen, of which a call's kernels have lines.
fn without_choices(kernel: &str) -> &str {
    kernel.split_once('(').map_or(kernel, |(work, _)| work)
}

/// What the launches of cells add, where that was measured.
fn show_launches(cells: &[Cell]) -> Result<()> {
    let mut rows = table(&["scheme", "M", "launch", "adds", "until its end", "kernel"]);
    for cell in cells {
        for (number, (kernel, until, adds)) in (1u32..).zip(cell.launches()) {
            rows.add_row([
                cell.scheme.clone(),
                cell.tokens.to_string(),
                number.to_string(),
                format!("{adds:.1}"),
                format!("{until:.1}"),
                kernel.to_owned(),
            ]);
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    print_line(format_args!("\nwhat each launch adds, microseconds"))?;
    print_line(rows)?;
    print_line(
        "until its end: of calls that end after the launch, one call after another, with programmatic launch; \
         adds: the difference to the launch before, which may be below 0: the next call's first launch hides \
         other parts of other ends",
    )
}

fn as_json(
    layer: &ExpertLayer,
    (device, sustained): (&str, bool),
    cells: &[Cell],
) -> serde_json::Value {
    let launch = |(kernel, until, adds): (&str, f64, f64)| {
        json!({
            "kernel": kernel,
            "microseconds_added": adds,
            "microseconds_until_its_end": until,
        })
    };
    let cell = |cell: &Cell| {
        json!({
            "scheme": cell.scheme,
            "m": cell.tokens,
            "microseconds": cell.time,
            "microseconds_serial": cell.serial,
            "floor_microseconds": cell.floor,
            "experts_met": cell.experts,
            "bytes": cell.bytes,
            "kernels": cell.kernels,
            "launches": (!cell.until.is_empty()).then(|| cell.launches().map(launch).collect::<Vec<_>>()),
        })
    };
    json!({
        "backend": device,
        "layer": layer.to_string(),
        "sustained": sustained,
        "results": cells.iter().map(cell).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A launch adds the difference of the times until its end and until that of the one before.
    #[test]
    fn what_launches_add_is_the_difference_of_times() {
        let kernels = ["order", "gate_up", "down"].map(str::to_owned).to_vec();
        let (scheme, until) = ("s".to_owned(), vec![2.5, 30.0, 45.5]);
        let (time, serial, floor, experts, bytes) = (45.4, None, 40.0, 8.0, 1e6);
        let mut cell =
            Cell { scheme, tokens: 8, kernels, experts, bytes, time, serial, floor, until };
        let expected = [("order", 2.5, 2.5), ("gate_up", 30.0, 27.5), ("down", 45.5, 15.5)];
        assert_eq!(cell.launches().collect::<Vec<_>>(), expected);
        let layer = "8 experts of 64 x 32, top 2, softmax, silu".parse().expect("a layer");
        let measured = &as_json(&layer, ("cuda", true), std::slice::from_ref(&cell))["results"][0];
        assert_eq!(measured["launches"][1]["microseconds_added"], 27.5);
        let long = "down product of 4-bit codes to f32, skinny(n=64, tokens=8), sm_90a";
        let short = "down product of 4-bit codes to f32, skinny";
        assert_eq!([long, "order"].map(without_choices), [short, "order"]);
        cell.until.clear();
        assert_eq!(cell.launches().count(), 0);
        let unmeasured = as_json(&layer, ("cuda", true), std::slice::from_ref(&cell));
        assert!(unmeasured["results"][0]["launches"].is_null());
        assert_eq!(unmeasured["sustained"], true);
    }

    #[test]
    fn a_token_meets_different_experts_and_calls_differ() {
        let layer: ExpertLayer =
            "12 experts of 64 x 32, top 5, softmax, silu".parse().expect("a layer");
        let (calls, experts) = choices(&layer, 40);
        assert!(experts > 11.9, "{experts}");
        for call in &calls {
            for token in call.ids.chunks(5) {
                let mut seen = token.to_vec();
                seen.sort_unstable();
                seen.dedup();
                assert!(seen.len() == 5 && seen.iter().all(|id| (0..12).contains(id)), "{token:?}");
            }
        }
        assert_ne!(calls[0].ids, calls[1].ids);
    }
}
