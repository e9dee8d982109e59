//! The expected result of a case: the exact product, and the magnitudes that determine its bound.
//!
//! In: plain codes and tokens. Out: the [`Magnitudes`] of each y[m, n]. Weights and products are
//! computed by [`quantloom_dsl::reference`]; this file computes magnitudes from plain codes.

use quantloom_dsl::format::{FloatFormat, Number};
use quantloom_dsl::layout::{Component, Granularity, GroupSize, Index, Shape};
use quantloom_dsl::reference::{
    Dequantiser, PlainCodes, ReferenceError, StaticInput, matmul, quantise_activation,
};
use quantloom_dsl::{Quantiser, Scheme};
use quantloom_runtime::float_mode::standard;
use rayon::prelude::*;

use super::bound::Magnitudes;

/// Row-major [N, K] of one expert: values and magnitudes.
pub(super) struct WeightMagnitudes<'a> {
    scheme: &'a Scheme,
    plain: &'a PlainCodes,
    expert: u64,
    /// `(|v| + |zero|) * |scales| + |shift|`.
    terms: Vec<f64>,
    /// `|scales|`.
    scales: Vec<f64>,
    /// `max(1, |v| + |zero|) * max(1, |scale|) * ... + max(1, |shift|) * ...`, the last product over
    /// the levels of the shift, if there are any.
    factors: Vec<f64>,
}

/// Tokens after the quantiser, [M, K]: values and magnitudes.
pub(super) struct TokenMagnitudes {
    /// The values.
    values: Vec<f64>,
    /// `(|code| + |zero| + 2 c) * |scales|`, or |x|; c is 128 for codes of u8, else 0.
    terms: Vec<f64>,
    /// `max(1, |code| + |zero| + 2 c) * max(1, |scales|)`.
    factors: Vec<f64>,
}

impl<'a> WeightMagnitudes<'a> {
    pub(super) fn new(
        scheme: &'a Scheme,
        plain: &'a PlainCodes,
        expert: u64,
    ) -> Result<Self, ReferenceError> {
        // Fails if the codes are not a layer.
        Dequantiser::new(scheme, plain)?;
        let parts = WeightTerm::new(scheme, plain);
        let Shape { n, k, .. } = plain.shape;
        let mut weights = Self {
            scheme,
            plain,
            expert,
            terms: Vec::new(),
            scales: Vec::new(),
            factors: Vec::new(),
        };
        let row = |n: u64| -> Vec<[f64; 3]> {
            standard(|| (0..k).map(|k| parts.sizes(Index { e: expert, n, k })).collect())
        };
        for [term, scale, factor] in (0..n).into_par_iter().flat_map_iter(row).collect::<Vec<_>>() {
            weights.terms.push(term);
            weights.scales.push(scale);
            weights.factors.push(factor);
        }
        Ok(weights)
    }

    /// The magnitudes of y [M, N].
    pub(super) fn times(&self, x: &TokenMagnitudes) -> Result<Vec<Magnitudes>, ReferenceError> {
        Ok(self.sizes(&matmul(self.scheme, self.plain, self.expert, &x.values)?, x))
    }

    /// The same for a y [M, N] that is known.
    pub(super) fn sizes(&self, y: &[f64], x: &TokenMagnitudes) -> Vec<Magnitudes> {
        let Shape { n, k, .. } = self.plain.shape;
        let (n, k) = (n as usize, k as usize);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let sizes = |(at, y): (usize, &f64)| {
            let (token, row) = (at / n * k, at % n * k);
            let (token, row) = (token..token + k, row..row + k);
            Magnitudes {
                y: *y,
                terms: dot(&x.terms[token.clone()], &self.terms[row.clone()]),
                offsets: dot(&x.terms[token.clone()], &self.scales[row.clone()]),
                factors: dot(&x.factors[token], &self.factors[row]),
                bias: self.bias(at % n).abs(),
            }
        };
        y.par_iter().enumerate().map(|item| standard(|| sizes(item))).collect()
    }

    /// The bias of a row.
    pub(super) fn bias(&self, row: usize) -> f64 {
        let at = self.expert as usize * self.plain.shape.n as usize + row;
        let bias = |number: Number| number.decode(self.plain.of(Component::Bias)[at]);
        self.scheme.bias.map_or(0.0, bias)
    }
}

