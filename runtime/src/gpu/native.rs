//! A constant buffer of a product: what it holds, where, and how it is filled.
//!
//! In: an unpacked layer. Out: the buffer's bytes. Nothing is indexed by hand: the source of the
//! kernels says a layout, and the layout transforms move codes and numbers there, pads 0.

use std::borrow::Cow;
use std::fmt;

use quantloom_dsl::ZeroPointCorrection;
use quantloom_dsl::format::{Number, Overflow};
use quantloom_dsl::layout::{
    BoundLayout, Component, Granularity, GroupSize, Layout, Recode, Shape, Transform,
};

use crate::column_order::ColumnOrder;
use crate::source::BufferRole;
use crate::unpacked::{FoldedParameters, UnpackError, Unpacked};

/// How the elements of a native buffer are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// As codes of the weight, through a bijection of them.
    Codes(Recode),
    /// As codes whose top bit, the sign, is exclusive-ored with the sign of a component's number for that weight: a
    /// scale that products read without its sign.
    SignedCodes(Component),
    /// As numbers of a type that holds their values exactly.
    Numbers(Number),
    /// The same without signs.
    Magnitudes(Number),
    /// As f32 that follow from several components of the scheme.
    Computed(Computed),
    /// As the sums of the rows of w, without the scales that are constant along a row, rounded to f32 once.
    RowSums,
}

impl Form {
    /// Whether the elements follow from the codes of w.
    pub(super) const fn reads_codes(&self) -> bool {
        matches!(self, Self::Codes(_) | Self::SignedCodes(_) | Self::RowSums)
    }
}

/// Numbers that products want and no component holds, rounded to f32 once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computed {
    /// The product of the scales that change along K, divisors taken as such.
    Scale,
    /// The product of those that are constant along a row.
    ChannelScale,
    /// The same, times the static scales of all of x.
    ChannelScaleOfInput,
    /// [`ZeroPointCorrection::value`] with that scale, times `2^exponent`: what multiplies the sum of x over a
    /// group of columns.
    Correction {
        /// Its terms.
        correction: ZeroPointCorrection,
        /// The power of two that sums are in units of.
        exponent: i32,
    },
}

impl Computed {
    fn of(self, weight: &Unpacked, n: u64, k: u64) -> f64 {
        let FoldedParameters { scale, channel_scale, zero, shift } = weight.folded(0, n, k);
        match self {
            Self::Scale => scale,
            Self::ChannelScale => channel_scale,
            Self::ChannelScaleOfInput => {
                let levels = weight.scheme().quantiser().map_or(&[][..], |x| &x.scales);
                let given = &weight.input(0).scales;
                levels.iter().zip(given).fold(channel_scale, |product, (level, values)| {
                    match (level.stored, values.first()) {
                        (true, Some(value)) if level.divide => product / value,
                        (true, Some(value)) => product * value,
                        _ => product,
                    }
                })
            }
            Self::Correction { correction, exponent } => {
                correction.value(scale, zero, shift) * 2f64.powi(exponent)
            }
        }
    }
}

/// A constant buffer of a product.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeBuffer {
    /// What the buffer is to the product.
    pub role: BufferRole,
    /// What it holds: codes, the scales or the shifts of a level, zero points, the bias; of what is computed, the
    /// component that the layout's digits are of.
    pub component: Component,
    /// Where: bound to N and K, whose tails it pads.
    pub layout: Layout,
    /// Bits of an element as it is written, rows and columns that share one.
    pub granularity: Granularity,
    /// How.
    pub form: Form,
}

impl NativeBuffer {
    /// Whether it holds this component's own values.
    pub fn holds(&self, component: Component) -> bool {
        let own = matches!(self.form, Form::Codes(_) | Form::Numbers(_));
        self.component == component && own
    }

    /// Bytes of the buffer for a weight of this shape; `None` if the layout does not hold it.
    pub fn bytes(&self, shape: Shape) -> Option<u64> {
        self.bind(&self.layout, shape).ok().map(|bound| bound.bytes())
    }

