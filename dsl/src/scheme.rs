//! A quantisation scheme as a value.
//!
//! Meaning, for output row n and input column k (all reals exact, docs/scheme-language.md): `w[n,k]
//! = (value(code[n,k]) - offset - zero) * s1 (* or /) s2 ... + t1 * t2 ...`, and `y[m,n] = sum_k
//! x~[m,k] * w[n,k] + bias[n]`, where `x~` is the activation, multiplied by its prescale and
//! quantised as declared.

use crate::format::{Number, Overflow, exp2, floor_log2};
use crate::layout::{
    Axis, BindError, BoundLayout, Component, Digit, DigitRange, Granularity, GroupSize, Layout,
    Shape,
};

/// The rows by columns that share one scale (or zero point, or shift).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Rows: of w, or tokens of x.
    pub rows: GroupSize,
    /// Columns along K.
    pub cols: GroupSize,
}

impl Group {
    /// `1xC`: C neighbouring columns of a row.
    pub const fn along_k(cols: u32) -> Self {
        Self { rows: GroupSize::Each(1), cols: GroupSize::Each(cols) }
    }
    /// A whole row: `channel` of a weight, `token` of an activation.
    pub const ROW: Self = Self { rows: GroupSize::Each(1), cols: GroupSize::All };
    /// The whole tensor.
    pub const TENSOR: Self = Self { rows: GroupSize::All, cols: GroupSize::All };
}

/// The type of a weight's codes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// An integer or float of at most 8 bits.
    Number(Number),
    /// A codebook of 2^b values, as bits of `f32` (a power of two of them, 2 to 256).
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

    /// Whether some codes stand for numbers that are not integers.
    pub fn is_float(&self) -> bool {
        match self {
            Self::Number(number) => number.is_float(),
            Self::Codebook(_) => true,
        }
    }
}

/// `weight: u4 - 8`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightCode {
    /// The code type.
    pub code: Code,
    /// Subtracted from the code's value.
    pub offset: i32,
}

impl WeightCode {
    /// The value of a code minus the offset.
    pub fn decode(&self, code: u32) -> f64 {
        self.code.decode(code) - f64::from(self.offset)
    }

    /// The largest weight of either sign that is not clipped, in steps of a scale: up to half a
    /// step beyond the last code of integers. Codes of one sign have their own largest magnitude.
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
    /// Integer codes; the zero point is `stored + plus`, modulo 2^bits if it wraps.
    Codes {
        /// Type of the stored code.
        number: Number,
        /// Added to the stored code (GPTQ version 1 stores zero - 1).
        plus: i32,
        /// Whether a stored all-ones code plus one is 0 instead of 2^bits.
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

    /// The code that stands for a zero point: the nearest one, ties to the even zero point.
    pub fn encode(self, zero: f64) -> u32 {
        match self {
            Self::Float(number) => number.encode(zero, Overflow::Saturate),
            Self::Codes { number, plus, wraps } => {
                let stored = zero.round_ties_even() - f64::from(plus);
                if wraps {
                    // The remainder is a code itself, of signed types too.
                    return stored.rem_euclid(f64::from(number.mask()) + 1.0) as u32;
                }
                number.encode(stored, Overflow::Saturate)
            }
        }
    }

    /// The smallest and the largest zero point of integer codes; `None` for floats. Those that wrap
    /// are remainders, 0 to 2^bits - 1, whether or not the stored type is signed.
    pub fn integer_range(self) -> Option<(f64, f64)> {
        match self {
            Self::Float(_) => None,
            Self::Codes { number, wraps: true, .. } => Some((0.0, f64::from(number.mask()))),
            Self::Codes { number, plus, .. } => {
                Some((number.min() + f64::from(plus), number.max() + f64::from(plus)))
            }
        }
    }
}

/// `zero: u4 + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Zero {
    /// How it is stored.
    pub kind: ZeroKind,
    /// The group that shares one zero point.
    pub group: Group,
}

/// One level of shifts: `shift: -u6 per 1x32`. The product of all levels is added to the product of
/// code and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShiftLevel {
    /// Stored type.
    pub number: Number,
    /// Subtracted from the stored number. 0 for floats.
    pub offset: i32,
    /// Whether the level counts negative.
    pub negative: bool,
    /// The group that shares one number.
    pub group: Group,
}

impl ShiftLevel {
    /// The factor that a stored code stands for.
    pub fn decode(&self, code: u32) -> f64 {
        let value = self.number.decode(code) - f64::from(self.offset);
        if self.negative { -value } else { value }
    }

    /// The stored number of a factor: the inverse of what decoding does after the number's type.
    pub fn stored_value(&self, factor: f64) -> f64 {
        with_offset(if self.negative { -factor } else { factor }, self.offset)
    }

