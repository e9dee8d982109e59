//! The simulator: runs a kernel of the [IR](crate::ir) on the CPU, as its strictest critic.
//!
//! In: a kernel, [`Arguments`] and [`Options`]. Out: the buffers that it wrote and a [`Report`] of
//! what it cost, or the first [`Fault`]: what happened, in which block, warp and lane, at which
//! program point, and with which other point it clashed.
//!
//! Every permission that the IR's semantics give to a chip is used against the program: memory and
//! registers hold poison until they are written; what is asynchronous lands at the last moment
//! that it may, and taking it before is an error; accesses that nothing orders are a race even
//! where the order of this run would have been harmless; warps and blocks run in an order that a
//! seed decides.
//!
//! Reading order: this file, `program` (the flat program) and `decode`, `warp` and `step` (how it
//! runs), `lanes` and `half` (arithmetic), `access`, `copies`, `mbarrier`, `products` (what touches
//! memory), `clock`, `shared`, `global` (who may), `unit` (scheduling), `fault` and `count` (what
//! comes out).

mod access;
mod argument;
mod atomics;
mod barrier;
mod clock;
mod copies;
mod count;
mod decode;
mod exchange;
mod fault;
mod global;
mod half;
mod lanes;
mod mbarrier;
mod products;
mod program;
mod random;
mod shared;
mod step;
mod tensor;
mod unit;
mod warp;
mod world;

#[cfg(test)]
mod tests;

use rayon::prelude::*;

use crate::ir::{self, Body, Kernel, Op, Space, Statement, Verified};
use count::Banks;
use global::{Memory, Stored, Workspace};
use random::Random;
use unit::Left;
use world::Setting;

pub use argument::{Arguments, Contents};
pub use count::{Access, Report};
pub use fault::{Fault, FaultKind, Other, Place, Point};
pub use program::Class;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides the order of blocks and warps, and of what lands.
    pub seed: u64,
    /// FP8 matrix products are summed with 13 fraction bits and truncated, as Hopper and Ada may;
    /// a schedule that does not promote its sums to f32 in time then misses its bound.
    pub truncate_fp8: bool,
    /// Instructions of a warp after which it counts as endless.
    pub limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, truncate_fp8: false, limit: 1 << 32 }
    }
}

/// Runs a kernel on these arguments, whose write-once buffers and workspaces then hold what it left.
///
/// # Errors
/// The first [`Fault`]; where blocks run side by side, the first in the order of the seed.
pub fn run(
    kernel: &Verified<Kernel>,
    arguments: &mut Arguments,
    options: &Options,
) -> Result<Report, Box<Fault>> {
    run_unverified(kernel, arguments, options)
}

