//! What is where in a store, by its [`BoundLayout`]: words, bit fields, formulas, labels.

use std::collections::{BTreeMap, BTreeSet};

use quantloom::dsl::layout::{
    Axis, BindError, BitContent, BoundLayout, Component, Element, Field, Fill, GroupSize, Index,
    Layout, Shape, WordType,
};
use quantloom::dsl::{Scheme, Store};

use super::WORD;

/// Axes in the order of labels.
const AXES: [Axis; 4] = [Axis::E, Axis::N, Axis::G, Axis::K];
/// Words from the start of a store that are drawn.
const FIRST_WORDS: u64 = 4;
/// Words that are drawn because a code of the word before goes on there.
const MOST_HOPS: usize = 3;

/// One store at one shape, as a row of words: its words or elements, or the bytes of a record.
pub(super) struct View<'a> {
    pub(super) scheme: &'a Scheme,
    pub(super) store: &'a Store,
    pub(super) bound: BoundLayout,
    /// Bits of a word, what to call it, and its type in a checkpoint.
    pub(super) width: u64,
    pub(super) noun: &'static str,
    pub(super) type_name: String,
}

/// A word, named so that it means the same at every shape.
#[derive(Clone, Copy)]
pub(super) enum Spot {
    /// The nth from the start.
    Nth(u64),
    /// One step along a dimension of the stored tensor.
    Step(usize),
    /// The one that holds a bit.
    Holds(Element),
}

/// Neighbouring bits of a word that go together: bits of one element, or one pad.
pub(super) struct BitField {
    /// Lowest bit in the word, and what it is.
    pub(super) at: u64,
    pub(super) slot: BitContent,
    pub(super) bits: u32,
}

impl BitField {
    fn takes(&self, next: BitContent) -> bool {
        match (self.slot, next) {
            (BitContent::Bit(low), BitContent::Bit(next)) => {
                next == Element { bit: low.bit + self.bits, ..low }
            }
            (low, next) => low == next,
        }
    }
}

impl<'a> View<'a> {
    pub(super) fn new(
        scheme: &'a Scheme,
        store: &'a Store,
        shape: Shape,
    ) -> Result<Self, BindError> {
        let mut layout = &store.layout;
        while let Layout::For { body, .. } = layout {
            layout = body;
        }
        let (width, noun, type_name) = match layout {
            Layout::Word { word, .. } => {
                (word.bits.into(), "word", WordType { msf: false, ..*word }.to_string())
            }
            Layout::Field(Field::Bits { component, range: None, .. }) => {
                let bits = scheme.granularity(*component).map_or(8, |granularity| granularity.bits);
                let number = scheme.number(*component).map(|number| number.to_string());
                (u64::from(bits), "element", number.unwrap_or_else(|| format!("u{bits}")))
            }
            _ => (8, "byte", "bytes".to_owned()),
        };
        Ok(Self { scheme, store, bound: scheme.bind(store, shape)?, width, noun, type_name })
    }

    /// Width of a bit on the page.
    pub(super) fn bit(&self) -> f64 {
        WORD.1 / self.width.max(32) as f64
    }

    /// Right edge of a word on the page: bit 0.
    pub(super) fn right(&self) -> f64 {
        WORD.0 + self.width as f64 * self.bit()
    }

    pub(super) fn find(&self, spot: Spot) -> Option<u64> {
        let word = match spot {
            Spot::Nth(word) => word,
            Spot::Step(dim) => {
                let dims = self.bound.dims();
                let unit = self.bound.bits().checked_div(dims.iter().product())?;
                dims.get(dim + 1..)?.iter().product::<u64>() * unit / self.width
            }
            Spot::Holds(element) => self.bound.address(element)? / self.width,
        };
        ((word + 1) * self.width <= self.bound.bits()).then_some(word)
    }

    pub(super) fn bit_fields(&self, word: u64) -> Vec<BitField> {
        let mut bit_fields: Vec<BitField> = Vec::new();
        for at in 0..self.width {
            let slot = self.bound.content(word * self.width + at);
            match bit_fields.last_mut() {
                Some(last) if last.takes(slot) => last.bits += 1,
                _ => bit_fields.push(BitField { at, slot, bits: 1 }),
            }
        }
        bit_fields
    }

