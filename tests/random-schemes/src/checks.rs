//! What must hold for a legal scheme, and the outcomes of the checks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use quantloom_codegen::jit::Simulator;
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::{self, PlainCodes, StoredTensors, dequantise};
use quantloom_dsl::{Experts, Scheme, parse};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::checkpoint::{Checkpoint, Tensors, tensor_name};
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_runtime::op::ProductError;
use quantloom_runtime::quantise::{candidates, quantise_checkpoint};
use quantloom_runtime::unpacked::{UnpackError, Unpacked};
use quantloom_tests::{f32_tensor, write_file};
use quantloom_tools::conformance::{Failure, Suite, draw};

use crate::dice::Dice;

/// A scheme and the numbers that determine all data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The scheme.
    pub scheme: Scheme,
    /// N and K; two experts are stacked where the scheme has experts.
    pub shape: (u64, u64),
    /// Values of M.
    pub tokens: Vec<usize>,
    /// The seed of codes, scales and tokens.
    pub seed: u64,
}

impl Case {
    /// The shape with its experts.
    pub fn shape(&self) -> Shape {
        let experts = if self.scheme.experts.is_some() { 2 } else { 1 };
        Shape { experts, n: self.shape.0, k: self.shape.1 }
    }
}

/// A check.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// The printed scheme reads back as the same scheme.
    Print,
    /// Packing and unpacking agree with the reference, bit by bit.
    Pack,
    /// The file that `quantize` writes reads back as the reference quantises.
    Quantize,
    /// Products on a backend, given by its name on the command line.
    Products(String),
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Print => f.write_str("print"),
            Self::Pack => f.write_str("pack"),
            Self::Quantize => f.write_str("quantize"),
            Self::Products(backend) => f.write_str(backend),
        }
    }
}

/// Simulated targets.
pub const SIMULATED: [&str; 7] = [
    "sim:sm_80",
    "sim:sm_90a",
    "sim:gfx942",
    "sim:gfx950",
    "sim:gfx1100",
    "sim:gfx1201",
    "sim:wgsl",
];

impl Check {
    /// All checks: on every instruction set of this machine and every simulated target.
    pub fn all() -> Vec<Self> {
        let sets = Isa::present().map(|isa| isa.name().to_owned());
        let backends = sets.chain(SIMULATED.map(str::to_owned));
        [Self::Print, Self::Pack, Self::Quantize]
            .into_iter()
            .chain(backends.map(Self::Products))
            .collect()
    }
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Passed.
    Passed,
    /// Unsupported, with a reason, which is not a failure.
    Refused(String),
    /// Failed.
    Failed(Fault),
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// A result that differs from the reference.
    Wrong,
    /// An error where none is allowed.
    Error,
    /// A panic.
    Panic,
}

/// A failure.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Its kind.
    pub kind: FailureKind,
    /// The message.
    pub message: String,
}

impl Fault {
    fn wrong(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Wrong, message: message.into() }
    }

    fn error(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Error, message: message.into() }
    }

    /// Whether the cause is probably the same: wrong results have no message, other failures have
    /// the same message apart from numbers.
    pub fn like(&self, other: &Self) -> bool {
        self.kind == other.kind
            && (self.kind == FailureKind::Wrong
                || plain_words(&self.message) == plain_words(&other.message))
    }
}

/// The first line of a message without its numbers and names, so that messages can be counted.
pub fn plain_words(message: &str) -> String {
    let mut line = message.lines().next().unwrap_or("").to_owned();
    // The values of a codebook are left out.
    if let Some((before, values)) = line.split_once("codebook(")
        && let Some((_, after)) = values.split_once(')')
    {
        line = format!("{before}codebook{after}");
    }
    let mut words = String::new();
    let mut number = false;
    for c in line.chars() {
        let digit = c.is_ascii_digit();
        if digit && !number {
            words.push('#');
        } else if !digit {
            words.push(c);
        }
        number = digit;
    }
    words
}

/// Finds a backend by its name, or returns the reason why there is none.
pub type FindBackend = dyn Fn(&str) -> Result<Box<dyn Backend>, String> + Send + Sync;

/// The code under test: the real code, or wrong code in a test of the checks.
#[derive(Clone)]
pub struct Subject {
    /// The packer.
    pub pack: fn(&Scheme, &PlainCodes) -> Result<StoredTensors, UnpackError>,
    /// The printer.
    pub print: fn(&Scheme) -> String,
    /// A backend by its name.
    pub backend: Arc<FindBackend>,
}

