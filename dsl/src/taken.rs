//! Which alternative of a scheme's activations x takes: one rule for everything that multiplies.
//!
//! The list is tried in the order in which it is written. A float type takes x of that type, a
//! quantiser x of any type; the first alternative that takes x as it comes is taken. What none takes
//! is worth its value in a float type of the list: the first that holds every value of x's type, else
//! the first of all.

use std::fmt;

use crate::format::{BF16, F16, F32, FloatFormat, Number};
use crate::layout::Component;
use crate::scheme::{Activation, Quantiser, Scheme};

/// The types that x may come in.
pub const TYPES_OF_X: [FloatFormat; 3] = [BF16, F16, F32];

/// What becomes of x of one type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken<'s> {
    /// The type that x comes in.
    pub own: FloatFormat,
    /// The place of the alternative in the scheme's list, from 0.
    pub place: usize,
    /// The alternative.
    pub activation: &'s Activation,
}

/// Why a caller cannot insist on an alternative.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The list has no such alternative.
    #[error("the scheme `{scheme}` has no activation `{name}`; it has {known}")]
    Unknown {
        /// The scheme.
        scheme: String,
        /// What was asked for.
        name: String,
        /// The alternatives.
        known: String,
    },
    /// The packing needs the quantiser that would be left out.
    #[error("the tensor `{0}` holds static scales of the quantiser besides other components")]
    Packed(String),
}

impl<'s> Taken<'s> {
    /// The quantiser that x goes through, if it does.
    pub fn quantiser(self) -> Option<&'s Quantiser> {
        match self.activation {
            Activation::Quantised(quantiser) => Some(quantiser),
            Activation::Float(_) => None,
        }
    }

    /// The float type that x is converted to, if the list has none of its own.
    pub fn converted(self) -> Option<FloatFormat> {
        match self.activation {
            Activation::Float(Number::Float(listed)) if *listed != self.own => Some(*listed),
            _ => None,
        }
    }
}

impl Taken<'_> {
    /// What x may be taken as where a target has no product of f32: 16-bit floats, x's own type before
    /// those of the list, those before others. Nothing if x is quantised, or taken in 16 bits.
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

/// As `x in f16 is quantised to i8`.
impl fmt::Display for Taken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "x in {} ", self.own)?;
        match (self.quantiser(), self.converted()) {
            (Some(quantiser), _) => write!(f, "is quantised to {}", quantiser.code),
            (None, Some(listed)) => {
                write!(f, "is taken as {listed}: the scheme does not list {}", self.own)
            }
            (None, None) => f.write_str("is taken as it is"),
        }
    }
}

impl Activation {
    /// What a caller calls it who insists on it: its float type, or that of the quantiser's codes.
    pub fn name(&self) -> String {
        match self {
            Self::Float(number) => number.to_string(),
            Self::Quantised(quantiser) => quantiser.code.to_string(),
        }
    }
}

impl Scheme {
    /// What becomes of x of a type, by the rule above; `None` if the scheme lists no activation, which
    /// the language does not let happen.
    pub fn taken(&self, own: FloatFormat) -> Option<Taken<'_>> {
        let list = || self.activations.iter().enumerate();
        let takes = |activation: &Activation| match activation {
            Activation::Float(number) => *number == Number::Float(own),
            Activation::Quantised(_) => true,
        };
        let holds = |activation: &Activation| {
            matches!(activation, Activation::Float(Number::Float(listed)) if *listed == F32)
        };
        let first = list().find(|(_, activation)| takes(activation));
        let wide = || list().find(|(_, activation)| holds(activation));
        let (place, activation) = first.or_else(wide).or_else(|| list().next())?;
        Some(Taken { own, place, activation })
    }

    /// What becomes of x of each type.
    pub fn each_taken(&self) -> impl Iterator<Item = Taken<'_>> {
        TYPES_OF_X.into_iter().filter_map(|own| self.taken(own))
    }

    /// Whether the list leaves open what becomes of x: it has a quantiser and something else.
    pub fn is_mixed(&self) -> bool {
        self.quantiser().is_some() && self.activations.len() > 1
    }

    /// The same scheme with one of its activations alone, for a caller who insists on it: by its
    /// [`Activation::name`]. Tensors that only its quantiser needs go with it.
    ///
    /// # Errors
    /// There is no such alternative, or a tensor of static scales holds something else too.
    pub fn insisting(&self, name: &str) -> Result<Self, NotTaken> {
        let found = self.activations.iter().find(|activation| activation.name() == name);
        let Some(activation) = found else {
            let known: Vec<String> = self.activations.iter().map(Activation::name).collect();
            let (scheme, name) = (self.name.clone(), name.to_owned());
            return Err(NotTaken::Unknown { scheme, name, known: known.join(", ") });
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
                    return Err(NotTaken::Packed(store.name.clone()));
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

    /// The alternative of x in bf16, f16 and f32, and what it is converted to.
    fn of_types(activation: &str) -> Vec<(usize, Option<FloatFormat>)> {
        scheme(activation).each_taken().map(|taken| (taken.place, taken.converted())).collect()
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
            scheme("f16 | f32").each_taken().map(|taken| taken.to_string()).collect();
        assert_eq!(
            said,
            [
                "x in bf16 is taken as f32: the scheme does not list bf16",
                "x in f16 is taken as it is",
                "x in f32 is taken as it is"
            ]
        );
    }

    #[test]
    fn what_is_narrower_than_f32_is_listed_first() {
        let narrower = |activation: &str, own| {
            let scheme = scheme(activation);
            let narrower = scheme.taken(own).unwrap().narrower(&scheme);
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
        let float = both.insisting("bf16").unwrap();
        assert_eq!(float.activations, [Activation::Float(Number::Float(BF16))]);
        assert!(float.stores.iter().all(|store| store.owner != Component::InputScale(0)));
        assert!(!float.is_mixed());
        let quantised = both.insisting("e4m3").unwrap();
        assert_eq!((quantised.activations.len(), &quantised.stores), (1, &both.stores));
        let unknown = both.insisting("f16").unwrap_err().to_string();
        assert_eq!(unknown, "the scheme `s` has no activation `f16`; it has e4m3, bf16");
        let shared = parse(
            "s { weight: u8, scale: f32 per tensor, pack: for [n] { u8 [code | k], input_scale } \
             as \"w\", activation: e4m3 { scale: f32 per tensor static } | bf16 }",
        );
        if let Ok(shared) = shared {
            assert_eq!(shared.insisting("bf16"), Err(NotTaken::Packed("w".to_owned())));
        }
    }
}
