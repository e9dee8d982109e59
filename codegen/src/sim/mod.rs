//! The simulator: runs a kernel of the [IR](crate::ir) on the CPU and reports its first fault.
//!
//! In: a kernel, [`Arguments`] and [`SimulationOptions`]. Out: the buffers that it wrote and a [`Report`] of
//! what it cost, or the first [`Fault`]: what happened, in which block, warp and lane, at which
//! program point, and the point of a conflicting access.
//!
//! The simulator uses every freedom that the IR's semantics give to a chip against the program:
//! memory and registers hold poison until they are written; an asynchronous operation completes at
//! the last moment that its wait allows, and using its result earlier is an error; two accesses
//! without an order are a race, even if the order of this run is harmless; a seed decides the order
//! of warps and blocks.
//!
//! Reading order: this file; `program` and `lower` (operations with flat control flow); `warp` and
//! `step` (execution); `lanes` and `half` (arithmetic); `access`, `copies`, `mbarrier`, `matrix`,
//! `tmem` (operations on memory); `clock`, `shared`, `global` (race detection); `unit` (scheduling of
//! warps); `fault`, `misuse` and `count` (results).

mod access;
mod argument;
mod atomics;
mod barrier;
mod clock;
mod copies;
mod count;
mod exchange;
mod fault;
mod global;
mod guess;
mod half;
mod lanes;
mod lower;
mod matrix;
mod mbarrier;
mod misuse;
mod program;
mod random;
mod shared;
mod state;
mod step;
mod tensor;
mod tmem;
mod unit;
mod warp;

#[cfg(test)]
mod tests;

use rayon::prelude::*;

use crate::ir::{self, Extent, Kernel, Space, Verified};
use count::Banks;
use global::{GlobalMemory, OutputStore, Workspace};
use random::Random;
use state::LaunchContext;
use unit::UnitOutcome;

pub use crate::ir::InstructionClass;
pub use argument::{Arguments, Contents};
pub use count::{AccessCount, Report};
pub use fault::{ConflictingAccess, Fault, FaultKind, MemoryLocation, ProgramPoint};
pub use misuse::{BarrierMisuse, LaunchMismatch, TmemMisuse};

/// How to run.
#[derive(Clone, Debug)]
pub struct SimulationOptions {
    /// Decides the order of blocks, of warps, and of the asynchronous operations that complete.
    pub seed: u64,
    /// Sums of FP8 matrix products are truncated to 13 fraction bits, as Hopper and Ada may do; a
    /// schedule that does not promote its sums to f32 in time then misses its bound.
    pub truncate_fp8: bool,
    /// A warp that runs more instructions than this is in an infinite loop.
    pub limit: u64,
    /// Blocks of a grid that persists, which has as many as the device has multiprocessors.
    pub multiprocessors: u32,
}

impl Default for SimulationOptions {
    fn default() -> Self {
        // Few, so that a block of a small product has several tiles.
        Self { seed: 0, truncate_fp8: false, limit: 1 << 32, multiprocessors: 4 }
    }
}

/// Runs a kernel. Afterwards the write-once buffers and workspaces of `arguments` hold its results.
///
/// # Errors
/// The first [`Fault`]; if blocks run in parallel, the first in the order of the seed.
pub fn run(
    kernel: &Verified<Kernel>,
    arguments: &mut Arguments,
    options: &SimulationOptions,
) -> Result<Report, Box<Fault>> {
    run_unverified(kernel, arguments, options)
}

