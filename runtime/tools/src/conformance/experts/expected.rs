//! The expected y of an expert layer, and its bound: see [`super::bound`] for the derivation.

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::{F32, FloatFormat};
use quantloom_dsl::reference::experts::{Pair, gate};
use quantloom_dsl::reference::{ReferenceError, StaticInput, quantise_activation};
use quantloom_runtime::accumulation::{Decoded, Sums};
use quantloom_runtime::experts::{ExpertMap, ExpertOp, place};
use rayon::prelude::*;

use super::super::Bounds;
use super::super::bound::{Magnitudes, UNIT};
use super::super::expected::{TokenMagnitudes, WeightMagnitudes, tokens_share_a_scale};
use super::bound::{Interval, Spread, carried, or_unbounded, part_rounding, rounded};
use super::matrices::{LayerMatrices, Matrix};

/// An element of y.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// The reference, not rounded.
    pub y: f64,
    /// The largest error before y is rounded to its type.
    pub error: f64,
}

impl Element {
    /// Whether sums in `f32`, or their parts in 16 bits, may overflow: every term is rounded once at least, so that
    /// the error is 2^-24 of the sum of their magnitudes or more.
    pub(super) fn overflows(&self) -> bool {
        let largest = self.y.abs() + self.error * f64::from(1 << 24);
        largest.is_nan() || largest > f64::from(f32::MAX)
    }
}

/// Where the two products of a layer round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rounding {
    /// How they add.
    pub(super) sums: [Sums; 2],
    /// What they decode codes to.
    pub(super) decoded: [Decoded; 2],
    /// The types to which x and h are rounded before they are multiplied.
    pub(super) inputs: [FloatFormat; 2],
    /// The type to which parts are rounded.
    pub(super) parts: FloatFormat,
}

impl Rounding {
    /// That of an op for M tokens of x of a type, and y of a type.
    pub(super) fn of(
        op: &dyn ExpertOp,
        (own, output): (FloatFormat, FloatFormat),
        tokens: usize,
    ) -> Self {
        let (sums, decoded) = (op.sums(own, tokens), op.decoded(own, tokens));
        let parts = op.rounds_parts(own, output, tokens);
        Self { sums, decoded, inputs: op.rounds_x(own), parts }
    }
}

/// A layer whose y is expected.
pub(super) struct Expecting<'a> {
    /// The schemes of the two products.
    pub(super) schemes: [&'a Scheme; 2],
    pub(super) layer: &'a ExpertLayer,
    pub(super) matrices: &'a LayerMatrices,
    pub(super) magnitudes: &'a LayerMagnitudes<'a>,
    /// T.
    pub(super) own: FloatFormat,
    /// Where the two products round.
    pub(super) rounding: Rounding,
    /// The static parameters of gate and up, [expert][shard], and of down, `[expert]`.
    pub(super) inputs: [Vec<Vec<StaticInput>>; 2],
}

/// `a` [M, H] of x [M, H], and the pairs of ids and router weights [M, k]: with the weight on the input, x
/// times it, rounded to T.
pub(super) fn routed(
    layer: &ExpertLayer,
    (map, own): (Option<&ExpertMap>, FloatFormat),
    x: &[f64],
    (ids, weights): (&[i32], &[f32]),
) -> (Vec<f64>, Vec<Pair>) {
    let (hidden, k) = (layer.hidden as usize, layer.top_k as usize);
    let (mut a, mut pairs) = (x.to_vec(), Vec::new());
    for (at, (id, weight)) in ids.iter().zip(weights).enumerate() {
        let (token, weight) = (at / k, f64::from(*weight));
        if layer.weight_on_input {
            let row = &mut a[token * hidden..][..hidden];
            row.iter_mut().for_each(|x| *x = own.round(*x * weight));
        }
        if let Some(expert) = place(*id, map) {
            let weight = if layer.weight_on_input { 1.0 } else { weight };
            pairs.push(Pair { token, expert, weight });
        }
    }
    (a, pairs)
}

/// The magnitudes of the matrices of a layer: [expert][shard], and `[expert]`.
pub(super) struct LayerMagnitudes<'a> {
    gate_up: Vec<Vec<WeightMagnitudes<'a>>>,
    down: Vec<WeightMagnitudes<'a>>,
}

