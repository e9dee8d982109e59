//! Dataflow analysis: the uniformity of control, the registers that are written on every path, the
//! registers of matrix operations in flight, and the wait for earlier grids.
//!
//! Loops are analysed twice, the second time from the state at the end of the first iteration, so
//! that effects of one iteration on the next are found.

use std::collections::{BTreeSet, VecDeque};

use super::{Findings, TmemError, VerifyErrorKind};
use crate::ir::operation::{Effect, Operation, OperationPart, ResultUniformity};
use crate::ir::{
    Access, Accumulator, Body, BufferId, MatrixOperand, Op, Operand, Reg, Space, Statement,
    Uniformity,
};

pub(super) fn check(findings: &mut Findings<'_>) {
    let kernel = findings.kernel;
    let mut flow = Flow { findings, at: 0, crossed: false };
    let state = State { waited: !kernel.launch.programmatic, ..State::default() };
    flow.body(&kernel.body, Uniformity::Block, state);
}

/// A group of matrix operations: the registers that they write and read.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    writes: BTreeSet<Reg>,
    reads: BTreeSet<Reg>,
}

impl Group {
    fn join(&mut self, other: Self) {
        self.writes.extend(other.writes);
        self.reads.extend(other.reads);
    }

    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }
}

#[derive(Clone, Debug, Default)]
struct State {
    /// Registers written on every path to this statement.
    written: BTreeSet<Reg>,
    /// Registers written since the last fence by other operations than matrix operations.
    unfenced: BTreeSet<Reg>,
    /// The open group, and the closed ones from newest to oldest.
    open: Group,
    closed: VecDeque<Group>,
    /// Accumulators of warp-group matrix operations so far.
    accumulators: BTreeSet<Reg>,
    /// Registers that loads from tensor memory in flight write.
    loading: BTreeSet<Reg>,
    /// Whether the kernel has waited for earlier grids.
    waited: bool,
}

impl State {
    /// The state where two paths join.
    fn meet(mut self, other: Self) -> Self {
        self.written.retain(|reg| other.written.contains(reg));
        self.unfenced.extend(other.unfenced);
        self.open.join(other.open);
        // A wait counts from the newest group, so groups of the same age join.
        let both = self.closed.len().max(other.closed.len());
        self.closed.resize_with(both, Group::default);
        for (group, other) in self.closed.iter_mut().zip(other.closed) {
            group.join(other);
        }
        self.accumulators.extend(other.accumulators);
        self.loading.extend(other.loading);
        self.waited &= other.waited;
        self
    }

    fn groups(&self) -> impl Iterator<Item = &Group> {
        self.closed.iter().chain([&self.open])
    }
}

struct Flow<'f, 'k> {
    findings: &'f mut Findings<'k>,
    at: usize,
    /// Whether a group of matrix operations is in flight where the iteration of a surrounding loop ends.
    crossed: bool,
}

