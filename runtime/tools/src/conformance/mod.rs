//! The conformance kit: compares a scheme's products on every available backend with the reference.
//!
//! In: a scheme. Out: one [`Summary`] per backend, or the first [`Failure`] with the command that
//! reproduces it. One line in a test is enough:
//!
//! ```
//! # use quantloom_tools::conformance;
//! # let scheme = quantloom_dsl::parse("s { weight: i8, scale: bf16 per 1x32, pack: [k, n], \
//! #     activation: f32 }").unwrap();
//! conformance::check(&scheme)?;
//! # Ok::<(), conformance::Failure>(())
//! ```
//!
//! A case is a scheme, a shape, M and a seed, which determine all numbers ([`draw`]). Every element
//! of y is compared with the f64 reference, within the bound that `bound` derives.

mod bound;
pub mod draw;
mod expected;
pub mod experts;

use std::fmt;

use quantloom_dsl::Scheme;
use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number, Overflow};
use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::{PlainCodes, ReferenceError};
use quantloom_runtime::accumulation::{Decoded, Sums};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::isa::{Isa, UnsupportedIsa};
use quantloom_runtime::element::{Values, ValuesMut, bf16, f16};
use quantloom_runtime::float_mode::standard;
use quantloom_runtime::op::{NotScheduled, Op, ProductError, Workspace};
use quantloom_runtime::pack::pack;
use quantloom_runtime::unpacked::{UnpackError, Unpacked};
use quantloom_runtime::weight_data::WeightData;

use bound::{Inexact, RoundingCount, bound};
use expected::{TokenMagnitudes, WeightMagnitudes, groups, segments, tokens_share_a_scale};

/// Compares a scheme's products on every instruction set of this machine, with the default
/// [`Suite`].
///
/// # Errors
/// The first [`Failure`].
pub fn check(scheme: &Scheme) -> Result<Vec<Summary>, Failure> {
    let devices: Vec<CpuDevice> = Isa::present().map(CpuDevice::of).collect::<Result<_, _>>()?;
    let backends: Vec<&dyn Backend> = devices.iter().map(|device| device as &dyn Backend).collect();
    Suite::default().run(scheme, &backends, &|_| {}).into_iter().collect()
}

/// The products to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// N x K.
    pub shapes: Vec<(u64, u64)>,
    /// Values of M.
    pub tokens: Vec<usize>,
    /// Seeds; any six consecutive ones cover every [`draw::Regime`].
    pub seeds: Vec<u64>,
    /// Each pair of a shape and a seed uses every n-th of the values of M, with different starts; 1
    /// for all.
    pub every: usize,
}

impl Default for Suite {
    /// M of 1 to 17; N and K that are whole panels and chunks, partial, tiny, longer than a block.
    fn default() -> Self {
        let shapes =
            vec![(48, 256), (33, 160), (17, 321), (5, 37), (130, 640), (19, 2592), (300, 96)];
        Self { shapes, tokens: (1..=17).collect(), seeds: (0..12).collect(), every: 3 }
    }
}

/// The parameters of a comparison, which determine all numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The scheme's name.
    pub scheme: String,
    /// The scheme on a command line: its name, or the path of its file.
    pub argument: String,
    /// The backend's name.
    pub backend: String,
    /// The kernel that ran; empty if none did.
    pub kernel: String,
    /// The weight's shape.
    pub shape: Shape,
    /// M.
    pub tokens: usize,
    /// The seed.
    pub seed: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { n, k, .. } = self.shape;
        let regime = draw::Regime::of(self.seed);
        write!(f, "scheme {}, backend {}", self.scheme, self.backend)?;
        if !self.kernel.is_empty() {
            write!(f, " ({})", self.kernel)?;
        }
        write!(f, ", N x K = {n} x {k}, M = {}, seed {} ({regime:?})", self.tokens, self.seed)
    }
}

impl Case {
    /// The command that reproduces the case.
    pub fn again(&self) -> String {
        let Shape { n, k, .. } = self.shape;
        let Self { argument, backend, tokens, seed, .. } = self;
        format!(
            "quantloom verify {argument} --backend {backend} --shape {n}x{k} --m {tokens} --seed {seed}"
        )
    }
}

/// An element beyond its bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Expert, row of x, row of w.
    pub at: (u64, usize, usize),
    /// Our result.
    pub y: f64,
    /// The exact value.
    pub reference: f64,
    /// The largest error that passes.
    pub bound: f64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at: (expert, m, n), y, reference, bound } = self;
        if *expert > 0 {
            write!(f, "expert {expert}: ")?;
        }
        write!(f, "y[{m}, {n}] = {y:e}, reference {reference:e}, bound {bound:e}")
    }
}

