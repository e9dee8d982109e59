//! The operand of x: kernels before a product, which convert x to the form that the product reads.
//!
//! In: an [`ActivationProblem`], and x[M, K] in the input dtype. Out: kernels, not yet verified, which
//! write
//! - `operand` `[M, P]`, the product's elements, with rows padded with zeros: x itself, possibly rounded to
//!   another float type, or its codes: as bytes, or as 16-bit floats or f32, which are exact and have the
//!   zero point subtracted; codes of 4 bits, two per byte; for instructions that scale also of 6 bits,
//!   32 of them in 24 bytes followed by 8 zero bytes; bytes for warp groups, in the order of their fragments
//!   (`byte_fragments`);
//! - `x_scale` `[M, G]` f32, the product of all levels of scales, per row or per group; for instructions
//!   that scale e8m0 codes, a byte each. Where bytes leave the zero point of a row to the product, `[M, 2]`: scale and zero point.
//!
//! Codes, scales and zero points are bit for bit those of
//! [`quantloom_dsl::reference::quantise_activation`]: each operation is done in f32 and rounded to the type
//! of the scheme's arithmetic. The product of several levels is the reference's too (in f32 the correctly
//! rounded product, within a relative error of 2^-24). The one exception is a NaN among integers, which a
//! byte cannot represent: 0 in `I8` and `I4`.
//!
//! A prescale multiplies columns of x in every kernel that loads x: the product is rounded to the input
//! dtype, and all later steps use that.
//!
//! A thread has 8 consecutive columns of a row, 16 bytes of a 16-bit x, and keeps them in registers from
//! the maximum to the rounding. If a scale is shared by a whole row, one block handles the row; columns
//! beyond its registers are read twice. Otherwise several blocks share a row, and the lanes of a group find
//! its maximum by shuffles. A scale of all of x needs a kernel before, which writes the ranges of its
//! blocks' parts; every warp of the next kernel reads all of them, so that no word has to be reset and the
//! result does not depend on the order of blocks.
//!
//! `problem` describes the operand, `rows` says which row of x a row of the operand is made of, `source` loads x, `value_range` finds minima and maxima, `rounding` has
//! arithmetic and short floats, `scale` chooses a level's scale, `levels` combines levels, `group_scales`
//! has groups that the lanes of a warp cannot handle, `quotient` divides, `code` assembles the operand's
//! words. `block` has a row that a block of a product makes for itself, `results` rows that a block makes of its results for another
//! product.

mod block;
mod code;
mod group_scales;
mod levels;
mod operand_scales;
mod problem;
mod quotient;
mod results;
mod rounding;
mod rows;
mod scale;
mod source;
mod value_range;

use self::group_scales::GroupScales;
use self::levels::{Given, Levels, OfRow};
use self::rows::{OperandRows, SlotRow};
use self::source::{SourceColumn, VECTOR, VectorSource};
use self::value_range::{Running, ValueRange};
use quantloom_dsl::{BufferRole, Dimension};

use crate::ir::{
    Access, Address, Binary, BufferId, Builder, Extent, Half, Kernel, LaunchConfig, Op, Operand,
    ParameterId, Shuffle, Space, Special, Ternary, Width, Word,
};
use crate::schedule::byte_fragments::{ByteFragments, STEP};
use crate::target::Feature;

pub(in crate::schedule) use block::{BlockOperand, OperandOfBlock, vectors_of_thread};
pub use problem::ActivationProblem;
pub(in crate::schedule) use problem::common_group;
pub(in crate::schedule) use results::{OperandOfResults, RESULTS};
pub(in crate::schedule) use rounding::{at_least, at_most};
pub use rows::Routed;

/// The most threads of a block that handles a whole row.
const ROW_THREADS: u32 = 512;
/// The most threads of any other block.
const THREADS: u32 = 256;
/// The most vectors of a row that a thread keeps in registers.
const HELD: u32 = 8;
/// Ranges that a lane reads if a scale is chosen from all of x.
const RANGES_OF_A_LANE: u32 = 8;
/// Vectors that a thread loads at once to find ranges.
const AHEAD: u32 = 4;