/// Runs a kernel that the verifier may refuse: the simulator checks kernels without the verifier's
/// help, and its tests show that.
fn run_unverified(
    kernel: &Kernel,
    arguments: &mut Arguments,
    options: &SimulationOptions,
) -> Result<Report, Box<Fault>> {
    let launch = |mismatch: LaunchMismatch| {
        let kind = FaultKind::Launch(mismatch);
        let kernel = kernel.name.clone();
        Box::new(Fault { kernel, point: None, block: None, warp: None, lane: None, kind })
    };
    arguments.check(kernel).map_err(launch)?;
    let gpu =
        kernel.target.gpu.ok_or_else(|| launch(LaunchMismatch::NotAGpu(kernel.target.name)))?;
    let grid = grid(kernel, (&arguments.parameters, options.multiprocessors)).map_err(launch)?;
    let cluster = kernel.launch.cluster.max(1);
    if !grid[0].is_multiple_of(cluster) {
        return Err(launch(LaunchMismatch::PartialCluster { blocks: grid[0], cluster }));
    }
    if kernel.launch.threads == 0 || !kernel.launch.threads.is_multiple_of(gpu.warp) {
        let threads = kernel.launch.threads;
        return Err(launch(LaunchMismatch::PartialWarp { threads, warp: gpu.warp }));
    }
    let map = kernel.shared_map();
    if map.bytes > gpu.block_shared {
        let most = gpu.block_shared;
        return Err(launch(LaunchMismatch::SharedBytes { bytes: map.bytes, most }));
    }
    let program = lower::lower(kernel);
    let context = LaunchContext {
        kernel,
        program: &program,
        map: &map,
        parameters: &arguments.parameters,
        grid,
        options,
        banks: Banks::new(gpu),
        shuffle_lanes: match kernel.launch.threads.is_multiple_of(gpu.shuffle_group.block_multiple)
        {
            true => gpu.shuffle_group.lanes,
            false => 1,
        },
        warps: kernel.warps() as usize,
        mbarriers: kernel.barriers.iter().map(|array| array.len as usize).sum(),
        cluster: cluster as usize,
        shared_cell_log2: cell_log2(kernel, |space| matches!(space, Space::Shared(_))),
    };
    let units = grid.iter().product::<u32>() / cluster;
    let all = match gpu.warp {
        64 => run_units::<64>(&context, units, &mut arguments.buffers),
        16 => run_units::<16>(&context, units, &mut arguments.buffers),
        _ => run_units::<32>(&context, units, &mut arguments.buffers),
    }?;
    let tally = merge(&context, all, &mut arguments.buffers)?;
    Ok(Report {
        kernel: kernel.name.clone(),
        target: kernel.target.name,
        blocks: u64::from(units) * u64::from(cluster),
        warps: kernel.warps(),
        shared_bytes: map.bytes,
        instructions: InstructionClass::ALL
            .iter()
            .map(|&class| (class, tally.classes[class as usize]))
            .collect(),
        bytes_in_flight: tally.bytes_in_flight,
        accesses: tally.accesses(kernel),
    })
}

fn grid(
    kernel: &Kernel,
    (parameters, multiprocessors): (&[u32], u32),
) -> Result<[u32; 3], LaunchMismatch> {
    let mut grid = [0; 3];
    for (size, extent) in grid.iter_mut().zip(kernel.launch.grid) {
        *size = match extent {
            Extent::Multiprocessors => {
                multiprocessors.next_multiple_of(kernel.launch.cluster.max(1))
            }
            _ => extent.value(parameters).ok_or(LaunchMismatch::UnknownGrid)?,
        };
    }
    let blocks: u64 = grid.iter().map(|&size| u64::from(size)).product();
    match blocks {
        0 => Err(LaunchMismatch::EmptyGrid),
        1..=0xffff_ffff => Ok(grid),
        _ => Err(LaunchMismatch::LargeGrid),
    }
}

/// Runs all units in the order of the seed; in parallel if the kernel has no workspace.
fn run_units<const L: usize>(
    context: &LaunchContext<'_>,
    units: u32,
    buffers: &mut [Contents],
) -> Result<Vec<UnitOutcome>, Box<Fault>> {
    let access: Vec<ir::Access> =
        context.kernel.buffers.iter().map(|buffer| buffer.access).collect();
    let mut order: Vec<u32> = (0..units).collect();
    let mut random = Random::new(context.options.seed);
    random.shuffle(&mut order);
    let seed = |unit: u32| Random::new(context.options.seed ^ (u64::from(unit) + 1) << 20);
    if !access.contains(&ir::Access::Workspace) {
        let contents: &[Contents] = buffers;
        let one = |&unit: &u32| {
            let memory =
                GlobalMemory { access: &access, contents, workspaces: &mut [], stored: Vec::new() };
            unit::run::<L>(context, unit, memory, seed(unit))
        };
        // Run all units, then take the first fault in order: this makes the result deterministic.
        let all: Vec<Result<UnitOutcome, Box<Fault>>> = order.par_iter().map(one).collect();
        return all.into_iter().collect();
    }
    let mut workspaces: Vec<Option<Workspace>> = Vec::new();
    for (id, (access, contents)) in access.iter().zip(buffers.iter()).enumerate() {
        let id = ir::BufferId(id as u32);
        let cell_log2 = cell_log2(context.kernel, |space| space == Space::Global(id));
        let workspace = *access == ir::Access::Workspace;
        workspaces.push(workspace.then(|| Workspace::new(contents.clone(), cell_log2)));
    }
    let mut all = Vec::new();
    for unit in order {
        let memory = GlobalMemory {
            access: &access,
            contents: buffers,
            workspaces: &mut workspaces,
            stored: Vec::new(),
        };
        all.push(unit::run::<L>(context, unit, memory, seed(unit))?);
    }
    for (buffer, workspace) in buffers.iter_mut().zip(workspaces) {
        if let Some(workspace) = workspace {
            *buffer = workspace.contents;
        }
    }
    Ok(all)
}

