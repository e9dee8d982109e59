//! Which tile is the fastest: a model of a block's time, fitted to measurements on an H200.
//!
//! A block takes [`START`] until its ring runs, then for each column the larger of what its products and its
//! dequantisation take, which overlap but for a part, and at last the exchange of sums if two blocks split K.
//! Tiles beyond the blocks that run at once have blocks that persist, whose next tile takes [`TURN`] until its first
//! product, or else wait for a wave of their own. No time is below that of the bytes of w.
//! docs/performance/warp_group.md has the measurements.

use super::WarpGroupTile;
use super::shape::{ENOUGH_STAGES, ROWS, UNSWAPPED_GROUPS, UNSWAPPED_ROWS, VECTOR_WORDS};
use super::stage::groups_of_x;
use crate::schedule::byte_fragments::ByteFragments;
use crate::schedule::interface::Schedule;
use crate::schedule::mapping::MainLoop;
use crate::schedule::problem::Problem;
use crate::schedule::stack::Stack;
use crate::target::Half;

/// Microseconds until a block's first product, and from its last one to the next block.
const START: f64 = 3.0;
/// The same of a further tile of a block that persists: FP8 with 256 tokens, 8 tiles a block, 392 to 373 us.
const TURN: f64 = 0.6;
/// Microseconds in which two blocks exchange sums: the cluster meets, and what each 64 rows and 128 tokens add.
const EXCHANGE: [f64; 2] = [0.4, 0.4];
/// Microseconds of the products of 64 rows, 128 tokens and 1024 columns of 16 bits, with a second group on
/// the same multiprocessor; bytes take half.
const PRODUCTS: f64 = 2.6;
/// What a product costs besides that of its tokens, in tokens, as its operand A is in registers: FP8 with 128 tokens took 785
/// cycles where its products have 512, with 256 tokens 1290 for 1024. (In an expert layer too: Mixtral 8x7B, per-channel FP8, M = 1024,
/// 48, 64, 80, 96, 112, 128 and 144 slots took 1502, 1213, 1113, 981, 1073, 1017 and 847 us; times their token blocks this says 1331,
/// 1158, 1125, 974, 1058, 963 and 847.)
const FRAGMENT: f64 = 64.0;
/// Microseconds in which one group dequantises 64 rows of 1024 columns, and in which each group adds to
/// that of the others, with scales on the weights.
const DEQUANTISED: [f64; 2] = [1.2, 0.7];
/// The same in an expert layer, whose blocks persist (e2m1, 8 and 16 slots: two, three and four groups took 1, 0.905 and 0.86 of the
/// time a row).
const DEQUANTISED_STACKED: [f64; 2] = [0.74, 0.93];
/// Microseconds of a slot of a tile, beside its products: its row of x, its gates, its row of y (16 slots in place of 8, half of them
/// without a pair: 1.02 to 1.05 of the time).
const SLOT: f64 = 0.04;
/// The share of dequantisation that is left where scales multiply sums: 9 of 13 instructions.
const UNSCALED: f64 = 9.0 / 13.0;
/// The share of dequantisation of codes that are multiplied as bytes: those of fewer bits, and codes as they are stored.
const BYTES: [f64; 2] = [0.55, 0.1];
/// Instructions of the parts of a group's number, a scale or a term, for both rows of a lane.
const OF_PARTS: f64 = 11.0;
/// Microseconds of a segment's end where scales multiply sums of 64 tokens or more: products are waited for, those of
/// fewer tokens so much shorter.
const DRAINED: f64 = 0.06;
/// Microseconds of a segment's end where scales of x multiply sums too, and what each 64 rows and 128 tokens add.
const PROMOTED: [f64; 2] = [0.18, 0.05];
/// The share that a tile of an expert layer takes then, of what the others of these numbers say (Qwen3-30B, FP8 in blocks, 64 slots:
/// down took 1.15 of the time that it takes without swapped operands, where these say 0.93).
const PROMOTED_STACKED: f64 = 1.25;
/// Microseconds of 1024 columns where operands are not swapped, with two groups or three, and what each 64 tokens add: FP8 in blocks
/// with 128, 192 and 256 tokens took 3.7, 5.2 and 6.4.
const UNSWAPPED: [f64; 2] = [1.0, 1.35];
/// Bytes of w a microsecond from memory.
const MEMORY: f64 = 3.9e6;
/// Bytes of w and x a microsecond from the second level of cache, by the fastest kernels measured: int8 on both sides, 256
/// tokens; x in 16 bits, 64 rows and 256 tokens.
const CACHE: [f64; 2] = [10.2e6, 12.4e6];
/// Blocks that run at once: multiprocessors of an H100 with HBM3, and of an H200.
pub(super) const AT_ONCE: u32 = 132;
/// Warp groups and their tiles of rows in an expert layer; with a gate those with a tile of each matrix.
pub(super) const STACKED: [(u32, u32); 8] =
    [(4, 2), (3, 2), (2, 2), (4, 1), (3, 1), (2, 1), (1, 2), (1, 1)];
