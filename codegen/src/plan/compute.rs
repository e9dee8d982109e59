//! The compute plan: the product instruction, and with it the compute dtype of w and x.

use quantloom_dsl::format::{BF16, E4M3, E4M3FNUZ, F16, F32, FloatFormat, Number};
use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{
    Accumulate, Accuracy, Activation, Code, Group, Quantiser, ScaleLevel, ScaleType, Scheme,
    SignedBytes, TableIntegers,
};

use super::native::SHARED_BYTES;
use super::operand::OperandType;
use super::scale::{folds_input, segment};
use crate::target::Class;
use crate::target::{MATRIX_OPS, Scaling};

/// A product instruction, as the planner uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductInstruction {
    /// The name.
    pub name: &'static str,
    /// Type of the weight's elements.
    pub weight: OperandType,
    /// Type of the activation's elements.
    pub activation: OperandType,
    /// Type of the sums: exact integers, or f32.
    pub sum: Accumulate,
    /// Columns of one step.
    pub columns: u32,
    /// The row of [`MATRIX_OPS`], for a matrix instruction.
    pub matrix: Option<&'static str>,
    /// The classes of targets that have it.
    pub classes: &'static [Class],
}

use Class::{
    Ada, Ampere, Blackwell, Cdna3, Cdna4, Hopper, Lanes, Rdna3, Rdna4, Shader, TensorMemory,
};

/// A product by a matrix instruction.
const fn matrix(
    name: &'static str,
    row: &'static str,
    (operand, sum): (OperandType, Accumulate),
    columns: u32,
    classes: &'static [Class],
) -> ProductInstruction {
    let (weight, activation) = (operand, operand);
    ProductInstruction { name, weight, activation, sum, columns, matrix: Some(row), classes }
}

/// A product of two types of floats by a matrix instruction, or of any floats by one that scales both operands.
const fn mixed(
    name: &'static str,
    row: &'static str,
    (weight, activation): (OperandType, OperandType),
    columns: u32,
    classes: &'static [Class],
) -> ProductInstruction {
    let (sum, matrix) = (Accumulate::F32, Some(row));
    ProductInstruction { name, weight, activation, sum, columns, matrix, classes }
}

const I8: (OperandType, Accumulate) = (OperandType::I8, Accumulate::I32);
const I4: (OperandType, Accumulate) = (OperandType::I4, Accumulate::I32);
const E4M3_PAIR: (OperandType, Accumulate) = (OperandType::E4m3, Accumulate::F32);
const E4M3FNUZ_PAIR: (OperandType, Accumulate) = (OperandType::E4m3Fnuz, Accumulate::F32);
const BF16_PAIR: (OperandType, Accumulate) = (OperandType::Bf16, Accumulate::F32);
const F16_PAIR: (OperandType, Accumulate) = (OperandType::F16, Accumulate::F32);

