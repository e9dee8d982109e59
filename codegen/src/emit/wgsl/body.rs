//! Control flow, and which function writes which operation.

use super::Writer;
use crate::emit::walk::Dialect;
use crate::ir::{Access, Body, Op, Operand, Reg, Role};

impl Dialect for Writer<'_> {
    const SIGIL: &'static str = "_";

    fn operation(&mut self, op: &Op) {
        match op {
            Op::Comment(line) => self.line(&format!("// {line}")),
            Op::SchedulingBarrier => {}
            Op::Copy { dst, a } | Op::Uniform { dst, a } => {
                self.assign(*dst, |this| this.value(*a));
            }
            Op::Special { dst, value } => self.assign(*dst, |this| this.special(*value)),
            Op::Parameter { dst, parameter } => {
                let name = &self.kernel.parameters[parameter.0 as usize].name;
                self.set(*dst, &format!("parameters.{name}"));
            }
            Op::Unary { dst, op, a } => self.assign(*dst, |this| this.unary(*op, *a)),
            Op::Binary { dst, op, a, b } => self.assign(*dst, |this| this.binary(*op, [*a, *b])),
            Op::Ternary { dst, op, a, b, c } => {
                self.assign(*dst, |this| this.ternary(*op, [*a, *b, *c]));
            }
            Op::Compare { dst, op, a, b } => {
                self.assign(*dst, |this| this.compare(*op, [*a, *b]));
            }
            Op::Select { dst, condition, a, b } => {
                let [condition, a, b] = [*condition, *a, *b].map(|value| self.value(value));
                self.set(*dst, &format!("select({b}, {a}, {condition})"));
            }
            Op::Load { dst, from, width, mask, .. } => {
                self.masked_load(dst, *from, *width, *mask);
            }
            Op::Store { to, values, width, mask } => {
                self.masked_store(*to, values, *width, *mask);
            }
            // WGSL has no prefetch: the operation is a hint.
            Op::Prefetch { .. } => {}
            Op::Atomic { dst, op, at, value, .. } => self.atomic(*dst, *op, *at, *value),
            Op::AtomicLoad { dst, from, .. } => self.atomic_load(*dst, *from),
            Op::Barrier => {
                self.line("workgroupBarrier();");
                let workspace = |buffer: &crate::ir::Buffer| buffer.access == Access::Workspace;
                if self.kernel.buffers.iter().any(workspace) {
                    self.line("storageBarrier();");
                }
            }
            // The verifier refuses all other shuffles.
            Op::Shuffle { dst, op: _, a, by } => {
                let [a, by] = [*a, *by].map(|value| self.value(value));
                self.set(*dst, &format!("subgroupShuffleXor({a}, {by})"));
            }
            // The verifier has refused them.
            Op::Fence { .. }
            | Op::WarpSync
            | Op::NamedBarrier { .. }
            | Op::ClusterBarrier
            | Op::ClusterLoad { .. }
            | Op::Vote { .. }
            | Op::Ballot { .. }
            | Op::CopyAsync { .. }
            | Op::CopyCommit
            | Op::CopyWait { .. }
            | Op::CopyArrive { .. }
            | Op::MbarrierInit { .. }
            | Op::MbarrierFence
            | Op::MbarrierArrive { .. }
            | Op::ClusterArrive { .. }
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
            | Op::Matrix { .. }
            | Op::MatrixFence
            | Op::MatrixCommit
            | Op::MatrixWait { .. }
            | Op::Tmem(_)
            | Op::Guess { .. }
            | Op::GridWait
            | Op::GridLaunch => {}
        }
    }

    fn branch(&mut self, condition: Operand, then: &Body, otherwise: &Body) {
        let condition = self.value(condition);
        self.braced(&format!("if ({condition}) "), |this| this.body(then));
        if !otherwise.is_empty() {
            self.braced("else ", |this| this.body(otherwise));
        }
    }

    fn for_loop(&mut self, counter: Reg, bounds: [Operand; 3], body: &Body) {
        let (n, counter) = (self.label(), self.reg(counter));
        let [start, end, step] = bounds.map(|bound| self.value(bound));
        // Bounds are read once.
        self.line(&format!("let end_{n} = {end};"));
        self.line(&format!("let step_{n} = {step};"));
        let head =
            format!("for ({counter} = {start}; {counter} < end_{n}; {counter} += step_{n}) ");
        self.braced(&head, |this| this.body(body));
    }

    fn while_loop(&mut self, test: &Body, condition: Reg, body: &Body) {
        let condition = self.reg(condition);
        self.braced("loop ", |this| {
            this.body(test);
            this.line(&format!("if (!{condition}) {{ break; }}"));
            this.body(body);
        });
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
}
