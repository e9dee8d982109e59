//! A warp takes a step: one dispatch, then whatever the instruction does to all lanes.

use super::fault::FaultKind;
use super::lanes::{self, Domain, Refusal, Row};
use super::program::{Class, Instruction, Program, Slot};
use super::warp::{Exec, Frame, Gathered, State, Warp, fail, fail_at, lanes_of};
use super::world::World;
use crate::ir::{Access, Special};

/// Steps of a warp before others have their turn.
const TURN: u32 = 1 << 14;

impl<const L: usize> Warp<L> {
    /// Runs until it waits, ends, or has had its turn. True if it took a step at all.
    pub(super) fn run(&mut self, world: &mut World<'_, '_>, program: &Program) -> Exec<bool> {
        if let State::Gathering { which, generation } = self.state
            && !self.gathered(world, which, generation)
        {
            return Ok(false);
        }
        let mut steps = 0;
        while self.state == State::Ready && steps < TURN {
            let step = &program.steps[self.at];
            let Instruction::MbarrierWait { barrier, parity } = &step.what else {
                world.tally.classes[step.class as usize] += 1;
                self.at += 1;
                self.step(world, step.point, &step.what).inspect_err(|_| self.at -= 1)?;
                steps += 1;
                continue;
            };
            if !self.mbarrier_wait(world, barrier, *parity)? {
                break;
            }
            world.tally.classes[Class::Barrier as usize] += 1;
            self.at += 1;
            steps += 1;
        }
        self.ran += u64::from(steps);
        let limit = world.set.options.limit;
        if self.ran > limit {
            return fail(FaultKind::Endless(limit));
        }
        Ok(steps > 0)
    }

    fn step(&mut self, world: &mut World<'_, '_>, point: u32, what: &Instruction) -> Exec {
        let live = self.active;
        match what {
            Instruction::Comment | Instruction::GridLaunch => {}
            Instruction::Copy { dst, a } => {
                let row = self.read_any(world, *a)?;
                self.write_any(world, *dst, row)?;
            }
            Instruction::CopyFlag { dst, a } => self.set_flag(*dst, self.flag_any(*a)),
            Instruction::Uniform { dst, a, scope } => {
                let row = self.read(world, *a, live)?;
                self.uniform(world, point, &row, *scope)?;
                self.write(world, *dst, row)?;
            }
            Instruction::UniformFlag { dst, a, scope } => {
                let flag = self.flag(world, *a, live)?;
                let row = std::array::from_fn(|lane| (flag >> lane & 1) as u32);
                self.uniform(world, point, &row, *scope)?;
                self.set_flag(*dst, (flag, 0));
            }
            Instruction::Special { dst, value } => {
                let row = self.special(world, *value);
                self.write(world, *dst, row)?;
            }
            Instruction::Unary { op, dst, a } => {
                let a = self.read(world, *a, live)?;
                self.write(world, *dst, lanes::unary(*op, &a))?;
            }
            Instruction::Not { dst, a } => {
                let a = self.flag(world, *a, live)?;
                self.set_flag(*dst, (!a, 0));
            }
            Instruction::Binary { op, dst, a, b } => {
                let (a, b) = (self.read(world, *a, live)?, self.read(world, *b, live)?);
                self.in_domain(lanes::binary_domain(*op), &b)?;
                self.write(world, *dst, lanes::binary(*op, &a, &b))?;
            }
            Instruction::BinaryFlag { and, dst, a, b } => {
                let (a, b) = (self.flag(world, *a, live)?, self.flag(world, *b, live)?);
                self.set_flag(*dst, (if *and { a & b } else { a | b }, 0));
            }
            Instruction::Ternary { op, dst, abc: [a, b, c] } => {
                let a = self.read(world, *a, live)?;
                let b = self.read(world, *b, live)?;
                let c = self.read(world, *c, live)?;
                self.in_domain(lanes::ternary_domain(*op), &c)?;
                self.write(world, *dst, lanes::ternary(*op, [&a, &b, &c]))?;
            }
            Instruction::Compare { op, dst, a, b } => {
                let (a, b) = (self.read(world, *a, live)?, self.read(world, *b, live)?);
                self.set_flag(*dst, (lanes::compare(*op, &a, &b), 0));
            }
            Instruction::Select { dst, condition, a, b } => {
                let chosen = self.flag(world, *condition, live)?;
                let (a, a_poison) = self.read_any(world, *a)?;
                let (b, b_poison) = self.read_any(world, *b)?;
                let row =
                    std::array::from_fn(|lane| [b[lane], a[lane]][(chosen >> lane & 1) as usize]);
                let poison = (a_poison & chosen) | (b_poison & !chosen);
                self.write_any(world, *dst, (row, poison))?;
            }
            Instruction::SelectFlag { dst, condition, a, b } => {
                let chosen = self.flag(world, *condition, live)?;
                let ((a, a_poison), (b, b_poison)) = (self.flag_any(*a), self.flag_any(*b));
                let pick = |a: u64, b: u64| (a & chosen) | (b & !chosen);
                self.set_flag(*dst, (pick(a, b), pick(a_poison, b_poison)));
            }
            _ => return self.memory_step(world, point, what),
        }
        Ok(())
    }

