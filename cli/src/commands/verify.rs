//! `quantloom verify`

use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

use anyhow::{Result, bail};
use clap::Args;
use quantloom::device::Device;
use quantloom::dsl::Scheme;
use quantloom::runtime::backend::Backend;
use quantloom_tools::conformance::{Failure, Suite, Summary};

use super::sizes::{TokensOrNone, shape};
use super::verify_experts::{self, Narrowed};
use super::{ProductOptions, backend, eprint_line, print_line, scheme, table};
use crate::printed::shell_word;
use crate::progress::Progress;

/// Products of random layers against the f64 reference, element by element.
#[derive(Args)]
#[command(
    after_help = "Codes are random over all codes, scales vary from group to group over the \
    whole range of their type, columns are in random groups where the scheme has an index; the \
    bound of each element is derived, not tuned. Scheme, shape, M and seed decide all numbers: a \
    miss prints the one command that does it again.\n\n\
    Examples:\n  \
    quantloom verify all\n  \
    quantloom verify all --backend cuda --quick\n  \
    quantloom verify ct_w4a16 gptq4_v1_actorder --backend avx2\n  \
    quantloom verify my.scheme --backend portable --shape 33x160 --m 1-17 --seed 3\n  \
    quantloom verify ct_w4a16 --backend cuda --shape 4096x4096 --m 1,3,16\n  \
    quantloom verify ct_w4a16 --backend sim:sm_90a --shape 41x200 --m 1,3,16 --seed 0\n  \
    quantloom verify ct_w4a16 arm_w4a8_g32 --experts 16x4 --shape 64x96 --gate silu"
)]
pub(crate) struct Arguments {
    /// Catalogue names or .scheme files; `all` is the whole catalogue.
    #[arg(required = true, value_name = "SCHEME")]
    schemes: Vec<String>,
    /// What multiplies: `all` takes every instruction set that is present, `cpu` the best of
    /// them, `portable` plain Rust; or one by its name; `cuda` (`cuda:1`) an NVIDIA GPU,
    /// `hip` (`hip:1`) an AMD GPU, `sim:sm_90a` a GPU's kernels on the simulator.
    #[arg(long, default_value = "all")]
    backend: String,
    #[command(flatten)]
    tuning: backend::Tuning,
    #[command(flatten)]
    products: ProductOptions,
    /// Only this alternative of the schemes' activations: `bf16`, or the type of a quantiser's codes,
    /// `i8`.
    #[arg(long, value_name = "TYPE")]
    activation: Option<String>,
    /// Three shapes, M of 1, 3 and 17, two seeds: a first look.
    #[arg(long)]
    quick: bool,
    /// Only this shape, instead of seven that are whole, ragged, tiny and long.
    #[arg(long, value_name = "NxK", value_parser = shape)]
    shape: Option<(u64, u64)>,
    /// Only these M: 1,8,32 or 1-17; of expert layers 0 too.
    #[arg(long, value_name = "LIST")]
    m: Option<TokensOrNone>,
    /// Only this seed, instead of 0 to 11; a seed decides what kind of scales are drawn too.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    #[command(flatten)]
    layers: verify_experts::Layers,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let mut schemes: Vec<Named> = Vec::new();
    for name in &arguments.schemes {
        match name.as_str() {
            "all" => {
                let all = quantloom::kernels::catalogue().iter();
                schemes.extend(all.map(|s| Named { argument: s.name.clone(), scheme: s.clone() }));
            }
            name => schemes.push(Named { argument: shell_word(name), scheme: scheme(name)? }),
        }
    }
    if let Some(name) = &arguments.activation {
        for named in &mut schemes {
            named.scheme = named.scheme.with_activation(name)?;
            named.argument = format!("{} --activation {name}", named.argument);
        }
    }
    if let Some(name) = arguments.products.accuracy() {
        for named in &mut schemes {
            named.scheme = arguments.products.of(named.scheme.clone());
            named.argument = format!("{} --accuracy {name}", named.argument);
        }
    }
    let devices = backend::devices(&arguments.backend, &arguments.tuning)?;
    if let Some(experts) = arguments.layers.experts {
        let narrowed = Narrowed {
            quick: arguments.quick,
            shape: arguments.shape,
            tokens: arguments.m.as_ref().map(|TokensOrNone(tokens)| tokens.as_slice()),
            seed: arguments.seed,
        };
        return verify_experts::run(&arguments.layers, experts, &narrowed, &schemes, &devices);
    }
    if arguments.m.as_ref().is_some_and(|TokensOrNone(tokens)| tokens.contains(&0)) {
        bail!("M = 0 is a call of an expert layer: add --experts");
    }
    let backends: Vec<&dyn Backend> = devices.iter().map(Device::backend).collect();
    let suite = suite(arguments);
    let steps: usize = schemes.iter().map(|named| suite.steps(&named.scheme)).sum();
    let progress = Progress::new("verifying", steps as u64);
    let mut rows =
        table(&["scheme", "backend", "kernel", "products", "elements", "error / bound", "verdict"]);
    let mut failures = Vec::new();
    let (mut passed, mut not_scheduled) = (0, 0);
    let mut notes = Vec::new();
    let cpu = devices.iter().all(|device| matches!(device, Device::Cpu(_)));
    // Products on a CPU take all its threads; those of a GPU wait for a compiler.
    let at_once = if cpu { 1 } else { available_parallelism().map_or(1, usize::from) };
    let run = |Named { argument, scheme }: &Named| {
        suite.run_named(scheme, argument, &backends, &|steps| progress.advance(steps as u64))
    };
    let results = side_by_side(&schemes, at_once, run);
    for (Named { scheme, .. }, results) in schemes.iter().zip(results) {
        for (backend, result) in backends.iter().zip(results) {
            rows.add_row(row(scheme, *backend, &result));
            match result {
                Ok(done) => {
                    passed += 1;
                    notes.extend(done.not_scheduled);
                }
                Err(Failure::NotScheduled { .. }) => not_scheduled += 1,
                Err(failure) => failures.push(failure),
            }
        }
    }
    drop(progress);
    print_line(rows)?;
    for Named { scheme, .. } in schemes.iter().filter(|named| named.scheme.is_mixed()) {
        let taken: Vec<String> =
            scheme.activation_choices().map(|taken| taken.to_string()).collect();
        print_line(format_args!("{}: {}", scheme.name, taken.join(", ")))?;
    }
    print_end(notes, [passed, not_scheduled], &failures)
}