/// Every product, the fastest of its kind first. The native FP8 products of Hopper and of the data centre's Blackwell are other
/// instructions than this warp-wide one, whose FP8 form the assembler replaces there by conversions and products in f16.
#[rustfmt::skip]
pub const PRODUCTS: &[ProductInstruction] = &[
    mixed("mfma_scale_e2m1_e2m1", "mfma.scale.16x16x128.e2m1.e2m1", (OperandType::E2m1, OperandType::E2m1), 128, &[Cdna4]),
    mixed("mfma_scale_e2m1_e2m3", "mfma.scale.16x16x128.e2m1.e2m3", (OperandType::E2m1, OperandType::E2m3), 128, &[Cdna4]),
    mixed("mfma_scale_e2m1_e3m2", "mfma.scale.16x16x128.e2m1.e3m2", (OperandType::E2m1, OperandType::E3m2), 128, &[Cdna4]),
    mixed("mfma_scale_e2m1_e4m3", "mfma.scale.16x16x128.e2m1.e4m3", (OperandType::E2m1, OperandType::E4m3), 128, &[Cdna4]),
    mixed("mfma_scale_e2m1_e5m2", "mfma.scale.16x16x128.e2m1.e5m2", (OperandType::E2m1, OperandType::E5m2), 128, &[Cdna4]),
    mixed("mfma_scale_e2m3_e2m1", "mfma.scale.16x16x128.e2m3.e2m1", (OperandType::E2m3, OperandType::E2m1), 128, &[Cdna4]),
    mixed("mfma_scale_e2m3_e2m3", "mfma.scale.16x16x128.e2m3.e2m3", (OperandType::E2m3, OperandType::E2m3), 128, &[Cdna4]),
    mixed("mfma_scale_e2m3_e3m2", "mfma.scale.16x16x128.e2m3.e3m2", (OperandType::E2m3, OperandType::E3m2), 128, &[Cdna4]),
    mixed("mfma_scale_e2m3_e4m3", "mfma.scale.16x16x128.e2m3.e4m3", (OperandType::E2m3, OperandType::E4m3), 128, &[Cdna4]),
    mixed("mfma_scale_e2m3_e5m2", "mfma.scale.16x16x128.e2m3.e5m2", (OperandType::E2m3, OperandType::E5m2), 128, &[Cdna4]),
    mixed("mfma_scale_e3m2_e2m1", "mfma.scale.16x16x128.e3m2.e2m1", (OperandType::E3m2, OperandType::E2m1), 128, &[Cdna4]),
    mixed("mfma_scale_e3m2_e2m3", "mfma.scale.16x16x128.e3m2.e2m3", (OperandType::E3m2, OperandType::E2m3), 128, &[Cdna4]),
    mixed("mfma_scale_e3m2_e3m2", "mfma.scale.16x16x128.e3m2.e3m2", (OperandType::E3m2, OperandType::E3m2), 128, &[Cdna4]),
    mixed("mfma_scale_e3m2_e4m3", "mfma.scale.16x16x128.e3m2.e4m3", (OperandType::E3m2, OperandType::E4m3), 128, &[Cdna4]),
    mixed("mfma_scale_e3m2_e5m2", "mfma.scale.16x16x128.e3m2.e5m2", (OperandType::E3m2, OperandType::E5m2), 128, &[Cdna4]),
    mixed("mfma_scale_e4m3_e2m1", "mfma.scale.16x16x128.e4m3.e2m1", (OperandType::E4m3, OperandType::E2m1), 128, &[Cdna4]),
    mixed("mfma_scale_e4m3_e2m3", "mfma.scale.16x16x128.e4m3.e2m3", (OperandType::E4m3, OperandType::E2m3), 128, &[Cdna4]),
    mixed("mfma_scale_e4m3_e3m2", "mfma.scale.16x16x128.e4m3.e3m2", (OperandType::E4m3, OperandType::E3m2), 128, &[Cdna4]),
    mixed("mfma_scale_e4m3_e4m3", "mfma.scale.16x16x128.e4m3.e4m3", (OperandType::E4m3, OperandType::E4m3), 128, &[Cdna4]),
    mixed("mfma_scale_e4m3_e5m2", "mfma.scale.16x16x128.e4m3.e5m2", (OperandType::E4m3, OperandType::E5m2), 128, &[Cdna4]),
    mixed("mfma_scale_e5m2_e2m1", "mfma.scale.16x16x128.e5m2.e2m1", (OperandType::E5m2, OperandType::E2m1), 128, &[Cdna4]),
    mixed("mfma_scale_e5m2_e2m3", "mfma.scale.16x16x128.e5m2.e2m3", (OperandType::E5m2, OperandType::E2m3), 128, &[Cdna4]),
    mixed("mfma_scale_e5m2_e3m2", "mfma.scale.16x16x128.e5m2.e3m2", (OperandType::E5m2, OperandType::E3m2), 128, &[Cdna4]),
    mixed("mfma_scale_e5m2_e4m3", "mfma.scale.16x16x128.e5m2.e4m3", (OperandType::E5m2, OperandType::E4m3), 128, &[Cdna4]),
    mixed("mfma_scale_e5m2_e5m2", "mfma.scale.16x16x128.e5m2.e5m2", (OperandType::E5m2, OperandType::E5m2), 128, &[Cdna4]),
    mixed("tcgen05_scale_e2m1_ue8m0", "tcgen05.scale.e2m1", (OperandType::E2m1, OperandType::E2m1), 64, &[TensorMemory]),
    mixed("tcgen05_scale_e2m1_ue4m3", "tcgen05.scale.e2m1.e4m3", (OperandType::E2m1, OperandType::E2m1), 64, &[TensorMemory]),
    mixed("tcgen05_scale_e4m3", "tcgen05.scale.e4m3", (OperandType::E4m3, OperandType::E4m3), 32, &[TensorMemory]),
    mixed("mma_scale_e2m1_ue8m0", "mma.scale.m16n8k64.e2m1", (OperandType::E2m1, OperandType::E2m1), 64, &[Blackwell]),
    mixed("mma_scale_e2m1_ue4m3", "mma.scale.m16n8k64.e2m1.e4m3", (OperandType::E2m1, OperandType::E2m1), 64, &[Blackwell]),
    mixed("mma_scale_e2m1_e2m3", "mma.scale.m16n8k32.e2m1.e2m3", (OperandType::PaddedE2m1, OperandType::PaddedE2m3), 32, &[Blackwell]),
    mixed("mma_scale_e2m1_e3m2", "mma.scale.m16n8k32.e2m1.e3m2", (OperandType::PaddedE2m1, OperandType::PaddedE3m2), 32, &[Blackwell]),
    mixed("mma_scale_e2m1_e4m3", "mma.scale.m16n8k32.e2m1.e4m3", (OperandType::PaddedE2m1, OperandType::E4m3), 32, &[Blackwell]),
    mixed("mma_scale_e2m1_e5m2", "mma.scale.m16n8k32.e2m1.e5m2", (OperandType::PaddedE2m1, OperandType::E5m2), 32, &[Blackwell]),
    mixed("mma_scale_e2m3_e2m1", "mma.scale.m16n8k32.e2m3.e2m1", (OperandType::PaddedE2m3, OperandType::PaddedE2m1), 32, &[Blackwell]),
    mixed("mma_scale_e2m3_e2m3", "mma.scale.m16n8k32.e2m3.e2m3", (OperandType::PaddedE2m3, OperandType::PaddedE2m3), 32, &[Blackwell]),
    mixed("mma_scale_e2m3_e3m2", "mma.scale.m16n8k32.e2m3.e3m2", (OperandType::PaddedE2m3, OperandType::PaddedE3m2), 32, &[Blackwell]),
    mixed("mma_scale_e2m3_e4m3", "mma.scale.m16n8k32.e2m3.e4m3", (OperandType::PaddedE2m3, OperandType::E4m3), 32, &[Blackwell]),
    mixed("mma_scale_e2m3_e5m2", "mma.scale.m16n8k32.e2m3.e5m2", (OperandType::PaddedE2m3, OperandType::E5m2), 32, &[Blackwell]),
    mixed("mma_scale_e3m2_e2m1", "mma.scale.m16n8k32.e3m2.e2m1", (OperandType::PaddedE3m2, OperandType::PaddedE2m1), 32, &[Blackwell]),
    mixed("mma_scale_e3m2_e2m3", "mma.scale.m16n8k32.e3m2.e2m3", (OperandType::PaddedE3m2, OperandType::PaddedE2m3), 32, &[Blackwell]),
    mixed("mma_scale_e3m2_e3m2", "mma.scale.m16n8k32.e3m2.e3m2", (OperandType::PaddedE3m2, OperandType::PaddedE3m2), 32, &[Blackwell]),
    mixed("mma_scale_e3m2_e4m3", "mma.scale.m16n8k32.e3m2.e4m3", (OperandType::PaddedE3m2, OperandType::E4m3), 32, &[Blackwell]),
    mixed("mma_scale_e3m2_e5m2", "mma.scale.m16n8k32.e3m2.e5m2", (OperandType::PaddedE3m2, OperandType::E5m2), 32, &[Blackwell]),
    mixed("mma_scale_e4m3_e2m1", "mma.scale.m16n8k32.e4m3.e2m1", (OperandType::E4m3, OperandType::PaddedE2m1), 32, &[Blackwell]),
    mixed("mma_scale_e4m3_e2m3", "mma.scale.m16n8k32.e4m3.e2m3", (OperandType::E4m3, OperandType::PaddedE2m3), 32, &[Blackwell]),
    mixed("mma_scale_e4m3_e3m2", "mma.scale.m16n8k32.e4m3.e3m2", (OperandType::E4m3, OperandType::PaddedE3m2), 32, &[Blackwell]),
    mixed("mma_scale_e4m3_e4m3", "mma.scale.m16n8k32.e4m3.e4m3", (OperandType::E4m3, OperandType::E4m3), 32, &[Blackwell]),
    mixed("mma_scale_e4m3_e5m2", "mma.scale.m16n8k32.e4m3.e5m2", (OperandType::E4m3, OperandType::E5m2), 32, &[Blackwell]),
    mixed("mma_scale_e5m2_e2m1", "mma.scale.m16n8k32.e5m2.e2m1", (OperandType::E5m2, OperandType::PaddedE2m1), 32, &[Blackwell]),
    mixed("mma_scale_e5m2_e2m3", "mma.scale.m16n8k32.e5m2.e2m3", (OperandType::E5m2, OperandType::PaddedE2m3), 32, &[Blackwell]),
    mixed("mma_scale_e5m2_e3m2", "mma.scale.m16n8k32.e5m2.e3m2", (OperandType::E5m2, OperandType::PaddedE3m2), 32, &[Blackwell]),
    mixed("mma_scale_e5m2_e4m3", "mma.scale.m16n8k32.e5m2.e4m3", (OperandType::E5m2, OperandType::E4m3), 32, &[Blackwell]),
    mixed("mma_scale_e5m2_e5m2", "mma.scale.m16n8k32.e5m2.e5m2", (OperandType::E5m2, OperandType::E5m2), 32, &[Blackwell]),
    ProductInstruction {
        name: "dot_u8s8",
        weight: OperandType::U8,
        activation: OperandType::I8,
        sum: Accumulate::I32,
        columns: 4,
        matrix: None,
        classes: &[Lanes],
    },
    matrix("wmma_s4_copied", "wmma.copied.16x16x16.s4", I4, 16, &[Rdna3]),
    matrix("wmma_s4", "wmma.16x16x32.s4", I4, 32, &[Rdna4]),
    matrix("mma_s8", "mma.m16n8k32.s8", I8, 32, &[Ampere, Ada, Hopper, Blackwell, TensorMemory]),
    matrix("mfma_s8_k64", "mfma.16x16x64.s8", I8, 64, &[Cdna4]),
    matrix("mfma_s8", "mfma.16x16x32.s8", I8, 32, &[Cdna3, Cdna4]),
    matrix("wmma_s8_copied", "wmma.copied.16x16x16.s8", I8, 16, &[Rdna3]),
    matrix("wmma_s8", "wmma.16x16x16.s8", I8, 16, &[Rdna4]),
    matrix("mma_e4m3", "mma.m16n8k32.e4m3", E4M3_PAIR, 32, &[Ada, Blackwell]),
    matrix("mfma_e4m3", "mfma.16x16x32.e4m3", E4M3_PAIR, 32, &[Cdna4]),
    matrix("mfma_e4m3fnuz", "mfma.16x16x32.e4m3fnuz", E4M3FNUZ_PAIR, 32, &[Cdna3]),
    matrix("wmma_e4m3", "wmma.16x16x16.e4m3", E4M3_PAIR, 16, &[Rdna4]),
    mixed("wmma_e4m3_e5m2", "wmma.16x16x16.e4m3.e5m2", (OperandType::E4m3, OperandType::E5m2), 16, &[Rdna4]),
    mixed("wmma_e5m2_e4m3", "wmma.16x16x16.e5m2.e4m3", (OperandType::E5m2, OperandType::E4m3), 16, &[Rdna4]),
    mixed("wmma_e5m2", "wmma.16x16x16.e5m2", (OperandType::E5m2, OperandType::E5m2), 16, &[Rdna4]),
    matrix("mma_bf16", "mma.m16n8k16.bf16", BF16_PAIR, 16, &[Ampere, Ada, Hopper, Blackwell, TensorMemory]),
    matrix("mfma_bf16_k32", "mfma.16x16x32.bf16", BF16_PAIR, 32, &[Cdna4]),
    matrix("mfma_bf16", "mfma.16x16x16.bf16", BF16_PAIR, 16, &[Cdna3, Cdna4]),
    matrix("wmma_bf16_copied", "wmma.copied.16x16x16.bf16", BF16_PAIR, 16, &[Rdna3]),
    matrix("wmma_bf16", "wmma.16x16x16.bf16", BF16_PAIR, 16, &[Rdna4]),
    matrix("mma_f16", "mma.m16n8k16.f16", F16_PAIR, 16, &[Ampere, Ada, Hopper, Blackwell, TensorMemory]),
    matrix("mfma_f16_k32", "mfma.16x16x32.f16", F16_PAIR, 32, &[Cdna4]),
    matrix("mfma_f16", "mfma.16x16x16.f16", F16_PAIR, 16, &[Cdna3, Cdna4]),
    matrix("wmma_f16_copied", "wmma.copied.16x16x16.f16", F16_PAIR, 16, &[Rdna3]),
    matrix("wmma_f16", "wmma.16x16x16.f16", F16_PAIR, 16, &[Rdna4]),
    ProductInstruction {
        name: "dot_s8",
        weight: OperandType::I8,
        activation: OperandType::I8,
        sum: Accumulate::I32,
        columns: 4,
        matrix: None,
        classes: &[Shader],
    },
    ProductInstruction {
        name: "fma_f32",
        weight: OperandType::F32,
        activation: OperandType::F32,
        sum: Accumulate::F32,
        columns: 1,
        matrix: None,
        classes: &[Lanes, Shader],
    },
];

