//! The body of a transform: each thread writes one piece of the destination, gathered from words
//! of the source.
//!
//! In: the runs of both sides, and what becomes of an element. The piece's number is taken apart
//! into the digits of the destination, which give the element's index; the digits of the source
//! give its address. Bits that move by the same distance from one word to another move together.

use std::collections::{BTreeMap, HashMap};

use quantloom_dsl::layout::{Axis, Run, Shape};

use super::affine::{Affine, Values};
use super::form::Form;
use crate::ir::{
    Address, Binary, BufferId, Builder, Cache, Mask, Operand, Special, Type, Width, Word,
};

/// Threads of a block.
pub(super) const THREADS: u32 = 256;

/// Bits of a register, and the most that a field takes.
const REGISTER: u64 = 32;

/// One of the two arrays.
pub(super) struct Side {
    /// Where the component's bits lie.
    pub(super) runs: Vec<Run>,
    /// Bits of the array.
    pub(super) bits: u64,
}

impl Side {
    /// Bits that a thread writes: the most that a store takes, if all such pieces are alike.
    pub(super) fn piece(&self) -> Option<u64> {
        let alike =
            |piece: &u64| self.runs.iter().all(|run| divided(run, *piece, self.bits).is_some());
        [128, 64, 32, 16, 8]
            .into_iter()
            .find(|piece| self.bits.is_multiple_of(*piece) && alike(piece))
    }

    /// Bits of a word of the array, such that no field lies in two.
    pub(super) fn word(&self) -> Option<u64> {
        let fits = |word: u64, run: &Run| {
            run.digits.iter().filter(|digit| digit.fixed.is_none()).all(|digit| {
                let place = u64::try_from(digit.place).unwrap_or(0);
                place > 0 && (place.is_multiple_of(word) || word.is_multiple_of(place))
            })
        };
        let whole = |word: u64| self.runs.iter().all(|run| fits(word, run) && run.base >= 0);
        [32, 16, 8].into_iter().find(|word| self.bits.is_multiple_of(*word) && whole(*word))
    }
}

/// The word of an array of so many bits.
pub(super) const fn word(bits: u64) -> Word {
    match bits {
        8 => Word::U8,
        16 => Word::U16,
        _ => Word::U32,
    }
}

const fn width(bits: u64) -> Width {
    match bits {
        8 => Width::B8,
        16 => Width::B16,
        32 => Width::B32,
        64 => Width::B64,
        _ => Width::B128,
    }
}

/// A digit of a run that is not held at a constant.
#[derive(Clone, Copy)]
struct Digit {
    axis: usize,
    stride: u64,
    size: u64,
    place: u64,
}

const fn axis(axis: Axis) -> usize {
    match axis {
        Axis::E => 0,
        Axis::N => 1,
        Axis::K | Axis::G => 2,
    }
}

/// A run's digits that number its pieces, slowest last, and those inside of a piece; `None` if the
/// pieces are not numbered without gaps.
fn divided(run: &Run, piece: u64, bits: u64) -> Option<(Vec<Digit>, Vec<Digit>)> {
    let (mut outer, mut inner) = (Vec::new(), Vec::new());
    for digit in run.digits.iter().filter(|digit| digit.fixed.is_none()) {
        let place = u64::try_from(digit.place).ok().filter(|place| *place > 0)?;
        let (axis, stride, size) = (axis(digit.axis), digit.stride, digit.size);
        if place >= piece {
            outer.push(Digit { axis, stride, size, place });
        } else if place * size <= piece {
            inner.push(Digit { axis, stride, size, place });
        } else {
            let below = piece.is_multiple_of(place).then_some(piece / place)?;
            inner.push(Digit { axis, stride, size: below, place });
            let (stride, size) = (stride * below, size.div_ceil(below));
            outer.push(Digit { axis, stride, size, place: piece });
        }
    }
    let reach: u64 = inner.iter().map(|digit| digit.place * (digit.size - 1)).sum();
    let end = u64::try_from(run.base).ok()? + reach + u64::from(run.high - run.low);
    outer.sort_by_key(|digit| digit.place);
    let mut pieces = piece;
    for digit in &outer {
        (digit.place == pieces).then_some(())?;
        pieces *= digit.size;
    }
    (end <= piece && pieces == bits).then_some((outer, inner))
}

/// Index and bit offset of each element inside of a piece.
fn elements(inner: &[Digit]) -> Vec<([u64; 3], u64)> {
    inner.iter().fold(vec![([0; 3], 0)], |elements, digit| {
        let at = |(index, place): &([u64; 3], u64), value: u64| {
            let mut index = *index;
            index[digit.axis] += value * digit.stride;
            (index, place + value * digit.place)
        };
        elements
            .iter()
            .flat_map(|element| (0..digit.size).map(move |value| at(element, value)))
            .collect()
    })
}

/// What must be true of an element for it to be there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Condition {
    /// The index lies inside of the shape.
    Less(Affine, u64),
    /// The run is for this value only.
    Equal(Affine, u64),
}

