//! What all experts' inputs share: static scales and zero points of x or h, and the prescale of columns.

use quantloom_dsl::Scheme;
use quantloom_dsl::reference::StaticInput;

use crate::experts::{ExpertError, InputScales, take_largest};
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
                InputScales::Each => {
                    "experts whose inputs have different static parameters; the largest scale of them \
                     for all is another choice (InputScales::Largest)"
                }
                InputScales::Largest => "experts whose inputs have different prescales",
            };
            return Err(ExpertError::NotScheduled(why.to_owned()));
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
