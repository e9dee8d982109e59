//! The buffers of a product: slots, words, layouts. All schedules of a product declare the same buffers,
//! so that one prepared weight serves all of them.

use quantloom_dsl::experts::ExpertProduct;
use quantloom_dsl::layout::Component;
use quantloom_dsl::{BufferRole, Dimension};

use super::Problem;
use super::activation::operand_buffer;
use super::chunk::chunk_words;
use super::group_params::GroupParams;
use super::input::ScaleOrder;
use super::order::OrderArray;
use super::stack::Stack;
use crate::ir::{Access, BufferId, Builder, Extent, ParameterId, Word};

/// The buffers of a product, by slot: codes, x, y, then those of the others that the product has. In an
/// expert layer the order of pairs comes first.
#[derive(Clone, Copy, Debug)]
pub struct ProductBuffers {
    /// Rows of x and y, at least 1; tokens of an expert layer.
    pub m: ParameterId,
    /// The codes, in the plan's native layout: `w`. Constant buffers of a stack have a matrix after
    /// another.
    pub codes: BufferId,
    /// The activation, [M, columns of the input]: `x`. The second product of an expert layer has a row
    /// per slot, and so has the first one if experts read x in different ways.
    pub x: BufferId,
    /// The result, [M, N]: `y`. In an expert layer a row per shard and slot, or per pair. Or what another product reads of y
    /// ([`Problem::writing`]): `h_operand`.
    pub y: BufferId,
    /// The scales of segments' sums or of weights: `scale`. This buffer and the other ones of groups have the layout
    /// [`GroupParams::layout`].
    pub scale: Option<BufferId>,
    /// Zero points that dequantisation subtracts from codes: `zero`.
    pub zero: Option<BufferId>,
    /// The zero-point corrections, which multiply a segment's sum of x: `correction`.
    pub correction: Option<BufferId>,
    /// What multiplies `scale`: `coarse_scale`.
    pub coarse_scale: Option<BufferId>,
    /// What multiplies `correction`: `coarse_correction`.
    pub coarse_correction: Option<BufferId>,
    /// The per-channel scales, `[N]`, f32: `channel_scale`.
    pub channel_scale: Option<BufferId>,
    /// The sums of rows of w without their per-channel scale, `[N]`, f32: `row_sum`.
    pub row_sum: Option<BufferId>,
    /// The bias of each row of w, `[N]`, f32, which holds every stored type exactly: `bias`.
    pub bias: Option<BufferId>,
    /// The scales of x, f32 or codes, in their order ([`ScaleOrder`]): `x_scale`. As many rows as x. After the scale of a row is its
    /// zero point, f32, if elements of x do not have that ([`Input::zero`](super::Input::zero)).
    pub x_scale: Option<BufferId>,
    /// The order of an expert layer's pairs: `slots`.
    pub(super) order: Option<OrderArray>,
}

/// The layout of buffers with one f32 per row.
pub const PER_ROW_LAYOUT: &str = "[n]";

