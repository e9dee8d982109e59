//! Group parameters of w: their native layout, a lane's reads in a k-tile, their conversion to f32.
//!
//! The values for the rows of one lane are adjacent, and so are the groups of a k-tile: everything that a
//! lane needs for a k-tile is contiguous. The lane's rows are those of its weights or those of its sums,
//! which may differ by the instruction. If several rows share a value (blocks), it is stored once, as f32.
//! The groups of a row are padded to whole k-tiles, so that a lane reads those of a k-tile without a bound
//! check at the end of K.

use quantloom_dsl::format::{BF16, F16, FloatFormat, NUMBER_F32, Number, Variant};
use quantloom_dsl::layout::{Component, Granularity, GroupSize};

use super::dequantise::{LaneGroups, Scales, in_register, step_of_register};
use super::lanes::{OfLane, Scaled};
use super::mapping::MainLoop;
use super::problem::Problem;
use crate::ir::{Binary, Builder, Half, MatrixScale, Operand, Reg, Side, Ternary, Unary};
use crate::target::{ConvertedCode, Feature};

/// Which group parameter of w a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamKind {
    /// A component of the scheme; its values are kept.
    Stored(Component),
    /// The same without signs, for an instruction that reads scales without them: the codes take the signs.
    Magnitudes(Component),
    /// The product of all scales that change along K.
    Scale,
    /// The zero-point correction, which multiplies the sum of x over a segment: see
    /// [`quantloom_dsl::ZeroPointCorrection`].
    ZeroPointCorrection,
}

/// One group parameter of w: a number for each group of rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupParams {
    /// Which parameter.
    pub kind: ParamKind,
    /// Their native type.
    pub number: Number,
    /// Rows that share a number: 1, or whole tiles.
    pub rows: u32,
    /// Columns that share a number.
    pub columns: u32,
    /// Consecutive groups that are distributed over the lanes of a row, if each lane needs only the
    /// groups of its own columns; 1 if every lane needs all of them.
    pub apart: u32,
    /// Whether the numbers apply to weights during dequantisation, and not to sums.
    pub of_weights: bool,
}

impl GroupParams {
    /// A stored component; as f32 if several rows share a number. `None` if tiles of rows do not divide
    /// groups, if neither k-tiles divide groups nor groups k-tiles, or if the type cannot be converted
    /// to f32.
    pub(super) fn stored(
        kind: ParamKind,
        number: Number,
        (rows, columns): (u32, u32),
        (tile, k_tile): (u32, u32),
    ) -> Option<Self> {
        let along_k = k_tile.is_multiple_of(columns) || columns.is_multiple_of(k_tile);
        let fits = along_k && (rows == 1 || rows.is_multiple_of(tile));
        let readable = is_read(number);
        let number = if rows == 1 { number } else { NUMBER_F32 };
        let this = Self { kind, number, rows, columns, apart: 1, of_weights: false };
        (readable && fits).then_some(this)
    }

    /// A parameter that is computed when a weight is prepared: f32, one per row.
    pub(super) const fn computed(kind: ParamKind, columns: u32) -> Self {
        Self { kind, number: NUMBER_F32, rows: 1, columns, apart: 1, of_weights: false }
    }

    /// The native layout, for [`GroupParams::granularity`].
    pub fn layout(&self, problem: &Problem) -> String {
        let main = MainLoop::new(problem);
        let digit = |axis: char, stride, size| match (stride, size) {
            (_, 1) => String::new(),
            (1, size) => format!("{axis}:{size}, "),
            (stride, size) => format!("{axis}/{stride}:{size}, "),
        };
        let of_lane = digit('g', self.apart, self.of_lane(main.k_tile()));
        if self.rows > 1 {
            return format!("[{of_lane}g, n]");
        }
        let of_lanes = digit('g', 1, self.apart);
        let rows = main.rows(self);
        let of_rows = digit('n', rows.stride, rows.len);
        let sets = match self.is_of_product(&main) {
            true => {
                let (_, digits) = rows.first.in_order_of_lanes();
                digits.into_iter().map(|(stride, size)| digit('n', stride, size)).collect()
            }
            false => digit('n', rows.apart(), main.problem.plan.native.rows / rows.len),
        };
        format!("[{of_rows}{of_lane}{of_lanes}{sets}g, n]")
    }

