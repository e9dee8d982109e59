//! Which of a scheme's activations x uses: one rule for every backend.
//!
//! The list is searched in its order. A float type accepts x of that type, a quantiser accepts x of
//! any type; the first alternative that accepts x is used. If none does, x is converted to a float
//! type of the list: to f32, which holds every value of the other types, if the list has it, else
//! to the first alternative.

use std::fmt;

use crate::format::{BF16, F16, F32, FloatFormat, Number};
use crate::layout::Component;
use crate::scheme::{Accuracy, Activation, Quantiser, Scheme};

/// The types that x may have.
pub const INPUT_DTYPES: [FloatFormat; 3] = [BF16, F16, F32];

/// The activation that x of one type uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActivationChoice<'s> {
    /// The input dtype.
    pub own: FloatFormat,
    /// The index of the alternative in the scheme's list.
    pub place: usize,
    /// The alternative.
    pub activation: &'s Activation,
}

/// Why an alternative cannot be selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActivationChoiceError {
    /// The list has no such alternative.
    #[error("the scheme `{scheme}` has no activation `{name}`; it has {known}")]
    Unknown {
        /// The scheme.
        scheme: String,
        /// The requested name.
        name: String,
        /// The alternatives.
        known: String,
    },
    /// The packing needs the quantiser that would be removed.
    #[error(
        "the tensor `{0}` stores static scales of the quantiser together with other components"
    )]
    StoredTensors(String),
}

impl<'s> ActivationChoice<'s> {
    /// The quantiser of x, if x is quantised.
    pub fn quantiser(self) -> Option<&'s Quantiser> {
        match self.activation {
            Activation::Quantised(quantiser) => Some(quantiser),
            Activation::Float(_) => None,
        }
    }

    /// The float type that x is converted to, if the list does not have the input dtype.
    pub fn converted(self) -> Option<FloatFormat> {
        match self.activation {
            Activation::Float(Number::Float(listed)) if *listed != self.own => Some(*listed),
            _ => None,
        }
    }
}

impl ActivationChoice<'_> {
    /// The 16-bit types that x may be converted to if a target has no f32 product: the input dtype
    /// first, then those of the list, then the others. Empty if x is quantised or has 16 bits
    /// already.
    pub fn narrower(self, scheme: &Scheme) -> Vec<Activation> {
        if *self.activation != Activation::Float(Number::Float(F32)) {
            return Vec::new();
        }
        let mut halves = [BF16, F16].map(|half| Activation::Float(Number::Float(half))).to_vec();
        let own = Activation::Float(Number::Float(self.own));
        let place = |half: &Activation| scheme.activations.iter().position(|listed| listed == half);
        halves.sort_by_key(|half| (*half != own, place(half).unwrap_or(usize::MAX)));
        halves
    }
}

/// Displays as `x in f16 is quantised to i8`.
impl fmt::Display for ActivationChoice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "x in {} ", self.own)?;
        match (self.quantiser(), self.converted()) {
            (Some(quantiser), _) => write!(f, "is quantised to {}", quantiser.code),
            (None, Some(listed)) => {
                write!(f, "is converted to {listed}: the scheme does not list {}", self.own)
            }
            (None, None) => f.write_str("is not converted"),
        }
    }
}

impl Activation {
    /// The name by which a caller selects the alternative: its float type, or the type of the
    /// quantiser's codes.
    pub fn name(&self) -> String {
        match self {
            Self::Float(number) => number.to_string(),
            Self::Quantised(quantiser) => quantiser.code.to_string(),
        }
    }
}

impl Scheme {
    /// The scheme that lists x in this float type alone, if it lists x in the type; else the scheme as it is. x in other
    /// types is then converted to it.
    #[must_use]
    pub fn with_input(&self, own: FloatFormat) -> Self {
        let only = Activation::Float(Number::Float(own));
        match self.activations.contains(&only) {
            true => Self { activations: vec![only], ..self.clone() },
            false => self.clone(),
        }
    }

    /// The same scheme with products of this accuracy.
    #[must_use]
    pub fn with_accuracy(&self, accuracy: Accuracy) -> Self {
        Self { accuracy, ..self.clone() }
    }

