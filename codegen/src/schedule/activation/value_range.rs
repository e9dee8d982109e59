//! The range of values that share a scale: smallest and largest, 0 included, NaN ignored.

use crate::ir::{
    Address, Binary, BufferId, Builder, Cache, Mask, Operand, Reg, Shuffle, Special, Type, Unary,
    Uniformity, Width, Word,
};

/// The range of some values.
#[derive(Clone, Copy)]
pub(super) struct ValueRange {
    /// The smallest; `None` if only magnitudes are needed.
    low: Option<Operand>,
    /// The largest, or the largest magnitude.
    high: Operand,
}

impl ValueRange {
    /// The range of values; `signed` if both ends are needed.
    pub(super) fn of(b: &mut Builder, values: &[Operand], signed: bool) -> Self {
        if signed {
            let low = tree(b, Binary::MinF32, values.to_vec());
            return Self { low: Some(low), high: tree(b, Binary::MaxF32, values.to_vec()) };
        }
        let magnitudes = values.iter().map(|value| b.unary(Unary::Abs, *value)).collect();
        Self { low: None, high: tree(b, Binary::MaxF32, magnitudes) }
    }

    /// The union of two ranges.
    fn with(self, b: &mut Builder, other: Self) -> Self {
        let low = self.low.zip(other.low);
        let low = low.map(|(low, other)| b.binary(Binary::MinF32, low, other));
        Self { low, high: b.binary(Binary::MaxF32, self.high, other.high) }
    }

    /// The range over a power of two of neighbouring lanes.
    pub(super) fn of_lanes(mut self, b: &mut Builder, lanes: u32) -> Self {
        if !b.can_shuffle(lanes) {
            return self.of_threads(b, lanes);
        }
        let mut by = lanes / 2;
        while by > 0 {
            let low = self.low.map(|low| b.shuffle(Shuffle::Xor, low, by));
            let high = b.shuffle(Shuffle::Xor, self.high, by);
            self = self.with(b, Self { low, high });
            by /= 2;
        }
        self
    }

    /// The range over the block, through shared memory; at most once per kernel.
    pub(super) fn of_block(self, b: &mut Builder, threads: u32) -> Self {
        let lanes = b.warp_size();
        if !b.can_shuffle(lanes) {
            return self.of_threads(b, threads);
        }
        let of_warp = self.of_lanes(b, lanes);
        let warps = threads / lanes;
        if warps == 1 {
            return of_warp;
        }
        let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
        // Each lane has the range of a warp; neighbouring lanes have those of all warps.
        let each = warps.next_power_of_two();
        let place = b.and(lane, each - 1);
        let (first, is_warp) = (b.equal(lane, 0u32), b.less(place, warps));
        let exchange = |b: &mut Builder, name: &str, value: Operand| {
            let shared = b.shared(name, Word::U32, warps, "f32, one a warp");
            b.store(Address::new(shared, warp), &[value], Width::B32, Some(first));
            shared
        };
        let low = of_warp.low.map(|low| exchange(b, "lows", low));
        let high = exchange(b, "highs", of_warp.high);
        b.barrier();
        let load = |b: &mut Builder, shared| {
            let mask = Some(Mask { condition: is_warp, fill: 0.0f32.into() });
            let from = Address::new(shared, place);
            b.load_as(Type::F32, from, Width::B32, mask, Cache::Default)[0].into()
        };
        let low = low.map(|low| load(b, low));
        Self { low, high: load(b, high) }.of_lanes(b, each)
    }