/// Writes the kernels in launch order: one that finds ranges if a scale is chosen from all of x, one
/// that chooses the scales of groups if lanes cannot, and the operand's. Their parameter is m, the rows of
/// x. `programmatic` requests programmatic dependent launch, on targets that have it.
///
/// | buffer | words | condition |
/// |---|---|---|
/// | `x` | input dtype [M, K] | |
/// | `order` | u32 `[P]`, the column of x, [`u32::MAX`] for a pad | columns are reordered |
/// | `prescale` | `f32[K]`, the prescale of each column of x | x has a prescale |
/// | `input_scale_L` | f32, one | level L (0 = the finest) is static |
/// | `input_zero` | f32, one | the zero point is static |
/// | `slots` or `ids` | the order of an expert layer's pairs (`schedule::order`) | rows belong to slots |
/// | `extents` | f32 [parts, 2], between the kernels | a scale is chosen from all of x |
/// | `group_scale` | f32 [M, C], between the kernels | a kernel chooses scales of groups |
/// | `group_zero` | f32 [M, C], between the kernels | and zero points |
/// | `operand` | [M, P], in bytes, halves or f32 | |
/// | `x_scale` | f32 or bytes [M, G], or in another order ([`ScaleOrder`](super::ScaleOrder)), or with zero points [M, 2] | x is quantised, and not all its scales are in its elements |
///
/// Where rows belong to slots ([`Routed`]), `operand`, `x_scale` and the buffers of group scales have a row per
/// slot, or per matrix of an expert and slot, and unless all experts read alike the first four buffers are those of all
/// experts or matrices; so is `extents` if prescales differ.
pub fn activation(problem: &ActivationProblem, programmatic: bool) -> Vec<Kernel> {
    let programmatic = programmatic && problem.target.has(Feature::GridDependency);
    let first = problem.spans_rows().then(|| ranges(problem, programmatic));
    let scales =
        if problem.has_scale_kernel() { group_scales::scales(problem, programmatic) } else { None };
    first.into_iter().chain(scales).chain([operand(problem, programmatic)]).collect()
}

fn start(
    problem: &ActivationProblem,
    (what, summary): (&str, &str),
    threads: u32,
    programmatic: bool,
) -> (Builder, ParameterId) {
    let grid = [Extent::Constant(1); 3];
    let launch = LaunchConfig { grid, threads, min_blocks: 1, cluster: 1, programmatic };
    let mut b = Builder::new(&problem.kernel_name(what), summary, problem.target, launch);
    let m = b.size(Dimension::M, "rows of x, at least 1");
    (b, m)
}

/// The buffer of ranges between the kernels.
fn ranges_buffer(b: &mut Builder, problem: &ActivationProblem, access: Access) -> BufferId {
    let sets = problem.sets_of_ranges();
    let sets = (sets > 1).then_some(sets);
    let shape: Vec<Extent> =
        sets.into_iter().chain([problem.parts(), 2]).map(Extent::Constant).collect();
    b.buffer_of(
        BufferRole::Extremes,
        Word::U32,
        access,
        &shape,
        "f32, smallest and largest of a part and 0",
    )
}

/// The kernel that finds the ranges of all of x.
fn ranges(problem: &ActivationProblem, programmatic: bool) -> Kernel {
    let parts = problem.parts();
    let summary = format!("Smallest and largest of {parts} parts of x[m, {}].", problem.k);
    let (mut b, m) = start(problem, ("extents", &summary), THREADS, programmatic);
    let sets = problem.sets_of_ranges();
    b.grid([parts, sets, 1].map(Extent::Constant));
    let mut source = VectorSource::declare(&mut b, problem, m, false).into_one_row();
    let found = ranges_buffer(&mut b, problem, Access::WriteOnce);
    let (block, thread) = (b.special(Special::Block(0)), b.special(Special::Thread));
    let mut part = block;
    if sets > 1 {
        let matrix = b.special(Special::Block(1));
        source = source.of_matrix(&mut b, problem, matrix);
        part = b.mad(matrix, parts, block);
    }
    let rows = b.argument(m);
    // Vectors of x as one long row.
    let total = b.mul(rows, problem.k);
    let own = b.mad(block, THREADS, thread);
    let own = b.mul(own, VECTOR);
    if programmatic {
        b.push(Op::GridLaunch);
        b.push(Op::GridWait);
    }
    let running = Running::start(&mut b, problem.signed());
    let apart = parts * THREADS * VECTOR;
    b.for_each(0u32, total, apart * AHEAD, "at", |b, at| {
        let first = b.add(own, at);
        let mut load = |ahead: u32| {
            let column = b.add(first, ahead * apart);
            source.load(b, 0u32.into(), column, Some(total))
        };
        let vectors: Vec<Vec<Operand>> = (0..AHEAD).map(&mut load).collect();
        for words in vectors {
            let elements = source.elements(b, &words);
            running.add(b, &elements);
        }
    });
    let ends = running.range().of_block(&mut b, THREADS).ends();
    let (first, at) = (b.equal(thread, 0u32), b.mul(part, 2u32));
    b.store(Address::new(found, at), &ends, Width::B64, Some(first));
    b.finish()
}

