//! The model: a quantisation scheme as a value.
//!
//! Meaning, for output row n and input column k (all reals exact, docs/scheme-language.md):
//! `w[n,k] = (value(code[n,k]) - offset - zero) * s1 (* or /) s2 ... + shift`, and
//! `y[m,n] = sum_k x~[m,k] * w[n,k] + bias[n]` with `x~` the activation, multiplied by its column's
//! factor and quantised as declared.

use crate::format::{Number, exp2, floor_log2};
use crate::layout::{Axis, BindError, Bound, Component, Digit, Grain, Grains, Layout, Part, Shape};

/// Rows by columns that share one scale (or zero point, or shift).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Rows: of w, or tokens of x.
    pub rows: Grain,
    /// Columns along K.
    pub cols: Grain,
}

impl Group {
    /// `1xC`: C neighbouring columns of a row.
    pub const fn along_k(cols: u32) -> Self {
        Self { rows: Grain::Each(1), cols: Grain::Each(cols) }
    }
    /// A whole row: `channel` of a weight, `token` of an activation.
    pub const ROW: Self = Self { rows: Grain::Each(1), cols: Grain::All };
    /// Everything.
    pub const TENSOR: Self = Self { rows: Grain::All, cols: Grain::All };
}

/// The type of a weight's codes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// An integer or float of at most 8 bits.
    Number(Number),
    /// A table of 2^b values, as the bits of `f32` (a power of two of them, 2 to 256).
    Codebook(Vec<u32>),
}

impl Code {
    /// Width in bits.
    pub fn bits(&self) -> u32 {
        match self {
            Self::Number(number) => number.bits(),
            Self::Codebook(values) => values.len().trailing_zeros(),
        }
    }

    /// The value of a code.
    pub fn decode(&self, code: u32) -> f64 {
        match self {
            Self::Number(number) => number.decode(code),
            Self::Codebook(values) => {
                values.get(code as usize).map_or(f64::NAN, |bits| f64::from(f32::from_bits(*bits)))
            }
        }
    }

    /// Whether codes stand for other than whole numbers.
    pub fn is_float(&self) -> bool {
        match self {
            Self::Number(number) => number.is_float(),
            Self::Codebook(_) => true,
        }
    }
}

/// `weight: u4 - 8`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Weight {
    /// The code type.
    pub code: Code,
    /// Subtracted from the code's value.
    pub offset: i32,
}

impl Weight {
    /// The value of a code less the offset.
    pub fn decode(&self, code: u32) -> f64 {
        self.code.decode(code) - f64::from(self.offset)
    }

    /// How many steps of a scale a weight of either sign may be so that no code is clipped: up to
    /// half a step beyond the last code of integers. Codes of one sign have their own largest
    /// magnitude.
    pub fn reach(&self) -> f64 {
        let (low, high) = self.range();
        let half = if self.code.is_float() { 0.0 } else { 0.5 };
        match (low < 0.0, high > 0.0) {
            (true, true) => high.min(-low) + half,
            (true, false) => -low,
            _ => high,
        }
    }

    /// Smallest and largest value that a code can stand for.
    pub fn range(&self) -> (f64, f64) {
        let offset = f64::from(self.offset);
        let (low, high) = match &self.code {
            Code::Number(number) => (number.min(), number.max()),
            Code::Codebook(values) => values
                .iter()
                .map(|bits| f64::from(f32::from_bits(*bits)))
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                    (low.min(value), high.max(value))
                }),
        };
        (low - offset, high - offset)
    }
}

/// How zero points are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZeroKind {
    /// Integer codes; the zero point is `stored + plus`, and modulo 2^bits if it wraps.
    Codes {
        /// Type of the stored code.
        number: Number,
        /// Added to the stored code (GPTQ version 1 stores zero - 1).
        plus: i32,
        /// A stored all-ones code plus one is 0 and not 2^bits.
        wraps: bool,
    },
    /// A float, in units of codes.
    Float(Number),
}

impl ZeroKind {
    /// The stored type.
    pub const fn number(self) -> Number {
        match self {
            Self::Codes { number, .. } | Self::Float(number) => number,
        }
    }

    /// The zero point that a stored code stands for.
    pub fn decode(self, stored: u32) -> f64 {
        match self {
            Self::Float(number) => number.decode(stored),
            Self::Codes { number, plus, wraps } => {
                let zero = number.decode(stored) + f64::from(plus);
                if wraps { zero.rem_euclid(f64::from(number.mask()) + 1.0) } else { zero }
            }
        }
    }
}

