//! The body of a transform: each thread writes one vector of the destination, gathered from words of the
//! sources.
//!
//! In: the affine runs of each input's codes, the planes of the destination, the conversion of an element.
//! The digits of the destination, computed from the vector's number, give the element's index; the digits of
//! a source give its address. A code is split where a word of its source may end. Bits that move by the same
//! distance from one word to another move together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use quantloom_dsl::layout::{AffineRun, Shape};

use super::affine::{Affine, Values};
use super::conversion::Conversion;
use super::plane::{Contents, Plane, REGISTER, axis};
use crate::ir::{
    Address, Binary, BufferId, Builder, Cache, Mask, Operand, Special, Type, Width, Word,
};
use crate::schedule::unscheduled::TransformLimit;

/// Threads of a block.
pub(super) const THREADS: u32 = 256;

/// The tile of a block: adjacent vectors by lines of the destination's order, 128 bytes by 32 lines.
const TILE: [u64; 2] = [8, THREADS as u64 / 8];

/// Bits read per bit written, from which a block writes a tile.
const SHARED: u64 = 4;

/// The most slices of codes in a vector; more take too long to compile and to run.
const MOST_SLICES: usize = 512;

/// An array that is read.
pub(super) struct Array {
    pub(super) buffer: BufferId,
    /// Bits of its words.
    pub(super) word: u64,
}

/// One input of a [`Conversion`]: the affine runs of its codes in each array that has some.
pub(super) type Input = Vec<(usize, Vec<AffineRun>)>;

/// The word of an array of `bits` bits: the largest that divides them.
pub(super) const fn word_of(bits: u64) -> u64 {
    match bits {
        bits if bits.is_multiple_of(32) => 32,
        bits if bits.is_multiple_of(16) => 16,
        _ => 8,
    }
}

/// The word type of a width in bits.
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

/// A condition for an element to exist.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Condition {
    /// The index is inside of the shape.
    Less(Affine, u64),
    /// The value selects the run.
    Equal(Affine, u64),
}

/// A word of a source that is read where all conditions hold, and is 0 elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct SourceWord {
    array: usize,
    conditions: Vec<Condition>,
    word: Affine,
    /// The variable part of the shift of the word.
    shift: Affine,
}

/// Bits of a code in one word of a source.
pub(super) struct Slice {
    source: SourceWord,
    /// First bit in the shifted word.
    from: u64,
    /// First bit in the code.
    low: u64,
    bits: u64,
}

/// Bits that are moved, and possibly inverted.
struct Moved {
    source: SourceWord,
    from: u64,
    /// First bit in the vector.
    to: u64,
    bits: u64,
    inverted: u32,
}

/// An element that is computed from its codes.
struct Made {
    /// Per input.
    codes: Vec<Vec<Slice>>,
    /// The conditions of its existence.
    conditions: Vec<Condition>,
    /// The destination of its bits: first bit in the element, first bit in the vector, number of bits.
    places: Vec<[u64; 3]>,
}

/// The order of the destination's columns in the sources.
pub(super) struct Sorted {
    /// The array with the source column of each destination column, u32; any number beyond the columns
    /// is a pad.
    pub(super) order: usize,
    /// For group parameters with a group index: the runs of the index, the number of groups, and the
    /// columns of a group.
    pub(super) groups: Option<(Input, [u64; 2])>,
}

/// Writes the body of a kernel.
pub(super) struct Gather<'g> {
    /// Of the destination, and of the sources.
    pub(super) shape: Shape,
    pub(super) stored: Shape,
    pub(super) sorted: Option<Sorted>,
    pub(super) arrays: &'g [Array],
    pub(super) inputs: &'g [Input],
    pub(super) conversion: &'g Conversion,
    pub(super) planes: &'g [Plane<'g>],
    pub(super) destination: BufferId,
    /// Bits of a vector, and of a word of the destination.
    pub(super) vector: u64,
    pub(super) word: u64,
}

