//! Random layers and activations: a function of scheme, shape and seed, on any machine.
//!
//! In: a scheme, a shape, a seed. Out: plain codes ([`layer`]) and tokens ([`tokens`]). The seed
//! also selects the [`Regime`], so that scheme, shape and seed determine all numbers.

use std::collections::BTreeMap;

use quantloom_dsl::format::{F32, FloatFormat, Number, Overflow};
use quantloom_dsl::layout::{Component, GroupSize, Shape};
use quantloom_dsl::reference::PlainCodes;
use quantloom_dsl::{Activation, Code, INPUT_DTYPES, ScaleLevel, Scheme, ShiftLevel};

/// The range of the numbers that a seed draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// Scales of 2^-8 to 2^-4, as in layers of a model.
    Usual,
    /// Neighbouring groups up to 2^16 apart.
    Spread,
    /// The smallest numbers of the scale's type, subnormal ones included.
    Smallest,
    /// The largest numbers whose products stay within `f32`.
    Largest,
    /// Any number of the scale's type, negative ones and 0 included.
    Any,
    /// Usual scales; a few codes, and an element of a token that is not quantised, are infinite or
    /// NaN if their types have such codes.
    Special,
}

impl Regime {
    /// All regimes, in the order of seeds.
    pub const ALL: [Self; 6] =
        [Self::Usual, Self::Spread, Self::Smallest, Self::Largest, Self::Any, Self::Special];

    /// The regime of a seed.
    pub fn of(seed: u64) -> Self {
        Self::ALL[(seed % Self::ALL.len() as u64) as usize]
    }
}

/// Weights are at most this power of two (a scale of e8m0 may round up to it). With activations of
/// up to 2^8 and 2^16 columns every partial sum stays below 2^128, the limit of `f32`.
const LARGEST_WEIGHT: i32 = 98;

/// The exponent of the largest weights of a scheme: smaller if its activations have larger codes than
/// 2^8, which are multiplied before their scale is.
fn largest_weight(scheme: &Scheme) -> i32 {
    let code = scheme.quantiser().map_or(1.0, |quantiser| quantiser.code.max().max(1.0));
    LARGEST_WEIGHT - (code.log2().ceil() as i32 - 8).max(0)
}

/// A random stream: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014), which can start at any state.
#[derive(Clone, Debug)]
pub(crate) struct RandomStream(u64);

