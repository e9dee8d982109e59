//! Sums of groups side by side, for one or two tokens: what D holds beside tokens.
//!
//! A scale that multiplies weights takes one to three operations for each two codes. D has eight columns, for eight tokens, and one
//! or two tokens leave most of them empty. Here a column of D is the sum over one group: B holds x in the columns of w of that
//! group, and 0 elsewhere. Scales multiply these sums, once for 16 or 32 columns and without a rounding of weights.
//!
//! Four lanes share a row of w, and each has columns of two groups of a k-tile. Lane q of the four finds columns `2 q` and `2 q + 1`
//! of D in its registers, so that these are the sums over its own two groups, whose scales it has. In groups of 32 columns of 4-bit codes
//! lanes 0 and 1 have groups 0 and 2 of the k-tile, lanes 2 and 3 groups 1 and 3: columns 0 to 7 of D are groups 0, 2, 0, 2, 1, 3, 1, 3. Lanes
//! that have the same groups, as 0 and 1 here, serve a token each.
//!
//! A term that is added to weights multiplies the sum of x over the group, which a product with ones in A gives all lanes.
//! After the last k-tile lanes add the sums of their groups, and the first lane of a row has its tokens' registers of D.

use super::params::TileParams;
use super::{InFlight, Skinny, activation};
use crate::ir::{Accumulator, Builder, Operand, Reg, Shuffle, Type, Uniformity};
use crate::schedule::dequantise::{ByRow, StepOfA, steps};
use crate::schedule::group_params::LaneLevels;
use crate::schedule::mapping::MainLoop;
use crate::schedule::table::Table;

/// Groups of a lane in a k-tile, and tokens of a lane of D.
const GROUPS: u32 = 2;
/// The most tokens: those of the first lane of D.
const TOKENS: u32 = 2;

/// The columns of D that have groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupColumns {
    /// Lanes of a row of D that have the same groups.
    same: u32,
    /// Lanes of a row of D.
    of_row: u32,
    tokens: u32,
}

/// Which x a lane of B holds.
pub(super) struct OfB {
    /// The row of its token.
    pub(super) row: Operand,
    /// Whether it holds the columns of each group of a lane.
    pub(super) holds: [Operand; GROUPS as usize],
}

impl GroupColumns {
    /// The columns for so many tokens, if scales that lanes make of parameters multiply weights otherwise, and D has columns for the
    /// groups.
    pub(super) fn of(main: &MainLoop<'_>, tokens: u32) -> Option<Self> {
        main.problem.plan.scale.parts()?;
        // Scales of x along K multiply sums of their own groups.
        if main.problem.scales_segments() {
            return None;
        }
        let (scale, lanes, x) = (main.problem.scale?, main.lanes(), main.x_fragment().ok()?);
        let of_row = main.row_lanes();
        let same = of_row / scale.apart;
        let two = main.k_tile() == GROUPS * main.shared_columns()
            && main.k_tile() == GROUPS * scale.columns * scale.apart;
        // Lanes of A, which have the parameters of these parts, are lanes of D with these columns.
        let own = lanes.d.tokens == [0, 1]
            && lanes.d.token == lanes.a.part.times(GROUPS)
            && lanes.d.rows == lanes.a.rows
            && lanes.a.part.is_number(of_row)
            && x.part == lanes.a.part;
        let fits = two && own && tokens <= TOKENS.min(same) && same.is_power_of_two();
        fits.then_some(Self { same, of_row, tokens })
    }

    /// The x of a lane of B.
    pub(super) fn of_b(self, b: &mut Builder, skinny: &Skinny<'_>) -> OfB {
        let column = skinny.x_fragment.token.of(b, skinny.lane);
        let part = skinny.x_fragment.part.of(b, skinny.lane);
        let (owner, group) = (b.div(column, GROUPS), b.rem(column, GROUPS));
        let row = b.rem(owner, self.same);
        let [own, of_owner] = [part, owner].map(|part| b.div(part, self.same));
        let shares = b.equal(own, of_owner);
        let holds = [0, 1].map(|number: u32| {
            let of_group = b.equal(group, number);
            b.both(shares, of_group)
        });
        OfB { row, holds }
    }

    /// Per tile of rows, a sum for each of a lane's rows.
    pub(super) fn accumulators(self, b: &mut Builder, skinny: &Skinny<'_>) -> Vec<Vec<Reg>> {
        let rows = skinny.main.lanes().d.rows.len;
        (0..skinny.tile.row_tiles).map(|_| b.zeros("sum", rows)).collect()
    }

