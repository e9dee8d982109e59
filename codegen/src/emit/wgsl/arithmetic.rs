//! Values: moves, arithmetic, comparisons, conversions.

use super::Writer;
use super::prelude::Helper;
use crate::emit::walk::axis;
use crate::ir::{Binary, Compare, Half, Operand, Side, Special, Ternary, Unary};

impl Writer<'_> {
    pub(super) fn special(&self, value: Special) -> String {
        let warp = self.kernel.target.gpu.map_or(1, |gpu| gpu.warp);
        match value {
            Special::Thread => "thread".to_owned(),
            Special::Lane => format!("thread % {warp}u"),
            Special::Warp => format!("thread / {warp}u"),
            Special::Block(at) => format!("block.{}", axis(at)),
            Special::Blocks(at) => format!("blocks.{}", axis(at)),
            Special::ClusterBlock => "0u".to_owned(),
        }
    }

    pub(super) fn unary(&mut self, op: Unary, a: Operand) -> String {
        let a = self.value(a);
        let name = match op {
            Unary::Not => return format!("~{a}"),
            Unary::NotPred => return format!("!{a}"),
            Unary::Negate => return format!("-{a}"),
            Unary::F32FromS32 => return format!("f32(bitcast<i32>({a}))"),
            // A bf16 is the upper half of an f32.
            Unary::F32FromHalf(Half::Bf16, Side::Low) => {
                return format!("bitcast<f32>({a} << 16u)");
            }
            Unary::F32FromHalf(Half::Bf16, Side::High) => {
                return format!("bitcast<f32>({a} & 0xffff0000u)");
            }
            Unary::F32FromHalf(Half::F16, side) => {
                let helper = self.helper(Helper::FloatFromF16);
                return match side {
                    Side::Low => format!("{helper}({a} & 0xffffu)"),
                    Side::High => format!("{helper}({a} >> 16u)"),
                };
            }
            Unary::Abs => "abs",
            Unary::Sqrt => "sqrt",
            Unary::RoundEven => "round",
            Unary::PopCount => "countOneBits",
            Unary::AsF32 => "bitcast<f32>",
            Unary::AsU32 => "bitcast<u32>",
            Unary::F32FromU32 => "f32",
            Unary::S32FromF32 => self.helper(Helper::S32FromF32),
            // The verifier has refused it.
            Unary::Exp2Near | Unary::ReciprocalNear | Unary::F16x2From(..) => return a,
        };
        format!("{name}({a})")
    }

    pub(super) fn binary(&mut self, op: Binary, operands: [Operand; 2]) -> String {
        let [a, b] = operands.map(|value| self.value(value));
        let infix = match op {
            Binary::Add | Binary::AddF32 => "+",
            Binary::Sub | Binary::SubF32 => "-",
            Binary::Mul | Binary::MulF32 => "*",
            Binary::Div => "/",
            Binary::DivF32 => return format!("{}({a}, {b})", self.helper(Helper::Quotient)),
            Binary::Rem => "%",
            Binary::And | Binary::AndPred => "&",
            Binary::Or | Binary::OrPred => "|",
            Binary::Xor => "^",
            Binary::Shl => "<<",
            Binary::Shr => ">>",
            Binary::Min | Binary::MinF32 => return format!("min({a}, {b})"),
            Binary::Max | Binary::MaxF32 => return format!("max({a}, {b})"),
            Binary::MinSigned => return signed("min", &a, &b),
            Binary::MaxSigned => return signed("max", &a, &b),
            Binary::ShrSigned => return format!("bitcast<u32>(bitcast<i32>({a}) >> {b})"),
            Binary::MulHigh => return format!("{}({a}, {b})", self.helper(Helper::MulHigh)),
            Binary::Pack(half) => {
                let helper = match half {
                    Half::Bf16 => self.helper(Helper::Bf16),
                    Half::F16 => self.helper(Helper::F16),
                };
                return format!("{helper}({a}) | ({helper}({b}) << 16u)");
            }
            // The verifier has refused them.
            Binary::AddPacked(_)
            | Binary::SubPacked(_)
            | Binary::MulPacked(_)
            | Binary::MaxPacked(_)
            | Binary::PackE4m3 => return a,
        };
        format!("{a} {infix} {b}")
    }

    pub(super) fn ternary(&mut self, op: Ternary, operands: [Operand; 3]) -> String {
        let [a, b, c] = operands.map(|value| self.value(value));
        match op {
            Ternary::Mad => format!("{a} * {b} + {c}"),
            Ternary::Fma => format!("fma({a}, {b}, {c})"),
            // Two shifts, since WGSL has no shift by 32.
            Ternary::FunnelLeft => format!("({b} << {c}) | (({a} >> 1u) >> (31u - {c}))"),
            Ternary::FunnelRight => format!("({a} >> {c}) | (({b} << 1u) << (31u - {c}))"),
            Ternary::Dot4 { a_signed: true, b_signed: true } => {
                format!("bitcast<u32>(dot4I8Packed({a}, {b})) + {c}")
            }
            Ternary::Dot4 { a_signed: false, b_signed: false } => {
                format!("dot4U8Packed({a}, {b}) + {c}")
            }
            Ternary::Dot4 { a_signed, .. } => {
                let helper = self.helper(Helper::DotMixed);
                let (a, b) = if a_signed { (a, b) } else { (b, a) };
                format!("{helper}({a}, {b}) + {c}")
            }
            // The verifier has refused them.
            Ternary::FmaPacked(_) | Ternary::Lop3(_) | Ternary::Permute => a,
        }
    }

    pub(super) fn compare(&mut self, op: Compare, operands: [Operand; 2]) -> String {
        let [a, b] = operands.map(|value| self.value(value));
        match op {
            Compare::Equal | Compare::EqualF32 => format!("{a} == {b}"),
            Compare::NotEqual => format!("{a} != {b}"),
            Compare::Less | Compare::LessF32 => format!("{a} < {b}"),
            Compare::LessEqual => format!("{a} <= {b}"),
            Compare::LessSigned => format!("bitcast<i32>({a}) < bitcast<i32>({b})"),
        }
    }
}

/// A minimum or maximum of two's complement integers.
fn signed(name: &str, a: &str, b: &str) -> String {
    format!("bitcast<u32>({name}(bitcast<i32>({a}), bitcast<i32>({b})))")
}
