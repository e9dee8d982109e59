//! A unit: the blocks of a cluster (or one block), and the loop that runs their warps to the end.

use super::clock::{ALL_LANES, AccessRecord, Clock};
use super::count::Tally;
use super::fault::{Fault, FaultKind};
use super::global::{GlobalMemory, OutputStore, ReleasedClocks};
use super::mbarrier::{Mbarrier, land};
use super::misuse::TmemMisuse;
use super::random::Random;
use super::shared::SharedMemory;
use super::state::{Block, LaunchContext, Rendezvous, UnitState};
use super::tmem::{self, TensorMemory};
use super::warp::{BarrierKind, StepError, Warp, WarpState};

/// The results of a unit.
pub(super) struct UnitOutcome {
    pub(super) tally: Tally,
    pub(super) stored: Vec<OutputStore>,
}

/// Runs a unit to its end.
pub(super) fn run<const L: usize>(
    context: &LaunchContext<'_>,
    unit: u32,
    memory: GlobalMemory<'_>,
    mut random: Random,
) -> Result<UnitOutcome, Box<Fault>> {
    let mut state = UnitState {
        context,
        unit,
        blocks: (0..context.cluster).map(|_| block(context)).collect(),
        memory,
        tally: Tally::new(context.program.points),
        cluster: Rendezvous::default(),
        uniform: Default::default(),
        proxy_fences: vec![Vec::new(); context.cluster * context.warps],
    };
    let mut start = Clock::new(context.entities());
    if !context.kernel.launch.programmatic {
        start.own[usize::from(context.grid_entity())].full = 1;
    }
    let mut warps: Vec<Warp<L>> = Vec::new();
    for block in 0..context.cluster {
        for number in 0..context.warps {
            let entity = warps.len() as u16;
            let location = (unit, block, number as u32, entity);
            warps.push(Warp::new(context.program, start.clone(), location));
        }
    }
    let mut order: Vec<usize> = (0..warps.len()).collect();
    // Warps that read memory before any write. The other warps continue as far as they can: if one
    // of them writes that memory without an order, the fault is a race and not poison.
    let mut early = Vec::new();
    loop {
        random.shuffle(&mut order);
        let mut moved = false;
        for &at in &order {
            let warp = &mut warps[at];
            if warp.state == WarpState::Done || early.contains(&at) {
                continue;
            }
            match warp.run(&mut state, context.program) {
                Ok(ran) => moved |= ran,
                Err(error) if matches!(error.kind, FaultKind::PoisonMemory(_)) => {
                    early.push(at);
                }
                Err(error) => return Err(fault(&state, warp, *error)),
            }
        }
        if let Some(&at) = early.first()
            && !moved
        {
            // No write since then is ordered before this read, so the read faults again.
            let again = warps[at].run(&mut state, context.program);
            if let Err(error) = again {
                return Err(fault(&state, &warps[at], *error));
            }
            early.clear();
        }
        if warps.iter().all(|warp| warp.state == WarpState::Done) {
            break;
        }
        if !moved && !land_one(&mut state, &mut random)? {
            return Err(deadlock(&state, &warps));
        }
    }
    check_end(&state, &warps)?;
    let in_flight: u64 = warps.iter().map(|warp| warp.most_in_flight).sum();
    state.tally.bytes_in_flight = in_flight / context.cluster as u64;
    Ok(UnitOutcome { tally: state.tally, stored: state.memory.stored })
}

fn block(context: &LaunchContext<'_>) -> Block {
    Block {
        shared: SharedMemory::new(
            context.kernel,
            context.map,
            context.shared_cell_log2,
            context.entities(),
        ),
        mbarriers: (0..context.mbarriers).map(|_| Mbarrier::default()).collect(),
        barrier: Rendezvous::default(),
        named: (0..16).map(|_| Rendezvous::default()).collect(),
        copies_in_flight: Vec::new(),
        used_by_others: Vec::new(),
        published: ReleasedClocks::default(),
        tmem: TensorMemory::new(context),
    }
}

/// Completes one copy in flight or one commit of operations on tensor memory, chosen at random. Called when no warp can run:
/// this is the last moment at which it may complete. Returns whether there was one.
fn land_one(state: &mut UnitState<'_, '_>, random: &mut Random) -> Result<bool, Box<Fault>> {
    let commits =
        |block: &Block| usize::from(block.tmem.as_ref().is_some_and(|of| of.has_commits()));
    let in_flight = |block: &Block| block.copies_in_flight.len() + commits(block);
    let all: usize = state.blocks.iter().map(in_flight).sum();
    if all == 0 {
        return Ok(false);
    }
    let mut at = random.below(all as u64) as usize;
    for block in 0..state.blocks.len() {
        let copies = state.blocks[block].copies_in_flight.len();
        if at < copies {
            land(state, block, at);
            return Ok(true);
        }
        at -= copies;
        let commits = commits(&state.blocks[block]);
        if at < commits {
            tmem::land(state, block).map_err(|failed| unit_fault(state, block, *failed))?;
            return Ok(true);
        }
        at -= commits;
    }
    Ok(false)
}