    /// The activation that x of a type uses, by the rule above; `None` if the scheme lists no
    /// activation, which the language rejects.
    pub fn activation_for(&self, own: FloatFormat) -> Option<ActivationChoice<'_>> {
        let list = || self.activations.iter().enumerate();
        let takes = |activation: &Activation| match activation {
            Activation::Float(number) => *number == Number::Float(own),
            Activation::Quantised(_) => true,
        };
        let widest = Activation::Float(Number::Float(F32));
        let first = list().find(|(_, activation)| takes(activation));
        let wide = || list().find(|(_, activation)| **activation == widest);
        let (place, activation) = first.or_else(wide).or_else(|| list().next())?;
        Some(ActivationChoice { own, place, activation })
    }

    /// The activation for each input dtype.
    pub fn activation_choices(&self) -> impl Iterator<Item = ActivationChoice<'_>> {
        INPUT_DTYPES.into_iter().filter_map(|own| self.activation_for(own))
    }

    /// Whether the use depends on the input dtype: the list has a quantiser and something else.
    pub fn is_mixed(&self) -> bool {
        self.quantiser().is_some() && self.activations.len() > 1
    }

    /// The same scheme with only one of its activations, selected by its [`Activation::name`].
    /// Tensors that only the removed quantiser needs are removed too.
    ///
    /// # Errors
    /// The list has no such alternative, or a tensor of static scales stores other components too.
    pub fn with_activation(&self, name: &str) -> Result<Self, ActivationChoiceError> {
        let found = self.activations.iter().find(|activation| activation.name() == name);
        let Some(activation) = found else {
            let known: Vec<String> = self.activations.iter().map(Activation::name).collect();
            let (scheme, name) = (self.name.clone(), name.to_owned());
            return Err(ActivationChoiceError::Unknown { scheme, name, known: known.join(", ") });
        };
        let mut scheme = Self { activations: vec![activation.clone()], ..self.clone() };
        if scheme.quantiser().is_none() {
            let of_x = |component: Component| {
                matches!(component, Component::InputScale(_) | Component::InputZero)
            };
            scheme.stores.retain(|store| !of_x(store.owner));
            let left = self.components().into_iter().filter(|component| of_x(*component));
            for component in left {
                if let Some(store) = scheme.stores_of(component).next() {
                    return Err(ActivationChoiceError::StoredTensors(store.name.clone()));
                }
            }
        }
        Ok(scheme)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn scheme(activation: &str) -> Scheme {
        let text = format!(
            "s {{ weight: u4 - 8, scale: bf16 per 1x32, pack: [k, n], activation: {activation} }}"
        );
        parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults}"))
    }

    /// The index of the alternative for x in bf16, f16 and f32, and the type it is converted to.
    fn of_types(activation: &str) -> Vec<(usize, Option<FloatFormat>)> {
        scheme(activation)
            .activation_choices()
            .map(|taken| (taken.place, taken.converted()))
            .collect()
    }

    #[test]
    fn the_first_that_takes_x_is_taken() {
        let i8 = "i8 { scale: f32 per token }";
        let plain = |places: [usize; 3]| places.map(|place| (place, None)).to_vec();
        assert_eq!(of_types(i8), plain([0, 0, 0]));
        assert_eq!(of_types(&format!("{i8} | bf16")), plain([0, 0, 0]));
        assert_eq!(of_types(&format!("bf16 | {i8}")), plain([0, 1, 1]));
        assert_eq!(of_types(&format!("f32 | bf16 | {i8}")), plain([1, 2, 0]));
        assert_eq!(of_types(&format!("bf16 | {i8} | f16")), plain([0, 1, 1]));
        assert_eq!(of_types("f16 | f32 | bf16"), plain([2, 0, 1]));
    }

    #[test]
    fn a_type_that_is_not_listed_is_converted() {
        assert_eq!(of_types("bf16 | f16"), [(0, None), (1, None), (0, Some(BF16))]);
        assert_eq!(of_types("f16"), [(0, Some(F16)), (0, None), (0, Some(F16))]);
        assert_eq!(of_types("bf16 | f32"), [(0, None), (1, Some(F32)), (1, None)]);
        let said: Vec<String> =
            scheme("f16 | f32").activation_choices().map(|taken| taken.to_string()).collect();
        assert_eq!(
            said,
            [
                "x in bf16 is converted to f32: the scheme does not list bf16",
                "x in f16 is not converted",
                "x in f32 is not converted"
            ]
        );
    }

    #[test]
    fn what_is_narrower_than_f32_is_listed_first() {
        let narrower = |activation: &str, own| {
            let scheme = scheme(activation);
            let narrower = scheme.activation_for(own).unwrap().narrower(&scheme);
            narrower.iter().map(Activation::name).collect::<Vec<_>>()
        };
        assert_eq!(narrower("f32", F32), ["bf16", "f16"]);
        assert_eq!(narrower("f32 | f16", F32), ["f16", "bf16"]);
        assert_eq!(narrower("f32", F16), ["f16", "bf16"]);
        assert_eq!(narrower("f32 | bf16", F16), ["f16", "bf16"]);
        assert!(narrower("bf16", F32).is_empty());
        assert!(narrower("i8 { scale: f32 per token } | f32", F32).is_empty());
    }

    #[test]
    fn a_caller_may_insist() {
        let both = scheme("e4m3 { scale: f32 per tensor static } | bf16");
        assert!(both.is_mixed());
        assert!(both.stores.iter().any(|store| store.owner == Component::InputScale(0)));
        let float = both.with_activation("bf16").unwrap();
        assert_eq!(float.activations, [Activation::Float(Number::Float(BF16))]);
        assert!(float.stores.iter().all(|store| store.owner != Component::InputScale(0)));
        assert!(!float.is_mixed());
        let quantised = both.with_activation("e4m3").unwrap();
        assert_eq!((quantised.activations.len(), &quantised.stores), (1, &both.stores));
        let unknown = both.with_activation("f16").unwrap_err().to_string();
        assert_eq!(unknown, "the scheme `s` has no activation `f16`; it has e4m3, bf16");
        let shared = parse(
            "s { weight: u8, scale: f32 per tensor, pack: for [n] { u8 [code | k], input_scale } \
             as \"w\", activation: e4m3 { scale: f32 per tensor static } | bf16 }",
        );
        if let Ok(shared) = shared {
            assert_eq!(
                shared.with_activation("bf16"),
                Err(ActivationChoiceError::StoredTensors("w".to_owned()))
            );
        }
    }
}
