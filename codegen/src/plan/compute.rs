//! The compute plan: which product the weights and the activation meet in.

use quantloom_dsl::format::{BF16, E4M3, F16, Number};
use quantloom_dsl::layout::Grain;
use quantloom_dsl::{Accumulate, Activation, Code, Scheme};

use super::operand::Operand;
use super::scale::run;
use crate::target::Class;

/// A product instruction, as the planner sees it: one row each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Its name.
    pub name: &'static str,
    /// Type of the weight's elements.
    pub weight: Operand,
    /// Type of the activation's elements.
    pub activation: Operand,
    /// Type of its sums: exact integers, or f32.
    pub sum: Accumulate,
    /// Columns that one step takes.
    pub columns: u32,
    /// Where it is native.
    pub classes: &'static [Class],
}

use Class::{Ada, Ampere, Cdna3, Cdna4, Hopper, Lanes, Shader};

/// Every product, the fastest of its kind first. FP8 on Hopper is native in another instruction
/// than this warp-wide one, whose FP8 form is emulated there.
pub const PRODUCTS: &[Product] = &[
    Product {
        name: "dot_u8s8",
        weight: Operand::U8,
        activation: Operand::I8,
        sum: Accumulate::I32,
        columns: 4,
        classes: &[Lanes],
    },
    Product {
        name: "mma_s8",
        weight: Operand::I8,
        activation: Operand::I8,
        sum: Accumulate::I32,
        columns: 32,
        classes: &[Ampere, Ada, Hopper, Cdna3, Cdna4],
    },
    Product {
        name: "mma_e4m3",
        weight: Operand::E4m3,
        activation: Operand::E4m3,
        sum: Accumulate::F32,
        columns: 32,
        classes: &[Ada, Cdna4],
    },
    Product {
        name: "mma_bf16",
        weight: Operand::Bf16,
        activation: Operand::Bf16,
        sum: Accumulate::F32,
        columns: 16,
        classes: &[Ampere, Ada, Hopper, Cdna3, Cdna4],
    },
    Product {
        name: "mma_f16",
        weight: Operand::F16,
        activation: Operand::F16,
        sum: Accumulate::F32,
        columns: 16,
        classes: &[Ampere, Ada, Hopper, Cdna3, Cdna4],
    },
    Product {
        name: "fma_f32",
        weight: Operand::F32,
        activation: Operand::F32,
        sum: Accumulate::F32,
        columns: 1,
        classes: &[Lanes, Shader],
    },
];

/// How products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputePlan {
    /// The instruction.
    pub product: Product,
    /// Whether the activation is quantised on the way in.
    pub quantises: bool,
    /// An integer sum over more columns may overflow 32 bits.
    pub longest_run: Option<u64>,
}

impl ComputePlan {
    /// Every product that keeps the scheme's meaning on a class of targets, best first.
    pub fn all(scheme: &Scheme, activation: &Activation, class: Class) -> Vec<Self> {
        // A matrix machine adds up whole steps, so that runs of columns must not end inside of one.
        let run = run(scheme, activation).filter(|_| class != Lanes);
        let whole = |product: &Product| run.is_none_or(|run| run.is_multiple_of(product.columns));
        // What an integer product leaves of a zero point of x would be a term per row of w.
        let zero = |product: &Product| {
            class != Lanes && product.sum == Accumulate::I32 && asymmetric(activation)
        };
        let fits = |product: &&Product| {
            product.classes.contains(&class)
                && keeps(scheme, activation, product)
                && whole(product)
                && !zero(product)
        };
        let plan = |product: &Product| Self {
            product: *product,
            quantises: matches!(activation, Activation::Quantised(_)),
            longest_run: longest_run(scheme, activation, product),
        };
        PRODUCTS.iter().filter(fits).map(plan).collect()
    }
}

/// Whether x has a zero point. Code and zero point apart need eight bits each, their difference nine:
/// those of a 16-bit float.
fn asymmetric(activation: &Activation) -> bool {
    matches!(activation, Activation::Quantised(quantiser) if quantiser.zero.is_some())
}

/// Whether the product's activation type holds what the scheme multiplies.
fn keeps(scheme: &Scheme, activation: &Activation, product: &Product) -> bool {
    let x = match activation {
        Activation::Float(number) => {
            let holds = match product.activation {
                Operand::Bf16 => *number == Number::Float(BF16),
                Operand::F16 => *number == Number::Float(F16),
                Operand::F32 => true,
                _ => false,
            };
            return holds;
        }
        Activation::Quantised(quantiser) => quantiser,
    };
    // Codes go in, scales follow: in a product with exact sums only where both sides are integers
    // and one scale serves a row of x.
    let row_scale = x.scales.iter().all(|scale| scale.group.cols == Grain::All);
    match (product.activation, x.code) {
        (Operand::I8, Number::Int(bits)) => {
            bits <= 8
                && row_scale
                && matches!(scheme.weight.code, Code::Number(Number::Uint(_) | Number::Int(_)))
        }
        (Operand::I8, _) => false,
        (Operand::E4m3, number) => number == Number::Float(E4M3),
        (Operand::F16, number) => holds(Operand::F16, number),
        (Operand::Bf16, number) => holds(Operand::Bf16, number),
        (Operand::F32, _) => true,
        (Operand::U8, _) => false,
    }
}

/// Whether every finite value of a small number is one of the operand's.
fn holds(operand: Operand, number: Number) -> bool {
    number.bits() <= 8
        && (0..1u32 << number.bits())
            .map(|code| number.decode(code))
            .all(|value| !value.is_finite() || operand.number().round(value) == value)
}

/// Columns whose products surely fit a signed 32-bit sum.
fn longest_run(scheme: &Scheme, activation: &Activation, product: &Product) -> Option<u64> {
    if product.sum != Accumulate::I32 {
        return None;
    }
    let Activation::Quantised(x) = activation else { return None };
    // The weight's elements count from 0, or are a power of two too large: a byte at most.
    let weight =
        if product.weight == Operand::U8 { (1u64 << scheme.weight.code.bits()) - 1 } else { 128 };
    let x = x.code.min().abs().max(x.code.max()) as u64;
    Some(((1u64 << 31) - 1) / (weight * x))
}