    /// The same, with groups distributed over the lanes of a row as columns are.
    pub(super) const fn shared_out(self, apart: u32) -> Self {
        Self { apart, ..self }
    }

    /// The same for a product whose columns are in order: every lane needs all groups of a k-tile.
    pub(super) const fn in_order(self) -> Self {
        self.shared_out(1)
    }

    /// The power of two that gives a number, as decoded codes are multiplied with it or as it is added, the unit of weights.
    pub(super) fn exponent_of_unit(&self, problem: &Problem) -> i32 {
        match self.kind {
            ParamKind::Stored(Component::Shift(_)) => problem.correction_exponent(),
            // Has the unit of weights already.
            ParamKind::ZeroPointCorrection => 0,
            // What decoding leaves values too small.
            _ => problem.scaled_exponent() - problem.plan.dequant.encoding().1,
        }
    }

    /// The place of a group of a k-tile among those of [`Self::in_order`].
    pub(super) fn place_of_group(&self, main: &MainLoop<'_>, group: u32) -> u32 {
        group / self.apart + group % self.apart * self.of_lane(main.k_tile())
    }

    /// Whether each half of a k-tile has groups of its own, every other one among a lane's.
    pub(super) fn has_half_k_tiles(&self, main: &MainLoop<'_>) -> bool {
        main.k_tile_chunks() == 2 && self.of_lane(main.k_tile()) == 2
    }

    /// Bits of a group for a lane's rows.
    pub(super) fn group_bits(&self, main: &MainLoop<'_>) -> u32 {
        self.of_group(main) * self.number.bits()
    }

    /// Groups of a k-tile that one lane needs.
    fn of_lane(&self, k_tile: u32) -> u32 {
        self.of_k_tile(k_tile) / self.apart
    }

    /// Bits of a number, and the rows and columns that share it.
    pub fn granularity(&self) -> Granularity {
        let (rows, cols) = (GroupSize::Each(self.rows), GroupSize::Each(self.columns));
        Granularity { bits: self.number.bits(), rows, cols }
    }

    /// Groups that begin in a k-tile; 1 if a k-tile is part of a group.
    pub fn of_k_tile(&self, k_tile: u32) -> u32 {
        (k_tile / self.columns).max(1)
    }

    /// Words of the buffer.
    pub(super) fn words(&self, problem: &Problem) -> [u32; 2] {
        let groups = problem.k.div_ceil(self.columns);
        let k_tiles = groups.div_ceil(self.of_k_tile(problem.k_tile()));
        let rows = if self.rows > 1 { problem.n.div_ceil(self.rows) } else { problem.row_tiles() };
        [rows, k_tiles * self.tile_words(problem)]
    }

    /// Words of the buffer of one matrix.
    pub(super) fn matrix_words(&self, problem: &Problem) -> u32 {
        let [rows, row] = self.words(problem);
        rows * row
    }

    /// Numbers that a lane reads of a group.
    fn of_group(&self, main: &MainLoop<'_>) -> u32 {
        if self.rows == 1 { main.rows(self).len } else { 1 }
    }

    /// Bits that a lane reads of a k-tile.
    fn lane_bits(&self, main: &MainLoop<'_>) -> u32 {
        self.of_group(main) * self.of_lane(main.k_tile()) * self.number.bits()
    }

    /// Words that a lane reads of a k-tile; two lanes may share one.
    pub(super) fn lane_words(&self, main: &MainLoop<'_>) -> u32 {
        self.lane_bits(main).div_ceil(32)
    }

    /// Words of a tile of rows in a k-tile.
    pub(super) fn tile_words(&self, problem: &Problem) -> u32 {
        let groups = self.of_k_tile(problem.k_tile());
        if self.rows > 1 {
            return groups;
        }
        groups * self.number.bits() * problem.plan.native.rows / 32
    }

