//! What is beside the experts: the router, its score bias, and an expert that every token meets.

use rayon::prelude::*;

use super::super::Tensor;
use super::super::reals::{float_format, reals};
use super::{CheckpointExperts, ExpertsProblem};

/// A router: the logits of a token are `weight x + bias`.
#[derive(Clone, Debug)]
pub struct Router<'c> {
    /// [E, H].
    weight: &'c Tensor,
    /// `[E]`.
    bias: Option<&'c Tensor>,
}

impl<'c> Router<'c> {
    /// Tensors of floats [E, H] and `[E]`, by their names.
    pub(super) fn new(
        weight: (&str, &'c Tensor),
        bias: Option<(&str, &'c Tensor)>,
        [experts, hidden]: [u64; 2],
    ) -> Result<Self, ExpertsProblem> {
        check_floats(weight.0, weight.1, &[experts, hidden])?;
        if let Some((name, tensor)) = bias {
            check_floats(name, tensor, &[experts])?;
        }
        Ok(Self { weight: weight.1, bias: bias.map(|(_, tensor)| tensor) })
    }

    /// The logits [M, E] of x [M, H]: each is summed in `f64` and rounded once.
    pub fn logits(&self, x: &[f32]) -> Vec<f32> {
        products(self.weight, self.bias, x)
    }
}

/// An expert that every token meets, whose result is added to those of the chosen ones.
#[derive(Clone, Debug)]
pub struct SharedExpert<'c> {
    /// The expert as a layer of one.
    pub(super) layer: CheckpointExperts<'c>,
    /// [1, H].
    pub(super) gate: Option<&'c Tensor>,
}

impl<'c> SharedExpert<'c> {
    /// The expert as a layer of one, of which each token chooses expert 0 with the weight of
    /// [`SharedExpert::weights`].
    pub fn layer(&self) -> &CheckpointExperts<'c> {
        &self.layer
    }

    /// What multiplies the expert's result for each row of x [M, H]: `sigmoid(gate x)` if the
    /// checkpoint has a gate for it (Qwen2), else 1.
    pub fn weights(&self, x: &[f32]) -> Vec<f32> {
        let hidden = self.layer.sizes().hidden as usize;
        match self.gate {
            Some(gate) => {
                let logits = products(gate, None, x).into_iter().map(f64::from);
                logits.map(|logit| (1.0 / (1.0 + (-logit).exp())) as f32).collect()
            }
            None => vec![1.0; x.len().checked_div(hidden).unwrap_or(0)],
        }
    }
}

/// x [M, K] times a float tensor [N, K], plus a bias `[N]`.
fn products(weight: &Tensor, bias: Option<&Tensor>, x: &[f32]) -> Vec<f32> {
    let Some(k) = weight.shape().last().copied().filter(|k| *k > 0) else { return Vec::new() };
    let weights = reals(weight).unwrap_or_default();
    let bias = bias.and_then(reals).unwrap_or_else(|| vec![0.0; weights.len() / k]);
    let logits = |x: &[f32]| {
        let dot = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum::<f64>();
        let rows = weights.chunks_exact(k).zip(&bias);
        rows.map(|(row, bias)| (dot(row) + bias) as f32).collect::<Vec<_>>()
    };
    x.par_chunks_exact(k).flat_map_iter(logits).collect()
}

/// The values of a float tensor `[count]`.
pub(super) fn vector(name: &str, tensor: &Tensor, count: u64) -> Result<Vec<f32>, ExpertsProblem> {
    check_floats(name, tensor, &[count])?;
    let values = reals(tensor).unwrap_or_default();
    Ok(values.into_iter().map(|value| value as f32).collect())
}

/// Checks the dimensions of a float tensor; those of size 1 do not count.
pub(super) fn check_floats(
    name: &str,
    tensor: &Tensor,
    expected: &[u64],
) -> Result<(), ExpertsProblem> {
    let found = tensor.shape().iter().map(|size| *size as u64).filter(|size| *size != 1);
    let same = found.eq(expected.iter().copied().filter(|size| *size != 1));
    if same && float_format(tensor.dtype()).is_some() {
        return Ok(());
    }
    Err(ExpertsProblem::Router {
        tensor: name.to_owned(),
        found: format!("{:?}{:?}", tensor.dtype(), tensor.shape()),
        expected: expected.to_vec(),
    })
}
