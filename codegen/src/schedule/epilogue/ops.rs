//! The steps of the epilogue, from a finished sum to the number that is rounded to y.

use crate::ir::{Builder, Operand, Ternary, Unary};
use crate::schedule::input::InputScale;
use crate::schedule::problem::Problem;

/// A step from the sum of a row of w and a token to the number that is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::schedule) enum EpilogueOp {
    /// Multiplies with a constant: the power of two that dequantisation left.
    Multiply(f32),
    /// Subtracts the token's zero point of x times the sum of the row.
    ZeroPoint,
    /// Multiplies with the token's scale of x.
    TokenScale,
    /// Multiplies with the row's scale.
    ChannelScale,
    /// Adds the row's bias.
    Bias,
    /// Multiplies with the row's scale and adds its bias, rounded once.
    ChannelScaleAndBias,
}

/// A number that a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::schedule) enum EpilogueOperand {
    /// One per token.
    TokenScale,
    /// One per token.
    TokenZero,
    /// One per row.
    RowSum,
    /// One per row.
    ChannelScale,
    /// One per row.
    Bias,
}

impl EpilogueOp {
    /// The steps of a problem; with `fused`, the scale and the bias of a row are one step.
    pub(in crate::schedule) fn list(problem: &Problem, fused: bool) -> Vec<Self> {
        // The power of two that dequantisation left is part of the segments' scales, if there are any.
        let exponent = if problem.scales_sums() { 0 } else { problem.exponent() };
        let by_token = problem.input.scale == Some(InputScale::Row);
        let mut ops = Vec::new();
        ops.extend((exponent != 0).then(|| Self::Multiply(2f32.powi(exponent))));
        ops.extend(problem.row_sum.then_some(Self::ZeroPoint));
        ops.extend(by_token.then_some(Self::TokenScale));
        match (problem.channel_scale, problem.bias) {
            (true, true) if fused => ops.push(Self::ChannelScaleAndBias),
            (scale, bias) => {
                ops.extend(scale.then_some(Self::ChannelScale));
                ops.extend(bias.then_some(Self::Bias));
            }
        }
        ops
    }

    /// Applies the step to some rows of one token; `read` gives one number of the token, or one per row.
    pub(in crate::schedule) fn apply(
        self,
        b: &mut Builder,
        values: Vec<Operand>,
        read: &mut dyn FnMut(&mut Builder, EpilogueOperand) -> Vec<Operand>,
    ) -> Vec<Operand> {
        let values = values.into_iter();
        match self {
            Self::Multiply(by) => values.map(|value| b.mul_f32(value, by)).collect(),
            Self::ZeroPoint => {
                let zero = read(b, EpilogueOperand::TokenZero)[0];
                let zero = b.unary(Unary::Negate, zero);
                let sums = read(b, EpilogueOperand::RowSum);
                let of_rows = values.zip(sums);
                of_rows.map(|(value, sum)| b.ternary(Ternary::Fma, zero, sum, value)).collect()
            }
            Self::TokenScale => {
                let scale = read(b, EpilogueOperand::TokenScale)[0];
                values.map(|value| b.mul_f32(value, scale)).collect()
            }
            Self::ChannelScale => {
                let scales = read(b, EpilogueOperand::ChannelScale);
                values.zip(scales).map(|(value, scale)| b.mul_f32(value, scale)).collect()
            }
            Self::Bias => {
                let biases = read(b, EpilogueOperand::Bias);
                values.zip(biases).map(|(value, bias)| b.add_f32(value, bias)).collect()
            }
            Self::ChannelScaleAndBias => {
                let scales = read(b, EpilogueOperand::ChannelScale);
                let biases = read(b, EpilogueOperand::Bias);
                let of_rows = values.zip(scales).zip(biases);
                of_rows
                    .map(|((value, scale), bias)| b.ternary(Ternary::Fma, value, scale, bias))
                    .collect()
            }
        }
    }
}
