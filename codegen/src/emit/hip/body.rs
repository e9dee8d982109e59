//! Control flow.

use super::prelude::Helper;
use super::{Writer, comment};
use crate::ir::{Body, Op, Operand, Role, Statement, Uniformity};

impl Writer<'_> {
    pub(super) fn body(&mut self, body: &Body) {
        for statement in body {
            match statement {
                Statement::Op(op) => self.operation(op),
                Statement::If { condition, then, otherwise } => {
                    self.branch(*condition, then, otherwise);
                }
                Statement::For { counter, start, end, step, body } => {
                    let counter = self.reg(*counter);
                    let start = self.value(*start);
                    let n = self.label();
                    let end = self.bound("end", n, *end);
                    let step = self.bound("step", n, *step);
                    // The schedule decides about unrolling, not the compiler.
                    self.line("#pragma clang loop unroll(disable)");
                    self.line(&format!(
                        "for ({counter} = {start}; {counter} < {end}; {counter} += {step}) {{"
                    ));
                    self.inside(body);
                    self.line("}");
                }
                Statement::While { test, condition, body } => {
                    self.line("#pragma clang loop unroll(disable)");
                    self.line("while (true) {");
                    self.inside(test);
                    let line = format!("    if (!{}) break;", self.reg(*condition));
                    self.line(&line);
                    self.inside(body);
                    self.line("}");
                }
                Statement::Roles(roles) => self.roles(roles),
            }
        }
    }

    fn inside(&mut self, body: &Body) {
        self.depth += 1;
        self.body(body);
        self.depth -= 1;
    }

    /// A loop's bound, read once.
    fn bound(&mut self, name: &str, n: u32, operand: Operand) -> String {
        let value = self.value(operand);
        if operand.reg().is_none() {
            return value;
        }
        self.line(&format!("const unsigned {name}{n} = {value};"));
        format!("{name}{n}")
    }

    /// Whether all lanes of a warp hold the same value.
    pub(super) fn is_uniform(&self, operand: Operand) -> bool {
        operand.reg().is_none_or(|reg| {
            self.kernel.registers[reg.id.0 as usize].uniformity >= Uniformity::Warp
        })
    }

    fn branch(&mut self, condition: Operand, then: &Body, otherwise: &Body) {
        let name = match condition {
            Operand::Pred(true) => return self.body(then),
            Operand::Pred(false) => return self.body(otherwise),
            condition => self.value(condition),
        };
        self.line(&format!("if ({name}) {{"));
        self.inside(then);
        if !otherwise.is_empty() {
            self.line("} else {");
            self.inside(otherwise);
        }
        self.line("}");
    }

    fn roles(&mut self, roles: &[Role]) {
        let warp = self.helper(Helper::Warp);
        self.line(&format!("const unsigned role = {warp}();"));
        for (at, role) in roles.iter().enumerate() {
            let (name, warps) = (&role.name, &role.warps);
            let head = match at {
                0 => format!("if (role < {}u) {{", warps.end),
                _ if at + 1 == roles.len() => "} else {".to_owned(),
                _ => format!("}} else if (role < {}u) {{", warps.end),
            };
            self.line(&head);
            for line in comment(&format!("{name}: warps {} to {}", warps.start, warps.end - 1)) {
                self.line(&format!("    {line}"));
            }
            self.inside(&role.body);
        }
        self.line("}");
    }

    /// Operations of the last arm are not available on these chips; the verifier has refused them.
    fn operation(&mut self, op: &Op) {
        match op {
            Op::Comment(text) => comment(text).for_each(|line| self.line(&line)),
            Op::Copy { .. }
            | Op::Uniform { .. }
            | Op::Special { .. }
            | Op::Parameter { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Ternary { .. }
            | Op::Compare { .. }
            | Op::Select { .. } => self.arithmetic(op),
            Op::Load { .. }
            | Op::Store { .. }
            | Op::Prefetch { .. }
            | Op::Atomic { .. }
            | Op::AtomicLoad { .. } => self.memory(op),
            Op::Matrix { .. } => self.matrix(op),
            Op::Fence { .. }
            | Op::Barrier
            | Op::WarpSync
            | Op::Shuffle { .. }
            | Op::Vote { .. }
            | Op::Ballot { .. } => self.sync(op),
            Op::NamedBarrier { .. }
            | Op::ClusterBarrier
            | Op::CopyAsync { .. }
            | Op::CopyCommit
            | Op::CopyWait { .. }
            | Op::CopyArrive { .. }
            | Op::MbarrierInit { .. }
            | Op::MbarrierFence
            | Op::MbarrierArrive { .. }
            | Op::MbarrierWait { .. }
            | Op::FenceAsync
            | Op::BulkLoad { .. }
            | Op::BulkStore { .. }
            | Op::TensorLoad { .. }
            | Op::TensorStore { .. }
            | Op::BulkCommit
            | Op::BulkWait { .. }
            | Op::MatrixLoad { .. }
            | Op::MatrixStore { .. }
            | Op::MatrixTranspose { .. }
            | Op::MatrixFence
            | Op::MatrixCommit
            | Op::MatrixWait { .. }
            | Op::GridWait
            | Op::GridLaunch => {
                self.unsupported(op.needs());
            }
        }
    }
}
