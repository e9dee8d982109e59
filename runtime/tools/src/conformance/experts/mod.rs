//! The conformance kit for expert layers: whole layers on every backend against the reference.
//!
//! In: a scheme, the layers of an [`ExpertSuite`]. Out: one [`ExpertSummary`] per backend, or the first
//! [`ExpertFailure`]. Both products have the scheme; each matrix has its own scales, zero points, bias and
//! static scales of its input. Every element of y is compared with the `f64` reference within the
//! bound that `bound` derives from end to end.

mod bound;
mod case;
mod draw;
mod expected;
mod given;
mod matrices;

use std::fmt;

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::{ExpertGroups, ExpertLayer, Gate, Routing, Score};
use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::ReferenceError;
use quantloom_runtime::backend::Backend;
use quantloom_runtime::experts::{ExpertError, ExpertMatrices};
use quantloom_runtime::float_mode::standard;
use quantloom_runtime::unpacked::UnpackError;

pub use draw::RoutingKind;
pub use expected::Element;
pub use given::{Choice, GivenLayer};

use case::Step;
use draw::Drawn;

/// The layers to compare.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertSuite {
    /// E and k.
    pub experts: (u32, u32),
    /// H x I.
    pub shapes: Vec<(u64, u64)>,
    /// What is between the products.
    pub gates: Vec<Gate>,
    /// Which experts tokens meet.
    pub routings: Vec<RoutingKind>,
    /// Values of M; rows of each expert if rows are sorted already.
    pub tokens: Vec<usize>,
    /// Seeds; see [`super::draw::Regime`] for what they draw.
    pub seeds: Vec<u64>,
    /// Each layer uses every n-th of the pairs of a routing and an M, with different starts; 1 for
    /// all.
    pub every: usize,
}

/// Gates of every form, with limits that numbers of a few units pass.
pub const GATES: [Gate; 10] = [
    Gate::Silu,
    Gate::SwigluOai { alpha: 1.702, limit: 3.0 },
    Gate::UngatedRelu2,
    Gate::GeluTanh,
    Gate::SiluLimit { limit: 2.0 },
    Gate::SwigluStep { limit: 1.5 },
    Gate::Gelu,
    Gate::UngatedSilu,
    Gate::UngatedGelu,
    Gate::UngatedGeluTanh,
];

impl Default for ExpertSuite {
    /// Few experts of small ragged shapes, all gates and routings, M of 0 to 33.
    fn default() -> Self {
        Self {
            experts: (6, 3),
            shapes: vec![(64, 96), (41, 200), (96, 64), (128, 128), (256, 128)],
            gates: GATES.to_vec(),
            routings: RoutingKind::ALL.to_vec(),
            tokens: vec![0, 1, 2, 3, 8, 16, 17, 33],
            seeds: vec![0, 1],
            every: 3,
        }
    }
}

/// The parameters of a comparison, which determine all numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertCase {
    /// The scheme on a command line: its name, or the path of its file.
    pub argument: String,
    /// The backend's name.
    pub backend: String,
    /// The layer.
    pub layer: ExpertLayer,
    /// Which experts tokens meet.
    pub routing: RoutingKind,
    /// M.
    pub tokens: usize,
    /// The seed.
    pub seed: u64,
}

impl fmt::Display for ExpertCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { argument, backend, layer, routing, tokens, seed } = self;
        write!(f, "scheme {argument}, backend {backend}, {layer}, M = {tokens}, ")?;
        write!(f, "routing {}, seed {seed}", routing.name())
    }
}

impl ExpertCase {
    /// The command that reproduces the case.
    pub fn again(&self) -> String {
        let Self { argument, backend, layer, routing, tokens, seed } = self;
        let ExpertLayer { experts, hidden, intermediate, top_k, gate, .. } = layer;
        format!(
            "quantloom verify {argument} --backend {backend} --experts {experts}x{top_k} \
             --shape {hidden}x{intermediate} --gate '{gate}' --routing {} --m {tokens} --seed {seed}",
            routing.name()
        )
    }
}