    /// The code whose factor is the nearest one.
    pub fn encode(&self, factor: f64) -> u32 {
        self.number.encode(self.stored_value(factor), Overflow::Saturate)
    }
}

/// The number that is stored for a value. Without an offset, -0 is -0.
fn with_offset(value: f64, offset: i32) -> f64 {
    if offset == 0 { value } else { value + f64::from(offset) }
}

/// The stored type of a scale level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleType {
    /// The type of the tensor that is quantised (activations only).
    InputDtype,
    /// A number type.
    Number(Number),
}

/// How a quantiser chooses a scale from the values that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleRule {
    /// `amax / d`: largest magnitude over a divisor, given as the bits of an `f64`.
    Amax(u64),
    /// `range / d`: (largest - smallest, zero included) over a divisor, with a zero point.
    Range(u64),
    /// `pow2`: the power of two `2^(floor(log2(amax)) - emax)`; with a threshold t, a mantissa of
    /// amax of at least t is first rounded up to 2. emax is the exponent of the code's largest
    /// value.
    Pow2 {
        /// Bits of the `f64` threshold, in 1..2.
        above: Option<u64>,
    },
    /// `pow2 / d`: the smallest power of two larger than `amax / d`, with d as the bits of an
    /// `f64`: every quotient is less than d.
    Pow2Over(u64),
}

/// The power of two that a rule chooses for an amax: `2^(floor(log2(amax)) - exponent)`, one power
/// larger if `amax / 2^floor(log2(amax)) >= above`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// Subtracted from the exponent of amax.
    pub exponent: i32,
    /// The mantissa from which amax counts as the next power.
    pub above: Option<f64>,
}

impl ScaleRule {
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
    /// if the rule does not choose powers.
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
    /// Subtracted from the stored number; 0 for floats, divisors and activations.
    pub offset: i32,
    /// The group that shares one scale.
    pub group: Group,
    /// Whether the stored number is a divisor.
    pub divide: bool,
    /// How a quantiser chooses the scale.
    pub rule: ScaleRule,
    /// Whether the scale is stored (every weight scale; an activation's static scale).
    pub stored: bool,
}

/// How a quantiser rounds halves.
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
    /// How halves are rounded.
    pub ties: Ties,
}

impl Quantiser {
    /// Whether the codes of a token depend on other tokens: a dynamic scale over several tokens.
    pub fn spans_tokens(&self) -> bool {
        self.scales.iter().any(|scale| !scale.stored && scale.group.rows != GroupSize::Each(1))
    }

    /// Whether one scale of all of x is chosen where tokens have scales of a coarser level: it makes up
    /// for the first token's.
    pub fn chooses_across_factors(&self) -> bool {
        let levels = self.scales.iter().enumerate();
        let mut of_all =
            levels.filter(|(_, level)| !level.stored && level.group.rows == GroupSize::All);
        of_all
            .any(|(at, _)| self.scales[at..].iter().any(|level| level.group.rows != GroupSize::All))
    }
}

/// One alternative for the activation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Not quantised: f32, f16 or bf16.
    Float(Number),
    /// Quantised before the product.
    Quantised(Quantiser),
}

/// The type in which a quantiser computes scales and divides by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// f32.
    F32,
    /// The type of the tensor that is quantised; each operation rounds to it.
    InputDtype,
}

/// The accumulator type, for the sum over k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulate {
    /// f32 (or wider).
    F32,
    /// Exact integers within a group.
    I32,
}

/// How exact a product has to be, where a faster one rounds more. Neither changes what a scheme means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Accuracy {
    /// The fastest product. Scales of groups may multiply weights, each of which is then rounded once to the type of the
    /// instruction's operands, as other software does; kernels say where they do, and error bounds have it.
    #[default]
    Fast,
    /// Weights are not rounded by scales: those that would round them multiply sums of groups.
    Exact,
}

impl Accuracy {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Fast, Self::Exact];

    /// As the language has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Exact => "exact",
        }
    }
}

/// How the two shards of a gated expert's first product are stored along n.
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
    /// The component whose clause declares it; digits without a field address this component.
    pub owner: Component,
    /// The layout of the tensor.
    pub layout: Layout,
}

