//! Numbers that rows and groups of columns share: where they lie natively, what a lane reads of them
//! in a turn, and how that becomes f32.
//!
//! A product's lane holds rows g and g + 8 of a tile, so their numbers lie side by side, those of a
//! turn's groups one pair after another: whatever a lane needs of a turn is one piece of memory.
//! Where several rows share a number (blocks), it lies once, as f32.

use quantloom_dsl::format::{BF16, F16, FloatFormat, NUMBER_F32, Number, Variant};
use quantloom_dsl::layout::{Component, Grain, Grains};

use super::Problem;
use super::dequantise::Scales;
use crate::ir::{Binary, Builder, Half, Operand, Reg, Side, Ternary, Unary};
use crate::target::Feature;

/// What the numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A component of the scheme, its values kept.
    Component(Component),
    /// The product of all scales that change along K.
    Scale,
    /// `shift - scale * (zero + add)`, where decoding leaves `add` on each code.
    Addend,
}

/// Numbers that rows and groups of columns share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grouped {
    /// What they are.
    pub what: What,
    /// Their native type.
    pub number: Number,
    /// Rows that share one: 1, or whole tiles.
    pub rows: u32,
    /// Columns that share one.
    pub columns: u32,
    /// Neighbouring groups that the lanes of a row share out, where each needs those of its own
    /// columns alone; 1 where all of them need all.
    pub apart: u32,
}

impl Grouped {
    /// Numbers as they are stored; where several rows share one, as f32. `None` if tiles of rows do
    /// not fit into groups, or the type has no way to f32.
    pub(super) fn stored(
        what: What,
        number: Number,
        (rows, columns): (u32, u32),
        tile: u32,
    ) -> Option<Self> {
        let fits = rows == 1 || rows.is_multiple_of(tile);
        let readable = is_read(number);
        let number = if rows == 1 { number } else { NUMBER_F32 };
        (readable && fits).then_some(Self { what, number, rows, columns, apart: 1 })
    }

    /// Numbers that are computed when a weight is prepared: f32, one a row.
    pub(super) const fn computed(what: What, columns: u32) -> Self {
        Self { what, number: NUMBER_F32, rows: 1, columns, apart: 1 }
    }

    /// The native layout, for [`Grouped::grains`].
    pub fn layout(&self, turn: u32) -> String {
        let digit = |stride, size| match (stride, size) {
            (_, 1) => String::new(),
            (1, size) => format!("g:{size}, "),
            (stride, size) => format!("g/{stride}:{size}, "),
        };
        if self.rows > 1 {
            return "[g, n]".to_owned();
        }
        let (of_lane, of_lanes) = (digit(self.apart, self.of_lane(turn)), digit(1, self.apart));
        format!("[n/8:2, {of_lane}{of_lanes}n:8, g, n]")
    }

    /// The same, with groups that the lanes of a row share out as they share out columns.
    pub(super) const fn shared_out(self, apart: u32) -> Self {
        Self { apart, ..self }
    }

    /// Groups of a turn that a lane needs.
    fn of_lane(&self, turn: u32) -> u32 {
        self.of_turn(turn) / self.apart
    }

    /// Bits of a number, and how many rows and columns share it.
    pub fn grains(&self) -> Grains {
        let (rows, cols) = (Grain::Each(self.rows), Grain::Each(self.columns));
        Grains { bits: self.number.bits(), rows, cols }
    }

    /// Groups of columns that begin in a turn, 1 if a turn is a part of one.
    pub fn of_turn(&self, turn: u32) -> u32 {
        (turn / self.columns).max(1)
    }

    /// Words of the buffer.
    pub(super) fn words(&self, problem: &Problem) -> [u32; 2] {
        let groups = problem.k.div_ceil(self.columns);
        if self.rows > 1 {
            return [problem.n.div_ceil(self.rows), groups];
        }
        let turns = groups.div_ceil(self.of_turn(problem.turn));
        [problem.row_tiles(), turns * self.tile_words(problem)]
    }

    /// Bits that a lane reads of a turn.
    fn lane_bits(&self, turn: u32) -> u32 {
        let pair = if self.rows == 1 { 2 } else { 1 };
        pair * self.of_lane(turn) * self.number.bits()
    }

    /// Words that a lane reads of a turn; two lanes may share one.
    pub(super) fn lane_words(&self, problem: &Problem) -> u32 {
        self.lane_bits(problem.turn).div_ceil(32)
    }

