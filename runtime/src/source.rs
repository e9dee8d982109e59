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

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Add, Mul};
use std::sync::Arc;

use quantloom_dsl::experts::{ExpertProduct, Gate, OperandOf, Routing};
use quantloom_dsl::format::{FloatFormat, NUMBER_F32, Number};
use quantloom_dsl::{Activation, Scheme};
pub use quantloom_dsl::{BufferRole, Dimension, Storage};
use serde::{Deserialize, Serialize};

/// What a kernel computes.
///
/// A scheme in here is stripped of what does not change the text, so that equal work has equal
/// keys: of its name, summary and targets always, of its packing in a product.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// `y[M, N] = x w^T (+ bias)`, w in the native layout of the key's target.
    Product {
        /// The scheme, with the one activation that x comes as and without packing.
        scheme: Arc<Scheme>,
        /// Element type of y.
        output: Number,
        /// What it is to an expert layer, whose matrices are stacked; `None` with a single matrix. The
        /// sizes of the stack are parameters of the schedule.
        experts: Option<ExpertRole>,
    },
    /// The first product of an expert layer with its gate, and from its rows what the second product reads on the key's target.
    ProductWithOperand {
        /// The scheme of the first product, as in a product.
        scheme: Arc<Scheme>,
        /// Element type of h, of which that is made.
        own: Number,
        /// What the first product is to the layer.
        role: ExpertRole,
        /// The scheme of the second product, as in a product.
        second: Arc<Scheme>,
    },
    /// x, as it comes, to what a product of the key's target reads.
    Operand {
        /// The scheme, as in a product.
        scheme: Arc<Scheme>,
        /// Element type of x.
        own: Number,
        /// The product of an expert layer whose experts read x in different ways; `None` where all rows
        /// are read alike. The sizes of the stack are parameters of the schedule.
        experts: Option<ExpertRole>,
    },
    /// From the scheme's own packing to the native layout of the key's target.
    ToNative(Arc<Scheme>),
    /// From the native layout of the key's target back to the scheme's own packing.
    FromNative(Arc<Scheme>),
    /// The experts of each token of an expert layer and their router weights, from logits.
    Route(Routing),
    /// The pairs of an expert layer, sorted by expert.
    Order,
    /// Both the pairs of an expert layer, sorted by expert, and x, as it comes, to what the first product of the layer reads on
    /// the key's target, where all experts read x alike.
    OrderWithOperand {
        /// The scheme, as in a product.
        scheme: Arc<Scheme>,
        /// Element type of x.
        own: Number,
    },
    /// x times router weights, of an expert layer with the weight on the input.
    WeighRows {
        /// Element type of x.
        own: Number,
    },
    /// From the rows of the first product of an expert layer to the input of the second.
    Gate {
        /// The function.
        gate: Gate,
        /// Element type of that input.
        own: Number,
    },
    /// y of an expert layer: the weighted sum of what a token's experts give.
    Combine {
        /// Element type of what each of them gives.
        parts: Number,
        /// Element type of what shared experts give.
        own: Number,
        /// Element type of y.
        output: Number,
    },
}

/// What a product of stacked matrices is to an expert layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertRole {
    /// Which product.
    pub product: ExpertProduct,
    /// The gate, if y is what it makes of the shards: a row per slot.
    pub gate: Option<Gate>,
    /// Whether a pair is a token block of its own, whose expert is its id: nothing is sorted.
    pub direct: bool,
    /// Whether a row of y, one a pair, is multiplied by the pair's router weight.
    pub weighted: bool,
    /// Whether y has a row a token instead, the sum of its pairs' rows.
    pub combined: bool,
    /// The type of what shared experts give, if it is added to these sums.
    pub shared: Option<FloatFormat>,
    /// Which matrices read the same rows of x.
    pub operand: OperandOf,
}

impl fmt::Display for ExpertRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { product, gate, direct, weighted, combined, shared, operand } = self;
        if *direct {
            f.write_str("direct ")?;
        }
        if *weighted {
            f.write_str("weighted ")?;
        }
        if *combined {
            f.write_str("combined ")?;
        }
        if *operand != OperandOf::Row {
            write!(f, "by {operand} ")?;
        }
        match gate {
            None => write!(f, "{product}")?,
            Some(gate) => write!(f, "{product} and {gate}")?,
        }
        match shared {
            Some(own) => write!(f, " and shared experts in {own}"),
            None => Ok(()),
        }
    }
}

impl Work {
    /// The product of a scheme's weight with an activation.
    pub fn product(scheme: &Scheme, activation: &Activation, output: Number) -> Self {
        Self::Product { scheme: Arc::new(unpacked(scheme, activation)), output, experts: None }
    }

    /// The product of the weights of an expert layer, each of a scheme, with an activation.
    pub fn expert_product(
        scheme: &Scheme,
        activation: &Activation,
        output: Number,
        role: ExpertRole,
    ) -> Self {
        let scheme = Arc::new(unpacked(scheme, activation));
        Self::Product { scheme, output, experts: Some(role) }
    }

    /// The first product of an expert layer, of a scheme with an activation, that also makes what the second one reads of its rows.
    pub fn product_with_operand(
        (scheme, activation): (&Scheme, &Activation),
        own: Number,
        role: ExpertRole,
        (second, of_second): (&Scheme, &Activation),
    ) -> Self {
        let scheme = Arc::new(unpacked(scheme, activation));
        let second = Arc::new(unpacked(second, of_second));
        Self::ProductWithOperand { scheme, own, role, second }
    }