/// Columns of a chunk of codes on CPUs: those of [`LANES_TILE`](super::LANES_TILE).
const LANES_CHUNK: u32 = 32;

impl ProductInstruction {
    /// How the instruction scales its operands, if it does.
    pub fn scaling(&self) -> Option<Scaling> {
        MATRIX_OPS.iter().find(|row| Some(row.name) == self.matrix)?.scaling
    }
}

impl ProductInstruction {
    /// Columns of the shortest segment that kernels of this product sum: if x has less than a byte a column, the k-tile of
    /// a lane is all columns of [`SHARED_BYTES`], and the sums of all of its segments are live at once.
    fn shortest_segment(&self) -> u32 {
        match self.activation.bits() {
            ..8 => SHARED_BYTES * 8 / self.activation.bits() / MOST_SEGMENTS,
            _ => 1,
        }
    }
}

/// Segments of such a k-tile for whose sums a lane has registers.
const MOST_SEGMENTS: u32 = 2;

/// The compute plan: the product instruction and its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputePlan {
    /// The instruction.
    pub product: ProductInstruction,
    /// Whether x is quantised first.
    pub quantises: bool,
    /// Whether elements of x are the values of codes times their finest scale, and not the values alone.
    pub folds_input: bool,
    /// Whether scales of groups that are shorter than a chunk of codes, or of 32 columns, may multiply weights with a rounding: on Hopper, whose
    /// warp groups have no sums of a part of a chunk, and gain more than exact sums of a group are worth, unless the scheme asks for
    /// [`Accuracy::Exact`]. (Peers round weights too.)
    pub rounds_weights: bool,
    /// Whether such scales are known to be in the range that f16 takes ([`FoldedScale`](super::scale::FoldedScale)): they multiply weights in
    /// f16 then too.
    pub scales_in_range: bool,
    /// Elements of x are `2^exponent` times the values of their codes.
    pub exponent: i32,
    /// The most columns whose integer sum surely fits in 32 bits; `None` for float sums.
    pub longest_sum: Option<u64>,
}

