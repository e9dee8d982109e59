//! A weight before a device has prepared it: its scheme, its shape, and where its numbers are.
//!
//! In: a scheme and stored tensors, or a weight that was unpacked already. Out: what a
//! [`Backend`](crate::backend::Backend) asks for. The host unpacks stored tensors only if a backend
//! needs them so: a GPU takes most of them as they are stored.

use std::any::Any;
use std::cell::OnceCell;
use std::fmt;

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::Shape;

use crate::unpacked::{UnpackError, Unpacked};

/// The bytes of a stored tensor, by its name.
type Lookup<'a> = Box<dyn Fn(&str) -> Option<&'a [u8]> + 'a>;

/// The bytes of stored tensors, by the names of their stores.
pub type Stored<'s, 'b> = &'s dyn Fn(&str) -> Option<&'b [u8]>;

/// A weight on its way to a device.
pub struct WeightData<'a> {
    scheme: &'a Scheme,
    shape: Shape,
    stored: Option<Lookup<'a>>,
    given: Option<&'a Unpacked>,
    made: OnceCell<Unpacked>,
    extra: Option<&'a (dyn Any + Send + Sync)>,
}

impl<'a> WeightData<'a> {
    /// A weight by its stored tensors: `stored` gives the bytes of a store of the scheme by its name.
    pub fn stored(
        scheme: &'a Scheme,
        shape: Shape,
        stored: impl Fn(&str) -> Option<&'a [u8]> + 'a,
    ) -> Self {
        let stored: Lookup<'a> = Box::new(stored);
        let made = OnceCell::new();
        Self { scheme, shape, stored: Some(stored), given: None, made, extra: None }
    }

    /// A weight that was unpacked, for products as `scheme` says: its own scheme, or one with another
    /// activation.
    pub fn unpacked(scheme: &'a Scheme, weight: &'a Unpacked) -> Self {
        let (shape, given, made) = (weight.shape(), Some(weight), OnceCell::new());
        Self { scheme, shape, stored: None, given, made, extra: None }
    }

    /// The same with what its stored tensors were unpacked to, so that nobody unpacks them again.
    #[must_use]
    pub fn with_unpacked(self, weight: &'a Unpacked) -> Self {
        Self { given: Some(weight), ..self }
    }

    /// The same with what belongs to it on one kind of device alone, such as the decoder that was
    /// generated for a declared scheme. A backend looks for a type that it knows.
    #[must_use]
    pub fn with_extra(self, extra: &'a (dyn Any + Send + Sync)) -> Self {
        Self { extra: Some(extra), ..self }
    }

    /// What products compute.
    pub fn scheme(&self) -> &'a Scheme {
        self.scheme
    }

    /// The weight's shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Its stored tensors, if they are at hand.
    pub fn stores(&self) -> Option<Stored<'_, 'a>> {
        self.stored.as_deref()
    }

    /// What was given with it, if it is of this type.
    pub fn extra<T: Any>(&self) -> Option<&'a T> {
        let extra: &'a dyn Any = self.extra?;
        extra.downcast_ref()
    }

    /// The weight unpacked, by the host, once.
    ///
    /// # Errors
    /// See [`UnpackError`].
    pub fn unpack(&self) -> Result<&Unpacked, UnpackError> {
        if let Some(given) = self.given {
            return Ok(given);
        }
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let none = |_: &str| None;
        let stored = self.stores().unwrap_or(&none);
        let made = Unpacked::new(self.scheme, self.shape, stored)?;
        Ok(self.made.get_or_init(|| made))
    }
}

impl fmt::Debug for WeightData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("WeightData");
        fields.field("scheme", &self.scheme.name).field("shape", &self.shape);
        fields.finish_non_exhaustive()
    }
}
