//! Rows of the operand of a product, of results that blocks of another product have in shared memory: of the second product of an expert
//! layer, of h.
//!
//! The steps are those of the kernel that makes an operand of x, so that codes and scales are the same, bit for bit. Neighbouring lanes
//! have neighbouring vectors of a row, those of whole groups.

use quantloom_dsl::BufferRole;

use super::levels::{Given, Levels};
use super::problem::ActivationProblem;
use super::source::{VECTOR, VectorSource};
use super::{Partition, Writer};
use crate::ir::{BufferId, Builder, Extent, Operand, ParameterId, SharedId};

/// Columns of a vector of results.
pub(in crate::schedule) const RESULTS: u32 = VECTOR;

/// The operand of the rows of a block.
pub(in crate::schedule) struct OperandOfResults<'p> {
    writer: Writer<'p>,
}

impl<'p> OperandOfResults<'p> {
    /// Declares the scales of the operand, in a buffer with so many rows; results are in `lines`, and
    /// [`ActivationProblem::columns_of_vectors`] says so. `m` is the number of tokens.
    pub(in crate::schedule) fn declare(
        b: &mut Builder,
        problem: &'p ActivationProblem,
        (lines, to): (SharedId, BufferId),
        rows: (Extent, ParameterId),
    ) -> Self {
        let none = Operand::U32(0);
        let source = VectorSource::of(b, problem, lines, false);
        let given = problem.quantiser().map(|quantiser| Given::declare(b, problem, quantiser));
        let scales = (problem, BufferRole::HiddenScale);
        let levels = given.map(|given| Levels::declare(b, scales, given, rows, none));
        let partition = Partition { threads: problem.padded / VECTOR, vectors: 1, blocks: 1 };
        let writer = Writer {
            problem,
            partition,
            source,
            levels,
            group_scales: None,
            operand: to.into(),
            row: none,
            first: none,
            matrix: none,
            column: none,
        };
        Self { writer }
    }

    /// Writes a vector of a row, if it is inside of the operand, of words of results; every lane of a warp does.
    pub(in crate::schedule) fn write(
        &mut self,
        b: &mut Builder,
        [row, column]: [Operand; 2],
        inside: Operand,
        words: &[Operand],
    ) {
        self.writer.row = row;
        let writer = &self.writer;
        let outer = writer.levels.as_ref().map(|levels| {
            let constants = levels.load_constants(b, writer.matrix);
            levels.of_row(b, &constants, None)
        });
        writer.finish_where(b, (column, inside), words, outer.as_ref());
    }
}
