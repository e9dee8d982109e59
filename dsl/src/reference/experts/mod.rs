//! The scalar reference of expert layers: what a layer computes, a step a function.
//!
//! In: an [`ExpertLayer`], router logits or chosen experts, and the experts' matrices as reals. Out:
//! the choices ([`route`]), `h` of the gate ([`gate()`]), `y` ([`LayerReference::forward`]). Reals
//! are `f64`; the only roundings are those to the input dtype that the steps name, and those of a
//! scheme's activation ([`ProductInput`]). The steps are public, so that a bound can be derived from
//! what each of them makes.

mod gate;
mod input;
mod routing;

pub use gate::{gate, sigmoid};
pub use input::{ProductInput, Read};
pub use routing::{Choices, keep_groups, preferences, route, router_weights, scores, top_k};

use super::ReferenceError;
use crate::experts::ExpertLayer;
use crate::format::FloatFormat;

/// A matrix of reals and its bias.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    /// [N, K].
    pub values: Vec<f64>,
    /// `[N]`, or empty.
    pub bias: Vec<f64>,
}

impl Matrix {
    /// `y[n] = sum over k of x[k] w[n,k] + bias[n]`: `[K]` to `[N]`.
    fn product<'a>(&'a self, x: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
        let dot = move |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
        let bias = self.bias.iter().copied().chain(std::iter::repeat(0.0));
        self.values.chunks_exact(x.len()).zip(bias).map(move |(row, bias)| dot(row) + bias)
    }
}

/// The matrices of one expert.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertWeights {
    /// The shards of the first product, each [I, H]: gate and up, or the only one.
    pub gate_up: Vec<Matrix>,
    /// The second matrix, [H, I].
    pub down: Matrix,
}

/// An expert layer with its weights.
#[derive(Clone, Copy, Debug)]
pub struct LayerReference<'a> {
    /// The layer.
    pub layer: &'a ExpertLayer,
    /// `[L]`: the experts that are here.
    pub weights: &'a [ExpertWeights],
    /// The expert map, `[E]`: the place of an expert in `weights`, or a negative number for an expert
    /// that is elsewhere. Without a map, L = E.
    pub map: Option<&'a [i32]>,
    /// How the first product reads x.
    pub gate_up_input: ProductInput<'a>,
    /// How the second product reads h.
    pub down_input: ProductInput<'a>,
    /// T: the input dtype, of which the values of x, h and y are.
    pub dtype: FloatFormat,
}

/// A token's choice of an expert that is here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The token.
    pub token: usize,
    /// The expert, 0 to L - 1.
    pub expert: usize,
    /// What multiplies the expert's result: the router weight; 1 if that multiplies x.
    pub weight: f64,
}