    /// The word of a tile that holds this lane's numbers.
    pub(super) fn lane_word(&self, b: &mut Builder, main: &MainLoop<'_>, lane: Operand) -> Operand {
        if self.rows > 1 {
            return 0u32.into();
        }
        let share = self.share_of_lane(main);
        let word = match self.lane_bits(main) {
            bits @ ..32 => share.over(32 / bits),
            bits => share.times(bits / 32),
        };
        word.of(b, lane)
    }

    /// The shift of this lane's numbers in that word; `None` if the lane uses whole words.
    pub(super) fn lane_shift(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        lane: Operand,
    ) -> Option<Operand> {
        let bits = self.lane_bits(main);
        if self.rows > 1 || bits >= 32 {
            return None;
        }
        let share = self.share_of_lane(main).of(b, lane);
        let place = b.rem(share, 32 / bits);
        Some(b.mul(place, bits))
    }

    /// Whether the product's instruction reads the numbers: rows are then in the order of the lanes that supply them, so
    /// that lanes which read together read adjacent words.
    fn is_of_product(&self, main: &MainLoop<'_>) -> bool {
        self.of_weights && main.scaled().is_some()
    }

    /// The number of a lane's share of a tile: by its rows and its columns.
    fn share_of_lane(&self, main: &MainLoop<'_>) -> OfLane {
        let part = main.part().over(main.row_lanes() / self.apart);
        let rows = main.rows(self);
        let number = match self.is_of_product(main) {
            true => rows.first.in_order_of_lanes().0,
            false => rows.number(),
        };
        number.times(self.apart).plus(&part)
    }

    /// The first word of a k-tile within a tile of rows, counted from k-tile 0: of all groups of the
    /// k-tile, or of the group that contains it.
    pub(super) fn k_tile_word(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        k_tile: Operand,
    ) -> Operand {
        let group = b.div(k_tile, (self.columns / main.k_tile()).max(1));
        b.mul(group, self.tile_words(main.problem))
    }

    /// The first word of a tile of rows, at k-tile 0.
    pub(super) fn tile_word(&self, b: &mut Builder, problem: &Problem, tile: Operand) -> Operand {
        let [_, row] = self.words(problem);
        let tile = b.div(tile, (self.rows / problem.plan.native.rows).max(1));
        b.mul(tile, row)
    }

    /// The group of a k-tile that contains a segment.
    pub(super) fn of_segment(&self, main: &MainLoop<'_>, segment: u32) -> u32 {
        segment * main.segment() / self.columns.min(main.k_tile())
    }

    /// The lane's group that contains a step of the product.
    pub(super) fn of_step(&self, main: &MainLoop<'_>, step: u32) -> u32 {
        step * main.step() / self.columns.max(main.shared_columns())
    }

    /// The scales for each step of a k-tile, for an instruction that scales.
    pub(super) fn of_product(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        (words, shift): (&[Reg], Option<Operand>),
    ) -> Vec<MatrixScale> {
        let words = words.iter().map(|&word| match shift {
            Some(shift) => {
                let moved = b.shr(word, shift);
                in_register(b, moved)
            }
            None => word,
        });
        let words: Vec<Reg> = words.collect();
        let of_lane = main.scaled().map_or(1, Scaled::of_lane);
        let of_step = |step: u32| {
            let (word, bit) = self.place(1, step * of_lane, 0);
            MatrixScale { from: words[word], byte: (bit / 8) as u8 }
        };
        (0..main.k_tile() / main.step()).map(of_step).collect()
    }

