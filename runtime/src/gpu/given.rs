//! What products are given besides a weight and x: the scales and zero points of static activations, and
//! the factors of columns of x, which are known before x is.

use std::collections::BTreeMap;

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::Component;

use crate::unpacked::Unpacked;

/// What belongs to a layer and not to its weight: what is known of x.
#[derive(Default)]
pub(super) struct Given {
    /// Their bytes, by the names of buffers.
    pub(super) buffers: BTreeMap<String, Vec<u8>>,
}

impl Given {
    const ZERO: &str = "input_zero";
    const PRESCALE: &str = "prescale";

    fn scale(level: usize) -> String {
        format!("input_scale_{level}")
    }

    pub(super) fn of(weight: &Unpacked) -> Self {
        // Each expert is a weight of its own.
        let input = weight.input(0);
        let floats = |values: &[f64]| -> Vec<u8> {
            values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect()
        };
        let scales = input.scales.iter().enumerate();
        let scales = scales.map(|(level, values)| (Self::scale(level), floats(values)));
        let zeros = (Self::ZERO.to_owned(), floats(&input.zeros));
        let prescale = (Self::PRESCALE.to_owned(), floats(&input.prescale));
        let all = scales.chain([zeros, prescale]);
        Self { buffers: all.filter(|(_, bytes)| !bytes.is_empty()).collect() }
    }

    /// The buffers that a scheme's layers have, and what each holds.
    pub(super) fn names(scheme: &Scheme) -> Vec<(String, Component)> {
        let levels = scheme.quantiser().map_or(0, |quantiser| quantiser.scales.len());
        let levels = (0..levels).zip(0u8..);
        let scales = levels.map(|(level, at)| (Self::scale(level), Component::InputScale(at)));
        let zero = (Self::ZERO.to_owned(), Component::InputZero);
        let prescale = (Self::PRESCALE.to_owned(), Component::Prescale);
        let stored = |(_, component): &(String, Component)| scheme.number(*component).is_some();
        scales.chain([zero, prescale]).filter(stored).collect()
    }
}