/// Why a scheme's expert layers do not conform.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertFailure {
    /// A wrong result.
    #[error(
        "{case}: y[{token}, {column}] = {y:e}, reference {reference:e}, bound {bound:e}; {misses} of \
         {elements} elements are beyond their bounds\nagain: {again}",
        again = case.again()
    )]
    Mismatch {
        /// The case.
        case: Box<ExpertCase>,
        /// Row of y.
        token: usize,
        /// Column of y.
        column: usize,
        /// Our result.
        y: f64,
        /// The exact value.
        reference: f64,
        /// The largest error that passes.
        bound: f64,
        /// The number of mismatches.
        misses: usize,
        /// Elements of y.
        elements: usize,
    },
    /// The host's routing differs from the reference.
    #[error("{case}: {text}\nagain: {again}", again = case.again())]
    Routing {
        /// The case.
        case: Box<ExpertCase>,
        /// The difference.
        text: String,
    },
    /// The backend has no kernel for any layer of the suite.
    #[error("{case}: {why}")]
    NotScheduled {
        /// The first layer.
        case: Box<ExpertCase>,
        /// The reason.
        why: String,
    },
    /// A layer failed.
    #[error("{case}: {error}\nagain: {again}", again = case.again())]
    Refused {
        /// The case.
        case: Box<ExpertCase>,
        /// The reason.
        error: Box<ExpertError>,
    },
    /// The reference rejected the random layer.
    #[error("{case}: the reference rejects the layer: {error}")]
    Reference {
        /// The case.
        case: Box<ExpertCase>,
        /// The reason.
        error: Box<ReferenceError>,
    },
    /// The random layer could not be packed or unpacked.
    #[error("{case}: {error}")]
    Pack {
        /// The case.
        case: Box<ExpertCase>,
        /// The reason.
        error: Box<UnpackError>,
    },
    /// No shape of the suite fits the scheme's layouts.
    #[error("scheme {0}: no H x I of the suite fits its layouts; give one with --shape HxI")]
    NoShape(String),
}

/// The result of all comparisons on a backend, all within their bounds.
#[derive(Clone, Debug)]
pub struct ExpertSummary {
    /// The backend's name.
    pub backend: String,
    /// The kernels that ran.
    pub kernels: Vec<String>,
    /// Number of calls.
    pub calls: usize,
    /// Number of elements of y.
    pub elements: usize,
    /// The largest error of an `f32` result, divided by its bound.
    pub share: f64,
    /// Layers that the backend does not support: for each reason, the first one and the reason.
    pub not_scheduled: Vec<(ExpertCase, String)>,
}

/// The random matrices of a layer with one scheme, all experts; `None` if a shape does not fit the
/// scheme's layouts.
pub fn random_matrices(scheme: &Scheme, layer: &ExpertLayer, seed: u64) -> Option<ExpertMatrices> {
    let drawn = Drawn::new(scheme, layer, layer.experts as usize, seed).ok()?;
    drawn.matrices(scheme).ok()?
}

impl ExpertSuite {
    /// Compares on each backend, until its first failure. `argument` is how a command line names the
    /// scheme; `progress` is called after each layer.
    pub fn run(
        &self,
        scheme: &Scheme,
        argument: &str,
        backends: &[&dyn Backend],
        progress: &dyn Fn(usize),
    ) -> Vec<Result<ExpertSummary, ExpertFailure>> {
        // Each matrix is a weight of its own, however the scheme stacks experts.
        let shapes = self.fitting(scheme);
        let summary = |backend: &&dyn Backend| {
            if shapes.is_empty() {
                return Err(ExpertFailure::NoShape(scheme.name.clone()));
            }
            Ok(ExpertSummary {
                backend: backend.name().to_owned(),
                kernels: Vec::new(),
                calls: 0,
                elements: 0,
                share: 0.0,
                not_scheduled: Vec::new(),
            })
        };
        let mut results: Vec<_> = backends.iter().map(summary).collect();
        let pairs: Vec<(RoutingKind, usize)> = self
            .routings
            .iter()
            .flat_map(|routing| self.tokens.iter().map(|tokens| (*routing, *tokens)))
            .collect();
        let every = self.every.max(1);
        for (at, (shape, gate, seed)) in self.layers(&shapes).enumerate() {
            let taken = |at_pair: &usize| (at_pair + at).is_multiple_of(every);
            let calls = (0..pairs.len()).filter(taken).map(|at| pairs[at]).collect();
            let layer = self.layer(shape, gate, seed);
            let step = Step { scheme, argument, layer, seed, calls };
            standard(|| step.run(backends, &mut results));
            progress(1);
        }
        results.into_iter().map(some_call).collect()
    }