    /// The numbers of a lane's rows (at most two) in a group of a k-tile, as exact 16-bit floats in one
    /// register: two rows, or one row twice. Powers of two are times another one if `power` is there:
    /// in f16, which does not have the range of their codes ([`Self::takes_power`]), and in bf16 those of a range.
    pub(super) fn halves(
        &self,
        b: &mut Builder,
        rows: u32,
        (words, shift): (&[Reg], Option<Operand>),
        (group, half, power): (u32, Half, Option<Power>),
    ) -> Operand {
        let packed = b.target().has(Feature::PackedBf16Fma) || half == Half::F16;
        let flushes = half == Half::Bf16 || power.is_some_and(|power| power.flushes);
        if self.number == Number::E8m0 && self.rows == 1 && packed && flushes {
            let [first, last] = [0, rows - 1].map(|row| self.place(rows, group, row));
            let word = shifted(b, words[first.0], shift);
            let bytes = [first.1 / 8, last.1 / 8];
            return match half {
                Half::Bf16 => match power {
                    Some(power) => powers_times(b, word, bytes, power.exponent),
                    None => powers(b, word, bytes),
                },
                Half::F16 => powers_of_f16(b, word, bytes, power.map_or(0, |power| power.exponent)),
            };
        }
        if self.rows == 1 && half.number() == self.number {
            let [(word, first), (_, last)] = [0, rows - 1].map(|row| self.place(rows, group, row));
            let word = shifted(b, words[word], shift);
            return match (first, last) {
                (0, 16) => word,
                (0, _) => b.ternary(Ternary::Permute, word, word, 0x1010u32),
                _ => b.ternary(Ternary::Permute, word, word, 0x3232u32),
            };
        }
        if half == Half::F16 && self.rows == 1 && rows == 2 {
            let (word, at) = self.place(rows, group, 0);
            let word = shifted(b, words[word], shift);
            if let Some(pair) = pair_of_e4m3(b, self.number, word, at) {
                return pair;
            }
        }
        let exponent = power.map_or(0, |power| power.exponent);
        let values = self.values(b, rows, (words, shift), group, exponent);
        exact_pair(b, half, [values[0], values[values.len() - 1]])
    }

    /// Whether [`Self::halves`] takes the power of two, as a multiplication in f16 after it would not bring back what was lost.
    pub(super) fn takes_power(&self, half: Half) -> bool {
        self.number == Number::E8m0 && half == Half::F16 && self.rows == 1
    }

    /// The numbers of a lane's rows in a group, of 16 bits as they are stored, each twice in a register.
    pub(super) fn twice(
        &self,
        b: &mut Builder,
        rows: u32,
        (words, shift): (&[Reg], Option<Operand>),
        group: u32,
    ) -> Vec<Operand> {
        let row = |row| {
            let (word, at) = self.place(rows, group, row);
            let word = shifted(b, words[word], shift);
            let select = if at == 0 { 0x1010u32 } else { 0x3232 };
            b.ternary(Ternary::Permute, word, word, select)
        };
        (0..rows).map(row).collect()
    }

    /// The word and the bit at which the number of a row and a group begins, for a lane with `rows`
    /// rows.
    fn place(&self, rows: u32, group: u32, row: u32) -> (usize, u32) {
        let first = (group * rows + row) * self.number.bits();
        ((first / 32) as usize, first % 32)
    }

    /// The numbers of a lane's `rows` rows in a group of a k-tile as f32, times a power of two.
    pub(super) fn values(
        &self,
        b: &mut Builder,
        rows: u32,
        (words, shift): (&[Reg], Option<Operand>),
        group: u32,
        exponent: i32,
    ) -> Vec<Operand> {
        let scaled = |b: &mut Builder, value: Operand| match exponent {
            0 => value,
            _ => b.mul_f32(value, 2f32.powi(exponent)),
        };
        // Rows that share a number have one word.
        let there = if self.rows == 1 { rows } else { 1 };
        let (mut values, mut read) = (Vec::new(), None);
        while (values.len() as u32) < there {
            let (number_of_word, at) = self.place(there, group, values.len() as u32);
            let word = match read {
                Some((known, word)) if known == number_of_word => word,
                _ => shifted(b, words[number_of_word], shift),
            };
            read = Some((number_of_word, word));
            let pair = if there > 1 { pair_of_e4m3(b, self.number, word, at) } else { None };
            match pair {
                Some(pair) => values.extend([Side::Low, Side::High].map(|side| {
                    let value = b.half_to_f32(Half::F16, side, pair);
                    scaled(b, value)
                })),
                None => {
                    let value = number(b, self.number, word, at);
                    values.push(scaled(b, value));
                }
            }
        }
        values.resize(rows as usize, values[0]);
        values
    }
}

