//! The lane map of a product: the rows of w, tokens and columns of each lane, read from the layouts of the
//! matrix instruction. Schedules use this map; none of them knows a particular instruction.

use std::collections::BTreeSet;

use quantloom_dsl::layout::{Fragment, Point};
use quantloom_dsl::parse_fragment;

use crate::ir::{Builder, MatrixOp, Operand};
use crate::target::ScaleLanes;

/// A digit of a lane's number, `lane / apart % size`, and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digit {
    apart: u32,
    size: u32,
    stride: u32,
}

/// A function of a lane's number: the sum of its digits times their strides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OfLane {
    lanes: u32,
    digits: Vec<Digit>,
}

/// A lane's rows of a tile of w.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// How many.
    pub(super) len: u32,
    /// The distance of consecutive rows.
    pub(super) stride: u32,
    /// The first.
    pub(super) first: OfLane,
}

/// The weight's operand, A.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Weights {
    /// Registers of a step of the product.
    pub(super) registers: usize,
    /// The lane's rows; register i is of the row of number `i % len`.
    pub(super) rows: Rows,
    /// The lane's number among those that share a row.
    pub(super) part: OfLane,
    /// The lane's number among those that hold different elements.
    pub(super) holder: OfLane,
}

/// The operand of x, B: where an instruction reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OperandHome {
    /// Registers of the lanes.
    Registers(Tokens),
    /// Shared memory, through a descriptor.
    Shared,
}

/// B in registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tokens {
    /// Registers of a step of the product.
    pub(super) registers: usize,
    /// The lane's token.
    pub(super) token: OfLane,
    /// The lane's number among those that share a token.
    pub(super) part: OfLane,
}

/// The lane map of scales, for an instruction that scales: each lane supplies those of one row of A, and of one
/// token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scaled {
    /// The lane's row of A; one.
    pub(super) rows: Rows,
    /// The lane's token.
    pub(super) token: OfLane,
    /// The lane's first block of columns within a step.
    pub(super) block: OfLane,
    /// Lanes over which the blocks of a step are distributed.
    pub(super) apart: u32,
    /// Blocks of a step.
    pub(super) blocks: u32,
    /// Contiguous columns of B of a lane, in the order of the instruction.
    pub(super) columns: u32,
}

/// Scale codes in a register.
const CODES: u32 = 4;

impl Scaled {
    /// Scale codes of an operand in a register of one lane, for a step.
    pub(super) const fn of_lane(&self) -> u32 {
        self.blocks / self.apart
    }

    /// Of a token's scale codes for a k-tile, the word with those of a step, and the byte of the first, for the lane
    /// whose first block is 0.
    pub(super) const fn of_step(&self, step: u32) -> (u32, u8) {
        let first = step * self.blocks;
        (first / CODES, (first % CODES) as u8)
    }
}

/// The sums, D.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    /// The lane's rows.
    pub(super) rows: Rows,
    /// The distances of the lane's tokens from the first one.
    pub(super) tokens: Vec<u32>,
    /// The first.
    pub(super) token: OfLane,
    /// For each register, the indices of its row and its token among the lane's rows and tokens.
    pub(super) registers: Vec<[usize; 2]>,
}

/// The lane map of a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LaneMap {
    pub(super) a: Weights,
    pub(super) b: OperandHome,
    pub(super) d: Sums,
    /// Lanes that share a row of A, or a token of B, each with its own columns.
    pub(super) of_row: u32,
    pub(super) scaled: Option<Scaled>,
}

impl Tokens {
    /// Consecutive lanes with a token each.
    pub(super) fn side_by_side(&self) -> u32 {
        self.token.digits.iter().find(|digit| digit.apart == 1).map_or(1, |digit| digit.size)
    }
}

