//! Matrix operations, by clang's builtins.

use super::Writer;
use super::prelude::{Helper, Vector};
use crate::ir::{Accumulator, Element, MatrixOp, MatrixOperand, MatrixScale, Operand, Reg};
use crate::target::Feature;

impl Writer<'_> {
    pub(super) fn matrix(
        &mut self,
        op: &MatrixOp,
        d: &[Reg],
        (a, b, c): (&MatrixOperand, &MatrixOperand, &Accumulator),
        scales: Option<[MatrixScale; 2]>,
    ) {
        let (left, right) = match op.scaling {
            Some(_) => (self.widest(a), self.widest(b)),
            None => (self.operand(op, op.a, a), self.operand(op, op.b, b)),
        };
        let sum = self.vector(result(op, d.len()));
        let addend = match c {
            Accumulator::Zero => format!("({sum}){{}}"),
            Accumulator::Registers(regs) => {
                let values: Vec<String> =
                    regs.iter().map(|reg| self.accumulator(op, *reg)).collect();
                format!("({sum}){{{}}}", values.join(", "))
            }
        };
        let (signs, controls) = match (scales, is_wmma(op)) {
            (Some(both), _) => {
                let [a, b] = both.map(|MatrixScale { from, byte }| {
                    format!("{byte}, (int){}", self.value(Operand::Reg(from)))
                });
                ("", format!(", {}, {}, {a}, {b}", format_code(op.a), format_code(op.b)))
            }
            // Whether integers are signed, before each operand; whether sums saturate.
            (None, true) if op.d == Element::S32 => ("true, ", ", false".to_owned()),
            (None, true) => ("", String::new()),
            // Broadcasts and permutations of lanes: none.
            (None, false) => ("", ", 0, 0, 0".to_owned()),
        };
        // clang's backend takes WMMA and MFMA with scales for operations of each lane by itself.
        let (kept, end) = match is_wmma(op) || scales.is_some() {
            true => (format!("{}(", self.helper(Helper::InAllLanes)), ")"),
            false => (String::new(), ""),
        };
        self.braced("", |this| {
            this.line(&format!("const {sum} sum = {kept}{}(", op.mnemonic));
            this.line(&format!("    {signs}{left}, {signs}{right},"));
            this.line(&format!("    {addend}{controls}){end};"));
            for (at, reg) in d.iter().enumerate() {
                let cast = if op.d == Element::F32 { "" } else { "(unsigned)" };
                this.set(*reg, &format!("{cast}sum[{at}]"));
            }
        });
    }

    fn accumulator(&mut self, op: &MatrixOp, reg: Reg) -> String {
        let value = self.value(Operand::Reg(reg));
        if op.d == Element::F32 { value } else { format!("(int){value}") }
    }

    /// Registers as the operand type of the builtin.
    fn operand(&mut self, op: &MatrixOp, element: Element, operand: &MatrixOperand) -> String {
        let MatrixOperand::Registers(regs) = operand else { return String::new() };
        let words = self.vector(Vector { of: "unsigned", short: "u32", len: regs.len() as u32 });
        let values: Vec<String> = regs.iter().map(|reg| self.reg(*reg)).collect();
        let ty = self.operand_type(op, element, regs.len() as u32);
        format!("__builtin_bit_cast({ty}, ({words}){{{}}})", values.join(", "))
    }

    /// Registers as eight words, the operand type of scaling instructions, which ignore words that
    /// the element type does not need.
    fn widest(&mut self, operand: &MatrixOperand) -> String {
        const WORDS: usize = 8;
        let MatrixOperand::Registers(regs) = operand else { return String::new() };
        let ty = self.vector(Vector { of: "int", short: "s32", len: WORDS as u32 });
        let values = regs.iter().map(|reg| format!("(int){}", self.reg(*reg)));
        let others = std::iter::repeat_n("0".to_owned(), WORDS.saturating_sub(regs.len()));
        let values: Vec<String> = values.chain(others).collect();
        format!("({ty}){{{}}}", values.join(", "))
    }

    /// The operand type: of MFMA, two registers of bytes are a `long`, four an integer vector; WMMA and the
    /// older bf16 instructions, of two registers, take bf16 as short integers.
    fn operand_type(&mut self, op: &MatrixOp, element: Element, registers: u32) -> String {
        let (of, short, per_register) = match element {
            Element::F16 => ("_Float16", "f16", 2),
            Element::Bf16 if registers == 2 || is_wmma(op) => ("short", "s16", 2),
            Element::Bf16 => ("__bf16", "bf16", 2),
            _ if registers == 2 && !is_wmma(op) => return "long".to_owned(),
            _ => ("int", "s32", 1),
        };
        self.vector(Vector { of, short, len: registers * per_register })
    }
}

/// Whether the builtin has the operands of WMMA, not those of MFMA.
const fn is_wmma(op: &MatrixOp) -> bool {
    matches!(op.needs, Feature::WmmaCopied | Feature::Wmma)
}

/// The number of an element's format in a scaling instruction (AMD CDNA4 ISA, `CBSZ` and `BLGP` of
/// V_MFMA_SCALE_F32_16X16X128_F8F6F4).
const fn format_code(element: Element) -> u32 {
    match element {
        Element::E5m2 => 1,
        Element::E2m3 => 2,
        Element::E3m2 => 3,
        Element::E2m1 => 4,
        Element::E4m3 => 0,
        // No operands of a scaling instruction.
        Element::F16
        | Element::Bf16
        | Element::E4m3Fnuz
        | Element::PaddedE2m1
        | Element::PaddedE2m3
        | Element::PaddedE3m2
        | Element::S8
        | Element::S4
        | Element::F32
        | Element::S32 => 0,
    }
}

/// The vector type of an instruction's result.
fn result(op: &MatrixOp, len: usize) -> Vector {
    let (of, short) = if op.d == Element::F32 { ("float", "f32") } else { ("int", "s32") };
    Vector { of, short, len: len as u32 }
}