impl TokenMagnitudes {
    /// Quantises the tokens, whose elements are of type `own`, if the scheme does; else multiplies
    /// them by the prescale and rounds them to the compute dtype.
    pub(super) fn new(
        scheme: &Scheme,
        plain: &PlainCodes,
        expert: u64,
        tokens: &[f64],
        (own, worth): (FloatFormat, FloatFormat),
    ) -> Result<Self, ReferenceError> {
        let given = StaticInput::of(scheme, plain, expert);
        Self::given(scheme, &given, tokens, plain.shape.k as usize, (own, worth))
    }

    /// The same of rows of K values with static parameters.
    pub(super) fn given(
        scheme: &Scheme,
        given: &StaticInput,
        tokens: &[f64],
        k: usize,
        (own, worth): (FloatFormat, FloatFormat),
    ) -> Result<Self, ReferenceError> {
        let Some(quantiser) = quantiser(scheme, own) else {
            let tokens = given.prescaled(scheme, tokens, k, own)?;
            let values: Vec<f64> = tokens.iter().map(|x| worth.round(*x)).collect();
            return Ok(Self {
                terms: values.iter().map(|x| x.abs()).collect(),
                factors: values.iter().map(|x| x.abs().max(1.0)).collect(),
                values,
            });
        };
        let x = quantise_activation(scheme, quantiser, tokens, k, own, given)?;
        // Half of their range, which integer products on CPUs subtract from codes and zero points.
        let centre = if quantiser.code == Number::Uint(8) { 128.0 } else { 0.0 };
        let parts = || {
            let codes = x.codes.iter().zip(&x.zeros);
            let codes = codes.map(|(code, zero)| code.abs() + zero.abs() + 2.0 * centre);
            codes.zip(x.scales.iter().map(|scale| scale.abs()))
        };
        Ok(Self {
            values: x.values(),
            terms: parts().map(|(code, scale)| code * scale).collect(),
            factors: parts().map(|(code, scale)| code.max(1.0) * scale.max(1.0)).collect(),
        })
    }
}

impl TokenMagnitudes {
    /// The values [M, K].
    pub(super) fn values(&self) -> &[f64] {
        &self.values
    }

    /// Some of the tokens.
    pub(super) fn select(&self, tokens: &[usize], k: usize) -> Self {
        let of = |all: &[f64]| tokens.iter().flat_map(|m| &all[m * k..][..k]).copied().collect();
        Self { values: of(&self.values), terms: of(&self.terms), factors: of(&self.factors) }
    }

    /// The same values, whose magnitudes may be larger by so much each.
    pub(super) fn widen(&mut self, by: &[f64]) {
        for ((term, factor), by) in self.terms.iter_mut().zip(&mut self.factors).zip(by) {
            *term += by;
            *factor += by;
        }
    }
}

/// The quantiser for x of a type.
fn quantiser(scheme: &Scheme, own: FloatFormat) -> Option<&Quantiser> {
    scheme.activation_for(own)?.quantiser()
}

/// Whether the codes of a token depend on other tokens: a dynamic scale over several tokens.
pub(super) fn tokens_share_a_scale(scheme: &Scheme, own: FloatFormat) -> bool {
    quantiser(scheme, own).is_some_and(Quantiser::spans_tokens)
}

/// Groups along k, of the component with the smallest groups.
pub(super) fn groups(scheme: &Scheme, shape: Shape) -> usize {
    let columns = |component: Component| {
        let granularity = scheme.granularity(component)?;
        matches!(component, Component::Scale(_) | Component::Zero | Component::Shift(_))
            .then(|| granularity.elements(shape).1)
    };
    let most = scheme.components().into_iter().filter_map(columns).max();
    most.unwrap_or(1) as usize
}

/// Columns of the affine runs into which products pad groups.
const RUN: u64 = 16;