impl ProductBuffers {
    /// Declares the buffers of a problem, for blocks with so many tokens.
    pub fn declare(b: &mut Builder, problem: &Problem, tokens: u32) -> Self {
        let native = &problem.plan.native;
        let fixed = Extent::Constant;
        let stack = problem.stack;
        let meaning = if stack.is_some() { "tokens" } else { "rows of x and y" };
        let m = b.size(Dimension::M, &format!("{meaning}, at least 1"));
        let order = stack.map(|stack| match stack.direct {
            true => OrderArray::of_ids(b, stack.experts, stack.weighted),
            false => OrderArray::declare(b, (stack.experts, tokens), Access::ReadOnly),
        });
        let (x_rows, y_rows, y_access) = match stack.zip(order) {
            None => (Extent::Parameter(m), vec![Extent::Parameter(m)], Access::WriteOnce),
            Some((stack, order)) => {
                let (slots, pairs) = (order.all_slots(), Extent::Parameter(order.pairs));
                let x_rows = match stack.reads_slots() {
                    true => order.rows_of_slots(stack.x_rows_of_slot()),
                    false => Extent::Parameter(m),
                };
                match (stack.product, stack.gate) {
                    _ if stack.combined => (x_rows, vec![Extent::Parameter(m)], Access::WriteOnce),
                    (ExpertProduct::GateUp, Some(_)) => (x_rows, vec![slots], Access::WriteOnce),
                    (ExpertProduct::GateUp, None) => {
                        (x_rows, vec![fixed(stack.shards), slots], Access::WriteSome)
                    }
                    (ExpertProduct::Down, _) => (x_rows, vec![pairs], Access::WriteSome),
                }
            }
        };
        let (tiles, chunks) = (problem.row_tiles(), problem.chunks());
        let shape = Stack::shape(stack, &[tiles, chunks, chunk_words(problem)]);
        let layout = format!("codes, {}", native.layout.display(Component::Code));
        let codes = b.buffer_of(BufferRole::Codes, Word::U32, Access::Constant, &shape, &layout);
        let shape = [x_rows, fixed(problem.input.words(problem.input.columns))];
        let layout = format!("{} [k, m]", problem.input.operand);
        let x = b.buffer_of(BufferRole::X, problem.input.word(), Access::ReadOnly, &shape, &layout);
        let y = match (problem.operand_of_y.as_deref(), order) {
            (Some(operand), Some(order)) => {
                operand_buffer(b, operand, BufferRole::HiddenOperand, order.all_slots())
            }
            _ => {
                let word = if problem.output.bits() == 32 { Word::U32 } else { Word::U16 };
                let shape: Vec<Extent> = y_rows.into_iter().chain([fixed(problem.n)]).collect();
                let layout = format!("{} [n, m]", problem.output);
                b.buffer_of(BufferRole::Y, word, y_access, &shape, &layout)
            }
        };
        let of_groups: Vec<_> = problem.group_params().collect();
        let per_group = |b: &mut Builder, role: BufferRole| {
            let &(_, params) = of_groups.iter().find(|(known, _)| *known == role)?;
            let shape = Stack::shape(stack, &params.words(problem));
            let GroupParams { number, rows, columns, .. } = params;
            let layout = params.layout(problem);
            let layout = format!("{number} {layout} in groups of {rows} x {columns}");
            Some(b.buffer_of(role, Word::U32, Access::Constant, &shape, &layout))
        };
        let scale = per_group(b, BufferRole::Scale);
        let zero = per_group(b, BufferRole::Zero);
        let correction = per_group(b, BufferRole::Correction);
        let coarse_scale = per_group(b, BufferRole::CoarseScale);
        let coarse_correction = per_group(b, BufferRole::CoarseCorrection);
        let per_row = |b: &mut Builder, role: BufferRole, there: bool| {
            let layout = format!("f32 {PER_ROW_LAYOUT}");
            let shape = Stack::shape(stack, &[problem.n]);
            there.then(|| b.buffer_of(role, Word::U32, Access::Constant, &shape, &layout))
        };
        let channel_scale = per_row(b, BufferRole::ChannelScale, problem.channel_scale);
        let row_sum = per_row(b, BufferRole::RowSum, problem.row_sum);
        let bias = per_row(b, BufferRole::Bias, problem.bias);
        let x_scale = problem.input.numbers().map(|groups| {
            let order = problem.input.scale_order;
            let shape = order.shape(x_rows, groups);
            let layout = match (problem.input.codes, order) {
                (true, _) => "codes, four a word [groups, m]".to_owned(),
                (false, ScaleOrder::Rows) => "f32 [groups, m]".to_owned(),
                (false, order) => format!("f32 {}", order.layout()),
            };
            b.buffer_of(BufferRole::OperandScale, Word::U32, Access::ReadOnly, &shape, &layout)
        });
        Self {
            m,
            codes,
            x,
            y,
            scale,
            zero,
            correction,
            coarse_scale,
            coarse_correction,
            channel_scale,
            row_sum,
            bias,
            x_scale,
            order,
        }
    }

    /// The group parameters of a problem whose buffers these are, each with its buffer.
    pub(super) fn group_params(
        &self,
        problem: &Problem,
    ) -> impl Iterator<Item = (GroupParams, BufferId)> + use<> {
        let own = *self;
        problem.group_params().filter_map(move |(role, of)| {
            let buffer = match role {
                BufferRole::Scale => own.scale,
                BufferRole::Zero => own.zero,
                BufferRole::Correction => own.correction,
                BufferRole::CoarseScale => own.coarse_scale,
                BufferRole::CoarseCorrection => own.coarse_correction,
                _ => None,
            };
            Some((of, buffer?))
        })
    }
}