/// Those that are taken where memory bounds them, weights are made 16-bit numbers and rows are short: multiprocessors share out
/// smaller tiles more evenly (Qwen3-30B `ct_w4a16`, 8 and 16 slots: 0.97 to 0.98 of the time of four groups; W4AFP8 1.03),
const SHARED_OUT: (u32, u32) = (2, 2);
/// and the stages of their ring (8 and 10 took 1.01 and 1.02 to 1.05 of the time).
const SHARED_OUT_STAGES: u32 = 6;
/// The share of the time of memory, and of the fastest tile, up to which they are taken: with 16 slots two groups were faster in both
/// products, whose shares are 0.96 and 1.07.
const HIDDEN: f64 = 1.08;
/// The most slots of these: with 24 the layer took 1.03 to 1.04 of the time that it takes with four groups in
/// gate_up (Qwen3-30B `ct_w4a16`, M = 192 and 256).
const SHARED_OUT_UP_TO: u32 = 16;
/// The most columns of a short row: with 2048 the layer above gained, with 4096 one lost (Mixtral 8x7B, 1.04).
const SHORT_ROW: u32 = 2048;
/// The most slots for three and four groups, which have fewer registers a thread, and products that bound with more slots. (With 64 three
/// took 0.92 of the time of two in gpt-oss-120b's MXFP4, 0.96 and 0.97 in Qwen3-30B's NVFP4 and int8; in down alone, with 80, 1.03 in
/// Qwen3-30B's `ct_w4a16`.)
const MANY_GROUPS_UP_TO: u32 = 64;
/// The least batch of four groups: with 16 slots two took 1.06 of the time of four, one is not measured.
const LEAST_BATCH_OF_FOUR: u32 = 2;

/// The same where operands are not swapped, for the slots of a token block: each of two groups multiplies 64 of its own, or both
/// 128. Microseconds of 1024 columns, on the scale of swapped operands' (Qwen3-30B and Mixtral, FP8 in blocks, 8 to 256 rows an expert:
/// docs/performance/experts.md): all are 2.6 times as long, since these times know nothing of memory.
const UNSWAPPED_STACKED: [(u32, f64); 2] = [(64, 1.65), (128, 2.55)];
/// Warp groups and tiles of tokens of these.
const UNSWAPPED_STACKED_GROUPS: (u32, u32) = (2, 1);

/// A tile that the model times: what it decides.
#[derive(Clone, Copy)]
struct CandidateTile {
    tokens: u32,
    groups: u32,
    row_tiles: u32,
    splits: u32,
    unswapped: bool,
    exact: bool,
}

