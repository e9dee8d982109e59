//! Values: moves, arithmetic, comparisons, conversions.

use quantloom_dsl::format::Number;

use super::Writer;
use crate::emit::walk::axis;
use crate::ir::{Binary, Compare, Half, Operand, Reg, Side, Special, Ternary, Type, Unary};

/// The parts of a word: their type and their names, the lowest first.
type Parts = (&'static str, &'static [&'static str]);

const HALVES: Parts = ("b16", &["low", "high"]);
const QUARTERS: Parts = ("b8", &["first", "second", "third", "fourth"]);

impl Writer<'_> {
    pub(super) fn ternary(&mut self, dst: Reg, op: Ternary, [a, b, c]: [Operand; 3]) {
        let operands = match op {
            // Packed instructions have no constant operands.
            Ternary::FmaPacked(_) => [a, b, c].map(|value| self.in_register(value)).join(", "),
            _ => self.values(&[a, b, c]),
        };
        let dst = self.reg(dst);
        let line = match op {
            Ternary::Mad => format!("mad.lo.u32 {dst}, {operands};"),
            Ternary::Fma => format!("fma.rn.f32 {dst}, {operands};"),
            Ternary::FmaPacked(half) => format!("fma.rn.{} {dst}, {operands};", pair(half)),
            Ternary::Lop3(table) => format!("lop3.b32 {dst}, {operands}, {table:#04x};"),
            Ternary::Permute => match (one_half(c), a) {
                // The assembler then needs no instruction to extract the half.
                (Some(half), Operand::Reg(reg)) => format!(
                    "{{ .reg .b16 low, high; mov.b32 {{low, high}}, {}; \
                     mov.b32 {dst}, {{{half}, {half}}}; }}",
                    self.reg(reg)
                ),
                // Of two constants the assembler copies one to a register for each use, unless one is 0.
                (None, Operand::U32(low @ 1..))
                    if matches!((b, c), (Operand::U32(1..), Operand::Reg(_))) =>
                {
                    let (low, [high, select]) = (self.opaque(low), [b, c].map(|of| self.value(of)));
                    format!("prmt.b32 {dst}, {low}, {high}, {select};")
                }
                _ => format!("prmt.b32 {dst}, {operands};"),
            },
            Ternary::FunnelLeft => format!("shf.l.clamp.b32 {dst}, {operands};"),
            Ternary::FunnelRight => format!("shf.r.clamp.b32 {dst}, {operands};"),
            Ternary::Dot4 { a_signed, b_signed } => {
                let sign = |signed| if signed { "s32" } else { "u32" };
                format!("dp4a.{}.{} {dst}, {operands};", sign(a_signed), sign(b_signed))
            }
        };
        self.line(&line);
    }

    pub(super) fn compare(&mut self, dst: Reg, op: Compare, a: Operand, b: Operand) {
        let what = match op {
            Compare::Equal => "eq.u32",
            Compare::NotEqual => "ne.u32",
            Compare::Less => "lt.u32",
            Compare::LessEqual => "le.u32",
            Compare::LessSigned => "lt.s32",
            Compare::EqualF32 => "eq.f32",
            Compare::LessF32 => "lt.f32",
        };
        let line = format!("setp.{what} {}, {};", self.reg(dst), self.values(&[a, b]));
        self.line(&line);
    }

    /// A predicate in a register; PTX has no constant predicate operands.
    fn predicate(&mut self, operand: Operand, scratch: &str) -> String {
        match operand {
            Operand::Pred(value) => {
                self.line(&format!("setp.ne.b32 {scratch}, {}, 0;", u32::from(value)));
                scratch.to_owned()
            }
            operand => self.value(operand),
        }
    }

    pub(super) fn copy(&mut self, dst: Reg, a: Operand) {
        let (name, value) = (self.reg(dst), self.value(a));
        let line = match (self.type_of(dst.into()), a) {
            (Type::Pred, Operand::Pred(value)) => {
                format!("setp.ne.b32 {name}, {}, 0;", u32::from(value))
            }
            (Type::Pred, _) => format!("mov.pred {name}, {value};"),
            (Type::U32, _) => format!("mov.b32 {name}, {value};"),
            (Type::F32, _) => format!("mov.f32 {name}, {value};"),
        };
        self.line(&line);
    }

    pub(super) fn special(&mut self, dst: Reg, value: Special) {
        let dst = self.reg(dst);
        let warp = self.kernel.target.gpu.map_or(32, |gpu| gpu.warp);
        match value {
            Special::Thread => self.line(&format!("mov.u32 {dst}, %tid.x;")),
            Special::Lane => {
                self.line(&format!("mov.u32 {dst}, %tid.x;"));
                self.line(&format!("and.b32 {dst}, {dst}, {};", warp - 1));
            }
            Special::Warp => {
                self.line(&format!("mov.u32 {dst}, %tid.x;"));
                self.line(&format!("shr.u32 {dst}, {dst}, {};", warp.trailing_zeros()));
            }
            Special::Block(at) => self.line(&format!("mov.u32 {dst}, %ctaid.{};", axis(at))),
            Special::Blocks(at) => self.line(&format!("mov.u32 {dst}, %nctaid.{};", axis(at))),
            Special::ClusterBlock => self.line(&format!("mov.u32 {dst}, %cluster_ctarank;")),
        }
    }

    pub(super) fn unary(&mut self, dst: Reg, op: Unary, a: Operand) {
        let (dst, a) = (self.reg(dst), self.value(a));
        let plain = match op {
            Unary::Not => "not.b32",
            Unary::NotPred => "not.pred",
            Unary::Negate => "neg.f32",
            Unary::Abs => "abs.f32",
            Unary::Sqrt => "sqrt.rn.f32",
            Unary::RoundEven => "cvt.rni.f32.f32",
            Unary::Exp2Near => "ex2.approx.f32",
            Unary::ReciprocalNear => "rcp.approx.ftz.f32",
            Unary::PopCount => "popc.b32",
            Unary::AsF32 | Unary::AsU32 => "mov.b32",
            Unary::F32FromU32 => "cvt.rn.f32.u32",
            Unary::F32FromS32 => "cvt.rn.f32.s32",
            Unary::S32FromF32 => "cvt.rni.s32.f32",
            // A bf16 is the upper half of an f32.
            Unary::F32FromHalf(Half::Bf16, Side::Low) => {
                return self.line(&format!("shl.b32 {dst}, {a}, 16;"));
            }
            Unary::F32FromHalf(Half::Bf16, Side::High) => {
                return self.line(&format!("and.b32 {dst}, {a}, 0xffff0000;"));
            }
            Unary::F32FromHalf(Half::F16, side) => {
                let part = usize::from(side == Side::High);
                return self.convert_part(dst, "cvt.f32.f16", a, (HALVES, part));
            }
            Unary::F16x2From(code, pair) => {
                let convert = format!("cvt.rn.f16x2.{}x2", Number::Float(code.format()));
                let parts = if code.field() == 4 { QUARTERS } else { HALVES };
                return self.convert_part(dst, &convert, a, (parts, pair.into()));
            }
        };
        self.line(&format!("{plain} {dst}, {a};"));
    }

    /// `dst` from a part of a word.
    fn convert_part(
        &mut self,
        dst: String,
        convert: &str,
        a: String,
        (parts, part): (Parts, usize),
    ) {
        let (ty, names) = parts;
        let all = names.join(", ");
        self.line(&format!(
            "{{ .reg .{ty} {all}; mov.b32 {{{all}}}, {a}; {convert} {dst}, {}; }}",
            names[part % names.len()]
        ));
    }

    pub(super) fn binary(&mut self, dst: Reg, op: Binary, a: Operand, b: Operand) {
        let packed = matches!(
            op,
            Binary::AddPacked(_)
                | Binary::SubPacked(_)
                | Binary::MulPacked(_)
                | Binary::MaxPacked(_)
        );
        let (first, second) = match packed {
            // Packed instructions have no constant operands.
            true => (self.in_register(a), self.in_register(b)),
            false => (self.value(a), self.value(b)),
        };
        let dst = self.reg(dst);
        let divides = matches!(op, Binary::Div | Binary::Rem);
        if let Operand::U32(divisor) = b
            && divides
            && divisor > 2
            && !divisor.is_power_of_two()
        {
            return self.divide(&dst, &first, divisor, op == Binary::Rem);
        }
        let name = match op {
            Binary::Add => "add.u32".to_owned(),
            Binary::Sub => "sub.u32".to_owned(),
            Binary::Mul => "mul.lo.u32".to_owned(),
            Binary::MulHigh => "mul.hi.u32".to_owned(),
            Binary::Div => "div.u32".to_owned(),
            Binary::Rem => "rem.u32".to_owned(),
            Binary::Min => "min.u32".to_owned(),
            Binary::Max => "max.u32".to_owned(),
            Binary::MinSigned => "min.s32".to_owned(),
            Binary::MaxSigned => "max.s32".to_owned(),
            Binary::And => "and.b32".to_owned(),
            Binary::Or => "or.b32".to_owned(),
            Binary::Xor => "xor.b32".to_owned(),
            Binary::Shl => "shl.b32".to_owned(),
            Binary::Shr => "shr.u32".to_owned(),
            Binary::ShrSigned => "shr.s32".to_owned(),
            Binary::AndPred | Binary::OrPred => {
                let name = if op == Binary::AndPred { "and.pred" } else { "or.pred" };
                self.line("{ .reg .pred left, right;");
                let (left, right) = (self.predicate(a, "left"), self.predicate(b, "right"));
                return self.line(&format!("{name} {dst}, {left}, {right}; }}"));
            }
            Binary::AddF32 => "add.rn.f32".to_owned(),
            Binary::SubF32 => "sub.rn.f32".to_owned(),
            Binary::MulF32 => "mul.rn.f32".to_owned(),
            Binary::DivF32 => "div.rn.f32".to_owned(),
            Binary::MinF32 => "min.f32".to_owned(),
            Binary::MaxF32 => "max.f32".to_owned(),
            Binary::AddPacked(half) => format!("add.rn.{}", pair(half)),
            Binary::SubPacked(half) => format!("sub.rn.{}", pair(half)),
            Binary::MulPacked(half) => format!("mul.rn.{}", pair(half)),
            Binary::MaxPacked(half) => format!("max.{}", pair(half)),
            // The instruction names the upper half first.
            Binary::Pack(half) => {
                return self.line(&format!("cvt.rn.{}.f32 {dst}, {second}, {first};", pair(half)));
            }
            Binary::PackE4m3 => {
                return self.line(&format!(
                    "{{ .reg .b16 two; cvt.rn.satfinite.e4m3x2.f32 two, {second}, {first}; \
                     cvt.u32.u16 {dst}, two; }}"
                ));
            }
        };
        self.line(&format!("{name} {dst}, {first}, {second};"));
    }

    pub(super) fn select(&mut self, dst: Reg, condition: Operand, a: Operand, b: Operand) {
        match condition {
            Operand::Pred(true) => return self.copy(dst, a),
            Operand::Pred(false) => return self.copy(dst, b),
            _ => {}
        }
        let (name, condition) = (self.reg(dst), self.value(condition));
        if self.type_of(dst.into()) == Type::Pred {
            self.line("{ .reg .pred yes, no, left, right;");
            let (a, b) = (self.predicate(a, "left"), self.predicate(b, "right"));
            self.line(&format!("and.pred yes, {condition}, {a};"));
            self.line(&format!("not.pred no, {condition};"));
            self.line(&format!("and.pred no, no, {b};"));
            return self.line(&format!("or.pred {name}, yes, no; }}"));
        }
        let ty = if self.type_of(dst.into()) == Type::F32 { "f32" } else { "b32" };
        let values = self.values(&[a, b]);
        self.line(&format!("selp.{ty} {name}, {values}, {condition};"));
    }
}

const fn pair(half: Half) -> &'static str {
    match half {
        Half::F16 => "f16x2",
        Half::Bf16 => "bf16x2",
    }
}

/// The half of the first word that a byte permutation duplicates, if it duplicates one.
fn one_half(select: Operand) -> Option<&'static str> {
    match select {
        Operand::U32(0x1010) => Some("low"),
        Operand::U32(0x3232) => Some("high"),
        _ => None,
    }
}