/// Runs a kernel that the verifier may refuse: the simulator judges by itself, and its tests show
/// that it does.
fn run_unverified(
    kernel: &Kernel,
    arguments: &mut Arguments,
    options: &Options,
) -> Result<Report, Box<Fault>> {
    let launch = |problem: String| {
        let kind = FaultKind::Launch(problem);
        let kernel = kernel.name.clone();
        Box::new(Fault { kernel, point: None, block: None, warp: None, lane: None, kind })
    };
    arguments.check(kernel).map_err(launch)?;
    let gpu = kernel.target.gpu.ok_or_else(|| launch(format!("{} is no GPU", kernel.target)))?;
    let grid = grid(kernel, &arguments.parameters).map_err(launch)?;
    let cluster = kernel.launch.cluster.max(1);
    if !grid[0].is_multiple_of(cluster) {
        return Err(launch(format!("{} blocks in x do not make clusters of {cluster}", grid[0])));
    }
    if kernel.launch.threads == 0 || !kernel.launch.threads.is_multiple_of(gpu.warp) {
        let threads = kernel.launch.threads;
        return Err(launch(format!("{threads} threads are no whole warps of {}", gpu.warp)));
    }
    let map = kernel.shared_map();
    if map.bytes > gpu.block_shared {
        let most = gpu.block_shared;
        return Err(launch(format!("{} bytes of shared memory, at most {most}", map.bytes)));
    }
    let program = decode::decode(kernel, &arguments.parameters);
    let set = Setting {
        kernel,
        program: &program,
        map: &map,
        parameters: &arguments.parameters,
        grid,
        options,
        banks: Banks::new(gpu),
        neighbours: match kernel.launch.threads.is_multiple_of(gpu.exchange.threads) {
            true => gpu.exchange.lanes,
            false => 1,
        },
        warps: kernel.warps() as usize,
        mbarriers: kernel.barriers.iter().map(|array| array.len as usize).sum(),
        cluster: cluster as usize,
        shared_grain: grain(kernel, |space| matches!(space, Space::Shared(_))),
    };
    let units = grid.iter().product::<u32>() / cluster;
    let all = match gpu.warp {
        64 => run_units::<64>(&set, units, &mut arguments.buffers),
        16 => run_units::<16>(&set, units, &mut arguments.buffers),
        _ => run_units::<32>(&set, units, &mut arguments.buffers),
    }?;
    let tally = merge(&set, all, &mut arguments.buffers)?;
    Ok(Report {
        kernel: kernel.name.clone(),
        target: kernel.target.name,
        blocks: u64::from(units) * u64::from(cluster),
        warps: kernel.warps(),
        shared_bytes: map.bytes,
        instructions: Class::ALL
            .iter()
            .map(|&class| (class, tally.classes[class as usize]))
            .collect(),
        bytes_in_flight: tally.bytes_in_flight,
        accesses: tally.accesses(kernel),
    })
}

fn grid(kernel: &Kernel, parameters: &[u32]) -> Result<[u32; 3], String> {
    let mut grid = [0; 3];
    for (size, extent) in grid.iter_mut().zip(kernel.launch.grid) {
        let value = extent.value(parameters).ok_or("the grid has no value")?;
        *size = value;
    }
    let blocks: u64 = grid.iter().map(|&size| u64::from(size)).product();
    match blocks {
        0 => Err("the grid is empty".to_owned()),
        1..=0xffff_ffff => Ok(grid),
        _ => Err("the grid has 2^32 blocks or more".to_owned()),
    }
}

/// Units in the order of the seed: side by side where no workspace connects them.
fn run_units<const L: usize>(
    set: &Setting<'_>,
    units: u32,
    buffers: &mut [Contents],
) -> Result<Vec<Left>, Box<Fault>> {
    let access: Vec<ir::Access> = set.kernel.buffers.iter().map(|buffer| buffer.access).collect();
    let mut order: Vec<u32> = (0..units).collect();
    let mut random = Random::new(set.options.seed);
    random.shuffle(&mut order);
    let seed = |unit: u32| Random::new(set.options.seed ^ (u64::from(unit) + 1) << 20);
    if !access.contains(&ir::Access::Workspace) {
        let contents: &[Contents] = buffers;
        let one = |&unit: &u32| {
            let memory =
                Memory { access: &access, contents, workspaces: &mut [], stored: Vec::new() };
            unit::run::<L>(set, unit, memory, seed(unit))
        };
        // All of them, then the first fault in order: the same every time.
        let all: Vec<Result<Left, Box<Fault>>> = order.par_iter().map(one).collect();
        return all.into_iter().collect();
    }
    let mut workspaces: Vec<Option<Workspace>> = Vec::new();
    for (id, (access, contents)) in access.iter().zip(buffers.iter()).enumerate() {
        let id = ir::BufferId(id as u32);
        let grain = grain(set.kernel, |space| space == Space::Global(id));
        let workspace = *access == ir::Access::Workspace;
        workspaces.push(workspace.then(|| Workspace::new(contents.clone(), grain)));
    }
    let mut all = Vec::new();
    for unit in order {
        let memory = Memory {
            access: &access,
            contents: buffers,
            workspaces: &mut workspaces,
            stored: Vec::new(),
        };
        all.push(unit::run::<L>(set, unit, memory, seed(unit))?);
    }
    for (buffer, workspace) in buffers.iter_mut().zip(workspaces) {
        if let Some(workspace) = workspace {
            *buffer = workspace.contents;
        }
    }
    Ok(all)
}