/// The fastest tile of the model.
pub(super) fn fastest(problem: &Problem, tokens: u32) -> Option<WarpGroupTile> {
    if let Some(stack) = problem.stack {
        return fastest_of_stack(problem, tokens, stack);
    }
    let main = &MainLoop::new(problem);
    let mut timed: Vec<([f64; 2], WarpGroupTile)> = candidates(problem, tokens)
        .filter_map(|shape| {
            let tile = shape.tile(problem, tokens)?;
            Some((shape.microseconds(main, tokens, tile.persistent), tile))
        })
        .collect();
    // Of those that memory bounds alike, the one that could be faster.
    timed.sort_by(|([one, own], _), ([other, of_other], _)| {
        one.total_cmp(other).then(own.total_cmp(of_other))
    });
    let deep = timed.iter().find(|(_, tile)| tile.stages >= ENOUGH_STAGES);
    deep.or(timed.first()).map(|(_, tile)| *tile)
}

/// The fastest tile with as many tokens as a token block has slots, if each expert has one token block. A block has
/// one tile after another, so that only its first one waits for the ring.
fn fastest_of_stack(problem: &Problem, slots: u32, stack: Stack) -> Option<WarpGroupTile> {
    shared_out(problem, slots, stack)
        .or_else(|| timed_of_stack(problem, slots, stack).map(|timed| timed.tile))
}

/// Microseconds of the tiles of one token block an expert, by the fastest tile, with memory that bounds none; `None` if no tile
/// fits. Numbers of slots are compared by this time, also where [`shared_out`] then gives a smaller tile.
pub(super) fn microseconds_of_stack(problem: &Problem, slots: u32) -> Option<f64> {
    timed_of_stack(problem, slots, problem.stack?).map(|timed| timed.own)
}

/// The tile that multiprocessors share out evenly, if rows are short and the tile takes hardly longer than memory, and than the fastest
/// one ([`HIDDEN`]).
pub(super) fn shared_out(problem: &Problem, slots: u32, stack: Stack) -> Option<WarpGroupTile> {
    if slots > SHARED_OUT_UP_TO || problem.k > SHORT_ROW || problem.half().is_none() {
        return None;
    }
    let fastest = timed_of_stack(problem, slots, stack)?;
    let small = timed(problem, (slots, stack), (SHARED_OUT, false))?;
    let hidden = small.time <= HIDDEN * small.memory.min(fastest.time);
    let stages = small.tile.stages.min(SHARED_OUT_STAGES);
    hidden.then_some(WarpGroupTile { stages, ..small.tile })
}

/// A tile of an expert layer, and the microseconds of all such tiles: with memory, without, and of memory alone.
struct TimedTile {
    time: f64,
    own: f64,
    memory: f64,
    tile: WarpGroupTile,
}

/// The fastest tile, whatever its size.
fn timed_of_stack(problem: &Problem, slots: u32, stack: Stack) -> Option<TimedTile> {
    let main = &MainLoop::new(problem);
    let swapped = STACKED.map(|shape| (shape, false)).into_iter();
    let unswapped = UNSWAPPED_STACKED.into_iter().filter(|(tokens, _)| *tokens == slots);
    let all = swapped.chain(unswapped.map(|_| (UNSWAPPED_STACKED_GROUPS, true)));
    // Sums with scales of x are added in turn with products, whatever groups there are (FP8 in blocks, 32 slots, Qwen3-30B: three
    // groups took 0.99, 1.01 and 1.03 of the time of two at M = 256, 512 and 1024).
    let many = slots <= MANY_GROUPS_UP_TO && groups_of_x(main).is_none();
    let served = all.filter(|((groups, _), _)| *groups <= 2 || many);
    let timed = served.filter_map(|shape| timed(problem, (slots, stack), shape));
    // Of those that memory bounds alike, the one that could be faster.
    timed.min_by(|one, other| {
        let [shallow, of_other] = [one, other].map(|of| of.tile.stages < ENOUGH_STAGES);
        let faster = one.time.total_cmp(&other.time).then(one.own.total_cmp(&other.own));
        shallow.cmp(&of_other).then(faster)
    })
}