impl<'a> LayerMagnitudes<'a> {
    pub(super) fn new(
        [first, second]: [&'a Scheme; 2],
        LayerMatrices { gate_up, down }: &'a LayerMatrices,
    ) -> Result<Self, ReferenceError> {
        let of = |scheme: &'a Scheme, matrix: &'a Matrix| {
            WeightMagnitudes::new(scheme, &matrix.plain, 0)
        };
        let shards = |shards: &'a Vec<Matrix>| shards.iter().map(|own| of(first, own)).collect();
        let down = down.iter().map(|own| of(second, own));
        Ok(Self {
            gate_up: gate_up.iter().map(shards).collect::<Result<_, ReferenceError>>()?,
            down: down.collect::<Result<_, ReferenceError>>()?,
        })
    }
}

/// y of a matrix with its bias, and the magnitudes that determine its bound.
fn product(
    matrix: &Matrix,
    weights: &WeightMagnitudes<'_>,
    x: &TokenMagnitudes,
) -> Vec<Magnitudes> {
    let (n, k) = (matrix.plain.shape.n as usize, matrix.plain.shape.k as usize);
    let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
    let rows = x.values().chunks_exact(k);
    let of = |x: &[f64]| -> Vec<f64> {
        (0..n).map(|row| dot(x, &matrix.values[row * k..][..k]) + weights.bias(row)).collect()
    };
    weights.sizes(&rows.flat_map(of).collect::<Vec<_>>(), x)
}

/// One expert's rows.
struct OfExpert {
    /// Places of its pairs.
    places: Vec<usize>,
    /// For each of them, numbers of the rows of a product.
    rows: Vec<Vec<f64>>,
    errors: Vec<Vec<f64>>,
}

impl Expecting<'_> {
    /// The bounds of a product, in `f32`.
    fn dense(&self, product: usize, matrix: &Matrix) -> Bounds {
        let Rounding { sums, decoded, .. } = self.rounding;
        Bounds::of(self.schemes[product], matrix.plain.shape, sums[product], decoded[product])
    }

    /// y [M, H] of a [M, H], the pairs of the call, and the result of shared experts [M, H].
    pub(super) fn y(
        &self,
        a: &[f64],
        pairs: &[Pair],
        shared: &[f64],
    ) -> Result<Vec<Element>, ReferenceError> {
        let (hidden, rows) = (self.layer.hidden as usize, self.layer.intermediate as usize);
        let experts = 0..self.matrices.down.len();
        let places = |expert: usize| -> Vec<usize> {
            (0..pairs.len()).filter(|place| pairs[*place].expert == expert).collect()
        };
        // h, not rounded, and its error, by pair.
        let first: Vec<OfExpert> = experts
            .clone()
            .into_par_iter()
            .map(|expert| self.h(a, pairs, expert, places(expert)))
            .collect::<Result<_, ReferenceError>>()?;
        let mut h = vec![0.0; pairs.len() * rows];
        let mut d = vec![0.0; pairs.len() * rows];
        for of in &first {
            for (place, (values, errors)) in of.places.iter().zip(of.rows.iter().zip(&of.errors)) {
                h[place * rows..][..rows].copy_from_slice(values);
                d[place * rows..][..rows].copy_from_slice(errors);
            }
        }
        let interval = Interval::of(&h, &d, self.own);
        let unquantised = self.unquantised(&interval);
        let h: Vec<f64> = h.iter().map(|h| self.own.round(*h)).collect();
        let second: Vec<OfExpert> = experts
            .into_par_iter()
            .map(|expert| self.parts(&h, &interval, expert, places(expert)))
            .collect::<Result<_, ReferenceError>>()?;
        let zero = Element { y: 0.0, error: 0.0 };
        let mut y = vec![zero; a.len()];
        let mut sizes = vec![0.0; a.len()];
        for (place, pair) in pairs.iter().enumerate() {
            let of = &second[pair.expert];
            let Some(at) = of.places.iter().position(|own| *own == place) else { continue };
            let all = of.rows[at].iter().zip(&of.errors[at]);
            for (column, (part, error)) in all.enumerate() {
                let at = pair.token * hidden + column;
                // A weight of 0 says nothing of a part that may have overflowed.
                let weighted = |of: f64| or_unbounded(pair.weight.abs() * of);
                let lost = if unquantised[place] { f64::INFINITY } else { 0.0 };
                let (size, error) = (weighted(part.abs() + error), weighted(*error) + lost);
                y[at].y += pair.weight * part;
                y[at].error += error + part_rounding(self.rounding.parts, size);
                sizes[at] += size;
            }
        }
        let roundings = f64::from(self.layer.top_k + 2) * UNIT * 1.001;
        for (at, element) in y.iter_mut().enumerate() {
            let shared = shared.get(at).copied().unwrap_or(0.0);
            element.y += shared;
            element.error += roundings * (sizes[at] + shared.abs()) + f64::from(f32::MIN_POSITIVE);
        }
        Ok(y)
    }