/// `zero: u4 + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Zero {
    /// How it is stored.
    pub kind: ZeroKind,
    /// What shares one zero point.
    pub group: Group,
}

/// `shift: f16`: added to the product of code and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shift {
    /// Stored type.
    pub number: Number,
    /// What shares one shift.
    pub group: Group,
}

/// The stored type of a scale level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleType {
    /// The type of the tensor that is quantised (activations only).
    Own,
    /// A number type.
    Number(Number),
}

/// How a quantiser chooses a scale from the values that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// `amax / d`: largest magnitude over a divisor, given as the bits of an `f64`.
    Amax(u64),
    /// `range / d`: (largest - smallest, zero included) over a divisor, with a zero point.
    Range(u64),
    /// `pow2`: the power of two `2^(floor(log2(amax)) - emax)`; with a threshold t the
    /// mantissa of amax is first rounded up to 2 from t on. emax is the exponent of the
    /// code's largest value.
    Pow2 {
        /// Bits of the `f64` threshold, in 1..2.
        above: Option<u64>,
    },
    /// `pow2 / d`: the smallest power of two that is larger than `amax / d`, with d as the bits of
    /// an `f64`: no quotient is as large as d.
    Pow2Over(u64),
}

/// Which power of two a rule chooses for an amax: `2^(floor(log2(amax)) - exponent)`, one power
/// larger where `amax / 2^floor(log2(amax)) >= above`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// Taken off the exponent of amax.
    pub exponent: i32,
    /// The mantissa from which amax counts as the next power.
    pub above: Option<f64>,
}

impl Rule {
    /// `amax / divisor`.
    pub fn amax(divisor: f64) -> Self {
        Self::Amax(divisor.to_bits())
    }

    /// `range / divisor`.
    pub fn range(divisor: f64) -> Self {
        Self::Range(divisor.to_bits())
    }

    /// `pow2 / divisor`.
    pub fn pow2_over(divisor: f64) -> Self {
        Self::Pow2Over(divisor.to_bits())
    }

    /// The power of two that the rule chooses, for codes of the largest magnitude `largest`; `None`
    /// of a rule that chooses no power.
    pub fn power(self, largest: f64) -> Option<Power> {
        match self {
            Self::Amax(_) | Self::Range(_) => None,
            Self::Pow2 { above } => {
                Some(Power { exponent: floor_log2(largest), above: above.map(f64::from_bits) })
            }
            Self::Pow2Over(divisor) => {
                let divisor = f64::from_bits(divisor);
                let exponent = floor_log2(divisor);
                Some(Power { exponent, above: Some(divisor / exp2(exponent)) })
            }
        }
    }

    /// `pow2`, rounding a mantissa of at least `above` up.
    pub fn pow2(above: Option<f64>) -> Self {
        Self::Pow2 { above: above.map(f64::to_bits) }
    }
}

/// One level of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleLevel {
    /// Stored type.
    pub number: ScaleType,
    /// What shares one scale.
    pub group: Group,
    /// The stored number is a divisor.
    pub divide: bool,
    /// How a quantiser chooses it.
    pub rule: Rule,
    /// Given ahead of time and stored (an activation's static scale; every weight scale).
    pub stored: bool,
}

/// How halves round in a quantiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ties {
    /// To the even code.
    Even,
    /// Away from zero.
    Away,
}

/// An activation's quantiser: `i8 { scale: own per token }`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quantiser {
    /// Code type.
    pub code: Number,
    /// Type of the zero point, if it has one.
    pub zero: Option<Number>,
    /// Scale levels, finest first.
    pub scales: Vec<ScaleLevel>,
    /// How halves round.
    pub ties: Ties,
}

impl Quantiser {
    /// Whether what a token becomes depends on the others: a scale over several of them is chosen
    /// from x.
    pub fn spans_tokens(&self) -> bool {
        self.scales.iter().any(|scale| !scale.stored && scale.group.rows != Grain::Each(1))
    }
}

/// One way to give the activation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// As it is: f32, f16 or bf16.
    Float(Number),
    /// Quantised first.
    Quantised(Quantiser),
}

/// The type in which a quantiser computes scales and divides by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// f32.
    F32,
    /// The type of the tensor that is quantised; each operation rounds to it.
    Own,
}

/// The type of the sum over k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulate {
    /// f32 (or wider).
    F32,
    /// Exact integers within a group.
    I32,
}