/// The distribution of a row's vectors over threads and blocks.
#[derive(Clone, Copy)]
struct Partition {
    threads: u32,
    /// Vectors of a thread.
    vectors: u32,
    /// Blocks of a row.
    blocks: u32,
}

impl Partition {
    /// Of a row over blocks of so many threads.
    fn over(problem: &ActivationProblem, threads: u32) -> Self {
        let parts = (problem.padded / VECTOR).div_ceil(threads);
        match problem.spans_columns() {
            true => Self { threads, vectors: parts, blocks: 1 },
            false => Self { threads, vectors: 1, blocks: parts },
        }
    }

    fn new(problem: &ActivationProblem) -> Self {
        let vectors = problem.padded / VECTOR;
        let limit = problem.target.gpu.map_or(THREADS, |gpu| gpu.block_threads);
        let threads = |most: u32| vectors.next_multiple_of(problem.warp()).min(most.min(limit));
        if problem.spans_columns() && !problem.has_scale_kernel() {
            let threads = threads(ROW_THREADS);
            Self { threads, vectors: vectors.div_ceil(threads), blocks: 1 }
        } else {
            let threads = threads(THREADS);
            Self { threads, vectors: 1, blocks: vectors.div_ceil(threads) }
        }
    }

    /// The distance in columns of a thread's consecutive vectors.
    const fn apart(self) -> u32 {
        self.threads * VECTOR
    }
}

/// The kernel that writes the operand.
fn operand(problem: &ActivationProblem, programmatic: bool) -> Kernel {
    let partition = Partition::new(problem);
    let (k, padded, operand) = (problem.k, problem.padded, problem.operand);
    let what = if problem.quantiser().is_some() { "quantise" } else { "copy" };
    let blocks = if partition.blocks == 1 { "a block" } else { "several blocks" };
    let summary = format!("x[m, {k}] as {operand} [m, {padded}]; a row is {blocks}'s.");
    let (mut b, m) = start(problem, (what, &summary), partition.threads, programmatic);
    let rows = OperandRows::declare(&mut b, problem, m);
    b.grid(rows.grid(partition.blocks));
    let row = b.special(Special::Block(0));
    let part = (partition.blocks > 1).then(|| b.special(Special::Block(1)));
    let this = Writer::declare(&mut b, problem, (partition, row, part), (m, rows));
    if programmatic {
        b.push(Op::GridLaunch);
    }
    this.write(&mut b, rows, programmatic);
    b.finish()
}

/// The blocks of a row of the operand, in a kernel whose blocks have so many threads; rows are those of x.
pub(in crate::schedule) fn blocks_of_row(problem: &ActivationProblem, threads: u32) -> u32 {
    Partition::over(problem, threads).blocks
}

/// Writes a part of a row of the operand, whose rows are those of x, as a block of a kernel that has others
/// ([`blocks_of_row`]): declares its buffers, waits for the kernels before, and writes. No other kernel is needed
/// for the operand ([`ActivationProblem::launches`]).
pub(in crate::schedule) fn write_part(
    b: &mut Builder,
    problem: &ActivationProblem,
    (m, threads): (ParameterId, u32),
    [row, part]: [Operand; 2],
) {
    let programmatic = problem.target.has(Feature::GridDependency);
    let partition = Partition::over(problem, threads);
    let part = (partition.blocks > 1).then_some(part);
    let rows = OperandRows::declare(b, problem, m);
    let this = Writer::declare(b, problem, (partition, row, part), (m, rows));
    if programmatic {
        b.push(Op::GridLaunch);
    }
    this.write(b, rows, programmatic);
}

/// The buffer of an operand, of a role, with so many rows.
pub(in crate::schedule) fn operand_buffer(
    b: &mut Builder,
    problem: &ActivationProblem,
    role: BufferRole,
    rows: Extent,
) -> BufferId {
    let word = match problem.operand.stored_bits() {
        ..=8 => Word::U8,
        16 => Word::U16,
        _ => Word::U32,
    };
    let bytes = problem.padded * problem.operand.stored_bits() / 8;
    let shape = [rows, Extent::Constant(bytes / word.bytes())];
    let layout = format!("{} [p, m]", problem.operand);
    b.buffer_of(role, word, problem.rows_access(), &shape, &layout)
}