    fn memory_step(&mut self, world: &mut World<'_, '_>, point: u32, what: &Instruction) -> Exec {
        match what {
            Instruction::Load { dst, from, width, mask } => {
                self.load(world, point, (dst, from, *width), *mask)
            }
            Instruction::Store { to, values, width, mask } => {
                self.store(world, point, (to, values, *width), *mask)
            }
            Instruction::Prefetch { from, mask } => {
                let live = self.masked(world, *mask)?;
                self.resolve(world, from, (u64::from(from.word), 1), live)?;
                self.may_touch(world, from.array, live, &[Access::Constant], "prefetches")
            }
            Instruction::Atomic { dst, op, at, value, order, scope } => {
                self.atomic(world, point, (*dst, *op, at), *value, (*order, *scope))
            }
            Instruction::AtomicLoad { dst, from, order, scope } => {
                self.atomic_load(world, point, (*dst, from), (*order, *scope))
            }
            Instruction::Fence { scope } => {
                self.fence(*scope);
                Ok(())
            }
            Instruction::Barrier => {
                let warps = world.set.warps;
                self.gather(world, point, Gathered::Block, (warps, true))
            }
            Instruction::ClusterBarrier => {
                let warps = world.set.warps * world.set.cluster;
                self.gather(world, point, Gathered::Cluster, (warps, true))
            }
            Instruction::NamedBarrier { id, threads, wait } => {
                let warps = *threads as usize / L;
                self.gather(world, point, Gathered::Named(*id), (warps, *wait))
            }
            Instruction::WarpSync => {
                self.converged()?;
                self.synchronise();
                Ok(())
            }
            Instruction::Shuffle { dst, op, a, by } => self.shuffle(world, (*dst, *op), (*a, *by)),
            Instruction::Vote { dst, op, a } => self.vote(world, *dst, *op, *a),
            Instruction::Ballot { dst, a } => self.ballot(world, dst, *a),
            Instruction::GridWait => {
                let mut clock = super::clock::Clock::new(self.clock.own.len());
                clock.own[usize::from(world.set.grid_entity())].full = 1;
                self.learn(self.active, &clock);
                Ok(())
            }
            _ => self.async_step(world, point, what),
        }
    }

    fn async_step(&mut self, world: &mut World<'_, '_>, point: u32, what: &Instruction) -> Exec {
        match what {
            Instruction::CopyAsync { to, from, width, mask } => {
                return self.copy_async(world, point, (to, from, *width), *mask);
            }
            Instruction::CopyCommit => self.copy_commit(),
            Instruction::CopyWait { pending } => self.copy_wait(world, *pending),
            Instruction::CopyArrive { barrier } => return self.copy_arrive(world, point, barrier),
            Instruction::MbarrierInit { barrier, arrivals } => {
                return self.mbarrier_init(world, point, barrier, *arrivals);
            }
            Instruction::MbarrierFence => self.mbarrier_fence(world),
            Instruction::MbarrierArrive { barrier, expect } => {
                return self.mbarrier_arrive(world, barrier, *expect);
            }
            Instruction::FenceAsync => {
                world.proxy_fences[usize::from(self.entity)].push((self.epoch, self.active));
                self.epoch += 1;
            }
            Instruction::BulkLoad { to, from, bytes, barrier } => {
                return self.bulk_load(world, point, (to, from, *bytes), barrier);
            }
            Instruction::BulkStore { to, from, bytes } => {
                return self.bulk_store(world, point, (to, from, *bytes));
            }
            Instruction::TensorLoad { to, map, at, barrier, multicast } => {
                return self.tensor_load(world, point, (to, *map, at), barrier, *multicast);
            }
            Instruction::TensorStore { map, at, from } => {
                return self.tensor_store(world, point, (*map, at, from));
            }
            Instruction::BulkCommit => self.bulk_commit(),
            Instruction::BulkWait { pending, reads_only } => {
                return self.bulk_wait(world, *pending, *reads_only);
            }
            Instruction::MatrixLoad { dst, from, transpose } => {
                return self.matrix_load(world, point, (dst, from), *transpose);
            }
            Instruction::MatrixStore { to, values, transpose } => {
                return self.matrix_store(world, point, (to, values), *transpose);
            }
            Instruction::MatrixTranspose { dst, a } => {
                return self.matrix_transpose(world, *dst, *a);
            }
            Instruction::Matrix { op, d, a, b, c, scales } => {
                return self.matrix(world, point, (op, d), (a, b), (c.as_deref(), *scales));
            }
            Instruction::MatrixFence => self.matrix_fence(point),
            Instruction::MatrixCommit => self.matrix_commit(point),
            Instruction::MatrixWait { pending } => self.matrix_wait(world, point, *pending),
            _ => return self.control_step(world, what),
        }
        Ok(())
    }

