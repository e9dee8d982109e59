//! Counts of the language's clauses in drawn schemes.

use std::fmt::Write as _;

use quantloom_dsl::format::Number;
use quantloom_dsl::layout::{
    Axis, Component, Digit, DigitRange, Field, Fill, GroupSize, Layout, OrderDigit, WordType,
};
use quantloom_dsl::{
    Accumulate, Accuracy, Activation, Arithmetic, Code, Experts, Group, Quantiser, ScaleLevel,
    ScaleRule, ScaleType, Scheme, ShiftLevel, Ties, ZeroKind, default_name,
};

/// A clause or a form of a clause.
type Feature = (&'static str, fn(&Scheme) -> bool);

/// The features that are counted.
pub const FEATURES: &[Feature] = &[
    ("code: unsigned", |s| code(s, |n| matches!(n, Number::Uint(_)))),
    ("code: signed", |s| code(s, |n| matches!(n, Number::Int(_)))),
    ("code: 1 bit", |s| s.weight.code.bits() == 1),
    ("code: 3, 5, 6, 7 bits", |s| matches!(s.weight.code.bits(), 3 | 5..=7)),
    ("code: float", |s| code(s, Number::is_float)),
    ("code: unusual float", |s| code(s, |n| n.is_float() && !common(n))),
    ("code: codebook", |s| matches!(s.weight.code, Code::Codebook(_))),
    ("code: codebook of 2", |s| matches!(&s.weight.code, Code::Codebook(v) if v.len() == 2)),
    ("code: codebook of 256", |s| matches!(&s.weight.code, Code::Codebook(v) if v.len() == 256)),
    ("offset: small", |s| (1..=300).contains(&s.weight.offset.abs())),
    ("offset: large", |s| s.weight.offset.abs() > 1000),
    ("offset: added", |s| s.weight.offset < 0),
    ("zero: code", |s| zero(s, |kind| matches!(kind, ZeroKind::Codes { .. }))),
    ("zero: plus", |s| zero(s, |kind| matches!(kind, ZeroKind::Codes { plus: 1.., .. }))),
    ("zero: wraps", |s| zero(s, |kind| matches!(kind, ZeroKind::Codes { wraps: true, .. }))),
    ("zero: float", |s| zero(s, |kind| matches!(kind, ZeroKind::Float(_)))),
    ("zero: own group", |s| s.zero.is_some_and(|z| first(s) != Some(z.group))),
    ("zero: packed", |s| words(s, Component::Zero)),
    ("zero and shift", |s| s.zero.is_some() && !s.shifts.is_empty()),
    ("shift", |s| !s.shifts.is_empty()),
    ("shift: own group", |s| shift(s, |z| first(s) != Some(z.group))),
    ("shift: two levels", |s| s.shifts.len() == 2),
    ("shift: three levels and more", |s| s.shifts.len() > 2),
    ("shift: integer", |s| shift(s, |z| !z.number.is_float())),
    ("shift: offset", |s| shift(s, |z| z.offset != 0)),
    ("shift: negative", |s| s.shifts.iter().filter(|z| z.negative).count() % 2 == 1),
    ("shift: negative twice", |s| s.shifts.iter().filter(|z| z.negative).count() == 2),
    ("no scale", |s| s.scales.is_empty()),
    ("one level", |s| s.scales.len() == 1),
    ("two levels", |s| s.scales.len() == 2),
    ("three levels and more", |s| s.scales.len() > 2),
    ("scale: f32", |s| scale_type(s, "f32")),
    ("scale: f16", |s| scale_type(s, "f16")),
    ("scale: bf16", |s| scale_type(s, "bf16")),
    ("scale: e8m0", |s| scale_type(s, "e8m0")),
    ("scale: e4m3", |s| scale_type(s, "e4m3")),
    ("scale: integer", |s| {
        scale(s, |l| matches!(l.stored_number(), Some(Number::Int(_) | Number::Uint(_))))
    }),
    ("scale: offset", |s| scale(s, |l| l.offset > 0)),
    ("scale: offset added", |s| scale(s, |l| l.offset < 0)),
    ("scale: divide", |s| scale(s, |l| l.divide)),
    ("rule: amax", |s| scale(s, |l| matches!(l.rule, ScaleRule::Amax(_)))),
    ("rule: range", |s| scale(s, |l| matches!(l.rule, ScaleRule::Range(_)))),
    ("rule: pow2", |s| scale(s, |l| matches!(l.rule, ScaleRule::Pow2 { above: None }))),
    ("rule: pow2 above", |s| scale(s, |l| matches!(l.rule, ScaleRule::Pow2 { above: Some(_) }))),
    ("group: columns", |s| group(s, |g| each(g).is_some_and(|(rows, _)| rows == 1))),
    ("group: odd columns", |s| group(s, |g| each(g).is_some_and(|(_, cols)| cols % 8 != 0))),
    ("group: block", |s| group(s, |g| each(g).is_some_and(|(rows, _)| rows > 1))),
    ("group: longer than K", |s| group(s, |g| each(g).is_some_and(|(_, cols)| cols > 1 << 20))),
    ("group: channel", |s| group(s, |g| g == Group::ROW)),
    ("group: tensor", |s| group(s, |g| g == Group::TENSOR)),
    ("index", |s| s.index.is_some()),
    ("index: narrow", |s| s.index.is_some_and(|number| number.bits() < 32)),
    ("layout: elements", |s| {
        layout(s, |l| matches!(l, Layout::For { body, .. } if matches!(**body, Layout::Field(_))))
    }),
    ("layout: sub-byte elements", |s| {
        s.stores.iter().any(|store| {
            matches!(&store.layout, Layout::For { body, .. } if matches!(**body, Layout::Field(_)))
                && s.granularity(store.owner).is_some_and(|granularity| granularity.bits % 8 != 0)
        })
    }),
    ("layout: transposed", |s| s.stores.iter().any(|store| slow_k(&store.layout))),
    ("layout: u8 words", |s| word(s, |w| w.bits == 8)),
    ("layout: u16 words", |s| word(s, |w| w.bits == 16)),
    ("layout: u32 words", |s| word(s, |w| w.bits == 32)),
    ("layout: u64 words", |s| word(s, |w| w.bits == 64)),
    ("layout: signed words", |s| word(s, |w| w.signed)),
    ("layout: msf", |s| word(s, |w| w.msf)),
    ("layout: w", |s| {
        layout(s, |l| matches!(l, Layout::Word { order, .. } if order.contains(&OrderDigit::Word)))
    }),
    ("layout: loop of words", |s| {
        layout(
            s,
            |l| matches!(l, Layout::For { body, .. } if matches!(**body, Layout::Word { .. })),
        )
    }),
    ("layout: record", |s| s.stores.iter().any(|store| held(s, &store.layout) > 1)),
    ("layout: record of records", |s| {
        layout(s, |l| {
            match l {
            Layout::Sequence(parts) => parts.iter().any(|part| {
                matches!(part, Layout::For { body, .. } if matches!(**body, Layout::Sequence(_)))
            }),
            _ => false,
        }
        })
    }),
    ("layout: scale and zero", |s| {
        let both =
            |layout: &Layout| layout.holds(Component::Scale(0)) && layout.holds(Component::Zero);
        s.stores.iter().any(|store| store.owner == Component::Scale(0) && both(&store.layout))
    }),
    ("layout: word of components", |s| {
        layout(s, |l| {
            matches!(l, Layout::Word { fields, .. } if {
                let mut held = fields.iter().filter_map(|field| match field {
                    Field::Bits { component, .. } => Some(*component),
                    Field::Pad { .. } => None,
                });
                let first = held.next();
                held.any(|other| Some(other) != first)
            })
        })
    }),
    ("layout: planes", |s| s.stores_of(Component::Code).count() > 1),
    ("layout: sequence", |s| {
        s.stores.iter().any(|store| matches!(store.layout, Layout::Sequence(_)))
    }),
    ("layout: slice", |s| field(s, |f| matches!(f, Field::Bits { range: Some(_), .. }))),
    ("layout: @step", |s| field(s, |f| matches!(f, Field::Bits { step: Some(_), .. }))),
    ("layout: pad", |s| field(s, |f| matches!(f, Field::Pad { fill: Fill::Zero, .. }))),
    ("layout: pad = 1", |s| field(s, |f| matches!(f, Field::Pad { fill: Fill::One, .. }))),
    ("layout: pad = sign", |s| field(s, |f| matches!(f, Field::Pad { fill: Fill::Sign, .. }))),
    ("digit: k:8", |s| digit(s, |d| matches!(d.part, DigitRange::Sized { stride: 1, .. }))),
    ("digit: k/2:4", |s| digit(s, |d| matches!(d.part, DigitRange::Sized { stride: 2.., .. }))),
    ("digit: not a power of two", |s| {
        digit(s, |d| matches!(d.part, DigitRange::Sized { size, .. } if !size.is_power_of_two()))
    }),
    ("digit: k:*", |s| digit(s, |d| d.part == DigitRange::Whole)),
    ("digit: n/top:2", |s| digit(s, |d| matches!(d.part, DigitRange::Top { .. }))),
    ("digit: ~k", |s| digit(s, |d| d.down)),
    ("digit: k ^ n", |s| digit(s, |d| d.swizzle.is_some())),
    ("digit: g", |s| digit(s, |d| d.axis == Axis::G)),
    ("name", |s| s.stores.iter().any(|store| store.name != default_name(store.owner))),
    ("x: f32", |s| float_x(s, "f32")),
    ("x: f16", |s| float_x(s, "f16")),
    ("x: bf16", |s| float_x(s, "bf16")),
    ("x: several floats", |s| {
        s.activations.iter().filter(|a| matches!(a, Activation::Float(_))).count() > 1
    }),
    ("x: quantised", |s| s.quantiser().is_some()),
    ("x: quantised or float", |s| s.quantiser().is_some() && s.activations.len() > 1),
    ("x: i8", |s| quantiser(s, |q| q.code == Number::Int(8))),
    ("x: other integers", |s| quantiser(s, |q| !q.code.is_float() && q.code != Number::Int(8))),
    ("x: float codes", |s| quantiser(s, |q| q.code.is_float())),
    ("x: per token", |s| quantiser(s, |q| q.scales.iter().any(|l| l.group == Group::ROW))),
    ("x: per group", |s| quantiser(s, |q| q.scales.iter().any(|l| each(l.group).is_some()))),
    ("x: dynamic per tensor", |s| {
        quantiser(s, |q| q.scales.iter().any(|l| l.group == Group::TENSOR && !l.stored))
    }),
    ("x: static", |s| quantiser(s, |q| q.scales.iter().any(|l| l.stored))),
    ("x: own", |s| quantiser(s, |q| q.scales.iter().any(|l| l.number == ScaleType::InputDtype))),
    ("x: divide", |s| quantiser(s, |q| q.scales.iter().any(|l| l.divide))),
    ("x: levels", |s| quantiser(s, |q| q.scales.len() > 1)),
    ("x: zero point", |s| quantiser(s, |q| q.zero.is_some())),
    ("x: static zero point", |s| s.components().contains(&Component::InputZero)),
    ("x: ties away", |s| quantiser(s, |q| q.ties == Ties::Away)),
    ("bias", |s| s.bias.is_some()),
    ("prescale", |s| s.prescale.is_some()),
    ("accumulate: i32", |s| s.accumulate == Accumulate::I32),
    ("output", |s| s.output.is_some()),
    ("arithmetic: own", |s| s.arithmetic == Arithmetic::InputDtype),
    ("accuracy: exact", |s| s.accuracy == Accuracy::Exact),
    ("experts: single", |s| s.experts == Some(Experts::Single)),
    ("experts: concatenated", |s| s.experts == Some(Experts::Concatenated)),
    ("experts: interleaved", |s| s.experts == Some(Experts::Interleaved)),
    ("targets", |s| !s.targets.is_empty()),
    ("summary", |s| !s.summary.is_empty()),
];

/// How often each of [`FEATURES`] was drawn.
#[derive(Clone, Debug)]
pub struct Coverage(Vec<u64>);

impl Default for Coverage {
    fn default() -> Self {
        Self(vec![0; FEATURES.len()])
    }
}

impl Coverage {
    /// Counts a scheme.
    pub fn note(&mut self, scheme: &Scheme) {
        for (count, (_, has)) in self.0.iter_mut().zip(FEATURES) {
            *count += u64::from(has(scheme));
        }
    }

    /// Adds the counts of another campaign.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, count)| *sum += count);
    }

    /// The features that were not drawn.
    pub fn absent(&self) -> Vec<&'static str> {
        let all = self.0.iter().zip(FEATURES);
        all.filter(|(count, _)| **count == 0).map(|(_, (name, _))| *name).collect()
    }

    /// A table of three columns.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let cells: Vec<String> = (self.0.iter().zip(FEATURES))
            .map(|(count, (name, _))| format!("{count:6} {name:26}"))
            .collect();
        for row in cells.chunks(3) {
            let _ = writeln!(text, "{}", row.concat().trim_end());
        }
        text
    }
}

