//! A scheme that is declared in the program's text, as a type: what `scheme!` implements.
//!
//! In: a checkpoint's layer. Out: [`Packed`], a layer that is known to be of the scheme; on a device,
//! [`Weight`].

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::OnceLock;

use quantloom_dsl::{Scheme, parse};

use crate::backend::Backend;
use crate::checkpoint::{Layer, LayerError};
use crate::cpu::decoder::{CodeDecoder, DynDecoder};
use crate::prepared::PreparedLayer;

/// A scheme that is declared in the program's text.
pub trait Declared: Sized + Send + Sync + 'static {
    /// The scheme, as the language prints it.
    const TEXT: &'static str;
    /// The decoder that was generated for it, which products on the CPU take.
    type Decoder: CodeDecoder;
    /// That decoder.
    const DECODER: &'static Self::Decoder;
    /// Where the parsed scheme is kept: a `static` of the implementor.
    fn cell() -> &'static OnceLock<Option<Scheme>>;

    /// The scheme as a value; `None` if `TEXT` is no scheme, which the macro does not let happen.
    fn scheme() -> Option<&'static Scheme> {
        Self::cell().get_or_init(|| parse(Self::TEXT).ok()).as_ref()
    }

    /// Takes a checkpoint's layer, which must be of this scheme: its packing may be another one's, and so may what products do not
    /// read ([`Scheme::difference_of_products`]). Products are exact where the scheme or the layer asks for that.
    ///
    /// # Errors
    /// [`LoadError`].
    fn load(layer: &Layer) -> Result<Packed<Self>, LoadError> {
        let declared = Self::scheme().ok_or(LoadError::Declaration)?;
        let accuracy = declared.accuracy.max(layer.scheme().accuracy);
        let layer = layer.with_accuracy(accuracy);
        let asked = declared.with_accuracy(accuracy);
        if let Some(clause) = asked.difference_of_products(layer.scheme()) {
            return Err(LoadError::OtherScheme {
                layer: layer.name().to_owned(),
                clause,
                declared: declared.to_string(),
                found: layer.scheme().to_string(),
            });
        }
        Ok(Packed { layer, scheme: PhantomData })
    }
}

/// Why a layer is not a declared scheme's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The declaration is not valid.
    #[error("the declared scheme does not parse")]
    Declaration,
    /// Another scheme.
    #[error(
        "layer \"{layer}\" is of another scheme than declared: `{clause}` differs; declared:\n{declared}\nfound:\n{found}"
    )]
    OtherScheme {
        /// The layer.
        layer: String,
        /// The first clause of a scheme that differs.
        clause: &'static str,
        /// What was declared.
        declared: String,
        /// What the checkpoint says.
        found: String,
    },
}

/// A layer of a declared scheme as its checkpoint packs it, on no device yet.
#[derive(Clone, Debug)]
pub struct Packed<S> {
    layer: Layer,
    scheme: PhantomData<S>,
}

impl<S: Declared> Packed<S> {
    /// The layer.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// Brings the weight into the layout that the kernels of a device read.
    ///
    /// # Errors
    /// See [`LayerError`].
    pub fn prepare(&self, device: &(impl Backend + ?Sized)) -> Result<Weight<S>, LayerError> {
        let decoder: &'static dyn DynDecoder = S::DECODER;
        let layer = self.layer.prepare_data(&self.layer.data().with_extra(&decoder), device)?;
        Ok(Weight { layer, scheme: PhantomData })
    }
}

/// A layer that is prepared, of a declared scheme: a [`PreparedLayer`] whose scheme the type says.
pub struct Weight<S> {
    layer: PreparedLayer,
    scheme: PhantomData<S>,
}

impl<S> Weight<S> {
    /// The layer without the type.
    pub fn into_layer(self) -> PreparedLayer {
        self.layer
    }
}

impl<S> Deref for Weight<S> {
    type Target = PreparedLayer;

    fn deref(&self) -> &PreparedLayer {
        &self.layer
    }
}

impl<S> fmt::Debug for Weight<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.layer.fmt(f)
    }
}