/// Why a scheme does not conform.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A wrong result.
    #[error("{case}: {miss}; {misses} of {elements} elements are beyond their bounds\nagain: {again}", again = case.again())]
    Mismatch {
        /// The case.
        case: Box<Case>,
        /// The first mismatch.
        miss: Mismatch,
        /// The number of mismatches.
        misses: usize,
        /// Elements of y.
        elements: usize,
    },
    /// The backend has no kernel for any product of the suite.
    #[error("{case}: {why}")]
    NotScheduled {
        /// The first product.
        case: Box<Case>,
        /// The reason.
        why: NotScheduled,
    },
    /// A product failed.
    #[error("{case}: {error}\nagain: {again}", again = case.again())]
    Refused {
        /// The case.
        case: Box<Case>,
        /// The reason.
        error: Box<ProductError>,
    },
    /// The reference rejected the random layer.
    #[error("{case}: the reference rejects the layer: {error}")]
    Reference {
        /// The case.
        case: Box<Case>,
        /// The reason.
        error: Box<ReferenceError>,
    },
    /// The random layer could not be packed or unpacked.
    #[error("{case}: {error}")]
    Pack {
        /// The case.
        case: Box<Case>,
        /// The reason.
        error: Box<UnpackError>,
    },
    /// An instruction set is not available after all.
    #[error(transparent)]
    UnsupportedIsa(#[from] UnsupportedIsa),
    /// No shape of the suite fits the scheme's layouts.
    #[error("scheme {0}: no shape of the suite fits its layouts; give one with --shape NxK")]
    NoShape(String),
}

/// The result of all comparisons on a backend, all within their bounds.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The backend's name.
    pub backend: String,
    /// The kernels that ran.
    pub kernels: Vec<String>,
    /// Number of products.
    pub products: usize,
    /// Number of elements of y.
    pub elements: usize,
    /// The largest error of an `f32` result, divided by its bound (a 16-bit result has mostly the
    /// error of its rounding).
    pub share: f64,
    /// Products that the backend does not support: for each reason, the first one and the reason.
    pub not_scheduled: Vec<(Case, NotScheduled)>,
}

impl Summary {
    /// Records a product that is not supported, if its reason is new.
    fn note(&mut self, case: Case, why: NotScheduled) {
        let text = why.to_string();
        if self.not_scheduled.iter().all(|(_, known)| known.to_string() != text) {
            self.not_scheduled.push((case, why));
        }
    }
}

impl Suite {
    /// Shapes that fit the scheme's layouts.
    fn fitting(&self, scheme: &Scheme) -> Vec<Shape> {
        let experts = if scheme.experts.is_some() { 2 } else { 1 };
        let shapes = self.shapes.iter().map(|(n, k)| Shape { experts, n: *n, k: *k });
        let fits =
            |shape: &Shape| scheme.stores.iter().all(|store| scheme.bind(store, *shape).is_ok());
        shapes.filter(fits).collect()
    }

    /// Number of pairs of shape and seed that [`Suite::run`] uses for a scheme.
    pub fn steps(&self, scheme: &Scheme) -> usize {
        self.fitting(scheme).len() * self.seeds.len()
    }

    /// Compares on each backend, until its first failure; calls `progress` after each step.
    pub fn run(
        &self,
        scheme: &Scheme,
        backends: &[&dyn Backend],
        progress: &dyn Fn(usize),
    ) -> Vec<Result<Summary, Failure>> {
        self.run_named(scheme, &scheme.name, backends, progress)
    }

    /// [`Suite::run`] for a scheme that a command line names `argument`, for [`Case::again`].
    pub fn run_named(
        &self,
        scheme: &Scheme,
        argument: &str,
        backends: &[&dyn Backend],
        progress: &dyn Fn(usize),
    ) -> Vec<Result<Summary, Failure>> {
        let summary = |backend: &&dyn Backend| {
            Ok(Summary {
                backend: backend.name().to_owned(),
                kernels: Vec::new(),
                products: 0,
                elements: 0,
                share: 0.0,
                not_scheduled: Vec::new(),
            })
        };
        let mut results: Vec<Result<Summary, Failure>> = backends.iter().map(summary).collect();
        let shapes = self.fitting(scheme);
        if shapes.is_empty() {
            let none = || Err(Failure::NoShape(scheme.name.clone()));
            return backends.iter().map(|_| none()).collect();
        }
        let mut workspace = Workspace::default();
        for (at, shape) in shapes.into_iter().enumerate() {
            for seed in &self.seeds {
                let turn = at + *seed as usize;
                let taken = |m: &usize| (m + turn).is_multiple_of(self.every.max(1));
                let tokens: Vec<usize> = self.tokens.iter().copied().filter(taken).collect();
                let step = Step { scheme, argument, shape, seed: *seed, tokens };
                standard(|| step.run(backends, &mut results, &mut workspace));
                progress(1);
            }
        }
        results.into_iter().map(some_product).collect()
    }
}