    /// Words of a tile of rows in a turn.
    pub(super) fn tile_words(&self, problem: &Problem) -> u32 {
        if self.rows > 1 {
            return self.of_turn(problem.turn);
        }
        self.lane_bits(problem.turn) * self.apart * problem.plan.native.rows / 64
    }

    /// The word of a tile where this lane's numbers lie.
    pub(super) fn lane_word(&self, b: &mut Builder, problem: &Problem, lane: Operand) -> Operand {
        if self.rows > 1 {
            return 0u32.into();
        }
        let pair = self.pair_of_lane(b, problem, lane);
        match self.lane_bits(problem.turn) {
            bits @ ..32 => b.div(pair, 32 / bits),
            bits => b.mul(pair, bits / 32),
        }
    }

    /// By how much that word is to be shifted down for this lane; `None` if not at all.
    pub(super) fn lane_shift(
        &self,
        b: &mut Builder,
        problem: &Problem,
        lane: Operand,
    ) -> Option<Operand> {
        let bits = self.lane_bits(problem.turn);
        if self.rows > 1 || bits >= 32 {
            return None;
        }
        let pair = self.pair_of_lane(b, problem, lane);
        let place = b.rem(pair, 32 / bits);
        Some(b.mul(place, bits))
    }

    /// Which of the tile's pieces this lane reads: that of its pair of rows, and of its columns.
    fn pair_of_lane(&self, b: &mut Builder, problem: &Problem, lane: Operand) -> Operand {
        b.div(lane, problem.row_lanes() / self.apart)
    }

    /// The first word of a tile's numbers of a turn, counted from those of turn 0; all groups of a
    /// turn, or the one that it is a part of.
    pub(super) fn turn_word(&self, b: &mut Builder, problem: &Problem, turn: Operand) -> Operand {
        let group = b.div(turn, (self.columns / problem.turn).max(1));
        b.mul(group, self.tile_words(problem))
    }

    /// The word of turn 0 of a tile.
    pub(super) fn tile_word(&self, b: &mut Builder, problem: &Problem, tile: Operand) -> Operand {
        let [_, row] = self.words(problem);
        let tile = b.div(tile, (self.rows / problem.plan.native.rows).max(1));
        b.mul(tile, row)
    }

    /// The group of a turn that a run belongs to.
    pub(super) fn of_run(&self, problem: &Problem, run: u32) -> u32 {
        run * problem.run() / self.columns.min(problem.turn)
    }

    /// Which of this lane's groups a step of the product belongs to.
    pub(super) fn of_step(&self, problem: &Problem, step: u32) -> u32 {
        step * problem.product.shape[2] / self.columns.max(problem.shared_columns())
    }

    /// Of a turn, what its decoding multiplies with, if it does.
    pub(super) fn of_weights(
        &self,
        b: &mut Builder,
        problem: &Problem,
        (words, shift): (&[Reg], Option<Operand>),
    ) -> Option<Scales> {
        let (half, absorbed) = (problem.half()?, problem.plan.scale.absorbed?);
        let groups = 0..self.of_lane(problem.turn).max(1);
        let pairs: Vec<Operand> =
            groups.map(|group| self.halves(b, (words, shift), group, half)).collect();
        let steps = 0..problem.turn / problem.product.shape[2];
        let of_step = steps.map(|step| self.of_step(problem, step) as usize).collect();
        Some(Scales::of_pairs(b, half, &pairs, absorbed.exponent, of_step))
    }

    /// The numbers of rows g and g + 8 in a group of a turn as 16-bit floats side by side, which hold
    /// them exactly.
    fn halves(
        &self,
        b: &mut Builder,
        (words, shift): (&[Reg], Option<Operand>),
        group: u32,
        half: Half,
    ) -> Operand {
        if self.number == Number::E8m0 && half == Half::Bf16 && self.rows == 1 {
            let first = group * 2 * self.number.bits();
            let mut word: Operand = words[(first / 32) as usize].into();
            if let Some(shift) = shift {
                word = b.shr(word, shift);
            }
            return powers(b, word, first % 32 / 8);
        }
        let [low, high] = self.values(b, (words, shift), group, 0);
        b.binary(Binary::Pack(half), low, high)
    }

