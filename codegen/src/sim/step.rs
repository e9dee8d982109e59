//! Executes the steps of a warp: one dispatch per step, for all lanes.

use super::fault::FaultKind;
use super::lanes::{self, Domain, DomainError, Row};
use super::program::{Instruction, InstructionClass, Program, RegSlot};
use super::state::UnitState;
use super::warp::{
    BarrierKind, ControlFrame, StepResult, Warp, WarpState, fail, fail_at, lanes_of,
};
use crate::ir::{Access, Special};

/// Steps of a warp before another warp runs.
const TIME_SLICE: u32 = 1 << 14;

impl<const L: usize> Warp<L> {
    /// Runs until the warp waits, ends, or has used its time slice. True if it executed a step.
    pub(super) fn run(
        &mut self,
        state: &mut UnitState<'_, '_>,
        program: &Program,
    ) -> StepResult<bool> {
        if let WarpState::AtBarrier { which, generation } = self.state
            && !self.barrier_complete(state, which, generation)
        {
            return Ok(false);
        }
        let mut steps = 0;
        while self.state == WarpState::Ready && steps < TIME_SLICE {
            let step = &program.steps[self.at];
            let Instruction::MbarrierWait { barrier, parity } = &step.what else {
                state.tally.classes[step.class as usize] += 1;
                self.at += 1;
                self.step(state, step.point, &step.what).inspect_err(|_| self.at -= 1)?;
                steps += 1;
                continue;
            };
            if !self.mbarrier_wait(state, barrier, *parity)? {
                break;
            }
            state.tally.classes[InstructionClass::Barrier as usize] += 1;
            self.at += 1;
            steps += 1;
        }
        self.ran += u64::from(steps);
        let limit = state.context.options.limit;
        if self.ran > limit {
            return fail(FaultKind::InfiniteLoop(limit));
        }
        Ok(steps > 0)
    }

    fn step(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        what: &Instruction,
    ) -> StepResult {
        let live = self.active;
        match what {
            Instruction::Comment | Instruction::GridLaunch => {}
            Instruction::Copy { dst, a } => {
                let row = self.read_any(state, *a)?;
                self.write_any(state, *dst, row)?;
            }
            Instruction::CopyFlag { dst, a } => self.set_flag(*dst, self.flag_any(*a)),
            Instruction::Uniform { dst, a, scope } => {
                let row = self.read(state, *a, live)?;
                self.uniform(state, point, &row, *scope)?;
                self.write(state, *dst, row)?;
            }
            Instruction::UniformFlag { dst, a, scope } => {
                let flag = self.flag(state, *a, live)?;
                let row = std::array::from_fn(|lane| (flag >> lane & 1) as u32);
                self.uniform(state, point, &row, *scope)?;
                self.set_flag(*dst, (flag, 0));
            }
            Instruction::Special { dst, value } => {
                let row = self.special(state, *value);
                self.write(state, *dst, row)?;
            }
            Instruction::Unary { op, dst, a } => {
                let a = self.read(state, *a, live)?;
                self.write(state, *dst, lanes::unary(*op, &a))?;
            }
            Instruction::Not { dst, a } => {
                let a = self.flag(state, *a, live)?;
                self.set_flag(*dst, (!a, 0));
            }
            Instruction::Binary { op, dst, a, b } => {
                let (a, b) = (self.read(state, *a, live)?, self.read(state, *b, live)?);
                self.in_domain(lanes::binary_domain(*op), &b)?;
                self.write(state, *dst, lanes::binary(*op, &a, &b))?;
            }
            Instruction::BinaryFlag { and, dst, a, b } => {
                let (a, b) = (self.flag(state, *a, live)?, self.flag(state, *b, live)?);
                self.set_flag(*dst, (if *and { a & b } else { a | b }, 0));
            }
            Instruction::Ternary { op, dst, abc: [a, b, c] } => {
                let a = self.read(state, *a, live)?;
                let b = self.read(state, *b, live)?;
                let c = self.read(state, *c, live)?;
                self.in_domain(lanes::ternary_domain(*op), &c)?;
                self.write(state, *dst, lanes::ternary(*op, [&a, &b, &c]))?;
            }
            Instruction::Compare { op, dst, a, b } => {
                let (a, b) = (self.read(state, *a, live)?, self.read(state, *b, live)?);
                self.set_flag(*dst, (lanes::compare(*op, &a, &b), 0));
            }
            Instruction::Select { dst, condition, a, b } => {
                let chosen = self.flag(state, *condition, live)?;
                let (a, a_poison) = self.read_any(state, *a)?;
                let (b, b_poison) = self.read_any(state, *b)?;
                let row =
                    std::array::from_fn(|lane| [b[lane], a[lane]][(chosen >> lane & 1) as usize]);
                let poison = (a_poison & chosen) | (b_poison & !chosen);
                self.write_any(state, *dst, (row, poison))?;
            }
            Instruction::SelectFlag { dst, condition, a, b } => {
                let chosen = self.flag(state, *condition, live)?;
                let ((a, a_poison), (b, b_poison)) = (self.flag_any(*a), self.flag_any(*b));
                let pick = |a: u64, b: u64| (a & chosen) | (b & !chosen);
                self.set_flag(*dst, (pick(a, b), pick(a_poison, b_poison)));
            }
            _ => return self.memory_step(state, point, what),
        }
        Ok(())
    }