/// A word of the source that is read where all conditions hold, and is 0 elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Source {
    conditions: Vec<Condition>,
    word: Affine,
    /// How far it is shifted down, besides constants.
    shift: Affine,
}

/// Bits of an element on both sides.
struct Field {
    source: Source,
    /// First bit in the source's shifted word.
    from: u64,
    /// First bit in the piece.
    to: u64,
    /// Bits in the source.
    bits: u64,
    /// Those of them that are inverted on the way.
    inverted: u32,
}

/// Writes the body of a kernel.
pub(super) struct Gather<'s> {
    pub(super) shape: Shape,
    pub(super) from: &'s Side,
    pub(super) to: &'s Side,
    pub(super) form: Form,
    /// Bits of a word of the source, of a piece of the destination.
    pub(super) word: u64,
    pub(super) piece: u64,
}

impl Gather<'_> {
    /// Pieces of the destination.
    pub(super) const fn pieces(&self) -> u64 {
        self.to.bits / self.piece
    }

    /// Gathers every piece of the destination; false if a field lies in two words.
    pub(super) fn write(&self, b: &mut Builder, source: BufferId, destination: BufferId) -> bool {
        let (block, thread) = (b.special(Special::Block(0)), b.special(Special::Thread));
        let number = b.mad(block, THREADS, thread);
        let inside = b.less(number, self.pieces() as u32);
        let mut whole = false;
        b.when(inside, |b| {
            let mut values = Values::default();
            let piece = values.value(number, self.pieces() - 1);
            let Some(fields) = self.fields(b, &mut values, &piece) else { return };
            whole = true;
            let (conditions, loaded) = (HashMap::new(), HashMap::new());
            let mut moves = Moves { values, source, word: width(self.word), conditions, loaded };
            let words = self.words(b, &mut moves, &fields);
            let per_piece = self.piece.div_ceil(REGISTER) as u32;
            let index = b.mul(number, per_piece);
            b.store(Address::new(destination, index), &words, width(self.piece), None);
        });
        whole
    }

    /// Everything that goes into a piece.
    fn fields(&self, b: &mut Builder, values: &mut Values, piece: &Affine) -> Option<Vec<Field>> {
        let mut fields = Vec::new();
        for run in &self.to.runs {
            let (outer, inner) = divided(run, self.piece, self.to.bits)?;
            let mut first: [Affine; 3] = Default::default();
            for digit in &run.digits {
                first[axis(digit.axis)].constant += digit.fixed.unwrap_or(0) * digit.stride;
            }
            for digit in outer {
                let above = values.quotient(b, piece, digit.place / self.piece);
                let value = values.remainder(b, &above, digit.size);
                first[digit.axis].add(&value, digit.stride);
            }
            for (index, place) in elements(&inner) {
                let mut element = first.clone();
                for (axis, index) in element.iter_mut().zip(index) {
                    axis.constant += index;
                }
                let to = run.base as u64 + place;
                for source in &self.from.runs {
                    let low = run.low.max(source.low);
                    if low < run.high.min(source.high) {
                        fields.extend(self.field(b, values, &element, [source, run], to)?);
                    }
                }
            }
        }
        Some(fields)
    }

    /// The field of one element in a run of both sides, if it can be there; `None` if it lies in
    /// two words.
    fn field(
        &self,
        b: &mut Builder,
        values: &mut Values,
        element: &[Affine; 3],
        [from, run]: [&Run; 2],
        to: u64,
    ) -> Option<Option<Field>> {
        let extents = [self.shape.experts, self.shape.n, self.shape.k];
        let mut conditions = Vec::new();
        for (index, extent) in element.iter().zip(extents) {
            match index.fixed() {
                Some(index) if index >= extent => return Some(None),
                None if values.most(index) >= extent => {
                    // Neighbours that are there together are asked for once.
                    let common = index.common(extent);
                    let mut index = index.clone();
                    index.constant -= index.constant % common;
                    conditions.push(Condition::Less(index, extent));
                }
                _ => {}
            }
        }
        let (low, high) = match self.form {
            Form::Keep | Form::Xor(_) => (run.low.max(from.low), run.high.min(from.high)),
            _ => (from.low, from.high),
        };
        let mut address = Affine::constant(from.base as u64 + u64::from(low - from.low));
        for digit in &from.digits {
            let at = axis(digit.axis);
            let mut value = values.quotient(b, &element[at], digit.stride);
            if digit.stride * digit.size < extents[at] {
                value = values.remainder(b, &value, digit.size);
            }
            match (digit.fixed, value.fixed()) {
                (None, _) => address.add(&value, digit.place as u64),
                (Some(only), Some(value)) if only != value => return Some(None),
                (Some(_), Some(_)) => {}
                (Some(only), None) => conditions.push(Condition::Equal(value, only)),
            }
        }
        let word = values.quotient(b, &address, self.word);
        let bit = values.remainder(b, &address, self.word);
        let bits = u64::from(high - low);
        let to = to + u64::from(low.saturating_sub(run.low));
        let written = self.form.written(bits);
        if values.most(&bit) + bits > self.word || to % REGISTER + written > REGISTER {
            return None;
        }
        conditions.sort();
        let source = Source { conditions, word, shift: bit.varying() };
        let inverted = if let Form::Xor(mask) = self.form { mask >> low } else { 0 };
        Some(Some(Field { source, from: bit.constant, to, bits, inverted }))
    }

    /// The registers of a piece.
    fn words(&self, b: &mut Builder, moves: &mut Moves, fields: &[Field]) -> Vec<Operand> {
        let mut words = vec![Operand::U32(0); self.piece.div_ceil(REGISTER) as usize];
        // By register, source and distance: the bits of the register, and those that are inverted.
        let mut together: BTreeMap<(u64, &Source, i64), [u32; 2]> = BTreeMap::new();
        for field in fields {
            let (register, to) = (field.to / REGISTER, field.to % REGISTER);
            match self.form {
                Form::Keep | Form::Xor(_) => {
                    let by = to as i64 - field.from as i64;
                    let [bits, inverted] =
                        together.entry((register, &field.source, by)).or_default();
                    *bits |= ones(field.bits) << to;
                    *inverted |= (field.inverted & ones(field.bits)) << to;
                }
                _ => {
                    let code = moves.word(b, &field.source);
                    let code = b.shr(code, field.from as u32);
                    let code = b.and(code, ones(field.bits));
                    let element = self.form.element(b, code);
                    let element = moves.or_zero(b, &field.source, element);
                    let element = b.shl(element, to as u32);
                    join(b, &mut words, register, element);
                }
            }
        }
        for ((register, source, by), [bits, inverted]) in together {
            let word = moves.word(b, source);
            let distance = by.unsigned_abs() as u32;
            let word = if by < 0 { b.shr(word, distance) } else { b.shl(word, distance) };
            let mut word = b.and(word, bits);
            if inverted != 0 {
                let flipped = b.xor(word, inverted);
                word = moves.or_zero(b, source, flipped);
            }
            join(b, &mut words, register, word);
        }
        words
    }
}