    /// Which pairs have an h that a quantiser may refuse, since an element may be beyond T: there is no bound. A scale over
    /// several tokens makes that all pairs.
    fn unquantised(&self, interval: &Interval) -> Vec<bool> {
        let rows = self.layer.intermediate as usize;
        let scheme = self.schemes[1];
        let quantises = scheme.activation_for(self.own).is_some_and(|x| x.quantiser().is_some());
        let ends = interval.low.chunks(rows).zip(interval.high.chunks(rows));
        let beyond = |(low, high): (&[f64], &[f64])| {
            quantises && low.iter().chain(high).any(|end| !end.is_finite())
        };
        let pairs: Vec<bool> = ends.map(beyond).collect();
        match tokens_share_a_scale(scheme, self.own) && pairs.contains(&true) {
            true => vec![true; pairs.len()],
            false => pairs,
        }
    }

    /// h of one expert's pairs, with its errors.
    fn h(
        &self,
        a: &[f64],
        pairs: &[Pair],
        expert: usize,
        places: Vec<usize>,
    ) -> Result<OfExpert, ReferenceError> {
        let tokens: Vec<usize> = places.iter().map(|place| pairs[*place].token).collect();
        // [shard]: [pairs, I].
        let mut sums: Vec<Vec<Magnitudes>> = Vec::new();
        let mut bounds = Vec::new();
        if !places.is_empty() {
            for (shard, matrix) in self.matrices.gate_up[expert].iter().enumerate() {
                let given = &self.inputs[0][expert][shard];
                let x = self.read((0, matrix), given, a, &tokens)?;
                sums.push(product(matrix, &self.magnitudes.gate_up[expert][shard], &x));
                bounds.push(self.dense(0, matrix));
            }
        }
        let rows = self.layer.intermediate as usize;
        let kind = self.layer.gate;
        let of_pair = |at: usize| -> (Vec<f64>, Vec<f64>) {
            let element = |row: usize| {
                let of = |shard: usize| {
                    let sizes = sums[shard][at * rows + row];
                    (sizes.y, bounds[shard].at(sizes, F32))
                };
                let (g, e_g) = of(0);
                let (u, e_u) = if kind.shards() == 2 { of(1) } else { (0.0, 0.0) };
                let d = carried(kind, [g, u], [e_g, e_u]) + rounded(kind, [g, u]);
                (gate(kind, g, u), or_unbounded(d))
            };
            (0..rows).map(element).unzip()
        };
        let (values, errors) = (0..places.len()).map(of_pair).unzip();
        Ok(OfExpert { places, rows: values, errors })
    }

