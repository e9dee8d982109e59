//! `quantloom verify --experts`

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use quantloom::device::Device;
use quantloom::dsl::Scheme;
use quantloom::dsl::experts::{ExpertLayer, Gate};
use quantloom::runtime::backend::Backend;
use quantloom_tools::conformance::experts::{
    ExpertFailure, ExpertSuite, ExpertSummary, RoutingKind,
};

use super::sizes::shape;
use super::verify::{Named, print_end};
use super::{print_line, table};
use crate::progress::Progress;

/// Which layers.
#[derive(Args)]
#[command(next_help_heading = "Expert layers")]
pub(super) struct Layers {
    /// Whole expert layers instead of products: the number of experts and top-k, such as 16x4;
    /// --shape is then HxI.
    #[arg(long, value_name = "ExK", value_parser = experts)]
    pub(super) experts: Option<(u32, u32)>,
    /// Only this gate, as an expert layer's text has it: silu, "swigluoai alpha 1.702 limit 7",
    /// "ungated relu2".
    #[arg(long, value_name = "GATE", requires = "experts")]
    gate: Option<Gate>,
    /// Only this choice of experts.
    #[arg(long, value_enum, requires = "experts")]
    routing: Option<Routing>,
}

/// Which experts the tokens meet.
#[derive(Clone, Copy, ValueEnum)]
enum Routing {
    /// Any experts, some twice, some choices none.
    Random,
    /// One expert takes all tokens.
    One,
    /// No token has an expert.
    None,
    /// By the layer's routing of random logits.
    Logits,
    /// Rows that are sorted by expert already.
    Batched,
}

impl From<Routing> for RoutingKind {
    fn from(routing: Routing) -> Self {
        match routing {
            Routing::Random => Self::Random,
            Routing::One => Self::One,
            Routing::None => Self::None,
            Routing::Logits => Self::Logits,
            Routing::Batched => Self::Batched,
        }
    }
}

/// `ExK`: as a shape, of which k is at most E.
fn experts(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("\"{text}\" is not ExK, such as 128x8");
    let (experts, top_k) = shape(text).map_err(|_| wrong())?;
    let size = |size: u64| u32::try_from(size).map_err(|_| wrong());
    Ok((size(experts)?, size(top_k)?))
}

/// What else narrows the suite.
pub(super) struct Narrowed<'a> {
    pub(super) quick: bool,
    pub(super) shape: Option<(u64, u64)>,
    pub(super) tokens: Option<&'a [usize]>,
    pub(super) seed: Option<u64>,
}

/// The default suite, narrowed to what was asked for; what is named is taken whole.
pub(super) fn suite(
    layers: &Layers,
    experts: (u32, u32),
    narrowed: &Narrowed<'_>,
) -> Result<ExpertSuite> {
    let mut suite = ExpertSuite { experts, ..ExpertSuite::default() };
    if narrowed.quick {
        suite.gates.truncate(3);
        suite.tokens = vec![1, 3, 17];
        suite.seeds.truncate(1);
    }
    if let Some(shape) = narrowed.shape {
        suite.shapes = vec![shape];
    }
    if let Some(gate) = layers.gate {
        suite.gates = vec![gate];
    }
    if let Some(routing) = layers.routing {
        suite.routings = vec![routing.into()];
    }
    if let Some(tokens) = narrowed.tokens {
        suite.tokens = tokens.to_vec();
    }
    if let Some(seed) = narrowed.seed {
        suite.seeds = vec![seed];
    }
    let named = narrowed.shape.is_some() || narrowed.tokens.is_some() || narrowed.seed.is_some();
    if named || layers.routing.is_some() {
        suite.every = 1;
    }
    for layer in suite.descriptions() {
        if let Err(error) = ExpertLayer::check(&layer) {
            bail!("{error}");
        }
    }
    Ok(suite)
}

/// Compares whole layers of each scheme on each device.
pub(super) fn run(
    layers: &Layers,
    experts: (u32, u32),
    narrowed: &Narrowed<'_>,
    schemes: &[Named],
    devices: &[Device],
) -> Result<bool> {
    let suite = suite(layers, experts, narrowed)?;
    let backends: Vec<&dyn Backend> = devices.iter().map(Device::backend).collect();
    let steps: usize = schemes.iter().map(|named| suite.steps(&named.scheme)).sum();
    let progress = Progress::new("verifying", steps as u64);
    let mut rows =
        table(&["scheme", "backend", "kernels", "calls", "elements", "error / bound", "verdict"]);
    let (mut passed, mut not_scheduled) = (0, 0);
    let mut failures = Vec::new();
    let mut notes = Vec::new();
    for Named { argument, scheme } in schemes {
        let advance = |steps: usize| progress.advance(steps as u64);
        let results = suite.run(scheme, argument, &backends, &advance);
        for (backend, result) in backends.iter().zip(results) {
            rows.add_row(row(scheme, *backend, &result));
            match result {
                Ok(done) => {
                    passed += 1;
                    notes.extend(done.not_scheduled);
                }
                Err(ExpertFailure::NotScheduled { .. }) => not_scheduled += 1,
                Err(failure) => failures.push(failure),
            }
        }
    }
    drop(progress);
    print_line(rows)?;
    print_end(notes, [passed, not_scheduled], &failures)
}

fn row(
    scheme: &Scheme,
    backend: &dyn Backend,
    result: &Result<ExpertSummary, ExpertFailure>,
) -> [String; 7] {
    let (scheme, backend) = (scheme.name.clone(), backend.name().to_owned());
    let none = String::new;
    match result {
        Ok(done) => [
            scheme,
            backend,
            done.kernels.join("; "),
            done.calls.to_string(),
            done.elements.to_string(),
            format!("{:.3}", done.share),
            "ok".to_owned(),
        ],
        Err(ExpertFailure::NotScheduled { why, .. }) => {
            [scheme, backend, none(), none(), none(), none(), format!("not scheduled: {why}")]
        }
        Err(_) => [scheme, backend, none(), none(), none(), none(), "FAILED".to_owned()],
    }
}
