//! Experts that are not quantised: their matrices as reals.

use quantloom_dsl::reference::experts::{ExpertWeights, Matrix};
use safetensors::Dtype;

use super::super::Tensor;
use super::super::models::StackedFloats;
use super::super::reals::{float_format, reals, reals_of};
use super::ExpertSizes;

/// The float matrices of all experts.
#[derive(Clone, Debug)]
pub struct FloatExperts<'c>(Stored<'c>);

#[derive(Clone, Debug)]
enum Stored<'c> {
    /// A tensor for each matrix: the shards [I, H], and [H, I], by expert.
    Separate(Vec<(Vec<&'c Tensor>, &'c Tensor)>),
    /// A tensor for each product, and its bias.
    Stacked {
        tensors: [&'c Tensor; 2],
        biases: [Option<&'c Tensor>; 2],
        stacked: StackedFloats,
        sizes: ExpertSizes,
    },
}

impl<'c> FloatExperts<'c> {
    pub(super) fn separate(experts: Vec<(Vec<&'c Tensor>, &'c Tensor)>) -> Self {
        Self(Stored::Separate(experts))
    }

    /// Tensors [E, 2I, H] and [E, H, I], or transposed, with biases [E, 2I] and [E, H].
    pub(super) fn stacked(
        tensors: [&'c Tensor; 2],
        biases: [Option<&'c Tensor>; 2],
        stacked: StackedFloats,
        sizes: ExpertSizes,
    ) -> Self {
        Self(Stored::Stacked { tensors, biases, stacked, sizes })
    }

    fn tensors(&self) -> Vec<&'c Tensor> {
        match &self.0 {
            Stored::Separate(experts) => experts
                .iter()
                .flat_map(|(shards, down)| shards.iter().chain([down]))
                .copied()
                .collect(),
            Stored::Stacked { tensors, biases, .. } => {
                tensors.iter().copied().chain(biases.iter().flatten().copied()).collect()
            }
        }
    }

    /// Bytes of the tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors().iter().map(|tensor| tensor.bytes().len() as u64).sum()
    }

    /// The type of the first tensor's elements.
    pub fn type_name(&self) -> &'static str {
        match self.tensors().first().map(|tensor| tensor.dtype()) {
            Some(Dtype::F16) => "f16",
            Some(Dtype::BF16) => "bf16",
            _ => "f32",
        }
    }

    /// The matrices of an expert; no values if there is no such expert.
    pub fn reals(&self, expert: u32) -> ExpertWeights {
        let at = expert as usize;
        let plain = |tensor: &Tensor| Matrix {
            values: reals(tensor).unwrap_or_default(),
            bias: Vec::new(),
        };
        match &self.0 {
            Stored::Separate(experts) => match experts.get(at) {
                Some((shards, down)) => ExpertWeights {
                    gate_up: shards.iter().map(|shard| plain(shard)).collect(),
                    down: plain(down),
                },
                None => ExpertWeights::default(),
            },
            Stored::Stacked { tensors, biases, stacked, sizes } => {
                let (hidden, rows) = (sizes.hidden as usize, sizes.intermediate as usize);
                let [gate_up, down] = [(tensors[0], 2 * rows, hidden), (tensors[1], hidden, rows)]
                    .map(|(tensor, n, k)| {
                        let values = part(tensor, at, n * k);
                        if stacked.transposed { transposed(&values, n) } else { values }
                    });
                let [gate_up_bias, down_bias] = [(biases[0], 2 * rows), (biases[1], hidden)]
                    .map(|(bias, n)| bias.map_or_else(Vec::new, |bias| part(bias, at, n)));
                let shard = |shard: usize| {
                    let row = |row: usize| match stacked.interleaved {
                        true => 2 * row + shard,
                        false => shard * rows + row,
                    };
                    let of = |values: &[f64], columns: usize| -> Vec<f64> {
                        let rows = (0..rows)
                            .filter_map(|at| values.get(row(at) * columns..)?.get(..columns));
                        rows.flatten().copied().collect()
                    };
                    Matrix { values: of(&gate_up, hidden), bias: of(&gate_up_bias, 1) }
                };
                let down = Matrix { values: down, bias: down_bias };
                ExpertWeights { gate_up: vec![shard(0), shard(1)], down }
            }
        }
    }
}

/// The values of an expert in a stack of `count` values each.
fn part(tensor: &Tensor, expert: usize, count: usize) -> Vec<f64> {
    let width = float_format(tensor.dtype()).map_or(0, |format| format.bits() as usize / 8);
    let bytes =
        tensor.bytes().get(expert * count * width..).and_then(|rest| rest.get(..count * width));
    bytes.and_then(|bytes| reals_of(tensor.dtype(), bytes)).unwrap_or_default()
}

/// [N, K] of [K, N].
fn transposed(values: &[f64], n: usize) -> Vec<f64> {
    (0..n).flat_map(|row| values.iter().skip(row).step_by(n)).copied().collect()
}
