//! The buffers of a product: slots, words, layouts. Every schedule of a product declares the same,
//! so that a prepared weight serves them all.

use quantloom_dsl::layout::Component;

use crate::ir::{Access, BufferId, Builder, Extent, Half, ParameterId, Word};

use super::Problem;

/// The buffers of a product, by slot: codes, scales, x, y, then zero points and the bias,
/// where there are any.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// Rows of x and y, at least 1.
    pub m: ParameterId,
    /// The codes, in the plan's native layout.
    pub codes: BufferId,
    /// A scale per row and group: a tile's 16 rows side by side, row g beside row g + 8, as its
    /// lanes want them; groups follow one another, then tiles.
    pub scales: BufferId,
    /// The activation, [M, K].
    pub x: BufferId,
    /// The result, [M, N].
    pub y: BufferId,
    /// A zero point per row and group, of the activation's type, laid out like the scales.
    pub zeros: Option<BufferId>,
    /// The bias of each row of w, `[N]`, f32: whatever the scheme stores fits into that.
    pub bias: Option<BufferId>,
}

/// The layout of scales and zero points. Rows are padded to whole tiles.
pub const PER_GROUP_LAYOUT: &str = "[n/8:2, n:8, g, n]";

/// The layout of the bias.
pub const BIAS_LAYOUT: &str = "[n]";

impl Io {
    /// Declares them.
    pub fn declare(b: &mut Builder, problem: &Problem) -> Self {
        let native = &problem.plan.native;
        let fixed = Extent::Constant;
        let m = b.parameter("m", "rows of x and y, at least 1");
        let rows = Extent::Parameter(m);
        let (tiles, chunks, groups) = (problem.row_tiles(), problem.chunks(), problem.groups());
        let lanes = b.warp_size();
        let shape = [fixed(tiles), fixed(chunks), fixed(lanes * 4)];
        let layout = format!("codes, {}", native.layout.display(Component::Code));
        let codes = b.buffer("w", Word::U32, Access::Constant, &shape, &layout);
        let shape = [fixed(tiles), fixed(groups), fixed(native.rows)];
        let per_group = |b: &mut Builder, name: &str, half: Half| {
            let half = if half == Half::Bf16 { "bf16" } else { "f16" };
            let layout = format!("{half} {PER_GROUP_LAYOUT} in groups of {}", problem.group);
            b.buffer(name, Word::U16, Access::Constant, &shape, &layout)
        };
        let scales = per_group(b, "scale", problem.scale);
        let half = if problem.activation == Half::Bf16 { "bf16" } else { "f16" };
        let x_shape = [rows, fixed(problem.k)];
        let x = b.buffer("x", Word::U16, Access::ReadOnly, &x_shape, &format!("{half} [k, m]"));
        let y_shape = [rows, fixed(problem.n)];
        let y = b.buffer("y", Word::U16, Access::WriteOnce, &y_shape, &format!("{half} [n, m]"));
        let zeros = problem.zero.then(|| per_group(b, "zero", problem.activation));
        let bias = problem.bias.then(|| {
            let layout = format!("f32 {BIAS_LAYOUT}");
            b.buffer("bias", Word::U32, Access::Constant, &[fixed(problem.n)], &layout)
        });
        Self { m, codes, scales, x, y, zeros, bias }
    }
}
