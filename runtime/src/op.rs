//! The operation: y = x w^T + bias, as an engine calls it.
//!
//! In: x [M, K] of `f32`, f16 or bf16. Out: y [M, N] in the type of the place that the caller
//! gives. [`Op`] is object-safe; a [`Backend`](crate::backend::Backend) makes ops of layers. Threads
//! are those of the rayon pool in which a call is made (`ThreadPool::install` chooses it); ops are
//! `Send + Sync` and may be called from several threads at once, each with a [`Workspace`] of its own.
//! A child of `fork` needs a pool of its own, and is told so ([`Forked`]).

use std::any::Any;
use std::error::Error;
use std::sync::Arc;

use quantloom_dsl::Scheme;
use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::ReferenceError;

use crate::accumulation::Accumulation;
pub use crate::buffer::Workspace;
pub use crate::element::{OwnedValues, Values, ValuesMut, bf16, f16};
use crate::forked::Forked;
use crate::source::{KernelKey, Refusal};
use crate::unpacked::{UnpackError, Unpacked};

/// Why a product could not be computed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
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
    #[error("x has {found} values, which is not a whole number of rows of K = {k}")]
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
    /// Rows of x that overlap, or the last of which is not whole.
    #[error("x has {found} values, which are not rows of K = {k} that begin {stride} values apart")]
    Stride {
        /// K.
        k: u64,
        /// Values from the begin of a row to that of the next.
        stride: usize,
        /// Values of x.
        found: u64,
    },
    /// x of a layer of stacked experts belongs to one of them, which the call does not name.
    #[error("the layer stacks {experts} experts, and the call names none of them")]
    Stacked {
        /// E.
        experts: u64,
    },
    /// The host has no memory for y.
    #[error("there is no memory for y of {tokens} x {n}")]
    Memory {
        /// M.
        tokens: u64,
        /// N.
        n: u64,
    },
    /// The device has no kernel for it: why.
    #[error("not scheduled: {0}")]
    NotScheduled(#[from] NotScheduled),
    /// The stored tensors of the weight do not fit its scheme, or the layout that kernels read.
    #[error(transparent)]
    Pack(Box<UnpackError>),
    /// The device failed: its own error, which `downcast_ref` gives back, such as a
    /// `cuda::CudaError`.
    #[error(transparent)]
    Device(Arc<dyn Error + Send + Sync>),
    /// The threads that would multiply are those of another process.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a device has no kernel for a product.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotScheduled {
    /// The source of kernels has none, for its own reason.
    #[error(transparent)]
    Kernels(#[from] Refusal),
    /// The scheme lists no activation.
    #[error("the scheme names no activation")]
    NoActivation,
    /// No kernel of this weight takes x of this type.
    #[error("x in {x}: the kernels of this weight multiply {}", listed(known))]
    TypeOfX {
        /// The type of x.
        x: FloatFormat,
        /// Types that kernels take.
        known: Vec<FloatFormat>,
    },
    /// No kernel of this weight writes y in this type.
    #[error("y in {y} for x in {x}: kernels round y to {rounded}")]
    TypeOfY {
        /// The type of x.
        x: FloatFormat,
        /// The type that was asked for.
        y: FloatFormat,
        /// The type that kernels write.
        rounded: FloatFormat,
    },
    /// All rows of x share a scale, and no launch takes them together.
    #[error("{tokens} tokens that share a scale: a launch takes {most}")]
    SharedScale {
        /// M.
        tokens: u64,
        /// The most that a launch takes.
        most: u64,
    },
    /// The caller's kernel takes fewer rows of x.
    #[error("a launch takes {most} rows of x at most, not {rows}")]
    Rows {
        /// Rows of x.
        rows: u64,
        /// The most that a launch takes.
        most: u64,
    },
    /// Products do not read the component, so that the device does not have it.
    #[error("products read no `{0}`")]
    NoComponent(Component),
    /// The caller's kernel is one of another product.
    #[error("{0} is no kernel of this weight's products")]
    OtherProduct(Box<KernelKey>),
    /// An order of columns names columns that the weight does not have.
    #[error("the order of the columns is that of a wider weight")]
    OtherOrder,
}

fn listed(formats: &[FloatFormat]) -> String {
    formats.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

impl ProductError {
    /// The failure of a device.
    pub fn device(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Device(Arc::new(error))
    }
}

impl From<Refusal> for ProductError {
    fn from(why: Refusal) -> Self {
        match why {
            Refusal::Fault(fault) => Self::Device(fault),
            why => Self::NotScheduled(why.into()),
        }
    }
}

impl From<UnpackError> for ProductError {
    fn from(error: UnpackError) -> Self {
        match error {
            UnpackError::Forked(forked) => Self::Forked(forked),
            error => Self::Pack(Box::new(error)),
        }
    }
}

/// A prepared product. An op can be asked for its own type (`Any`), which gives an engine what is
/// particular to a device: [`PreparedLayer::downcast_ref`](crate::prepared::PreparedLayer::downcast_ref).
pub trait Op: Any + Send + Sync {
    /// The scheme that it computes.
    fn scheme(&self) -> &Scheme;
    /// The weight's shape.
    fn shape(&self) -> Shape;
    /// The kernel that multiplies M tokens.
    fn kernel(&self, tokens: usize) -> String;
    /// A line for that kernel and one for each that was rejected, with the reason.
    fn explain(&self, tokens: usize) -> String;
    /// Where its kernels round: for the conformance kit, which derives the bound of their error.
    fn accumulation(&self) -> &dyn Accumulation;
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
        let none = |_| ProductError::Memory { tokens, n };
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
        ("the shift", own.shifts != scheme.shifts),
        ("whether there is a bias", own.bias.is_some() != scheme.bias.is_some()),
        ("whether columns have an order", own.index.is_some() != scheme.index.is_some()),
        ("whether experts are stacked", own.experts.is_some() != scheme.experts.is_some()),
    ];
    match differs.into_iter().find(|(_, differs)| *differs) {
        Some((what, _)) => Err(ProductError::Scheme(what)),
        None => Ok(()),
    }
}
