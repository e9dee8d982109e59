//! The memory of a call, cut from a workspace.
//!
//! In: the sizes of a layer, a number of tokens. Out: bytes, as a function of the number of tokens
//! alone, whatever experts they meet; and the parts of the workspace.

use quantloom_dsl::format::{BF16, F16, FloatFormat};

use super::super::queue::Line;
use super::blocks::{self, StoredBlock};
use super::op::CpuExperts;
use crate::buffer::{BumpAllocator, bytes_of};
use crate::element::{ValuesMut, bf16, f16};

/// How much of everything a call needs at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// R: choices of all tokens.
    pairs: usize,
    /// Places of experts.
    experts: usize,
    /// Token blocks.
    blocks: usize,
    /// Lines of packed rows of x or of h.
    packed: usize,
    /// Numbers of x times router weights, if they are on the input.
    scaled: usize,
    hidden: usize,
    intermediate: usize,
    /// Lines of a thread, and threads.
    scratch: usize,
    threads: usize,
}

/// The parts of a workspace.
pub(super) struct Memory<'a> {
    /// [M, k]: chosen experts and router weights, if logits are given.
    pub(super) ids: &'a mut [i32],
    pub(super) weights: &'a mut [f32],
    /// `[L + 1]`: the first slot of each expert.
    pub(super) starts: &'a mut [u32],
    /// `[R]`: the pair of each slot, and the slot of each pair.
    pub(super) pairs: &'a mut [u32],
    pub(super) slots: &'a mut [u32],
    pub(super) blocks: &'a mut [StoredBlock],
    /// `[blocks + 1]`: first lines of packed blocks, and first units of blocks.
    pub(super) bounds: &'a mut [u32],
    pub(super) units: &'a mut [u32],
    /// [M, H] in the type of x.
    pub(super) scaled: ValuesMut<'a>,
    pub(super) packed: &'a mut [Line],
    /// [R, I] by slot, in the type of x.
    pub(super) h: ValuesMut<'a>,
    /// [R, H] by slot.
    pub(super) parts: &'a mut [f32],
    /// Memory of the threads.
    pub(super) scratch: &'a mut [Line],
}

impl Sizes {
    /// For `tokens` rows of x with `pairs` slots at most.
    pub(super) fn of(experts: &CpuExperts, tokens: usize, pairs: usize) -> Self {
        let local = experts.local();
        let blocks = blocks::most(local, pairs);
        let stacks = experts.stacks();
        let most = |of: &dyn Fn(usize) -> usize| of(0).max(of(1));
        let layer = experts.description();
        let hidden = layer.hidden as usize;
        Self {
            pairs,
            experts: local,
            blocks,
            packed: most(&|at| stacks[at].most_lines(blocks, pairs)),
            scaled: if layer.weight_on_input { tokens.saturating_mul(hidden) } else { 0 },
            hidden,
            intermediate: layer.intermediate as usize,
            scratch: most(&|at| stacks[at].scratch_lines().max(stacks[at].row_lines())),
            threads: rayon::current_num_threads(),
        }
    }

    /// Bytes of the workspace; [`usize::MAX`] if there are more.
    pub(super) fn bytes(&self) -> usize {
        let Self { pairs, experts, blocks, packed, scaled, .. } = *self;
        let floats = |rows: usize, columns: usize| bytes_of::<f32>(rows.saturating_mul(columns));
        let lines = |lines: usize| bytes_of::<Line>(lines);
        [
            bytes_of::<i32>(pairs),
            bytes_of::<f32>(pairs),
            bytes_of::<u32>(experts + 1),
            bytes_of::<u32>(pairs),
            bytes_of::<u32>(pairs),
            bytes_of::<StoredBlock>(blocks),
            bytes_of::<u32>(blocks + 1),
            bytes_of::<u32>(blocks + 1),
            floats(scaled, 1),
            lines(packed),
            floats(pairs, self.intermediate),
            floats(pairs, self.hidden),
            lines(self.scratch.saturating_mul(self.threads)),
        ]
        .into_iter()
        .fold(0, usize::saturating_add)
    }

    /// Cuts a workspace of at least so many bytes, for x of a type.
    pub(super) fn cut<'a>(&self, cut: &mut BumpAllocator<'a>, x: FloatFormat) -> Memory<'a> {
        let Self { pairs, experts, blocks, packed, scaled, .. } = *self;
        Memory {
            ids: cut.take(pairs),
            weights: cut.take(pairs),
            starts: cut.take(experts + 1),
            pairs: cut.take(pairs),
            slots: cut.take(pairs),
            blocks: cut.take(blocks),
            bounds: cut.take(blocks + 1),
            units: cut.take(blocks + 1),
            scaled: values(cut, x, scaled),
            packed: cut.take(packed),
            h: values(cut, x, pairs * self.intermediate),
            parts: cut.take(pairs * self.hidden),
            scratch: cut.take(self.scratch * self.threads),
        }
    }

    /// Lines of a thread.
    pub(super) fn scratch(&self) -> usize {
        self.scratch
    }
}

/// Numbers of a type.
fn values<'a>(cut: &mut BumpAllocator<'a>, format: FloatFormat, count: usize) -> ValuesMut<'a> {
    match format {
        F16 => ValuesMut::F16(cut.take::<f16>(count)),
        BF16 => ValuesMut::Bf16(cut.take::<bf16>(count)),
        _ => ValuesMut::F32(cut.take(count)),
    }
}
