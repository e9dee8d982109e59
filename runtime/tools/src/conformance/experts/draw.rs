//! Random expert layers: a function of the description, the schemes and a seed.
//!
//! In: a scheme, an [`ExpertLayer`], a seed. Out: plain codes of every matrix, and the matrices as a
//! device takes them. Tokens are scaled by a power of two, biases and static scales of inputs with
//! them, so that gates see numbers of a few units, where no part of them is flat, whatever the codes.

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::{FloatFormat, Overflow};
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::{PlainCodes, ReferenceError, dequantise};
use quantloom_runtime::experts::ExpertMatrices;
use quantloom_runtime::pack::pack;
use quantloom_runtime::unpacked::{UnpackError, Unpacked};

use super::super::draw::{self, RandomStream, Regime};
use super::matrices::{LayerMatrices, Matrix};

/// The deviation of the sums of the first product, about.
const SUMS: f64 = 3.0;
/// The size of h that belongs to it, a power of two.
const H: f64 = 4.0;

/// The matrices of a layer with one scheme.
pub(super) struct Drawn {
    pub(super) matrices: LayerMatrices,
    /// What multiplies tokens, a power of two.
    pub(super) factor: f64,
}

/// Key of the streams of choices.
const CHOICES: u64 = 0x2000;

impl Drawn {
    /// `local` experts.
    pub(super) fn new(
        scheme: &Scheme,
        layer: &ExpertLayer,
        local: usize,
        seed: u64,
    ) -> Result<Self, ReferenceError> {
        let plain = |n: u64, k: u64, number: usize| {
            // The regime of a seed and of every sixth after it is the same.
            let other = seed + Regime::ALL.len() as u64 * 7919 * (1 + number as u64);
            draw::layer(scheme, Shape::matrix(n, k), other)
        };
        let shards = layer.gate.shards();
        let (hidden, rows) = (layer.hidden, layer.intermediate);
        let mut gate_up: Vec<Vec<PlainCodes>> = (0..local)
            .map(|e| (0..shards).map(|s| plain(rows, hidden, e * 3 + s)).collect())
            .collect();
        let mut down: Vec<PlainCodes> =
            (0..local).map(|e| plain(hidden, rows, e * 3 + 2)).collect();
        let values = |plain: &PlainCodes| dequantise(scheme, plain);
        let deviation = match gate_up.first().and_then(|shards| shards.first()) {
            None => 1.0,
            Some(first) => {
                let values = values(first)?;
                let squares: f64 = values.iter().filter(|v| v.is_finite()).map(|v| v * v).sum();
                (squares / rows as f64).sqrt()
            }
        };
        let factor = (SUMS / deviation.max(1e-30)).log2().round().clamp(-12.0, 12.0).exp2();
        for plain in gate_up.iter_mut().flatten() {
            scale(scheme, plain, factor);
        }
        for plain in &mut down {
            scale(scheme, plain, H);
        }
        let matrix = |plain: PlainCodes| Matrix::new(scheme, plain);
        let all = |shards: Vec<PlainCodes>| shards.into_iter().map(matrix).collect();
        let matrices = LayerMatrices {
            gate_up: gate_up.into_iter().map(all).collect::<Result<_, ReferenceError>>()?,
            down: down.into_iter().map(matrix).collect::<Result<_, ReferenceError>>()?,
        };
        Ok(Self { matrices, factor })
    }

    /// As a device takes them; `None` if there is no expert.
    pub(super) fn matrices(&self, scheme: &Scheme) -> Result<Option<ExpertMatrices>, UnpackError> {
        let unpacked = |matrix: &Matrix| {
            let (packed, shape) = (pack(scheme, &matrix.plain)?, matrix.plain.shape);
            let weight = Unpacked::new(scheme, shape, &|name| packed.get(name).map(Vec::as_slice))?;
            Ok(weight.expert(0).unwrap_or(weight))
        };
        let shards = |shards: &Vec<Matrix>| shards.iter().map(unpacked).collect();
        let LayerMatrices { gate_up, down } = &self.matrices;
        let gate_up = gate_up.iter().map(shards).collect::<Result<_, UnpackError>>()?;
        let down = down.iter().map(unpacked).collect::<Result<_, UnpackError>>()?;
        Ok(ExpertMatrices::new(gate_up, down))
    }
}