/// Puts the stores of all units into the write-once buffers: each byte once, and all of them.
fn merge(
    set: &Setting<'_>,
    all: Vec<Left>,
    buffers: &mut [Contents],
) -> Result<count::Tally, Box<Fault>> {
    let kernel = set.kernel;
    let mut tally = count::Tally::new(set.program.points);
    let outputs: Vec<usize> = (0..buffers.len())
        .filter(|&at| kernel.buffers[at].access == ir::Access::WriteOnce)
        .collect();
    for &at in &outputs {
        buffers[at] = Contents::poison(buffers[at].bytes.len());
    }
    let mut stored: Vec<Stored> = Vec::new();
    for left in all {
        tally.join(&left.tally);
        for store in &left.stored {
            let (start, bytes) = (store.byte as usize, usize::from(store.bytes));
            let contents = &mut buffers[store.buffer as usize];
            if (start..start + bytes).any(|byte| contents.known(byte, 1)) {
                stored.extend(&left.stored);
                return Err(twice(set, &stored, store));
            }
            contents.set(start, &store.data[..bytes]);
        }
        stored.extend(left.stored);
    }
    for at in outputs {
        if let Some((first, missing)) = buffers[at].missing() {
            let word = u64::from(kernel.buffers[at].word.bytes());
            let array = kernel.buffers[at].name.clone();
            let place = Place { array, word: first as u64 / word };
            let kind = FaultKind::NeverWritten { place, missing: missing as u64 / word };
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

fn twice(set: &Setting<'_>, all: &[Stored], second: &Stored) -> Box<Fault> {
    let kernel = set.kernel;
    let range = |store: &Stored| store.byte..store.byte + u64::from(store.bytes);
    let overlaps = |first: &&Stored| {
        let (a, b) = (range(first), range(second));
        first.buffer == second.buffer && a.start < b.end && b.start < a.end
    };
    let buffer = &kernel.buffers[second.buffer as usize];
    let word = second.byte / u64::from(buffer.word.bytes());
    let place = Place { array: buffer.name.clone(), word };
    let first = all.iter().find(overlaps).unwrap_or(second);
    let [x, y, z] = set.coordinates(first.block);
    let who = format!("block ({x}, {y}, {z}) warp {} lane {}", first.warp, first.lane);
    let other = Other { point: fault::point(kernel, first.point), wrote: true, who };
    Box::new(Fault {
        kernel: kernel.name.clone(),
        point: Some(fault::point(kernel, second.point)),
        block: Some(set.coordinates(second.block)),
        warp: Some(u32::from(second.warp)),
        lane: Some(u32::from(second.lane)),
        kind: FaultKind::StoredTwice { place, other },
    })
}

/// log2 of the narrowest access to these arrays, at most 4 bytes.
fn grain(kernel: &Kernel, wanted: impl Fn(Space) -> bool + Copy) -> u32 {
    fn narrowest(body: &Body, wanted: impl Fn(Space) -> bool + Copy) -> u32 {
        let in_op = |op: &Op| match op {
            Op::Load { from: at, width, .. } | Op::Store { to: at, width, .. }
                if wanted(at.space) =>
            {
                width.bytes()
            }
            _ => 4,
        };
        body.iter()
            .map(|statement| match statement {
                Statement::Op(op) => in_op(op),
                Statement::If { then, otherwise, .. } => {
                    narrowest(then, wanted).min(narrowest(otherwise, wanted))
                }
                Statement::For { body, .. } => narrowest(body, wanted),
                Statement::While { test, body, .. } => {
                    narrowest(test, wanted).min(narrowest(body, wanted))
                }
                Statement::Roles(roles) => {
                    let all = roles.iter().map(|role| narrowest(&role.body, wanted));
                    all.min().unwrap_or(4)
                }
            })
            .min()
            .unwrap_or(4)
    }
    narrowest(&kernel.body, wanted).clamp(1, 4).ilog2()
}