impl Default for Subject {
    fn default() -> Self {
        Self {
            pack: quantloom_runtime::pack::pack,
            print: Scheme::to_string,
            backend: Arc::new(backend),
        }
    }
}

/// A backend by its name on the command line.
///
/// No backend has this name.
/// There is none of that name.
pub fn backend(name: &str) -> Result<Box<dyn Backend>, String> {
    match name.strip_prefix("sim:") {
        Some(target) => match Simulator::new(target) {
            Ok(simulator) => Ok(Box::new(GpuDevice::new(simulator))),
            Err(error) => Err(error.to_string()),
        },
        None => {
            let isa = if name == "cpu" { Some(Isa::best()) } else { Isa::from_name(name) };
            let isa = isa.ok_or_else(|| format!("there is no backend \"{name}\""))?;
            let device = CpuDevice::of(isa).map_err(|absent| absent.to_string())?;
            let device = device.with_bf16_dot(true);
            Ok(Box::new(device.with_decoders(quantloom_kernels::DECODERS)))
        }
    }
}

impl Subject {
    /// Runs checks; products on all backends share one reference.
    pub fn run(&self, case: &Case, checks: &[Check]) -> Vec<(Check, Outcome)> {
        let mut outcomes = Vec::new();
        let mut backends = Vec::new();
        for check in checks {
            let outcome = match check {
                Check::Print => caught(|| self.printed(&case.scheme)),
                Check::Pack => caught(|| self.packed(case)),
                Check::Quantize => caught(|| quantized(case)),
                Check::Products(name) => {
                    backends.push(name.as_str());
                    continue;
                }
            };
            outcomes.push((check.clone(), outcome));
        }
        if backends.is_empty() {
            return outcomes;
        }
        let all = caught_fault(|| self.products(case, &backends));
        let all = match (all, &backends[..]) {
            (Ok(all), _) => all,
            (Err(fault), [_]) => vec![Outcome::Failed(fault)],
            // One of the backends panics; find out which.
            (Err(_), _) => backends
                .iter()
                .map(|name| match caught_fault(|| self.products(case, &[name])) {
                    Ok(mut one) => one.remove(0),
                    Err(fault) => Outcome::Failed(fault),
                })
                .collect(),
        };
        let named = backends.into_iter().map(|name| Check::Products(name.to_owned()));
        outcomes.extend(named.zip(all));
        outcomes
    }

    fn printed(&self, scheme: &Scheme) -> Outcome {
        let text = (self.print)(scheme);
        match parse(&text) {
            Err(faults) => {
                let first = faults.faults().first().map_or("", |fault| &fault.message);
                Outcome::Failed(Fault::error(format!(
                    "the printed text is rejected: {first}\n{text}"
                )))
            }
            Ok(again) if again != *scheme => {
                Outcome::Failed(Fault::wrong(format!("the printed text is another scheme\n{text}")))
            }
            Ok(_) => Outcome::Passed,
        }
    }

    fn packed(&self, case: &Case) -> Outcome {
        match self.try_packed(case) {
            Ok(()) => Outcome::Passed,
            Err(fault) => Outcome::Failed(fault),
        }
    }

    fn try_packed(&self, case: &Case) -> Result<(), Fault> {
        let (scheme, shape) = (&case.scheme, case.shape());
        let refused = |who: &str, error: &dyn std::fmt::Display| {
            Fault::error(format!("{who} refuses: {error}"))
        };
        let plain = draw::layer(scheme, shape, case.seed);
        let exact = reference::pack(scheme, &plain).map_err(|e| refused("the reference", &e))?;
        let ours = (self.pack)(scheme, &plain).map_err(|e| refused("the packer", &e))?;
        for store in &scheme.stores {
            let (exact, ours) = (&exact[&store.name], ours.get(&store.name));
            let differs = || exact.iter().zip(ours.into_iter().flatten()).position(|(a, b)| a != b);
            if ours != Some(exact) {
                let (name, at) = (&store.name, differs());
                return Err(Fault::wrong(format!("packed \"{name}\" differs at byte {at:?}")));
            }
        }
        let again =
            reference::unpack(scheme, shape, &exact).map_err(|e| refused("the reference", &e))?;
        if again != plain {
            return Err(Fault::wrong("the reference's unpacker gives other codes"));
        }
        let stored = |name: &str| exact.get(name).map(Vec::as_slice);
        let unpacked =
            Unpacked::new(scheme, shape, &stored).map_err(|e| refused("the unpacker", &e))?;
        let codes = plain.of(Component::Code);
        if !unpacked.codes().iter().map(|code| u32::from(*code)).eq(codes.iter().copied()) {
            return Err(Fault::wrong("the unpacker gives other codes"));
        }
        decoded(scheme, &plain, &unpacked)
    }