/// A fault of an operation that no warp executes.
fn unit_fault(state: &UnitState<'_, '_>, block: usize, failed: tmem::Failed) -> Box<Fault> {
    Box::new(Fault {
        kernel: state.context.kernel.name.clone(),
        point: Some(state.point(failed.point)),
        block: Some(state.context.coordinates(state.block_number(block))),
        warp: None,
        lane: None,
        kind: failed.kind,
    })
}

fn fault<const L: usize>(
    state: &UnitState<'_, '_>,
    warp: &Warp<L>,
    error: StepError,
) -> Box<Fault> {
    let context = state.context;
    let point = context.program.steps.get(warp.at).map(|step| state.point(step.point));
    Box::new(Fault {
        kernel: context.kernel.name.clone(),
        point,
        block: Some(context.coordinates(state.block_number(warp.block))),
        warp: Some(warp.number),
        lane: error.lane.filter(|&lane| lane != u32::from(ALL_LANES)),
        kind: error.kind,
    })
}

/// The fault of a unit in which no warp can run: a barrier that some warps never reach, or a wait
/// for an event that never happens.
fn deadlock<const L: usize>(state: &UnitState<'_, '_>, warps: &[Warp<L>]) -> Box<Fault> {
    let waiting = warps.iter().filter(|warp| warp.state != WarpState::Done);
    let mut lines = Vec::new();
    let mut divergent = None;
    for warp in waiting {
        // A warp in a barrier has already advanced past it; a warp at an mbarrier wait has not.
        let behind = matches!(warp.state, WarpState::AtBarrier { .. });
        let step = &state.context.program.steps[warp.at - usize::from(behind)];
        let block = state.block_number(warp.block);
        lines.push(format!("block {block} warp {} at {}", warp.number, state.point(step.point)));
        if let WarpState::AtBarrier { which: BarrierKind::Block | BarrierKind::Cluster, .. } =
            warp.state
        {
            divergent = divergent.or(Some((warp, step.point)));
        }
    }
    lines.truncate(8);
    let left = warps.iter().any(|warp| warp.state == WarpState::Done);
    let (kind, at) = match divergent {
        Some((warp, point)) if left => (FaultKind::Divergent("warps"), Some((warp, point))),
        other => (FaultKind::Deadlock(lines), other),
    };
    let first = warps.iter().find(|warp| warp.state != WarpState::Done);
    let point = at
        .map(|(_, point)| point)
        .or_else(|| first.map(|warp| state.context.program.steps[warp.at].point));
    let warp = at.map(|(warp, _)| warp).or(first);
    Box::new(Fault {
        kernel: state.context.kernel.name.clone(),
        point: point.map(|point| state.point(point)),
        block: warp.map(|warp| state.context.coordinates(state.block_number(warp.block))),
        warp: warp.map(|warp| warp.number),
        lane: None,
        kind,
    })
}

/// Checks at the end of a unit that no copy is in flight, and that the warps of each warp group
/// ran the same matrix operations.
fn check_end<const L: usize>(
    state: &UnitState<'_, '_>,
    warps: &[Warp<L>],
) -> Result<(), Box<Fault>> {
    for (at, block) in state.blocks.iter().enumerate() {
        if let Some(copy) = block.copies_in_flight.first() {
            let warp = &warps[at * state.context.warps];
            let kind = FaultKind::Unfinished(state.point(copy.point));
            return Err(fault(state, warp, StepError { lane: None, kind }));
        }
        if let Some(tmem) = &block.tmem {
            let warp = &warps[at * state.context.warps];
            let kind = match tmem.unfinished() {
                Some(point) => FaultKind::Unfinished(state.point(point)),
                None if tmem.holds_columns() => FaultKind::Tmem(TmemMisuse::NotFreed),
                None => continue,
            };
            return Err(fault(state, warp, StepError { lane: None, kind }));
        }
    }
    for (at, block) in state.blocks.iter().enumerate() {
        let own = &warps[at * state.context.warps..(at + 1) * state.context.warps];
        let waits = |read: &AccessRecord| own.iter().any(|warp| warp.observer(0).follows(0, read));
        if let Some(read) = block.used_by_others.iter().find(|read| !waits(read)) {
            let kind = FaultKind::EndsEarly(state.conflicting_access(read, false));
            return Err(fault(state, &own[0], StepError { lane: None, kind }));
        }
    }
    if state.context.program.matrix_groups {
        for group in warps.chunks(4) {
            if let Some(warp) =
                group.iter().find(|warp| warp.group_op_hash != group[0].group_op_hash)
            {
                let kind = FaultKind::Divergent("warps of the warp group");
                return Err(fault(state, warp, StepError { lane: None, kind }));
            }
        }
    }
    Ok(())
}