/// A quantisation scheme.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// A Rust identifier.
    pub name: String,
    /// The doc comment: one or more lines that say what the scheme is.
    pub summary: String,
    /// Code type and offset.
    pub weight: WeightCode,
    /// Zero point.
    pub zero: Option<Zero>,
    /// Shift levels, finest first.
    pub shifts: Vec<ShiftLevel>,
    /// Scale levels, finest first.
    pub scales: Vec<ScaleLevel>,
    /// Type of the group index per k (act-order), if there is one.
    pub index: Option<Number>,
    /// Stored tensors.
    pub stores: Vec<Store>,
    /// Type of the factor of each column of x, if x is multiplied by one first.
    pub prescale: Option<Number>,
    /// Type of the prescale, a factor per column of x, if the scheme has one.
    pub activations: Vec<Activation>,
    /// Accepted activations, the preferred one first; [`Scheme::activation_for`] chooses one by the input
    /// dtype.
    pub bias: Option<Number>,
    /// Accumulator type.
    pub accumulate: Accumulate,
    /// Type of y; the input dtype if not declared.
    pub output: Option<Number>,
    /// The quantisers' arithmetic.
    pub arithmetic: Arithmetic,
    /// What matters more, where a product is either faster or more exact.
    pub accuracy: Accuracy,
    /// Stacked experts, and how their shards are stored.
    pub experts: Option<Experts>,
    /// Targets that the author requires; empty = every target that the planner supports.
    pub targets: Vec<String>,
}