impl ComputePlan {
    /// Every product of a class of targets that preserves the scheme's meaning, best first.
    pub fn all(scheme: &Scheme, activation: &Activation, class: Class) -> Vec<Self> {
        // Matrix instructions sum whole steps, so a segment must not end within a step.
        let segment = segment(scheme, activation);
        let whole = |product: &ProductInstruction| match segment {
            None => true,
            Some(_) if class == Lanes => {
                product.sum == Accumulate::F32 || lanes_have_segments(scheme, activation)
            }
            Some(segment) => {
                let long = segment >= product.shortest_segment();
                product.scaling().is_some() || segment.is_multiple_of(product.columns) && long
            }
        };
        // On CPUs a weight has one packing for every type of x; the packing for integer sums is used
        // only if x is quantised whatever its type, that is, if the quantiser is first in the list.
        let packed = |product: &ProductInstruction| {
            class != Lanes
                || product.sum == Accumulate::F32
                || scheme.activations.first() == Some(activation)
        };
        let fits = |product: &&ProductInstruction| {
            product.classes.contains(&class)
                && packed(product)
                && keeps(scheme, activation, product)
                && (product.sum == Accumulate::F32 || sums_integers(activation, class))
                && whole(product)
        };
        let plan = |product: &ProductInstruction| Self {
            product: *product,
            quantises: matches!(activation, Activation::Quantised(_)),
            folds_input: class != Lanes
                && product.scaling().is_none()
                && matches!(activation, Activation::Quantised(quantiser)
                    if folds_input(scheme, quantiser, (product.activation, class))),
            rounds_weights: class == Hopper && scheme.accuracy == Accuracy::Fast,
            scales_in_range: false,
            exponent: match activation {
                Activation::Quantised(quantiser) => product.activation.exponent(quantiser.code),
                Activation::Float(_) => 0,
            },
            longest_sum: longest_sum(scheme, activation, product),
        };
        PRODUCTS.iter().filter(fits).map(plan).collect()
    }