    /// The range over neighbouring threads (a power of two, or the whole block) through shared memory:
    /// each half combines with the other's.
    fn of_threads(mut self, b: &mut Builder, threads: u32) -> Self {
        if threads <= 1 {
            return self;
        }
        let words = b.target().gpu.map_or(threads, |gpu| gpu.block_threads);
        let mut scratch = |name: &str| b.scratch(name, words, "f32, one a thread");
        let (low, high) = (self.low.map(|_| scratch("lows")), scratch("highs"));
        let thread = b.special(Special::Thread);
        let place = if threads.is_power_of_two() { b.rem(thread, threads) } else { thread };
        let store = |b: &mut Builder, range: Self, mask: Option<Operand>| {
            let ends = [(low, range.low), (Some(high), Some(range.high))];
            for (to, end) in ends.into_iter().filter_map(|(to, end)| to.zip(end)) {
                b.store(Address::new(to, thread), &[end], Width::B32, mask);
            }
            b.barrier();
        };
        let load = |b: &mut Builder, at: Operand, plus: u32, mask: Option<Mask>| {
            let mut end = |from| {
                let from = Address::new(from, at).plus(plus);
                b.load_as(Type::F32, from, Width::B32, mask, Cache::Default)[0].into()
            };
            Self { low: low.map(&mut end), high: end(high) }
        };
        store(b, self, None);
        let mut half = threads.next_power_of_two() / 2;
        while half > 0 {
            let other = b.add(place, half);
            let (first, there) = (b.less(place, half), b.less(other, threads));
            let takes = b.both(first, there);
            let mask = Mask { condition: takes, fill: 0.0f32.into() };
            let other = load(b, thread, half, Some(mask));
            self = self.with(b, other);
            store(b, self, Some(takes));
            half /= 2;
        }
        let first = b.sub(thread, place);
        let all = load(b, first, 0, None);
        // Before the words are written again.
        b.barrier();
        all
    }

    /// The range of all of x: the lanes of a warp read the parts' ranges, from part `begin` on.
    pub(super) fn of_parts(
        b: &mut Builder,
        (parts, begin): (BufferId, Operand),
        each: u32,
        signed: bool,
    ) -> Self {
        let lane = b.special(Special::Lane);
        let first = match begin {
            Operand::U32(0) => b.mul(lane, 2 * each),
            _ => {
                let part = b.mad(lane, each, begin);
                b.mul(part, 2u32)
            }
        };
        let mut words = Vec::new();
        for at in (0..2 * each).step_by(4) {
            let from = Address::new(parts, first).plus(at);
            words.extend(b.load_as(Type::F32, from, Width::B128, None, Cache::Default));
        }
        let end = |side: usize| words[side..].iter().step_by(2).map(|word| (*word).into());
        let low = signed.then(|| tree(b, Binary::MinF32, end(0).collect()));
        let high = tree(b, Binary::MaxF32, end(1).collect());
        let lanes = b.warp_size();
        Self { low, high }.of_lanes(b, lanes)
    }

    /// The largest magnitude.
    pub(super) fn amax(self, b: &mut Builder) -> Operand {
        match self.low {
            None => self.high,
            Some(low) => {
                let below = b.unary(Unary::Negate, low);
                b.binary(Binary::MaxF32, self.high, below)
            }
        }
    }

    /// The smallest and the largest value; 0 and the largest magnitude if only magnitudes are kept.
    pub(super) fn ends(self) -> [Operand; 2] {
        [self.low.unwrap_or(Operand::F32(0.0)), self.high]
    }
}

/// A range that is updated in a loop.
pub(super) struct Running {
    low: Option<Reg>,
    high: Reg,
}

impl Running {
    /// The range of no values.
    pub(super) fn start(b: &mut Builder, signed: bool) -> Self {
        let mut zero = |name: &str| {
            let end = b.variable(name, Type::F32, Uniformity::Varying);
            b.set(end, 0.0f32);
            end
        };
        Self { low: signed.then(|| zero("low")), high: zero("high") }
    }

    /// Adds values.
    pub(super) fn add(&self, b: &mut Builder, values: &[Operand]) {
        let range = ValueRange::of(b, values, self.low.is_some());
        let range = self.range().with(b, range);
        if let (Some(end), Some(low)) = (self.low, range.low) {
            b.set(end, low);
        }
        b.set(self.high, range.high);
    }

    /// The range so far.
    pub(super) fn range(&self) -> ValueRange {
        ValueRange { low: self.low.map(Operand::from), high: self.high.into() }
    }
}

/// The minimum or maximum of values and 0; 0 is last, so that NaNs alone give 0.
fn tree(b: &mut Builder, op: Binary, mut values: Vec<Operand>) -> Operand {
    while values.len() > 1 {
        let pairs = values.chunks(2).map(|pair| match pair {
            [one, other] => b.binary(op, *one, *other),
            rest => rest[0],
        });
        values = pairs.collect();
    }
    values.first().map_or(Operand::F32(0.0), |end| b.binary(op, *end, 0.0f32))
}