impl LaneMap {
    /// The lane map of a warp's or warp group's instruction; `None` if one of its layouts is not a
    /// fragment of this kind.
    pub(super) fn new(op: &MatrixOp) -> Option<Self> {
        let (a, d) = (parse_fragment(op.a_layout).ok()?, parse_fragment(op.d_layout).ok()?);
        // An instruction without a lane layout of B reads B from shared memory.
        let b = match op.b_layout {
            "" => None,
            layout => Some(parse_fragment(layout).ok()?),
        };
        let row: fn(Point) -> u32 = |at| at.n;
        let column: fn(Point) -> u32 = |at| at.k;
        let lanes = d.sizes().get(2).copied()?;
        let of_lane = |fragment: &Fragment, along| OfLane::new(fragment, lanes, along);
        let of_row = of_lane(&a, column).values();
        let part = |fragment: &Fragment| of_lane(fragment, column).counted();
        let warp = lanes / op.threads(1);
        let [of_a, of_b, _] = op.registers(warp);
        let (registers, rows) = Rows::new(&a, lanes)?;
        let cycles = registers.iter().enumerate().all(|(at, row)| at % rows.len as usize == *row);
        let holder = OfLane::number(lanes, op.holders(warp));
        let weights = Weights { registers: of_a as usize, rows, part: part(&a), holder };
        let tokens = b.as_ref().map_or(OperandHome::Shared, |b| {
            let (registers, token) = (of_b as usize, of_lane(b, row));
            OperandHome::Registers(Tokens { registers, token, part: part(b) })
        });
        let (rows_of, rows) = Rows::new(&d, lanes)?;
        let columns: Vec<u32> = registers_of(&d).map(column).collect();
        let distinct: Vec<u32> =
            columns.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let number = |token| distinct.iter().position(|known| known == token);
        let tokens_of = columns.iter().map(number).collect::<Option<Vec<_>>>()?;
        let registers =
            rows_of.into_iter().zip(tokens_of).map(|(row, token)| [row, token]).collect();
        let token = of_lane(&d, column);
        let d = Sums { rows, tokens: distinct, token, registers };
        let scaled = match &op.scaling {
            Some(scaling) => {
                let [of_a, of_b] = [scaling.a, scaling.b].map(|of| (parse_fragment(of.layout), of));
                let (of_a, of_b) = ((of_a.0.ok()?, of_a.1), (of_b.0.ok()?, of_b.1));
                let rows = OfLane::supplied(&of_a, lanes, row);
                let rows = Rows { len: 1, stride: 1, first: rows };
                let token = OfLane::supplied(&of_b, lanes, row);
                let block = OfLane::supplied(&of_a, lanes, column);
                // Of shared memory the instruction reads whole steps.
                let columns = b.as_ref().map_or(op.shape[2], |b| of_lane(b, column).least());
                let (apart, blocks) = (block.values(), op.shape[2] / scaling.columns);
                // Both operands alike, so that one block serves both.
                let alike = block == OfLane::supplied(&of_b, lanes, column);
                alike.then_some(())?;
                Some(Scaled { rows, token, block, apart, blocks, columns })
            }
            None => None,
        };
        cycles.then_some(Self { a: weights, b: tokens, d, of_row, scaled })
    }
}

impl LaneMap {
    /// The lane map for scalar arithmetic, with `lanes` lanes per tile: each lane has a row and all of
    /// its columns.
    pub(super) fn of_rows(lanes: u32) -> Self {
        let nothing = OfLane { lanes, digits: Vec::new() };
        let first = OfLane::number(lanes, lanes);
        let rows = Rows { len: 1, stride: 1, first: first.clone() };
        Self {
            a: Weights { registers: 1, rows: rows.clone(), part: nothing.clone(), holder: first },
            b: OperandHome::Registers(Tokens {
                registers: 1,
                token: nothing.clone(),
                part: nothing.clone(),
            }),
            d: Sums { rows, tokens: vec![0], token: nothing, registers: vec![[0, 0]] },
            of_row: 1,
            scaled: None,
        }
    }
}

/// The points of the first elements of lane 0's registers.
fn registers_of(fragment: &Fragment) -> impl Iterator<Item = Point> {
    let registers = fragment.sizes().get(1).copied().unwrap_or(0);
    (0..registers).map(|register| fragment.point(&[0, register, 0]))
}

impl Rows {
    /// For each register the index of its row; and the rows of a lane of so many.
    fn new(fragment: &Fragment, lanes: u32) -> Option<(Vec<usize>, Self)> {
        let rows: Vec<u32> = registers_of(fragment).map(|at| at.n).collect();
        let distinct: Vec<u32> =
            rows.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let number = |row| distinct.iter().position(|known| known == row);
        let of = rows.iter().map(number).collect::<Option<_>>()?;
        let (len, stride) = (distinct.len() as u32, distinct.get(1).copied().unwrap_or(1));
        let even = distinct.iter().zip(0..).all(|(&row, at)| row == at * stride);
        even.then(|| (of, Self { len, stride, first: OfLane::new(fragment, lanes, |at| at.n) }))
    }

    /// The lane's number among those that hold different rows.
    pub(super) fn number(&self) -> OfLane {
        self.first.counted()
    }

    /// The distance of the first rows of consecutive lanes.
    pub(super) fn apart(&self) -> u32 {
        self.first.digits.iter().map(|digit| digit.stride).min().unwrap_or(1)
    }
}

