//! A constant buffer of a product: what it holds, where, and how it is filled.
//!
//! In: an unpacked layer. Out: the buffer's bytes. Nothing is indexed by hand: the source of the
//! kernels says a layout, and the layout transforms move codes and numbers there, pads 0.

use quantloom_dsl::format::{Number, Overflow};
use quantloom_dsl::layout::{Bound, Component, Grains, Layout, Recode, Transform};

use crate::unpacked::{UnpackError, Unpacked};

/// How the elements of a part are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// As codes of the weight, through a bijection of them.
    Codes(Recode),
    /// As numbers of a type that holds their values exactly.
    Numbers(Number),
}

/// A constant buffer of a product.
#[derive(Clone, Debug, PartialEq)]
pub struct NativePart {
    /// The buffer's name in the kernel's rule.
    pub buffer: String,
    /// What it holds: codes, the scales of a level, zero points, the bias.
    pub component: Component,
    /// Where: bound to N and K, whose tails it pads.
    pub layout: Layout,
    /// Bits of an element as it is written, rows and columns that share one.
    pub grains: Grains,
    /// How.
    pub form: Form,
}

impl NativePart {
    /// The buffer's bytes for a layer.
    ///
    /// # Errors
    /// A layer without the component, a layout that does not hold the shape, a value that the
    /// numbers' type does not hold exactly.
    pub fn pack(&self, weight: &Unpacked) -> Result<Vec<u8>, UnpackError> {
        let fault = |error| UnpackError::Transform { store: self.buffer.clone(), error };
        let plain = self.bind(&Layout::plain(self.component, self.grains.bits), weight)?;
        let native = self.bind(&self.layout, weight)?;
        let mut bytes = native.blank(&self.layout);
        match &self.form {
            Form::Codes(recode) => {
                Transform::new(self.component, &plain, &native, recode.clone())
                    .and_then(|transform| transform.run(weight.codes(), &mut bytes))
                    .map_err(fault)?;
            }
            Form::Numbers(number) => {
                let source = self.numbers(*number, weight)?;
                Transform::new(self.component, &plain, &native, Recode::Keep)
                    .and_then(|transform| transform.run(&source, &mut bytes))
                    .map_err(fault)?;
            }
        }
        Ok(bytes)
    }

    fn bind(&self, layout: &Layout, weight: &Unpacked) -> Result<Bound, UnpackError> {
        let grains = |component| (component == self.component).then_some(self.grains);
        layout
            .bind(weight.shape(), &grains)
            .map_err(|error| UnpackError::Bind { store: self.buffer.clone(), error })
    }

    /// The component's values in plain order, an element a slot.
    fn numbers(&self, number: Number, weight: &Unpacked) -> Result<Vec<u8>, UnpackError> {
        let values = weight
            .values(self.component)
            .ok_or_else(|| UnpackError::Missing(self.component.to_string()))?;
        let slot = (self.grains.bits.next_power_of_two().max(8) / 8) as usize;
        let mut bytes = Vec::with_capacity(values.len() * slot);
        for (element, value) in values.iter().enumerate() {
            let code = number.encode(*value, Overflow::Special);
            if number.decode(code) != *value {
                let store = self.buffer.clone();
                return Err(UnpackError::Inexact { store, element, value: *value, number });
            }
            bytes.extend_from_slice(&code.to_le_bytes()[..slot]);
        }
        Ok(bytes)
    }
}
