//! The kernel `weigh`: rows of x times the router weight of their token, for layers whose weight is on the
//! input.

use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::{BufferRole, Dimension};

use super::elements::{Elements, partition};
use crate::ir::{
    Access, Address, Builder, Cache, Extent, Kernel, LaunchConfig, Op, Operand, Special, Type,
    Width, Word,
};
use crate::target::{Feature, Target};

/// Weighted rows on a target; k is 1.
#[derive(Clone, Copy, Debug)]
pub struct WeighProblem {
    /// The target, a GPU.
    pub target: &'static Target,
    /// T: the type of x and of the result.
    pub own: FloatFormat,
    /// H: columns of x.
    pub hidden: u32,
}

/// Writes the kernel. Its parameter is m, the tokens, at least 1.
///
/// | buffer | words | |
/// |---|---|---|
/// | `x` | own [M, H] | |
/// | `router_weights` | f32 `[M]` | |
/// | `weighted` | own [M, H]: the product in f32, rounded | written |
pub fn weigh(problem: &WeighProblem) -> Kernel {
    let &WeighProblem { target, own, hidden } = problem;
    let elements = Elements::of(own, hidden);
    let unit = elements.unit;
    let warp = target.gpu.map_or(1, |gpu| gpu.warp);
    let (threads, blocks) = partition(warp, hidden / unit);
    let programmatic = target.has(Feature::GridDependency);
    let grid = [Extent::Constant(1); 3];
    let launch = LaunchConfig { grid, threads, min_blocks: 1, cluster: 1, programmatic };
    let name = format!("weigh_{own}_h{hidden}__{}", target.name.replace('_', ""));
    let summary = format!("x[m, {hidden}] times the router weight of its token.");
    let mut b = Builder::new(&name, &summary, target, launch);
    let m = b.size(Dimension::M, "tokens, at least 1");
    b.grid([Extent::Parameter(m), Extent::Constant(blocks), Extent::Constant(1)]);
    let shape = [Extent::Parameter(m), Extent::Constant(hidden)];
    let x = elements.buffer(&mut b, BufferRole::X, Access::ReadOnly, &shape, "[h, m]");
    let (weights, read) = (BufferRole::RouterWeights, Access::ReadOnly);
    let weights = b.buffer_of(weights, Word::U32, read, &shape[..1], "f32 [m]");
    let result = BufferRole::Weighted;
    let result = elements.buffer(&mut b, result, Access::WriteOnce, &shape, "[h, m]");
    let (token, part) = (b.special(Special::Block(0)), b.special(Special::Block(1)));
    let thread = b.special(Special::Thread);
    let number = b.mad(part, threads, thread);
    let column = b.mul(number, unit);
    let inside = match (blocks * threads * unit) == hidden {
        true => None,
        false => Some(b.less(column, hidden)),
    };
    if programmatic {
        b.push(Op::GridLaunch);
        b.push(Op::GridWait);
    }
    let from = Address::new(weights, token);
    let weight = b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0];
    let at = b.mad(token, hidden, column);
    let values = elements.load(&mut b, Address::new(x, at), inside);
    let products: Vec<Operand> = values.into_iter().map(|value| b.mul_f32(value, weight)).collect();
    elements.store(&mut b, Address::new(result, at), &products, inside);
    b.finish()
}
