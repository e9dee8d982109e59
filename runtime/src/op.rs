//! The operation: y = x w^T + bias, as an engine calls it.
//!
//! In: x [M, K] of `f32`, f16 or bf16. Out: y [M, N] in the type of the place that the caller
//! gives. [`Op`] is object-safe; a declared scheme ([`Declared`]) gives it a type: checkpoint
//! layer -> [`Packed`] -> [`Weight`]. Threads are those of the rayon pool in which a call is made
//! (`ThreadPool::install` chooses it); ops are `Send + Sync` and may be called from several threads
//! at once, each with a [`Workspace`] of its own.

use std::marker::PhantomData;
use std::sync::OnceLock;

use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::ReferenceError;
use quantloom_dsl::{Scheme, parse};

pub use crate::buffer::Workspace;
use crate::checkpoint::{Layer, LayerError};
use crate::cpu::family::{Decoder, Family};
use crate::cpu::weight::CpuWeight;
use crate::device::Device;
pub use crate::element::{Bf16, F16, Values, ValuesMut};
use crate::select::Selection;
use crate::unpacked::Unpacked;

/// Why a product could not be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProductError {
    /// The activation's width is not the weight's.
    #[error("x has {found} columns, the weight has K = {expected}")]
    Columns {
        /// K.
        expected: u64,
        /// Columns of x.
        found: u64,
    },
    /// x is not whole rows.
    #[error("x has {found} values, which is no whole number of rows of K = {k}")]
    Rows {
        /// K.
        k: u64,
        /// Values of x.
        found: u64,
    },
    /// The result has no room, or too much.
    #[error("y has {found} values, x and the weight give {expected}")]
    Result {
        /// M * N.
        expected: u64,
        /// Values of y.
        found: u64,
    },
    /// There is no such expert.
    #[error("there is no expert {expert}; the layer stacks {experts}")]
    Expert {
        /// Asked for.
        expert: u64,
        /// E.
        experts: u64,
    },
    /// The activation quantiser refused.
    #[error(transparent)]
    Quantiser(#[from] ReferenceError),
    /// An activation that is NaN has no scale.
    #[error("x[{token}, {k}] is {value}; the activation quantiser needs finite values")]
    NotFinite {
        /// Row of x.
        token: usize,
        /// Column of x.
        k: usize,
        /// The value.
        value: f64,
    },
    /// The scheme of a product is not that of its weight.
    #[error("the weight was unpacked by another scheme: {0} differs")]
    Scheme(&'static str),
}

/// A prepared product.
pub trait Op: Send + Sync {
    /// The scheme that it computes.
    fn scheme(&self) -> &Scheme;
    /// The weight's shape.
    fn shape(&self) -> Shape;
    /// The kernel that runs it, and why not another.
    fn selection(&self) -> &Selection;
    /// Bytes of workspace for M tokens on the threads of the pool of the caller.
    fn workspace_size(&self, tokens: usize) -> usize;
    /// `y = x w^T + bias` of one expert (0 where there is one): x is [M, K], y [M, N].
    ///
    /// Allocates nothing if the workspace has [`Op::workspace_size`]; else the workspace grows.
    ///
    /// # Errors
    /// See [`ProductError`]; y is then untouched.
    fn matmul_into(
        &self,
        expert: u64,
        x: Values<'_>,
        y: ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ProductError>;

    /// [`Op::matmul_into`] a new vector.
    ///
    /// # Errors
    /// See [`ProductError`].
    fn matmul(&self, expert: u64, x: Values<'_>) -> Result<Vec<f32>, ProductError> {
        let Shape { n, k, .. } = self.shape();
        let tokens = (x.len() as u64).checked_div(k).unwrap_or(0);
        let mut y = vec![0.0; (tokens * n) as usize];
        let mut workspace = Workspace::default();
        self.matmul_into(expert, x, ValuesMut::F32(&mut y), &mut workspace)?;
        Ok(y)
    }
}

/// A scheme that is declared in the program's text: what `scheme!` implements.
pub trait Declared: Sized + Send + Sync + 'static {
    /// The scheme, as the language prints it.
    const TEXT: &'static str;
    /// The decoder that was generated for it.
    type Family: Family;
    /// That decoder.
    const FAMILY: &'static Self::Family;
    /// Where the parsed scheme is kept: a `static` of the implementor.
    fn cell() -> &'static OnceLock<Option<Scheme>>;

    /// The scheme as a value; `None` if `TEXT` is no scheme, which the macro does not let happen.
    fn scheme() -> Option<&'static Scheme> {
        Self::cell().get_or_init(|| parse(Self::TEXT).ok()).as_ref()
    }

    /// Takes a checkpoint's layer, which must be of this scheme (its packing may be another one's).
    ///
    /// # Errors
    /// [`LoadError`].
    fn load(layer: &Layer) -> Result<Packed<Self>, LoadError> {
        let declared = Self::scheme().ok_or(LoadError::Declaration)?;
        if !declared.same_compute(layer.scheme()) {
            return Err(LoadError::OtherScheme {
                layer: layer.name().to_owned(),
                declared: declared.to_string(),
                found: layer.scheme().to_string(),
            });
        }
        Ok(Packed { weight: layer.unpack()?, scheme: PhantomData })
    }
}

/// Why a layer is not a declared scheme's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The declaration is not valid.
    #[error("the declared scheme does not parse")]
    Declaration,
    /// Another scheme.
    #[error(
        "layer \"{layer}\" is of another scheme than declared; declared:\n{declared}\nfound:\n{found}"
    )]
    OtherScheme {
        /// The layer.
        layer: String,
        /// What was declared.
        declared: String,
        /// What the checkpoint says.
        found: String,
    },
    /// The layer itself is at fault.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// A layer of a declared scheme, taken out of its packing, on no device yet.
#[derive(Clone, Debug)]
pub struct Packed<S> {
    weight: Unpacked,
    scheme: PhantomData<S>,
}

impl<S: Declared> Packed<S> {
    /// From an unpacked layer.
    ///
    /// # Errors
    /// [`ProductError::Scheme`] if it is not of this scheme.
    pub fn new(weight: Unpacked) -> Result<Self, ProductError> {
        match S::scheme() {
            Some(scheme) if scheme.same_compute(weight.scheme()) => {
                Ok(Self { weight, scheme: PhantomData })
            }
            _ => Err(ProductError::Scheme("the declaration")),
        }
    }

    /// Packs the weight as the device's kernels read it.
    ///
    /// # Errors
    /// See [`ProductError`].
    pub fn prepare(&self, device: &Device) -> Result<Weight<S>, ProductError> {
        let decoder = Decoder::Known(S::FAMILY);
        let weight = CpuWeight::new(*device, decoder, self.weight.scheme(), &self.weight)?;
        Ok(Weight { weight, scheme: PhantomData })
    }
}

/// A prepared weight of a declared scheme.
#[derive(Debug)]
pub struct Weight<S> {
    weight: CpuWeight,
    scheme: PhantomData<S>,
}

impl<S: Declared> Weight<S> {
    /// `y = x w^T + bias`: x is [M, K], the result [M, N].
    ///
    /// # Errors
    /// See [`ProductError`].
    pub fn matmul<'x>(&self, x: impl Into<Values<'x>>) -> Result<Vec<f32>, ProductError> {
        self.weight.matmul(0, x.into())
    }

    /// The operation, for an engine.
    pub fn op(&self) -> &dyn Op {
        &self.weight
    }
}