    fn products(&self, case: &Case, names: &[&str]) -> Vec<Outcome> {
        let backends: Vec<_> = names.iter().map(|name| (self.backend)(name)).collect();
        let present: Vec<&dyn Backend> = backends.iter().flatten().map(Box::as_ref).collect();
        let suite = Suite {
            shapes: vec![case.shape],
            tokens: case.tokens.clone(),
            seeds: vec![case.seed],
            every: 1,
        };
        let mut results = suite.run(&case.scheme, &present, &|_| {}).into_iter();
        let outcome = |backend: &Result<_, String>| match (backend, results.next()) {
            (Err(error), _) => Outcome::Refused(error.clone()),
            (Ok(_), None) => Outcome::Failed(Fault::error("no result")),
            (Ok(_), Some(Ok(summary))) => match summary.not_scheduled.first() {
                Some((_, why)) if summary.products == 0 => Outcome::Refused(why.to_string()),
                _ => Outcome::Passed,
            },
            (Ok(_), Some(Err(failure))) => of_failure(failure),
        };
        backends.iter().map(outcome).collect()
    }
}

fn of_failure(failure: Failure) -> Outcome {
    match failure {
        Failure::Mismatch { case, miss, misses, elements } => {
            let kernel = &case.kernel;
            Outcome::Failed(Fault::wrong(format!(
                "{miss}; {misses} of {elements} elements ({kernel}, M = {})",
                case.tokens
            )))
        }
        Failure::NotScheduled { why, .. } => Outcome::Refused(why.to_string()),
        Failure::Refused { error, .. } => match *error {
            ProductError::NotScheduled(why) => Outcome::Refused(why.to_string()),
            error => Outcome::Failed(Fault::error(error.to_string())),
        },
        Failure::Reference { error, .. } => {
            Outcome::Failed(Fault::error(format!("the reference rejects the layer: {error}")))
        }
        Failure::Pack { error, .. } => Outcome::Failed(Fault::error(error.to_string())),
        failure => Outcome::Failed(Fault::error(failure.to_string())),
    }
}

/// Rows as f32 are the exact weights, rounded once.
fn decoded(scheme: &Scheme, plain: &PlainCodes, unpacked: &Unpacked) -> Result<(), Fault> {
    let exact = dequantise(scheme, plain)
        .map_err(|error| Fault::error(format!("the reference rejects the layer: {error}")))?;
    let ours = unpacked.decode_rows(0..plain.shape.experts * plain.shape.n);
    for (at, (ours, exact)) in ours.iter().zip(&exact).enumerate() {
        // The order of the levels may differ by roundings of f64.
        let near = (f64::from(*ours) - exact).abs() <= exact.abs() * 1.01 * (-24f64).exp2() + 1e-45;
        let rounded = *exact as f32;
        let same = *ours == rounded || ours.is_nan() && rounded.is_nan();
        if !same && !near {
            return Err(Fault::wrong(format!("weight {at} is decoded as {ours:e}, not {exact:e}")));
        }
    }
    Ok(())
}

fn quantized(case: &Case) -> Outcome {
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => return Outcome::Failed(Fault::error(format!("no folder: {error}"))),
    };
    match try_quantized(case, folder.path()) {
        Ok(outcome) => outcome,
        Err(mut fault) => {
            // The same text each time.
            fault.message = fault.message.replace(&*folder.path().to_string_lossy(), "");
            Outcome::Failed(fault)
        }
    }
}