impl Gather<'_> {
    /// Gathers every vector of the destination.
    ///
    /// # Errors
    /// A packing that cannot be gathered, or only slowly.
    pub(super) fn write(&self, b: &mut Builder) -> Result<(), TransformLimit> {
        let (block, thread) = (b.special(Special::Block(0)), b.special(Special::Thread));
        let number = b.mad(block, THREADS, thread);
        let (mut first, mut outcome) = (0u32, Ok(()));
        for plane in self.planes {
            // In blocks of another plane the number wraps, or is too large.
            let number = if first == 0 { number } else { b.sub(number, first) };
            let inside = b.less(number, plane.vectors as u32);
            b.when(inside, |b| {
                let written = self.plane(b, plane, number);
                if outcome.is_ok() {
                    outcome = written;
                }
            });
            first += (plane.vectors as u32).next_multiple_of(THREADS);
        }
        outcome
    }

    fn plane(
        &self,
        b: &mut Builder,
        plane: &Plane<'_>,
        number: Operand,
    ) -> Result<(), TransformLimit> {
        let mut moves = Moves::new(self.arrays);
        let number = moves.values.value(number, plane.vectors - 1);
        let vector = self.vector_of(b, &mut moves.values, plane, number);
        let (mut moved, mut made) = (Vec::new(), Vec::new());
        for contents in &plane.contents {
            self.contents(b, &mut moves, &vector, contents, (&mut moved, &mut made));
        }
        let codes = made.iter().flat_map(|made| &made.codes);
        if moved.len() + codes.map(Vec::len).sum::<usize>() > MOST_SLICES {
            return Err(TransformLimit::SpreadCodes);
        }
        let words = self.words(b, &mut moves, &moved, &made);
        let above = moves.values.quotient(b, &vector, plane.beside);
        let beside = moves.values.remainder(b, &vector, plane.beside);
        let mut index = Affine::constant(plane.base / self.word);
        index.add(&above, plane.period / self.word);
        index.add(&beside, self.vector / self.word);
        let at = moves.values.operand(b, &index.varying());
        let at = Address::new(self.destination, at).plus(index.constant as u32);
        self.store(b, at, &words);
        if moves.values.exceeded() { Err(TransformLimit::Indices) } else { Ok(()) }
    }

    /// The number of a thread's vector. Threads write adjacent vectors in the order of the destination;
    /// but if the source words of a vector also hold bits of distant vectors, a block writes a tile
    /// ([`TILE`]), so that it reads those words once.
    fn vector_of(
        &self,
        b: &mut Builder,
        values: &mut Values,
        plane: &Plane<'_>,
        number: Affine,
    ) -> Affine {
        let [wide, high] = TILE;
        let line = plane.line();
        let tiles = line.is_multiple_of(wide) && line > wide;
        let tiles = tiles && (plane.vectors / line).is_multiple_of(high);
        let shared = self.words_read(plane) as u64 * REGISTER >= SHARED * self.vector;
        if !(tiles && shared) {
            return number;
        }
        let tile = values.quotient(b, &number, wide * high);
        let inside = values.remainder(b, &number, wide * high);
        let mut vector = values.remainder(b, &inside, wide);
        let column = values.remainder(b, &tile, line / wide);
        vector.add(&column, wide);
        let row = values.quotient(b, &inside, wide);
        vector.add(&row, line);
        let rows = values.quotient(b, &tile, line / wide);
        vector.add(&rows, line * high);
        vector
    }

    /// Words of the sources that the first vector of a plane reads.
    fn words_read(&self, plane: &Plane<'_>) -> usize {
        let mut words = BTreeSet::new();
        for (index, _) in plane.contents.iter().flat_map(|contents| &contents.elements) {
            for (array, runs) in self.inputs.iter().flatten() {
                let word = self.arrays.get(*array).map_or(REGISTER, |array| array.word);
                words.extend(runs.iter().filter_map(|run| Some((array, at(run, index)? / word))));
            }
        }
        words.len()
    }

    /// Stores a vector: with one store if such a store exists, otherwise word by word.
    fn store(&self, b: &mut Builder, at: Address, words: &[Operand]) {
        if self.vector.is_power_of_two() {
            b.store(at, words, width(self.vector), None);
            return;
        }
        for number in 0..self.vector / self.word {
            let bit = number * self.word;
            let word = words.get((bit / REGISTER) as usize).copied().unwrap_or(Operand::U32(0));
            let word = b.shr(word, (bit % REGISTER) as u32);
            b.store(at.plus(number as u32), &[word], width(self.word), None);
        }
    }

    /// Gathers the elements of one run of the destination in a vector.
    fn contents(
        &self,
        b: &mut Builder,
        moves: &mut Moves<'_>,
        vector: &Affine,
        Contents { run, outer, elements }: &Contents<'_>,
        (moved, made): (&mut Vec<Moved>, &mut Vec<Made>),
    ) {
        let mut first: [Affine; 3] = Default::default();
        for digit in &run.digits {
            first[axis(digit.axis)].constant += digit.fixed.unwrap_or(0) * digit.stride;
        }
        for (digit, vectors) in outer {
            let above = moves.values.quotient(b, vector, *vectors);
            let value = moves.values.remainder(b, &above, digit.size);
            first[digit.axis].add(&value, digit.stride);
        }
        for (index, to) in elements {
            let mut element = first.clone();
            for (axis, index) in element.iter_mut().zip(index) {
                axis.constant += index;
            }
            let Some(mut conditions) = self.conditions(&moves.values, &element) else { continue };
            if let Some(sorted) = &self.sorted {
                let (there, column) = self.column(b, moves, sorted, &element[2]);
                conditions.extend(there);
                element[2] = column;
            }
            let mut codes = Vec::new();
            for input in self.inputs {
                codes.push(self.slices(b, &mut moves.values, &element, input, &conditions));
            }
            let mut codes = codes.into_iter();
            match self.conversion.inverted() {
                Some(mask) => {
                    let slices = codes.next().unwrap_or_default();
                    moved.extend(slices.into_iter().flat_map(|slice| cut(slice, run, *to, mask)));
                }
                None => {
                    let (low, high) =
                        (u64::from(run.low), u64::from(run.high + run.sign_extension));
                    let places = registers(low, high, *to);
                    made.push(Made { codes: codes.collect(), conditions, places });
                }
            }
        }
    }

    /// The conditions for an index to be inside of the shape; `None` if it never is.
    pub(super) fn conditions(
        &self,
        values: &Values,
        element: &[Affine; 3],
    ) -> Option<Vec<Condition>> {
        let mut conditions = Vec::new();
        for (index, extent) in element.iter().zip(extents(self.shape)) {
            match index.fixed() {
                Some(index) if index >= extent => return None,
                None if values.most(index) >= extent => {
                    // Adjacent elements that exist together share a condition.
                    let common = index.common(extent);
                    let mut index = index.clone();
                    index.constant -= index.constant % common;
                    conditions.push(Condition::Less(index, extent));
                }
                _ => {}
            }
        }
        Some(conditions)
    }

    /// The source column at a place of the destination (or the first column of its group), and the
    /// conditions of its existence.
    fn column(
        &self,
        b: &mut Builder,
        moves: &mut Moves<'_>,
        Sorted { order, groups }: &Sorted,
        place: &Affine,
    ) -> (Vec<Condition>, Affine) {
        if let Some(known) = moves.columns.get(place) {
            return known.clone();
        }
        let conditions = match moves.values.most(place) < self.shape.k {
            true => Vec::new(),
            false => vec![Condition::Less(place.clone(), self.shape.k)],
        };
        let (word, shift) = (place.clone(), Affine::default());
        let read = SourceWord { array: *order, conditions: conditions.clone(), word, shift };
        let found = moves.word(b, &read);
        let number = moves.values.value(found, u64::from(u32::MAX));
        let there = [conditions, vec![Condition::Less(number, self.stored.k)]].concat();
        let holds = moves.all(b, &there);
        let found = b.select(holds, found, 0u32);
        let mut column = moves.values.value(found, self.stored.k - 1);
        if let Some((index, [count, columns])) = groups {
            let element = [Affine::default(), Affine::default(), column];
            let slices = self.slices(b, &mut moves.values, &element, index, &there);
            let group = moves.code(b, &slices);
            let group = moves.values.value(group, count - 1);
            column = Affine::default();
            column.add(&group, *columns);
        }
        moves.columns.insert(place.clone(), (there.clone(), column.clone()));
        (there, column)
    }

    /// The bits of an element's code, split where a word of its source may end.
    pub(super) fn slices(
        &self,
        b: &mut Builder,
        values: &mut Values,
        element: &[Affine; 3],
        input: &Input,
        conditions: &[Condition],
    ) -> Vec<Slice> {
        let mut slices = Vec::new();
        for (array, runs) in input {
            for run in runs {
                self.of_run(b, values, element, (*array, run), conditions, &mut slices);
            }
        }
        slices
    }

    /// The bits in one run.
    fn of_run(
        &self,
        b: &mut Builder,
        values: &mut Values,
        element: &[Affine; 3],
        (array, from): (usize, &AffineRun),
        conditions: &[Condition],
        slices: &mut Vec<Slice>,
    ) {
        let word = self.arrays.get(array).map_or(REGISTER, |array| array.word);
        let mut conditions = conditions.to_vec();
        let mut address = Affine::constant(from.base as u64);
        for digit in &from.digits {
            let at = axis(digit.axis);
            let mut value = values.quotient(b, &element[at], digit.stride);
            if digit.stride * digit.size < extents(self.stored)[at] {
                value = values.remainder(b, &value, digit.size);
            }
            match (digit.fixed, value.fixed()) {
                (None, _) => address.add(&value, digit.place as u64),
                (Some(only), Some(value)) if only != value => return,
                (Some(_), Some(_)) => {}
                (Some(only), None) if !value.reaches(only) => return,
                (Some(only), None) => conditions.push(Condition::Equal(value, only)),
            }
        }
        conditions.sort();
        // Addresses vary by multiples of this, so words end at multiples of it only.
        let common = address.common(word);
        let (mut low, high) = (u64::from(from.low), u64::from(from.high));
        while low < high {
            let bits = (common - address.constant % common).min(high - low);
            let number = values.quotient(b, &address, word);
            let bit = values.remainder(b, &address, word);
            let shift = bit.varying();
            let source = SourceWord { array, conditions: conditions.clone(), word: number, shift };
            slices.push(Slice { source, from: bit.constant, low, bits });
            address.constant += bits;
            low += bits;
        }
    }

    /// The registers of a vector.
    fn words(
        &self,
        b: &mut Builder,
        moves: &mut Moves<'_>,
        moved: &[Moved],
        made: &[Made],
    ) -> Vec<Operand> {
        let mut words = vec![Operand::U32(0); self.vector.div_ceil(REGISTER) as usize];
        for Made { codes, conditions, places } in made {
            let codes: Vec<Operand> = codes.iter().map(|slices| moves.code(b, slices)).collect();
            let element = self.conversion.element(b, &codes);
            let there = moves.all(b, conditions);
            let element = b.select(there, element, 0u32);
            for [low, to, bits] in places {
                let part = b.shr(element, *low as u32);
                let part = if low + bits < self.conversion.bits() {
                    b.and(part, ones(*bits))
                } else {
                    part
                };
                let part = b.shl(part, (to % REGISTER) as u32);
                join(b, &mut words, to / REGISTER, part);
            }
        }
        // By register, source and distance: the bits of the register, and those of them that are
        // inverted.
        let mut together: BTreeMap<(u64, &SourceWord, i64), [u32; 2]> = BTreeMap::new();
        for field in moved {
            let (register, to) = (field.to / REGISTER, field.to % REGISTER);
            let by = to as i64 - field.from as i64;
            let [bits, inverted] = together.entry((register, &field.source, by)).or_default();
            *bits |= ones(field.bits) << to;
            *inverted |= (field.inverted & ones(field.bits)) << to;
        }
        for ((register, source, by), [bits, inverted]) in together {
            let word = moves.word(b, source);
            let distance = by.unsigned_abs() as u32;
            let word = if by < 0 { b.shr(word, distance) } else { b.shl(word, distance) };
            let mut word = b.and(word, bits);
            if inverted != 0 {
                let flipped = b.xor(word, inverted);
                let there = moves.all(b, &source.conditions);
                word = b.select(there, flipped, 0u32);
            }
            join(b, &mut words, register, word);
        }
        words
    }
}

