//! Executes the steps of a warp: one dispatch per step, for all lanes.

use super::fault::FaultKind;
use super::lanes::{self, Domain, DomainError, Row};
use super::program::{Instruction, Program};
use super::state::UnitState;
use super::warp::{
    BarrierKind, ControlFrame, StepResult, Warp, WarpState, fail, fail_at, lanes_of,
};
use crate::ir::{Access, Binary, Op, Operand, Special, Unary};

/// Steps of a warp before another warp runs.
const TIME_SLICE: u32 = 1 << 14;

impl<const L: usize> Warp<L> {
    /// Runs until the warp waits, ends, or has used its time slice. True if it executed a step.
    pub(super) fn run(
        &mut self,
        state: &mut UnitState<'_, '_>,
        program: &Program<'_>,
    ) -> StepResult<bool> {
        if let WarpState::AtBarrier { which, generation } = self.state
            && !self.barrier_complete(state, which, generation)
        {
            return Ok(false);
        }
        let mut steps = 0;
        while self.state == WarpState::Ready && steps < TIME_SLICE {
            let step = &program.steps[self.at];
            if let Instruction::Op(Op::MbarrierWait { barrier, parity }) = step.what
                && !self.mbarrier_wait(state, barrier, *parity)?
            {
                break;
            }
            state.tally.classes[step.class as usize] += 1;
            self.at += 1;
            let done = match &step.what {
                Instruction::Op(op) => self.operation(state, step.point, op),
                control => self.control_step(state, control),
            };
            done.inspect_err(|_| self.at -= 1)?;
            steps += 1;
        }
        self.ran += u64::from(steps);
        let limit = state.context.options.limit;
        if self.ran > limit {
            return fail(FaultKind::InfiniteLoop(limit));
        }
        Ok(steps > 0)
    }