/// A tile of so many warp groups and tiles of rows, whose operands are swapped or not; `None` if none fits.
fn timed(
    problem: &Problem,
    (slots, stack): (u32, Stack),
    ((groups, row_tiles), unswapped): ((u32, u32), bool),
) -> Option<TimedTile> {
    let main = &MainLoop::new(problem);
    let code = f64::from(problem.plan.dequant.weight.code.bits()) / 8.0;
    // Scales on sums were no faster with a single matrix.
    let exact = !problem.may_scale_weights();
    let (shape, place) = ((groups, row_tiles), (exact, (1, false)));
    let fits = WarpGroupTile::fits;
    let tile = match unswapped {
        true => WarpGroupTile::deepest_unswapped(problem, (slots, shape), false, fits)?,
        false => WarpGroupTile::deepest(problem, slots, shape, place, fits)?,
    };
    if groups > 3 && tile.batch < LEAST_BATCH_OF_FOUR {
        return None;
    }
    let (tokens, splits) = (slots, 1);
    let shape = CandidateTile { tokens, groups, row_tiles, splits, unswapped, exact };
    let rows = problem.grid_rows().div_ceil(shape.rows());
    let tiles = u64::from(rows) * u64::from(stack.experts);
    let waves = tiles.div_ceil(AT_ONCE.into()) as f64;
    let promoted = if groups_of_x(main).is_some() && !unswapped { PROMOTED_STACKED } else { 1.0 };
    let own = promoted * (shape.of_block(main) - START + SLOT * f64::from(slots));
    let bytes = f64::from(shape.rows()) * f64::from(problem.k) * code;
    let memory = bytes / (MEMORY / f64::from(AT_ONCE));
    let [time, own, memory] = [own.max(memory), own, memory].map(|time| waves * time);
    Some(TimedTile { time, own, memory, tile })
}

/// Where scales of groups may multiply: weights, sums.
fn places_of_scales(problem: &Problem) -> &'static [bool] {
    match (problem.may_scale_weights(), problem.scales_segments()) {
        (true, false) => &[false],
        (true, true) => &[false, true],
        (false, _) => &[true],
    }
}

/// The tiles that the model compares.
fn candidates(problem: &Problem, tokens: u32) -> impl Iterator<Item = CandidateTile> {
    let exact = places_of_scales(problem);
    let wide = WarpGroupTile::token_tiles(problem, tokens).into_iter();
    let blocks = [(2, 1), (1, 1), (2, 2)];
    let all = wide.flat_map(move |own| blocks.map(|block| (own, block)));
    let all = all.flat_map(|of| [1, 2].map(|splits| (of, splits)));
    let swapped = all.flat_map(move |((tokens, (groups, row_tiles)), splits)| {
        let shape = move |&exact| {
            let unswapped = false;
            CandidateTile { tokens, groups, row_tiles, splits, unswapped, exact }
        };
        exact.iter().map(shape)
    });
    swapped.chain(UNSWAPPED_GROUPS.map(|(groups, row_tiles)| {
        let tokens = groups * row_tiles * ROWS;
        CandidateTile { tokens, groups, row_tiles, splits: 1, unswapped: true, exact: true }
    }))
}

/// The share of dequantisation that is left where scales multiply the constants of last steps: a multiplication for each
/// constant, row of a lane and group, in place of one for each register of the operand.
fn in_constants(main: &MainLoop<'_>) -> Option<f64> {
    let plan = &main.problem.plan;
    let (sequence, scale) = (plan.dequant.stages.last()?, main.problem.scale?);
    let constants = sequence.scaled_constants(main.rows(&scale).len as usize);
    let [steps, registers, constants] =
        [sequence.steps.len(), sequence.outputs.len(), constants].map(|count| count as f64);
    // Words of a lane in a group.
    let words = f64::from(VECTOR_WORDS * scale.columns) / f64::from(plan.native.columns);
    Some((steps + constants / words) / (steps + registers))
}

