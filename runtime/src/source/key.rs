//! All that decides a kernel's text: what the kernel computes, how, and on which target.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use quantloom_dsl::experts::{ExpertProduct, Gate, OperandOf, Routing};
use quantloom_dsl::format::{FloatFormat, NUMBER_F32, Number};
use quantloom_dsl::{Activation, Scheme};

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
