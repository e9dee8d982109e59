//! Atomic operations and fences: they order threads of different blocks.

use super::fault::FaultKind;
use super::state::UnitState;
use super::warp::{StepResult, Warp, fail_at, lanes_of};
use crate::ir::{
    Access, Address, AtomicOp, BufferId, MemoryOrder, Operand, Reg, Scope, SharedId, Space,
};

impl<const L: usize> Warp<L> {
    /// Reads, changes and writes one word per lane, lane after lane.
    pub(super) fn atomic(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (dst, op, at): (Option<Reg>, AtomicOp, &Address),
        value: Operand,
        (order, scope): (MemoryOrder, Scope),
    ) -> StepResult {
        let live = self.active;
        let value = self.read(state, value, live)?;
        let bytes = self.resolve(state, at, (4, 4), live)?;
        self.count(state, point, at.space, (4, false), &bytes, live);
        self.check_access_mode(state, at.space, live, &[Access::Workspace], "changes")?;
        let mut old = [0; L];
        for lane in lanes_of(live) {
            self.check_atomic(state, point, at.space, lane, bytes[lane], true)?;
            let word = word_of(state, self.block, at.space, bytes[lane]);
            let before = u32::from_le_bytes(*word);
            old[lane] = before;
            let after = match op {
                AtomicOp::Add => before.wrapping_add(value[lane]),
                AtomicOp::Exchange => value[lane],
                AtomicOp::Max => before.max(value[lane]),
            };
            *word = after.to_le_bytes();
        }
        let acquires = matches!(order, MemoryOrder::Acquire | MemoryOrder::AcquireRelease);
        self.acquire(state, at.space, &bytes, (acquires, scope));
        let releases = matches!(order, MemoryOrder::Release | MemoryOrder::AcquireRelease);
        self.release(state, at.space, &bytes, (releases, scope));
        match dst {
            Some(dst) => self.write(state, dst, old),
            None => Ok(()),
        }
    }

    /// Reads one word per lane.
    pub(super) fn atomic_load(
        &mut self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        (dst, from): (Reg, &Address),
        (order, scope): (MemoryOrder, Scope),
    ) -> StepResult {
        let live = self.active;
        let bytes = self.resolve(state, from, (4, 4), live)?;
        self.count(state, point, from.space, (4, true), &bytes, live);
        self.check_access_mode(state, from.space, live, &[Access::Workspace], "reads")?;
        let mut row = [0; L];
        for lane in lanes_of(live) {
            self.check_atomic(state, point, from.space, lane, bytes[lane], false)?;
            row[lane] = u32::from_le_bytes(*word_of(state, self.block, from.space, bytes[lane]));
        }
        let acquires = matches!(order, MemoryOrder::Acquire | MemoryOrder::AcquireRelease);
        self.acquire(state, from.space, &bytes, (acquires, scope));
        self.write(state, dst, row)
    }

    /// Later relaxed atomics release the accesses before the fence; the fence acquires what earlier
    /// relaxed atomics have read.
    pub(super) fn fence(&mut self, scope: Scope) {
        let live = self.active;
        if let Some((lanes, clock)) = self.read_relaxed.take() {
            self.learn(lanes & live, &clock);
        }
        let clock = self.publish(live);
        self.fenced = Some((live, scope, clock));
    }

    fn check_atomic(
        &self,
        state: &mut UnitState<'_, '_>,
        point: u32,
        array: Space,
        lane: usize,
        byte: u64,
        writes: bool,
    ) -> StepResult {
        let who = self.observer(point);
        let checked = match array {
            Space::Global(BufferId(id)) => match state.memory.workspaces.get_mut(id as usize) {
                Some(Some(space)) => space.atomic(&who, lane as u8, byte, writes),
                _ => return fail_at(lane, FaultKind::Unsupported("an atomic on this buffer")),
            },
            Space::Shared(SharedId(id)) => {
                let shared = &mut state.blocks[self.block].shared;
                shared.atomic(&who, lane as u8, (byte as u32, 4), (id as u16, writes))
            }
        };
        checked.or_else(|conflict| fail_at(lane, state.conflict(conflict, array, byte, writes)))
    }

    /// Joins the clocks released on the words: now, or at the next fence if the atomic is relaxed.
    fn acquire(
        &mut self,
        state: &UnitState<'_, '_>,
        array: Space,
        bytes: &[u64; L],
        (acquires, scope): (bool, Scope),
    ) {
        let agent = state.agent(self.block);
        let published = match array {
            Space::Global(BufferId(id)) => match state.memory.workspaces.get(id as usize) {
                Some(Some(space)) => &space.published,
                _ => return,
            },
            Space::Shared(_) => &state.blocks[self.block].published,
        };
        for (word, lanes) in words(bytes, self.active) {
            let mut clock = super::clock::Clock::new(self.clock.own.len());
            // A relaxed read uses the widest scope; the fence that follows has its own.
            let scope = if acquires { scope } else { Scope::Device };
            published.acquire(word, agent, scope, &mut clock);
            if acquires {
                self.learn(lanes, &clock);
            } else {
                match &mut self.read_relaxed {
                    Some((mask, read)) => {
                        *mask |= lanes;
                        read.join(&clock);
                    }
                    None => self.read_relaxed = Some((lanes, clock)),
                }
            }
        }
    }

    /// Publishes the lanes' clock on the words: the current one, or that of their last fence if the
    /// atomic is relaxed.
    fn release(
        &mut self,
        state: &mut UnitState<'_, '_>,
        array: Space,
        bytes: &[u64; L],
        (releases, scope): (bool, Scope),
    ) {
        let agent = state.agent(self.block);
        for (word, lanes) in words(bytes, self.active) {
            let (scope, clock) = if releases {
                (scope, self.publish(lanes))
            } else {
                match &self.fenced {
                    Some((mask, fence, clock)) if mask & lanes == lanes => (*fence, clock.clone()),
                    _ => continue,
                }
            };
            let published = match array {
                Space::Global(BufferId(id)) => match state.memory.workspaces.get_mut(id as usize) {
                    Some(Some(space)) => &mut space.published,
                    _ => return,
                },
                Space::Shared(_) => &mut state.blocks[self.block].published,
            };
            published.release(word, agent, scope, &clock);
        }
    }
}

/// The distinct words and the lanes at each.
fn words<const L: usize>(bytes: &[u64; L], live: u64) -> Vec<(u64, u64)> {
    let mut words: Vec<(u64, u64)> = Vec::new();
    for lane in lanes_of(live) {
        match words.iter_mut().find(|(word, _)| *word == bytes[lane]) {
            Some((_, lanes)) => *lanes |= 1 << lane,
            None => words.push((bytes[lane], 1 << lane)),
        }
    }
    words
}

/// The bytes of a word of a workspace or of shared memory, after its checks.
fn word_of<'w>(
    state: &'w mut UnitState<'_, '_>,
    block: usize,
    array: Space,
    byte: u64,
) -> &'w mut [u8; 4] {
    let all = match array {
        Space::Global(BufferId(id)) => match &mut state.memory.workspaces[id as usize] {
            Some(space) => &mut space.contents.bytes,
            None => unreachable!("checked to be a workspace"),
        },
        Space::Shared(_) => &mut state.blocks[block].shared.bytes,
    };
    let (words, _) = all[byte as usize..].as_chunks_mut();
    &mut words[0]
}
