//! The operation: y = x w^T + bias, as an engine calls it.
//!
//! In: x [M, K] of `f32`, f16 or bf16. Out: y [M, N] in the type of the place that the caller
//! gives. [`Op`] is object-safe; a declared scheme ([`Declared`]) gives it a type: checkpoint
//! layer -> [`Packed`] -> [`Weight`]. Threads are those of the rayon pool in which a call is made
//! (`ThreadPool::install` chooses it); ops are `Send + Sync` and may be called from several threads
//! at once, each with a [`Workspace`] of its own. A child of `fork` needs a pool of its own, and is told
//! so ([`Forked`]).

use std::marker::PhantomData;
use std::sync::OnceLock;

use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::ReferenceError;
use quantloom_dsl::{Scheme, parse};

pub use crate::buffer::Workspace;
use crate::checkpoint::{Layer, LayerError};
use crate::cpu::family::{Decoder, Family};
use crate::cpu::weight::CpuWeight;
use crate::device::Device;
pub use crate::element::{Bf16, F16, Values, ValuesMut};
use crate::forked::Forked;
use crate::source::Refusal;
use crate::unpacked::{UnpackError, Unpacked};

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
    /// The device has no kernel for it: why.
    #[error("not scheduled: {0}")]
    NotScheduled(String),
    /// The weight does not fit the layout that the device's kernels read.
    #[error(transparent)]
    Pack(Box<UnpackError>),
    /// The device failed: what it said.
    #[error("{0}")]
    Device(String),
    /// The threads that would multiply are those of another process.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl From<Refusal> for ProductError {
    fn from(why: Refusal) -> Self {
        match why {
            Refusal::Fault(fault) => Self::Device(fault.to_string()),
            why => Self::NotScheduled(why.to_string()),
        }
    }
}

/// How a kernel adds up a product: what the bound of its error is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// Integers inside a piece of a group, `f32` over pieces.
    Integer,
    /// Stored codes times x in `f32`; offsets and zero points are taken off the sum.
    Float,
    /// Weights without their scale, exact in 16 bits, times x in matrix instructions that add in
    /// `f32`; a scale multiplies the sum of its group.
    Matrix,
    /// Codes of both sides, each with its scale, in matrix instructions that multiply with the scales and
    /// add up several groups in `f32`.
    Scaled,
    /// Stored codes times x by the lanes of a GPU, exact integers or in `f32` of which only this is
    /// promised: results are one of the two neighbours of the exact one, a multiply-add may be two
    /// operations, and subnormal numbers may be taken for 0.
    Lanes,
    /// By the type of x: as [`Sums::Float`], or weights with their scale times x, both cut into bf16
    /// numbers that add up to them, in matrix instructions that add in `f32` and take subnormal
    /// numbers for 0.
    Parts,
    /// The same in instructions that add two products at a time and round each sum to odd.
    OddParts,
}

/// What a kernel multiplies with x instead of the values of codes: what decoding leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// This is added to each value; a term times the sum of x takes it off again.
    pub add: i32,
    /// The format to whose numbers values are rounded after they are multiplied with two to this, which a
    /// scale takes back; `None` where all of them are kept.
    pub rounded: Option<(FloatFormat, i32)>,
}

/// A prepared product.
pub trait Op: Send + Sync {
    /// The scheme that it computes.
    fn scheme(&self) -> &Scheme;
    /// The weight's shape.
    fn shape(&self) -> Shape;
    /// The kernel that multiplies M tokens.
    fn kernel(&self, tokens: usize) -> String;
    /// A line for that kernel and one for each that was passed over, with the reason.
    fn explain(&self, tokens: usize) -> String;
    /// How the kernel that multiplies M tokens adds up.
    fn sums(&self, tokens: usize) -> Sums;
    /// The same for x of a type, where kernels of several types add up in several ways.
    fn sums_of(&self, _x: FloatFormat, tokens: usize) -> Sums {
        self.sums(tokens)
    }
    /// The type to which x of a type, times its columns' factors, is rounded before it is multiplied: its own, or a narrower float
    /// type where the scheme does not list its own or the device has no products of it.
    fn rounds_x(&self, x: FloatFormat) -> FloatFormat {
        x
    }

    /// What the kernel that multiplies M tokens of x of a type decodes codes to.
    fn decoded(&self, _x: FloatFormat, _tokens: usize) -> Decoded {
        Decoded::default()
    }
    /// The type to which y is rounded where x is of one type and the place for y of another: that
    /// of the place, or a narrower one.
    fn rounded_to(&self, _x: FloatFormat, y: FloatFormat) -> FloatFormat {
        y
    }
    /// Bytes of workspace for M tokens on the threads of the pool of the caller; [`usize::MAX`] if
    /// that many bytes cannot be counted.
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
        let mut y = Vec::new();
        let room = usize::try_from(tokens.saturating_mul(n)).unwrap_or(usize::MAX);
        let none = |_| ProductError::Device(format!("there is no memory for y of {tokens} x {n}"));
        y.try_reserve_exact(room).map_err(none)?;
        y.resize(room, 0.0);
        let mut workspace = Workspace::default();
        self.matmul_into(expert, x, ValuesMut::F32(&mut y), &mut workspace)?;
        Ok(y)
    }
}

/// M, if x of so many values is whole rows.
pub(crate) fn tokens(shape: Shape, values: usize) -> Result<usize, ProductError> {
    let (k, found) = (shape.k, values as u64);
    match found.checked_rem(k) {
        Some(0) => Ok((found / k) as usize),
        _ => Err(ProductError::Rows { k, found }),
    }
}

/// M, if x, y and the expert fit the weight.
pub(crate) fn sizes(
    shape: Shape,
    expert: u64,
    x: Values<'_>,
    y: &ValuesMut<'_>,
) -> Result<usize, ProductError> {
    let tokens = tokens(shape, x.len())?;
    let (expected, found) = ((tokens as u64).saturating_mul(shape.n), y.len() as u64);
    if expected != found {
        return Err(ProductError::Result { expected, found });
    }
    if expert >= shape.experts {
        return Err(ProductError::Expert { expert, experts: shape.experts });
    }
    Ok(tokens)
}

/// Refuses a scheme whose weights are not those of an unpacked layer.
pub(crate) fn same_weight(scheme: &Scheme, weight: &Unpacked) -> Result<(), ProductError> {
    let own = weight.scheme();
    let differs = [
        ("the weight's code type", own.weight != scheme.weight),
        ("the scales", own.scales != scheme.scales),
        ("the zero point", own.zero != scheme.zero),
        ("the shift", own.shift != scheme.shift),
        ("whether there is a bias", own.bias.is_some() != scheme.bias.is_some()),
        ("whether columns have an order", own.index.is_some() != scheme.index.is_some()),
        ("whether experts are stacked", own.experts.is_some() != scheme.experts.is_some()),
    ];
    match differs.into_iter().find(|(_, differs)| *differs) {
        Some((what, _)) => Err(ProductError::Scheme(what)),
        None => Ok(()),
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