/// The first bit of an element in a run; `None` if another run holds it.
fn at(run: &AffineRun, index: &[u64; 3]) -> Option<u64> {
    let mut bit = run.base as u64;
    for digit in &run.digits {
        let value = index[axis(digit.axis)] / digit.stride % digit.size;
        match digit.fixed {
            Some(only) if only != value => return None,
            Some(_) => {}
            None => bit += value * digit.place as u64,
        }
    }
    Some(bit)
}

const fn extents(shape: Shape) -> [u64; 3] {
    [shape.experts, shape.n, shape.k]
}

/// The bits of a slice that a run of the destination holds, split where a register ends.
fn cut(slice: Slice, run: &AffineRun, to: u64, mask: u32) -> Vec<Moved> {
    let (first, last) = (u64::from(run.low), u64::from(run.high));
    let (low, high) = (slice.low.max(first), (slice.low + slice.bits).min(last));
    let part = |[low, to, bits]: [u64; 3]| Moved {
        source: slice.source.clone(),
        from: slice.from + low - slice.low,
        to,
        bits,
        inverted: mask >> low,
    };
    registers(low, high, to + low.saturating_sub(first)).into_iter().map(part).collect()
}

/// Splits bits `low..high` with destination `to` where a register ends: first bit, destination, number
/// of bits.
fn registers(mut low: u64, high: u64, mut to: u64) -> Vec<[u64; 3]> {
    let mut parts = Vec::new();
    while low < high {
        let bits = (REGISTER - to % REGISTER).min(high - low);
        parts.push([low, to, bits]);
        (low, to) = (low + bits, to + bits);
    }
    parts
}