/// Multiplies what belongs to the size of a product's input: static scales, and the bias.
fn scale(scheme: &Scheme, plain: &mut PlainCodes, factor: f64) {
    let quantiser = scheme.quantiser();
    for (component, codes) in &mut plain.components {
        let by = match component {
            Component::Bias => factor,
            Component::InputScale(level) => {
                let level = quantiser.and_then(|q| q.scales.get(usize::from(*level)));
                if level.is_some_and(|level| level.divide) { 1.0 / factor } else { factor }
            }
            _ => continue,
        };
        let Some(number) = scheme.number(*component) else { continue };
        let least = u32::from(matches!(component, Component::InputScale(_)));
        for code in codes {
            let value = number.decode(*code) * by;
            *code = number.encode(value, Overflow::Saturate);
            if number.decode(*code) == 0.0 && least > 0 {
                *code = least;
            }
        }
    }
}

/// x [M, H] of a type.
pub(super) fn tokens(
    scheme: &Scheme,
    own: FloatFormat,
    count: usize,
    hidden: usize,
    (seed, factor): (u64, f64),
) -> Vec<f64> {
    let x = draw::tokens(scheme, own, count, hidden, seed);
    // What is finite stays so: a quantiser refuses other numbers.
    let scaled = |x: f64| match x.is_finite() {
        true => own.round((x * factor).clamp(-own.max(), own.max())),
        false => x,
    };
    x.into_iter().map(scaled).collect()
}

/// Which experts tokens meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingKind {
    /// Any experts, some of them twice, some choices none, with router weights of both signs.
    Random,
    /// One expert takes all.
    One,
    /// No choice is an expert.
    None,
    /// By the layer's routing of random logits.
    Logits,
    /// Rows that are sorted already.
    Batched,
}

impl RoutingKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Random, Self::One, Self::None, Self::Logits, Self::Batched];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::One => "one",
            Self::None => "none",
            Self::Logits => "logits",
            Self::Batched => "batched",
        }
    }
}

/// ids [M, k] and router weights [M, k].
pub(super) fn choices(
    layer: &ExpertLayer,
    kind: RoutingKind,
    tokens: usize,
    seed: u64,
) -> (Vec<i32>, Vec<f32>) {
    let mut stream = RandomStream::new(seed, CHOICES + tokens as u64);
    let experts = u64::from(layer.experts);
    let one = stream.below(experts) as i32;
    let pairs = tokens * layer.top_k as usize;
    let id = |stream: &mut RandomStream| match kind {
        RoutingKind::One => one,
        RoutingKind::None => -1 - stream.below(3) as i32,
        _ if stream.below(9) == 0 => -1,
        _ => stream.below(experts) as i32,
    };
    let ids: Vec<i32> = (0..pairs).map(|_| id(&mut stream)).collect();
    let weight = |_| (stream.below(2048) as f32 - 512.0) / 1024.0;
    (ids, (0..pairs).map(weight).collect())
}

/// Logits [M, E], and a score bias `[E]` if the routing has one.
pub(super) fn logits(layer: &ExpertLayer, tokens: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut stream = RandomStream::new(seed, CHOICES - 1);
    let experts = layer.experts as usize;
    let mut value = || (stream.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0) * 3.0;
    let biases = if layer.routing.bias { experts } else { 0 };
    let bias = (0..biases).map(|_| value()).collect();
    ((0..tokens * experts).map(|_| value()).collect(), bias)
}

/// Rows of each expert [L], at most `most`: some have none, some all.
pub(super) fn counts(local: usize, most: usize, seed: u64) -> Vec<u32> {
    let mut stream = RandomStream::new(seed, CHOICES - 2);
    let count = |stream: &mut RandomStream| match stream.below(4) {
        0 => 0,
        1 => most as u32,
        _ => stream.below(most as u64 + 1) as u32,
    };
    (0..local).map(|_| count(&mut stream)).collect()
}