    fn memory_step(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        what: &Instruction,
    ) -> StepResult {
        match what {
            Instruction::Load { dst, from, width, mask } => {
                self.load(state, point, (dst, from, *width), *mask)
            }
            Instruction::Store { to, values, width, mask } => {
                self.store(state, point, (to, values, *width), *mask)
            }
            Instruction::Prefetch { from, mask } => {
                let live = self.masked(state, *mask)?;
                self.resolve(state, from, (u64::from(from.word), 1), live)?;
                self.check_access_mode(state, from.array, live, &[Access::Constant], "prefetches")
            }
            Instruction::Atomic { dst, op, at, value, order, scope } => {
                self.atomic(state, point, (*dst, *op, at), *value, (*order, *scope))
            }
            Instruction::AtomicLoad { dst, from, order, scope } => {
                self.atomic_load(state, point, (*dst, from), (*order, *scope))
            }
            Instruction::Fence { scope } => {
                self.fence(*scope);
                Ok(())
            }
            Instruction::Barrier => {
                let warps = state.context.warps;
                self.arrive_at_barrier(state, point, BarrierKind::Block, (warps, true))
            }
            Instruction::ClusterBarrier => {
                let warps = state.context.warps * state.context.cluster;
                self.arrive_at_barrier(state, point, BarrierKind::Cluster, (warps, true))
            }
            Instruction::NamedBarrier { id, threads, wait } => {
                let warps = *threads as usize / L;
                self.arrive_at_barrier(state, point, BarrierKind::Named(*id), (warps, *wait))
            }
            Instruction::WarpSync => {
                self.converged()?;
                self.synchronise();
                Ok(())
            }
            Instruction::Shuffle { dst, op, a, by } => self.shuffle(state, (*dst, *op), (*a, *by)),
            Instruction::Vote { dst, op, a } => self.vote(state, *dst, *op, *a),
            Instruction::Ballot { dst, a } => self.ballot(state, dst, *a),
            Instruction::GridWait => {
                let mut clock = super::clock::Clock::new(self.clock.own.len());
                clock.own[usize::from(state.context.grid_entity())].full = 1;
                self.learn(self.active, &clock);
                Ok(())
            }
            _ => self.async_step(state, point, what),
        }
    }