impl<'k> Flow<'_, 'k> {
    fn report(&mut self, kind: VerifyErrorKind) {
        self.findings.report(Some(self.at), kind);
    }

    fn uniformity(&self, operand: Operand) -> Uniformity {
        match operand.reg().and_then(|reg| self.findings.register(reg)) {
            Some(register) => register.uniformity,
            None => Uniformity::Block,
        }
    }

    fn body(&mut self, body: &'k Body, control: Uniformity, mut state: State) -> State {
        for statement in body {
            state = self.statement(statement, control, state);
        }
        state
    }

    fn statement(
        &mut self,
        statement: &'k Statement,
        control: Uniformity,
        mut state: State,
    ) -> State {
        match statement {
            Statement::Op(op) => {
                self.operation(op, control, &mut state);
                self.at += 1;
                state
            }
            Statement::If { condition, then, otherwise } => {
                self.read(*condition, &state);
                let control = control.min(self.uniformity(*condition));
                self.at += 1;
                let taken = self.body(then, control, state.clone());
                let left = self.body(otherwise, control, state);
                taken.meet(left)
            }
            Statement::For { counter, start, end, step, body } => {
                let mut inner = control;
                for bound in [*start, *end, *step] {
                    self.read(bound, &state);
                    inner = inner.min(self.uniformity(bound));
                }
                self.write(*counter, inner, &mut state);
                let (head, mut written) = (self.at, Vec::new());
                super::super::walk::each_op(body, &mut |op| written.extend(op.writes()));
                if written.contains(counter) {
                    let name = self.findings.name(*counter);
                    self.report(VerifyErrorKind::CounterWritten(name));
                }
                self.at += 1;
                let mut once = self.body(body, inner, state.clone());
                once.written.insert(*counter);
                self.at = head + 1;
                let outer = self.crosses(&once);
                let twice = self.body(body, inner, once.meet(state.clone()));
                self.crossed = outer;
                state = state.meet(twice);
                state.written.remove(counter);
                state
            }
            Statement::While { test, condition, body } => {
                let inner = control.min(self.uniformity((*condition).into()));
                let head = self.at;
                self.at += 1;
                let mut tested = self.body(test, inner, state);
                self.read((*condition).into(), &tested);
                let outer = self.crossed;
                for _ in 0..2 {
                    let turned = self.body(body, inner, tested.clone());
                    self.at = head + 1;
                    self.crosses(&turned);
                    let again = self.body(test, inner, turned);
                    tested = tested.meet(again);
                }
                self.crossed = outer;
                self.at = head + statement.count();
                tested
            }
            Statement::Roles(roles) => {
                self.at += 1;
                let group = self.findings.kernel.target.gpu.and_then(|gpu| gpu.warp_group);
                for role in roles {
                    let whole = group.is_some_and(|by| {
                        role.warps.start.is_multiple_of(by) && role.warps.end.is_multiple_of(by)
                    });
                    let inner = if whole { Uniformity::WarpGroup } else { Uniformity::Warp };
                    self.body(&role.body, control.min(inner), state.clone());
                }
                state
            }
        }
    }

    /// Notes the state at the end of a loop's body; returns what was noted of the surrounding loops.
    fn crosses(&mut self, end: &State) -> bool {
        let crosses = end.groups().any(|group| !group.is_empty());
        let outer = self.crossed;
        self.crossed |= crosses;
        outer
    }

    fn read(&mut self, operand: Operand, state: &State) {
        let Some(reg) = operand.reg() else { return };
        if !state.written.contains(&reg) {
            self.report(VerifyErrorKind::Undefined(self.findings.name(reg)));
        }
        let by_group = state.groups().any(|group| group.writes.contains(&reg));
        if by_group || state.loading.contains(&reg) {
            self.report(VerifyErrorKind::InFlight(self.findings.name(reg)));
        }
        self.touched(reg, state);
    }

    /// A use of an accumulator by another operation than a warp-group product. The assembler follows
    /// groups in flight through a loop only where none is in flight at the loop's end; otherwise it
    /// waits for all of them at such a use (ptxas, C7514 and C7517).
    fn touched(&mut self, reg: Reg, state: &State) {
        let in_flight = state.groups().any(|group| !group.is_empty());
        if self.crossed && in_flight && state.accumulators.contains(&reg) {
            self.report(VerifyErrorKind::AcrossIterations(self.findings.name(reg)));
        }
    }

    /// A write of a value; `found` is the uniformity of value and control.
    fn write(&mut self, reg: Reg, found: Uniformity, state: &mut State) {
        let promised = self.uniformity(reg.into());
        if promised > found {
            let name = self.findings.name(reg);
            self.report(VerifyErrorKind::NotUniform { name, promised, found });
        }
        let used = |group: &Group| group.writes.contains(&reg) || group.reads.contains(&reg);
        if state.groups().any(used) || state.loading.contains(&reg) {
            self.report(VerifyErrorKind::InFlight(self.findings.name(reg)));
        }
        self.touched(reg, state);
        state.written.insert(reg);
        state.unfenced.insert(reg);
    }

    fn operation(&mut self, op: &'k Op, control: Uniformity, state: &mut State) {
        let row = op.row();
        if row.control > control {
            self.report(VerifyErrorKind::Divergent { needs: row.control, control });
        }
        match row.effect {
            Effect::None => {}
            Effect::GridWait => state.waited = true,
            Effect::MatrixStart => return self.warp_group_matrix(op, state),
            Effect::MatrixFence => state.unfenced.clear(),
            Effect::MatrixCommit => state.closed.push_front(std::mem::take(&mut state.open)),
            Effect::MatrixWait(pending) => state.closed.truncate(pending as usize),
            Effect::TmemWaitLoads => state.loading.clear(),
            Effect::TmemLoad => {}
        }
        if let Op::Tmem(op) = op
            && let Some(Operand::Reg(reg)) = op.collective()
            && self.uniformity(reg.into()) < Uniformity::Warp
        {
            self.report(TmemError::VaryingAddress(self.findings.name(reg)).into());
        }
        for operand in row.reads() {
            self.read(operand, state);
        }
        for access in row.memory_accesses() {
            if let Space::Global(id) = access.address.space
                && !matches!(op, Op::Guess { .. })
            {
                self.check_access(id, state);
            }
        }
        for part in &row.parts {
            if let OperationPart::Tensor(id, _) = part {
                self.check_access(self.findings.kernel.tensors[id.0 as usize].buffer, state);
            }
        }
        let found = self.result(&row, control);
        for reg in row.writes() {
            self.write(reg, found, state);
        }
        if let Effect::TmemLoad = row.effect {
            state.loading.extend(row.writes());
        }
    }

    fn check_access(&mut self, id: BufferId, state: &State) {
        let buffer = &self.findings.kernel.buffers[id.0 as usize];
        if !state.waited && buffer.access != Access::Constant {
            self.report(VerifyErrorKind::BeforeGridWait(buffer.name.clone()));
        }
    }

    /// The uniformity of the operation's results.
    fn result(&self, row: &Operation<'_>, control: Uniformity) -> Uniformity {
        match row.result {
            ResultUniformity::Control => control,
            ResultUniformity::Fixed(uniformity) => uniformity,
            ResultUniformity::Of(operand) => self.uniformity(operand).min(Uniformity::Warp),
            ResultUniformity::Least(limit) => {
                let reads = row.reads().into_iter().map(|operand| self.uniformity(operand));
                let memory = row.memory_accesses().map(|access| match access.address.space {
                    Space::Global(id)
                        if self.findings.kernel.buffers[id.0 as usize].access
                            == Access::Workspace =>
                    {
                        Uniformity::Warp
                    }
                    Space::Global(_) | Space::Shared(_) => Uniformity::Block,
                });
                reads.chain(memory).fold(control.min(limit), Uniformity::min)
            }
        }
    }

    fn warp_group_matrix(&mut self, op: &'k Op, state: &mut State) {
        let Op::Matrix { d, a, b, c, .. } = op else { return };
        let mut used: Vec<Reg> = Vec::new();
        for operand in [a, b] {
            match operand {
                MatrixOperand::Registers(regs) => {
                    for reg in regs {
                        self.read((*reg).into(), state);
                    }
                    used.extend(regs);
                    state.open.reads.extend(regs);
                }
                MatrixOperand::Shared(tile) => self.read(tile.index, state),
            }
        }
        for reg in d {
            if matches!(c, Accumulator::Registers(_)) && !state.written.contains(reg) {
                self.report(VerifyErrorKind::Undefined(self.findings.name(*reg)));
            }
            // Successive operations on the same accumulators are in order.
            if state.groups().any(|group| group.reads.contains(reg)) {
                self.report(VerifyErrorKind::InFlight(self.findings.name(*reg)));
            }
            if self.uniformity((*reg).into()) != Uniformity::Varying {
                let (name, promised) = (self.findings.name(*reg), self.uniformity((*reg).into()));
                let found = Uniformity::Varying;
                self.report(VerifyErrorKind::NotUniform { name, promised, found });
            }
            state.written.insert(*reg);
        }
        used.extend(d);
        for reg in used {
            if state.unfenced.contains(&reg) {
                self.report(VerifyErrorKind::Unfenced(self.findings.name(reg)));
            }
        }
        state.accumulators.extend(d);
        state.open.writes.extend(d);
    }
}