impl RandomStream {
    /// The stream of a purpose: streams with different `key`s are independent.
    pub(crate) fn new(seed: u64, key: u64) -> Self {
        let mut stream = Self(seed ^ key.wrapping_mul(0xd134_2543_de82_ef95));
        stream.bits();
        stream
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// A number below `end`, which is at least 1.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// A number in `first..=last`.
    fn within(&mut self, first: i32, last: i32) -> i32 {
        first + self.below((last - first).max(0) as u64 + 1) as i32
    }

    /// A number in 0..1.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About normal, deviation 1: the sum of twelve uniform numbers.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// Keys of streams: no two components share one.
fn key(component: Component) -> u64 {
    match component {
        Component::Code => 1,
        Component::Zero => 2,
        Component::Shift(0) => 3,
        Component::Shift(level) => 0x300 + u64::from(level),
        Component::Index => 4,
        Component::Bias => 5,
        Component::InputZero => 6,
        Component::Prescale => 7,
        Component::Scale(level) => 0x100 + u64::from(level),
        Component::InputScale(level) => 0x200 + u64::from(level),
    }
}
const TOKENS: u64 = 0x1000;

/// A layer of random codes, uniform over all codes, with scales of the seed's regime.
pub fn layer(scheme: &Scheme, shape: Shape, seed: u64) -> PlainCodes {
    let regime = Regime::of(seed);
    let mut components = BTreeMap::new();
    for component in scheme.components() {
        let Some(granularity) = scheme.granularity(component) else { continue };
        let (rows, cols) = granularity.elements(shape);
        let count = (shape.experts * rows * cols) as usize;
        let mut stream = RandomStream::new(seed, key(component));
        let number = scheme.number(component);
        let drawn: Vec<u32> = match (component, number) {
            (Component::Code, _) => codes(scheme, shape, regime, &mut stream, count),
            (Component::Scale(level), Some(number)) => {
                let draw = ScaleDraw::new(scheme, level, number, regime, seed);
                (0..count).map(|_| draw.code(&mut stream)).collect()
            }
            (Component::Zero, Some(number)) => zeros(scheme, number, &mut stream, count),
            (Component::Shift(level), Some(_)) => {
                let step = typical(scheme, regime, seed) * range(scheme) / 4.0;
                shifts(scheme, level, step, &mut stream, count)
            }
            (Component::Index, Some(number)) => index(scheme, shape, number, &mut stream),
            (Component::Bias, Some(number)) => {
                // As large as a product, so that a bias that is missing or added twice is noticed.
                let size = typical(scheme, regime, seed) * range(scheme) * (shape.k as f64).sqrt();
                let value = |stream: &mut RandomStream| stream.normal() * size;
                (0..count).map(|_| saturated(number, value(&mut stream))).collect()
            }
            (Component::InputScale(level), Some(number)) => {
                let value = |stream: &mut RandomStream| {
                    let size = input_scale(scheme, level) * (1.0 + stream.unit());
                    // The code 0 is the number 0, which is no scale, but of e8m0.
                    saturated(number, size).max(1)
                };
                (0..count).map(|_| value(&mut stream)).collect()
            }
            (Component::Prescale, Some(number)) => {
                let value = |stream: &mut RandomStream| (1.0 + stream.unit()) / 2.0;
                (0..count).map(|_| saturated(number, value(&mut stream))).collect()
            }
            (Component::InputZero, Some(number)) => {
                let value = |stream: &mut RandomStream| stream.bits() as u32 & number.mask();
                (0..count).map(|_| value(&mut stream)).collect()
            }
            (_, None) => continue,
        };
        components.insert(component, drawn);
    }
    PlainCodes { shape, components }
}

/// Uniform over all codes, except that every eighth row has only one code, the one with the largest
/// or the smallest value in turn: with tokens of one sign, such sums are as large as possible.
/// Infinities and NaNs only in [`Regime::Special`], and there only in every seventh row, to test
/// both rows with and without them.
fn codes(
    scheme: &Scheme,
    shape: Shape,
    regime: Regime,
    stream: &mut RandomStream,
    count: usize,
) -> Vec<u32> {
    let all = 0..1u32 << scheme.weight.code.bits();
    let (finite, special): (Vec<u32>, Vec<u32>) =
        all.partition(|code| scheme.weight.decode(*code).is_finite());
    if finite.is_empty() {
        return vec![0; count];
    }
    let whole = special.is_empty();
    let mut codes: Vec<u32> = (0..count)
        .map(|_| {
            let at = stream.below(finite.len() as u64);
            if whole { at as u32 } else { finite[at as usize] }
        })
        .collect();
    let value = |code: &u32| scheme.weight.decode(*code);
    let by_value = |a: &&u32, b: &&u32| value(a).total_cmp(&value(b));
    let ends = [finite.iter().max_by(by_value), finite.iter().min_by(by_value)];
    for (turn, row) in codes.chunks_mut(shape.k as usize).skip(1).step_by(8).enumerate() {
        row.fill(ends[turn % 2].copied().unwrap_or(0));
    }
    if regime == Regime::Special && !whole {
        for row in codes.chunks_mut(shape.k as usize).skip(3).step_by(7) {
            let at = stream.below(row.len() as u64) as usize;
            row[at] = special[stream.below(special.len() as u64) as usize];
        }
    }
    codes
}

/// A level of shifts whose product is about `step`: integers are all codes, the coarsest float makes up
/// for them, other floats are near 1.
fn shifts(
    scheme: &Scheme,
    level: u8,
    step: f64,
    stream: &mut RandomStream,
    count: usize,
) -> Vec<u32> {
    let Some(of) = scheme.shifts.get(usize::from(level)) else { return vec![0; count] };
    if !of.number.is_float() {
        return (0..count).map(|_| stream.bits() as u32 & of.number.mask()).collect();
    }
    let middle = |of: &ShiftLevel| match of.number.is_float() {
        true => 1.0,
        false => {
            let offset = f64::from(of.offset);
            (of.number.max() - offset).abs().max((of.number.min() - offset).abs()).max(2.0) / 2.0
        }
    };
    let last = scheme.shifts.iter().rposition(|of| of.number.is_float());
    let coarsest = last == Some(usize::from(level));
    let step = step / scheme.shifts.iter().map(middle).product::<f64>();
    let value = |stream: &mut RandomStream| match coarsest {
        true => stream.normal() * step,
        false => 1.0 + stream.unit(),
    };
    (0..count).map(|_| of.encode(value(stream))).collect()
}

/// Integers: all codes. Floats: anywhere in the range of the codes.
fn zeros(scheme: &Scheme, number: Number, stream: &mut RandomStream, count: usize) -> Vec<u32> {
    let (low, high) = scheme.weight.range();
    let code = |stream: &mut RandomStream| match number.is_float() {
        true => saturated(number, low + (high - low) * stream.unit()),
        false => stream.bits() as u32 & number.mask(),
    };
    (0..count).map(|_| code(stream)).collect()
}

/// Act-order: equal groups in random order for even draws; arbitrary groups for odd draws, as in a
/// shard of a layer.
fn index(scheme: &Scheme, shape: Shape, number: Number, stream: &mut RandomStream) -> Vec<u32> {
    let groups = |component: &Component| {
        let granularity = scheme.granularity(*component)?;
        let cut = matches!(granularity.cols, GroupSize::Each(_));
        cut.then(|| granularity.elements(shape).1)
    };
    let parts = scheme.components().into_iter().filter(|component| {
        matches!(component, Component::Scale(_) | Component::Zero | Component::Shift(_))
    });
    let groups = parts.collect::<Vec<_>>().iter().filter_map(groups).min().unwrap_or(1);
    // Groups that the index's type cannot name are no column's.
    let groups = groups.min(number.max() as u64 + 1);
    let mut index = Vec::new();
    for _ in 0..shape.experts {
        let sharded = stream.bits() % 2 == 1;
        let size = shape.k.div_ceil(groups);
        let mut columns: Vec<u64> = (0..shape.k).map(|k| k / size).collect();
        for at in (1..columns.len()).rev() {
            columns.swap(at, stream.below(at as u64 + 1) as usize);
        }
        if sharded {
            columns.iter_mut().for_each(|group| *group = stream.below(groups));
        }
        index.extend(columns.into_iter().map(|group| group as u32 & number.mask()));
    }
    index
}

/// The nearest code of a value, for a number type without infinities and NaNs.
fn saturated(number: Number, value: f64) -> u32 {
    number.encode(value, Overflow::Saturate)
}

/// Largest magnitude that a code stands for.
fn range(scheme: &Scheme) -> f64 {
    let (low, high) = scheme.weight.range();
    low.abs().max(high.abs()).max(1.0)
}

/// The distribution of the values of one scale level.
struct ScaleDraw {
    number: Number,
    /// Subtracted from the stored number.
    offset: i32,
    divide: bool,
    /// Exponents of the effective factor, inclusive.
    exponents: (i32, i32),
    /// Whether negative numbers and 0 are included.
    signed: bool,
}

impl ScaleDraw {
    /// The regime applies to one level, which the seed selects; the others are usual: no checkpoint
    /// stores products of two extremes.
    fn new(scheme: &Scheme, level: u8, number: Number, regime: Regime, seed: u64) -> Self {
        let levels = scheme.scales.len() as u64;
        let chosen = u64::from(level) == seed / Regime::ALL.len() as u64 % levels.max(1);
        let regime = if chosen { regime } else { Regime::Usual };
        let of = scheme.scales.get(usize::from(level));
        let divide = of.is_some_and(|scale| scale.divide);
        let offset = of.map_or(0, |scale| scale.offset);
        // For a level that divides, the largest number is the smallest factor.
        let (least, most) = exponents(number, offset);
        let (least, most) = if divide { (-most, -least) } else { (least, most) };
        let largest = largest_weight(scheme) - 1 - range(scheme).log2().ceil() as i32;
        let (mut least, most) = (least, most.min(largest));
        if matches!(number, Number::Uint(_) | Number::Int(_)) {
            least = least.max(0);
        }
        let clamp = |low: i32, high: i32| {
            let low = low.clamp(least, most);
            (low, high.clamp(low, most))
        };
        let exponents = match regime {
            Regime::Usual | Regime::Special => clamp(-8, -4),
            Regime::Spread => clamp(-12, 4),
            Regime::Smallest => clamp(least, least + 9),
            Regime::Largest => clamp(most - 3, most),
            Regime::Any => (least, most),
        };
        let signs = matches!(number, Number::Float(_) | Number::Int(_));
        // An offset gives integers both signs, in usual layers too.
        let signed = offset > 0 || regime == Regime::Any && signs;
        Self { number, offset, divide, exponents, signed }
    }

    fn code(&self, stream: &mut RandomStream) -> u32 {
        let exponent = stream.within(self.exponents.0, self.exponents.1);
        let mantissa = 1.0 + stream.unit();
        let unusual = stream.below(8);
        let factor = mantissa * f64::from(exponent).exp2();
        let value = if self.divide { 1.0 / factor } else { factor };
        let negative = self.signed && unusual == 0;
        let zero = self.signed && unusual == 1 && !self.divide;
        let offset = f64::from(self.offset);
        let code = saturated(self.number, if negative { -value } else { value } + offset);
        match zero {
            true => saturated(self.number, offset),
            // Values that round to 0 become the smallest number; E8M0 has no zero.
            false if self.number.decode(code) == offset => match self.offset {
                0 => 1,
                _ => saturated(self.number, offset + 1.0),
            },
            false => code,
        }
    }
}

/// Exponents of the smallest and the largest positive number of a type, less an offset.
fn exponents(number: Number, offset: i32) -> (i32, i32) {
    let exponent = |value: f64| value.log2().floor() as i32;
    let offset = f64::from(offset);
    let least = match number {
        Number::E8m0 => number.min(),
        // Integers of 0 or less have one less an offset of their own.
        Number::Uint(_) | Number::Int(_) => (number.min() - offset).max(1.0),
        Number::Float(_) => number.decode(1),
    };
    (exponent(least.abs()), exponent(number.max() - offset))
}

/// A factor in the middle of the seed's regime, the product of all levels.
fn typical(scheme: &Scheme, regime: Regime, seed: u64) -> f64 {
    let level = |(level, scale): (u8, &ScaleLevel)| {
        let draw = ScaleDraw::new(scheme, level, scale.stored_number()?, regime, seed);
        Some(f64::from((draw.exponents.0 + draw.exponents.1) / 2).exp2())
    };
    (0u8..).zip(&scheme.scales).filter_map(level).product()
}

/// A static activation scale under which tokens of deviation 1 use most codes.
fn input_scale(scheme: &Scheme, level: u8) -> f64 {
    const LARGEST: f64 = 4.0;
    let Some(quantiser) = scheme.quantiser() else { return 1.0 };
    // Finer dynamic levels are chosen anew, in the middle of their type if possible.
    let finer = quantiser.scales.iter().filter(|scale| !scale.stored);
    let finer = finer.filter_map(|scale| scale.stored_number());
    let middle: f64 = finer.map(|number| number.max().sqrt()).product();
    // Types of one bit have no code above 0.
    let most = if quantiser.code.max() > 0.0 { quantiser.code.max() } else { 1.0 };
    let factor = LARGEST / (most * middle);
    let divide = quantiser.scales.get(usize::from(level)).is_some_and(|scale| scale.divide);
    if divide { 1.0 / factor } else { factor }
}

/// The types that x may have in a case of this seed, and the one that it has.
pub fn own_type(scheme: &Scheme, seed: u64) -> FloatFormat {
    let float = |activation: &Activation| match activation {
        Activation::Float(Number::Float(format)) => Some(*format),
        _ => None,
    };
    let mut types: Vec<FloatFormat> = scheme.activations.iter().filter_map(float).collect();
    if types.is_empty() || scheme.quantiser().is_some() {
        types = INPUT_DTYPES.to_vec();
    }
    let turn = (seed / Regime::ALL.len() as u64 + seed) as usize;
    types.get(turn % types.len().max(1)).copied().unwrap_or(F32)
}

/// `count` tokens of `k` values of the type, [count, k]; a token is the same whatever the count.
///
/// Nearly normal values with zeros of both signs; the third token is 0, the fifth tiny, the seventh
/// has one value 2^7 times the others, the eleventh has one sign. Of the rest, every fourth token
/// has no negative value, and every fourth has one value in all columns, so that sums do not
/// cancel: with seed 0 the second and the fourth token, with the next seed the tokens before them.
pub fn tokens(scheme: &Scheme, own: FloatFormat, count: usize, k: usize, seed: u64) -> Vec<f64> {
    let quantised = scheme.activation_for(own).is_some_and(|taken| taken.quantiser().is_some());
    let token = |at: usize| {
        let mut stream = RandomStream::new(seed, TOKENS + at as u64);
        let turn = (at as u64).wrapping_add(seed) % 4;
        let all = stream.normal();
        let mut values: Vec<f64> = (0..k)
            .map(|_| {
                let (value, unusual) = (stream.normal(), stream.below(24));
                let value = match (at, unusual) {
                    (2, _) | (_, 0) => 0.0,
                    (_, 1) => -0.0,
                    (4, _) => value * (-12f64).exp2(),
                    (10, _) => value.abs(),
                    (6, _) => value,
                    _ if turn == 1 => value.abs(),
                    _ => value,
                };
                own.round(value)
            })
            .collect();
        if turn == 3 && ![2, 4, 6, 10].contains(&at) {
            values.fill(own.round(all + 0.5f64.copysign(all)));
        }
        let one = stream.below(k as u64) as usize;
        match at {
            6 => values[one] = own.round(128.0 + stream.unit()),
            1 if Regime::of(seed) == Regime::Special && !quantised => values[one] = f64::NAN,
            _ => {}
        }
        values
    };
    (0..count).flat_map(token).collect()
}

/// Whether a code type has codes that are not a finite number.
pub fn has_special_codes(code: &Code) -> bool {
    (0..1u32 << code.bits()).any(|stored| !code.decode(stored).is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quantloom_dsl::parse;
    use quantloom_dsl::reference::Dequantiser;

    fn scheme(clauses: &str) -> Scheme {
        parse(&format!("s {{ {clauses} pack: [k, n], activation: f32 }}")).unwrap()
    }

    #[test]
    fn sums_of_codes_stay_within_f32() {
        for code in ["i8", "e4m3", "e5m2", "e6m1fnuz", "i1"] {
            let text = "weight: i8, scale: f32 per 1x32, pack: [k, n]";
            let activation = format!("activation: {code} {{ scale: f32 per token }}");
            let scheme = parse(&format!("s {{ {text}, {activation} }}")).unwrap();
            let code = scheme.quantiser().unwrap().code.max().max(1.0);
            let sum = code * f64::from(largest_weight(&scheme) + 16).exp2();
            assert!(sum < f64::from(f32::MAX), "{activation}: {sum}");
        }
    }

    #[test]
    fn layers_are_numbers_in_every_regime() {
        let shape = Shape::matrix(24, 96);
        for clauses in [
            "weight: i8, scale: bf16 per 1x32,",
            "weight: i8, scale: e8m0 per 1x32,",
            "weight: e4m3, scale: f16 per 8x32,",
            "weight: e5m2, scale: e4m3 per 1x16, scale: divide f32 per tensor,",
            "weight: u8, zero: u8, scale: f16 per 1x32, shift: f16,",
            "weight: u4, scale: u6 per 1x32, scale: f16 per 1x96, shift: -u6, shift: f16 per 1x96,",
            "weight: u3 - 4, scale: u6 - 32 per 1x16, scale: bf16 per 1x96,",
            "weight: u4, scale: u4 + 3 per 1x16, shift: e4m3, shift: i8 - 7, shift: f32 per channel,",
        ] {
            let scheme = scheme(clauses);
            // Integers of usual size are the smallest, or twice that.
            let integer = |scale: &ScaleLevel| match scale.stored_number()? {
                Number::Float(_) | Number::E8m0 => None,
                number => Some(exponents(number, scale.offset).0 + 1),
            };
            let more: i32 = scheme.scales.iter().filter_map(integer).sum();
            for seed in 0..24 {
                let plain = layer(&scheme, shape, seed);
                let decoder = Dequantiser::new(&scheme, &plain).unwrap();
                let (mut finite, mut other) = (0, 0);
                for index in (0..24).flat_map(|n| (0..96).map(move |k| (n, k))) {
                    let (n, k) = index;
                    let w = decoder.weight(quantloom_dsl::layout::Index { e: 0, n, k });
                    assert!(
                        !w.is_finite() || w.abs() <= f64::from(LARGEST_WEIGHT + more).exp2(),
                        "{clauses} {seed}: {w}"
                    );
                    if w.is_finite() { finite += 1 } else { other += 1 }
                }
                let special = has_special_codes(&scheme.weight.code);
                let expected = special && Regime::of(seed) == Regime::Special;
                assert_eq!((other > 0, finite > 2000), (expected, true), "{clauses} {seed}");
            }
        }
    }

    #[test]
    fn extremes_of_the_scale_type_are_drawn() {
        let scheme = scheme("weight: i8, scale: f16 per 1x8,");
        let scales = |seed| {
            let plain = layer(&scheme, Shape::matrix(64, 512), seed);
            plain.of(Component::Scale(0)).to_vec()
        };
        let at = |regime| Regime::ALL.iter().position(|r| *r == regime).unwrap() as u64;
        let smallest = scales(at(Regime::Smallest));
        assert!(smallest.contains(&1) && smallest.iter().all(|code| *code <= 0x0400));
        assert!(scales(at(Regime::Largest)).iter().any(|code| *code > 0x7b00 && *code < 0x7c00));
        let any = scales(at(Regime::Any));
        assert!(any.contains(&0) && any.iter().any(|code| code & 0x8000 != 0));
    }

    #[test]
    fn a_token_does_not_depend_on_how_many_there_are() {
        let scheme = scheme("weight: i8, scale: f16 per 1x8,");
        let many = tokens(&scheme, F32, 17, 40, 5);
        assert_eq!(tokens(&scheme, F32, 1, 40, 5), many[..40]);
        assert!(many[40..80].iter().any(|value| value.is_nan()), "the special token");
        assert!(many[80..120].iter().all(|value| *value == 0.0), "the token of zeros");
    }
}
