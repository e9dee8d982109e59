//! How the kernels of a product round: what the bound of their error is made of.
//!
//! An engine has no use for it; the conformance kit derives from it how far each element of y may be
//! from the exact value. [`Op::accumulation`](crate::op::Op::accumulation) gives it.

use quantloom_dsl::format::FloatFormat;

/// How a kernel adds up a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// Integers within a segment, `f32` over segments.
    Integer,
    /// Stored codes times x in `f32`; offsets and zero points are subtracted from the sum.
    Float,
    /// Weights without their scale, exact in 16 bits, times x in matrix instructions that add in
    /// `f32`; a scale multiplies the sum of its group.
    Matrix,
    /// Codes of both sides, each with its scale, in matrix instructions that multiply with the scales and
    /// add up several groups in `f32`.
    Scaled,
    /// Codes of e4m3 times x in e4m3, in instructions of Hopper's warp groups: the products of 32 columns and the sum before
    /// are cut below 13 bits under the largest of them, and added.
    Cut,
    /// Stored codes times x by the lanes of a GPU, exact integers or in `f32` of which only this is
    /// promised: results are one of the two neighbours of the exact one, a multiply-add may be two
    /// operations, and subnormal numbers may be taken for 0.
    Lanes,
    /// By the type of x: as [`Sums::Float`], or split-bf16: weights with their scale, or codes without, and x are
    /// sums of bf16 numbers, in instructions that add in `f32` and flush subnormal numbers to 0.
    SplitBf16,
    /// [`Sums::SplitBf16`] in instructions that add two products at a time and round sums to odd.
    SplitBf16OddRounding,
}

/// The numbers that a kernel multiplies with x instead of the values of codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// This is added to each value; a term times the sum of x subtracts it again.
    pub add: i32,
    /// The format to whose numbers values are rounded after they are multiplied with two to this, which a
    /// scale takes back; `None` where all of them are kept.
    pub rounded: Option<(FloatFormat, i32)>,
    /// How weights are rounded after they are multiplied with their group's scale; `None` where scales multiply sums, or
    /// weights exactly.
    pub scaled: Option<ScaledWeights>,
    /// Sums of terms with their scales are two to this times what they should be.
    pub exponent: i32,
}

/// Weights that are rounded after they are multiplied with their group's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaledWeights {
    /// The format to whose numbers they are rounded.
    pub format: FloatFormat,
    /// They are two to this times what they should be.
    pub exponent: i32,
    /// How the kernel has scales, and terms.
    pub scales: ScaleDigits,
    /// Whether a term, the zero-point correction, is added to each weight: in parts, in another rounding.
    pub adds_term: bool,
}

/// How a kernel has scales that multiply weights, and terms that are added, in the weights' format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleDigits {
    /// As they are: scales are numbers of the format.
    Whole,
    /// As sums of two numbers of the format, the second one rounded, that are multiplied one after another.
    InParts,
    /// Rounded to the format.
    Rounded,
}

/// Where the kernels of a product round, by the type of x and M.
pub trait Accumulation {
    /// How the kernel that multiplies M tokens of x of a type adds up.
    fn sums(&self, x: FloatFormat, tokens: usize) -> Sums;

    /// The type to which x of a type, times its columns' factors, is rounded before it is multiplied: its
    /// own, or a narrower float type where the scheme does not list its own or the device has no products of it.
    fn rounds_x(&self, x: FloatFormat) -> FloatFormat {
        x
    }

    /// What the kernel that multiplies M tokens of x of a type decodes codes to.
    fn decoded(&self, _x: FloatFormat, _tokens: usize) -> Decoded {
        Decoded::default()
    }

    /// The type to which y is rounded where x is of one type and the place for y of another: that
    /// of the place, or a narrower one.
    fn rounds_y(&self, _x: FloatFormat, y: FloatFormat) -> FloatFormat {
        y
    }
}
