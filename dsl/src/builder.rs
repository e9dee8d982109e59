//! The third front end: a scheme that is built in Rust and checked as a text is.

use crate::format::Number;
use crate::lang::{Diagnostics, parse};
use crate::layout::{Component, Layout};
use crate::scheme::{
    Accumulate, Accuracy, Activation, Arithmetic, Code, Experts, ScaleLevel, Scheme, ShiftLevel,
    Store, WeightCode, Zero, default_layout, default_name,
};

/// Builds a [`Scheme`]; [`SchemeBuilder::finish`] checks it.
///
/// ```
/// use quantloom_dsl::format::{NUMBER_BF16, Number};
/// use quantloom_dsl::layout::Component;
/// use quantloom_dsl::*;
///
/// let built = SchemeBuilder::new("W4A16G128", Code::Number(Number::Uint(4)), 8)
///     .scale(ScaleLevel {
///         number: ScaleType::Number(NUMBER_BF16),
///         offset: 0,
///         group: Group::along_k(128),
///         divide: false,
///         rule: ScaleRule::amax(7.5),
///         stored: true,
///     })
///     .pack(parse_layout("u32 [k:8 | k, n]", Component::Code)?)
///     .activation(Activation::Float(NUMBER_BF16))
///     .finish()?;
/// let written = parse(
///     "W4A16G128 {
///         weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16,
///     }",
/// )?;
/// assert_eq!(built, written);
/// # Ok::<(), Diagnostics>(())
/// ```
#[derive(Clone, Debug)]
pub struct SchemeBuilder {
    scheme: Scheme,
    written: Vec<Store>,
}

impl SchemeBuilder {
    /// Starts with a name, a code type and the constant that is subtracted from a code's value.
    pub fn new(name: impl Into<String>, code: Code, offset: i32) -> Self {
        let scheme = Scheme {
            name: name.into(),
            summary: String::new(),
            weight: WeightCode { code, offset },
            zero: None,
            shifts: Vec::new(),
            scales: Vec::new(),
            index: None,
            stores: Vec::new(),
            prescale: None,
            activations: Vec::new(),
            bias: None,
            accumulate: Accumulate::F32,
            output: None,
            arithmetic: Arithmetic::F32,
            accuracy: Accuracy::Fast,
            experts: None,
            targets: Vec::new(),
        };
        Self { scheme, written: Vec::new() }
    }

    /// The summary: one or more lines that say what the scheme is.
    #[must_use]
    pub fn summary(mut self, summary: impl Into<String>) -> Self {
        self.scheme.summary = summary.into();
        self
    }

    /// Zero points.
    #[must_use]
    pub fn zero(mut self, zero: Zero) -> Self {
        self.scheme.zero = Some(zero);
        self
    }

    /// The next coarser level of shifts.
    #[must_use]
    pub fn shift(mut self, level: ShiftLevel) -> Self {
        self.scheme.shifts.push(level);
        self
    }

    /// The next coarser level of scales.
    #[must_use]
    pub fn scale(mut self, level: ScaleLevel) -> Self {
        self.scheme.scales.push(level);
        self
    }

    /// A group index per column (act-order).
    #[must_use]
    pub fn index(mut self, number: Number) -> Self {
        self.scheme.index = Some(number);
        self
    }

    /// A stored tensor of codes, named `weight`, `weight_2`, ...
    #[must_use]
    pub fn pack(self, layout: Layout) -> Self {
        let packs = self.written.iter().filter(|s| s.owner == Component::Code).count();
        let name = match packs {
            0 => default_name(Component::Code),
            more => format!("{}_{}", default_name(Component::Code), more + 1),
        };
        self.store(Component::Code, layout, name)
    }

    /// A stored tensor with a layout and a name of its own.
    #[must_use]
    pub fn store(mut self, owner: Component, layout: Layout, name: impl Into<String>) -> Self {
        self.written.push(Store { name: name.into(), owner, layout });
        self
    }

    /// The prescale: a factor per column of x, in f32, f16 or bf16.
    #[must_use]
    pub fn prescale(mut self, number: Number) -> Self {
        self.scheme.prescale = Some(number);
        self
    }

    /// Adds one alternative for the activation.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.scheme.activations.push(activation);
        self
    }

    /// A stored bias: f32, f16 or bf16.
    #[must_use]
    pub fn bias(mut self, number: Number) -> Self {
        self.scheme.bias = Some(number);
        self
    }

    /// The type of the accumulator.
    #[must_use]
    pub fn accumulate(mut self, accumulate: Accumulate) -> Self {
        self.scheme.accumulate = accumulate;
        self
    }

    /// The type of the result: f32, f16 or bf16.
    #[must_use]
    pub fn output(mut self, number: Number) -> Self {
        self.scheme.output = Some(number);
        self
    }

    /// The quantisers' arithmetic.
    #[must_use]
    pub fn arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.scheme.arithmetic = arithmetic;
        self
    }

    /// What matters more, where a product is either faster or more exact.
    #[must_use]
    pub fn accuracy(mut self, accuracy: Accuracy) -> Self {
        self.scheme.accuracy = accuracy;
        self
    }

    /// Stacked experts.
    #[must_use]
    pub fn experts(mut self, experts: Experts) -> Self {
        self.scheme.experts = Some(experts);
        self
    }

    /// A target that must be supported.
    #[must_use]
    pub fn target(mut self, name: impl Into<String>) -> Self {
        self.scheme.targets.push(name.into());
        self
    }

    /// Adds the default stored tensors and checks the scheme.
    ///
    /// # Errors
    /// Every mistake, shown in the scheme's printed text.
    pub fn finish(self) -> Result<Scheme, Diagnostics> {
        let Self { mut scheme, written } = self;
        for component in scheme.components() {
            let placed = written.iter().any(|store| store.layout.holds(component));
            if !placed && component != Component::Code {
                scheme.stores.push(Store {
                    name: default_name(component),
                    owner: component,
                    layout: default_layout(component),
                });
            }
        }
        scheme.stores.extend(written);
        scheme.stores.sort_by_key(|store| store.owner);
        // The text of a scheme is complete, so the checks of the parser are the checks of the
        // builder.
        parse(&scheme.to_string())
    }
}