    pub(super) fn elements(&self, word: u64) -> Vec<Element> {
        let element = |field: BitField| match field.slot {
            BitContent::Bit(element) => Some(element),
            _ => None,
        };
        self.bit_fields(word).into_iter().filter_map(element).collect()
    }

    /// The words that hold an element, by number: more than one where it straddles.
    pub(super) fn holders(&self, component: Component, index: Index) -> BTreeMap<u64, Spot> {
        let bits = self.scheme.granularity(component).map_or(0, |granularity| granularity.bits);
        let spots = (0..bits).map(|bit| Spot::Holds(Element { component, index, bit }));
        spots.filter_map(|spot| Some((self.find(spot)?, spot))).collect()
    }

    /// What is worth drawing: the first words, one step along each dimension, the first element
    /// of each component, and the words of the run that the first word begins.
    pub(super) fn words(&self) -> BTreeMap<u64, Spot> {
        let mut words = self.run_on();
        for component in self.scheme.components() {
            words.extend(self.holders(component, Index::default()).pop_first());
        }
        let steps = (0..self.bound.dims().len()).map(Spot::Step);
        let first = (0..FIRST_WORDS).map(Spot::Nth);
        words.extend(steps.chain(first).filter_map(|spot| Some((self.find(spot)?, spot))));
        words
    }

    /// The words that the first word's codes go on in, and the one where the next run begins.
    pub(super) fn run_on(&self) -> BTreeMap<u64, Spot> {
        let (mut run, mut last) = (BTreeMap::new(), 0);
        for _ in 0..MOST_HOPS {
            let held = self.elements(last).into_iter();
            let mut onward = held.flat_map(|e| self.holders(e.component, e.index));
            let Some((word, spot)) = onward.find(|(word, _)| *word > last) else { break };
            run.insert(word, spot);
            last = word;
        }
        let by = self.running_axis();
        let end = self.elements(last).into_iter().max_by_key(|e| (e.index.n, e.index.k));
        if let Some(mut end) = end.filter(|_| last > 0) {
            let along = if by == Axis::N { &mut end.index.n } else { &mut end.index.k };
            *along += 1;
            run.extend(self.holders(end.component, end.index).pop_first());
        }
        run
    }

    /// The axis that runs within a word: n where a word holds one k of many rows.
    pub(super) fn running_axis(&self) -> Axis {
        let first = self.elements(0);
        let vary =
            |of: fn(&Element) -> u64| first.iter().map(of).collect::<BTreeSet<_>>().len() > 1;
        if vary(|e| e.index.n) && !vary(|e| e.index.k) { Axis::N } else { Axis::K }
    }