/// The f32 whose last digit is 1.
const UNITS_F32: f32 = 8_388_608.0;

/// A power of two that multiplies powers of two in f16.
#[derive(Clone, Copy)]
pub(super) struct Power {
    pub(super) exponent: i32,
    /// Whether products below 2^-14 may be 0, and not numbers of fewer digits.
    pub(super) flushes: bool,
}

/// What a lane has of a group parameter in a k-tile.
#[derive(Clone)]
pub(super) struct LaneNumbers {
    pub(super) of: GroupParams,
    /// The words that hold the numbers.
    pub(super) words: Vec<Reg>,
    /// The shift of this lane's numbers in a word; `None` if the lane uses whole words.
    pub(super) shift: Option<Operand>,
}

/// What a lane has of numbers of groups in a k-tile that are products of levels.
#[derive(Clone)]
pub(super) struct LaneLevels {
    /// The level of the groups.
    pub(super) finest: LaneNumbers,
    /// The level of larger groups, one of which has the k-tile.
    pub(super) coarse: Option<LaneNumbers>,
}

impl LaneLevels {
    /// The scales that the dequantisation of a k-tile multiplies with, if any, and the terms that it adds.
    pub(super) fn scales_of_weights(
        self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        term: Option<Self>,
    ) -> Option<Scales> {
        main.problem.plan.scale.folded?;
        let of = self.finest.of;
        let places = (0..of.of_lane(main.k_tile()).max(1)).collect();
        let (steps, registers) = (main.k_tile() / main.step(), main.lanes().a.registers);
        let step = |number| step_of_register(main, number as usize * registers);
        let of_step = (0..steps).map(|number| of.of_step(main, step(number) as u32) as usize);
        let of_step = of_step.collect();
        Scales::new(b, main, (self, term), LaneGroups { places, of_step })
    }
}

impl LaneLevels {
    /// The numbers of a lane's `rows` rows in each of the lane's groups of a k-tile as f32, in the unit that weights have ([`Problem::scaled_exponent`]),
    /// and what multiplies those of a row, if they have two levels.
    pub(super) fn factors(
        &self,
        b: &mut Builder,
        main: &MainLoop<'_>,
        rows: u32,
    ) -> (Vec<Vec<Operand>>, Option<Vec<Operand>>) {
        let exponent = self.finest.of.exponent_of_unit(main.problem);
        let places = 0..self.finest.of.of_lane(main.k_tile());
        match &self.coarse {
            None => {
                let of = |place| self.finest.values(b, rows, (place, exponent));
                (places.map(of).collect(), None)
            }
            Some(coarse) => {
                let integers = |place| self.finest.integers(b, rows, place);
                let integers = places.map(integers).collect();
                (integers, Some(coarse.values(b, rows, (0, exponent))))
            }
        }
    }
}

impl LaneNumbers {
    /// As [`GroupParams::halves`].
    pub(super) fn halves(
        &self,
        b: &mut Builder,
        rows: u32,
        place: (u32, Half, Option<Power>),
    ) -> Operand {
        self.of.halves(b, rows, (&self.words, self.shift), place)
    }

    /// As [`GroupParams::values`].
    pub(super) fn values(
        &self,
        b: &mut Builder,
        rows: u32,
        (place, exponent): (u32, i32),
    ) -> Vec<Operand> {
        self.of.values(b, rows, (&self.words, self.shift), place, exponent)
    }

    /// The integers, of a byte, of a lane's rows in a group, as f32.
    fn integers(&self, b: &mut Builder, rows: u32, place: u32) -> Vec<Operand> {
        let integer = |row| {
            let (word, at) = self.of.place(rows, place, row);
            let (word, more) = self.unsigned_bytes(b, word);
            // The byte under the exponent of 2^23, whose last digit is 1.
            let bits = b.ternary(Ternary::Permute, word, UNITS_F32.to_bits(), 0x7540 | (at / 8));
            let value = b.unary(Unary::AsF32, bits);
            b.add_f32(value, -(UNITS_F32 + more as f32))
        };
        (0..rows).map(integer).collect()
    }