/// The share of dequantisation that there is where lanes make numbers of scales, and terms: an operation a register of the
/// operand, or if they are sums of two numbers one for each part, and with a term a third that adds both sums; one less where scales
/// stand for the power of two of last steps.
fn in_parts(main: &MainLoop<'_>) -> Option<f64> {
    let plan = &main.problem.plan;
    let (folded, parts) = (plan.scale.folded?, plan.scale.parts()?);
    let sequence = plan.dequant.stages.last()?;
    let numbers = if main.problem.correction.is_some() { 2.0 } else { 1.0 };
    let stands = folded.exponent.and_then(|_| plan.dequant.factors()).is_some();
    let each = match parts {
        1 => 1.0,
        _ => 1.0 + numbers - f64::from(u8::from(stands)),
    };
    let [steps, registers] =
        [sequence.steps.len(), sequence.outputs.len()].map(|count| count as f64);
    let words = f64::from(VECTOR_WORDS * folded.columns) / f64::from(plan.native.columns);
    Some((steps + each * registers + OF_PARTS * numbers / words) / (steps + registers))
}

impl CandidateTile {
    fn rows(&self) -> u32 {
        if self.unswapped { UNSWAPPED_ROWS } else { self.groups * self.row_tiles * ROWS }
    }

    /// The tile, with blocks that persist if there are more tiles than run at once and a ring deep enough.
    fn tile(&self, problem: &Problem, tokens: u32) -> Option<WarpGroupTile> {
        let several = self.tiles(problem, tokens) > AT_ONCE.into();
        let deepest = |persistent| {
            let (block, place) =
                ((self.groups, self.row_tiles), (self.exact, (self.splits, persistent)));
            let fits = WarpGroupTile::fits;
            match self.unswapped {
                true => {
                    let block = (self.tokens, block);
                    WarpGroupTile::deepest_unswapped(problem, block, persistent, fits)
                }
                false => WarpGroupTile::deepest(problem, self.tokens, block, place, fits),
            }
        };
        let enough = |tile: &WarpGroupTile| tile.stages >= ENOUGH_STAGES;
        let persists = self.splits == 1 && several;
        let persistent = || persists.then(|| deepest(true).filter(enough)).flatten();
        // Rather whole stages than blocks that persist.
        let in_parts = problem.plan.scale.parts() == Some(2);
        let whole = deepest(false).filter(|tile| in_parts && tile.parts == 1 && enough(tile));
        let tile = match persistent() {
            Some(tile) if tile.parts == 1 => tile,
            persistent => whole.or(persistent).or_else(|| deepest(false))?,
        };
        // A launch that starts early takes multiprocessors from blocks that wait for a wave; blocks that persist are not
        // faster with one.
        Some(WarpGroupTile { programmatic: tile.programmatic && !several, ..tile })
    }

    /// Tiles of the product: blocks of a launch that do not persist.
    fn tiles(&self, problem: &Problem, tokens: u32) -> u64 {
        let rows = problem.grid_rows().div_ceil(self.rows());
        u64::from(rows) * u64::from(tokens.div_ceil(self.tokens)) * u64::from(self.splits)
    }