/// Everything that the parts of the kernel share.
struct Writer<'p> {
    problem: &'p ActivationProblem,
    partition: Partition,
    source: VectorSource,
    levels: Option<Levels<'p>>,
    group_scales: Option<GroupScales<'p>>,
    operand: Space,
    /// The number of the row, its first element of x, and the matrix whose static parameters it has.
    row: Operand,
    first: Operand,
    matrix: Operand,
    /// The thread's first column.
    column: Operand,
}

impl<'p> Writer<'p> {
    fn declare(
        b: &mut Builder,
        problem: &'p ActivationProblem,
        (partition, row, part): (Partition, Operand, Option<Operand>),
        (m, rows): (ParameterId, OperandRows),
    ) -> Self {
        let rows = rows.count();
        let source = VectorSource::declare(b, problem, m, problem.gathers);
        let own = problem.quantiser().filter(|_| !problem.has_scale_kernel());
        let given = own.map(|quantiser| Given::declare(b, problem, quantiser));
        let operand = operand_buffer(b, problem, BufferRole::Operand, rows);
        let scales = (problem, BufferRole::OperandScale);
        let levels = given.map(|given| Levels::declare(b, scales, given, (rows, m), row));
        let group_scales = GroupScales::declare(b, problem, (rows, m), row);
        let thread = b.special(Special::Thread);
        let first = match problem.routed {
            None => b.mul(row, problem.k),
            // Known when the order of pairs is.
            Some(_) => 0u32.into(),
        };
        let matrix = 0u32.into();
        let number = match part {
            None => thread,
            Some(part) => b.mad(part, partition.threads, thread),
        };
        let column = b.mul(number, VECTOR);
        Self {
            problem,
            partition,
            source,
            levels,
            group_scales,
            operand: operand.into(),
            row,
            first,
            matrix,
            column,
        }
    }

    /// Columns of all vectors of all threads of a row.
    const fn reach(&self) -> u32 {
        self.partition.blocks * self.partition.vectors * self.partition.apart()
    }

    /// The end of the columns of x (or of the order) that are loaded; `None` if all threads' columns
    /// exist.
    fn limit(&self) -> Option<Operand> {
        let columns = if self.problem.gathers { self.problem.padded } else { self.problem.k };
        (self.reach() > columns).then_some(Operand::U32(columns))
    }

    /// Loads the vector of x at a column.
    fn load(&self, b: &mut Builder, column: Operand) -> Vec<Operand> {
        self.source.load(b, self.first, column, self.limit())
    }

    /// Which elements of a vector of the operand are not pads; `None` if all are.
    fn there(&self, b: &mut Builder, column: Operand) -> Option<Vec<Operand>> {
        let pads = self.problem.padded > self.problem.k;
        let columns = pads.then(|| self.source.columns(b, column, self.limit()))?;
        Some(columns.into_iter().map(|column| column.there).collect())
    }

    /// Writes the row; a row of a slot, if the pair has one, and zeros in slots without a pair that follow.
    fn write(mut self, b: &mut Builder, rows: OperandRows, programmatic: bool) {
        if self.problem.routed.is_none() {
            return self.write_row(b, programmatic);
        }
        if programmatic {
            b.push(Op::GridWait);
        }
        let Some(row) = rows.of_pair(b, self.row) else { return };
        let SlotRow { number, there, of_x, matrix, empty } = row;
        b.when(there, |b| {
            self.row = number;
            self.source = self.source.of_matrix(b, self.problem, matrix);
            self.first = b.mul(of_x, self.problem.k);
            self.matrix = matrix;
            self.write_row(b, false);
            let Some((first, end)) = empty else { return };
            b.comment("slots of the token block without a pair");
            b.for_each(first, end, 1u32, "slot", |b, slot| {
                self.row = slot;
                self.write_zeros(b);
            });
        });
    }

    /// Writes a row of zeros, with scales of 0.
    fn write_zeros(&self, b: &mut Builder) {
        let words = (VECTOR * self.problem.operand.stored_bits() / 32).max(1);
        let zeros = vec![Operand::U32(0); words as usize];
        for vector in 0..self.partition.vectors {
            let column = b.add(self.column, vector * self.partition.apart());
            let inside = self.inside(b, column);
            let place = (self.row, column, inside);
            if let Some(levels) = &self.levels {
                levels.store_scale(b, place, (0.0f32.into(), Some(0.0f32.into())));
            }
            if let Some(of_groups) = &self.group_scales {
                of_groups.store_zeros(b, place);
            }
            self.store(b, column, &zeros, inside);
        }
    }