    /// Parts of one expert's pairs, with their errors.
    fn parts(
        &self,
        h: &[f64],
        interval: &Interval,
        expert: usize,
        places: Vec<usize>,
    ) -> Result<OfExpert, ReferenceError> {
        let (hidden, rows) = (self.layer.hidden as usize, self.layer.intermediate as usize);
        if places.is_empty() {
            return Ok(OfExpert { places, rows: Vec::new(), errors: Vec::new() });
        }
        let matrix = &self.matrices.down[expert];
        let given = &self.inputs[1][expert][0];
        let mut read = self.read((1, matrix), given, h, &places)?;
        let spread = self.spread(matrix, given, h, interval, &places)?;
        read.widen(&spread.terms);
        let sizes = product(matrix, &self.magnitudes.down[expert], &read);
        let dense = self.dense(1, matrix);
        let of_pair = |at: usize| -> (Vec<f64>, Vec<f64>) {
            let spread = &spread.values[at * rows..][..rows];
            let part = |column: usize| {
                let sizes = sizes[at * hidden + column];
                let weights = &matrix.values[column * rows..][..rows];
                let moved: f64 = weights.iter().zip(spread).map(|(w, d)| w.abs() * d).sum();
                (sizes.y, or_unbounded(dense.at(sizes, F32) + moved))
            };
            (0..hidden).map(part).unzip()
        };
        let (values, errors) = (0..places.len()).map(of_pair).unzip();
        Ok(OfExpert { places, rows: values, errors })
    }

    /// Some rows as a matrix of a product reads them; a scale over several tokens is over all rows.
    fn read(
        &self,
        (product, matrix): (usize, &Matrix),
        given: &StaticInput,
        all: &[f64],
        rows: &[usize],
    ) -> Result<TokenMagnitudes, ReferenceError> {
        let k = matrix.plain.shape.k as usize;
        let (scheme, types) = (self.schemes[product], (self.own, self.rounding.inputs[product]));
        if tokens_share_a_scale(scheme, self.own) {
            let whole = TokenMagnitudes::given(scheme, given, all, k, types)?;
            return Ok(whole.select(rows, k));
        }
        TokenMagnitudes::given(scheme, given, &gathered(all, rows, k), k, types)
    }

    /// How far rows of h can be from the reference's, as down reads them.
    fn spread(
        &self,
        matrix: &Matrix,
        given: &StaticInput,
        h: &[f64],
        interval: &Interval,
        rows: &[usize],
    ) -> Result<Spread, ReferenceError> {
        let (k, scheme) = (matrix.plain.shape.k as usize, self.schemes[1]);
        let prescaled = |values: &[f64]| -> Result<Vec<f64>, ReferenceError> {
            Ok(given.prescaled(scheme, values, k, self.own)?.into_owned())
        };
        // A prescale is monotone, or turns all intervals of a column round.
        let (low, high) = (prescaled(&interval.low)?, prescaled(&interval.high)?);
        let ends = || low.iter().zip(&high);
        let interval = Interval {
            low: ends().map(|(a, b)| a.min(*b)).collect(),
            high: ends().map(|(a, b)| a.max(*b)).collect(),
        };
        let h = prescaled(h)?;
        let quantiser = scheme.activation_for(self.own).and_then(|choice| choice.quantiser());
        let whole = tokens_share_a_scale(scheme, self.own);
        let own = |values: &[f64]| gathered(values, rows, k);
        let mine = Interval { low: own(&interval.low), high: own(&interval.high) };
        let Some(quantiser) = quantiser else {
            // The product rounds both ends and the reference's h to its own type.
            let rounded = |values: Vec<f64>| -> Vec<f64> {
                values.into_iter().map(|value| self.rounding.inputs[1].round(value)).collect()
            };
            let mine = Interval { low: rounded(mine.low), high: rounded(mine.high) };
            return Ok(mine.spread(&rounded(own(&h))));
        };
        let scheme = Scheme { prescale: None, ..scheme.clone() };
        let quantised = |values: &[f64]| {
            if !whole {
                return quantise_activation(&scheme, quantiser, &own(values), k, self.own, given);
            }
            let all = quantise_activation(&scheme, quantiser, values, k, self.own, given)?;
            Ok(quantloom_dsl::reference::QuantisedActivation {
                codes: own(&all.codes),
                zeros: own(&all.zeros),
                scales: own(&all.scales),
            })
        };
        let [largest, smallest] = interval.extremes();
        let (of, largest, smallest) = (quantised(&h)?, quantised(&largest)?, quantised(&smallest)?);
        Ok(mine.quantised(&scheme, quantiser, self.own, &of, [&largest, &smallest]))
    }
}

/// Some rows of K values.
fn gathered(values: &[f64], rows: &[usize], k: usize) -> Vec<f64> {
    rows.iter().flat_map(|row| &values[row * k..][..k]).copied().collect()
}