fn join(b: &mut Builder, words: &mut [Operand], register: u64, part: Operand) {
    if let Some(word) = words.get_mut(register as usize) {
        *word = match *word {
            Operand::U32(0) => part,
            before => b.binary(Binary::Or, before, part),
        };
    }
}

const fn ones(bits: u64) -> u32 {
    ((1u64 << bits) - 1) as u32
}

/// What of the source and of conditions is in registers.
struct Moves {
    values: Values,
    source: BufferId,
    word: Width,
    conditions: HashMap<Condition, Operand>,
    loaded: HashMap<Source, Operand>,
}

impl Moves {
    /// Whether all conditions hold; true if there are none.
    fn all(&mut self, b: &mut Builder, conditions: &[Condition]) -> Operand {
        let mut all = Operand::Pred(true);
        for condition in conditions {
            let known = self.conditions.get(condition).copied();
            let holds = known.unwrap_or_else(|| match condition {
                Condition::Less(index, extent) => {
                    let index = self.values.operand(b, index);
                    b.less(index, *extent as u32)
                }
                Condition::Equal(value, only) => {
                    let value = self.values.operand(b, value);
                    b.equal(value, *only as u32)
                }
            });
            self.conditions.insert(condition.clone(), holds);
            all = b.both(all, holds);
        }
        all
    }

    /// The source's word, shifted down by what is no constant.
    fn word(&mut self, b: &mut Builder, source: &Source) -> Operand {
        if let Some(word) = self.loaded.get(source) {
            return *word;
        }
        let plain = Source { shift: Affine::default(), ..source.clone() };
        let word = match self.loaded.get(&plain) {
            Some(word) => *word,
            None => self.load(b, &plain),
        };
        let shift = self.values.operand(b, &source.shift);
        let shifted = b.shr(word, shift);
        self.loaded.insert(source.clone(), shifted);
        shifted
    }

    fn load(&mut self, b: &mut Builder, source: &Source) -> Operand {
        let index = self.values.operand(b, &source.word.varying());
        let from = Address::new(self.source, index).plus(source.word.constant as u32);
        let mask = match self.all(b, &source.conditions) {
            Operand::Pred(true) => None,
            condition => Some(Mask::or_zero(condition)),
        };
        let word = b.load_as(Type::U32, from, self.word, mask, Cache::Constant);
        let word = word.first().map_or(Operand::U32(0), |word| (*word).into());
        self.loaded.insert(source.clone(), word);
        word
    }

    /// A value where the source's conditions hold.
    fn or_zero(&mut self, b: &mut Builder, source: &Source, value: Operand) -> Operand {
        let holds = self.all(b, &source.conditions);
        b.select(holds, value, 0u32)
    }
}