    /// Writes the row. With `waits` the kernel waits for those before it as late as possible.
    fn write_row(&self, b: &mut Builder, waits: bool) {
        let constants = self.levels.as_ref();
        let constants = constants.map(|levels| levels.load_constants(b, self.matrix));
        if waits {
            b.push(Op::GridWait);
        }
        let outer = |b: &mut Builder, row: Option<ValueRange>| {
            let levels = self.levels.as_ref().zip(constants.as_ref());
            levels.map(|(levels, constants)| levels.of_row(b, constants, row))
        };
        let apart = self.partition.apart();
        if let Some(of_groups) = &self.group_scales {
            let (words, columns) =
                self.source.load_with_columns(b, self.first, self.column, self.limit());
            self.finish_group_scales(b, of_groups, &words, &columns);
        } else if !self.problem.spans_columns() {
            let vectors = self.load_vectors(b);
            let outer = outer(b, None);
            for (column, words) in &vectors {
                self.finish(b, *column, words, outer.as_ref());
            }
        } else if self.partition.vectors <= HELD {
            let vectors = self.load_vectors(b);
            let running = Running::start(b, self.problem.signed());
            for (_, words) in &vectors {
                let elements = self.source.elements(b, words);
                running.add(b, &elements);
            }
            let row = running.range().of_block(b, self.partition.threads);
            let outer = outer(b, Some(row));
            for (column, words) in &vectors {
                self.finish(b, *column, words, outer.as_ref());
            }
        } else {
            let running = Running::start(b, self.problem.signed());
            b.for_each(0u32, self.reach(), apart, "at", |b, at| {
                let column = b.add(self.column, at);
                let words = self.load(b, column);
                let elements = self.source.elements(b, &words);
                running.add(b, &elements);
            });
            let row = running.range().of_block(b, self.partition.threads);
            let outer = outer(b, Some(row));
            b.for_each(0u32, self.reach(), apart, "at", |b, at| {
                let column = b.add(self.column, at);
                let words = self.load(b, column);
                self.finish(b, column, &words, outer.as_ref());
            });
        }
    }

    /// Loads all vectors of the thread, each with its column.
    fn load_vectors(&self, b: &mut Builder) -> Vec<(Operand, Vec<Operand>)> {
        let vectors = (0..self.partition.vectors).map(|vector| {
            let column = b.add(self.column, vector * self.partition.apart());
            (column, self.load(b, column))
        });
        vectors.collect()
    }

    /// Whether a vector is inside of the operand.
    fn inside(&self, b: &mut Builder, column: Operand) -> Operand {
        match self.reach() > self.problem.padded {
            true => b.less(column, self.problem.padded),
            false => Operand::Pred(true),
        }
    }

    /// Writes the thread's vector of the operand with scales from an earlier kernel.
    fn finish_group_scales(
        &self,
        b: &mut Builder,
        group_scales: &GroupScales<'_>,
        words: &[Operand],
        columns: &[SourceColumn],
    ) {
        let inside = self.inside(b, self.column);
        let elements = self.source.elements(b, words);
        let at = (self.row, self.column, inside);
        let words = group_scales.quantise(b, &elements, columns, at);
        self.store(b, self.column, &words, inside);
    }

    /// Writes a vector of the operand, and the scales of groups that start there.
    fn finish(&self, b: &mut Builder, column: Operand, words: &[Operand], outer: Option<&OfRow>) {
        let inside = self.inside(b, column);
        self.finish_where(b, (column, inside), words, outer);
    }

    /// The same of a vector that is inside of the operand, or not.
    fn finish_where(
        &self,
        b: &mut Builder,
        (column, inside): (Operand, Operand),
        words: &[Operand],
        outer: Option<&OfRow>,
    ) {
        let words = match (&self.levels, outer) {
            (Some(levels), Some(outer)) => {
                let elements = self.source.elements(b, words);
                let at = (self.row, column, inside);
                levels.quantise(b, outer, &elements, at, |b| self.there(b, column))
            }
            _ if self.problem.keeps_pairs() => self.source.pairs(b, words),
            _ => {
                let elements = self.source.elements(b, words);
                self.converted(b, elements)
            }
        };
        self.store(b, column, &words, inside);
    }