    /// The same product of codes of x, whose scales all multiply sums, as those of w do that would round weights.
    pub(super) const fn without_folding(self) -> Self {
        Self { folds_input: false, rounds_weights: false, ..self }
    }

    /// The same product of a weight whose scales are all in the range that f16 takes.
    pub(super) const fn of_range(self) -> Self {
        Self { scales_in_range: true, ..self }
    }

    /// Why a class of targets has no product of a scheme with one of its activations, and the nearest
    /// alternative.
    pub fn obstacle(scheme: &Scheme, activation: &Activation, class: Class) -> ProductObstacle {
        let there = |product: &&ProductInstruction| {
            product.classes.contains(&class) && product.scaling().is_none()
        };
        let products = || PRODUCTS.iter().filter(there);
        let kept = products().filter(|product| {
            keeps(scheme, activation, product)
                && (product.sum == Accumulate::F32 || sums_integers(activation, class))
        });
        let step = kept.map(|product| product.columns).min();
        match (step, segment(scheme, activation), activation) {
            (Some(step), Some(segment), _) => ProductObstacle::Segment { segment, step },
            (_, _, Activation::Float(_)) => {
                let float = |product: &&ProductInstruction| product.sum == Accumulate::F32;
                let mut types: Vec<OperandType> =
                    products().filter(float).map(|p| p.activation).collect();
                types.retain(|operand| operand.bits() >= 16);
                types.dedup();
                ProductObstacle::Input { others: types }
            }
            (_, _, Activation::Quantised(quantiser)) => ProductObstacle::Codes(quantiser.code),
        }
    }
}

