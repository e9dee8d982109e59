//! Control flow.

use super::Writer;
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
                    // Bounds are read once: they are copied if the body changes them.
                    let changes = |operand: Operand| {
                        let mut changed = false;
                        crate::ir::each_op(body, &mut |op| {
                            changed |= op.writes().into_iter().any(|reg| operand == reg.into());
                        });
                        changed
                    };
                    let n = self.label();
                    let bound = |this: &mut Self, name: &str, operand: Operand| {
                        if !changes(operand) {
                            return this.value(operand);
                        }
                        let (reg, value) = (format!("%{name}{n}"), this.value(operand));
                        this.line(&format!(".reg .b32 {reg};"));
                        this.line(&format!("mov.b32 {reg}, {value};"));
                        reg
                    };
                    let end_text = bound(self, "end", *end);
                    let step_text = bound(self, "step", *step);
                    let (name, start_text) = (self.reg(*counter), self.value(*start));
                    let uni = self.uni(&[(*counter).into()]);
                    self.line(&format!(".reg .pred %go{n};"));
                    self.line(&format!("mov.b32 {name}, {start_text};"));
                    self.invalidate(*counter);
                    self.invalidate_all(body);
                    let runs = matches!((start, end), (Operand::U32(a), Operand::U32(b)) if a < b);
                    if !runs {
                        self.line(&format!("setp.lt.u32 %go{n}, {name}, {end_text};"));
                        self.line(&format!("@!%go{n} bra{uni} END{n};"));
                    }
                    let outer = self.known.clone();
                    // The schedule decides about unrolling, not the compiler.
                    self.text.push_str(&format!("LOOP{n}:\n"));
                    self.line(".pragma \"nounroll\";");
                    self.inside(body);
                    self.line(&format!("add.u32 {name}, {name}, {step_text};"));
                    self.line(&format!("setp.lt.u32 %go{n}, {name}, {end_text};"));
                    self.line(&format!("@%go{n} bra{uni} LOOP{n};"));
                    self.text.push_str(&format!("END{n}:\n"));
                    self.known = outer;
                    self.invalidate(*counter);
                }
                Statement::While { test, condition, body } => {
                    let n = self.label();
                    self.invalidate_all(test);
                    self.invalidate_all(body);
                    let outer = self.known.clone();
                    let (name, uni) = (self.reg(*condition), self.uni(&[(*condition).into()]));
                    self.text.push_str(&format!("LOOP{n}:\n"));
                    self.inside(test);
                    self.line(&format!("@!{name} bra{uni} END{n};"));
                    self.inside(body);
                    self.line(&format!("bra{uni} LOOP{n};"));
                    self.text.push_str(&format!("END{n}:\n"));
                    self.known = outer;
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

    /// `.uni` if all lanes of a warp branch the same way.
    fn uni(&self, conditions: &[Operand]) -> &'static str {
        let uniform = conditions.iter().all(|condition| match condition {
            Operand::Reg(reg) => {
                self.kernel.registers[reg.id.0 as usize].uniformity >= Uniformity::Warp
            }
            _ => true,
        });
        if uniform { ".uni" } else { "" }
    }

    fn branch(&mut self, condition: Operand, then: &Body, otherwise: &Body) {
        let name = match condition {
            Operand::Pred(true) => return self.body(then),
            Operand::Pred(false) => return self.body(otherwise),
            condition => self.value(condition),
        };
        let (n, uni) = (self.label(), self.uni(&[condition]));
        let outer = self.known.clone();
        let first = if otherwise.is_empty() { "END" } else { "ELSE" };
        self.line(&format!("@!{name} bra{uni} {first}{n};"));
        self.inside(then);
        if !otherwise.is_empty() {
            self.line(&format!("bra{uni} END{n};"));
            self.text.push_str(&format!("ELSE{n}:\n"));
            self.known = outer.clone();
            self.inside(otherwise);
        }
        self.text.push_str(&format!("END{n}:\n"));
        self.known = outer;
        self.invalidate_all(then);
        self.invalidate_all(otherwise);
    }

    fn roles(&mut self, roles: &[Role]) {
        let Some(gpu) = self.kernel.target.gpu else { return };
        let n = self.label();
        let shift = gpu.warp.trailing_zeros();
        let threads = (self.kernel.launch.threads * self.kernel.launch.min_blocks).max(1);
        let at_launch = (gpu.registers / threads).min(255) & !7;
        self.line(&format!(".reg .b32 %role;\n    .reg .pred %other{n};"));
        self.line("mov.u32 %role, %tid.x;");
        self.line(&format!("shr.u32 %role, %role, {shift};"));
        self.line("shfl.sync.idx.b32 %role, %role, 0, 31, 0xffffffff;");
        for (at, role) in roles.iter().enumerate() {
            let (name, warps) = (&role.name, &role.warps);
            self.line(&format!("// {name}: warps {} to {}", warps.start, warps.end - 1));
            if at + 1 < roles.len() {
                self.line(&format!("setp.ge.u32 %other{n}, %role, {};", warps.end));
                self.line(&format!("@%other{n} bra.uni ROLE{n}_{};", at + 1));
            }
            if let Some(registers) = role.registers {
                let way = if registers > at_launch { "inc" } else { "dec" };
                self.line(&format!("setmaxnreg.{way}.sync.aligned.u32 {registers};"));
            }
            let outer = self.known.clone();
            self.inside(&role.body);
            self.known = outer;
            if at + 1 < roles.len() {
                self.line(&format!("bra.uni END{n};"));
                self.text.push_str(&format!("ROLE{n}_{}:\n", at + 1));
            }
        }
        self.text.push_str(&format!("END{n}:\n"));
    }

    fn operation(&mut self, op: &Op) {
        match op {
            Op::Comment(line) => self.line(&format!("// {line}")),
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
            | Op::AtomicLoad { .. }
            | Op::CopyAsync { .. }
            | Op::BulkLoad { .. }
            | Op::BulkStore { .. }
            | Op::TensorLoad { .. }
            | Op::TensorStore { .. } => self.memory(op),
            Op::MatrixLoad { .. }
            | Op::MatrixStore { .. }
            | Op::MatrixTranspose { .. }
            | Op::Matrix { .. }
            | Op::MatrixFence
            | Op::MatrixCommit
            | Op::MatrixWait { .. } => self.matrix(op),
            Op::Fence { .. }
            | Op::Barrier
            | Op::WarpSync
            | Op::NamedBarrier { .. }
            | Op::ClusterBarrier
            | Op::Shuffle { .. }
            | Op::Vote { .. }
            | Op::Ballot { .. }
            | Op::CopyCommit
            | Op::CopyWait { .. }
            | Op::CopyArrive { .. }
            | Op::MbarrierInit { .. }
            | Op::MbarrierFence
            | Op::MbarrierArrive { .. }
            | Op::MbarrierWait { .. }
            | Op::FenceAsync
            | Op::BulkCommit
            | Op::BulkWait { .. }
            | Op::GridWait
            | Op::GridLaunch => self.sync(op),
        }
        for reg in op.writes() {
            self.invalidate(reg);
        }
    }
}