    fn async_step(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        what: &Instruction,
    ) -> StepResult {
        match what {
            Instruction::CopyAsync { to, from, width, mask } => {
                return self.copy_async(state, point, (to, from, *width), *mask);
            }
            Instruction::CopyCommit => self.copy_commit(),
            Instruction::CopyWait { pending } => self.copy_wait(state, *pending),
            Instruction::CopyArrive { barrier } => return self.copy_arrive(state, point, barrier),
            Instruction::MbarrierInit { barrier, arrivals } => {
                return self.mbarrier_init(state, point, barrier, *arrivals);
            }
            Instruction::MbarrierFence => self.mbarrier_fence(state),
            Instruction::MbarrierArrive { barrier, expect } => {
                return self.mbarrier_arrive(state, barrier, *expect);
            }
            Instruction::FenceAsync => {
                state.proxy_fences[usize::from(self.entity)].push((self.epoch, self.active));
                self.epoch += 1;
            }
            Instruction::BulkLoad { to, from, bytes, barrier } => {
                return self.bulk_load(state, point, (to, from, *bytes), barrier);
            }
            Instruction::BulkStore { to, from, bytes } => {
                return self.bulk_store(state, point, (to, from, *bytes));
            }
            Instruction::TensorLoad { to, map, at, barrier, multicast } => {
                return self.tensor_load(state, point, (to, *map, at), barrier, *multicast);
            }
            Instruction::TensorStore { map, at, from } => {
                return self.tensor_store(state, point, (*map, at, from));
            }
            Instruction::BulkCommit => self.bulk_commit(),
            Instruction::BulkWait { pending, reads_only } => {
                return self.bulk_wait(state, *pending, *reads_only);
            }
            Instruction::MatrixLoad { dst, from, transpose } => {
                return self.matrix_load(state, point, (dst, from), *transpose);
            }
            Instruction::MatrixStore { to, values, transpose } => {
                return self.matrix_store(state, point, (to, values), *transpose);
            }
            Instruction::MatrixTranspose { dst, a } => {
                return self.matrix_transpose(state, *dst, *a);
            }
            Instruction::Matrix { op, d, a, b, c, scales } => {
                return self.matrix(state, point, (op, d), (a, b), (c.as_deref(), *scales));
            }
            Instruction::MatrixFence => self.matrix_fence(point),
            Instruction::MatrixCommit => self.matrix_commit(point),
            Instruction::MatrixWait { pending } => self.matrix_wait(state, point, *pending),
            _ => return self.control_step(state, what),
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
            Instruction::ForEnter { counter, start, end, step, kept } => {
                let bounds = [*start, *end, *step];
                let [start, end, step] = self.three(state, bounds, live)?;
                if let Some(lane) = lanes_of(live).find(|&lane| step[lane] == 0) {
                    return fail_at(lane, FaultKind::LoopRange);
                }
                self.write(state, kept[0], end)?;
                self.write(state, kept[1], step)?;
                self.write(state, *counter, start)?;
                self.stack.push(ControlFrame { outside: live, other: 0 });
            }
            Instruction::ForTest { counter, end, exit } => {
                let (at, end) = (self.read(state, *counter, live)?, self.read(state, *end, live)?);
                self.active = live & lanes::compare(crate::ir::Compare::Less, &at, &end);
                if self.active == 0 {
                    self.at = *exit;
                }
            }
            Instruction::ForNext { counter, step, test } => {
                let (at, step) =
                    (self.read(state, *counter, live)?, self.read(state, *step, live)?);
                let past = |&lane: &usize| at[lane].checked_add(step[lane]).is_none();
                if let Some(lane) = lanes_of(live).find(past) {
                    return fail_at(lane, FaultKind::LoopRange);
                }
                self.write(state, *counter, lanes::binary(crate::ir::Binary::Add, &at, &step))?;
                self.at = *test;
            }
            Instruction::ForExit { counter } => {
                self.pop();
                self.set_poison(*counter, self.active);
            }
            Instruction::WhileEnter => self.stack.push(ControlFrame { outside: live, other: 0 }),
            Instruction::WhileTest { condition, exit } => {
                self.active = live & self.flag(state, *condition, live)?;
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
                if let Some(product) = self.matrix_ops.first() {
                    return fail(FaultKind::Unfinished(state.point(product.point)));
                }
                self.state = WarpState::Done;
            }
            _ => {}
        }
        Ok(())
    }

    fn pop(&mut self) {
        if let Some(frame) = self.stack.pop() {
            self.active = frame.outside;
        }
    }

    fn three(
        &mut self,
        state: &UnitState<'_, '_>,
        slots: [RegSlot; 3],
        live: u64,
    ) -> StepResult<[Row<L>; 3]> {
        let [a, b, c] = slots;
        Ok([self.read(state, a, live)?, self.read(state, b, live)?, self.read(state, c, live)?])
    }

    fn in_domain(&self, domain: Domain, row: &Row<L>) -> StepResult {
        match lanes::first_domain_error(domain, row, self.active) {
            None => Ok(()),
            Some((lane, DomainError::Zero)) => fail_at(lane, FaultKind::DividesByZero),
            Some((lane, DomainError::Shift(by))) => fail_at(lane, FaultKind::ShiftRange(by)),
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
