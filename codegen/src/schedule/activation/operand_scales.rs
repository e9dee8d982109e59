//! The buffer of the operand's scales, in the order in which the product reads them.

use quantloom_dsl::BufferRole;
use quantloom_dsl::format::{NUMBER_F32, Number};

use super::masked;
use super::problem::ActivationProblem;
use crate::ir::{
    Address, Binary, Builder, Extent, Operand, ParameterId, SharedId, Space, Unary, Width, Word,
};
use crate::schedule::ScaleOrder;

/// The scales of the operand: f32, or codes of e8m0 or e4m3.
pub(super) struct OperandScales {
    array: Space,
    order: ScaleOrder,
    /// Scales of a row.
    groups: u32,
    /// The type of codes; `None` for f32.
    codes: Option<Number>,
    /// Where the zero points of rows are, f32, if the product subtracts them.
    zeros: Option<ZeroPoints>,
    /// The row after those whose scales a row stores, if it stores more than its own.
    end: Option<Operand>,
}

/// Where the zero points of rows are.
enum ZeroPoints {
    /// Each after the row's scale.
    BesideScales,
    /// In an array of their own.
    Apart(Space),
}

impl OperandScales {
    /// Declares the buffer; `m` is the number of rows of x, `row` the number of the block's row.
    pub(super) fn declare(
        b: &mut Builder,
        (problem, role): (&ActivationProblem, BufferRole),
        (rows, m): (Extent, ParameterId),
        row: Operand,
    ) -> Self {
        let (order, groups) = (problem.scale_order, problem.groups());
        let finest = problem.levels().first().map(|level| problem.number(level));
        let codes = finest.filter(|_| problem.codes);
        let word = if codes.is_some() { Word::U8 } else { Word::U32 };
        let number = codes.unwrap_or(NUMBER_F32);
        let layout = format!("{number} {}", order.layout());
        let zeros = problem.leaves_zero().then_some(ZeroPoints::BesideScales);
        let numbers = groups + u32::from(problem.leaves_zero());
        let (shape, access) = (order.shape(rows, numbers), problem.rows_access());
        let buffer = b.buffer_of(role, word, access, &shape, &layout);
        // Token blocks have whole tiles.
        let own = order == ScaleOrder::TokenTiles && problem.routed.is_none();
        let end = own.then(|| {
            let m = b.argument(m);
            ScaleOrder::end_of_tile(b, row, m)
        });
        Self { array: buffer.into(), order, groups, codes, zeros, end }
    }

    /// In shared memory, f32 `[row][group]`, and zero points `[row]`.
    pub(super) fn in_block(
        problem: &ActivationProblem,
        array: SharedId,
        zeros: Option<SharedId>,
    ) -> Self {
        let (order, groups) = (ScaleOrder::Rows, problem.groups());
        let zeros = zeros.map(|zeros| ZeroPoints::Apart(zeros.into()));
        Self { array: array.into(), order, groups, codes: None, zeros, end: None }
    }

    /// The scale to store, of the product of all levels and the number of the finest.
    pub(super) fn of(&self, product: Operand, finest: Option<Operand>) -> Operand {
        finest.filter(|_| self.codes.is_some()).unwrap_or(product)
    }

    /// Stores the scale of a row, or of a group of it, where `begins` is true; of a row also its zero point, if the buffer has them.
    pub(super) fn store(
        &self,
        b: &mut Builder,
        (row, group): (Operand, Option<Operand>),
        (value, zero): (Operand, Option<Operand>),
        begins: Operand,
    ) {
        let begins = masked(begins);
        match (&self.zeros, zero) {
            (Some(ZeroPoints::BesideScales), Some(zero)) => {
                let to = Address::new(self.array, b.mul(row, 2u32));
                return b.store(to, &[value, zero], Width::B64, begins);
            }
            (Some(ZeroPoints::Apart(array)), Some(zero)) => {
                b.store(Address::new(*array, row), &[zero], Width::B32, begins);
            }
            _ => {}
        }
        match (self.end, group) {
            (Some(end), Some(group)) => b.for_each(row, end, 1u32, "row", |b, row| {
                let at = self.order.place(b, (row, self.groups), group);
                b.store(Address::new(self.array, at), &[value], Width::B32, begins);
            }),
            (_, group) => {
                let at = match group {
                    None => row,
                    Some(group) => self.order.place(b, (row, self.groups), group),
                };
                let to = Address::new(self.array, at);
                let code = match self.codes {
                    None => return b.store(to, &[value], Width::B32, begins),
                    // A power of two: its exponent, 0 for the subnormal 2^-127.
                    Some(Number::E8m0) => {
                        let bits = b.unary(Unary::AsU32, value);
                        b.shr(bits, 23u32)
                    }
                    Some(_) => b.binary(Binary::PackE4m3, value, value),
                };
                b.store(to, &[code], Width::B8, begins);
            }
        }
    }
}
