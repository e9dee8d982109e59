//! What the emitters of GPU source share: the walk over a kernel's statements, lines and their
//! indentation, labels, names of registers and their declarations.

use std::fmt::{self, Write};

use crate::ir::{Body, Kernel, Op, Operand, Reg, Register, Role, Statement, Type, Uniformity};

/// Writes the statements of one kernel. `state` is what a language keeps besides.
pub(super) struct Writer<'k, S> {
    pub(super) kernel: &'k Kernel,
    pub(super) state: S,
    pub(super) text: String,
    depth: usize,
    labels: u32,
}

/// How a language writes statements. A branch on a constant never reaches it.
pub(super) trait Dialect {
    /// The start of a register's name.
    const SIGIL: &'static str;

    /// An operation.
    fn operation(&mut self, op: &Op);
    /// [`Statement::If`].
    fn branch(&mut self, condition: Operand, then: &Body, otherwise: &Body);
    /// [`Statement::For`], with its start, end and step.
    fn for_loop(&mut self, counter: Reg, bounds: [Operand; 3], body: &Body);
    /// [`Statement::While`].
    fn while_loop(&mut self, test: &Body, condition: Reg, body: &Body);
    /// [`Statement::Roles`].
    fn roles(&mut self, roles: &[Role]);
}

impl<'k, S> Writer<'k, S> {
    pub(super) fn new(kernel: &'k Kernel, state: S) -> Self {
        Self { kernel, state, text: String::new(), depth: 1, labels: 0 }
    }

    pub(super) fn line(&mut self, line: &str) {
        let pad = "    ".repeat(self.depth);
        // Writing into a string cannot fail.
        let _ = writeln!(self.text, "{pad}{line}");
    }

    /// Lines one step further in.
    pub(super) fn indented(&mut self, inside: impl FnOnce(&mut Self)) {
        self.depth += 1;
        inside(self);
        self.depth -= 1;
    }

    /// Lines between braces, after `head`.
    pub(super) fn braced(&mut self, head: &str, inside: impl FnOnce(&mut Self)) {
        self.line(&format!("{head}{{"));
        self.indented(inside);
        self.line("}");
    }

    /// A number that no other label or variable of the kernel has.
    pub(super) fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    pub(super) fn type_of(&self, operand: Operand) -> Type {
        match operand {
            Operand::Reg(reg) => self.kernel.registers[reg.id.0 as usize].ty,
            Operand::U32(_) => Type::U32,
            Operand::F32(_) => Type::F32,
            Operand::Pred(_) => Type::Pred,
        }
    }

    /// Whether all lanes of a warp hold the same value.
    pub(super) fn is_uniform(&self, operand: Operand) -> bool {
        operand.reg().is_none_or(|reg| {
            self.kernel.registers[reg.id.0 as usize].uniformity >= Uniformity::Warp
        })
    }
}

impl<S> Writer<'_, S>
where
    Self: Dialect,
{
    pub(super) fn body(&mut self, body: &Body) {
        for statement in body {
            match statement {
                Statement::Op(op) => self.operation(op),
                Statement::If { condition: Operand::Pred(true), then, .. } => self.body(then),
                Statement::If { condition: Operand::Pred(false), otherwise, .. } => {
                    self.body(otherwise);
                }
                Statement::If { condition, then, otherwise } => {
                    self.branch(*condition, then, otherwise);
                }
                Statement::For { counter, start, end, step, body } => {
                    self.for_loop(*counter, [*start, *end, *step], body);
                }
                Statement::While { test, condition, body } => {
                    self.while_loop(test, *condition, body)
                }
                Statement::Roles(roles) => self.roles(roles),
            }
        }
    }

    /// A body one step further in.
    pub(super) fn inside(&mut self, body: &Body) {
        self.indented(|this| this.body(body));
    }

    pub(super) fn reg(&self, reg: Reg) -> String {
        let register = &self.kernel.registers[reg.id.0 as usize];
        format!("{}{}", Self::SIGIL, element(register, reg.at))
    }

    /// The assignment of a value that other lines may have to compute first.
    pub(super) fn assign(&mut self, dst: Reg, value: impl FnOnce(&mut Self) -> String) {
        let value = value(self);
        self.set(dst, &value);
    }

    /// An assignment.
    pub(super) fn set(&mut self, dst: Reg, value: &str) {
        let line = format!("{} = {value};", self.reg(dst));
        self.line(&line);
    }
}

/// `name`, or `name_3` for element 3 of an array.
pub(super) fn element(register: &Register, at: u32) -> String {
    match register.len {
        1 => register.name.clone(),
        _ => format!("{}_{at}", register.name),
    }
}

/// `{head}{item}, {item};` in lines of a limited width.
pub(super) fn write_list(
    out: &mut String,
    head: &str,
    items: impl Iterator<Item = String>,
) -> fmt::Result {
    let mut line = String::new();
    for item in items {
        if line.len() + item.len() > 84 {
            writeln!(out, "{head}{line};")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push_str(", ");
        }
        line.push_str(&item);
    }
    if line.is_empty() { Ok(()) } else { writeln!(out, "{head}{line};") }
}

/// The coordinate of a grid's axis, which the verifier keeps within 0 to 2.
pub(super) fn axis(axis: u8) -> &'static str {
    match axis {
        0 => "x",
        1 => "y",
        _ => "z",
    }
}

/// An unsigned literal of C++ and WGSL.
pub(super) fn unsigned(value: u32) -> String {
    format!("{}u", integer(value))
}

/// An integer, hexadecimal where it has more than 16 bits.
pub(super) fn integer(value: u32) -> String {
    if value > 0xffff { format!("{value:#010x}") } else { value.to_string() }
}