    /// Those as D has them: per tile of rows and of tokens, a register for each row and token of a lane.
    pub(super) fn of_tokens(
        self,
        b: &mut Builder,
        skinny: &Skinny<'_>,
        sums: &[Vec<Reg>],
    ) -> Vec<Vec<Vec<Reg>>> {
        let held = &skinny.main.lanes().d.registers;
        let tile = |sums: &Vec<Reg>| {
            let total = |&sum: &Reg| {
                let mut total: Operand = sum.into();
                let mut apart = self.same;
                while apart < self.of_row {
                    let other = b.shuffle(Shuffle::Xor, total, apart);
                    total = b.add_f32(total, other);
                    apart *= 2;
                }
                let second = (self.tokens > 1).then(|| b.shuffle(Shuffle::Xor, total, 1u32));
                [total, second.unwrap_or(Operand::F32(0.0))]
            };
            let of_rows: Vec<[Operand; TOKENS as usize]> = sums.iter().map(total).collect();
            let registers = b.array("sum", Type::F32, held.len() as u32, Uniformity::Varying);
            for (&register, &[row, token]) in registers.iter().zip(held) {
                b.set(register, of_rows[row][token]);
            }
            vec![registers]
        };
        sums.iter().map(tile).collect()
    }
}

impl Skinny<'_> {
    /// As [`Skinny::multiply`], with groups in columns of D.
    pub(super) fn multiply_groups(
        &self,
        b: &mut Builder,
        (ones, table): (Option<&[Reg]>, Option<Table>),
        sums: &[Vec<Reg>],
        words: &activation::InFlight,
        flight: &InFlight,
        mut used: impl FnMut(&mut Builder, usize),
    ) {
        let main = self.main;
        // A schedule with matrix instructions always has one.
        let Some(product) = main.instruction() else { return };
        let of_step = main.step_registers() as usize;
        let registers = self.x_fragment.registers;
        let d = main.lanes().d.registers.len() as u32;
        let step = |b: &mut Builder, part: &[Reg], a: &[Reg], (number, first): (usize, bool)| {
            let x = &words.x[0][of_step * number..][..registers];
            let start = match first {
                true => Accumulator::Zero,
                false => Accumulator::Registers(part.to_vec()),
            };
            b.matrix(product, part, a, x, start);
        };
        let of_x = ones.map(|ones| {
            let part = b.fragment(Type::F32, d);
            let steps = (main.k_tile() / main.step()) as usize;
            (0..steps).for_each(|number| step(b, &part, ones, (number, number == 0)));
            part
        });
        for (tile, (chunks, sums)) in flight.codes.iter().zip(sums).enumerate() {
            let part = b.fragment(Type::F32, d);
            let mut as_decoded = ByRow::default();
            steps(b, (main, table), chunks, &mut as_decoded, |b, of| {
                let StepOfA { step: number, before, a } = of;
                step(b, &part, &a, (number, before == 0));
            });
            let numbers = TileParams { skinny: self, flight, tile };
            let [scale, term] = numbers.levels();
            let all = [(scale, Some(&part)), (term, of_x.as_ref())];
            for (levels, of_groups) in all {
                if let Some((levels, of_groups)) = levels.zip(of_groups) {
                    self.add_groups(b, sums, of_groups, &levels);
                }
            }
            used(b, tile);
        }
    }

    /// Adds a lane's sums of groups, times the groups' numbers.
    fn add_groups(&self, b: &mut Builder, sums: &[Reg], of_groups: &[Reg], levels: &LaneLevels) {
        let held = &self.main.lanes().d.registers;
        let rows = sums.len() as u32;
        let (factors, coarse) = levels.factors(b, self.main, rows);
        for (row, &sum) in sums.iter().enumerate() {
            let into = match coarse {
                None => sum,
                Some(_) => b.zeros("of_levels", 1)[0],
            };
            for (group, factors) in factors.iter().enumerate() {
                let Some(at) = held.iter().position(|&of| of == [row, group]) else { continue };
                b.accumulate(into, factors[row], of_groups[at]);
            }
            if let Some(coarse) = &coarse {
                b.accumulate(sum, coarse[row], into);
            }
        }
    }

    /// A fragment of ones, for sums of x.
    pub(super) fn ones(&self, b: &mut Builder) -> Vec<Reg> {
        let registers = self.main.lanes().a.registers as u32;
        let ones = b.array("ones", Type::U32, registers, Uniformity::Varying);
        let one = self.main.problem.input.operand.ones();
        ones.iter().for_each(|&register| b.set(register, one));
        ones
    }
}