    /// A word of integers of a byte, each with a constant added that leaves none below 0, and the constant.
    fn unsigned_bytes(&self, b: &mut Builder, word: usize) -> (Operand, u32) {
        let word = shifted(b, self.words[word], self.shift);
        match self.of.number {
            Number::Int(_) => (b.xor(word, 0x8080_8080u32), 128),
            _ => (word, 0),
        }
    }

    /// The integers, of a byte, of a lane's first and last row in a group: each the bits of a 16-bit float with this upper byte,
    /// and a constant that integers are too large.
    pub(super) fn bytes_of_rows(
        &self,
        b: &mut Builder,
        rows: u32,
        (place, upper): (u32, u32),
    ) -> (Operand, u32) {
        let [(word, first), (_, last)] = [0, rows - 1].map(|row| self.of.place(rows, place, row));
        let (word, more) = self.unsigned_bytes(b, word);
        let select = 0x4040 | (first / 8) | ((last / 8) << 8);
        (b.ternary(Ternary::Permute, word, upper, select), more)
    }
}

/// A word, shifted down for this lane.
fn shifted(b: &mut Builder, word: Reg, shift: Option<Operand>) -> Operand {
    match shift {
        Some(shift) => b.shr(word, shift),
        None => word.into(),
    }
}

/// Two f32 that are exact 16-bit floats, packed into one register.
pub(super) fn exact_pair(b: &mut Builder, half: Half, [low, high]: [Operand; 2]) -> Operand {
    if half == Half::Bf16 && !b.target().has(Feature::PackedBf16Fma) {
        // The lower halves are 0, and a rounding conversion may cost several operations.
        let [low, high] = [low, high].map(|value| b.unary(Unary::AsU32, value));
        return b.ternary(Ternary::Permute, low, high, 0x7632u32);
    }
    b.binary(Binary::Pack(half), low, high)
}

/// Two adjacent e4m3 numbers in f16, by the conversion instruction.
fn pair_of_e4m3(b: &mut Builder, number: Number, word: Operand, at: u32) -> Option<Operand> {
    let e4m3 = number == Number::Float(quantloom_dsl::format::E4M3);
    if !e4m3 || !b.target().has(Feature::ConvertE4m3) {
        return None;
    }
    Some(b.unary(Unary::F16x2From(ConvertedCode::E4m3, (at / 16) as u8), word))
}

/// Whether a type can be converted to f32.
pub(super) fn is_read(number: Number) -> bool {
    match number {
        Number::E8m0 => true,
        Number::Float(format) => {
            matches!(format.bits(), 8 | 16 | 32)
                && (format.bits() > 8 || format.variant != Variant::Ieee)
        }
        Number::Uint(_) | Number::Int(_) => false,
    }
}

/// The f32 value of the number whose lowest bit is bit `at` of a word.
pub(super) fn number(b: &mut Builder, number: Number, word: Operand, at: u32) -> Operand {
    let side = if at == 0 { Side::Low } else { Side::High };
    match number {
        NUMBER_F32 => b.unary(Unary::AsF32, word),
        Number::Float(BF16) => b.half_to_f32(Half::Bf16, side, word),
        Number::Float(F16) => b.half_to_f32(Half::F16, side, word),
        Number::Float(format) => float(b, format, word, at),
        Number::E8m0 => power(b, word, at),
        Number::Uint(_) | Number::Int(_) => b.unary(Unary::F32FromU32, word),
    }
}

/// `2^(code - 127)` of an e8m0 code: its bits are the exponent of f32, except for code 0, whose value is
/// subnormal in f32, and 255, NaN, which becomes infinity: rows with such a scale are infinities and
/// NaNs.
fn power(b: &mut Builder, word: Operand, at: u32) -> Operand {
    let moved = if at > 23 { b.shr(word, at - 23) } else { b.shl(word, 23 - at) };
    let bits = b.and(moved, 0x7f80_0000u32);
    let bits = b.binary(Binary::Max, bits, 0x0040_0000u32);
    b.unary(Unary::AsF32, bits)
}