/// Why no product of a class of targets multiplies w and x, and what would have one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProductObstacle {
    /// Scales or terms of sums change within the columns that a product adds up.
    #[error(
        "what multiplies sums changes every {segment} columns, and its products add up {step} at a \
         time; groups of a multiple of {step} columns have one"
    )]
    Segment {
        /// Columns that share all factors and terms of their sum.
        segment: u32,
        /// The fewest columns that a product of these types adds up.
        step: u32,
    },
    /// No product takes x in its type.
    #[error("x in {} has one", either(others))]
    Input {
        /// The float types of x that have a product.
        others: Vec<OperandType>,
    },
    /// No operand holds all codes of x, which are of this type.
    #[error("none of its operands holds all codes of {0}; integers and floats of 8 bits have one")]
    Codes(Number),
}

/// A list of types in a sentence.
fn either(types: &[OperandType]) -> String {
    match types {
        [] => "no type".to_owned(),
        [only] => only.to_string(),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(ToString::to_string).collect();
            format!("{} or {last}", first.join(", "))
        }
    }
}

/// Whether kernels of a class of targets sum integers of x. They leave zero points of rows to the epilogue, which reads an array of sums of
/// rows of w for that: kernels of shaders, which have 8 arrays at most, have no place for one beside those of an expert layer. Zero
/// points of groups would need the sums of these groups of w.
fn sums_integers(activation: &Activation, class: Class) -> bool {
    match class {
        Lanes => true,
        Shader => !has_zero(activation),
        _ => !has_zero(activation) || one_scale(activation),
    }
}

