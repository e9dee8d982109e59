//! The kernel `gate`: from the first product's rows to the input of the second, slot by slot.

use quantloom_dsl::BufferRole;
use quantloom_dsl::experts::Gate;
use quantloom_dsl::format::{F32, FloatFormat};

use super::elements::{Elements, partition};
use super::function::gate;
use crate::ir::{
    Access, Address, Builder, Compare, Extent, Kernel, LaunchConfig, Op, Operand, Special, Width,
};
use crate::schedule::order::{NONE, OrderArray};
use crate::target::{Feature, Target};

/// The gate of a layer on a target.
#[derive(Clone, Copy, Debug)]
pub struct GateProblem {
    /// The target, a GPU.
    pub target: &'static Target,
    /// f.
    pub gate: Gate,
    /// T: the type of h.
    pub own: FloatFormat,
    /// I: columns of h.
    pub intermediate: u32,
    /// L: the experts that are here.
    pub local: u32,
    /// B: the slots of a token block.
    pub slots: u32,
}

/// Writes the kernel. Its parameters are the numbers of pairs, at least 1, and of token blocks, T.
///
/// | buffer | words | |
/// |---|---|---|
/// | `slots` | u32, see `schedule::order` | |
/// | `z` | f32 [s, T B, I], rows of slots without a pair unwritten | |
/// | `h` | own [T B, I], 0 in rows of slots without a pair | written |
///
/// Rows of zeros let a kernel quantise all rows of h: a scale over several rows is that of the rows with
/// a pair.
pub fn activate(problem: &GateProblem) -> Kernel {
    let &GateProblem { target, gate: of, own, intermediate, local, slots } = problem;
    let (z_elements, h_elements) =
        (Elements::of(F32, intermediate), Elements::of(own, intermediate));
    let unit = z_elements.unit;
    let warp = target.gpu.map_or(1, |gpu| gpu.warp);
    let (threads, blocks) = partition(warp, intermediate / unit);
    let programmatic = target.has(Feature::GridDependency);
    let grid = [Extent::Constant(1); 3];
    let launch = LaunchConfig { grid, threads, min_blocks: 1, cluster: 1, programmatic };
    let name =
        format!("gate_{own}_i{intermediate}e{local}b{slots}__{}", target.name.replace('_', ""));
    let summary = format!("h[slot, {intermediate}] of z: {of}.");
    let mut b = Builder::new(&name, &summary, target, launch);
    let order = OrderArray::declare(&mut b, (local, slots), Access::ReadOnly);
    let rows = order.all_slots();
    b.grid([rows, Extent::Constant(blocks), Extent::Constant(1)]);
    let shards = of.shards() as u32;
    let shape = [Extent::Constant(shards), rows, Extent::Constant(intermediate)];
    let z =
        z_elements.buffer(&mut b, BufferRole::Summed, Access::ReadOnly, &shape, "[i, slot, shard]");
    let h =
        h_elements.buffer(&mut b, BufferRole::Hidden, Access::WriteOnce, &shape[1..], "[i, slot]");
    let (slot, part) = (b.special(Special::Block(0)), b.special(Special::Block(1)));
    let thread = b.special(Special::Thread);
    let number = b.mad(part, threads, thread);
    let column = b.mul(number, unit);
    let inside = match (blocks * threads * unit) == intermediate {
        true => None,
        false => Some(b.less(column, intermediate)),
    };
    if programmatic {
        b.push(Op::GridLaunch);
        b.push(Op::GridWait);
    }
    let order = order.words(&mut b);
    let from = order.pair(&mut b, slot);
    let pair = b.load(from, Width::B32)[0];
    let held = b.compare(Compare::NotEqual, pair, NONE);
    let at = b.mad(slot, intermediate, column);
    let to = Address::new(h, at);
    b.if_else(
        held,
        |b| {
            let g = z_elements.load(b, Address::new(z, at), inside);
            let u = match shards {
                1 => g.clone(),
                _ => {
                    let rows = b.mul(order.token_blocks, slots);
                    let up = b.mad(rows, intermediate, at);
                    z_elements.load(b, Address::new(z, up), inside)
                }
            };
            let values: Vec<Operand> =
                g.into_iter().zip(u).map(|(g, u)| gate(b, of, g, u)).collect();
            h_elements.store(b, to, &values, inside);
        },
        |b| h_elements.store(b, to, &vec![Operand::F32(0.0); unit as usize], inside),
    );
    b.finish()
}