    /// What a product of a scheme's weight with an activation reads of x.
    pub fn operand(scheme: &Scheme, activation: &Activation, own: Number) -> Self {
        Self::Operand { scheme: Arc::new(unpacked(scheme, activation)), own, experts: None }
    }

    /// What a product of an expert layer reads of x, where its experts read x in different ways.
    pub fn expert_operand(
        scheme: &Scheme,
        activation: &Activation,
        own: Number,
        role: ExpertRole,
    ) -> Self {
        let scheme = Arc::new(unpacked(scheme, activation));
        Self::Operand { scheme, own, experts: Some(role) }
    }

    /// The order of pairs, and what the first product of an expert layer reads of x.
    pub fn order_with_operand(scheme: &Scheme, activation: &Activation, own: Number) -> Self {
        Self::OrderWithOperand { scheme: Arc::new(unpacked(scheme, activation)), own }
    }

    /// The transform from a scheme's packing to the native layout.
    pub fn to_native(scheme: &Scheme) -> Self {
        Self::ToNative(Arc::new(anonymous(scheme)))
    }

    /// The transform back.
    pub fn from_native(scheme: &Scheme) -> Self {
        Self::FromNative(Arc::new(anonymous(scheme)))
    }

    /// The scheme, stripped, that of the first product of two; `None` of what reads no weights.
    pub fn scheme(&self) -> Option<&Scheme> {
        match self {
            Self::Product { scheme, .. }
            | Self::ProductWithOperand { scheme, .. }
            | Self::Operand { scheme, .. }
            | Self::OrderWithOperand { scheme, .. }
            | Self::ToNative(scheme)
            | Self::FromNative(scheme) => Some(scheme),
            Self::Route(_)
            | Self::Order
            | Self::WeighRows { .. }
            | Self::Gate { .. }
            | Self::Combine { .. } => None,
        }
    }
}

/// The scheme with one activation, without packing.
fn unpacked(scheme: &Scheme, activation: &Activation) -> Scheme {
    let activations = vec![activation.clone()];
    Scheme { stores: Vec::new(), activations, ..anonymous(scheme) }
}

/// The scheme without what it is called and where its author wants it to run.
fn anonymous(scheme: &Scheme) -> Scheme {
    Scheme { name: String::new(), summary: String::new(), targets: Vec::new(), ..scheme.clone() }
}

/// How it is computed: a schedule's name and its parameters (tile sizes, warps, stages, and
/// sizes of the problem that are constants of the text).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// The schedule's name.
    pub name: String,
    /// Its parameters, by name.
    pub parameters: BTreeMap<String, u64>,
}

impl Schedule {
    /// A schedule with parameters.
    pub fn new<'a>(name: &str, parameters: impl IntoIterator<Item = (&'a str, u64)>) -> Self {
        let parameters = parameters.into_iter().map(|(name, value)| (name.to_owned(), value));
        Self { name: name.to_owned(), parameters: parameters.collect() }
    }
}

/// All that decides a kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelKey {
    /// What it computes.
    pub work: Work,
    /// How.
    pub schedule: Schedule,
    /// Where: the target's name, as `sm_90a`.
    pub target: String,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = |scheme: &Scheme| scheme.weight.code.bits();
        match self {
            Self::Product { scheme, output, experts } => {
                let experts = experts.map(|role| format!("{role} ")).unwrap_or_default();
                write!(f, "{experts}product of {}-bit codes to {output}", bits(scheme))
            }
            Self::ProductWithOperand { scheme, own, role, second } => {
                let [of, second] = [scheme, second].map(|scheme| bits(scheme));
                let x = format!("{own} for products of {second}-bit codes");
                write!(f, "{role} product of {of}-bit codes to x in {x}")
            }
            Self::Operand { scheme, own, experts } => {
                let experts = experts.map(|role| format!("{role} ")).unwrap_or_default();
                write!(f, "{experts}x in {own} for products of {}-bit codes", bits(scheme))
            }
            Self::ToNative(scheme) => write!(f, "{}-bit codes to the native layout", bits(scheme)),
            Self::FromNative(scheme) => {
                write!(f, "{}-bit codes from the native layout", bits(scheme))
            }
            Self::Route(routing) => write!(f, "experts of logits by {routing}"),
            Self::Order => f.write_str("pairs sorted by expert"),
            Self::OrderWithOperand { scheme, own } => write!(
                f,
                "pairs sorted by expert, and x in {own} for products of {}-bit codes",
                bits(scheme)
            ),
            Self::WeighRows { own } => write!(f, "x in {own} times router weights"),
            Self::Gate { gate, own } => write!(f, "{gate} to {own}"),
            Self::Combine { parts, output, .. } => {
                let of = if *parts == NUMBER_F32 { String::new() } else { format!(" in {parts}") };
                write!(f, "weighted sum of experts{of} to {output}")
            }
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (at, (name, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{name}={value}", if at == 0 { "(" } else { ", " })?;
        }
        if self.parameters.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

impl fmt::Display for KernelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.work, self.schedule, self.target)
    }
}

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