fn code(scheme: &Scheme, is: impl Fn(Number) -> bool) -> bool {
    matches!(scheme.weight.code, Code::Number(number) if is(number))
}

fn common(number: Number) -> bool {
    ["e2m1", "e4m3", "e2m3", "e3m2", "e5m2"].contains(&number.to_string().as_str())
}

fn zero(scheme: &Scheme, is: impl Fn(ZeroKind) -> bool) -> bool {
    scheme.zero.is_some_and(|zero| is(zero.kind))
}

fn first(scheme: &Scheme) -> Option<Group> {
    scheme.scales.first().map(|scale| scale.group)
}

fn scale(scheme: &Scheme, is: impl Fn(&ScaleLevel) -> bool) -> bool {
    scheme.scales.iter().any(is)
}

fn shift(scheme: &Scheme, is: impl Fn(&ShiftLevel) -> bool) -> bool {
    scheme.shifts.iter().any(is)
}

fn scale_type(scheme: &Scheme, name: &str) -> bool {
    scale(scheme, |level| level.stored_number() == Number::from_name(name))
}

fn group(scheme: &Scheme, is: impl Fn(Group) -> bool) -> bool {
    scale(scheme, |level| is(level.group))
}

fn each(group: Group) -> Option<(u32, u32)> {
    match (group.rows, group.cols) {
        (GroupSize::Each(rows), GroupSize::Each(cols)) => Some((rows, cols)),
        _ => None,
    }
}

