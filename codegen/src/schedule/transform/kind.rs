//! The kinds of native buffers.

use quantloom_dsl::BufferRole;
use quantloom_dsl::layout::Component;

/// What a native buffer holds: a constant buffer of a product, in the layout that kernels read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NativeBufferKind {
    /// The codes.
    Codes,
    /// The scales, or the products of several levels.
    Scales,
    /// The zero points: small integers in a checkpoint, numbers of the compute dtype in the native
    /// layout.
    Zeros,
    /// The bias, f32 natively.
    Bias,
    /// The zero-point corrections, computed from scales, zero points and shifts, or the level of shifts that they are.
    Corrections,
    /// The scales of larger groups, which multiply those of [`Self::Scales`].
    CoarseScales,
    /// The shifts of larger groups, which multiply those of [`Self::Corrections`].
    CoarseCorrections,
    /// The per-channel scales: products of the scales that are constant along a row.
    ChannelScales,
    /// The sums of rows of w without their per-channel scale.
    RowSums,
}

impl NativeBufferKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Codes,
        Self::Scales,
        Self::Zeros,
        Self::Bias,
        Self::Corrections,
        Self::CoarseScales,
        Self::CoarseCorrections,
        Self::ChannelScales,
        Self::RowSums,
    ];

    /// The role of the buffer in a product.
    pub const fn role(self) -> BufferRole {
        match self {
            Self::Codes => BufferRole::Codes,
            Self::Scales => BufferRole::Scale,
            Self::Zeros => BufferRole::Zero,
            Self::Bias => BufferRole::Bias,
            Self::Corrections => BufferRole::Correction,
            Self::CoarseScales => BufferRole::CoarseScale,
            Self::CoarseCorrections => BufferRole::CoarseCorrection,
            Self::ChannelScales => BufferRole::ChannelScale,
            Self::RowSums => BufferRole::RowSum,
        }
    }

    /// The buffer's name in a kernel's name.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Codes => "codes",
            Self::Scales => "scales",
            Self::Zeros => "zeros",
            Self::Bias => "bias",
            Self::Corrections => "corrections",
            Self::CoarseScales => "coarse_scales",
            Self::CoarseCorrections => "coarse_corrections",
            Self::ChannelScales => "channel_scales",
            Self::RowSums => "row_sums",
        }
    }

    /// Whether the buffer depends on the order of columns, so that its kernel reads the order.
    pub const fn is_sorted(self) -> bool {
        !matches!(self, Self::Bias | Self::ChannelScales | Self::RowSums)
    }

    /// The component in the digits of the native layout.
    pub(super) const fn component(self) -> Component {
        match self {
            Self::Codes => Component::Code,
            Self::Scales
            | Self::Corrections
            | Self::CoarseScales
            | Self::CoarseCorrections
            | Self::ChannelScales
            | Self::RowSums => Component::Scale(0),
            Self::Zeros => Component::Zero,
            Self::Bias => Component::Bias,
        }
    }
}
