//! One kernel that sorts the pairs of an expert layer and writes the operand of x, whose rows are those of tokens.
//!
//! Neither needs the other, and a launch less is 1 to 5 us less on an H200 (docs/performance/experts.md). Of the grid `[M, 1 + blocks of a row]`
//! the first row of blocks sorts, so that it begins first: a chunk of pairs a block, blocks beyond the chunks do nothing.
//! All others have a part of a row of the operand each.

use quantloom_dsl::Dimension;

use super::activation::{ActivationProblem, blocks_of_row, write_part};
use super::experts::{CHUNK, Places, SortProblem};
use crate::ir::{Builder, Extent, Kernel, LaunchConfig, Special};
use crate::target::{Class, Feature};

/// Whether one kernel does both for tokens of `top_k` experts each: the operand and the order need one kernel each, WebGPU's limit of
/// buffers does not hold, and chunks are no more than tokens, so that the grid's first row has a block for each
/// (`ceil(M top_k / CHUNK) <= M`).
pub fn takes(operand: &ActivationProblem, order: &SortProblem, top_k: u32) -> bool {
    let single = operand.launches() == 1 && order.launches() == 1;
    let buffers = operand.target.class != Class::Shader;
    single && buffers && top_k <= CHUNK
}

/// The kernel. Its sizes and buffers are those of [`activation`](super::activation::activation) and of
/// [`sort`](super::experts::sort).
pub fn order_with_operand(operand: &ActivationProblem, order: &SortProblem) -> Kernel {
    let target = operand.target;
    let what = format!("{}_with", order.label("order"));
    let summary = format!(
        "Pairs sorted by {} experts, and x[m, {}] as {} [m, {}].",
        order.local, operand.k, operand.operand, operand.padded
    );
    let launch = LaunchConfig {
        grid: [Extent::Constant(1); 3],
        threads: CHUNK,
        min_blocks: 1,
        cluster: 1,
        programmatic: target.has(Feature::GridDependency),
    };
    let mut b = Builder::new(&operand.kernel_name(&what), &summary, target, launch);
    let m = b.size(Dimension::M, "rows of x, at least 1");
    let parts = blocks_of_row(operand, CHUNK);
    b.grid([Extent::Parameter(m), Extent::Constant(1 + parts), Extent::Constant(1)]);
    let places = Places::declare(&mut b, order);
    let [row, line] = [0, 1].map(|axis| b.special(Special::Block(axis)));
    let sorts = b.equal(line, 0u32);
    b.if_else(
        sorts,
        |b| {
            let pairs = b.argument(places.pairs());
            let up = b.add(pairs, CHUNK - 1);
            let chunks = b.div(up, CHUNK);
            let is_chunk = b.less(row, chunks);
            b.when(is_chunk, |b| places.write(b, [row, chunks]));
        },
        |b| {
            let part = b.sub(line, 1u32);
            write_part(b, operand, (m, CHUNK), [row, part]);
        },
    );
    b.finish()
}