    fn operation(&mut self, state: &mut UnitState<'_, '_>, point: u32, op: &Op) -> StepResult {
        let live = self.active;
        match op {
            Op::Comment(_) | Op::SchedulingBarrier | Op::GridLaunch => {}
            Op::Copy { dst, a } if state.is_flag(*dst) => {
                self.set_flag(state, *dst, self.flag_any(state, *a));
            }
            Op::Copy { dst, a } => {
                let row = self.read_any(state, *a)?;
                self.write_any(state, *dst, row)?;
            }
            Op::Uniform { dst, a } => {
                let scope = state.context.kernel.registers[dst.id.0 as usize].uniformity;
                if state.is_flag(*dst) {
                    let flag = self.flag(state, *a, live)?;
                    let row = std::array::from_fn(|lane| (flag >> lane & 1) as u32);
                    self.uniform(state, point, &row, scope)?;
                    self.set_flag(state, *dst, (flag, 0));
                } else {
                    let row = self.read(state, *a, live)?;
                    self.uniform(state, point, &row, scope)?;
                    self.write(state, *dst, row)?;
                }
            }
            Op::Special { dst, value } => {
                let row = self.special(state, *value);
                self.write(state, *dst, row)?;
            }
            Op::Parameter { dst, parameter } => {
                let value = state.context.parameters.get(parameter.0 as usize).copied();
                self.write(state, *dst, [value.unwrap_or(0); L])?;
            }
            Op::Unary { dst, op: Unary::NotPred, a } => {
                let a = self.flag(state, *a, live)?;
                self.set_flag(state, *dst, (!a, 0));
            }
            Op::Unary { dst, op, a } => {
                let a = self.read(state, *a, live)?;
                self.in_domain(lanes::unary_domain(*op), &a)?;
                self.write(state, *dst, lanes::unary(*op, &a))?;
            }
            Op::Binary { dst, op: op @ (Binary::AndPred | Binary::OrPred), a, b } => {
                let (a, b) = (self.flag(state, *a, live)?, self.flag(state, *b, live)?);
                let value = if *op == Binary::AndPred { a & b } else { a | b };
                self.set_flag(state, *dst, (value, 0));
            }
            Op::Binary { dst, op, a, b } => {
                let (a, b) = (self.read(state, *a, live)?, self.read(state, *b, live)?);
                self.in_domain(lanes::binary_domain(*op), &b)?;
                self.write(state, *dst, lanes::binary(*op, &a, &b))?;
            }
            Op::Ternary { dst, op, a, b, c } => {
                let [a, b, c] = self.three(state, [*a, *b, *c], live)?;
                self.in_domain(lanes::ternary_domain(*op), &c)?;
                self.write(state, *dst, lanes::ternary(*op, [&a, &b, &c]))?;
            }
            Op::Compare { dst, op, a, b } => {
                let (a, b) = (self.read(state, *a, live)?, self.read(state, *b, live)?);
                self.set_flag(state, *dst, (lanes::compare(*op, &a, &b), 0));
            }
            Op::Select { dst, condition, a, b } => {
                let chosen = self.flag(state, *condition, live)?;
                let pick = |a: u64, b: u64| (a & chosen) | (b & !chosen);
                if state.is_flag(*dst) {
                    let ((a, a_poison), (b, b_poison)) =
                        (self.flag_any(state, *a), self.flag_any(state, *b));
                    self.set_flag(state, *dst, (pick(a, b), pick(a_poison, b_poison)));
                } else {
                    let (a, a_poison) = self.read_any(state, *a)?;
                    let (b, b_poison) = self.read_any(state, *b)?;
                    let row = |lane: usize| [b[lane], a[lane]][(chosen >> lane & 1) as usize];
                    let row = std::array::from_fn(row);
                    self.write_any(state, *dst, (row, pick(a_poison, b_poison)))?;
                }
            }

            Op::Load { dst, from, width, mask, cache: _ } => {
                self.load(state, point, (dst, from, *width), *mask)?;
            }
            Op::ClusterLoad { dst, from, width, block } => {
                self.cluster_load(state, point, (dst, from, *width), *block)?;
            }
            Op::Store { to, values, width, mask } => {
                self.store(state, point, (to, values, *width), *mask)?;
            }
            Op::Prefetch { from, mask } => {
                let live = self.masked(state, *mask)?;
                let (_, word) = state.array(from.space);
                self.resolve(state, from, (word, 1), live)?;
                self.check_access_mode(state, from.space, live, &[Access::Constant], "prefetches")?;
            }
            Op::Guess { dst, from, mask } => self.guess(state, point, (*dst, from), *mask)?,
            Op::Atomic { dst, op, at, value, order, scope } => {
                self.atomic(state, point, (*dst, *op, at), *value, (*order, *scope))?;
            }
            Op::AtomicLoad { dst, from, order, scope } => {
                self.atomic_load(state, point, (*dst, from), (*order, *scope))?;
            }
            Op::Fence { scope } => self.fence(*scope),

            Op::Barrier => {
                let warps = state.context.warps;
                self.arrive_at_barrier(state, point, BarrierKind::Block, (warps, true))?;
            }
            Op::ClusterBarrier => {
                let warps = state.context.warps * state.context.cluster;
                self.arrive_at_barrier(state, point, BarrierKind::Cluster, (warps, true))?;
            }
            Op::NamedBarrier { id, threads, wait } => {
                let warps = *threads as usize / L;
                self.arrive_at_barrier(state, point, BarrierKind::Named(*id), (warps, *wait))?;
            }
            Op::WarpSync => {
                self.converged()?;
                self.synchronise();
            }
            Op::Shuffle { dst, op, a, by } => self.shuffle(state, (*dst, *op), (*a, *by))?,
            Op::Vote { dst, op, a } => self.vote(state, *dst, *op, *a)?,
            Op::Ballot { dst, a } => self.ballot(state, dst, *a)?,

            Op::CopyAsync { to, from, width, mask } => {
                self.copy_async(state, point, (to, from, *width), *mask)?;
            }
            Op::CopyCommit => self.copy_commit(),
            Op::CopyWait { pending } => self.copy_wait(state, *pending),
            Op::CopyArrive { barrier } => self.copy_arrive(state, point, barrier)?,
            Op::MbarrierInit { barrier, arrivals } => {
                self.mbarrier_init(state, point, barrier, *arrivals)?;
            }
            Op::MbarrierFence => self.mbarrier_fence(state),
            Op::MbarrierArrive { barrier, expect } => {
                self.mbarrier_arrive(state, barrier, *expect)?;
            }
            Op::ClusterArrive { barrier, block } => {
                self.cluster_arrive(state, point, barrier, *block)?;
            }
            // The warp has waited before this step.
            Op::MbarrierWait { .. } => {}
            Op::FenceAsync => {
                state.proxy_fences[usize::from(self.entity)].push((self.epoch, self.active));
                self.epoch += 1;
            }
            Op::BulkLoad { to, from, bytes, barrier } => {
                self.bulk_load(state, point, (to, from, *bytes), barrier)?;
            }
            Op::BulkStore { to, from, bytes } => {
                self.bulk_store(state, point, (to, from, *bytes))?;
            }
            Op::TensorLoad { to, map, at, barrier, multicast } => {
                self.tensor_load(state, point, (to, *map, at), barrier, *multicast)?;
            }
            Op::TensorStore { map, at, from } => {
                self.tensor_store(state, point, (*map, at, from))?;
            }
            Op::BulkCommit => self.bulk_commit(),
            Op::BulkWait { pending, reads_only } => self.bulk_wait(state, *pending, *reads_only)?,

            Op::MatrixLoad { dst, from, transpose } => {
                self.matrix_load(state, point, (dst, from), *transpose)?;
            }
            Op::MatrixStore { to, values, transpose } => {
                self.matrix_store(state, point, (to, values), *transpose)?;
            }
            Op::MatrixTranspose { dst, a } => self.matrix_transpose(state, *dst, *a)?,
            Op::Matrix { op, d, a, b, c, scales } => {
                self.matrix(state, point, (op, d), (a, b), (c, *scales))?;
            }
            Op::MatrixFence => self.matrix_fence(point),
            Op::MatrixCommit => self.matrix_commit(point),
            Op::MatrixWait { pending } => self.matrix_wait(state, point, *pending),
            Op::Tmem(op) => self.tmem_op(state, point, op)?,
            Op::GridWait => {
                let mut clock = super::clock::Clock::new(self.clock.own.len());
                clock.own[usize::from(state.context.grid_entity())].full = 1;
                self.learn(self.active, &clock);
            }
        }
        Ok(())
    }