    /// The buffer's bytes for a layer, its columns in another order if one is given.
    ///
    /// # Errors
    /// A layer without the component, a layout that does not hold the shape, a value that the
    /// numbers' type does not hold exactly.
    pub fn pack(
        &self,
        weight: &Unpacked,
        order: Option<&ColumnOrder>,
    ) -> Result<Vec<u8>, UnpackError> {
        let fault = |error| UnpackError::Transform { store: self.role.to_string(), error };
        let shape = order.map_or(weight.shape(), |order| order.shape(weight.shape()));
        let plain = self.bind(&Layout::plain(self.component, self.granularity.bits), shape)?;
        let native = self.bind(&self.layout, shape)?;
        let mut bytes = native.blank(&self.layout);
        let (source, recode) = match &self.form {
            Form::Codes(recode) => {
                let codes = order.map(|order| order.codes(weight));
                (codes.map_or(Cow::Borrowed(weight.codes()), Cow::Owned), recode.clone())
            }
            Form::SignedCodes(of) => {
                let codes = order.map(|order| order.codes(weight));
                let mut codes = codes.unwrap_or_else(|| weight.codes().to_vec());
                let sign = 1u8 << (self.granularity.bits - 1).min(7);
                for (code, at) in codes.iter_mut().zip(0u64..) {
                    let (n, column) = (at / shape.k, at % shape.k);
                    let own = Granularity { cols: GroupSize::Each(1), ..self.granularity };
                    let k = order.map_or(Some(column), |order| order.first_of(column, own));
                    let value = k.and_then(|k| weight.value_of(*of, n, k));
                    if value.is_some_and(f64::is_sign_negative) {
                        *code ^= sign;
                    }
                }
                (Cow::Owned(codes), Recode::Keep)
            }
            Form::Numbers(number) => {
                let source = self.written(*number, &self.values(weight, order)?)?;
                (Cow::Owned(source), Recode::Keep)
            }
            Form::Magnitudes(number) => {
                let values = self.values(weight, order)?;
                let values: Vec<_> = values.into_iter().map(|of| of.map(f64::abs)).collect();
                (Cow::Owned(self.written(*number, &values)?), Recode::Keep)
            }
            Form::Computed(computed) => {
                let (rows, cols) = self.granularity.elements(shape);
                let value = |at: u64| {
                    let n = first_of(self.granularity.rows, at / cols);
                    let column = first_of(self.granularity.cols, at % cols);
                    let k = order
                        .map_or(Some(column), |order| order.first_of(column, self.granularity));
                    let value = k.map_or(0.0, |k| computed.of(weight, n, k));
                    (value as f32).to_le_bytes()
                };
                (Cow::Owned((0..rows * cols).flat_map(value).collect()), Recode::Keep)
            }
            Form::RowSums => {
                let sums = weight.row_sums(0).into_iter();
                let bytes = sums.flat_map(|sum| (sum as f32).to_le_bytes());
                (Cow::Owned(bytes.collect()), Recode::Keep)
            }
        };
        Transform::new(self.component, &plain, &native, recode)
            .and_then(|transform| transform.run(&source, &mut bytes))
            .map_err(fault)?;
        Ok(bytes)
    }

    fn bind(&self, layout: &Layout, shape: Shape) -> Result<BoundLayout, UnpackError> {
        let granularity = |component| (component == self.component).then_some(self.granularity);
        layout
            .bind(shape, &granularity)
            .map_err(|error| UnpackError::Bind { store: self.role.to_string(), error })
    }

