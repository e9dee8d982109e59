//! The buffers of a product: slots, words, layouts. All schedules of a product declare the same buffers,
//! so that one prepared weight serves all of them.

use quantloom_dsl::layout::Component;
use quantloom_dsl::{BufferRole, Dimension};

use super::Problem;
use super::group_params::GroupParams;
use crate::ir::{Access, BufferId, Builder, Extent, ParameterId, Word};

/// The buffers of a product, by slot: codes, x, y, then those of the others that the product has.
#[derive(Clone, Copy, Debug)]
pub struct ProductBuffers {
    /// Rows of x and y, at least 1.
    pub m: ParameterId,
    /// The codes, in the plan's native layout: `w`.
    pub codes: BufferId,
    /// The activation, [M, columns of the input]: `x`.
    pub x: BufferId,
    /// The result, [M, N]: `y`.
    pub y: BufferId,
    /// The scales of segments' sums or of weights: `scale`. This buffer, `zero` and `correction` have
    /// the layout [`GroupParams::layout`].
    pub scale: Option<BufferId>,
    /// Zero points that dequantisation subtracts from codes: `zero`.
    pub zero: Option<BufferId>,
    /// The zero-point corrections, which multiply a segment's sum of x; named `addend` in kernels.
    pub correction: Option<BufferId>,
    /// The per-channel scales, `[N]`, f32; named `factor` in kernels.
    pub channel_scale: Option<BufferId>,
    /// The bias of each row of w, `[N]`, f32, which holds every stored type exactly: `bias`.
    pub bias: Option<BufferId>,
    /// The scales of x, `[M, groups]`, f32 or codes: `x_scale`.
    pub x_scale: Option<BufferId>,
}

/// The layout of buffers with one f32 per row.
pub const PER_ROW_LAYOUT: &str = "[n]";

impl ProductBuffers {
    /// Declares the buffers of a problem.
    pub fn declare(b: &mut Builder, problem: &Problem) -> Self {
        let native = &problem.plan.native;
        let fixed = Extent::Constant;
        let m = b.size(Dimension::M, "rows of x and y, at least 1");
        let rows = Extent::Parameter(m);
        let (tiles, chunks) = (problem.row_tiles(), problem.chunks());
        let shape = [tiles, chunks, b.warp_size() * problem.lane_words()].map(fixed);
        let layout = format!("codes, {}", native.layout.display(Component::Code));
        let codes = b.buffer_of(BufferRole::Codes, Word::U32, Access::Constant, &shape, &layout);
        let shape = [rows, fixed(problem.input.words(problem.input.columns))];
        let layout = format!("{} [k, m]", problem.input.operand);
        let x = b.buffer_of(BufferRole::X, problem.input.word(), Access::ReadOnly, &shape, &layout);
        let word = if problem.output.bits() == 32 { Word::U32 } else { Word::U16 };
        let shape = [rows, fixed(problem.n)];
        let layout = format!("{} [n, m]", problem.output);
        let y = b.buffer_of(BufferRole::Y, word, Access::WriteOnce, &shape, &layout);
        let per_group = |b: &mut Builder, role: BufferRole, params: Option<GroupParams>| {
            let params = params?;
            let shape = params.words(problem).map(fixed);
            let GroupParams { number, rows, columns, .. } = params;
            let layout = params.layout(problem);
            let layout = format!("{number} {layout} in groups of {rows} x {columns}");
            Some(b.buffer_of(role, Word::U32, Access::Constant, &shape, &layout))
        };
        let scale = per_group(b, BufferRole::Scale, problem.scale);
        let zero = per_group(b, BufferRole::Zero, problem.zero);
        let correction = per_group(b, BufferRole::Correction, problem.correction);
        let per_row = |b: &mut Builder, role: BufferRole, there: bool| {
            let layout = format!("f32 {PER_ROW_LAYOUT}");
            let shape = [fixed(problem.n)];
            there.then(|| b.buffer_of(role, Word::U32, Access::Constant, &shape, &layout))
        };
        let channel_scale = per_row(b, BufferRole::ChannelScale, problem.channel_scale);
        let bias = per_row(b, BufferRole::Bias, problem.bias);
        let x_scale = problem.input.groups().map(|groups| {
            let shape = [rows, fixed(groups)];
            let codes = problem.input.codes;
            let layout = if codes { "e8m0, four a word [groups, m]" } else { "f32 [groups, m]" };
            b.buffer_of(BufferRole::OperandScale, Word::U32, Access::ReadOnly, &shape, layout)
        });
        Self { m, codes, x, y, scale, zero, correction, channel_scale, bias, x_scale }
    }
}
