//! The kernel `combine`: the sum of a token's parts, each times its router weight.

use quantloom_dsl::format::{F32, FloatFormat};
use quantloom_dsl::{BufferRole, Dimension};

use super::elements::{Elements, partition};
use crate::ir::{
    Access, Address, BufferId, Builder, Cache, Compare, Extent, Kernel, LaunchConfig, Op, Operand,
    Special, Ternary, Type, Width, Word,
};
use crate::schedule::order::{NONE, OrderArray};
use crate::target::{Feature, Target};

/// The sum of a layer's parts on a target.
#[derive(Clone, Copy, Debug)]
pub struct CombineProblem {
    /// The target, a GPU.
    pub target: &'static Target,
    /// The type of parts.
    pub parts: FloatFormat,
    /// The type of the result of shared experts.
    pub own: FloatFormat,
    /// The type of y.
    pub output: FloatFormat,
    /// H: columns of y.
    pub hidden: u32,
    /// k.
    pub top_k: u32,
    /// L: the experts that are here.
    pub local: u32,
    /// B: the slots of a token block; `None` if pairs are not sorted, and ids say which experts are here.
    pub slots: Option<u32>,
    /// Whether parts are multiplied by router weights here; otherwise by 1.
    pub weighted: bool,
    /// Whether the result of shared experts is added.
    pub shared: bool,
}

/// Parts that are loaded before the first of them is added.
const AHEAD: u32 = 8;

/// Writes the kernel. Its parameters are m, the tokens, at least 1, and the numbers of pairs and of token
/// blocks.
///
/// | buffer | words | condition |
/// |---|---|---|
/// | `slots` | u32, see `schedule::order` | pairs are sorted |
/// | `ids` | u32 `[R]`: an expert that is here below L | pairs are not sorted |
/// | `parts` | f32 or 16 bits [R, H], rows of pairs without an expert here unwritten | |
/// | `router_weights` | f32 [M, k] | parts are weighted |
/// | `shared_y` | own [M, H] | there are shared experts |
/// | `y` | output [M, H] | written |
///
/// The sum is in f32, in the order of choice: each part by one fused multiply-add, then `shared_y`, then one
/// rounding to the type of y. Pairs without an expert here are left out, whatever their weights are.
pub fn combine(problem: &CombineProblem) -> Kernel {
    let &CombineProblem { target, parts, own, output, hidden, top_k, .. } = problem;
    let &CombineProblem { local, slots, weighted, shared, .. } = problem;
    let [of_parts, of_shared, of_y] = Elements::alike([parts, own, output], hidden);
    let of = if parts == F32 { String::new() } else { format!("{parts}_") };
    let unit = of_parts.unit;
    let warp = target.gpu.map_or(1, |gpu| gpu.warp);
    let (threads, blocks) = partition(warp, hidden / unit);
    let programmatic = target.has(Feature::GridDependency);
    let grid = [Extent::Constant(1); 3];
    let launch = LaunchConfig { grid, threads, min_blocks: 1, cluster: 1, programmatic };
    let blocks_of = slots.map_or("ids".to_owned(), |slots| format!("b{slots}"));
    let name = format!(
        "combine_{of}{own}_{output}_h{hidden}k{top_k}e{local}{blocks_of}__{}",
        target.name.replace('_', "")
    );
    let summary = format!("y[m, {hidden}]: the sum of {top_k} parts a token.");
    let mut b = Builder::new(&name, &summary, target, launch);
    let m = b.size(Dimension::M, "tokens, at least 1");
    b.grid([Extent::Parameter(m), Extent::Constant(blocks), Extent::Constant(1)]);
    let read = Access::ReadOnly;
    let (sorted, pairs) = match slots {
        Some(slots) => {
            let order = OrderArray::declare(&mut b, (local, slots), read);
            (Sorted::Order(order), order.pairs)
        }
        None => {
            let pairs = b.size(Dimension::RoutedRows, "pairs of a token and an expert");
            let shape = [Extent::Parameter(pairs)];
            let ids = b.buffer_of(BufferRole::Ids, Word::U32, read, &shape, "u32 [pair]");
            (Sorted::Ids { ids, local }, pairs)
        }
    };
    let shape = [Extent::Parameter(pairs), Extent::Constant(hidden)];
    let parts = of_parts.buffer(&mut b, BufferRole::Parts, read, &shape, "[h, pair]");
    let weights = weighted.then(|| {
        let shape = [Extent::Parameter(pairs)];
        b.buffer_of(BufferRole::RouterWeights, Word::U32, read, &shape, "f32 [pair]")
    });
    let shape = [Extent::Parameter(m), Extent::Constant(hidden)];
    let shared =
        shared.then(|| of_shared.buffer(&mut b, BufferRole::Shared, read, &shape, "[h, m]"));
    let y = of_y.buffer(&mut b, BufferRole::Y, Access::WriteOnce, &shape, "[h, m]");
    let (token, part) = (b.special(Special::Block(0)), b.special(Special::Block(1)));
    let thread = b.special(Special::Thread);
    let number = b.mad(part, threads, thread);
    let column = b.mul(number, unit);
    let inside = match (blocks * threads * unit) == hidden {
        true => Operand::Pred(true),
        false => b.less(column, hidden),
    };
    let condition = (inside != Operand::Pred(true)).then_some(inside);
    if programmatic {
        b.push(Op::GridLaunch);
        b.push(Op::GridWait);
    }
    let first = b.mul(token, top_k);
    let mut sums = vec![Operand::F32(0.0); unit as usize];
    for choices in (0..top_k).step_by(AHEAD as usize) {
        let choices = choices..top_k.min(choices + AHEAD);
        let loaded: Vec<_> = choices
            .map(|choice| {
                let pair = b.add(first, choice);
                let here = sorted.has(&mut b, pair);
                let weight = weights.map_or(Operand::F32(1.0), |weights| {
                    let from = Address::new(weights, pair);
                    b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0].into()
                });
                let at = b.mad(pair, hidden, column);
                let loads = b.both(here, inside);
                (here, weight, of_parts.load(&mut b, Address::new(parts, at), Some(loads)))
            })
            .collect();
        for (here, weight, values) in loaded {
            for (sum, value) in sums.iter_mut().zip(values) {
                let more = b.ternary(Ternary::Fma, weight, value, *sum);
                *sum = b.select(here, more, *sum);
            }
        }
    }
    let at = b.mad(token, hidden, column);
    if let Some(shared) = shared {
        let values = of_shared.load(&mut b, Address::new(shared, at), condition);
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = b.add_f32(*sum, value);
        }
    }
    of_y.store(&mut b, Address::new(y, at), &sums, condition);
    b.finish()
}

/// What says which pairs have an expert here.
#[derive(Clone, Copy)]
enum Sorted {
    Order(OrderArray),
    Ids { ids: BufferId, local: u32 },
}

impl Sorted {
    /// Whether the expert of a pair is here.
    fn has(self, b: &mut Builder, pair: Operand) -> Operand {
        match self {
            Self::Order(order) => {
                let words = order.words(b);
                let from = words.slot(b, pair);
                let slot = b.load(from, Width::B32)[0];
                b.compare(Compare::NotEqual, slot, NONE)
            }
            Self::Ids { ids, local } => {
                let id = b.load(Address::new(ids, pair), Width::B32)[0];
                b.less(id, local)
            }
        }
    }
}
