//! Values: moves, arithmetic, comparisons, conversions.

use super::prelude::Helper;
use super::{Writer, logic};
use crate::emit::walk::{axis, unsigned};
use crate::ir::{
    Binary, Compare, Half, Operand, Reg, Side, Special, Ternary, Type, Unary, Uniformity,
};
use crate::target::Feature;

impl Writer<'_> {
    /// Passes a promise of uniformity on to the compiler, if its scope is at least a warp.
    pub(super) fn uniform(&mut self, dst: Reg, a: Operand) -> String {
        let register = &self.kernel.registers[dst.id.0 as usize];
        if register.uniformity < Uniformity::Warp || a.reg().is_none() {
            return self.value(a);
        }
        let ty = register.ty;
        let first = self.first(a);
        match ty {
            Type::Pred => format!("{first} != 0"),
            _ => self.typed(dst, &first),
        }
    }

    pub(super) fn special(&mut self, value: Special) -> String {
        match value {
            Special::Thread => "__builtin_amdgcn_workitem_id_x()".to_owned(),
            Special::Lane => format!("{}()", self.helper(Helper::Lane)),
            Special::Warp => format!("{}()", self.helper(Helper::Warp)),
            Special::Block(at) => format!("__builtin_amdgcn_workgroup_id_{}()", axis(at)),
            // The builtin counts threads; a block has one thread in y and z.
            Special::Blocks(0) => {
                format!("__builtin_amdgcn_grid_size_x() / {}u", self.kernel.launch.threads)
            }
            Special::Blocks(at) => format!("__builtin_amdgcn_grid_size_{}()", axis(at)),
            // Without clusters, a block is the only one of its cluster.
            Special::ClusterBlock => "0u".to_owned(),
        }
    }

    fn call(&mut self, helper: Helper, operands: &[Operand]) -> String {
        let values: Vec<String> = operands.iter().map(|value| self.value(*value)).collect();
        format!("{}({})", self.helper(helper), values.join(", "))
    }

    pub(super) fn unary(&mut self, op: Unary, a: Operand) -> String {
        let value = self.value(a);
        match op {
            Unary::Not => format!("~{value}"),
            Unary::NotPred => format!("!{value}"),
            // In parentheses: a negative constant starts with a sign.
            Unary::Negate => format!("-({value})"),
            Unary::Abs => format!("__builtin_fabsf({value})"),
            Unary::Sqrt => format!("__builtin_sqrtf({value})"),
            Unary::RoundEven => format!("__builtin_roundevenf({value})"),
            Unary::PopCount => format!("(unsigned)__builtin_popcount({value})"),
            Unary::AsF32 => self.call(Helper::AsF32, &[a]),
            Unary::AsU32 => self.call(Helper::AsU32, &[a]),
            Unary::F32FromU32 => format!("(float){value}"),
            Unary::F32FromS32 => format!("(float)(int){value}"),
            Unary::S32FromF32 => self.call(Helper::ToInteger, &[a]),
            // A bf16 is the upper half of an f32.
            Unary::F32FromHalf(Half::Bf16, Side::Low) => {
                format!("{}({value} << 16)", self.helper(Helper::AsF32))
            }
            Unary::F32FromHalf(Half::Bf16, Side::High) => {
                format!("{}({value} & 0xffff0000u)", self.helper(Helper::AsF32))
            }
            Unary::F32FromHalf(Half::F16, Side::Low) => self.call(Helper::F32FromF16, &[a]),
            Unary::F32FromHalf(Half::F16, Side::High) => {
                format!("{}({value} >> 16)", self.helper(Helper::F32FromF16))
            }
            Unary::Exp2Near | Unary::ReciprocalNear => self.unsupported(Feature::NearFunctions),
            Unary::F16x2From(code, _) => self.unsupported(code.needs()),
        }
    }

    pub(super) fn binary(&mut self, op: Binary, a: Operand, b: Operand) -> String {
        let (first, second) = (self.value(a), self.value(b));
        let infix = |sign: &str| format!("{first} {sign} {second}");
        let signed = |less: bool| {
            let sign = if less { "<" } else { ">" };
            format!("(int){first} {sign} (int){second} ? {first} : {second}")
        };
        match op {
            Binary::Add | Binary::AddF32 => infix("+"),
            Binary::Sub | Binary::SubF32 => infix("-"),
            Binary::Mul | Binary::MulF32 => infix("*"),
            Binary::MulHigh => format!("(unsigned)(((wide){first} * {second}) >> 32)"),
            Binary::Div | Binary::DivF32 => infix("/"),
            Binary::Rem => infix("%"),
            Binary::Min => format!("{first} < {second} ? {first} : {second}"),
            Binary::Max => format!("{first} > {second} ? {first} : {second}"),
            Binary::MinSigned => signed(true),
            Binary::MaxSigned => signed(false),
            Binary::And => infix("&"),
            Binary::Or => infix("|"),
            Binary::Xor => infix("^"),
            Binary::Shl => infix("<<"),
            Binary::Shr => infix(">>"),
            Binary::ShrSigned => format!("(unsigned)((int){first} >> {second})"),
            Binary::AndPred => infix("&&"),
            Binary::OrPred => infix("||"),
            Binary::MinF32 => self.call(Helper::Min, &[a, b]),
            Binary::MaxF32 => self.call(Helper::Max, &[a, b]),
            Binary::AddPacked(Half::F16) => self.call(Helper::AddF16, &[a, b]),
            Binary::SubPacked(Half::F16) => self.call(Helper::SubF16, &[a, b]),
            Binary::MulPacked(Half::F16) => self.call(Helper::MulF16, &[a, b]),
            Binary::MaxPacked(Half::F16) => self.call(Helper::MaxF16, &[a, b]),
            Binary::Pack(Half::F16) => self.call(Helper::PackF16, &[a, b]),
            Binary::Pack(Half::Bf16) => self.call(Helper::PackBf16, &[a, b]),
            Binary::AddPacked(Half::Bf16)
            | Binary::SubPacked(Half::Bf16)
            | Binary::MulPacked(Half::Bf16) => self.unsupported(Feature::PackedBf16),
            Binary::MaxPacked(Half::Bf16) => self.unsupported(Feature::PackedBf16Fma),
            Binary::PackE4m3 => self.call(Helper::PackE4m3, &[a, b]),
        }
    }

    pub(super) fn ternary(&mut self, op: Ternary, operands: [Operand; 3]) -> String {
        let [a, b, c] = operands.map(|value| self.value(value));
        match op {
            Ternary::Mad => format!("{a} * {b} + {c}"),
            Ternary::Fma => format!("__builtin_fmaf({a}, {b}, {c})"),
            Ternary::FmaPacked(Half::F16) => self.call(Helper::FmaF16, &operands),
            Ternary::FmaPacked(Half::Bf16) => self.unsupported(Feature::PackedBf16Fma),
            Ternary::Lop3(table) => logic::expression(table, [&a, &b, &c]),
            Ternary::Permute => match operands[2] {
                Operand::U32(select) => self.selected(select, &operands, [&a, &b]),
                _ => self.call(Helper::Permute, &operands),
            },
            Ternary::FunnelLeft => self.call(Helper::FunnelLeft, &operands),
            Ternary::FunnelRight => format!("__builtin_amdgcn_alignbit({b}, {a}, {c})"),
            Ternary::Dot4 { a_signed: true, b_signed: true } => self.call(Helper::Dot4, &operands),
            Ternary::Dot4 { a_signed: false, b_signed: false } => {
                format!("__builtin_amdgcn_udot4({a}, {b}, {c}, false)")
            }
            Ternary::Dot4 { a_signed: false, b_signed: true } => {
                self.call(Helper::MixedDot4, &operands)
            }
            Ternary::Dot4 { a_signed: true, b_signed: false } => {
                let [a, b, c] = operands;
                self.call(Helper::MixedDot4, &[b, a, c])
            }
        }
    }

    /// A byte permutation by a constant. `v_perm_b32` has a selector for each byte of the result: 0
    /// to 7 for a byte of a and b, 8 to 11 for the sign of an odd byte. Signs of even bytes use the
    /// prelude's function.
    fn selected(&mut self, select: u32, operands: &[Operand], [a, b]: [&str; 2]) -> String {
        let nibbles = (0..4).map(|at| select >> (4 * at) & 0xf);
        let bytes: Option<Vec<u32>> = nibbles
            .map(|nibble| match (nibble & 7, nibble & 8) {
                (byte, 0) => Some(byte),
                (byte, _) => (byte % 2 == 1).then_some(8 + byte / 2),
            })
            .collect();
        match bytes {
            Some(bytes) => {
                let selectors = bytes.iter().rev().fold(0, |word, byte| word << 8 | byte);
                format!("__builtin_amdgcn_perm({b}, {a}, {})", unsigned(selectors))
            }
            None => self.call(Helper::Permute, operands),
        }
    }

    pub(super) fn compare(&mut self, op: Compare, a: Operand, b: Operand) -> String {
        let (a, b) = (self.value(a), self.value(b));
        match op {
            Compare::Equal | Compare::EqualF32 => format!("{a} == {b}"),
            Compare::NotEqual => format!("{a} != {b}"),
            Compare::Less | Compare::LessF32 => format!("{a} < {b}"),
            Compare::LessEqual => format!("{a} <= {b}"),
            Compare::LessSigned => format!("(int){a} < (int){b}"),
        }
    }
}
