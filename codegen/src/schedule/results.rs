//! How sums become y: through shared memory, and through the workspace where blocks split K.
//!
//! In: D of the products, per tile of rows and of tokens. Each lane leaves its sums in shared memory
//! by part, token and row; then threads add the parts up and write rows that are neighbours. With
//! `splits` > 1 a block leaves what it has in a slot of its own, and the last to arrive adds the
//! slots in order: nothing waits, and the result does not depend on who was last.

use super::chunk::width;
use super::constants::Constants;
use super::io::Io;
use super::mapping::MainLoop;
use crate::ir::{
    Access, Address, AtomicOp, Binary, BufferId, Builder, Cache, Extent, Half, MemoryOrder, Op,
    Operand, Reg, Scope, SharedId, Special, Type, Uniformity, Width, Word,
};
use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16};

/// Where sums lie in shared memory: `[token][row]` in pieces of four rows, which are permuted among those
/// of all banks: what lanes hold that are served together lies in different ones, next to each other
/// rows of a token, or the same four rows of neighbouring tokens (AMD), or a row each of every second
/// token (NVIDIA).
///
/// The word of a result is `(token * rows + row) ^ turned(token)`: the XOR of the words of the bits of token
/// and row, since sizes are powers of two. Where they are not, nothing is permuted.
#[derive(Clone, Copy)]
struct Banked {
    rows: u32,
    /// Tokens that fill all banks.
    full: u32,
    /// Tokens that a lane has side by side, of those.
    beside: u32,
    /// Words of all banks, if pieces are permuted; 0 where all tokens fit in the banks, or tokens by rows
    /// are no power of two.
    banks: u32,
}

impl Banked {
    fn new(main: &MainLoop<'_>, rows: u32, tokens: u32) -> Self {
        let banks = main.problem.target().gpu.map_or(rows, |gpu| gpu.banks);
        let full = (banks / rows.max(1)).max(1);
        let permuted = tokens > full && (tokens * rows).is_power_of_two();
        let beside = (main.lanes().d.tokens.len() as u32).min(full);
        Self { rows, full, beside, banks: if permuted { banks } else { 0 } }
    }

    /// By what the words of a token are permuted.
    const fn turned(self, token: u32) -> u32 {
        if self.banks == 0 { 0 } else { (token / self.full * self.beside * 4) & (self.banks - 1) }
    }

    /// The word of a result.
    fn word(self, b: &mut Builder, [token, row]: [Operand; 2]) -> Operand {
        let at = b.mad(token, self.rows, row);
        if self.banks == 0 {
            return at;
        }
        let turned = b.div(token, self.full);
        let turned = b.mul(turned, self.beside * 4);
        let turned = b.and(turned, self.banks - 1);
        b.xor(at, turned)
    }

    /// The word of a result whose token and row have these bits besides those of the one at `word`, as
    /// what to start from and what to add.
    fn further(self, b: &mut Builder, word: Operand, [token, row]: [u32; 2]) -> (Operand, u32) {
        let further = token * self.rows + row;
        let within = (further ^ self.turned(token)) & self.banks.saturating_sub(1);
        let more = further - (further & self.banks.saturating_sub(1));
        (if within == 0 { word } else { b.xor(word, within) }, more)
    }
}

/// Words of shared memory for the count that the last block to arrive is found by.
pub(super) const ORDER: u32 = 4;

/// What a block has computed.
pub(super) struct Results<'p> {
    pub(super) main: &'p MainLoop<'p>,
    pub(super) io: Io,
    /// What finished sums are multiplied with, and the bias; their copies are done.
    pub(super) constants: Constants,
    /// Rows of w of a block.
    pub(super) rows: u32,
    /// Tokens of a block.
    pub(super) tokens: u32,
    /// Partial sums that the block has of each result.
    pub(super) parts: u32,
    /// Blocks that split K.
    pub(super) splits: u32,
    /// Rows that a thread writes at once, 1 or 4.
    pub(super) at_once: u32,
    pub(super) warps: u32,
    /// Rows of x, at launch.
    pub(super) m: Operand,
    /// Number of the block along the rows, and how many there are.
    pub(super) row_block: (Operand, u32),
    /// Number of the block along the tokens, and how many there are: as a value, as an extent.
    pub(super) token_block: (Operand, Operand, Extent),
    /// Number of the block among those that split K.
    pub(super) split: Operand,
}

/// The sums of a lane.
pub(super) struct Held<'s> {
    /// D per tile of rows and of tokens.
    pub(super) sums: &'s [Vec<Vec<Reg>>],
    /// Registers of D that hold tokens.
    pub(super) registers: &'s [usize],
    /// Which partial sum it is.
    pub(super) part: Operand,
    /// The first of the warp's rows in the block.
    pub(super) first_row: Operand,
    pub(super) lane: Operand,
}