/// Whether x has a zero point.
pub(crate) fn has_zero(activation: &Activation) -> bool {
    matches!(activation, Activation::Quantised(quantiser) if quantiser.zero.is_some())
}

/// Whether codes that are no integers are looked up as integers: nothing else is added to them.
fn table_integers(scheme: &Scheme) -> bool {
    scheme.zero.is_none()
        && scheme.shifts.is_empty()
        && scheme.weight.offset == 0
        && TableIntegers::of(&scheme.weight.code).is_some()
}

/// Whether a row of x has one scale.
fn one_scale(activation: &Activation) -> bool {
    match activation {
        Activation::Float(_) => true,
        Activation::Quantised(x) => x.scales.iter().all(|scale| scale.group.cols == GroupSize::All),
    }
}

/// Whether integer products on CPUs have segments in which both sides have one scale: whole half
/// chunks. Groups of w are padded to chunks, of more than a quarter to half a chunk; then, or with an
/// index, its columns are in another order than groups of x.
fn lanes_have_segments(scheme: &Scheme, activation: &Activation) -> bool {
    let half = LANES_CHUNK / 2;
    let none = Activation::Float(Number::Float(F32));
    let of_weight = segment(scheme, &none);
    if one_scale(activation) {
        return of_weight.is_none_or(|columns| columns > half / 2);
    }
    let in_order = scheme.index.is_none()
        && of_weight.is_none_or(|columns| columns == half || columns.is_multiple_of(LANES_CHUNK));
    let common = segment(scheme, activation).unwrap_or(half);
    in_order && common.is_multiple_of(half)
}

/// Whether the product's operand types represent the scheme's codes.
fn keeps(scheme: &Scheme, activation: &Activation, product: &ProductInstruction) -> bool {
    if let Some(scaling) = product.scaling() {
        return scales(scheme, activation, product, scaling);
    }
    let x = match activation {
        Activation::Float(number) => {
            let holds = match product.activation {
                OperandType::Bf16 => *number == Number::Float(BF16),
                OperandType::F16 => *number == Number::Float(F16),
                OperandType::F32 => true,
                _ => false,
            };
            return holds;
        }
        Activation::Quantised(quantiser) => quantiser,
    };
    // Scales apply to sums of codes; integer sums are exact only if both sides are integers.
    match (product.activation, x.code) {
        (OperandType::I8, number) => {
            let lanes = product.weight == OperandType::U8;
            let weight = match scheme.weight.code {
                Code::Number(Number::Uint(_) | Number::Int(_)) => true,
                _ => lanes && table_integers(scheme),
            };
            let x = match lanes {
                true => SignedBytes::of(number).is_some(),
                false => matches!(number, Number::Int(1..=8)),
            };
            weight && x
        }
        (OperandType::I4, Number::Int(bits)) => {
            bits <= 4
                && matches!(scheme.weight.code, Code::Number(Number::Uint(_) | Number::Int(_)))
        }
        (OperandType::I4, _) => false,
        (OperandType::E4m3 | OperandType::E5m2, number) => number == product.activation.number(),
        (OperandType::E4m3Fnuz, number) => [E4M3, E4M3FNUZ].map(Number::Float).contains(&number),
        (OperandType::F16 | OperandType::Bf16, number) => {
            holds(product.activation, number) && holds_differences(product.activation, x)
        }
        (OperandType::F32, _) => true,
        (OperandType::U8, _) => false,
        // Operands of instructions that scale.
        (
            OperandType::E2m1
            | OperandType::E2m3
            | OperandType::E3m2
            | OperandType::PaddedE2m1
            | OperandType::PaddedE2m3
            | OperandType::PaddedE3m2,
            _,
        ) => false,
    }
}