/// How the two shards of a gated expert's first product lie along n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Experts {
    /// One shard.
    Single,
    /// Rows of gate, then rows of up.
    Concatenated,
    /// Even rows gate, odd rows up.
    Interleaved,
}

/// One stored tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    /// Its name in a checkpoint, after the layer's name and a dot.
    pub name: String,
    /// The component whose clause declares it: the one that a bare run of digits means.
    pub owner: Component,
    /// Where everything lies.
    pub layout: Layout,
}

/// A quantisation scheme.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// A Rust identifier.
    pub name: String,
    /// The doc comment: what it is, in a line or more.
    pub summary: String,
    /// Code type and offset.
    pub weight: Weight,
    /// Zero point.
    pub zero: Option<Zero>,
    /// Shift.
    pub shift: Option<Shift>,
    /// Scale levels, finest first.
    pub scales: Vec<ScaleLevel>,
    /// Type of the group index per k (act-order), if there is one.
    pub index: Option<Number>,
    /// Stored tensors.
    pub stores: Vec<Store>,
    /// Type of the factor of each column of x, if x is multiplied by one first.
    pub prescale: Option<Number>,
    /// Accepted activations, the first preferred; [`Scheme::taken`] says which of them x takes.
    pub activations: Vec<Activation>,
    /// Type of the stored bias, if the scheme has one.
    pub bias: Option<Number>,
    /// Type of the sum.
    pub accumulate: Accumulate,
    /// Type of the result; the activation's own type if not said.
    pub output: Option<Number>,
    /// The quantisers' arithmetic.
    pub arithmetic: Arithmetic,
    /// Stacked experts, and how their shards lie.
    pub experts: Option<Experts>,
    /// Targets that the author insists on; empty = wherever the planner supports it.
    pub targets: Vec<String>,
}

impl Scheme {
    /// Width and grains of a component, `None` if the scheme does not have it.
    pub fn grains(&self, component: Component) -> Option<Grains> {
        let group = match component {
            Component::Code => Group::along_k(1),
            Component::Scale(level) => self.scales.get(usize::from(level))?.group,
            Component::Zero => self.zero?.group,
            Component::Shift => self.shift?.group,
            Component::Index | Component::Prescale => {
                Group { rows: Grain::All, cols: Grain::Each(1) }
            }
            Component::Bias => Group::ROW,
            Component::InputScale(level) => self.quantiser()?.scales.get(usize::from(level))?.group,
            Component::InputZero => self.quantiser()?.scales.first()?.group,
        };
        let bits = match (component, self.number(component)) {
            (_, Some(number)) => number.bits(),
            (Component::Code, None) => self.weight.code.bits(),
            (_, None) => return None,
        };
        Some(Grains { bits, rows: group.rows, cols: group.cols })
    }

    /// The stored type of a component; `None` if it is not stored, or is a codebook's code.
    pub fn number(&self, component: Component) -> Option<Number> {
        match component {
            Component::Code => match self.weight.code {
                Code::Number(number) => Some(number),
                Code::Codebook(_) => None,
            },
            Component::Scale(level) => self.scales.get(usize::from(level))?.stored_number(),
            Component::Zero => self.zero.map(|zero| zero.kind.number()),
            Component::Shift => self.shift.map(|shift| shift.number),
            Component::Index => self.index,
            Component::Bias => self.bias,
            Component::InputScale(level) => {
                let scale = self.quantiser()?.scales.get(usize::from(level))?;
                scale.stored_number().filter(|_| scale.stored)
            }
            Component::InputZero => {
                let quantiser = self.quantiser()?;
                let stored = quantiser.scales.first().is_some_and(|scale| scale.stored);
                quantiser.zero.filter(|_| stored)
            }
            Component::Prescale => self.prescale,
        }
    }

    /// Every component that is stored, in a fixed order.
    pub fn components(&self) -> Vec<Component> {
        let levels = |count: usize| 0..u8::try_from(count).unwrap_or(u8::MAX);
        let inputs = self.quantiser().map_or(0, |quantiser| quantiser.scales.len());
        let all = [Component::Code]
            .into_iter()
            .chain(levels(self.scales.len()).map(Component::Scale))
            .chain([Component::Zero, Component::Shift, Component::Index, Component::Bias])
            .chain(levels(inputs).map(Component::InputScale))
            .chain([Component::InputZero, Component::Prescale]);
        all.filter(|component| self.grains(*component).is_some()).collect()
    }