impl Results<'_> {
    /// Words of shared memory for a block's sums.
    pub(super) const fn words(rows: u32, tokens: u32, parts: u32) -> u32 {
        parts * tokens * rows
    }

    fn banked(&self) -> Banked {
        Banked::new(self.main, self.rows, self.tokens)
    }

    /// Writes y. Every warp comes here; what `over` holds is dead in all of them.
    pub(super) fn write(&self, b: &mut Builder, held: &Held<'_>, over: Option<SharedId>) {
        let words = Self::words(self.rows, self.tokens, self.parts);
        let layout = match self.banked().banks {
            0 => "f32 [row, token, part]",
            _ => "f32 [row, token, part], fours of rows permuted",
        };
        let shared = b.shared_block("sums", Word::U32, words, layout, 16, over);
        self.leave(b, held, shared);
        b.barrier();
        if self.splits == 1 {
            self.each(b, |b, place| {
                let values = self.total(b, shared, place);
                self.store(b, place, &values);
            });
            return;
        }
        let workspace = Workspace::declare(b, self);
        b.comment("this block's sums, into its own slot");
        self.each(b, |b, place| {
            let values = self.total(b, shared, place);
            let to = workspace.slot(b, self, self.split, place);
            b.store(to, &values, self.width(), None);
        });
        let last = workspace.arrive(b, self);
        b.when(last, |b| {
            self.each(b, |b, place| {
                let mut values = Vec::new();
                for split in 0..self.splits {
                    let from = workspace.slot(b, self, split.into(), place);
                    let next = b.load_as(Type::F32, from, self.width(), None, Cache::Default);
                    values = added(b, &values, &next);
                }
                self.store(b, place, &values);
            });
        });
    }

    const fn width(&self) -> Width {
        if self.at_once == 4 { Width::B128 } else { Width::B32 }
    }

    /// Each lane's sums, into shared memory.
    fn leave(&self, b: &mut Builder, held: &Held<'_>, shared: SharedId) {
        let (main, banked) = (self.main, self.banked());
        let d = &main.lanes().d;
        let row = d.rows.first.of(b, held.lane);
        let row = b.add(held.first_row, row);
        let token = d.token.of(b, held.lane);
        let at = banked.word(b, [token, row]);
        let at = b.mad(held.part, self.tokens * self.rows, at);
        // Rows that are neighbours in one token go together.
        let neighbours = |one: &usize, next: &usize| {
            let [[row, token], [next_row, next_token]] = [d.registers[*one], d.registers[*next]];
            d.rows.stride == 1 && token == next_token && row + 1 == next_row
        };
        for (of_rows, sums) in (0..).zip(held.sums) {
            for (of_tokens, sums) in (0..).zip(sums) {
                for together in held.registers.chunk_by(neighbours) {
                    let [row_of, token_of] = d.registers[together[0]];
                    let plus = of_tokens * main.token_tile() + d.tokens[token_of];
                    let number = b.add(token, plus);
                    let inside = b.less(number, self.tokens);
                    let ragged = !self.tokens.is_multiple_of(main.token_tile());
                    let in_tile = d.rows.stride * row_of as u32;
                    let further = main.problem.plan.native.rows * of_rows + in_tile;
                    let (at, further) = banked.further(b, at, [plus, further]);
                    let to = Address::new(shared, at).plus(further);
                    let values: Vec<Operand> =
                        together.iter().map(|&register| sums[register].into()).collect();
                    let width = width(values.len() as u32);
                    b.store(to, &values, width, ragged.then_some(inside));
                }
            }
        }
    }

    /// Deals the results out to the threads; `work` gets token and row.
    fn each(&self, b: &mut Builder, work: impl FnOnce(&mut Builder, [Operand; 2])) {
        let thread = b.special(Special::Thread);
        let threads = self.warps * b.warp_size();
        let pieces = self.tokens * self.rows / self.at_once;
        b.for_each(thread, pieces, threads, "result", |b, result| {
            let first = b.mul(result, self.at_once);
            let place = [b.div(first, self.rows), b.rem(first, self.rows)];
            work(b, place);
        });
    }

    /// The sum of the block's parts, of as many rows as are handled at once.
    fn total(&self, b: &mut Builder, shared: SharedId, [token, row]: [Operand; 2]) -> Vec<Operand> {
        let at = self.banked().word(b, [token, row]);
        let mut total = Vec::new();
        for part in 0..self.parts {
            let from = Address::new(shared, at).plus(part * self.tokens * self.rows);
            let next = b.load_as(Type::F32, from, self.width(), None, Cache::Default);
            total = added(b, &total, &next);
        }
        total
    }

    /// Finishes results, and writes them, rounded, where there are some.
    fn store(&self, b: &mut Builder, [token, row]: [Operand; 2], values: &[Operand]) {
        let main = self.main;
        let values = self.constants.finish(b, [token, row], self.width(), values);
        let token = b.mad(self.token_block.0, self.tokens, token);
        let n = b.mad(self.row_block.0, self.rows, row);
        let token_is = b.less(token, self.m);
        let mask = if main.problem.n.is_multiple_of(self.rows) {
            token_is
        } else {
            let row_is = b.less(n, main.problem.n);
            b.both(token_is, row_is)
        };
        let at = b.mad(token, main.problem.n, n);
        let to = Address::new(self.io.y, at);
        let half = match main.problem.output {
            NUMBER_F16 => Half::F16,
            NUMBER_BF16 => Half::Bf16,
            _ => return b.store(to, &values, self.width(), Some(mask)),
        };
        let pack = Binary::Pack(half);
        match values[..] {
            [v0, v1, v2, v3] => {
                let words = [b.binary(pack, v0, v1), b.binary(pack, v2, v3)];
                b.store(to, &words, Width::B64, Some(mask));
            }
            _ => {
                for value in values {
                    let word = b.binary(pack, value, value);
                    b.store(to, &[word], Width::B16, Some(mask));
                }
            }
        }
    }
}