/// The most sums that a product computes separately. If all groups along k, of w and of x, are
/// powers of two: one per group of the finest. Otherwise each segment between the ends of groups is
/// divided into affine runs of [`RUN`] columns, or of fewer columns, a power of two that divides
/// every group; K columns in `segments` segments have at most one run for each run of K, plus one per
/// segment. A group index gives groups any number of columns, and may distribute them over groups
/// of x, so that each column is a segment.
pub(super) fn segments(scheme: &Scheme, shape: Shape) -> usize {
    let of_x = scheme.quantiser().map_or(&[][..], |quantiser| &quantiser.scales);
    let of_w = scheme.scales.iter().map(|scale| scale.group.cols);
    let of_w = of_w.chain(scheme.zero.map(|zero| zero.group.cols));
    let of_w = of_w.chain(scheme.shifts.iter().map(|shift| shift.group.cols));
    let columns = |group_size: GroupSize| match group_size {
        GroupSize::Each(columns) => Some(u64::from(columns)),
        GroupSize::All => None,
    };
    let of_x: Vec<u64> = of_x.iter().filter_map(|scale| columns(scale.group.cols)).collect();
    let sizes: Vec<u64> = of_w.filter_map(columns).chain(of_x.iter().copied()).collect();
    let k = shape.k;
    let groups = groups(scheme, shape);
    let segments = if scheme.index.is_some() && !of_x.is_empty() {
        k
    } else if scheme.index.is_some() {
        k / RUN + 2 * groups as u64
    } else if sizes.iter().all(|size| size.is_power_of_two()) {
        sizes.iter().map(|size| k.div_ceil(*size)).max().unwrap_or(1)
    } else {
        let ends = (1..k).filter(|at| sizes.iter().any(|size| at.is_multiple_of(*size)));
        let run = sizes.iter().fold(RUN, |run, size| run.min(1 << size.trailing_zeros()));
        k / run + ends.count() as u64 + 1
    };
    usize::try_from(segments).unwrap_or(usize::MAX).max(groups)
}

/// Codes by index, with the group index of act-order looked up.
struct WeightTerm<'a> {
    scheme: &'a Scheme,
    plain: &'a PlainCodes,
}

impl<'a> WeightTerm<'a> {
    fn new(scheme: &'a Scheme, plain: &'a PlainCodes) -> Self {
        Self { scheme, plain }
    }

    /// Value, scales and factor of one weight: see [`WeightMagnitudes`].
    fn sizes(&self, index: Index) -> [f64; 3] {
        let scheme = self.scheme;
        let value = scheme.weight.decode(self.code(Component::Code, index));
        let zero = scheme
            .zero
            .map_or(0.0, |zero| zero.kind.decode(self.code(Component::Zero, index)).abs());
        let (mut shift, mut shift_factors) = (0.0, 0.0);
        if !scheme.shifts.is_empty() {
            (shift, shift_factors) = (1.0, 1.0);
        }
        for (level, of) in (0u8..).zip(&scheme.shifts) {
            let factor = of.decode(self.code(Component::Shift(level), index)).abs();
            shift *= factor;
            shift_factors *= factor.max(1.0);
        }
        let size = value.abs() + zero;
        let (mut scales, mut factors) = (1.0, size.max(1.0));
        for (level, of) in (0u8..).zip(&scheme.scales) {
            let Some(number) = of.stored_number() else { continue };
            let scale = of.decode(number, self.code(Component::Scale(level), index)).abs();
            let scale = if of.divide { 1.0 / scale } else { scale };
            scales *= scale;
            factors *= scale.max(1.0);
        }
        [size * scales + shift, scales, factors + shift_factors]
    }

    fn code(&self, component: Component, index: Index) -> u32 {
        let Some(granularity) = self.scheme.granularity(component) else { return 0 };
        let Granularity { rows, cols, .. } = granularity;
        let shape = self.plain.shape;
        let column = match (self.scheme.index, cols, component) {
            (_, _, Component::Code) | (None, ..) | (_, GroupSize::All, _) => cols.group(index.k),
            (Some(_), GroupSize::Each(_), _) => {
                let at = index.e * shape.k + index.k;
                u64::from(self.plain.of(Component::Index)[at as usize])
            }
        };
        let (of_n, of_k) = granularity.elements(shape);
        let at = (index.e * of_n + rows.group(index.n)) * of_k + column;
        self.plain.of(component)[at as usize]
    }
}