fn float_x(scheme: &Scheme, name: &str) -> bool {
    let is = |activation: &Activation| matches!(activation, Activation::Float(number) if Some(*number) == Number::from_name(name));
    scheme.activations.iter().any(is)
}

fn quantiser(scheme: &Scheme, is: impl Fn(&Quantiser) -> bool) -> bool {
    scheme.quantiser().is_some_and(is)
}

/// Whether some part of a layout satisfies a predicate.
fn any(layout: &Layout, is: &dyn Fn(&Layout) -> bool) -> bool {
    is(layout)
        || match layout {
            Layout::Sequence(parts) => parts.iter().any(|part| any(part, is)),
            Layout::For { body, .. } => any(body, is),
            Layout::Field(_) | Layout::Word { .. } => false,
        }
}

fn layout(scheme: &Scheme, is: impl Fn(&Layout) -> bool) -> bool {
    scheme.stores.iter().any(|store| any(&store.layout, &is))
}

fn word(scheme: &Scheme, is: impl Fn(WordType) -> bool) -> bool {
    layout(scheme, |layout| matches!(layout, Layout::Word { word, .. } if is(*word)))
}

fn words(scheme: &Scheme, component: Component) -> bool {
    let is = |layout: &Layout| matches!(layout, Layout::Word { .. });
    scheme.stores_of(component).any(|store| any(&store.layout, &is))
}

fn field(scheme: &Scheme, is: impl Fn(&Field) -> bool) -> bool {
    scheme.stores.iter().any(|store| store.layout.fields().iter().any(&is))
}

fn digit(scheme: &Scheme, is: impl Fn(&Digit) -> bool) -> bool {
    layout(scheme, |layout| match layout {
        Layout::For { digits, .. } => digits.iter().any(&is),
        Layout::Word { inner, order, .. } => {
            let placed =
                order.iter().any(|place| matches!(place, OrderDigit::Digit(digit) if is(digit)));
            placed || inner.iter().any(&is)
        }
        _ => false,
    })
}

/// Components in a tensor.
fn held(scheme: &Scheme, layout: &Layout) -> usize {
    scheme.components().into_iter().filter(|component| layout.holds(*component)).count()
}

/// Whether k is the slowest digit.
fn slow_k(layout: &Layout) -> bool {
    let last = match layout {
        Layout::For { digits, .. } => digits.last(),
        Layout::Word { order, .. } => match order.last() {
            Some(OrderDigit::Digit(digit)) => Some(digit),
            _ => None,
        },
        _ => None,
    };
    last.is_some_and(|digit| matches!(digit.axis, Axis::K | Axis::G))
}