impl LayerReference<'_> {
    /// `y` [M, H] of x [M, H], whose values are of the input dtype, and the choices of each token.
    /// `shared` [M, H] is the result of experts that every token meets; empty if there are none.
    ///
    /// 1. `a` = x; with weight on input, each token's x times its router weight, rounded to T.
    /// 2. `z` = W13 a~ + b13 of each pair: [`Self::gate_up`].
    /// 3. `h` = f(z), rounded to T: [`Self::gate`].
    /// 4. parts = W2 h~ + b2 of each pair: [`Self::down`].
    /// 5. `y` = the sum of a token's parts, each times its router weight, and of `shared`, rounded to
    ///    T: [`Self::combine`].
    ///
    /// A token without a pair gets `shared`, or 0. An expert that is chosen twice counts twice.
    ///
    /// # Errors
    /// [`ReferenceError::ExpertLayer`] if the layer is not valid; [`ReferenceError::Length`] for
    /// slices of other lengths; [`ReferenceError::Expert`] and [`ReferenceError::ExpertMap`] for
    /// experts that do not exist; those of [`ProductInput::rows`].
    pub fn forward(
        &self,
        x: &[f64],
        choices: &Choices,
        shared: &[f64],
    ) -> Result<Vec<f64>, ReferenceError> {
        self.check()?;
        let hidden = self.layer.hidden as usize;
        let tokens = x.len() / hidden;
        expected_length("x", tokens * hidden, x.len())?;
        if !shared.is_empty() {
            expected_length("the result of shared experts", x.len(), shared.len())?;
        }
        let pairs = self.pairs(tokens, choices)?;
        let z = self.gate_up(&self.input(x, choices), &pairs)?;
        let h: Vec<f64> = self.gate(&z).into_iter().map(|h| self.dtype.round(h)).collect();
        let parts = self.down(&h, &pairs)?;
        let sums = self.combine(&parts, &pairs, tokens, shared);
        Ok(sums.into_iter().map(|y| self.dtype.round(y)).collect())
    }

    /// The choices of experts that are here, a token after the other, in the order of choice.
    ///
    /// # Errors
    /// [`ReferenceError::Length`] if there are not k choices a token, [`ReferenceError::Expert`] if
    /// one is E or more.
    pub fn pairs(&self, tokens: usize, choices: &Choices) -> Result<Vec<Pair>, ReferenceError> {
        let (experts, k) = (self.layer.experts, self.layer.top_k as usize);
        expected_length("the ids of experts", tokens * k, choices.ids.len())?;
        expected_length("the router weights", tokens * k, choices.weights.len())?;
        let mut pairs = Vec::new();
        for (at, (&id, &weight)) in choices.ids.iter().zip(&choices.weights).enumerate() {
            let (token, choice) = (at / k, at % k);
            let Ok(place) = usize::try_from(id) else { continue };
            if place >= experts as usize {
                return Err(ReferenceError::Expert { token, choice, id, experts });
            }
            let place = self.map.map_or(id, |map| map[place]);
            let Ok(expert) = usize::try_from(place) else { continue };
            let weight = if self.layer.weight_on_input { 1.0 } else { weight };
            pairs.push(Pair { token, expert, weight });
        }
        Ok(pairs)
    }

    /// `a` [M, H]: x, times the router weight of its token if that is on the input (k is 1 then).
    fn input(&self, x: &[f64], choices: &Choices) -> Vec<f64> {
        if !self.layer.weight_on_input {
            return x.to_vec();
        }
        let rows = x.chunks_exact(self.layer.hidden as usize).zip(&choices.weights);
        let products = rows.flat_map(|(row, weight)| row.iter().map(move |x| x * weight));
        products.map(|product| self.dtype.round(product)).collect()
    }

    /// `z` [P, s, I] of the first product, from `a` [M, H].
    ///
    /// # Errors
    /// Those of [`ProductInput::rows`].
    pub fn gate_up(&self, a: &[f64], pairs: &[Pair]) -> Result<Vec<f64>, ReferenceError> {
        let hidden = self.layer.hidden as usize;
        let read = |pair: &Pair| Read { row: pair.token, expert: pair.expert };
        let reads: Vec<Read> = pairs.iter().map(read).collect();
        let rows = self.gate_up_input.rows(a, hidden, self.dtype, &reads)?;
        let mut z = Vec::new();
        for (pair, row) in pairs.iter().zip(rows.chunks_exact(hidden)) {
            for shard in &self.weights[pair.expert].gate_up {
                z.extend(shard.product(row));
            }
        }
        Ok(z)
    }

    /// `h` [P, I], not rounded, from `z` [P, s, I].
    pub fn gate(&self, z: &[f64]) -> Vec<f64> {
        let (shards, rows) = (self.layer.gate.shards(), self.layer.intermediate as usize);
        let of_pair = |z: &[f64]| {
            let (g, u) = (&z[..rows], &z[(shards - 1) * rows..]);
            g.iter().zip(u).map(|(g, u)| gate(self.layer.gate, *g, *u)).collect::<Vec<_>>()
        };
        z.chunks_exact(shards * rows).flat_map(of_pair).collect()
    }

    /// The parts [P, H] of the second product, without router weights, from `h` [P, I].
    ///
    /// # Errors
    /// Those of [`ProductInput::rows`].
    pub fn down(&self, h: &[f64], pairs: &[Pair]) -> Result<Vec<f64>, ReferenceError> {
        let intermediate = self.layer.intermediate as usize;
        let read = |(row, pair): (usize, &Pair)| Read { row, expert: pair.expert };
        let reads: Vec<Read> = pairs.iter().enumerate().map(read).collect();
        let rows = self.down_input.rows(h, intermediate, self.dtype, &reads)?;
        let mut parts = Vec::new();
        for (pair, row) in pairs.iter().zip(rows.chunks_exact(intermediate)) {
            parts.extend(self.weights[pair.expert].down.product(row));
        }
        Ok(parts)
    }

    /// The sums [M, H], not rounded, of parts [P, H] times their weights, in the order of choice, and
    /// then of `shared` [M, H], which may be empty.
    pub fn combine(
        &self,
        parts: &[f64],
        pairs: &[Pair],
        tokens: usize,
        shared: &[f64],
    ) -> Vec<f64> {
        let hidden = self.layer.hidden as usize;
        let mut sums = vec![0.0; tokens * hidden];
        for (pair, part) in pairs.iter().zip(parts.chunks_exact(hidden)) {
            for (sum, part) in sums[pair.token * hidden..][..hidden].iter_mut().zip(part) {
                *sum += pair.weight * part;
            }
        }
        for (sum, shared) in sums.iter_mut().zip(shared) {
            *sum += shared;
        }
        sums
    }

    /// Checks the layer, the map and the sizes of matrices.
    fn check(&self) -> Result<(), ReferenceError> {
        self.layer.check()?;
        let (experts, local) = (self.layer.experts as usize, self.weights.len());
        match self.map {
            None => expected_length("the experts", experts, local)?,
            Some(map) => {
                expected_length("the expert map", experts, map.len())?;
                let elsewhere = |place: &i32| usize::try_from(*place).is_ok_and(|at| at >= local);
                if let Some(expert) = map.iter().position(elsewhere) {
                    let place = map[expert];
                    return Err(ReferenceError::ExpertMap { expert, place, local });
                }
            }
        }
        let (hidden, rows) = (self.layer.hidden as usize, self.layer.intermediate as usize);
        for ExpertWeights { gate_up, down } in self.weights {
            expected_length("an expert's shards", self.layer.gate.shards(), gate_up.len())?;
            for shard in gate_up {
                expected_length("a shard of gate_up", rows * hidden, shard.values.len())?;
                expected_bias("a bias of gate_up", rows, &shard.bias)?;
            }
            expected_length("a matrix of down", hidden * rows, down.values.len())?;
            expected_bias("a bias of down", hidden, &down.bias)?;
        }
        Ok(())
    }
}

fn expected_bias(what: &'static str, rows: usize, bias: &[f64]) -> Result<(), ReferenceError> {
    if bias.is_empty() { Ok(()) } else { expected_length(what, rows, bias.len()) }
}

fn expected_length(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), ReferenceError> {
    if expected == found {
        return Ok(());
    }
    Err(ReferenceError::Length { what, expected: expected as u64, found: found as u64 })
}
