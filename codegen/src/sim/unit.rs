//! A unit: the blocks of a cluster (or one block), which run until all their warps are done.

use super::clock::{ALL_LANES, Clock};
use super::count::Tally;
use super::fault::{Fault, FaultKind};
use super::global::{Memory, Published, Stored};
use super::mbarrier::{Mbarrier, land};
use super::random::Random;
use super::shared::Shared;
use super::warp::{Gathered, State, Trouble, Warp};
use super::world::{Block, Gathering, Setting, World};

/// What a unit leaves.
pub(super) struct Left {
    pub(super) tally: Tally,
    pub(super) stored: Vec<Stored>,
}

/// Runs a unit to its end.
pub(super) fn run<const L: usize>(
    set: &Setting<'_>,
    unit: u32,
    memory: Memory<'_>,
    mut random: Random,
) -> Result<Left, Box<Fault>> {
    let mut world = World {
        set,
        unit,
        blocks: (0..set.cluster).map(|_| block(set)).collect(),
        memory,
        tally: Tally::new(set.program.points),
        cluster: Gathering::default(),
        uniform: Default::default(),
        proxy_fences: vec![Vec::new(); set.cluster * set.warps],
    };
    let mut start = Clock::new(set.entities());
    if !set.kernel.launch.programmatic {
        start.own[usize::from(set.grid_entity())].full = 1;
    }
    let mut warps: Vec<Warp<L>> = Vec::new();
    for block in 0..set.cluster {
        for number in 0..set.warps {
            let entity = warps.len() as u16;
            let place = (unit, block, number as u32, entity);
            warps.push(Warp::new(set.program, start.clone(), place));
        }
    }
    let mut order: Vec<usize> = (0..warps.len()).collect();
    // Warps that read memory which nothing has written yet. The others go on as far as they can:
    // if one of them writes it, unordered, that is the mistake to name.
    let mut early = Vec::new();
    loop {
        random.shuffle(&mut order);
        let mut moved = false;
        for &at in &order {
            let warp = &mut warps[at];
            if warp.state == State::Done || early.contains(&at) {
                continue;
            }
            match warp.run(&mut world, set.program) {
                Ok(ran) => moved |= ran,
                Err(trouble) if matches!(trouble.kind, FaultKind::PoisonMemory(_)) => {
                    early.push(at);
                }
                Err(trouble) => return Err(fault(&world, warp, *trouble)),
            }
        }
        if let Some(&at) = early.first()
            && !moved
        {
            // Whatever has happened since did not happen before it.
            let again = warps[at].run(&mut world, set.program);
            if let Err(trouble) = again {
                return Err(fault(&world, &warps[at], *trouble));
            }
            early.clear();
        }
        if warps.iter().all(|warp| warp.state == State::Done) {
            break;
        }
        if !moved && !land_one(&mut world, &mut random) {
            return Err(stuck(&world, &warps));
        }
    }
    check_end(&world, &warps)?;
    let in_flight: u64 = warps.iter().map(|warp| warp.most_in_flight).sum();
    world.tally.bytes_in_flight = in_flight / set.cluster as u64;
    Ok(Left { tally: world.tally, stored: world.memory.stored })
}

fn block(set: &Setting<'_>) -> Block {
    Block {
        shared: Shared::new(set.kernel, set.map, set.shared_grain, set.entities()),
        mbarriers: (0..set.mbarriers).map(|_| Mbarrier::default()).collect(),
        barrier: Gathering::default(),
        named: (0..16).map(|_| Gathering::default()).collect(),
        flights: Vec::new(),
        published: Published::default(),
    }
}

/// Nothing else can go on: a copy arrives, the last moment that it may.
fn land_one(world: &mut World<'_, '_>, random: &mut Random) -> bool {
    let flying = |block: &Block| block.flights.len();
    let all: usize = world.blocks.iter().map(flying).sum();
    if all == 0 {
        return false;
    }
    let mut at = random.below(all as u64) as usize;
    for block in 0..world.blocks.len() {
        let flights = world.blocks[block].flights.len();
        if at < flights {
            land(world, block, at);
            return true;
        }
        at -= flights;
    }
    false
}

fn fault<const L: usize>(world: &World<'_, '_>, warp: &Warp<L>, trouble: Trouble) -> Box<Fault> {
    let set = world.set;
    let point = set.program.steps.get(warp.at).map(|step| world.point(step.point));
    Box::new(Fault {
        kernel: set.kernel.name.clone(),
        point,
        block: Some(set.coordinates(world.block_number(warp.block))),
        warp: Some(warp.number),
        lane: trouble.lane.filter(|&lane| lane != u32::from(ALL_LANES)),
        kind: trouble.kind,
    })
}

/// Why nothing moves: a barrier that some warps passed by, or a wait for what never comes.
fn stuck<const L: usize>(world: &World<'_, '_>, warps: &[Warp<L>]) -> Box<Fault> {
    let waiting = warps.iter().filter(|warp| warp.state != State::Done);
    let mut lines = Vec::new();
    let mut divergent = None;
    for warp in waiting {
        // A gathering warp stands behind its barrier, one at an mbarrier before its wait.
        let behind = matches!(warp.state, State::Gathering { .. });
        let step = &world.set.program.steps[warp.at - usize::from(behind)];
        let block = world.block_number(warp.block);
        lines.push(format!("block {block} warp {} at {}", warp.number, world.point(step.point)));
        if let State::Gathering { which: Gathered::Block | Gathered::Cluster, .. } = warp.state {
            divergent = divergent.or(Some((warp, step.point)));
        }
    }
    lines.truncate(8);
    let left = warps.iter().any(|warp| warp.state == State::Done);
    let (kind, at) = match divergent {
        Some((warp, point)) if left => (FaultKind::Divergent("warps"), Some((warp, point))),
        other => (FaultKind::Deadlock(lines), other),
    };
    let first = warps.iter().find(|warp| warp.state != State::Done);
    let point = at
        .map(|(_, point)| point)
        .or_else(|| first.map(|warp| world.set.program.steps[warp.at].point));
    let warp = at.map(|(warp, _)| warp).or(first);
    Box::new(Fault {
        kernel: world.set.kernel.name.clone(),
        point: point.map(|point| world.point(point)),
        block: warp.map(|warp| world.set.coordinates(world.block_number(warp.block))),
        warp: warp.map(|warp| warp.number),
        lane: None,
        kind,
    })
}

/// Nothing may be under way, and warp groups must have gone the same way.
fn check_end<const L: usize>(world: &World<'_, '_>, warps: &[Warp<L>]) -> Result<(), Box<Fault>> {
    for (at, block) in world.blocks.iter().enumerate() {
        if let Some(flight) = block.flights.first() {
            let warp = &warps[at * world.set.warps];
            let kind = FaultKind::Unfinished(world.point(flight.point));
            return Err(fault(world, warp, Trouble { lane: None, kind }));
        }
    }
    if world.set.program.matrix_groups {
        for group in warps.chunks(4) {
            if let Some(warp) = group.iter().find(|warp| warp.group_trail != group[0].group_trail) {
                let kind = FaultKind::Divergent("warps of the warp group");
                return Err(fault(world, warp, Trouble { lane: None, kind }));
            }
        }
    }
    Ok(())
}