    fn control_step(&mut self, world: &mut World<'_, '_>, what: &Instruction) -> Exec {
        let live = self.active;
        match what {
            Instruction::If { condition, otherwise } => {
                let chosen = self.flag(world, *condition, live)?;
                self.stack.push(Frame { outside: live, other: live & !chosen });
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
                let [start, end, step] = self.three(world, bounds, live)?;
                if let Some(lane) = lanes_of(live).find(|&lane| step[lane] == 0) {
                    return fail_at(lane, FaultKind::LoopRange);
                }
                self.write(world, kept[0], end)?;
                self.write(world, kept[1], step)?;
                self.write(world, *counter, start)?;
                self.stack.push(Frame { outside: live, other: 0 });
            }
            Instruction::ForTest { counter, end, exit } => {
                let (at, end) = (self.read(world, *counter, live)?, self.read(world, *end, live)?);
                self.active = live & lanes::compare(crate::ir::Compare::Less, &at, &end);
                if self.active == 0 {
                    self.at = *exit;
                }
            }
            Instruction::ForNext { counter, step, test } => {
                let (at, step) =
                    (self.read(world, *counter, live)?, self.read(world, *step, live)?);
                let past = |&lane: &usize| at[lane].checked_add(step[lane]).is_none();
                if let Some(lane) = lanes_of(live).find(past) {
                    return fail_at(lane, FaultKind::LoopRange);
                }
                self.write(world, *counter, lanes::binary(crate::ir::Binary::Add, &at, &step))?;
                self.at = *test;
            }
            Instruction::ForExit { counter } => {
                self.pop();
                self.spoil(*counter, self.active);
            }
            Instruction::WhileEnter => self.stack.push(Frame { outside: live, other: 0 }),
            Instruction::WhileTest { condition, exit } => {
                self.active = live & self.flag(world, *condition, live)?;
                if self.active == 0 {
                    self.at = *exit;
                }
            }
            Instruction::Jump(to) => self.at = *to,
            Instruction::Roles(entries) => {
                match entries.iter().find(|(warps, _)| warps.contains(&self.number)) {
                    Some((_, entry)) => self.at = *entry,
                    None => {
                        return fail(FaultKind::Divergent("warps of the block: no role for one"));
                    }
                }
            }
            Instruction::End => {
                self.finish_copies(world)?;
                if let Some(product) = self.products.first() {
                    return fail(FaultKind::Unfinished(world.point(product.point)));
                }
                self.state = State::Done;
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

    fn three(&mut self, world: &World<'_, '_>, slots: [Slot; 3], live: u64) -> Exec<[Row<L>; 3]> {
        let [a, b, c] = slots;
        Ok([self.read(world, a, live)?, self.read(world, b, live)?, self.read(world, c, live)?])
    }

    fn in_domain(&self, domain: Domain, row: &Row<L>) -> Exec {
        match lanes::refused(domain, row, self.active) {
            None => Ok(()),
            Some((lane, Refusal::Zero)) => fail_at(lane, FaultKind::DividesByZero),
            Some((lane, Refusal::Shift(by))) => fail_at(lane, FaultKind::ShiftRange(by)),
        }
    }

    fn special(&self, world: &World<'_, '_>, value: Special) -> Row<L> {
        let block = world.set.coordinates(world.block_number(self.block));
        match value {
            Special::Thread => std::array::from_fn(|lane| self.number * L as u32 + lane as u32),
            Special::Lane => std::array::from_fn(|lane| lane as u32),
            Special::Warp => [self.number; L],
            Special::Block(axis) => [block[usize::from(axis.min(2))]; L],
            Special::Blocks(axis) => [world.set.grid[usize::from(axis.min(2))]; L],
            Special::ClusterBlock => [self.block as u32; L],
        }
    }
}