/// Copies the stores of all units into the buffers that are only written, and checks that each byte is
/// written at most once, and if the buffer is to be written whole, exactly once. A byte without a store
/// is poison.
fn merge(
    context: &LaunchContext<'_>,
    all: Vec<UnitOutcome>,
    buffers: &mut [Contents],
) -> Result<count::Tally, Box<Fault>> {
    let kernel = context.kernel;
    let mut tally = count::Tally::new(context.program.points);
    let whole = |at: &usize| kernel.buffers[*at].access == ir::Access::WriteOnce;
    let outputs: Vec<usize> = (0..buffers.len())
        .filter(|at| whole(at) || kernel.buffers[*at].access == ir::Access::WriteSome)
        .collect();
    for &at in &outputs {
        buffers[at] = Contents::poison(buffers[at].bytes.len());
    }
    let mut stored: Vec<OutputStore> = Vec::new();
    for outcome in all {
        tally.join(&outcome.tally);
        for store in &outcome.stored {
            let (start, bytes) = (store.byte as usize, usize::from(store.bytes));
            let contents = &mut buffers[store.buffer as usize];
            if (start..start + bytes).any(|byte| contents.known(byte, 1)) {
                stored.extend(&outcome.stored);
                return Err(stored_twice(context, &stored, store));
            }
            contents.set(start, &store.data[..bytes]);
        }
        stored.extend(outcome.stored);
    }
    for at in outputs.into_iter().filter(whole) {
        if let Some((first, missing)) = buffers[at].missing() {
            let word = u64::from(kernel.buffers[at].word.bytes());
            let array = kernel.buffers[at].name.clone();
            let location = MemoryLocation { array, word: first as u64 / word };
            let kind = FaultKind::NeverWritten { location, missing: missing as u64 / word };
            let kernel = kernel.name.clone();
            return Err(Box::new(Fault {
                kernel,
                point: None,
                block: None,
                warp: None,
                lane: None,
                kind,
            }));
        }
    }
    Ok(tally)
}

fn stored_twice(
    context: &LaunchContext<'_>,
    all: &[OutputStore],
    second: &OutputStore,
) -> Box<Fault> {
    let kernel = context.kernel;
    let range = |store: &OutputStore| store.byte..store.byte + u64::from(store.bytes);
    let overlaps = |first: &&OutputStore| {
        let (a, b) = (range(first), range(second));
        first.buffer == second.buffer && a.start < b.end && b.start < a.end
    };
    let buffer = &kernel.buffers[second.buffer as usize];
    let word = second.byte / u64::from(buffer.word.bytes());
    let location = MemoryLocation { array: buffer.name.clone(), word };
    let first = all.iter().find(overlaps).unwrap_or(second);
    let [x, y, z] = context.coordinates(first.block);
    let who = format!("block ({x}, {y}, {z}) warp {} lane {}", first.warp, first.lane);
    let other = ConflictingAccess { point: fault::point(kernel, first.point), wrote: true, who };
    Box::new(Fault {
        kernel: kernel.name.clone(),
        point: Some(fault::point(kernel, second.point)),
        block: Some(context.coordinates(second.block)),
        warp: Some(u32::from(second.warp)),
        lane: Some(u32::from(second.lane)),
        kind: FaultKind::StoredTwice { location, other },
    })
}

/// log2 of the bytes of a cell: the narrowest access to the wanted arrays, at most 4 bytes.
fn cell_log2(kernel: &Kernel, wanted: impl Fn(Space) -> bool) -> u32 {
    let mut narrowest = 4;
    ir::each_op(&kernel.body, &mut |op| {
        for access in op.memory_accesses() {
            if wanted(access.address.space) && access.bytes > 0 {
                narrowest = narrowest.min(access.bytes);
            }
        }
    });
    narrowest.ilog2()
}
