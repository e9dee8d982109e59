//! Back from decoded numbers to the codes of the reference.

use std::collections::BTreeMap;

use quantloom_dsl::format::{Number, Overflow};
use quantloom_dsl::layout::Component;
use quantloom_dsl::reference::PlainCodes;

use super::Unpacked;

impl Unpacked {
    /// The codes, scales, zero points, shifts, group index and bias as the reference takes them: each number
    /// as a code of its stored type that decodes to the same number. Static parameters of the activation are
    /// not among them ([`Unpacked::input`]).
    pub fn plain(&self) -> PlainCodes {
        let coded = |number: Number, values: &[f64]| -> Vec<u32> {
            values.iter().map(|value| number.encode(*value, Overflow::Special)).collect()
        };
        let mut components = BTreeMap::new();
        let codes = self.codes.iter().map(|code| u32::from(*code)).collect();
        components.insert(Component::Code, codes);
        for (level, (scale, (part, _))) in (0u8..).zip(self.scheme.scales.iter().zip(&self.scales))
        {
            if let Some(number) = scale.stored_number() {
                let stored = part.values.iter().map(|value| scale.stored_value(*value));
                let values: Vec<f64> = stored.collect();
                components.insert(Component::Scale(level), coded(number, &values));
            }
        }
        if let (Some(zero), Some(part)) = (self.scheme.zero, &self.zero) {
            let codes = part.values.iter().map(|value| zero.kind.encode(*value)).collect();
            components.insert(Component::Zero, codes);
        }
        for (level, (shift, part)) in (0u8..).zip(self.scheme.shifts.iter().zip(&self.shifts)) {
            let values: Vec<f64> =
                part.values.iter().map(|factor| shift.stored_value(*factor)).collect();
            components.insert(Component::Shift(level), coded(shift.number, &values));
        }
        if let Some(index) = &self.index {
            components.insert(Component::Index, index.clone());
        }
        if let (Some(number), Some(bias)) = (self.scheme.bias, &self.bias) {
            components.insert(Component::Bias, coded(number, bias));
        }
        PlainCodes { shape: self.shape, components }
    }
}
