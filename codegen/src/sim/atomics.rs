//! Atomic operations and fences: how threads of different blocks come to be ordered.

use super::fault::FaultKind;
use super::program::{Array, At, Slot};
use super::warp::{Exec, Warp, fail_at, lanes_of};
use super::world::World;
use crate::ir::{Access, Fetch, Order, Scope};

impl<const L: usize> Warp<L> {
    /// Reads, changes and writes a word a lane, lane after lane.
    pub(super) fn atomic(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        (dst, op, at): (Option<Slot>, Fetch, &At),
        value: Slot,
        (order, scope): (Order, Scope),
    ) -> Exec {
        let live = self.active;
        let value = self.read(world, value, live)?;
        let bytes = self.resolve(world, at, (4, 4), live)?;
        self.count(world, point, at.array, (4, false), &bytes, live);
        self.may_touch(world, at.array, live, &[Access::Workspace], "changes")?;
        let mut old = [0; L];
        for lane in lanes_of(live) {
            self.judge_atomic(world, point, at.array, lane, bytes[lane], true)?;
            let word = word_of(world, self.block, at.array, bytes[lane]);
            let before = u32::from_le_bytes(*word);
            old[lane] = before;
            let after = match op {
                Fetch::Add => before.wrapping_add(value[lane]),
                Fetch::Exchange => value[lane],
                Fetch::Max => before.max(value[lane]),
            };
            *word = after.to_le_bytes();
        }
        let acquires = matches!(order, Order::Acquire | Order::AcquireRelease);
        self.acquire(world, at.array, &bytes, (acquires, scope));
        let releases = matches!(order, Order::Release | Order::AcquireRelease);
        self.release(world, at.array, &bytes, (releases, scope));
        match dst {
            Some(dst) => self.write(world, dst, old),
            None => Ok(()),
        }
    }

    /// Reads a word a lane.
    pub(super) fn atomic_load(
        &mut self,
        world: &mut World<'_, '_>,
        point: u32,
        (dst, from): (Slot, &At),
        (order, scope): (Order, Scope),
    ) -> Exec {
        let live = self.active;
        let bytes = self.resolve(world, from, (4, 4), live)?;
        self.count(world, point, from.array, (4, true), &bytes, live);
        self.may_touch(world, from.array, live, &[Access::Workspace], "reads")?;
        let mut row = [0; L];
        for lane in lanes_of(live) {
            self.judge_atomic(world, point, from.array, lane, bytes[lane], false)?;
            row[lane] = u32::from_le_bytes(*word_of(world, self.block, from.array, bytes[lane]));
        }
        let acquires = matches!(order, Order::Acquire | Order::AcquireRelease);
        self.acquire(world, from.array, &bytes, (acquires, scope));
        self.write(world, dst, row)
    }

    /// Later relaxed atomics release what came before; what relaxed atomics read is acquired.
    pub(super) fn fence(&mut self, scope: Scope) {
        let live = self.active;
        if let Some((lanes, clock)) = self.read_relaxed.take() {
            self.learn(lanes & live, &clock);
        }
        let clock = self.publish(live);
        self.fenced = Some((live, scope, clock));
    }

    fn judge_atomic(
        &self,
        world: &mut World<'_, '_>,
        point: u32,
        array: Array,
        lane: usize,
        byte: u64,
        writes: bool,
    ) -> Exec {
        let who = self.observer(point);
        let judged = match array {
            Array::Global(id) => match world.memory.workspaces.get_mut(id as usize) {
                Some(Some(space)) => space.atomic(&who, lane as u8, byte, writes),
                _ => return fail_at(lane, FaultKind::Unsupported("an atomic on this buffer")),
            },
            Array::Shared(id) => {
                let shared = &mut world.blocks[self.block].shared;
                shared.atomic(&who, lane as u8, (byte as u32, 4), (id as u16, writes))
            }
        };
        judged.or_else(|clash| fail_at(lane, world.clash(clash, array, byte, writes)))
    }

    /// Learns what releases on the words published: at once, or for a fence to acquire.
    fn acquire(
        &mut self,
        world: &World<'_, '_>,
        array: Array,
        bytes: &[u64; L],
        (acquires, scope): (bool, Scope),
    ) {
        let party = world.party(self.block);
        let published = match array {
            Array::Global(id) => match world.memory.workspaces.get(id as usize) {
                Some(Some(space)) => &space.published,
                _ => return,
            },
            Array::Shared(_) => &world.blocks[self.block].published,
        };
        for (word, lanes) in words(bytes, self.active) {
            let mut clock = super::clock::Clock::new(self.clock.own.len());
            // Until a fence with its own scope: the widest.
            let scope = if acquires { scope } else { Scope::Device };
            published.acquire(word, party, scope, &mut clock);
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

    /// Publishes at the words what the lanes have done: all of it, or up to their last fence.
    fn release(
        &mut self,
        world: &mut World<'_, '_>,
        array: Array,
        bytes: &[u64; L],
        (releases, scope): (bool, Scope),
    ) {
        let party = world.party(self.block);
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
                Array::Global(id) => match world.memory.workspaces.get_mut(id as usize) {
                    Some(Some(space)) => &mut space.published,
                    _ => return,
                },
                Array::Shared(_) => &mut world.blocks[self.block].published,
            };
            published.release(word, party, scope, &clock);
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

/// The bytes of a word of a workspace or of shared memory, which has been resolved and judged.
fn word_of<'w>(
    world: &'w mut World<'_, '_>,
    block: usize,
    array: Array,
    byte: u64,
) -> &'w mut [u8; 4] {
    let all = match array {
        Array::Global(id) => match &mut world.memory.workspaces[id as usize] {
            Some(space) => &mut space.contents.bytes,
            None => unreachable!("judged to be a workspace"),
        },
        Array::Shared(_) => &mut world.blocks[block].shared.bytes,
    };
    let (words, _) = all[byte as usize..].as_chunks_mut();
    &mut words[0]
}