/// `2^(code - 127)` of the e8m0 codes in two bytes of a word, in bf16, which has the same exponent
/// range; code 0 is its subnormal 2^-127, and 255, NaN, becomes infinity.
fn powers(b: &mut Builder, word: Operand, [low, high]: [u32; 2]) -> Operand {
    // Each to the upper byte of a half, one bit too high.
    let select = 0x0404 | low << 4 | high << 12;
    let moved = b.ternary(Ternary::Permute, word, 0u32, select);
    let powers = b.shr(moved, 1u32);
    b.binary(Binary::MaxPacked(Half::Bf16), powers, 0x0040_0040u32)
}

/// `2^(code - 127 + power)` of the e8m0 codes in two bytes of a word, in bf16, with a power of at least 1. Codes are no larger than
/// bf16 takes.
fn powers_times(b: &mut Builder, word: Operand, [low, high]: [u32; 2], power: i32) -> Operand {
    let codes = b.ternary(Ternary::Permute, word, 0u32, 0x4040 | low | high << 8);
    b.mad(codes, 1u32 << 7, (power as u32) << 7 | (power as u32) << 23)
}

/// `2^(code - 127 + power)` of the e8m0 codes in two bytes of a word, in f16: 0 where that is below 2^-14. Codes are no larger than f16
/// takes; NaN is larger.
fn powers_of_f16(b: &mut Builder, word: Operand, [low, high]: [u32; 2], power: i32) -> Operand {
    // The code of 2^-15, whose exponent in f16 is 0.
    let base = (112 - power) as u32 * 0x0001_0001;
    let codes = b.ternary(Ternary::Permute, word, 0u32, 0x4040 | low | high << 8);
    let codes = b.binary(Binary::MaxPacked(Half::F16), codes, base);
    let exponents = b.sub(codes, base);
    b.shl(exponents, 10u32)
}

/// A small float: sign and magnitude at their positions of f32, then corrected by the difference of the
/// biases.
fn float(b: &mut Builder, format: FloatFormat, word: Operand, at: u32) -> Operand {
    let bits = format.bits();
    let magnitude = (1u32 << (bits - 1)) - 1;
    let topped = b.shl(word, 32 - bits - at);
    let sign = b.and(topped, 0x8000_0000u32);
    let low = b.shr(word, at);
    let low = b.and(low, magnitude);
    let placed = b.shl(low, 23 - u32::from(format.mantissa_bits));
    let value = b.binary(Binary::Or, sign, placed);
    let value = match b.target().has(Feature::StrictF32) {
        true => {
            let value = b.unary(Unary::AsF32, value);
            b.mul_f32(value, 2f32.powi(127 - format.bias()))
        }
        false => rebased(b, format, placed, sign),
    };
    let nan = match format.variant {
        Variant::Fn => b.equal(low, magnitude),
        Variant::Fnuz => {
            let code = b.shr(word, at);
            let code = b.and(code, magnitude * 2 + 1);
            b.equal(code, magnitude + 1)
        }
        Variant::Ieee | Variant::Finite => return value,
    };
    b.select(nan, f32::NAN, value)
}

/// [`float`] without subnormal intermediate values: if the code is subnormal, its magnitude under a
/// larger exponent has an implicit one too many and is half as large; both are corrected.
fn rebased(b: &mut Builder, format: FloatFormat, placed: Operand, sign: Operand) -> Operand {
    let normal = b.add(placed, ((127 - format.bias()) as u32) << 23);
    let normal = b.unary(Unary::AsF32, normal);
    let over = b.add_f32(normal, -(2f32.powi(1 - format.bias())));
    let lack = b.binary(Binary::MinF32, over, 0.0f32);
    let value = b.add_f32(normal, lack);
    let value = b.unary(Unary::AsU32, value);
    let value = b.binary(Binary::Or, value, sign);
    b.unary(Unary::AsF32, value)
}

#[cfg(all(test, feature = "sim"))]
mod tests;