/// Whether an instruction that scales its operands reads codes and scales of both sides as they are:
/// codes of its formats, one level of scales of its type on each side for exactly these columns, and nothing
/// else that changes along k. Levels of w that are constant along k, and static ones of all of x, are applied in the
/// epilogue.
fn scales(
    scheme: &Scheme,
    activation: &Activation,
    product: &ProductInstruction,
    scaling: Scaling,
) -> bool {
    let Activation::Quantised(x) = activation else { return false };
    let of_columns = |level: &ScaleLevel| level.group.cols != GroupSize::All;
    let taken = |level: &ScaleLevel| {
        level.number == ScaleType::Number(scaling.code.number())
            && level.group.rows == GroupSize::Each(1)
            && level.group.cols == GroupSize::Each(scaling.columns)
            && !level.divide
    };
    let weight = &scheme.weight;
    let codes = weight.code == Code::Number(product.weight.number())
        && weight.offset == 0
        && x.code == product.activation.number();
    let alone = scheme.zero.is_none() && scheme.shifts.is_empty() && scheme.index.is_none();
    let mut levels = scheme.scales.iter().filter(|level| of_columns(level));
    let of_weight = levels.next().is_some_and(taken) && levels.next().is_none();
    let constant = |level: &ScaleLevel| level.stored && level.group == Group::TENSOR;
    let of_x = x.zero.is_none()
        && matches!(&x.scales[..], [level, others @ ..]
            if taken(level) && !level.stored && others.iter().all(constant));
    codes && alone && of_weight && of_x
}

/// Whether every finite value of a number of at most 8 bits is a number of the operand's type.
fn holds(operand: OperandType, number: Number) -> bool {
    number.bits() <= 8
        && (0..1u32 << number.bits())
            .map(|code| number.decode(code))
            .all(|value| !value.is_finite() || operand.number().round(value) == value)
}

/// Whether every difference of a code and a zero point, the elements of such an operand, is a number of the
/// operand's type: codes of i8 less a static zero point of u8 are integers from -383 to 127, of nine bits; bf16
/// has eight. Dynamic zero points are codes.
fn holds_differences(operand: OperandType, x: &Quantiser) -> bool {
    let Some(zero) = x.zero else { return true };
    let fixed = x.scales.first().is_some_and(|level| level.stored);
    let codes = (x.code.min(), x.code.max());
    let (least, most) = match fixed {
        true => (zero.min(), zero.max()),
        false => (zero.min().max(codes.0), zero.max().min(codes.1)),
    };
    // A float of m mantissa bits has every integer up to 2^(m + 1).
    let largest = (codes.0 - most).abs().max((codes.1 - least).abs());
    let Number::Float(FloatFormat { mantissa_bits, .. }) = operand.number() else { return false };
    !zero.is_float() && largest <= f64::from(mantissa_bits + 1).exp2()
}

/// The most columns whose integer sum surely fits in 32 bits.
fn longest_sum(
    scheme: &Scheme,
    activation: &Activation,
    product: &ProductInstruction,
) -> Option<u64> {
    if product.sum != Accumulate::I32 {
        return None;
    }
    let Activation::Quantised(x) = activation else { return None };
    // Elements of w are signed integers of at most a byte, possibly a power of two too large. Or they are unsigned, and the
    // offset times the sum of x is subtracted.
    let (low, high) = scheme.weight.range();
    let weight = match product.weight {
        OperandType::U8 => low.abs().max(high.abs()).max(1.0) as u64,
        _ => 128,
    };
    let x = SignedBytes::of(x.code).unwrap_or_default().largest(x.code) as u64;
    Some(((1u64 << 31) - 1) / (weight * x))
}
