//! The matrices of one product of a layer: [experts][shards], each a dense weight.
//!
//! In: weights that are packed already. Out: a [`Stack`], with the memory that token blocks of any
//! number of rows need.

use quantloom_dsl::Scheme;
use quantloom_dsl::format::{BF16, F16, F32, FloatFormat};

use super::super::activation;
use super::super::blocking::{Blocking, Instruction};
use super::super::weight::CpuWeight;
use super::blocks::MOST_ROWS;
use super::product::few_parts;
use crate::accumulation::{Accumulation, Sums};
use crate::buffer::bytes_of;

/// The types that x may be packed for; without one, x is not split into bf16 parts.
const PACKED: [Option<FloatFormat>; 4] = [Some(F32), Some(BF16), Some(F16), None];

/// The matrices of a product.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    scheme: Scheme,
    shards: usize,
    /// [expert][shard].
    matrices: Vec<CpuWeight>,
    /// `[expert]`: whether all shards read x in the same way; and whether all experts do.
    alike: Vec<bool>,
    all_alike: bool,
    /// `[rows]`: lines of x, packed for one matrix.
    lines: Vec<usize>,
    /// Lines of token blocks are at most the first number times the blocks plus the second times their
    /// rows.
    most_lines: (usize, usize),
    /// Bytes of memory of a thread: for products of the shards, and for a row of x.
    scratch: usize,
    row: usize,
    /// How products of many rows add, and from how many rows on.
    split: Option<(usize, Sums)>,
}

impl Stack {
    /// Of `shards` matrices an expert, at least one of each.
    pub(super) fn new(scheme: &Scheme, shards: usize, matrices: Vec<CpuWeight>) -> Self {
        let experts = || matrices.chunks_exact(shards);
        let same = |expert: &[CpuWeight]| expert.windows(2).all(|two| two[0].reads_alike(&two[1]));
        let alike: Vec<bool> = experts().map(same).collect();
        let all_alike = matrices.windows(2).all(|two| two[0].reads_alike(&two[1]));
        // Experts of one scheme and shape differ in little: sizes are computed once for each kind.
        let mut kinds: Vec<&CpuWeight> = Vec::new();
        for matrix in &matrices {
            if !kinds.iter().any(|kind| kind.native().blocks_alike(matrix.native())) {
                kinds.push(matrix);
            }
        }
        let largest = |rows: usize, bytes: &dyn Fn(&CpuWeight, &Blocking) -> usize| {
            let of = |kind: &&CpuWeight| {
                PACKED.map(|x| bytes(kind, &kind.of_tokens(rows, x))).into_iter().max()
            };
            kinds.iter().filter_map(of).max().unwrap_or(0)
        };
        let packed =
            |kind: &CpuWeight, blocking: &Blocking| activation::bytes(blocking, kind.native(), 0);
        let lines: Vec<usize> =
            (0..=MOST_ROWS).map(|rows| largest(rows, &packed).div_ceil(64)).collect();
        let packings = if alike.iter().all(|alike| *alike) { 1 } else { shards };
        let each_row = (packings * lines[MOST_ROWS]).div_ceil(MOST_ROWS);
        let more = |rows: usize| (1 + packings * lines[rows]).saturating_sub(rows * each_row);
        let each_block = (1..=MOST_ROWS).map(more).max().unwrap_or(0);
        let product = |rows: usize| {
            let sums = |_: &CpuWeight, blocking: &Blocking| {
                let columns = shards * rows * unit_panels(blocking, MOST_PANELS) * 16;
                let sums = shards * 64 + bytes_of::<f32>(columns);
                blocking.scratch() + sums.max(few_parts())
            };
            largest(rows, &sums)
        };
        let split = (1..=MOST_ROWS).find_map(|rows| {
            let of_bf16 = |kind: &&CpuWeight| {
                let x = PACKED.map(|x| kind.of_tokens(rows, x).instruction);
                x.into_iter().flatten().find(|instruction| *instruction != Instruction::Bytes)
            };
            Some((rows, kinds.iter().find_map(of_bf16)?.sums()))
        });
        Self {
            scheme: scheme.clone(),
            shards,
            alike,
            all_alike,
            most_lines: (each_block, each_row),
            scratch: (1..=MOST_ROWS).map(product).max().unwrap_or(0),
            row: kinds.iter().map(|kind| activation::row_bytes(kind.native())).max().unwrap_or(0),
            split,
            lines,
            matrices,
        }
    }

    pub(super) fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// The matrices of an expert.
    pub(super) fn shards(&self, expert: usize) -> &[CpuWeight] {
        &self.matrices[expert * self.shards..][..self.shards]
    }

    /// All matrices.
    pub(super) fn matrices(&self) -> &[CpuWeight] {
        &self.matrices
    }

    /// In how many ways the shards of an expert read x.
    pub(super) fn packings(&self, expert: usize) -> usize {
        if self.alike[expert] { 1 } else { self.shards }
    }

    /// Whether every matrix reads x in the same way.
    pub(super) fn all_alike(&self) -> bool {
        self.all_alike
    }

    /// Lines of x of a token block, packed for one matrix.
    pub(super) fn packed_lines(&self, rows: usize) -> usize {
        self.lines[rows]
    }

    /// Lines of a token block: one that says how x is packed, and x in each way that its expert reads.
    pub(super) fn block_lines(&self, expert: usize, rows: usize) -> usize {
        1 + self.packings(expert) * self.lines[rows]
    }

    /// The most lines of so many token blocks with so many rows in all.
    pub(super) fn most_lines(&self, blocks: usize, rows: usize) -> usize {
        let (each_block, each_row) = self.most_lines;
        each_block.saturating_mul(blocks).saturating_add(each_row.saturating_mul(rows))
    }

    /// Lines of memory of a thread.
    pub(super) fn scratch_lines(&self) -> usize {
        self.scratch.div_ceil(64)
    }

    /// Lines of memory of a thread that packs rows.
    pub(super) fn row_lines(&self) -> usize {
        self.row.div_ceil(64)
    }

    /// Whether a dynamic scale of x of a type is over several rows.
    pub(super) fn spans_tokens(&self, x: FloatFormat) -> bool {
        let quantiser = self.scheme.activation_for(x).and_then(|choice| choice.quantiser());
        quantiser.is_some_and(quantloom_dsl::Quantiser::spans_tokens)
    }

    /// How products of up to so many rows add.
    pub(super) fn sums(&self, rows: usize) -> Sums {
        match (self.split, self.matrices.first()) {
            (Some((from, sums)), _) if rows >= from => sums,
            (_, Some(matrix)) => matrix.sums(F32, 1),
            (_, None) => Sums::Float,
        }
    }
}

/// The most panels of a unit.
pub(super) const MOST_PANELS: usize = 16;

/// Panels of a unit of work of a blocking, at most `batch` of those that are decoded on the fly.
pub(super) fn unit_panels(blocking: &Blocking, batch: usize) -> usize {
    if blocking.fused { batch } else { blocking.panels }
}