impl OfLane {
    /// The lane's number modulo a power of two.
    fn number(lanes: u32, modulo: u32) -> Self {
        Self { lanes, digits: vec![Digit { apart: 1, size: modulo, stride: 1 }] }
    }

    /// The lane's coordinate along an axis of a fragment, which may name the first of `lanes` lanes only: the
    /// others hold the same.
    fn new(fragment: &Fragment, lanes: u32, along: fn(Point) -> u32) -> Self {
        Self::named(fragment, lanes, along, |bit| 1 << bit)
    }

    /// The coordinate of the scales that a lane supplies, by their lane map; lanes that the instruction ignores have the
    /// same as the others.
    fn supplied(
        (fragment, scales): &(Fragment, ScaleLanes),
        lanes: u32,
        along: fn(Point) -> u32,
    ) -> Self {
        Self::named(fragment, lanes, along, |bit| scales.lane(1 << bit))
    }

    /// The lane's coordinate along an axis of a fragment; `apart` is the distance of lanes whose numbers in the fragment
    /// differ in a bit.
    fn named(
        fragment: &Fragment,
        lanes: u32,
        along: fn(Point) -> u32,
        apart: impl Fn(u32) -> u32,
    ) -> Self {
        let named = fragment.sizes().get(2).copied().unwrap_or(1);
        let digit = |bit: u32| {
            let stride = along(fragment.point(&[0, 0, 1 << bit]));
            Digit { apart: apart(bit), size: 2, stride }
        };
        let digits = (0..named.ilog2()).map(digit).filter(|digit| digit.stride > 0);
        Self { lanes, digits: digits.collect() }.joined()
    }

    /// Whether it is the lane's number modulo a power of two.
    pub(super) fn is_number(&self, modulo: u32) -> bool {
        *self == Self::number(self.lanes, modulo)
    }

    /// The number of distinct values.
    fn values(&self) -> u32 {
        self.digits.iter().map(|digit| digit.size).product()
    }

    /// The same, divided by its least stride: 0, 1, 2, ...
    fn counted(&self) -> Self {
        self.over(self.least())
    }

    /// The lane's number among those of different values, in the order of lanes, and the stride and size of each digit of
    /// the values in that order.
    pub(super) fn in_order_of_lanes(&self) -> (Self, Vec<(u32, u32)>) {
        let mut before = 1;
        let digits = self.digits.iter().map(|digit| {
            let stride = before;
            before *= digit.size;
            Digit { stride, ..*digit }
        });
        let number = Self { digits: digits.collect(), ..*self }.joined();
        (number, self.digits.iter().map(|digit| (digit.stride, digit.size)).collect())
    }

    /// The least stride of a digit.
    pub(super) fn least(&self) -> u32 {
        self.digits.iter().map(|digit| digit.stride).min().unwrap_or(1)
    }

    /// The same with adjacent digits joined.
    fn joined(&self) -> Self {
        let mut digits: Vec<Digit> = Vec::new();
        for &digit in &self.digits {
            match digits.last_mut() {
                Some(Digit { apart, size, stride })
                    if *apart * *size == digit.apart && *stride * *size == digit.stride =>
                {
                    *size *= digit.size;
                }
                _ => digits.push(digit),
            }
        }
        Self { digits, ..*self }
    }

    /// The product with a number.
    pub(super) fn times(&self, by: u32) -> Self {
        let digits = self.digits.iter().map(|digit| Digit { stride: digit.stride * by, ..*digit });
        Self { digits: digits.collect(), ..*self }
    }

    /// The quotient by a power of two, rounded down.
    pub(super) fn over(&self, by: u32) -> Self {
        let digits = self.digits.iter().filter_map(|&Digit { apart, size, stride }| {
            // Digits of less weight vanish.
            let lost = (by / stride).max(1);
            let left = Digit {
                apart: apart * lost,
                size: size / lost.min(size),
                stride: (stride * lost / by).max(1),
            };
            (left.size > 1).then_some(left)
        });
        Self { digits: digits.collect(), ..*self }
    }

    /// The sum.
    pub(super) fn plus(&self, other: &Self) -> Self {
        let mut digits = [&self.digits[..], &other.digits].concat();
        digits.sort_by_key(|digit| digit.apart);
        Self { digits, ..*self }.joined()
    }

