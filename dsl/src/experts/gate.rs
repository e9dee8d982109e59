//! What is between the two products of an expert.

use std::hash::{Hash, Hasher};
use std::mem::discriminant;

/// How the rows of the first product, `g` (gate) and `u` (up), become the input `h` of the second.
///
/// Below, `silu(v) = v / (1 + exp(-v))`, and `clamp(u)` is u between -limit and limit. A limit and
/// an alpha are finite numbers above 0. Each formula is followed by its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gate {
    /// `silu(g) * u`: vLLM `SiluAndMul`.
    Silu,
    /// `silu(min(g, limit)) * clamp(u)`: vLLM `SiluAndMulWithClamp`.
    SiluLimit {
        /// The limit of g from above and of u on both sides.
        limit: f32,
    },
    /// `g' * sigmoid(alpha * g') * (clamp(u) + 1)` with `g' = min(g, limit)`: vLLM
    /// `SwigluOAIAndMul`, transformers `GptOssExperts`.
    SwigluOai {
        /// The factor in the sigmoid; 1.702 in gpt-oss.
        alpha: f32,
        /// The limit of g from above and of u on both sides; 7 in gpt-oss.
        limit: f32,
    },
    /// `min(silu(g), limit) * clamp(u)`: vLLM `SwigluStepAndMul`.
    SwigluStep {
        /// The limit of silu(g) from above and of u on both sides.
        limit: f32,
    },
    /// `g * normal(g) * u`, with `normal` the distribution function of the normal distribution:
    /// vLLM `GeluAndMul`.
    Gelu,
    /// `g * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 g^3))) / 2 * u`: vLLM `GeluAndMul` with
    /// `approximate="tanh"`.
    GeluTanh,
    /// `silu(g)`; there is no u.
    UngatedSilu,
    /// `g * normal(g)`; there is no u.
    UngatedGelu,
    /// `g * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 g^3))) / 2`; there is no u.
    UngatedGeluTanh,
    /// `max(g, 0)^2`: vLLM `ReLUSquaredActivation`; there is no u.
    UngatedRelu2,
}

/// Numbers are above 0 in a checked layer: each equals itself.
impl Eq for Gate {}

impl Hash for Gate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        discriminant(self).hash(state);
        self.numbers().for_each(|(_, number)| number.to_bits().hash(state));
    }
}

impl Gate {
    /// A gate of every form: those with a limit have this one, and the factor of the sigmoid is 1.702.
    pub const fn every(limit: f32) -> [Self; 10] {
        [
            Self::Silu,
            Self::SiluLimit { limit },
            Self::SwigluOai { alpha: 1.702, limit },
            Self::SwigluStep { limit },
            Self::Gelu,
            Self::GeluTanh,
            Self::UngatedSilu,
            Self::UngatedGelu,
            Self::UngatedGeluTanh,
            Self::UngatedRelu2,
        ]
    }

    /// s: the shards of the first product, 2 (gate and up) or 1.
    pub const fn shards(self) -> usize {
        match self {
            Self::UngatedSilu | Self::UngatedGelu | Self::UngatedGeluTanh | Self::UngatedRelu2 => 1,
            Self::Silu
            | Self::SiluLimit { .. }
            | Self::SwigluOai { .. }
            | Self::SwigluStep { .. }
            | Self::Gelu
            | Self::GeluTanh => 2,
        }
    }

    /// The first word of the text, after `ungated`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Silu | Self::SiluLimit { .. } | Self::UngatedSilu => "silu",
            Self::SwigluOai { .. } => "swigluoai",
            Self::SwigluStep { .. } => "swiglustep",
            Self::Gelu | Self::UngatedGelu => "gelu",
            Self::GeluTanh | Self::UngatedGeluTanh => "gelu_tanh",
            Self::UngatedRelu2 => "relu2",
        }
    }

    /// Its numbers, each after its name, in the order of the text.
    pub(super) fn numbers(self) -> impl Iterator<Item = (&'static str, f32)> {
        let (alpha, limit) = match self {
            Self::SwigluOai { alpha, limit } => (Some(alpha), Some(limit)),
            Self::SiluLimit { limit } | Self::SwigluStep { limit } => (None, Some(limit)),
            _ => (None, None),
        };
        [("alpha", alpha), ("limit", limit)]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
    }
}
