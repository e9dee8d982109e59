//! Matrix operations: a builtin of clang by a row of the table.

use super::Writer;
use super::prelude::Vector;
use crate::ir::{Addend, Element, MatrixOp, MatrixOperand, Op, Operand, Reg};

impl Writer<'_> {
    pub(super) fn matrix(&mut self, op: &Op) {
        let Op::Matrix { op, d, a, b, c } = op else { return };
        let (left, right) = (self.operand(op.a, a), self.operand(op.b, b));
        let sum = self.vector(result(op, d.len()));
        let addend = match c {
            Addend::Zero => format!("({sum}){{}}"),
            Addend::Registers(regs) => {
                let values: Vec<String> = regs.iter().map(|reg| self.addend(op, *reg)).collect();
                format!("({sum}){{{}}}", values.join(", "))
            }
        };
        let builtin = op.mnemonic;
        self.line("{");
        self.depth += 1;
        self.line(&format!("const {sum} sum = {builtin}("));
        self.line(&format!("    {left}, {right},"));
        self.line(&format!("    {addend}, 0, 0, 0);"));
        for (at, reg) in d.iter().enumerate() {
            let cast = if op.d == Element::F32 { "" } else { "(unsigned)" };
            self.set(*reg, &format!("{cast}sum[{at}]"));
        }
        self.depth -= 1;
        self.line("}");
    }

    fn addend(&mut self, op: &MatrixOp, reg: Reg) -> String {
        let value = self.value(Operand::Reg(reg));
        if op.d == Element::F32 { value } else { format!("(int){value}") }
    }

    /// Registers as what the builtin takes.
    fn operand(&mut self, element: Element, operand: &MatrixOperand) -> String {
        let MatrixOperand::Registers(regs) = operand else { return String::new() };
        let words = self.vector(Vector { of: "unsigned", short: "u32", len: regs.len() as u32 });
        let values: Vec<String> = regs.iter().map(|reg| self.reg(*reg)).collect();
        let ty = self.operand_type(element, regs.len() as u32);
        format!("__builtin_bit_cast({ty}, ({words}){{{}}})", values.join(", "))
    }

    /// Bytes come in a `long` where two registers hold them, else in integers; the first bf16
    /// instructions, of two registers, take them as short integers.
    fn operand_type(&mut self, element: Element, registers: u32) -> String {
        let (of, short, per_register) = match element {
            Element::F16 => ("_Float16", "f16", 2),
            Element::Bf16 if registers == 2 => ("short", "s16", 2),
            Element::Bf16 => ("__bf16", "bf16", 2),
            _ if registers == 2 => return "long".to_owned(),
            _ => ("int", "s32", 1),
        };
        self.vector(Vector { of, short, len: registers * per_register })
    }
}

/// The vector of an instruction's sums.
fn result(op: &MatrixOp, len: usize) -> Vector {
    let (of, short) = if op.d == Element::F32 { ("float", "f32") } else { ("int", "s32") };
    Vector { of, short, len: len as u32 }
}