/// A summary without any product is a failure, with the first reason.
fn some_product(result: Result<Summary, Failure>) -> Result<Summary, Failure> {
    let summary = result?;
    match summary.not_scheduled.first() {
        Some((case, why)) if summary.products == 0 => {
            Err(Failure::NotScheduled { case: Box::new(case.clone()), why: why.clone() })
        }
        _ => Ok(summary),
    }
}

/// One shape and seed, all values of M.
struct Step<'a> {
    scheme: &'a Scheme,
    argument: &'a str,
    shape: Shape,
    seed: u64,
    tokens: Vec<usize>,
}

/// The expected results for one M.
struct Expected {
    expert: u64,
    tokens: usize,
    sizes: Vec<bound::Magnitudes>,
}

impl Step<'_> {
    fn case(&self, backend: &str, tokens: usize) -> Box<Case> {
        Box::new(Case {
            scheme: self.scheme.name.clone(),
            argument: self.argument.to_owned(),
            backend: backend.to_owned(),
            kernel: String::new(),
            shape: self.shape,
            tokens,
            seed: self.seed,
        })
    }

    fn run(
        &self,
        backends: &[&dyn Backend],
        results: &mut [Result<Summary, Failure>],
        workspace: &mut Workspace,
    ) {
        let plain = draw::layer(self.scheme, self.shape, self.seed);
        let own = draw::own_type(self.scheme, self.seed);
        let most = self.tokens.iter().copied().max().unwrap_or(0);
        let k = self.shape.k as usize;
        let x = draw::tokens(self.scheme, own, most, k, self.seed);
        let of_reference = |error: ReferenceError| Failure::Reference {
            case: self.case("all", most),
            error: error.into(),
        };
        let of_pack =
            |error| Failure::Pack { case: self.case("all", most), error: Box::new(error) };
        let layer = pack(self.scheme, &plain).map_err(of_pack).and_then(|packed| {
            let stored = |name: &str| packed.get(name).map(Vec::as_slice);
            let weight = Unpacked::new(self.scheme, self.shape, &stored).map_err(of_pack)?;
            Ok((weight, packed))
        });
        // The expected value depends on the type to which a backend rounds x.
        let mut expected: Vec<(FloatFormat, Result<Vec<Expected>, Failure>)> = Vec::new();
        for (backend, result) in backends.iter().zip(results) {
            let Ok(summary) = result else { continue };
            let done = layer.as_ref().map_err(Clone::clone).and_then(|(weight, packed)| {
                let stored = |name: &str| packed.get(name).map(Vec::as_slice);
                let data =
                    WeightData::stored(self.scheme, self.shape, stored).with_unpacked(weight);
                let op = backend.prepare_weight(&data);
                let worth = op.as_ref().map_or(own, |op| op.accumulation().rounds_x(own));
                let known = expected.iter().position(|(known, _)| *known == worth);
                let at = known.unwrap_or_else(|| {
                    let found = self.expected(&plain, &x, (own, worth));
                    expected.push((worth, found.map_err(of_reference)));
                    expected.len() - 1
                });
                let expected = expected[at].1.as_ref().map_err(Clone::clone)?;
                self.compare(*backend, op, expected, &x, own, summary, workspace)
            });
            if let Err(failure) = done {
                *result = Err(failure);
            }
        }
    }

    /// The first and the last expert, every M, of x in a type that is multiplied as another.
    fn expected(
        &self,
        plain: &PlainCodes,
        x: &[f64],
        (own, worth): (FloatFormat, FloatFormat),
    ) -> Result<Vec<Expected>, ReferenceError> {
        let (n, k) = (self.shape.n as usize, self.shape.k as usize);
        let mut all = Vec::new();
        let mut experts = vec![0, self.shape.experts - 1];
        experts.dedup();
        for expert in experts {
            let weights = WeightMagnitudes::new(self.scheme, plain, expert)?;
            // Tokens do not depend on M, unless a scale is shared between tokens.
            let together = !tokens_share_a_scale(self.scheme, own);
            let seen =
                |x: &[f64]| TokenMagnitudes::new(self.scheme, plain, expert, x, (own, worth));
            let whole = if together { Some(weights.times(&seen(x)?)?) } else { None };
            for tokens in &self.tokens {
                let sizes = match &whole {
                    Some(sizes) => sizes[..tokens * n].to_vec(),
                    None => weights.times(&seen(&x[..tokens * k])?)?,
                };
                all.push(Expected { expert, tokens: *tokens, sizes });
            }
        }
        Ok(all)
    }

    #[expect(clippy::too_many_arguments, reason = "one call, all of them needed")]
    fn compare(
        &self,
        backend: &dyn Backend,
        op: Result<Box<dyn Op>, ProductError>,
        expected: &[Expected],
        x: &[f64],
        own: FloatFormat,
        summary: &mut Summary,
        workspace: &mut Workspace,
    ) -> Result<(), Failure> {
        let case = |tokens: usize, kernel: &str| {
            let mut case = self.case(backend.name(), tokens);
            kernel.clone_into(&mut case.kernel);
            case
        };
        let most = self.tokens.iter().copied().max().unwrap_or(0);
        let op = match op {
            Ok(op) => op,
            Err(ProductError::NotScheduled(why)) => {
                summary.note(*case(most, ""), why);
                return Ok(());
            }
            Err(error) => {
                return Err(Failure::Refused { case: case(most, ""), error: error.into() });
            }
        };
        let (n, k) = (self.shape.n as usize, self.shape.k as usize);
        for Expected { expert, tokens, sizes } in expected {
            // Every fourth result is in the type of y.
            let of_y = match self.scheme.output {
                Some(Number::Float(output)) => output,
                _ => own,
            };
            let narrow = (tokens + self.seed as usize).is_multiple_of(4);
            let output = if narrow { of_y } else { F32 };
            let x = (&x[..tokens * k], own);
            let y = match product(&*op, *expert, x, (tokens * n, output), workspace) {
                Ok(y) => y,
                Err(ProductError::NotScheduled(why)) => {
                    summary.note(*case(*tokens, ""), why);
                    continue;
                }
                Err(error) => {
                    let case = case(*tokens, &op.kernel(*tokens));
                    return Err(Failure::Refused { case, error: error.into() });
                }
            };
            let kernel = op.kernel(*tokens);
            let accumulation = op.accumulation();
            let sums = accumulation.sums(own, *tokens);
            let bounds =
                Bounds::of(self.scheme, self.shape, sums, accumulation.decoded(own, *tokens));
            let output = accumulation.rounds_y(own, output);
            let mut first = None;
            let mut misses = 0;
            for (at, (y, sizes)) in y.iter().zip(sizes).enumerate() {
                let bound = bounds.at(*sizes, output);
                let share = error_over_bound(*y, sizes.y, bound, output);
                if share > 1.0 {
                    misses += 1;
                    let at = (*expert, at / n, at % n);
                    first = first.or(Some(Mismatch { at, y: *y, reference: sizes.y, bound }));
                } else if output == F32
                    || matches!(sums, Sums::Matrix | Sums::Scaled | Sums::Cut | Sums::Lanes)
                {
                    summary.share = summary.share.max(share);
                }
            }
            summary.products += 1;
            summary.elements += y.len();
            if !summary.kernels.contains(&kernel) {
                summary.kernels.push(kernel.clone());
            }
            if let Some(miss) = first {
                let case = case(*tokens, &kernel);
                return Err(Failure::Mismatch { case, miss, misses, elements: y.len() });
            }
        }
        Ok(())
    }
}

