//! Control flow and barriers.

use super::Writer;
use crate::ir::{Access, Body, Op, Operand, Role, Statement};

impl Writer<'_> {
    pub(super) fn body(&mut self, body: &Body) {
        for statement in body {
            match statement {
                Statement::Op(op) => self.operation(op),
                Statement::If { condition: Operand::Pred(true), then, .. } => self.body(then),
                Statement::If { condition: Operand::Pred(false), otherwise, .. } => {
                    self.body(otherwise);
                }
                Statement::If { condition, then, otherwise } => {
                    let condition = self.value(*condition);
                    self.braced(&format!("if ({condition}) "), |this| this.body(then));
                    if !otherwise.is_empty() {
                        self.braced("else ", |this| this.body(otherwise));
                    }
                }
                Statement::For { counter, start, end, step, body } => {
                    self.loops += 1;
                    let n = self.loops;
                    let counter = self.reg(*counter);
                    let [start, end, step] = [*start, *end, *step].map(|bound| self.value(bound));
                    // Bounds are read once.
                    self.line(&format!("let end_{n} = {end};"));
                    self.line(&format!("let step_{n} = {step};"));
                    let head = format!(
                        "for ({counter} = {start}; {counter} < end_{n}; {counter} += step_{n}) "
                    );
                    self.braced(&head, |this| this.body(body));
                }
                Statement::While { test, condition, body } => {
                    let condition = self.reg(*condition);
                    self.braced("loop ", |this| {
                        this.body(test);
                        this.line(&format!("if (!{condition}) {{ break; }}"));
                        this.body(body);
                    });
                }
                Statement::Roles(roles) => self.roles(roles),
            }
        }
    }

    fn roles(&mut self, roles: &[Role]) {
        let warp = self.kernel.target.gpu.map_or(1, |gpu| gpu.warp);
        for (at, Role { name, warps, body, .. }) in roles.iter().enumerate() {
            self.line(&format!("// {name}: threads {} on", warps.start * warp));
            let other = if at == 0 { "" } else { "else " };
            let head = match at + 1 == roles.len() {
                true => other.to_owned(),
                false => format!("{other}if (thread < {}u) ", warps.end * warp),
            };
            self.braced(&head, |this| this.body(body));
        }
    }

    fn operation(&mut self, op: &Op) {
        match op {
            Op::Comment(line) => self.line(&format!("// {line}")),
            Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } | Op::AtomicLoad { .. } => {
                self.memory(op);
            }
            Op::Barrier => {
                self.line("workgroupBarrier();");
                let workspace = |buffer: &crate::ir::Buffer| buffer.access == Access::Workspace;
                if self.kernel.buffers.iter().any(workspace) {
                    self.line("storageBarrier();");
                }
            }
            // All others are value operations, hints, or operations that the verifier has refused.
            op => self.arithmetic(op),
        }
    }
}