fn try_quantized(case: &Case, folder: &Path) -> Result<Outcome, Fault> {
    let (scheme, shape) = (&case.scheme, case.shape());
    let (given, written) = (folder.join("w.safetensors"), folder.join("q.safetensors"));
    let (layer, tensor) = match scheme.experts {
        None => ("layer", "layer.weight"),
        Some(Experts::Single) => ("layer", "layer"),
        Some(_) => ("layer.gate_up_proj", "layer.gate_up_proj"),
    };
    let w = weights(case);
    let sizes = [shape.experts, shape.n, shape.k].map(|size| size as usize);
    let sizes = if scheme.experts.is_some() { &sizes[..] } else { &sizes[1..] };
    let mut tensors = BTreeMap::from([(tensor.to_owned(), f32_tensor(sizes, &w))]);
    let bias = scheme.stores_of(Component::Bias).next().map(|store| {
        let rows = (shape.experts * shape.n) as usize;
        let bias: Vec<f32> = (0..rows).map(|row| (row % 17) as f32 / 8.0 - 1.0).collect();
        let sizes = &sizes[..sizes.len() - 1];
        tensors.insert(tensor_name(layer, &store.name), f32_tensor(sizes, &bias));
        bias.into_iter().map(f64::from).collect::<Vec<f64>>()
    });
    write_file(&given, &tensors, None);
    let open = |path: &Path| {
        Tensors::open(path).map_err(|error| Fault::error(format!("does not open: {error}")))
    };
    let tensors = open(&given)?;
    let mut chosen = candidates(&tensors, scheme);
    chosen.retain(|candidate| candidate.tensor == tensor);
    if let Err(error) = quantise_checkpoint(&tensors, scheme, &chosen, &written, &|_| {}) {
        let text = error.to_string();
        let reasons = ["its layout takes", "cannot be numbered in"];
        return match reasons.iter().any(|reason| text.contains(reason)) {
            true => Ok(Outcome::Refused(text)),
            false => Err(Fault::error(format!("quantize fails: {text}"))),
        };
    }
    let unread = |error: &dyn std::fmt::Display| {
        Fault::error(format!("what quantize wrote does not read: {error}"))
    };
    let read = Checkpoint::open(&written).map_err(|error| unread(&error))?;
    let layer = read.layer(layer).map_err(|error| unread(&error))?;
    if !layer.scheme().same_meaning(scheme) || layer.shape() != shape {
        let (is, at) = (layer.scheme(), layer.shape());
        return Err(Fault::wrong(format!("quantize's file reads as another scheme\n{is}{at:?}")));
    }
    let values: Vec<f64> = w.iter().map(|value| f64::from(*value)).collect();
    let own = quantloom_dsl::format::F32;
    let exact = reference::quantise(scheme, shape, &values, own, bias.as_deref())
        .map_err(|error| Fault::error(format!("the reference does not quantise: {error}")))?;
    let packed = reference::pack(scheme, &exact)
        .map_err(|error| Fault::error(format!("the reference does not pack: {error}")))?;
    for store in &scheme.stores {
        if layer.store(&store.name) != packed.get(&store.name).map(Vec::as_slice) {
            let what = format!("quantize wrote another \"{}\" than the reference", store.name);
            return Err(Fault::wrong(what));
        }
    }
    let unpacked = layer.unpack().map_err(|error| unread(&error))?;
    decoded(scheme, &exact, &unpacked)?;
    Ok(Outcome::Passed)
}

/// Weights of a layer: normal, biased, or with rows and groups of zeros, by the seed.
fn weights(case: &Case) -> Vec<f32> {
    let shape = case.shape();
    let mut dice = Dice::new(case.seed, 0x77);
    let size = dice.of(&[0.02, 1.0, 30.0]);
    let bias = if dice.one_in(3) { size } else { 0.0 };
    let zeros = dice.one_in(3);
    let count = shape.experts * shape.n * shape.k;
    let mut weight = |at: u64| {
        let value = (dice.normal() * size + bias) as f32;
        if zeros && (at / 16).is_multiple_of(5) { 0.0 } else { value }
    };
    (0..count).map(&mut weight).collect()
}

fn caught(check: impl FnOnce() -> Outcome) -> Outcome {
    caught_fault(check).unwrap_or_else(Outcome::Failed)
}

/// The result of a closure, or its panic as a failure.
///
/// # Errors
/// The closure panics.
pub fn caught_fault<T>(check: impl FnOnce() -> T) -> Result<T, Fault> {
    PLACE.take();
    catch_unwind(AssertUnwindSafe(check)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("without a message");
        Fault { kind: FailureKind::Panic, message: format!("panic{}: {text}", PLACE.take()) }
    })
}

thread_local! {
    /// The location of this thread's last panic.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Records the location of a panic instead of printing it, since each step of shrinking would print
/// one.
pub fn note_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or(String::new(), |at| format!(" at {at}"));
        PLACE.set(place);
    }));
}

impl Check {
    /// The location of a panic: products of neighbouring backends fail for the same cause.
    pub fn place(&self) -> &'static str {
        match self {
            Self::Print => "print",
            Self::Pack => "pack",
            Self::Quantize => "quantize",
            Self::Products(name) if name == "sim:wgsl" => "wgsl",
            Self::Products(name) if name.starts_with("sim:gfx") => "amd",
            Self::Products(name) if name.starts_with("sim:") => "nvidia",
            Self::Products(_) => "cpu",
        }
    }
}