    /// Its value for a lane.
    pub(super) fn of(&self, b: &mut Builder, lane: Operand) -> Operand {
        let mut sum: Operand = 0u32.into();
        for &Digit { apart, size, stride } in &self.digits {
            let digit = b.div(lane, apart);
            let last = apart * size == self.lanes;
            let digit = if last { digit } else { b.rem(digit, size) };
            sum = b.mad(digit, stride, sum);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::{LaneMap, OfLane, OperandHome, Tokens};
    use crate::ir::{MATRIX_OPS, MatrixScope};
    use quantloom_dsl::layout::Point;
    use quantloom_dsl::parse_fragment;

    fn value(of: &OfLane, lane: u32) -> u32 {
        of.digits.iter().map(|digit| lane / digit.apart % digit.size * digit.stride).sum()
    }

    /// Every register of every lane is where the layouts say, for every instruction.
    #[test]
    fn lanes_hold_what_the_layouts_say() {
        assert!(MATRIX_OPS.len() >= 10);
        for op in MATRIX_OPS {
            let (name, LaneMap { a, b, d, of_row, scaled }) = (op.name, LaneMap::new(op).unwrap());
            let [of_a, of_d] = [op.a_layout, op.d_layout].map(|text| parse_fragment(text).unwrap());
            let lanes = of_d.sizes()[2];
            let first_column = |lane| of_a.point(&[0, 0, lane]).k;
            let apart = (0..lanes).map(first_column).filter(|&k| k > 0).min().unwrap_or(1);
            for lane in 0..lanes {
                for register in 0..a.registers as u32 {
                    let row = register % a.rows.len * a.rows.stride + value(&a.rows.first, lane);
                    assert_eq!(of_a.point(&[0, register, lane]).n, row, "{name}: A of lane {lane}");
                }
                match &b {
                    OperandHome::Registers(Tokens { registers, token, part }) => {
                        let of_b = parse_fragment(op.b_layout).unwrap();
                        for register in 0..*registers as u32 {
                            let of_lane = of_b.point(&[0, register, lane]).n;
                            assert_eq!(of_lane, value(token, lane), "{name}: B of lane {lane}");
                        }
                        assert_eq!(value(part, lane), first_column(lane) / apart, "{name}");
                    }
                    OperandHome::Shared => assert_ne!(op.scope, MatrixScope::Warp, "{name}"),
                }
                for (register, &[row, token]) in (0..).zip(&d.registers) {
                    let row = row as u32 * d.rows.stride + value(&d.rows.first, lane);
                    let token = d.tokens[token] + value(&d.token, lane);
                    let Point { n, k } = of_d.point(&[0, register, lane]);
                    assert_eq!((n, k), (row, token), "{name}: D of lane {lane}");
                }
                // The lanes that supply scales have those that the layouts say, and all of a step are there.
                if let Some(scaled) = &scaled {
                    let scaling = op.scaling.unwrap();
                    for (of, first) in [(scaling.a, &scaled.rows.first), (scaling.b, &scaled.token)]
                    {
                        let of_scales = parse_fragment(of.layout).unwrap();
                        assert_eq!(of_scales.sizes()[0], scaled.of_lane(), "{name}");
                        let supplying =
                            (0..of_scales.sizes()[2]).filter(|of_it| of.lane(*of_it) == lane);
                        for number in supplying {
                            let Point { n, k } = of_scales.point(&[0, 0, number]);
                            assert_eq!(
                                (n, k),
                                (value(first, lane), value(&scaled.block, lane)),
                                "{name}"
                            );
                        }
                    }
                    let (rows, blocks) = (scaled.rows.len, scaled.blocks);
                    assert_eq!((rows, blocks * scaling.columns), (1, op.shape[2]), "{name}");
                }
                // Lanes of a row have columns of their own, in the same order in A and B.
                let part = first_column(lane) / apart;
                assert!(part < of_row, "{name}");
                assert_eq!(value(&a.part, lane), part, "{name}");
            }
        }
    }

    /// Quotients, multiples and sums of numbers of lanes.
    #[test]
    fn lane_indices_are_computed_correctly() {
        for op in MATRIX_OPS.iter().filter(|op| op.scope == MatrixScope::Warp) {
            let LaneMap { a, d, of_row, .. } = LaneMap::new(op).unwrap();
            let all = a.rows.number().times(of_row).plus(&a.part);
            for lane in 0..parse_fragment(op.d_layout).unwrap().sizes()[2] {
                let of = |number: &OfLane| value(number, lane);
                for number in [&a.rows.first, &a.part, &d.rows.first, &d.token] {
                    for by in [1, 2, 4, 8, 16] {
                        assert_eq!(of(&number.over(by)), of(number) / by, "{}: /{by}", op.name);
                        assert_eq!(of(&number.times(by)), of(number) * by, "{}: *{by}", op.name);
                    }
                }
                assert_eq!(of(&all), of(&a.rows.first) * of_row + of(&a.part), "{}", op.name);
            }
        }
    }
}
