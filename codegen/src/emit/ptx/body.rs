//! Control flow, and which function writes which operation.

use super::Writer;
use super::memory::scope;
use crate::emit::walk::Dialect;
use crate::ir::{Body, Mask, Op, Operand, Reg, Role};

impl Dialect for Writer<'_> {
    const SIGIL: &'static str = "$";

    fn operation(&mut self, op: &Op) {
        match op {
            Op::Comment(line) => self.line(&format!("// {line}")),
            Op::SchedulingBarrier => {}
            Op::Copy { dst, a } | Op::Uniform { dst, a } => self.copy(*dst, *a),
            Op::Special { dst, value } => self.special(*dst, *value),
            Op::Parameter { dst, parameter } => {
                let name = &self.kernel.parameters[parameter.0 as usize].name;
                let line = format!("ld.param.u32 {}, [arg_{name}];", self.reg(*dst));
                self.line(&line);
            }
            Op::Unary { dst, op, a } => self.unary(*dst, *op, *a),
            Op::Binary { dst, op, a, b } => self.binary(*dst, *op, *a, *b),
            Op::Ternary { dst, op, a, b, c } => self.ternary(*dst, *op, [*a, *b, *c]),
            Op::Compare { dst, op, a, b } => self.compare(*dst, *op, *a, *b),
            Op::Select { dst, condition, a, b } => self.select(*dst, *condition, *a, *b),
            Op::Load { dst, from, width, mask, cache } => {
                self.load(dst, *from, *width, *mask, *cache);
            }
            Op::ClusterLoad { dst, from, width, block } => {
                self.cluster_load(dst, *from, *width, *block);
            }
            Op::Store { to, values, width, mask } => self.store(*to, values, *width, *mask),
            Op::Prefetch { from, mask } => {
                let at = self.address(*from);
                if let Some(guard) = self.guard(*mask) {
                    self.line(&format!("{guard}prefetch.global.L2 [{at}];"));
                }
            }
            Op::Guess { dst, from, mask } => {
                let at = self.address(*from);
                let mask = mask.map(Mask::or_zero);
                if let Some(guard) = self.fill(&[*dst], mask) {
                    // Past the first level of cache, which would keep the word for reads after the wait.
                    let dst = self.reg(*dst);
                    self.line(&format!("{guard}ld.relaxed.gpu.global.b32 {dst}, [{at}];"));
                }
            }
            Op::Atomic { dst, op, at, value, order, scope } => {
                self.atomic(*dst, *op, *at, *value, (*order, *scope));
            }
            Op::AtomicLoad { dst, from, order, scope } => {
                self.atomic_load(*dst, *from, (*order, *scope));
            }
            Op::Fence { scope: who } => self.line(&format!("fence.acq_rel.{};", scope(*who))),
            Op::Barrier => self.line("bar.sync 0;"),
            Op::WarpSync => self.line("bar.warp.sync 0xffffffff;"),
            Op::NamedBarrier { id, threads, wait } => {
                let what = if *wait { "sync" } else { "arrive" };
                self.line(&format!("bar.{what} {id}, {threads};"));
            }
            Op::ClusterBarrier => {
                self.line("barrier.cluster.arrive.aligned;");
                self.line("barrier.cluster.wait.aligned;");
            }
            Op::Shuffle { dst, op, a, by } => self.shuffle(*dst, *op, *a, *by),
            Op::Vote { dst, op, a } => self.vote(*dst, *op, *a),
            Op::Ballot { dst, a } => {
                let (dst, a) = (self.regs(dst), self.value(*a));
                self.line(&format!("vote.sync.ballot.b32 {dst}, {a}, 0xffffffff;"));
            }
            Op::CopyAsync { to, from, width, mask } => self.copy_async(*to, *from, *width, *mask),
            Op::CopyCommit => self.line("cp.async.commit_group;"),
            Op::CopyWait { pending: 0 } => self.line("cp.async.wait_all;"),
            Op::CopyWait { pending } => self.line(&format!("cp.async.wait_group {pending};")),
            Op::CopyArrive { barrier } => {
                let at = self.mbarrier(*barrier);
                self.line(&format!("cp.async.mbarrier.arrive.noinc.shared.b64 [{at}];"));
            }
            Op::MbarrierInit { barrier, arrivals } => {
                let at = self.mbarrier(*barrier);
                self.line(&format!("mbarrier.init.shared.b64 [{at}], {arrivals};"));
            }
            Op::MbarrierFence => self.line("fence.mbarrier_init.release.cluster;"),
            Op::MbarrierArrive { barrier, expect } => self.mbarrier_arrive(*barrier, *expect),
            Op::ClusterArrive { barrier, block } => self.cluster_arrive(*barrier, *block),
            Op::MbarrierWait { barrier, parity } => self.mbarrier_wait(*barrier, *parity),
            Op::FenceAsync => self.line("fence.proxy.async.shared::cta;"),
            Op::BulkLoad { to, from, bytes, barrier } => {
                let (to, from) = (self.address(*to), self.address(*from));
                let (bytes, barrier) = (self.value(*bytes), self.mbarrier(*barrier));
                self.line(&format!(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], \
                     [{from}], {bytes}, [{barrier}];"
                ));
            }
            Op::BulkStore { to, from, bytes } => {
                let (to, from) = (self.address(*to), self.address(*from));
                let bytes = self.value(*bytes);
                self.line(&format!(
                    "cp.async.bulk.global.shared::cta.bulk_group [{to}], [{from}], {bytes};"
                ));
            }
            Op::TensorLoad { to, map, at, barrier, multicast } => {
                self.tensor_load(*to, (*map, at), *barrier, *multicast);
            }
            Op::TensorStore { map, at, from } => {
                let (to, from, rank) = (self.tensor(*map, at), self.address(*from), at.len());
                self.line(&format!(
                    "cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group {to}, [{from}];"
                ));
            }
            Op::BulkCommit => self.line("cp.async.bulk.commit_group;"),
            Op::BulkWait { pending, reads_only } => {
                let what = if *reads_only { ".read" } else { "" };
                self.line(&format!("cp.async.bulk.wait_group{what} {pending};"));
            }
            Op::MatrixLoad { dst, from, transpose } => {
                let (at, count, regs) = (self.address(*from), dst.len(), self.regs(dst));
                let way = if *transpose { ".trans" } else { "" };
                self.line(&format!(
                    "ldmatrix.sync.aligned.m8n8.x{count}{way}.shared.b16 {{{regs}}}, [{at}];"
                ));
            }
            Op::MatrixStore { to, values, transpose } => {
                let (at, count, regs) = (self.address(*to), values.len(), self.values(values));
                let way = if *transpose { ".trans" } else { "" };
                self.line(&format!(
                    "stmatrix.sync.aligned.m8n8.x{count}{way}.shared.b16 [{at}], {{{regs}}};"
                ));
            }
            Op::MatrixTranspose { dst, a } => {
                let (dst, a) = (self.reg(*dst), self.value(*a));
                self.line(&format!("movmatrix.sync.aligned.m8n8.trans.b16 {dst}, {a};"));
            }
            Op::Matrix { op, d, a, b, c, scales } => self.matrix(op, d, a, b, (c, *scales)),
            Op::MatrixFence => self.line("wgmma.fence.sync.aligned;"),
            Op::MatrixCommit => self.line("wgmma.commit_group.sync.aligned;"),
            Op::MatrixWait { pending } => {
                self.line(&format!("wgmma.wait_group.sync.aligned {pending};"));
            }
            Op::Tmem(op) => self.tmem(op),
            Op::GridWait => self.line("griddepcontrol.wait;"),
            Op::GridLaunch => self.line("griddepcontrol.launch_dependents;"),
        }
        for reg in op.writes() {
            self.invalidate(reg);
        }
    }

    fn branch(&mut self, condition: Operand, then: &Body, otherwise: &Body) {
        let (name, n, uni) = (self.value(condition), self.label(), self.uni(condition));
        let outer = self.state.known.clone();
        let first = if otherwise.is_empty() { "END" } else { "ELSE" };
        self.line(&format!("@!{name} bra{uni} {first}{n};"));
        self.inside(then);
        if !otherwise.is_empty() {
            self.line(&format!("bra{uni} END{n};"));
            self.text.push_str(&format!("ELSE{n}:\n"));
            self.state.known = outer.clone();
            self.inside(otherwise);
        }
        self.text.push_str(&format!("END{n}:\n"));
        self.state.known = outer;
        self.invalidate_all(then);
        self.invalidate_all(otherwise);
    }

    fn for_loop(&mut self, counter: Reg, [start, end, step]: [Operand; 3], body: &Body) {
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
        let end_text = bound(self, "end", end);
        let step_text = bound(self, "step", step);
        let (name, start_text) = (self.reg(counter), self.value(start));
        let uni = self.uni(counter.into());
        self.line(&format!(".reg .pred %go{n};"));
        self.line(&format!("mov.b32 {name}, {start_text};"));
        self.invalidate(counter);
        self.invalidate_all(body);
        let runs = matches!((start, end), (Operand::U32(a), Operand::U32(b)) if a < b);
        if !runs {
            self.line(&format!("setp.lt.u32 %go{n}, {name}, {end_text};"));
            self.line(&format!("@!%go{n} bra{uni} END{n};"));
        }
        let outer = self.state.known.clone();
        // The schedule decides about unrolling, not the compiler.
        self.text.push_str(&format!("LOOP{n}:\n"));
        self.line(".pragma \"nounroll\";");
        self.inside(body);
        self.line(&format!("add.u32 {name}, {name}, {step_text};"));
        self.line(&format!("setp.lt.u32 %go{n}, {name}, {end_text};"));
        self.line(&format!("@%go{n} bra{uni} LOOP{n};"));
        self.text.push_str(&format!("END{n}:\n"));
        self.state.known = outer;
        self.invalidate(counter);
    }

    fn while_loop(&mut self, test: &Body, condition: Reg, body: &Body) {
        let n = self.label();
        self.invalidate_all(test);
        self.invalidate_all(body);
        let outer = self.state.known.clone();
        let (name, uni) = (self.reg(condition), self.uni(condition.into()));
        self.text.push_str(&format!("LOOP{n}:\n"));
        self.inside(test);
        self.line(&format!("@!{name} bra{uni} END{n};"));
        self.inside(body);
        self.line(&format!("bra{uni} LOOP{n};"));
        self.text.push_str(&format!("END{n}:\n"));
        self.state.known = outer;
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
            let outer = self.state.known.clone();
            self.inside(&role.body);
            self.state.known = outer;
            if at + 1 < roles.len() {
                self.line(&format!("bra.uni END{n};"));
                self.text.push_str(&format!("ROLE{n}_{}:\n", at + 1));
            }
        }
        self.text.push_str(&format!("END{n}:\n"));
    }
}

impl Writer<'_> {
    /// `.uni` if all lanes of a warp branch the same way.
    fn uni(&self, condition: Operand) -> &'static str {
        if self.is_uniform(condition) { ".uni" } else { "" }
    }
}