fn join(b: &mut Builder, words: &mut [Operand], register: u64, part: Operand) {
    if let Some(word) = words.get_mut(register as usize) {
        *word = or(b, *word, part);
    }
}

fn or(b: &mut Builder, before: Operand, part: Operand) -> Operand {
    match before {
        Operand::U32(0) => part,
        before => b.binary(Binary::Or, before, part),
    }
}

const fn ones(bits: u64) -> u32 {
    ((1u64 << bits) - 1) as u32
}

/// Sources and conditions that are in registers already.
pub(super) struct Moves<'g> {
    pub(super) values: Values,
    arrays: &'g [Array],
    conditions: HashMap<Condition, Operand>,
    loaded: HashMap<SourceWord, Operand>,
    /// By place in the destination.
    columns: HashMap<Affine, (Vec<Condition>, Affine)>,
}

impl<'g> Moves<'g> {
    pub(super) fn new(arrays: &'g [Array]) -> Self {
        Self {
            values: Values::default(),
            arrays,
            conditions: HashMap::new(),
            loaded: HashMap::new(),
            columns: HashMap::new(),
        }
    }

    /// Whether all conditions hold; true if there are none.
    pub(super) fn all(&mut self, b: &mut Builder, conditions: &[Condition]) -> Operand {
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

    /// A code, assembled from its slices.
    pub(super) fn code(&mut self, b: &mut Builder, slices: &[Slice]) -> Operand {
        let mut code = Operand::U32(0);
        for slice in slices {
            let word = self.word(b, &slice.source);
            let word = b.shr(word, slice.from as u32);
            let bits = if slice.bits == REGISTER { word } else { b.and(word, ones(slice.bits)) };
            let part = b.shl(bits, slice.low as u32);
            code = or(b, code, part);
        }
        code
    }

    /// The source's word, shifted by the variable part of its shift.
    fn word(&mut self, b: &mut Builder, source: &SourceWord) -> Operand {
        if let Some(word) = self.loaded.get(source) {
            return *word;
        }
        let plain = SourceWord { shift: Affine::default(), ..source.clone() };
        let word = match self.loaded.get(&plain) {
            Some(word) => *word,
            None => self.load(b, &plain),
        };
        let shift = self.values.operand(b, &source.shift);
        let shifted = b.shr(word, shift);
        self.loaded.insert(source.clone(), shifted);
        shifted
    }

    fn load(&mut self, b: &mut Builder, source: &SourceWord) -> Operand {
        let Some(array) = self.arrays.get(source.array) else { return Operand::U32(0) };
        let index = self.values.operand(b, &source.word.varying());
        let from = Address::new(array.buffer, index).plus(source.word.constant as u32);
        let mask = match self.all(b, &source.conditions) {
            Operand::Pred(true) => None,
            condition => Some(Mask::or_zero(condition)),
        };
        let word = b.load_as(Type::U32, from, width(array.word), mask, Cache::Constant);
        let word = word.first().map_or(Operand::U32(0), |word| (*word).into());
        self.loaded.insert(source.clone(), word);
        word
    }
}