impl Scheme {
    /// Width and group of a component, `None` if the scheme does not have the component.
    pub fn granularity(&self, component: Component) -> Option<Granularity> {
        let group = match component {
            Component::Code => Group::along_k(1),
            Component::Scale(level) => self.scales.get(usize::from(level))?.group,
            Component::Zero => self.zero?.group,
            Component::Shift(level) => self.shifts.get(usize::from(level))?.group,
            Component::Index | Component::Prescale => {
                Group { rows: GroupSize::All, cols: GroupSize::Each(1) }
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
        Some(Granularity { bits, rows: group.rows, cols: group.cols })
    }

    /// The stored type of a component; `None` if it is not stored, or is the code of a codebook.
    pub fn number(&self, component: Component) -> Option<Number> {
        match component {
            Component::Code => match self.weight.code {
                Code::Number(number) => Some(number),
                Code::Codebook(_) => None,
            },
            Component::Scale(level) => self.scales.get(usize::from(level))?.stored_number(),
            Component::Zero => self.zero.map(|zero| zero.kind.number()),
            Component::Shift(level) => Some(self.shifts.get(usize::from(level))?.number),
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

    /// Every stored component, in a fixed order.
    pub fn components(&self) -> Vec<Component> {
        let levels = |count: usize| 0..u8::try_from(count).unwrap_or(u8::MAX);
        let inputs = self.quantiser().map_or(0, |quantiser| quantiser.scales.len());
        let all = [Component::Code]
            .into_iter()
            .chain(levels(self.scales.len()).map(Component::Scale))
            .chain([Component::Zero])
            .chain(levels(self.shifts.len()).map(Component::Shift))
            .chain([Component::Index, Component::Bias])
            .chain(levels(inputs).map(Component::InputScale))
            .chain([Component::InputZero, Component::Prescale]);
        all.filter(|component| self.granularity(*component).is_some()).collect()
    }

    /// The first quantised activation, if any.
    pub fn quantiser(&self) -> Option<&Quantiser> {
        self.activations.iter().find_map(|activation| match activation {
            Activation::Quantised(quantiser) => Some(quantiser),
            Activation::Float(_) => None,
        })
    }

    /// The stored tensors that contain bits of a component.
    pub fn stores_of(&self, component: Component) -> impl Iterator<Item = &Store> {
        self.stores.iter().filter(move |store| store.layout.holds(component))
    }

    /// Binds a store's layout to a shape.
    ///
    /// # Errors
    /// See [`Layout::bind`].
    pub fn bind(&self, store: &Store, shape: Shape) -> Result<BoundLayout, BindError> {
        store.layout.bind(shape, &|component| self.granularity(component))
    }

    /// Stored bits per weight at large N and K: codes, scales, zero points and shifts.
    ///
    /// Components per row or per tensor are not counted.
    pub fn bits_per_weight(&self) -> f64 {
        let counted = |component: &Component| {
            matches!(
                component,
                Component::Code | Component::Scale(_) | Component::Zero | Component::Shift(_)
            )
        };
        let share = |component: Component| {
            let granularity = self.granularity(component)?;
            match (granularity.rows, granularity.cols) {
                (GroupSize::Each(rows), GroupSize::Each(cols)) => {
                    Some(f64::from(granularity.bits) / (f64::from(rows) * f64::from(cols)))
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

    /// Bits per code in its stored tensors, pads included, at a large shape.
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

    /// Whether two schemes differ only in their names and summaries, and in what is asked of their products: targets and
    /// accuracy.
    pub fn same_meaning(&self, other: &Self) -> bool {
        let renamed = Self {
            name: other.name.clone(),
            summary: other.summary.clone(),
            targets: other.targets.clone(),
            accuracy: other.accuracy,
            ..self.clone()
        };
        renamed == *other
    }

    /// Whether one kernel serves both: see [`Scheme::difference_of_products`].
    pub fn same_compute(&self, other: &Self) -> bool {
        self.difference_of_products(other).is_none()
    }

    /// The first clause for which a kernel of one scheme does not serve the other one. Names, packing and targets are none; nor is
    /// what only a quantiser reads: how scales of weights are chosen, and the arithmetic where no alternative
    /// quantises x.
    pub fn difference_of_products(&self, other: &Self) -> Option<&'static str> {
        let products = |scheme: &Self| {
            let mut scheme = Self { stores: Vec::new(), ..scheme.clone() };
            for scale in &mut scheme.scales {
                scale.rule = ScaleRule::Amax(0);
            }
            if !scheme.activations.iter().any(|of| matches!(of, Activation::Quantised(_))) {
                scheme.arithmetic = Arithmetic::F32;
            }
            scheme
        };
        let accuracy = (self.accuracy != other.accuracy).then_some("accuracy");
        products(self).difference_of_meaning(&products(other)).or(accuracy)
    }

    /// The first clause in which two schemes differ that do not have the [same meaning](Scheme::same_meaning).
    pub fn difference_of_meaning(&self, other: &Self) -> Option<&'static str> {
        // Of all fields, so that none is forgotten.
        let Self {
            name: _,
            summary: _,
            targets: _,
            accuracy: _,
            weight,
            zero,
            shifts,
            scales,
            index,
            prescale,
            activations,
            bias,
            accumulate,
            output,
            arithmetic,
            experts,
            stores,
        } = self;
        let clauses = [
            ("weight", *weight != other.weight),
            ("zero", *zero != other.zero),
            ("shift", *shifts != other.shifts),
            ("scale", *scales != other.scales),
            ("index", *index != other.index),
            ("prescale", *prescale != other.prescale),
            ("activation", *activations != other.activations),
            ("bias", *bias != other.bias),
            ("accumulate", *accumulate != other.accumulate),
            ("output", *output != other.output),
            ("arithmetic", *arithmetic != other.arithmetic),
            ("experts", *experts != other.experts),
            ("pack", *stores != other.stores),
        ];
        clauses.into_iter().find(|(_, differs)| *differs).map(|(clause, _)| clause)
    }
}

impl ScaleLevel {
    /// The stored number type; `None` for [`ScaleType::InputDtype`].
    pub fn stored_number(&self) -> Option<Number> {
        match self.number {
            ScaleType::Number(number) => Some(number),
            ScaleType::InputDtype => None,
        }
    }

    /// The number that a stored code of type `number` stands for: what multiplies, or divides.
    pub fn decode(&self, number: Number, code: u32) -> f64 {
        number.decode(code) - f64::from(self.offset)
    }

    /// The stored number of what multiplies, or divides.
    pub fn stored_value(&self, value: f64) -> f64 {
        with_offset(value, self.offset)
    }

    /// The code of type `number` whose number is the nearest one.
    pub fn encode(&self, number: Number, value: f64) -> u32 {
        number.encode(self.stored_value(value), Overflow::Saturate)
    }

    /// The largest number of type `number`.
    pub fn most(&self, number: Number) -> f64 {
        number.max() - f64::from(self.offset)
    }
}

/// The default layout of a component: elements, with groups along k fastest.
pub fn default_layout(component: Component) -> Layout {
    let axes: &[Axis] = match component {
        Component::Index | Component::Prescale => &[Axis::K],
        Component::Bias => &[Axis::N],
        Component::InputScale(_) | Component::InputZero => &[Axis::G],
        _ => &[Axis::G, Axis::N],
    };
    let digits = axes.iter().map(|axis| Digit::new(*axis, DigitRange::Open)).collect();
    Layout::elements(component, digits)
}

/// The default checkpoint name of a component.
pub fn default_name(component: Component) -> String {
    match component {
        Component::Code => "weight".to_owned(),
        Component::Scale(0) => "weight_scale".to_owned(),
        Component::Scale(level) => format!("weight_scale_{}", level + 1),
        Component::Zero => "weight_zero_point".to_owned(),
        Component::Shift(0) => "weight_shift".to_owned(),
        Component::Shift(level) => format!("weight_shift_{}", level + 1),
        Component::Index => "weight_g_idx".to_owned(),
        Component::Bias => "bias".to_owned(),
        Component::InputScale(0) => "input_scale".to_owned(),
        Component::InputScale(level) => format!("input_scale_{}", level + 1),
        Component::InputZero => "input_zero_point".to_owned(),
        Component::Prescale => "pre_quant_scale".to_owned(),
    }
}