    /// Microseconds of a product whose blocks persist or not, and those of its blocks with memory that bounds none.
    fn microseconds(&self, main: &MainLoop<'_>, tokens: u32, persistent: bool) -> [f64; 2] {
        let problem = main.problem;
        let tiles = self.tiles(problem, tokens);
        let waves = tiles.div_ceil(AT_ONCE.into()) as f64;
        let bytes = f64::from(problem.input.bytes(1024)) / 1024.0;
        let columns = f64::from(problem.k.div_ceil(self.splits)) / 1024.0;
        let block = self.of_block(main);
        let code = f64::from(problem.plan.dequant.weight.code.bits()) / 8.0;
        let memory = f64::from(problem.n) * f64::from(problem.k) * code / MEMORY;
        let line = f64::from(self.tokens) * bytes + f64::from(self.rows()) * code;
        let [of_bytes, of_halves] = CACHE;
        let rate = if problem.half().is_some() { of_halves } else { of_bytes };
        let cache = tiles as f64 * line * columns * 1024.0 / rate;
        let starts = match persistent {
            true => START + (waves - 1.0) * TURN,
            false => waves * START,
        };
        let own = waves * (block - START) + starts;
        [own.max(START + memory).max(starts + cache), own]
    }

    /// Microseconds of a block.
    fn of_block(&self, main: &MainLoop<'_>) -> f64 {
        let problem = main.problem;
        let bytes = f64::from(problem.input.bytes(1024)) / 1024.0;
        let columns = f64::from(problem.k.div_ceil(self.splits)) / 1024.0;
        if self.unswapped {
            let [all, each] = UNSWAPPED;
            let mut stacked = UNSWAPPED_STACKED.into_iter().filter(|_| problem.stack.is_some());
            let of_columns = match stacked.find(|(tokens, _)| *tokens == self.tokens) {
                Some((_, of_columns)) => of_columns,
                None => all + each * f64::from(self.tokens) / f64::from(ROWS),
            };
            return START + columns * of_columns;
        }
        let (groups, tiles) = (f64::from(self.groups), f64::from(self.row_tiles));
        let exact = self.exact && problem.scales_segments();
        let tokens = f64::from(self.tokens);
        // Only where scales cannot multiply weights, so that it does not shift the choice between the two, and in expert layers whose
        // products are all that takes long: bytes as they are stored, whose sums are not drained before the end of K.
        let stored =
            matches!(problem.input.fragments, Some(ByteFragments::Whole | ByteFragments::Rows));
        let products_alone = problem.stack.is_some() && stored && !exact;
        let wide = match products_alone || !problem.may_scale_weights() && self.tokens > 128 {
            true => (tokens + FRAGMENT) / (128.0 + FRAGMENT),
            false => tokens / 128.0,
        };
        let products = PRODUCTS * groups * tiles * wide * bytes / 2.0;
        let [first, each] = if problem.stack.is_some() { DEQUANTISED_STACKED } else { DEQUANTISED };
        let [narrow, whole] = BYTES;
        let share = match problem.input.fragments {
            Some(ByteFragments::Whole | ByteFragments::Rows) => whole,
            Some(ByteFragments::Nibbles) => narrow,
            None if problem.sums_integers() => narrow,
            None if exact => UNSCALED,
            None => {
                let in_range = problem.scales_in_range() && problem.half() == Some(Half::Bf16);
                let constants = || if in_range { in_constants(main) } else { None };
                // In expert layers that chooses tiles from 7% slower to 7% faster, and as fast in the mean: not worth other kernels.
                let parts = if problem.stack.is_none() { in_parts(main) } else { None };
                parts.or_else(constants).unwrap_or(1.0)
            }
        };
        let dequantised = (first + each * groups) * tiles * share;
        // They overlap, the better the less equal they are.
        let together = (products.powi(3) + dequantised.powi(3)).cbrt();
        let of_segment = match groups_of_x(main) {
            Some(_) => {
                let [first, each] = PROMOTED;
                first + each * groups * tiles * f64::from(self.tokens) / 128.0
            }
            None => DRAINED * (f64::from(self.tokens) / 64.0).min(1.0),
        };
        let drained = if exact { of_segment * 1024.0 / f64::from(main.segment()) } else { 0.0 };
        let [meet, sums] = EXCHANGE;
        let exchanged = match self.splits {
            1 => 0.0,
            _ => meet + sums * groups * tiles * f64::from(self.tokens) / 128.0,
        };
        START + columns * (together + drained) + exchanged
    }
}
