//! What all experts' inputs share: static scales and zero points of x or h, and the prescale of columns.

use quantloom_dsl::Scheme;
use quantloom_dsl::reference::StaticInput;

use crate::experts::{ExpertError, ExpertsNotScheduled, InputScales, take_largest};
use crate::source::BufferRole;

/// The static parameters of the input of a product: one set for all experts.
pub(super) struct Inputs(Option<StaticInput>);

impl Inputs {
    /// Of those of all matrices.
    ///
    /// # Errors
    /// Parameters that differ where each expert keeps its own.
    pub(super) fn new(
        scheme: &Scheme,
        rule: InputScales,
        mut given: Vec<StaticInput>,
    ) -> Result<Self, ExpertError> {
        if let (InputScales::Largest, Some(quantiser)) = (rule, scheme.quantiser()) {
            take_largest(quantiser, &mut given.iter_mut().collect::<Vec<_>>());
        }
        let one = given.pop();
        if given.iter().any(|other| Some(other) != one.as_ref()) {
            let why = match rule {
                InputScales::Each => ExpertsNotScheduled::StaticInputs,
                InputScales::Largest => ExpertsNotScheduled::Prescales,
            };
            return Err(why.into());
        }
        Ok(Self(one))
    }

    /// The buffers that kernels read, f32.
    pub(super) fn buffers(&self) -> Vec<(BufferRole, Vec<u8>)> {
        let Some(StaticInput { scales, zeros, prescale, .. }) = &self.0 else {
            return Vec::new();
        };
        let floats = |values: &[f64]| -> Vec<u8> {
            values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect()
        };
        let scales = (0u8..).zip(scales);
        let scales = scales.map(|(level, values)| (BufferRole::InputScale(level), floats(values)));
        let zeros = (BufferRole::InputZero, floats(zeros));
        let prescale = (BufferRole::Prescale, floats(prescale));
        let all = scales.chain([zeros, prescale]);
        all.filter(|(_, bytes)| !bytes.is_empty()).collect()
    }
}