    /// Number of layers that [`ExpertSuite::run`] compares for a scheme.
    pub fn steps(&self, scheme: &Scheme) -> usize {
        self.layers(&self.fitting(scheme)).count()
    }

    /// Shapes whose matrices fit the scheme's layouts.
    fn fitting(&self, scheme: &Scheme) -> Vec<(u64, u64)> {
        let fits = |n: u64, k: u64| {
            let shape = Shape::matrix(n, k);
            scheme.stores.iter().all(|store| scheme.bind(store, shape).is_ok())
        };
        let both = |(h, i): &&(u64, u64)| fits(*i, *h) && fits(*h, *i);
        self.shapes.iter().filter(both).copied().collect()
    }

    /// Shapes and gates, each gate once if there are more of them, each with a seed.
    fn layers<'a>(
        &'a self,
        shapes: &'a [(u64, u64)],
    ) -> impl Iterator<Item = ((u64, u64), Gate, u64)> + 'a {
        let count = if shapes.is_empty() { 0 } else { shapes.len().max(self.gates.len()) };
        (0..count).flat_map(move |at| {
            let layer = (shapes[at % shapes.len()], self.gates[at % self.gates.len()]);
            self.seeds.iter().map(move |seed| (layer.0, layer.1, *seed))
        })
    }

    /// The descriptions of all layers, if their shapes fit.
    pub fn descriptions(&self) -> Vec<ExpertLayer> {
        let layer = |(shape, gate, seed)| self.layer(shape, gate, seed);
        self.layers(&self.shapes).map(layer).collect()
    }

    /// A layer; its routing changes with the shape, the gate and the seed.
    fn layer(&self, (hidden, intermediate): (u64, u64), gate: Gate, seed: u64) -> ExpertLayer {
        let same = |known: &Gate| std::mem::discriminant(known) == std::mem::discriminant(&gate);
        let turn =
            GATES.iter().position(same).unwrap_or(0) as u64 + hidden / 32 + intermediate + seed;
        let turn = turn as usize;
        let (experts, top_k) = self.experts;
        let two = experts.is_multiple_of(2) && experts / 2 >= top_k;
        let routing = Routing {
            score: Score::ALL[turn % Score::ALL.len()],
            bias: turn % 3 == 1,
            groups: (turn % 4 == 3 && two).then_some(ExpertGroups { count: 2, keep: 1 }),
            renormalise: turn.is_multiple_of(2),
            scale: if turn % 5 == 2 { 2.5 } else { 1.0 },
        };
        let weight_on_input = top_k == 1 && turn.is_multiple_of(2);
        ExpertLayer { experts, hidden, intermediate, top_k, routing, gate, weight_on_input }
    }
}

/// A summary without any call is a failure, with the first reason.
fn some_call(result: Result<ExpertSummary, ExpertFailure>) -> Result<ExpertSummary, ExpertFailure> {
    let summary = result?;
    match summary.not_scheduled.first() {
        Some((case, why)) if summary.calls == 0 => {
            Err(ExpertFailure::NotScheduled { case: Box::new(case.clone()), why: why.clone() })
        }
        _ => Ok(summary),
    }
}