/// Sums of two lists; of none and one, the one.
fn added(b: &mut Builder, total: &[Operand], next: &[Reg]) -> Vec<Operand> {
    if total.is_empty() {
        return next.iter().map(|&value| value.into()).collect();
    }
    total.iter().zip(next).map(|(&total, &next)| b.add_f32(total, next)).collect()
}

/// Where blocks that split K leave their sums and count their arrivals.
struct Workspace {
    sums: BufferId,
    /// One per range of rows and tokens; 0 before the first launch, and after each.
    arrivals: BufferId,
    /// Number of the block among those of other rows and tokens.
    number: Operand,
    /// How many of those there are.
    blocks: Operand,
}

impl Workspace {
    fn declare(b: &mut Builder, results: &Results<'_>) -> Self {
        let (row_block, row_blocks) = results.row_block;
        let (token_block, token_blocks, extent) = results.token_block;
        let rows = Extent::Constant(row_blocks);
        let each = Extent::Constant(results.tokens * results.rows);
        let shape = [Extent::Constant(results.splits), extent, rows, each];
        let layout = "f32 [row, token, rows of blocks, tokens of blocks, split]";
        let sums = b.buffer("partial", Word::U32, Access::Workspace, &shape, layout);
        let layout = "blocks that have arrived; 0 before the first launch, and after each";
        let arrivals = b.buffer("arrivals", Word::U32, Access::Workspace, &[extent, rows], layout);
        let number = b.mad(token_block, row_blocks, row_block);
        let blocks = b.mul(token_blocks, row_blocks);
        Self { sums, arrivals, number, blocks }
    }

    fn slot(
        &self,
        b: &mut Builder,
        results: &Results<'_>,
        split: Operand,
        [token, row]: [Operand; 2],
    ) -> Address {
        let block = b.mad(split, self.blocks, self.number);
        let place = b.mad(token, results.rows, row);
        let at = b.mad(block, results.tokens * results.rows, place);
        Address::new(self.sums, at)
    }

    /// Counts this block; true in all its threads if it is the last.
    fn arrive(&self, b: &mut Builder, results: &Results<'_>) -> Operand {
        let flag = b.shared("order", Word::U32, ORDER, "how many blocks came before this one");
        b.comment("the last block to arrive adds the slots up");
        b.barrier();
        let thread = b.special(Special::Thread);
        let leads = b.equal(thread, 0u32);
        let counter = Address::new(self.arrivals, self.number);
        b.when(leads, |b| {
            let before =
                b.atomic(AtomicOp::Add, counter, 1u32, MemoryOrder::AcquireRelease, Scope::Device);
            b.store(Address::new(flag, 0u32), &[before], Width::B32, None);
            let last = b.equal(before, results.splits - 1);
            b.when(last, |b| {
                let (value, order) = (0u32.into(), MemoryOrder::Relaxed);
                let scope = Scope::Device;
                b.push(Op::Atomic {
                    dst: None,
                    op: AtomicOp::Exchange,
                    at: counter,
                    value,
                    order,
                    scope,
                });
            });
        });
        b.barrier();
        let before = b.variable("before", Type::U32, Uniformity::Block);
        let from = Address::new(flag, 0u32);
        b.load_into(&[before], from, Width::B32, None, Cache::Default);
        b.equal(before, results.splits - 1)
    }
}
