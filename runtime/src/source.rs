//! Where the text of a device kernel comes from, and what must be known to launch it.
//!
//! In: a [`KernelKey`], all that decides a kernel's text. Out: a [`KernelText`]: the text and,
//! because text alone cannot be launched, its [`LaunchRule`]. The runtime knows no emitter; an
//! emitter, or a pack of texts made ahead of time, implements [`KernelSource`]. A new kind of
//! source starts at that trait, a new kind of kernel at [`Work`].
//!
//! The rule is part of the text's meaning: whoever writes the text writes the rule in the same
//! place, so that the two cannot drift apart. It holds no closures, only [`Count`]s, and can be
//! stored beside a text.

mod key;

use std::borrow::Cow;
use std::fmt;
use std::ops::{Add, Mul};
use std::sync::Arc;

pub use key::{ExpertRole, KernelKey, Schedule, Work};
pub use quantloom_dsl::{BufferRole, Dimension, Storage};
use serde::{Deserialize, Serialize};

/// The sizes that a launch knows: y is [M, N], x is [M, K], w is [N, K].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProblemSize {
    /// Rows of x and y.
    pub m: u64,
    /// Rows of w.
    pub n: u64,
    /// Columns of x and w.
    pub k: u64,
    /// Experts whose weights are stacked; 1 of a single matrix.
    pub experts: u64,
    /// Pairs of a token and an expert that multiplies it; M of a single matrix.
    pub routed_rows: u64,
    /// Multiprocessors of the device.
    pub multiprocessors: u64,
}

impl ProblemSize {
    /// The product with a single matrix.
    pub const fn new(m: u64, n: u64, k: u64, multiprocessors: u64) -> Self {
        Self { m, n, k, experts: 1, routed_rows: m, multiprocessors }
    }
}

/// A number of a launch in terms of the [`ProblemSize`], as a value: `Count::N.ceil_div(32)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Count {
    /// Always the same.
    Fixed(u64),
    /// Rows of x and y.
    M,
    /// Rows of w.
    N,
    /// Columns of x and w.
    K,
    /// Experts whose weights are stacked.
    Experts,
    /// Pairs of a token and an expert that multiplies it.
    RoutedRows,
    /// Multiprocessors of the device.
    Multiprocessors,
    /// The sum.
    Add(Box<Count>, Box<Count>),
    /// The product.
    Mul(Box<Count>, Box<Count>),
    /// The quotient, rounded up.
    CeilDiv(Box<Count>, Box<Count>),
    /// The smaller.
    Min(Box<Count>, Box<Count>),
    /// The larger.
    Max(Box<Count>, Box<Count>),
}

impl Count {
    /// The quotient, rounded up.
    #[must_use]
    pub fn ceil_div(self, by: impl Into<Self>) -> Self {
        Self::CeilDiv(Box::new(self), Box::new(by.into()))
    }

    /// The smaller of the two.
    #[must_use]
    pub fn min(self, other: impl Into<Self>) -> Self {
        Self::Min(Box::new(self), Box::new(other.into()))
    }

    /// The larger of the two.
    #[must_use]
    pub fn max(self, other: impl Into<Self>) -> Self {
        Self::Max(Box::new(self), Box::new(other.into()))
    }

    /// The same with another number in place of M.
    #[must_use]
    pub fn with_rows(&self, rows: &Self) -> Self {
        let of = |one: &Self| Box::new(one.with_rows(rows));
        match self {
            Self::M => rows.clone(),
            Self::Fixed(_)
            | Self::N
            | Self::K
            | Self::Experts
            | Self::RoutedRows
            | Self::Multiprocessors => self.clone(),
            Self::Add(a, b) => Self::Add(of(a), of(b)),
            Self::Mul(a, b) => Self::Mul(of(a), of(b)),
            Self::CeilDiv(a, b) => Self::CeilDiv(of(a), of(b)),
            Self::Min(a, b) => Self::Min(of(a), of(b)),
            Self::Max(a, b) => Self::Max(of(a), of(b)),
        }
    }

    /// The most token blocks of an expert layer: `min(R, ceil((R + (L - 1)(B - 1)) / B))` of R pairs, L
    /// experts and B slots a block. An expert with r pairs has `ceil(r / B)` blocks, at most
    /// `(r + B - 1) / B`; all experts together have at most `(R + L (B - 1)) / B`, rounded down, which is
    /// the quotient above. Each block has a pair.
    pub fn token_blocks(experts: u64, slots: u64) -> Self {
        let (experts, slots) = (experts.max(1), slots.max(1));
        let padded = Self::RoutedRows + (experts - 1) * (slots - 1);
        padded.ceil_div(slots).min(Self::RoutedRows)
    }