    fn store(&self, b: &mut Builder, column: Operand, words: &[Operand], inside: Operand) {
        let at = b.mad(self.row, self.problem.padded, column);
        if let Some(fragments) = self.problem.fragments {
            return self.store_fragments(b, fragments, (at, column), words, masked(inside));
        }
        if self.problem.operand.bits() < 8 {
            return self.store_small(b, at, words, masked(inside));
        }
        let width = if words.len() == 2 { Width::B64 } else { Width::B128 };
        for (first, words) in (0..).step_by(width.registers()).zip(words.chunks(width.registers()))
        {
            let to = Address::new(self.operand, at).plus(first);
            b.store(to, words, width, masked(inside));
        }
    }
}

impl Writer<'_> {
    /// Elements in f32 as words of a float operand, rounded to nearest even.
    fn converted(&self, b: &mut Builder, elements: Vec<Operand>) -> Vec<Operand> {
        let half = match self.problem.operand {
            crate::plan::OperandType::F16 => Half::F16,
            crate::plan::OperandType::Bf16 => Half::Bf16,
            _ => return elements,
        };
        let pairs = elements.chunks_exact(2);
        pairs.map(|pair| b.binary(Binary::Pack(half), pair[0], pair[1])).collect()
    }

    /// Stores the bytes of a vector at their positions in fragments ([`ByteFragments::column`]); `at` is the vector's place
    /// in the order of columns, `column` its first column.
    fn store_fragments(
        &self,
        b: &mut Builder,
        fragments: ByteFragments,
        (at, column): (Operand, Operand),
        words: &[Operand],
        mask: Option<Operand>,
    ) {
        let [low, high] = [words[0], words[1]];
        match fragments {
            // A word of each half.
            ByteFragments::Whole => {
                let in_step = b.and(column, STEP - 1);
                let of_lane = b.div(in_step, 2u32);
                let first = b.sub(at, in_step);
                let first = b.add(first, of_lane);
                for (word, half) in [(low, 0), (high, STEP / 2)] {
                    let to = Address::new(self.operand, first).plus(half);
                    b.store(to, &[word], Width::B32, mask);
                }
            }
            ByteFragments::Rows => {
                b.store(Address::new(self.operand, at), words, Width::B64, mask);
            }
            // The columns of two vectors, alternating: a thread has the first half of both, its neighbour the second.
            ByteFragments::Nibbles => {
                let second = b.and(column, VECTOR);
                let second = b.equal(second, VECTOR);
                let (own, other) = (b.select(second, high, low), b.select(second, low, high));
                let other = b.shuffle(Shuffle::Xor, other, 1u32);
                let (first, last) = (b.select(second, other, own), b.select(second, own, other));
                let words = [0x5140u32, 0x7362]
                    .map(|bytes| b.ternary(Ternary::Permute, first, last, bytes));
                b.store(Address::new(self.operand, at), &words, Width::B64, mask);
            }
        }
    }

    /// Stores the codes of a vector, of fewer than 8 bits each; `at` is the number of its first code.
    /// 4-bit codes are one word; 6-bit codes are 6 bytes and two of the zero bytes that follow 32 codes.
    fn store_small(&self, b: &mut Builder, at: Operand, words: &[Operand], mask: Option<Operand>) {
        let store = |b: &mut Builder, at: Operand, word: Operand, width: Width| {
            b.store(Address::new(self.operand, at), &[word], width, mask);
        };
        let [low, high] = match words {
            [word] => {
                let at = b.div(at, 2u32);
                return store(b, at, *word, Width::B32);
            }
            [low, high, ..] => [*low, *high],
            [] => return,
        };
        // The vector is the first, second, third or fourth of 32 codes.
        let number = b.and(at, 24u32);
        let quarter = b.shr(number, 2u32);
        let first = b.sub(at, quarter);
        let middle = b.shr(low, 16u32);
        for (word, byte) in [(low, 0), (middle, 2), (high, 4)] {
            let at = b.add(first, byte);
            store(b, at, word, Width::B16);
        }
        let zeros = b.sub(at, number);
        let zeros = b.add(zeros, quarter);
        let zeros = b.add(zeros, 24u32);
        store(b, zeros, 0u32.into(), Width::B16);
    }
}

/// A mask, unless it is always true.
fn masked(there: Operand) -> Option<Operand> {
    (there != Operand::Pred(true)).then_some(there)
}