/// Prints the cases without a kernel, how many passed and were not scheduled, and the failures: whether something has passed and
/// nothing failed.
pub(super) fn print_end(
    notes: Vec<(impl Display, impl Display)>,
    [passed, not_scheduled]: [usize; 2],
    failures: &[impl Display],
) -> Result<bool> {
    for (case, why) in notes {
        print_line(format_args!("{case} is not scheduled: {why}"))?;
    }
    let skipped = match not_scheduled {
        0 => String::new(),
        count => format!(", {count} not scheduled"),
    };
    print_line(format_args!("{passed} passed, {} failed{skipped}", failures.len()))?;
    for failure in failures {
        eprint_line(&format!("quantloom: {failure}"));
    }
    Ok(failures.is_empty() && passed > 0)
}

/// A scheme, and how the command line names it.
pub(super) struct Named {
    pub(super) argument: String,
    pub(super) scheme: Scheme,
}

/// Does work on each item, so many at once, and gives the results in order. The threads are no part
/// of the pool that products compute on: one that waits there would begin another item.
fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    at_once: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    let worker = || {
        while let Some((at, item)) =
            Some(next.fetch_add(1, Relaxed)).and_then(|at| Some((at, items.get(at)?)))
        {
            let result = work(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..at_once.min(items.len()) {
            // Fewer threads take longer.
            let _ = std::thread::Builder::new().spawn_scoped(scope, worker);
        }
        worker();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// The default suite, narrowed to what was asked for; what is named is taken whole.
fn suite(arguments: &Arguments) -> Suite {
    let mut suite = Suite::default();
    if arguments.quick {
        let shapes = vec![(48, 256), (33, 160), (17, 321)];
        suite = Suite { shapes, tokens: vec![1, 3, 17], seeds: vec![0, 3], every: 1 };
    }
    if let Some(shape) = arguments.shape {
        suite.shapes = vec![shape];
    }
    if let Some(TokensOrNone(tokens)) = &arguments.m {
        suite.tokens.clone_from(tokens);
    }
    if let Some(seed) = arguments.seed {
        suite.seeds = vec![seed];
    }
    if arguments.shape.is_some() || arguments.m.is_some() || arguments.seed.is_some() {
        suite.every = 1;
    }
    suite
}

fn row(scheme: &Scheme, backend: &dyn Backend, result: &Result<Summary, Failure>) -> [String; 7] {
    let (scheme, backend) = (scheme.name.clone(), backend.name().to_owned());
    match result {
        Ok(done) => [
            scheme,
            backend,
            done.kernels.join("; "),
            done.products.to_string(),
            done.elements.to_string(),
            format!("{:.3}", done.share),
            "ok".to_owned(),
        ],
        Err(Failure::NotScheduled { why, .. }) => {
            let none = String::new;
            [scheme, backend, none(), none(), none(), none(), format!("not scheduled: {why}")]
        }
        Err(failure) => {
            let kernel = match failure {
                Failure::Mismatch { case, .. } => case.kernel.clone(),
                _ => String::new(),
            };
            let none = String::new;
            [scheme, backend, kernel, none(), none(), none(), "FAILED".to_owned()]
        }
    }
}