/// The roundings and the inexact numbers of a kernel for a weight.
struct Bounds {
    chain: RoundingCount,
    offset: f64,
    inexact: Inexact,
}

impl Bounds {
    fn of(scheme: &Scheme, shape: Shape, sums: Sums, decoded: Decoded) -> Self {
        let (groups, segments) = (groups(scheme, shape), segments(scheme, shape));
        let levels = scheme.scales.len().max(scheme.shifts.len());
        let mut chain = RoundingCount::of(sums, shape.k as usize, (groups, segments), levels);
        chain.offset |= decoded.add != 0;
        let offset = stored_offset(scheme).max(f64::from(decoded.add).abs());
        Self { chain, offset, inexact: Inexact::of(&scheme.weight, decoded) }
    }

    /// The largest error of an element of y.
    fn at(&self, sizes: bound::Magnitudes, output: FloatFormat) -> f64 {
        bound(sizes, self.chain, (self.offset, self.inexact), output)
    }
}

/// An element of the exact product, and how far a kernel's result may be from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expectation {
    /// The exact value.
    pub y: f64,
    /// The largest error that passes.
    pub bound: f64,
    /// The type of the result.
    pub output: FloatFormat,
}

impl Expectation {
    /// Whether a result passes: within the bound, NaN only if the exact value is NaN.
    pub fn allows(&self, y: f64) -> bool {
        error_over_bound(y, self.y, self.bound, self.output) <= 1.0
    }
}