    /// Both numbers of a group in a register, as they lie there, for numbers of 16 bits.
    pub(super) fn pair(&self, words: &[Reg], group: u32) -> Reg {
        words[group as usize]
    }

    /// The numbers of rows g and g + 8 in a group of a turn as f32, times a power of two.
    pub(super) fn values(
        &self,
        b: &mut Builder,
        (words, shift): (&[Reg], Option<Operand>),
        group: u32,
        exponent: i32,
    ) -> [Operand; 2] {
        let bits = self.number.bits();
        let rows = if self.rows == 1 { 2 } else { 1 };
        let first = group * rows * bits;
        let mut word: Operand = words[(first / 32) as usize].into();
        if let Some(shift) = shift {
            word = b.shr(word, shift);
        }
        let at = first % 32;
        let scaled = |b: &mut Builder, value: Operand| match exponent {
            0 => value,
            _ => b.mul_f32(value, 2f32.powi(exponent)),
        };
        if rows == 1 {
            let value = number(b, self.number, word, at);
            return [scaled(b, value); 2];
        }
        if let Some(values) = pair_of_e4m3(b, self.number, word, at) {
            return values.map(|value| scaled(b, value));
        }
        let next: Operand = match at + bits {
            32 => words[(first / 32) as usize + 1].into(),
            _ => word,
        };
        let places = [(word, at), (next, (at + bits) % 32)];
        places.map(|(word, at)| {
            let value = number(b, self.number, word, at);
            scaled(b, value)
        })
    }
}

/// Two neighbouring e4m3 numbers by the conversion instruction.
fn pair_of_e4m3(b: &mut Builder, number: Number, word: Operand, at: u32) -> Option<[Operand; 2]> {
    let e4m3 = number == Number::Float(quantloom_dsl::format::E4M3);
    if !e4m3 || !b.target().has(Feature::ConvertE4m3) {
        return None;
    }
    let side = if at == 0 { Side::Low } else { Side::High };
    let halves = b.unary(Unary::F16x2FromE4m3(side), word);
    Some([Side::Low, Side::High].map(|side| b.half_to_f32(Half::F16, side, halves)))
}

/// Whether there is a way from a type to f32.
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

/// The f32 value of a number whose lowest bit is at this place of a word.
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

/// `2^(code - 127)` of an e8m0 code: its bits are the exponent of f32, but for code 0, whose number
/// is subnormal there, and 255, a NaN, which becomes infinity: a weight with such a scale has rows of
/// infinities and NaNs.
fn power(b: &mut Builder, word: Operand, at: u32) -> Operand {
    let moved = if at > 23 { b.shr(word, at - 23) } else { b.shl(word, 23 - at) };
    let bits = b.and(moved, 0x7f80_0000u32);
    let bits = b.binary(Binary::Max, bits, 0x0040_0000u32);
    b.unary(Unary::AsF32, bits)
}

/// `2^(code - 127)` of two neighbouring e8m0 codes from a byte of a word on, in bf16, whose exponents
/// are as wide; code 0 is its subnormal 2^-127, and 255, a NaN, becomes infinity.
fn powers(b: &mut Builder, word: Operand, byte: u32) -> Operand {
    // Each to the upper byte of a half, one place too high.
    let select = 0x0404 | byte << 4 | (byte + 1) << 12;
    let moved = b.ternary(Ternary::Permute, word, 0u32, select);
    let powers = b.shr(moved, 1u32);
    b.binary(Binary::MaxPacked(Half::Bf16), powers, 0x0040_0040u32)
}

/// A small float: sign and magnitude in their places of f32, which is too small by the difference of
/// the biases.
fn float(b: &mut Builder, format: FloatFormat, word: Operand, at: u32) -> Operand {
    let bits = format.bits();
    let magnitude = (1u32 << (bits - 1)) - 1;
    let topped = b.shl(word, 32 - bits - at);
    let sign = b.and(topped, 0x8000_0000u32);
    let low = b.shr(word, at);
    let low = b.and(low, magnitude);
    let placed = b.shl(low, 23 - u32::from(format.mantissa_bits));
    let value = b.binary(Binary::Or, sign, placed);
    let value = b.unary(Unary::AsF32, value);
    let value = b.mul_f32(value, 2f32.powi(127 - format.bias()));
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

#[cfg(all(test, feature = "sim"))]
mod tests;
