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
