//! The terms of a launch that the compiler and the runtime share: what a buffer is to a product, and
//! what a size of a launch counts. No other place spells the names of buffers.

use std::fmt;

/// What a buffer of a kernel is to a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum BufferRole {
    /// The codes of w, in the native layout.
    Codes,
    /// The activation, [M, K], as a kernel reads it.
    X,
    /// The result, [M, N].
    Y,
    /// The scales of groups.
    Scale,
    /// The zero points of groups.
    Zero,
    /// The zero-point corrections of groups, or the finest level of shifts where they are that.
    Correction,
    /// The scales of larger groups, which multiply those of [`Self::Scale`].
    CoarseScale,
    /// The shifts of larger groups, which multiply those of [`Self::Correction`].
    CoarseCorrection,
    /// The scale of each row of w.
    ChannelScale,
    /// The sum of each row of w, without the row's scale, which the zero points of x multiply.
    RowSum,
    /// The bias of each row of w.
    Bias,
    /// What a kernel makes of x for a product: quantised, converted, or its columns in another order.
    Operand,
    /// The scales of the operand, each followed by the zero point where the product subtracts that.
    OperandScale,
    /// The column of w and x at each place of the order in which products take columns.
    ColumnOrder,
    /// A static scale of x: the one of a level, the finest first.
    InputScale(u8),
    /// The static zero point of x.
    InputZero,
    /// What multiplies each column of x before it is quantised.
    Prescale,
    /// The extremes of parts of x, between two kernels that make an operand.
    Extremes,
    /// The dynamic scales of x, between two kernels that make an operand.
    GroupScale,
    /// The dynamic zero points of x, between two kernels that make an operand.
    GroupZero,
    /// The sums of blocks that share the K of an output tile.
    PartialSums,
    /// How many of those blocks have arrived.
    Arrivals,
    /// The order of an expert layer's pairs: which expert each token block has, and which pair each slot.
    Order,
    /// The router's logits of an expert layer, [M, E].
    Logits,
    /// The expert of each pair of an expert layer, [M, k], as the caller chose them.
    Ids,
    /// The router weight of each pair, [M, k], from the caller.
    RouterWeights,
    /// The expert of each pair, as a kernel chose them.
    RoutedIds,
    /// The router weight of each pair, from a kernel.
    RoutedWeights,
    /// The place here of each expert of the model.
    ExpertMap,
    /// What is added to the score of each expert when experts are chosen.
    ScoreBias,
    /// The pairs of each expert, by chunks of pairs, between two kernels that sort them.
    PairCounts,
    /// x times router weights.
    Weighted,
    /// The rows of an expert layer's first product, before the gate.
    Summed,
    /// The rows between the two products of an expert layer, after the gate.
    Hidden,
    /// What the first product of an expert layer makes of these rows for the second one, which reads it as [`Self::X`].
    HiddenOperand,
    /// The scales of that operand.
    HiddenScale,
    /// The rows of an expert layer's second product, one a pair.
    Parts,
    /// The result of experts that every token meets, [M, N].
    Shared,
}

/// Who has the memory of a buffer, and what is in that memory before a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// The prepared weight: kernels only read it.
    Weight,
    /// The caller, who has x, and of an expert layer logits, or ids and router weights.
    Input,
    /// The caller, who gets y.
    Output,
    /// The workspace. Its contents do not matter: what is read was written by the same call.
    Scratch,
    /// The workspace. It is 0 before the first launch, and each launch leaves it 0.
    Counters,
}

impl BufferRole {
    /// Who has the memory.
    pub const fn storage(self) -> Storage {
        match self {
            Self::Codes
            | Self::Scale
            | Self::Zero
            | Self::Correction
            | Self::CoarseScale
            | Self::CoarseCorrection
            | Self::ChannelScale
            | Self::RowSum
            | Self::Bias
            | Self::ColumnOrder
            | Self::InputScale(_)
            | Self::InputZero
            | Self::Prescale
            | Self::ExpertMap
            | Self::ScoreBias => Storage::Weight,
            Self::X | Self::Logits | Self::Ids | Self::RouterWeights | Self::Shared => {
                Storage::Input
            }
            Self::Y => Storage::Output,
            Self::Operand
            | Self::OperandScale
            | Self::Extremes
            | Self::GroupScale
            | Self::GroupZero
            | Self::PartialSums
            | Self::Order
            | Self::RoutedIds
            | Self::RoutedWeights
            | Self::PairCounts
            | Self::Weighted
            | Self::Summed
            | Self::Hidden
            | Self::HiddenOperand
            | Self::HiddenScale
            | Self::Parts => Storage::Scratch,
            Self::Arrivals => Storage::Counters,
        }
    }
}

/// The name in a kernel's source and in files of prepared weights.
impl fmt::Display for BufferRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Codes => "w",
            Self::X => "x",
            Self::Y => "y",
            Self::Scale => "scale",
            Self::Zero => "zero",
            Self::Correction => "correction",
            Self::CoarseScale => "coarse_scale",
            Self::CoarseCorrection => "coarse_correction",
            Self::ChannelScale => "channel_scale",
            Self::RowSum => "row_sum",
            Self::Bias => "bias",
            Self::Operand => "operand",
            Self::OperandScale => "x_scale",
            Self::ColumnOrder => "order",
            Self::InputScale(level) => return write!(f, "input_scale_{level}"),
            Self::InputZero => "input_zero",
            Self::Prescale => "prescale",
            Self::Extremes => "extents",
            Self::GroupScale => "group_scale",
            Self::GroupZero => "group_zero",
            Self::PartialSums => "partial",
            Self::Arrivals => "arrivals",
            Self::Order => "slots",
            Self::Logits => "logits",
            Self::Ids => "ids",
            Self::RouterWeights => "router_weights",
            Self::RoutedIds => "routed_ids",
            Self::RoutedWeights => "routed_weights",
            Self::ExpertMap => "expert_map",
            Self::ScoreBias => "score_bias",
            Self::PairCounts => "pair_counts",
            Self::Weighted => "weighted",
            Self::Summed => "z",
            Self::Hidden => "h",
            Self::HiddenOperand => "h_operand",
            Self::HiddenScale => "h_scale",
            Self::Parts => "parts",
            Self::Shared => "shared_y",
        })
    }
}

/// What a size of a launch counts: y is [M, N], x is [M, K], w is [N, K].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// Rows of x and y.
    M,
    /// Rows of w.
    N,
    /// Columns of w, in the order in which products take them.
    K,
    /// Experts whose weights are stacked.
    Experts,
    /// Pairs of a token and an expert that multiplies it.
    RoutedRows,
    /// Token blocks of an expert layer, at most; each has `slots` slots for pairs of one expert.
    TokenBlocks {
        /// Experts whose weights are stacked, at least 1.
        experts: u32,
        /// Slots of a token block, at least 1.
        slots: u32,
    },
}

/// The name in a kernel's source.
impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::M => "m",
            Self::N => "n",
            Self::K => "k",
            Self::Experts => "experts",
            Self::RoutedRows => "routed",
            Self::TokenBlocks { .. } => "token_blocks",
        })
    }
}