    /// A number that depends on the shape, as a formula such as `3K/32`: each extent is doubled
    /// to see whether the number doubles with it. If it is not of that form: the number.
    pub(super) fn formula(&self, value: impl Fn(&View<'_>) -> Option<u64>) -> Option<String> {
        let (here, shape) = (value(self)?, self.bound.shape());
        let doubled = [
            ('E', shape.experts, Shape { experts: shape.experts * 2, ..shape }),
            ('N', shape.n, Shape { n: shape.n * 2, ..shape }),
            ('K', shape.k, Shape { k: shape.k * 2, ..shape }),
        ];
        let (mut letters, mut extents) = (String::new(), 1);
        for (letter, extent, twice) in doubled.into_iter().filter(|(_, extent, _)| *extent > 1) {
            let there = value(&View::new(self.scheme, self.store, twice).ok()?)?;
            if there == 2 * here && here > 0 {
                letters.push(letter);
                extents *= extent;
            } else if there != here {
                return Some(here.to_string());
            }
        }
        let common = greatest_common_divisor(here, extents);
        let factor = if here == common && extents > 1 { None } else { Some(here / common) };
        let above = factor.map_or_else(String::new, |factor| factor.to_string()) + &letters;
        let below = extents / common;
        Some(if below == 1 { above } else { format!("{above}/{below}") })
    }

    /// The formula of a word's number, for one that is elsewhere in another shape.
    pub(super) fn place(&self, spot: Spot) -> Option<String> {
        self.formula(|view| view.find(spot)).filter(|text| text.contains(['E', 'N', 'K']))
    }

    /// An element's coordinate, `None` on an axis along which its component is one value.
    pub(super) fn along(&self, axis: Axis, component: Component, index: Index) -> Option<u64> {
        let granularity = self.scheme.granularity(component)?;
        match (axis, granularity.cols) {
            (Axis::E, _) => Some(index.e),
            (Axis::N, _) => (granularity.rows != GroupSize::All).then_some(index.n),
            (Axis::K, GroupSize::Each(1)) => Some(index.k),
            (Axis::G, GroupSize::Each(cols)) if cols > 1 => Some(granularity.cols.group(index.k)),
            _ => None,
        }
    }

    /// `n0 k3`, `n0-127 g1`; with the component's name where it is not the store's own.
    pub(super) fn label(&self, component: Component, index: Index) -> Vec<String> {
        let coordinate = |axis| {
            let at = self.along(axis, component, index)?;
            match (axis, self.scheme.granularity(component)?.rows) {
                (Axis::E, _) if at == 0 => None,
                (Axis::N, GroupSize::Each(rows)) if rows > 1 => {
                    Some(format!("n{at}-{}", at + u64::from(rows) - 1))
                }
                _ => Some(format!("{axis}{at}")),
            }
        };
        let mut words: Vec<String> = AXES.into_iter().filter_map(coordinate).collect();
        if component != self.store.owner || words.is_empty() {
            words.insert(0, component.to_string());
        }
        words
    }

    /// The words in a bit field's box.
    pub(super) fn bit_field_label(&self, field: &BitField) -> Vec<String> {
        match field.slot {
            BitContent::Bit(Element { component, index, bit }) => {
                let whole =
                    self.scheme.granularity(component).is_some_and(|g| g.bits == field.bits);
                let part = match field.bits {
                    1 => format!("b{bit}"),
                    bits => format!("b{bit}-{}", bit + bits - 1),
                };
                let part = (!whole).then_some(part);
                self.label(component, index).into_iter().chain(part).collect()
            }
            BitContent::Sign(component, index) => {
                [vec!["sign".to_owned()], self.label(component, index)].concat()
            }
            BitContent::Hole(Fill::One) => ["pad", "= 1"].map(str::to_owned).to_vec(),
            BitContent::Hole(_) => vec!["pad".to_owned()],
        }
    }

    /// The element that a word begins with, in the order of indices.
    pub(super) fn first(&self, spot: Spot) -> Option<Element> {
        let elements = self.elements(self.find(spot)?).into_iter();
        elements.min_by_key(|Element { index, .. }| (index.e, index.n, index.k))
    }

    /// The element that a word goes on with, if an earlier word holds a part of it.
    pub(super) fn goes_on(&self, spot: Spot) -> Option<Element> {
        let word = self.find(spot)?;
        let begun = |e: &Element| self.holders(e.component, e.index).range(..word).count() > 0;
        self.elements(word).into_iter().find(begun)
    }

    /// How a word follows from another: `k + 8`, the code that goes on, or what it begins with.
    pub(super) fn change(&self, from: Spot, to: Spot) -> String {
        let name = |e: Element| self.label(e.component, e.index).join(" ");
        let Some(b) = self.first(to) else { return "pad".to_owned() };
        if let Some(cut) = self.goes_on(to) {
            return format!("{} goes on", name(cut));
        }
        let alike = |a: &Element| a.component == b.component && self.goes_on(from).is_none();
        let Some(a) = self.first(from).filter(alike) else { return name(b) };
        let along = |axis, e: Element| self.along(axis, e.component, e.index);
        let step = |axis| {
            let (was, now) = (along(axis, a)?, along(axis, b)?);
            let distance = self.formula(|view| {
                let (was, now) = (along(axis, view.first(from)?)?, along(axis, view.first(to)?)?);
                Some(was.abs_diff(now))
            });
            let sign = if now < was { '-' } else { '+' };
            (was != now).then(|| format!("{axis} {sign} {}", distance.unwrap_or_default()))
        };
        AXES.into_iter().filter_map(step).collect::<Vec<_>>().join(", ")
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