    /// The number for a problem; `None` where it exceeds 64 bits or divides by zero.
    pub fn of(&self, problem: &ProblemSize) -> Option<u64> {
        let both = |a: &Self, b: &Self| Some((a.of(problem)?, b.of(problem)?));
        match self {
            Self::Fixed(value) => Some(*value),
            Self::M => Some(problem.m),
            Self::N => Some(problem.n),
            Self::K => Some(problem.k),
            Self::Experts => Some(problem.experts),
            Self::RoutedRows => Some(problem.routed_rows),
            Self::Multiprocessors => Some(problem.multiprocessors),
            Self::Add(a, b) => both(a, b).and_then(|(a, b)| a.checked_add(b)),
            Self::Mul(a, b) => both(a, b).and_then(|(a, b)| a.checked_mul(b)),
            Self::CeilDiv(a, b) => both(a, b).and_then(|(a, b)| (b != 0).then(|| a.div_ceil(b))),
            Self::Min(a, b) => both(a, b).map(|(a, b)| a.min(b)),
            Self::Max(a, b) => both(a, b).map(|(a, b)| a.max(b)),
        }
    }
}

impl From<u64> for Count {
    fn from(value: u64) -> Self {
        Self::Fixed(value)
    }
}

impl From<Dimension> for Count {
    fn from(dimension: Dimension) -> Self {
        match dimension {
            Dimension::M => Self::M,
            Dimension::N => Self::N,
            Dimension::K => Self::K,
            Dimension::Experts => Self::Experts,
            Dimension::RoutedRows => Self::RoutedRows,
            Dimension::TokenBlocks { experts, slots } => {
                Self::token_blocks(experts.into(), slots.into())
            }
        }
    }
}

impl<T: Into<Count>> Add<T> for Count {
    type Output = Self;

    fn add(self, other: T) -> Self {
        Self::Add(Box::new(self), Box::new(other.into()))
    }
}

impl<T: Into<Count>> Mul<T> for Count {
    type Output = Self;

    fn mul(self, other: T) -> Self {
        Self::Mul(Box::new(self), Box::new(other.into()))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(value) => write!(f, "{value}"),
            Self::M => f.write_str("M"),
            Self::N => f.write_str("N"),
            Self::K => f.write_str("K"),
            Self::Experts => f.write_str("E"),
            Self::RoutedRows => f.write_str("routed rows"),
            Self::Multiprocessors => f.write_str("multiprocessors"),
            Self::Add(a, b) => write!(f, "({a} + {b})"),
            Self::Mul(a, b) => write!(f, "{a} * {b}"),
            Self::CeilDiv(a, b) => write!(f, "ceil({a} / {b})"),
            Self::Min(a, b) => write!(f, "min({a}, {b})"),
            Self::Max(a, b) => write!(f, "max({a}, {b})"),
        }
    }
}

/// What a kernel does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it, and reads at most what it wrote.
    Write,
    /// Reads what is in it and writes it.
    ReadWrite,
}

/// The type of a number that a caller passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scalar {
    /// 32 bits, unsigned.
    U32,
    /// 32 bits, signed.
    I32,
    /// 64 bits, unsigned.
    U64,
    /// An `f32`.
    F32,
}

/// The element of a tensor map: what its sizes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TensorWord {
    /// 1 byte.
    U8,
    /// 2 bytes: bf16 and f16 too.
    U16,
    /// 4 bytes.
    U32,
}

impl TensorWord {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }
}

/// How the 16-byte vectors of a row are permuted in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Swizzle {
    /// As they are.
    None,
    /// Over 32 bytes.
    B32,
    /// Over 64 bytes.
    B64,
    /// Over 128 bytes.
    B128,
}

/// A tensor in a buffer of the same kernel, and the box of it that one copy moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorRule {
    /// The name of the parameter that is the buffer.
    pub buffer: String,
    /// Element.
    pub word: TensorWord,
    /// Elements along each dimension, the fastest first.
    pub dims: Vec<Count>,
    /// Elements from one index to the next along each dimension but the fastest.
    pub strides: Vec<Count>,
    /// Elements of the box along each dimension.
    pub tile: Vec<u32>,
    /// The permutation in shared memory.
    pub swizzle: Swizzle,
}