    /// The component's values in plain order, of groups as the buffer has them: where those of the scheme
    /// are larger, a value is repeated; `None` where an order of columns has pads alone.
    fn values(
        &self,
        weight: &Unpacked,
        order: Option<&ColumnOrder>,
    ) -> Result<Vec<Option<f64>>, UnpackError> {
        let missing = || UnpackError::Missing(self.component.to_string());
        let values = weight.values(self.component).ok_or_else(missing)?;
        let Some(stored) = weight.scheme().granularity(self.component) else {
            return Ok(values.iter().copied().map(Some).collect());
        };
        let moved = order.is_some() && self.granularity.cols != GroupSize::All;
        if !moved && (self.granularity.rows, self.granularity.cols) == (stored.rows, stored.cols) {
            return Ok(values.iter().copied().map(Some).collect());
        }
        let shape = order.map_or(weight.shape(), |order| order.shape(weight.shape()));
        let (rows, cols) = self.granularity.elements(shape);
        let value = |at: u64| {
            let n = first_of(self.granularity.rows, at / cols);
            let column = first_of(self.granularity.cols, at % cols);
            let k = order.map_or(Some(column), |order| order.first_of(column, self.granularity));
            k.and_then(|k| weight.value_of(self.component, n, k))
        };
        Ok((0..rows * cols).map(value).collect())
    }

    /// Values as numbers of a type that holds them, an element a slot.
    fn written(&self, number: Number, values: &[Option<f64>]) -> Result<Vec<u8>, UnpackError> {
        let slot = (self.granularity.bits.next_power_of_two().max(8) / 8) as usize;
        let mut bytes = Vec::with_capacity(values.len() * slot);
        for (element, value) in values.iter().enumerate() {
            // Pads are code 0, also of a type without the number 0.
            let Some(value) = value else {
                bytes.extend_from_slice(&[0; 4][..slot]);
                continue;
            };
            let code = number.encode(*value, Overflow::Special);
            let found = number.decode(code);
            if found != *value && !(found.is_nan() && value.is_nan()) {
                let store = self.role.to_string();
                return Err(UnpackError::Inexact { store, element, value: *value, number });
            }
            bytes.extend_from_slice(&code.to_le_bytes()[..slot]);
        }
        Ok(bytes)
    }
}

/// What it holds and where: all that decides its bytes.
impl fmt::Display for NativeBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Granularity { bits, rows, cols } = self.granularity;
        match &self.form {
            Form::Codes(Recode::Keep) => write!(f, "codes")?,
            Form::Codes(Recode::Xor(mask)) => write!(f, "codes XOR {mask:#x}")?,
            Form::Codes(Recode::Table(table)) => write!(f, "codes by the table {table:?}")?,
            Form::SignedCodes(of) => write!(f, "codes with the signs of {of}")?,
            Form::Numbers(number) => write!(f, "{} in {number}", self.component)?,
            Form::Magnitudes(number) => write!(f, "magnitudes of {} in {number}", self.component)?,
            Form::RowSums => write!(f, "sums of rows without their scales")?,
            Form::Computed(Computed::Scale) => write!(f, "product of scales")?,
            Form::Computed(Computed::ChannelScale) => write!(f, "product of scales of rows")?,
            Form::Computed(Computed::ChannelScaleOfInput) => {
                write!(f, "product of scales of rows and of x")?
            }
            Form::Computed(Computed::Correction {
                correction: ZeroPointCorrection { zero, add },
                exponent,
            }) => {
                let zero = if *zero { "zero point and " } else { "" };
                write!(f, "shift less scale times {zero}{add}, in 2^{exponent}")?;
            }
        }
        write!(f, ", {bits} bits for {} x {}: ", shared(rows), shared(cols))?;
        write!(f, "{}", self.layout.display(self.component))
    }
}

fn shared(group_size: GroupSize) -> String {
    match group_size {
        GroupSize::Each(each) => each.to_string(),
        GroupSize::All => "all".to_owned(),
    }
}

/// The first index of a group.
fn first_of(group_size: GroupSize, group: u64) -> u64 {
    match group_size {
        GroupSize::Each(each) => group * u64::from(each),
        GroupSize::All => 0,
    }
}