/// The exact product of one matrix with x [M, K], row by row. x has elements of type `own`, which are
/// multiplied as `worth`; a kernel sums as `sums` says and decodes codes as `decoded` says.
///
/// # Errors
/// Codes that are not a matrix of the scheme, or x that the scheme does not quantise.
pub fn expectations(
    scheme: &Scheme,
    plain: &PlainCodes,
    x: &[f64],
    (own, worth): (FloatFormat, FloatFormat),
    (sums, decoded): (Sums, Decoded),
    output: FloatFormat,
) -> Result<Vec<Expectation>, ReferenceError> {
    let bounds = Bounds::of(scheme, plain.shape, sums, decoded);
    let weights = WeightMagnitudes::new(scheme, plain, 0)?;
    let tokens = TokenMagnitudes::new(scheme, plain, 0, x, (own, worth))?;
    let of = |sizes: bound::Magnitudes| Expectation {
        y: sizes.y,
        bound: bounds.at(sizes, output),
        output,
    };
    Ok(weights.times(&tokens)?.into_iter().map(of).collect())
}

/// At most 1 is within the bound; NaN is right only if the reference is NaN, and infinity only if
/// the reference is that infinity or its bound exceeds the range of the type. Without a bound every result is
/// right.
fn error_over_bound(y: f64, reference: f64, bound: f64, output: FloatFormat) -> f64 {
    let beyond = y.is_infinite() && reference * y.signum() + bound >= output.max();
    if y == reference || y.is_nan() && reference.is_nan() || beyond || bound.is_infinite() {
        return 0.0;
    }
    let share = (y - reference).abs() / bound;
    if share.is_nan() { f64::INFINITY } else { share }
}

/// What a kernel may add to integer codes to store them unsigned, and subtract later: the scheme's
/// own offset and half of the range of a signed code.
fn stored_offset(scheme: &Scheme) -> f64 {
    let sign = match scheme.weight.code {
        quantloom_dsl::Code::Number(Number::Int(bits)) => f64::from(1u32 << (bits - 1)),
        _ => 0.0,
    };
    sign + f64::from(scheme.weight.offset).abs()
}

/// y as f64, for tokens of one type, in a type; detects elements that the product does not write.
fn product(
    op: &dyn Op,
    expert: u64,
    (x, own): (&[f64], FloatFormat),
    (elements, output): (usize, FloatFormat),
    workspace: &mut Workspace,
) -> Result<Vec<f64>, ProductError> {
    const UNWRITTEN: f32 = 4.2e37;
    const UNWRITTEN_HALF: u16 = u16::MAX; // NaN in either type
    let halves: Vec<u16> =
        x.iter().map(|x| Number::Float(own).encode(*x, Overflow::Special) as u16).collect();
    let f32s: Vec<f32> = x.iter().map(|x| *x as f32).collect();
    let f16s: Vec<f16> = halves.iter().copied().map(f16::from_bits).collect();
    let bf16s: Vec<bf16> = halves.iter().copied().map(bf16::from_bits).collect();
    let x = match own {
        F16 => Values::F16(&f16s),
        BF16 => Values::Bf16(&bf16s),
        _ => Values::F32(&f32s),
    };
    let decoded = |bits: u16| Number::Float(output).decode(u32::from(bits));
    match output {
        F16 => {
            let mut y = vec![f16::from_bits(UNWRITTEN_HALF); elements];
            op.matmul_into(expert, x, ValuesMut::F16(&mut y), workspace)?;
            Ok(y.into_iter().map(|y| decoded(y.to_bits())).collect())
        }
        BF16 => {
            let mut y = vec![bf16::from_bits(UNWRITTEN_HALF); elements];
            op.matmul_into(expert, x, ValuesMut::Bf16(&mut y), workspace)?;
            Ok(y.into_iter().map(|y| decoded(y.to_bits())).collect())
        }
        _ => {
            let mut y = vec![UNWRITTEN; elements];
            op.matmul_into(expert, x, ValuesMut::F32(&mut y), workspace)?;
            Ok(y.into_iter().map(f64::from).collect())
        }
    }
}
