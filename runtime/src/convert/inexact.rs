//! Why a layer's values cannot be kept by another way of storing them.

use quantloom_dsl::format::Number;
use quantloom_dsl::layout::{BindError, Component, GroupSize, Shape};

use crate::checkpoint::GgufTensorLimit;
use crate::checkpoint::storage::SettingConflict;
use crate::unpacked::UnpackError;

/// Why a scheme does not hold the values of a layer. Rows and columns count from 0.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Inexact {
    /// One is a stack of experts, the other is not, or their shards are stored otherwise.
    #[error("{0}")]
    Experts(&'static str),
    /// x is quantised, and the target does not say so.
    #[error("x is quantised ({0}), which is not said there; --weights-only leaves it out")]
    Activation(String),
    /// x is quantised in another arithmetic.
    #[error(
        "x is quantised in {from} arithmetic, there it would be in {to} arithmetic; --weights-only \
         leaves out how x is quantised"
    )]
    Arithmetic {
        /// Of the layer.
        from: &'static str,
        /// Of the target.
        to: &'static str,
    },
    /// Columns of x have factors, and the target has none.
    #[error("columns of x have factors (`pre_quant_scale`), which are not said there")]
    Prescale,
    /// The layer has a group index per column.
    #[error("act-order: columns have a group index (g_idx), which is not said there")]
    Order,
    /// A clause about the product.
    #[error("the scheme says `{0}`, which is not said there")]
    Clause(&'static str),
    /// The layout does not fit the shape.
    #[error("the tensor \"{store}\": {error}")]
    Layout {
        /// The stored tensor.
        store: String,
        /// What does not fit.
        error: BindError,
    },
    /// N or K is not a multiple of what the format stores together.
    #[error("{axis} = {size} is not a multiple of {of}, as it has to be there")]
    Multiple {
        /// `N` or `K`.
        axis: &'static str,
        /// Its size.
        size: u64,
        /// What it has to be a multiple of.
        of: u64,
    },
    /// There are other numbers of levels.
    #[error("there are {from} levels of {what}, and {to} there")]
    Levels {
        /// Scales or shifts.
        what: &'static str,
        /// Of the layer.
        from: usize,
        /// Of the target.
        to: usize,
    },
    /// A group of the target is not within a group of the layer.
    #[error("the {component} is {from}, and {to} there", from = group(*from), to = group(*to))]
    Group {
        /// Of what.
        component: Component,
        /// Rows and columns of the layer's group.
        from: (GroupSize, GroupSize),
        /// Those of the target.
        to: (GroupSize, GroupSize),
    },
    /// Neither zero points nor shifts can be made of the other.
    #[error("the layer has both zero points and shifts")]
    ZeroAndShift,
    /// A value that is computed from several levels has more bits than are computed with.
    #[error(
        "the {component} of row {n}, column {k} has too many bits to be merged into one number"
    )]
    Merge {
        /// Of what.
        component: Component,
        /// The row.
        n: u64,
        /// The column.
        k: u64,
    },
    /// A divisor is to be a factor, or a factor a divisor.
    #[error(
        "the {component} of row {n}, column {k} is {value:?}, and its reciprocal, which would be stored \
         there, is not exact"
    )]
    Reciprocal {
        /// Of what.
        component: Component,
        /// The row.
        n: u64,
        /// The column.
        k: u64,
        /// The layer's number.
        value: f64,
    },
    /// Weights are shifted by what is no zero point.
    #[error(
        "the shift of row {n}, column {k} is not exactly a number of steps of the scale, as a zero point \
         there would be"
    )]
    NoZeroPoint {
        /// The row.
        n: u64,
        /// The column.
        k: u64,
    },
    /// The target's type does not hold a value.
    #[error(
        "the {component} of row {n}, column {k} is {value:?}, which is not a value of {number}"
    )]
    Value {
        /// Of what.
        component: Component,
        /// The row.
        n: u64,
        /// The column.
        k: u64,
        /// The value.
        value: f64,
        /// The target's type.
        number: Number,
    },
    /// The target has no code for a value.
    #[error(
        "the weight of row {n}, column {k} is {value:?} steps of its scale (its zero point subtracted), \
         and {codes} has no such code"
    )]
    Code {
        /// The row.
        n: u64,
        /// The column.
        k: u64,
        /// The weight over its scale, as the target counts.
        value: f64,
        /// The target's code type.
        codes: String,
    },
    /// The format's own reader would read something else.
    #[error("its reader would not read it back: {0}")]
    ReadBack(Misread),
}

/// How a format's own reader would not read a layer back.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Misread {
    /// A file of the format cannot have a tensor.
    #[error("the tensor {name:?}: {limit}")]
    Tensor {
        /// The tensor, as the format calls it.
        name: String,
        /// Why.
        limit: GgufTensorLimit,
    },
    /// The codes cannot be packed.
    #[error(transparent)]
    Pack(Box<UnpackError>),
    /// The format has no settings for the layer.
    #[error(transparent)]
    Settings(SettingConflict),
    /// It would be read with another clause of the scheme.
    #[error("it would be read with another `{0}`")]
    Clause(&'static str),
    /// It would be read as a layer of another shape.
    #[error("it would be read as {} x {} x {}", .0.experts, .0.n, .0.k)]
    Shape(Shape),
    /// It would not be read: what the reader says. Text, since that error has no equality, and there is one
    /// case: a fault of the writer.
    #[error("{0}")]
    Unread(String),
}

fn group((rows, cols): (GroupSize, GroupSize)) -> String {
    match (rows, cols) {
        (GroupSize::All, GroupSize::All) => "one per tensor".to_owned(),
        (GroupSize::Each(1), GroupSize::All) => "one per row".to_owned(),
        (GroupSize::Each(rows), GroupSize::Each(cols)) => format!("one per {rows} x {cols}"),
        (GroupSize::Each(rows), GroupSize::All) => format!("one per {rows} rows"),
        (GroupSize::All, GroupSize::Each(cols)) => format!("one per {cols} columns"),
    }
}

impl Inexact {
    /// Reasons of less depth are the format's, whatever the numbers.
    const OF_LAYOUTS: u32 = 6;

    /// Whether no scheme of the format would do.
    pub(super) fn of_format(&self) -> bool {
        self.depth() < Self::OF_LAYOUTS
    }

    /// How near the target came: the position of the check among all.
    pub(super) fn depth(&self) -> u32 {
        match self {
            Self::Experts(_) => 0,
            Self::Activation(_) => 1,
            Self::Arithmetic { .. } => 2,
            Self::Prescale => 3,
            Self::Order => 4,
            Self::Clause(_) => 5,
            Self::Layout { .. } | Self::Multiple { .. } => Self::OF_LAYOUTS,
            Self::Levels { .. } => 7,
            Self::Group { .. } => 8,
            Self::Reciprocal { .. } => 9,
            // In the order in which components are computed.
            Self::Merge { component, .. } | Self::Value { component, .. } => match component {
                Component::Scale(_) => 9,
                Component::Zero | Component::Shift(_) => 10,
                _ => 11,
            },
            Self::NoZeroPoint { .. } | Self::ZeroAndShift => 10,
            Self::Code { .. } => 12,
            Self::ReadBack(_) => 13,
        }
    }
}