/// What a parameter is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParameterKind {
    /// The address of device memory, 64 bits.
    Buffer {
        /// What the kernel does with it.
        access: Access,
        /// The bytes that the kernel may touch, from the address on.
        bytes: Count,
        /// The alignment in bytes that the kernel relies on.
        align: u32,
        /// What the buffer is to a product, if the kernel is one of a product.
        role: Option<BufferRole>,
    },
    /// A 32-bit number that follows from the problem: the launch computes it, no caller passes it.
    Size(Count),
    /// A number that the caller passes.
    Scalar(Scalar),
    /// A tensor map of 128 bytes, by value.
    TensorMap(TensorRule),
}

/// One parameter of a kernel, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// The name, for errors.
    pub name: String,
    /// What it is.
    pub kind: ParameterKind,
}

impl Parameter {
    /// A buffer whose address is a multiple of 16 bytes, as every load of our kernels needs.
    pub fn buffer(name: &str, access: Access, bytes: impl Into<Count>) -> Self {
        let kind = ParameterKind::Buffer { access, bytes: bytes.into(), align: 16, role: None };
        Self { name: name.to_owned(), kind }
    }

    /// As [`Self::buffer`], of a product.
    pub fn of(role: BufferRole, access: Access, bytes: impl Into<Count>) -> Self {
        let (name, bytes, role) = (role.to_string(), bytes.into(), Some(role));
        let kind = ParameterKind::Buffer { access, bytes, align: 16, role };
        Self { name, kind }
    }

    /// A size of the problem.
    pub fn size(name: &str, count: impl Into<Count>) -> Self {
        Self { name: name.to_owned(), kind: ParameterKind::Size(count.into()) }
    }

    /// A number that the caller passes.
    pub fn scalar(name: &str, scalar: Scalar) -> Self {
        Self { name: name.to_owned(), kind: ParameterKind::Scalar(scalar) }
    }

    /// A tensor map.
    pub fn tensor_map(name: &str, rule: TensorRule) -> Self {
        Self { name: name.to_owned(), kind: ParameterKind::TensorMap(rule) }
    }
}

/// How a kernel is launched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRule {
    /// Blocks along x, y and z.
    pub grid: [Count; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of a cluster along x, y and z; `[1, 1, 1]` without clusters.
    pub cluster: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: Count,
    /// The text itself waits (`griddepcontrol.wait`) before it touches what an earlier kernel
    /// may still be writing or reading, so that it may be launched before that one has ended.
    pub overlaps: bool,
    /// The parameters, in the order of the text.
    pub parameters: Vec<Parameter>,
}

impl LaunchRule {
    /// Tensor maps of a kernel, at most: of x, its scales, y, three planes of codes, and four kinds of group parameters.
    pub const MOST_TENSOR_MAPS: usize = 10;

    /// A one-dimensional grid without clusters, shared memory or overlap.
    pub fn plain(blocks: impl Into<Count>, threads: u32, parameters: Vec<Parameter>) -> Self {
        Self {
            grid: [blocks.into(), Count::Fixed(1), Count::Fixed(1)],
            threads,
            cluster: [1, 1, 1],
            shared_bytes: Count::Fixed(0),
            overlaps: false,
            parameters,
        }
    }
}

/// A kernel as a driver takes it, and what is needed to launch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelText<'s> {
    /// The entry point's name.
    pub entry: Cow<'s, str>,
    /// The text.
    pub text: Cow<'s, str>,
    /// How to launch it.
    pub rule: Cow<'s, LaunchRule>,
}

/// Why a source has no text for a key.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The source makes text for other targets.
    #[error("there are no kernels for {target} here, only for {}", known.join(", "))]
    Target {
        /// The target asked for.
        target: String,
        /// The targets that the source knows.
        known: Vec<String>,
    },
    /// A pack was made without this kernel.
    #[error("the pack has no kernel for: {0}")]
    NotPacked(Box<KernelKey>),
    /// The source's own typed reason.
    #[error(transparent)]
    Reason(Arc<dyn std::error::Error + Send + Sync>),
    /// The source failed at what it offers: a fault of its own, and no limit of the version.
    #[error(transparent)]
    Fault(Arc<dyn std::error::Error + Send + Sync>),
}

/// A source of kernel texts.
///
/// The same key gives the same text, byte for byte: images compiled from it are kept by its
/// hash. An implementation may be called from any thread.
pub trait KernelSource: Send + Sync {
    /// The text of a kernel.
    ///
    /// # Errors
    /// Why this source has none.
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal>;
}
