//! What all experts' inputs share: static scales and zero points of x or h, and the prescale of columns.

use quantloom_dsl::Scheme;
use quantloom_dsl::reference::StaticInput;

use crate::experts::{ExpertError, InputScales};
use crate::source::BufferRole;
use crate::unpacked::Unpacked;

/// The static parameters of the input of a product.
pub(super) struct Inputs {
    rule: InputScales,
    /// Whether the scale of a level divides: then the largest scale has the smallest number.
    divides: Vec<bool>,
    /// Those of the experts so far.
    given: Option<StaticInput>,
}

impl Inputs {
    /// No expert yet.
    pub(super) fn new(scheme: &Scheme, rule: InputScales) -> Self {
        let levels = scheme.quantiser().map_or(&[][..], |quantiser| &quantiser.scales);
        Self { rule, divides: levels.iter().map(|level| level.divide).collect(), given: None }
    }

    /// Takes those of another matrix.
    ///
    /// # Errors
    /// Scales that differ where each expert keeps its own; zero points or prescales that differ.
    pub(super) fn add(&mut self, matrix: &Unpacked) -> Result<(), ExpertError> {
        let more = matrix.input(0);
        let Some(given) = &mut self.given else {
            self.given = Some(more);
            return Ok(());
        };
        if (&given.zeros, &given.prescale) != (&more.zeros, &more.prescale) {
            let why = "experts whose inputs have different static zero points or prescales";
            return Err(ExpertError::NotScheduled(why.to_owned()));
        }
        if self.rule == InputScales::Each && given.scales != more.scales {
            let why = "experts whose inputs have different static scales; the largest of them for all \
                       is another choice (InputScales::Largest)";
            return Err(ExpertError::NotScheduled(why.to_owned()));
        }
        let levels = given.scales.iter_mut().zip(&more.scales).zip(&self.divides);
        for ((known, more), divides) in levels {
            for (known, more) in known.iter_mut().zip(more) {
                *known = if *divides { known.min(*more) } else { known.max(*more) };
            }
        }
        Ok(())
    }

    /// The buffers that kernels read, f32.
    pub(super) fn buffers(&self) -> Vec<(BufferRole, Vec<u8>)> {
        let Some(StaticInput { scales, zeros, prescale, .. }) = &self.given else {
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