    fn control_step(&mut self, state: &mut UnitState<'_, '_>, what: &Instruction) -> StepResult {
        let live = self.active;
        match what {
            Instruction::If { condition, otherwise } => {
                let chosen = self.flag(state, *condition, live)?;
                self.stack.push(ControlFrame { outside: live, other: live & !chosen });
                self.active = live & chosen;
                if self.active == 0 {
                    self.at = *otherwise;
                }
            }
            Instruction::Else { end } => {
                self.active = self.stack.last().map_or(0, |frame| frame.other);
                if self.active == 0 {
                    self.at = *end;
                }
            }
            Instruction::Pop => self.pop(),
            Instruction::ForEnter { counter, bounds } => {
                let [start, end, step] = self.three(state, *bounds, live)?;
                if let Some(lane) = lanes_of(live).find(|&lane| step[lane] == 0) {
                    return fail_at(lane, FaultKind::LoopRange);
                }
                self.bounds.push([end, step]);
                self.write(state, *counter, start)?;
                self.stack.push(ControlFrame { outside: live, other: 0 });
            }
            Instruction::ForTest { counter, exit } => {
                let (at, [end, _]) = (self.read(state, *counter, live)?, self.innermost());
                self.active = live & lanes::compare(crate::ir::Compare::Less, &at, &end);
                if self.active == 0 {
                    self.at = *exit;
                }
            }
            Instruction::ForNext { counter, test } => {
                let (at, [_, step]) = (self.read(state, *counter, live)?, self.innermost());
                let past = |&lane: &usize| at[lane].checked_add(step[lane]).is_none();
                if let Some(lane) = lanes_of(live).find(past) {
                    return fail_at(lane, FaultKind::LoopRange);
                }
                self.write(state, *counter, lanes::binary(crate::ir::Binary::Add, &at, &step))?;
                self.at = *test;
            }
            Instruction::ForExit { counter } => {
                self.pop();
                self.bounds.pop();
                self.set_poison(state.slot(*counter), self.active);
            }
            Instruction::WhileEnter => self.stack.push(ControlFrame { outside: live, other: 0 }),
            Instruction::WhileTest { condition, exit } => {
                self.active = live & self.flag(state, (*condition).into(), live)?;
                if self.active == 0 {
                    self.at = *exit;
                }
            }
            Instruction::Jump(to) => self.at = *to,
            Instruction::Roles(entries) => {
                match entries.iter().find(|(warps, _)| warps.contains(&self.number)) {
                    Some((_, entry)) => self.at = *entry,
                    None => {
                        return fail(FaultKind::Divergent("warps of the block: one has no role"));
                    }
                }
            }
            Instruction::End => {
                self.finish_copies(state)?;
                let product = self.matrix_ops.first().map(|product| product.point);
                if let Some(point) = product.or(self.tmem.unfinished()) {
                    return fail(FaultKind::Unfinished(state.point(point)));
                }
                self.state = WarpState::Done;
            }
            // `operation` runs these.
            Instruction::Op(_) => {}
        }
        Ok(())
    }

    /// The end and the step of the innermost `For`.
    fn innermost(&self) -> [Row<L>; 2] {
        self.bounds.last().copied().unwrap_or([[0; L]; 2])
    }

    fn pop(&mut self) {
        if let Some(frame) = self.stack.pop() {
            self.active = frame.outside;
        }
    }

    fn three(
        &mut self,
        state: &UnitState<'_, '_>,
        operands: [Operand; 3],
        live: u64,
    ) -> StepResult<[Row<L>; 3]> {
        let [a, b, c] = operands;
        Ok([self.read(state, a, live)?, self.read(state, b, live)?, self.read(state, c, live)?])
    }

    fn in_domain(&self, domain: Domain, row: &Row<L>) -> StepResult {
        match lanes::first_domain_error(domain, row, self.active) {
            None => Ok(()),
            Some((lane, DomainError::Zero)) => fail_at(lane, FaultKind::DividesByZero),
            Some((lane, DomainError::Shift(by))) => fail_at(lane, FaultKind::ShiftRange(by)),
            // What the instruction takes them for is not specified.
            Some((lane, DomainError::Padding)) => fail_at(
                lane,
                FaultKind::Unsupported("a conversion of a byte with bits beside its code"),
            ),
        }
    }

    fn special(&self, state: &UnitState<'_, '_>, value: Special) -> Row<L> {
        let block = state.context.coordinates(state.block_number(self.block));
        match value {
            Special::Thread => std::array::from_fn(|lane| self.number * L as u32 + lane as u32),
            Special::Lane => std::array::from_fn(|lane| lane as u32),
            Special::Warp => [self.number; L],
            Special::Block(axis) => [block[usize::from(axis.min(2))]; L],
            Special::Blocks(axis) => [state.context.grid[usize::from(axis.min(2))]; L],
            Special::ClusterBlock => [self.block as u32; L],
        }
    }
}