    /// The first quantised activation, if any.
    pub fn quantiser(&self) -> Option<&Quantiser> {
        self.activations.iter().find_map(|activation| match activation {
            Activation::Quantised(quantiser) => Some(quantiser),
            Activation::Float(_) => None,
        })
    }

    /// The stores that hold bits of a component.
    pub fn stores_of(&self, component: Component) -> impl Iterator<Item = &Store> {
        self.stores.iter().filter(move |store| store.layout.holds(component))
    }

    /// Binds a store's layout to a shape.
    ///
    /// # Errors
    /// See [`Layout::bind`].
    pub fn bind(&self, store: &Store, shape: Shape) -> Result<Bound, BindError> {
        store.layout.bind(shape, &|component| self.grains(component))
    }

    /// Stored bits per weight at large N and K: codes, scales, zero points and shifts.
    ///
    /// What is per row or per tensor counts nothing.
    pub fn bits_per_weight(&self) -> f64 {
        let counted = |component: &Component| {
            matches!(
                component,
                Component::Code | Component::Scale(_) | Component::Zero | Component::Shift
            )
        };
        let share = |component: Component| {
            let grains = self.grains(component)?;
            match (grains.rows, grains.cols) {
                (Grain::Each(rows), Grain::Each(cols)) => {
                    Some(f64::from(grains.bits) / (f64::from(rows) * f64::from(cols)))
                }
                _ => None,
            }
        };
        let stored_code = self.stored_code_bits();
        self.components()
            .into_iter()
            .filter(counted)
            .filter_map(|component| match component {
                Component::Code => Some(stored_code),
                other => share(other),
            })
            .sum()
    }

    /// Bits that one code takes in its stores, pads included, at a large shape.
    fn stored_code_bits(&self) -> f64 {
        let shape = Shape { experts: 1, n: 1 << 12, k: 1 << 12 };
        let bits = |store: &Store| {
            let only_codes = |component: &Component| *component == Component::Code;
            let mixed = self.components().iter().any(|c| !only_codes(c) && store.layout.holds(*c));
            match (mixed, self.bind(store, shape)) {
                (false, Ok(bound)) => bound.bits() as f64 / (shape.n * shape.k) as f64,
                _ => f64::from(self.weight.code.bits()),
            }
        };
        self.stores_of(Component::Code).map(bits).sum()
    }

    /// Whether two schemes are the same but for their names and summaries.
    pub fn same_meaning(&self, other: &Self) -> bool {
        let renamed = Self {
            name: other.name.clone(),
            summary: other.summary.clone(),
            targets: other.targets.clone(),
            ..self.clone()
        };
        renamed == *other
    }

    /// Whether one kernel serves both: all but names and packing is the same.
    pub fn same_compute(&self, other: &Self) -> bool {
        let repacked = Self { stores: other.stores.clone(), ..self.clone() };
        repacked.same_meaning(other)
    }
}

impl ScaleLevel {
    /// The number type that is stored; `None` for [`ScaleType::Own`].
    pub fn stored_number(&self) -> Option<Number> {
        match self.number {
            ScaleType::Number(number) => Some(number),
            ScaleType::Own => None,
        }
    }
}

/// The layout that a component has if its clause gives none: elements with k groups fastest.
pub fn default_layout(component: Component) -> Layout {
    let axes: &[Axis] = match component {
        Component::Index | Component::Prescale => &[Axis::K],
        Component::Bias => &[Axis::N],
        Component::InputScale(_) | Component::InputZero => &[Axis::G],
        _ => &[Axis::G, Axis::N],
    };
    let digits = axes.iter().map(|axis| Digit::new(*axis, Part::Open)).collect();
    Layout::elements(component, digits)
}

/// The checkpoint name that a component has if its clause gives none.
pub fn default_name(component: Component) -> String {
    match component {
        Component::Code => "weight".to_owned(),
        Component::Scale(0) => "weight_scale".to_owned(),
        Component::Scale(level) => format!("weight_scale_{}", level + 1),
        Component::Zero => "weight_zero_point".to_owned(),
        Component::Shift => "weight_shift".to_owned(),
        Component::Index => "weight_g_idx".to_owned(),
        Component::Bias => "bias".to_owned(),
        Component::InputScale(0) => "input_scale".to_owned(),
        Component::InputScale(level) => format!("input_scale_{}", level + 1),
        Component::InputZero => "input_zero_point".to_owned(),
        Component::Prescale => "pre_quant_scale".to_owned(),
    }
}
