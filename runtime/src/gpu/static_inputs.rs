//! What products are given besides a weight and x: the scales and zero points of static activations, and
//! the factors of columns of x, which are known before x is.

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::Component;

use crate::source::BufferRole;
use crate::unpacked::Unpacked;

/// What belongs to a layer and not to its weight: what is known of x.
#[derive(Default)]
pub(super) struct StaticInputs {
    /// Their bytes, f32.
    pub(super) buffers: Vec<(BufferRole, Vec<u8>)>,
}

impl StaticInputs {
    pub(super) fn of(weight: &Unpacked) -> Self {
        // Each expert is a weight of its own.
        let input = weight.input(0);
        let floats = |values: &[f64]| -> Vec<u8> {
            values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect()
        };
        let scales = (0u8..).zip(&input.scales);
        let scales = scales.map(|(level, values)| (BufferRole::InputScale(level), floats(values)));
        let zeros = (BufferRole::InputZero, floats(&input.zeros));
        let prescale = (BufferRole::Prescale, floats(&input.prescale));
        let all = scales.chain([zeros, prescale]);
        Self { buffers: all.filter(|(_, bytes)| !bytes.is_empty()).collect() }
    }

    /// The buffers that a scheme's layers have, and what each holds.
    pub(super) fn roles(scheme: &Scheme) -> Vec<(BufferRole, Component)> {
        let levels = scheme.quantiser().map_or(0, |quantiser| quantiser.scales.len());
        let levels = (0..levels).zip(0u8..);
        let scales = levels.map(|(_, at)| (BufferRole::InputScale(at), Component::InputScale(at)));
        let zero = (BufferRole::InputZero, Component::InputZero);
        let prescale = (BufferRole::Prescale, Component::Prescale);
        let stored = |(_, component): &(_, Component)| scheme.number(*component).is_some();
        scales.chain([zero, prescale]).filter(stored).collect()
    }
}
