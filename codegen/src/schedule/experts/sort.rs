//! The kernels that make the array `order`: pairs sorted by expert, in token blocks of one expert each.
//!
//! The sort counts: pairs of an expert keep their order, and a slot depends on the ids alone. Nothing is
//! reset before, and no atomic operation decides a place: these add up counts in shared memory. A pair's
//! number among those of its expert is the sum of counts of the parts of its chunk before its own, and of what a thread
//! finds by reading the pairs of that part. Each block, which
//! has a chunk of pairs, counts the pairs of all chunks; where there are many chunks, a kernel before counts
//! each one's pairs by expert.

use quantloom_dsl::{BufferRole, Dimension};

use super::elements::THREADS;
use crate::ir::{
    Access, Address, AtomicOp, BufferId, Builder, Cache, Extent, Kernel, LaunchConfig, Mask,
    MemoryOrder, Op, Operand, ParameterId, Scope, SharedId, Special, Type, Unary, Uniformity,
    Width, Word,
};
use crate::schedule::order::{NONE, OrderArray};
use crate::target::{Feature, Target};

/// Pairs of a chunk, which a block sorts; as many threads.
pub(in crate::schedule) const CHUNK: u32 = THREADS;
/// The most pairs that each block counts by itself: more take longer than a launch of another kernel.
pub const COUNTED_BY_ALL: u32 = 64 * CHUNK;
/// Chunks whose pairs or counts are loaded before the first of them is added: a load takes as long as adding hundreds.
const CHUNKS_AT_ONCE: u32 = 16;
/// Pairs of a part of a chunk: a thread reads those of its own part, and of each part before only a count.
const PART: u32 = 32;
/// Parts whose counts are bytes of one word.
const PARTS_A_WORD: u32 = 4;
/// The most experts of whose pairs parts are counted: WebGPU's blocks have 16 KiB of shared memory for all arrays.
const MOST_COUNTED_BY_PART: u32 = 512;
/// Pairs of shared memory that are loaded at once.
const AT_ONCE: u32 = 4;

/// The order of a layer's pairs on a target.
#[derive(Clone, Copy, Debug)]
pub struct SortProblem {
    /// The target, a GPU.
    pub target: &'static Target,
    /// E: ids are below.
    pub experts: u32,
    /// L: the experts that are here; E without an expert map.
    pub local: u32,
    /// Whether there is an expert map.
    pub mapped: bool,
    /// B: the slots of a token block.
    pub slots: u32,
    /// Whether there may be so many pairs, as a rule more than [`COUNTED_BY_ALL`], that a kernel of its own counts
    /// those of each chunk.
    pub counted: bool,
}

impl SortProblem {
    /// The number of kernels.
    pub const fn launches(&self) -> u32 {
        1 + self.counted as u32
    }

    /// The name of a kernel, without its target.
    pub(in crate::schedule) fn label(&self, what: &str) -> String {
        let &Self { experts, local, mapped, slots, counted, .. } = self;
        let map = if mapped { format!("of{experts}") } else { String::new() };
        let counted = if counted { "c" } else { "" };
        format!("{what}_e{local}{map}b{slots}{counted}")
    }
}

/// Writes the kernels in launch order: one that counts the pairs of each chunk if there may be many,
/// and the one that writes `order`. Their parameters are the numbers of pairs, at least 1, and of token
/// blocks.
///
/// | buffer | words | condition |
/// |---|---|---|
/// | `ids` | i32 `[R]`: the expert of each pair; no expert if below 0 or E or more | |
/// | `expert_map` | i32 `[E]`: the place of each expert here, or below 0 | there is an expert map |
/// | `pair_counts` | u32 [chunks, L], between the kernels | there may be many pairs |
/// | `router_weights` | f32 `[R]` | |
/// | `slots` | u32, see `schedule::order` | written |
pub fn sort(problem: &SortProblem) -> Vec<Kernel> {
    let count = problem.counted.then(|| counts(problem));
    count.into_iter().chain([places(problem)]).collect()
}

fn start(problem: &SortProblem, what: &str, summary: &str) -> Builder {
    let target = problem.target;
    let programmatic = target.has(Feature::GridDependency);
    let grid = [Extent::Constant(1); 3];
    let launch = LaunchConfig { grid, threads: THREADS, min_blocks: 1, cluster: 1, programmatic };
    let name = format!("{}__{}", problem.label(what), target.name.replace('_', ""));
    Builder::new(&name, summary, target, launch)
}

/// A block a chunk.
fn set_grid(b: &mut Builder, pairs: ParameterId) {
    b.grid([Extent::CeilDiv(pairs, CHUNK), Extent::Constant(1), Extent::Constant(1)]);
}

/// `pair_counts` [chunks, L].
fn counts_buffer(
    b: &mut Builder,
    problem: &SortProblem,
    pairs: ParameterId,
    access: Access,
) -> BufferId {
    let shape = [Extent::CeilDiv(pairs, CHUNK), Extent::Constant(problem.local)];
    b.buffer_of(BufferRole::PairCounts, Word::U32, access, &shape, "u32 [expert, chunk]")
}

/// The kernel that counts the pairs of each chunk by expert.
fn counts(problem: &SortProblem) -> Kernel {
    let summary =
        format!("Pairs of each of {} experts, by chunks of {CHUNK} pairs.", problem.local);
    let mut b = start(problem, "pair_counts", &summary);
    let pairs = b.size(Dimension::RoutedRows, "pairs of a token and an expert");
    set_grid(&mut b, pairs);
    let source = PairSource::declare(&mut b, problem, pairs);
    let found = counts_buffer(&mut b, problem, pairs, Access::WriteOnce);
    let block = b.special(Special::Block(0));
    let Chunk { thread, expert, .. } = source.chunk(&mut b, problem, block);
    let counts = Counts::empty(&mut b, problem.local, thread);
    b.barrier();
    counts.add(&mut b, expert, false.into());
    b.barrier();
    let first = b.mul(block, problem.local);
    b.for_each(thread, problem.local, THREADS, "expert", |b, expert| {
        let count = b.load(Address::new(counts.words, expert), Width::B32)[0];
        let to = b.add(first, expert);
        b.store(Address::new(found, to), &[count.into()], Width::B32, None);
    });
    b.finish()
}

/// Counts by expert in shared memory, which threads of a block add up.
#[derive(Clone, Copy)]
struct Counts {
    /// Pairs of each expert: of the block's chunk and of those after it, or of the one chunk that is counted.
    words: SharedId,
    /// Pairs of each expert in chunks before the block's.
    earlier: SharedId,
    local: u32,
}

impl Counts {
    /// Counts of 0, once all threads are here.
    fn empty(b: &mut Builder, local: u32, thread: Operand) -> Self {
        let words = b.shared("counts", Word::U32, local, "pairs of each expert");
        let layout = "pairs of each expert in chunks before, then token blocks of each expert and those before";
        let earlier = b.shared("earlier", Word::U32, local, layout);
        b.for_each(thread, local, THREADS, "empty", |b, expert| {
            for counts in [words, earlier] {
                b.store(Address::new(counts, expert), &[0u32.into()], Width::B32, None);
            }
        });
        Self { words, earlier, local }
    }

    /// Adds a pair of an expert, if it is one; `earlier` says whether its chunk is before the block's.
    fn add(self, b: &mut Builder, expert: Operand, earlier: Operand) {
        let one = |b: &mut Builder, counts: SharedId| {
            let at = Address::new(counts, expert);
            b.atomic(AtomicOp::Add, at, 1u32, MemoryOrder::Relaxed, Scope::Block);
        };
        let there = b.less(expert, self.local);
        b.when(there, |b| match earlier {
            Operand::Pred(false) => one(b, self.words),
            _ => b.if_else(earlier, |b| one(b, self.earlier), |b| one(b, self.words)),
        });
    }
}

/// Where pairs come from.
struct PairSource {
    ids: BufferId,
    map: Option<BufferId>,
    pairs: ParameterId,
}

/// A chunk of pairs, one a thread.
struct Chunk {
    number: Operand,
    thread: Operand,
    /// The number of pairs.
    total: Operand,
    /// The thread's pair.
    pair: Operand,
    /// The place of its expert here, or [`NONE`].
    expert: Operand,
}

impl PairSource {
    fn declare(b: &mut Builder, problem: &SortProblem, pairs: ParameterId) -> Self {
        let (word, shape) = (Word::U32, [Extent::Parameter(pairs)]);
        let ids = b.buffer_of(BufferRole::Ids, word, Access::ReadOnly, &shape, "i32 [pair]");
        let map = problem.mapped.then(|| {
            let shape = [Extent::Constant(problem.experts)];
            b.buffer_of(BufferRole::ExpertMap, word, Access::Constant, &shape, "i32 [expert]")
        });
        Self { ids, map, pairs }
    }

    /// Waits for the ids, then finds the pairs of the chunk of this number.
    fn chunk(&self, b: &mut Builder, problem: &SortProblem, number: Operand) -> Chunk {
        let thread = b.special(Special::Thread);
        let total = b.argument(self.pairs);
        if b.target().has(Feature::GridDependency) {
            b.push(Op::GridLaunch);
            b.push(Op::GridWait);
        }
        let pair = b.mad(number, CHUNK, thread);
        let expert = self.expert(b, problem, (pair, total));
        Chunk { number, thread, total, pair, expert }
    }

    /// Counts the pairs of all chunks by expert, those of chunks before the block's apart. All threads have emptied the
    /// counts.
    fn count_all(&self, b: &mut Builder, problem: &SortProblem, chunk: &Chunk, counts: Counts) {
        b.for_each(0u32, chunk.total, CHUNKS_AT_ONCE * CHUNK, "first", |b, first| {
            let own_first = b.add(first, chunk.thread);
            let number = b.div(first, CHUNK);
            let loaded = (0..CHUNKS_AT_ONCE).map(|further| {
                let pair = b.add(own_first, further * CHUNK);
                let earlier = b.add(number, further);
                let earlier = b.less(earlier, chunk.number);
                (self.expert(b, problem, (pair, chunk.total)), earlier)
            });
            let loaded: Vec<_> = loaded.collect();
            for (expert, earlier) in loaded {
                counts.add(b, expert, earlier);
            }
        });
    }

    /// The place of a pair's expert here, or [`NONE`].
    fn expert(
        &self,
        b: &mut Builder,
        problem: &SortProblem,
        (pair, total): (Operand, Operand),
    ) -> Operand {
        let inside = b.less(pair, total);
        let none = |condition| Some(Mask { condition, fill: NONE.into() });
        let from = Address::new(self.ids, pair);
        let id = b.load_as(Type::U32, from, Width::B32, none(inside), Cache::Default)[0];
        let known = b.less(id, problem.experts);
        let Some(map) = self.map else { return b.select(known, id, NONE) };
        let from = Address::new(map, id);
        let place = b.load_as(Type::U32, from, Width::B32, none(known), Cache::Default)[0];
        let here = b.less(place, problem.local);
        b.select(here, place, NONE)
    }
}

/// The kernel that writes `order`.
fn places(problem: &SortProblem) -> Kernel {
    let &SortProblem { local, slots, .. } = problem;
    let summary = format!("Pairs sorted by {local} experts, in token blocks of {slots} slots.");
    let mut b = start(problem, "order", &summary);
    let places = Places::declare(&mut b, problem);
    set_grid(&mut b, places.pairs());
    let blocks = [Special::Block(0), Special::Blocks(0)].map(|of| b.special(of));
    places.write(&mut b, blocks);
    b.finish()
}

/// What blocks that write `order` read and write.
pub(in crate::schedule) struct Places<'p> {
    problem: &'p SortProblem,
    order: OrderArray,
    source: PairSource,
    /// `pair_counts`, if an earlier kernel counted.
    counted: Option<BufferId>,
    weights: BufferId,
}

impl<'p> Places<'p> {
    /// Declares the sizes and the buffers.
    pub(in crate::schedule) fn declare(b: &mut Builder, problem: &'p SortProblem) -> Self {
        let &SortProblem { local, slots, counted, .. } = problem;
        let order = OrderArray::declare(b, (local, slots), Access::WriteOnce);
        let pairs = order.pairs;
        let source = PairSource::declare(b, problem, pairs);
        let counted = counted.then(|| counts_buffer(b, problem, pairs, Access::ReadOnly));
        let (weights, shape) = (BufferRole::RouterWeights, [Extent::Parameter(pairs)]);
        let weights = b.buffer_of(weights, Word::U32, Access::ReadOnly, &shape, "f32 [pair]");
        Self { problem, order, source, counted, weights }
    }

    /// R: pairs.
    pub(in crate::schedule) const fn pairs(&self) -> ParameterId {
        self.order.pairs
    }

    /// Sorts a chunk of pairs, which is one of so many. The block has [`CHUNK`] threads.
    pub(in crate::schedule) fn write(self, b: &mut Builder, [block, blocks]: [Operand; 2]) {
        let Self { problem, order, source, counted, weights } = self;
        let &SortProblem { local, slots, .. } = problem;
        let chunk = source.chunk(b, problem, block);
        let order = order.words(b);
        let counts = Counts::empty(b, local, chunk.thread);
        let parts = Parts::empty(b, local, chunk.thread);
        b.store(Address::new(parts.pairs, chunk.thread), &[chunk.expert], Width::B32, None);
        b.barrier();
        parts.count(b, &chunk);
        if counted.is_none() {
            source.count_all(b, problem, &chunk, counts);
        }
        b.barrier();
        let before = parts.before(b, &chunk);
        let experts = Experts::of(b, problem, (&chunk, counts), (counted, blocks));
        // The thread's pair.
        let there = b.less(chunk.expert, local);
        let base = experts.load(b, experts.bases, chunk.expert, there);
        let slot = b.add(base, before);
        let weight = Address::new(weights, chunk.pair);
        let weight =
            b.load_as(Type::U32, weight, Width::B32, Some(Mask::or_zero(there)), Cache::Default)[0];
        let (inside, none) = (b.less(chunk.pair, chunk.total), Operand::U32(NONE));
        let shown = b.select(there, slot, none);
        let to = order.slot(b, chunk.pair);
        b.store(to, &[shown], Width::B32, Some(inside));
        let to = order.pair(b, slot);
        b.store(to, &[chunk.pair], Width::B32, Some(there));
        let to = order.weight(b, slot);
        b.store(to, &[weight.into()], Width::B32, Some(there));
        // Token blocks, and their slots without a pair.
        let count = experts.load(b, experts.ends, Operand::U32(local - 1), Operand::Pred(true));
        let first = b.equal(chunk.pair, 0u32);
        let to = order.count();
        b.store(to, &[count], Width::B32, Some(first));
        let all = b.mul(order.token_blocks, slots);
        let step = b.mul(blocks, THREADS);
        b.for_each(chunk.pair, all, step, "of_all", |b, slot| {
            let (token_block, at) = (b.div(slot, slots), b.rem(slot, slots));
            let used = b.less(token_block, count);
            let expert = experts.of_block(b, token_block);
            let (shown, first) = (b.select(used, expert, none), b.equal(at, 0u32));
            b.store(order.expert(token_block), &[shown], Width::B32, Some(first));
            // Slots of the expert from the block on that have a pair.
            let total = experts.load(b, experts.totals, expert, used);
            let begins = b.less(0u32, expert);
            let before = b.both(used, begins);
            let previous = b.sub(expert, 1u32);
            let first_block = experts.load(b, experts.ends, previous, before);
            let number = b.sub(token_block, first_block);
            let skipped = b.mul(number, slots);
            let held = b.sub(total, skipped);
            let held = b.select(used, held, 0u32);
            let held = b.less(at, held);
            let empty = b.unary(Unary::NotPred, held);
            let (of_pair, of_weight) = (order.pair(b, slot), order.weight(b, slot));
            b.store(of_pair, &[none], Width::B32, Some(empty));
            b.store(of_weight, &[0u32.into()], Width::B32, Some(empty));
        });
    }
}

/// The pairs of the block's chunk, in parts.
#[derive(Clone, Copy)]
struct Parts {
    /// The expert of each pair.
    pairs: SharedId,
    /// Pairs of each expert by part, a byte each: `[word of parts][expert]`; `None` if the chunk is one part.
    counts: Option<SharedId>,
    local: u32,
}

impl Parts {
    /// Words of counts of an expert.
    const WORDS: u32 = CHUNK / PART / PARTS_A_WORD;

    /// Counts of 0, once all threads are here.
    fn empty(b: &mut Builder, local: u32, thread: Operand) -> Self {
        let pairs = b.shared("pair_experts", Word::U32, CHUNK, "the expert of each pair");
        let counts = (local <= MOST_COUNTED_BY_PART).then(|| {
            let (words, layout) =
                (Self::WORDS * local, "pairs by part, four parts a word [part, expert]");
            let counts = b.shared("of_parts", Word::U32, words, layout);
            b.for_each(thread, words, THREADS, "empty", |b, word| {
                b.store(Address::new(counts, word), &[0u32.into()], Width::B32, None);
            });
            counts
        });
        Self { pairs, counts, local }
    }

    /// Adds the thread's pair, if its expert is here.
    fn count(self, b: &mut Builder, chunk: &Chunk) {
        let Some(counts) = self.counts else { return };
        let part = b.div(chunk.thread, PART);
        let (word, byte) = (b.div(part, PARTS_A_WORD), b.rem(part, PARTS_A_WORD));
        let shift = b.mul(byte, 8u32);
        let one = b.shl(1u32, shift);
        let at = b.mad(word, self.local, chunk.expert);
        let there = b.less(chunk.expert, self.local);
        b.when(there, |b| {
            b.atomic(
                AtomicOp::Add,
                Address::new(counts, at),
                one,
                MemoryOrder::Relaxed,
                Scope::Block,
            );
        });
    }

    /// Pairs of the chunk that are before the thread's and of the same expert. All threads have counted.
    fn before(self, b: &mut Builder, chunk: &Chunk) -> Operand {
        let (of_part, at_once) =
            if self.counts.is_some() { (PART, PART) } else { (CHUNK, AT_ONCE) };
        let at = b.rem(chunk.thread, of_part);
        let first = b.sub(chunk.thread, at);
        let before = b.variable("before", Type::U32, Uniformity::Varying);
        let earlier = self.counts.map(|counts| self.in_parts_before(b, chunk, counts));
        b.set(before, earlier.unwrap_or(0u32.into()));
        b.for_each(0u32, of_part, at_once, "others", |b, others| {
            let from = b.add(first, others);
            for other in (0..at_once).step_by(AT_ONCE as usize) {
                let from = Address::new(self.pairs, from).plus(other);
                for (further, value) in (other..).zip(b.load(from, Width::B128)) {
                    let other = b.add(others, further);
                    let same = b.equal(value, chunk.expert);
                    let earlier = b.less(other, at);
                    let counts = b.both(same, earlier);
                    let more = b.add(before, 1u32);
                    let more = b.select(counts, more, before);
                    b.set(before, more);
                }
            }
        });
        before.into()
    }

    /// Pairs of the same expert in parts before the thread's. A byte has at most [`PART`] pairs and a sum of bytes at most all but
    /// one part of a chunk, so that nothing is carried.
    fn in_parts_before(self, b: &mut Builder, chunk: &Chunk, counts: SharedId) -> Operand {
        const { assert!(CHUNK - PART < 256) };
        let part = b.div(chunk.thread, PART);
        let there = b.less(chunk.expert, self.local);
        let mut bytes: Operand = 0u32.into();
        for number in 0..Self::WORDS {
            let at = Address::new(counts, chunk.expert).plus(number * self.local);
            let mask = Some(Mask::or_zero(there));
            let word = b.load_as(Type::U32, at, Width::B32, mask, Cache::Default)[0];
            // The bytes of parts before: none, some, or all of the word.
            let first = number * PARTS_A_WORD;
            let after = b.less(first + PARTS_A_WORD - 1, part);
            let any = b.less(first, part);
            let parts = b.sub(part, first);
            let parts = b.select(any, parts, 0u32);
            let shift = b.mul(parts, 8u32);
            let shift = b.and(shift, 31u32);
            let below = b.shl(1u32, shift);
            let below = b.sub(below, 1u32);
            let below = b.select(after, u32::MAX, below);
            let of_word = b.and(word, below);
            bytes = b.add(bytes, of_word);
        }
        let sums = b.mul(bytes, 0x0101_0101u32);
        b.shr(sums, 24u32)
    }
}

/// The pairs of all chunks by expert, in shared memory.
struct Experts {
    local: u32,
    /// Pairs of each expert.
    totals: SharedId,
    /// Token blocks of each expert and those before.
    ends: SharedId,
    /// The slot of the chunk's first pair of each expert.
    bases: SharedId,
}

impl Experts {
    fn of(
        b: &mut Builder,
        problem: &SortProblem,
        (chunk, counts): (&Chunk, Counts),
        (counted, chunks): (Option<BufferId>, Operand),
    ) -> Self {
        let &SortProblem { local, slots, .. } = problem;
        // The thread of an expert alone reads its counts, whose place its total takes.
        let totals = counts.words;
        let layout = "token blocks of each expert and those before";
        let mut sums = [b.shared("ends", Word::U32, local, layout), counts.earlier];
        let each = local.div_ceil(THREADS);
        let own: Vec<(Operand, Operand)> = (0..each)
            .map(|turn| {
                let expert = b.add(chunk.thread, turn * THREADS);
                (expert, b.less(expert, local))
            })
            .collect();
        let mut befores = Vec::new();
        let mut blocks_of = Vec::new();
        for &(expert, inside) in &own {
            let (total, before): (Operand, Operand) = match counted {
                None => {
                    let [others, before] = [counts.words, counts.earlier]
                        .map(|counts| Self::word(b, counts, expert, inside));
                    (b.add(others, before), before)
                }
                Some(counted) => {
                    let [total, before] = ["total", "earlier"].map(|name| {
                        let sum = b.variable(name, Type::U32, Uniformity::Varying);
                        b.set(sum, 0u32);
                        sum
                    });
                    b.for_each(0u32, chunks, CHUNKS_AT_ONCE, "chunk", |b, first| {
                        let loaded: Vec<_> = (0..CHUNKS_AT_ONCE)
                            .map(|further| {
                                let number = b.add(first, further);
                                let exists = b.less(number, chunks);
                                let mask = Some(Mask::or_zero(b.both(exists, inside)));
                                let at = b.mad(number, local, expert);
                                let (from, width) = (Address::new(counted, at), Width::B32);
                                (number, b.load_as(Type::U32, from, width, mask, Cache::Default)[0])
                            })
                            .collect();
                        for (number, count) in loaded {
                            let sum = b.add(total, count);
                            b.set(total, sum);
                            let earlier = b.less(number, chunk.number);
                            let sum = b.add(before, count);
                            let sum = b.select(earlier, sum, before);
                            b.set(before, sum);
                        }
                    });
                    (total.into(), before.into())
                }
            };
            b.store(Address::new(totals, expert), &[total], Width::B32, Some(inside));
            befores.push(before);
            let up = b.add(total, slots - 1);
            let blocks = b.div(up, slots);
            b.store(Address::new(sums[0], expert), &[blocks], Width::B32, Some(inside));
            blocks_of.push(blocks);
        }
        b.barrier();
        // After each step a word is the sum of twice as many before it.
        let mut apart = 1;
        while apart < local {
            for &(expert, inside) in &own {
                let own = Self::word(b, sums[0], expert, inside);
                let (other, is_other) = (b.sub(expert, apart), b.less(expert, apart));
                let is_other = b.unary(Unary::NotPred, is_other);
                let is_other = b.both(is_other, inside);
                let other = Self::word(b, sums[0], other, is_other);
                let sum = b.add(own, other);
                b.store(Address::new(sums[1], expert), &[sum], Width::B32, Some(inside));
            }
            b.barrier();
            sums.reverse();
            apart *= 2;
        }
        let [ends, bases] = sums;
        for ((expert, inside), (before, blocks)) in
            own.into_iter().zip(befores.into_iter().zip(blocks_of))
        {
            let end = Self::word(b, ends, expert, inside);
            let first = b.sub(end, blocks);
            let base = b.mad(first, slots, before);
            b.store(Address::new(bases, expert), &[base], Width::B32, Some(inside));
        }
        b.barrier();
        Self { local, totals, ends, bases }
    }

    fn word(b: &mut Builder, from: SharedId, expert: Operand, condition: Operand) -> Operand {
        let mask = Some(Mask::or_zero(condition));
        b.load_as(Type::U32, Address::new(from, expert), Width::B32, mask, Cache::Default)[0].into()
    }

    /// A word of an expert, 0 where the condition is false.
    fn load(
        &self,
        b: &mut Builder,
        from: SharedId,
        expert: Operand,
        condition: Operand,
    ) -> Operand {
        Self::word(b, from, expert, condition)
    }

    /// The expert of a token block: how many experts have no blocks from that one on. L if none has.
    fn of_block(&self, b: &mut Builder, token_block: Operand) -> Operand {
        let found = b.variable("expert", Type::U32, Uniformity::Varying);
        b.set(found, 0u32);
        let mut step = self.local.next_power_of_two();
        while step > 0 {
            let next = b.add(found, step);
            let exists = b.less(next, self.local + 1);
            let last = b.sub(next, 1u32);
            let end = Self::word(b, self.ends, last, exists);
            let after = b.less(token_block, end);
            let before = b.unary(Unary::NotPred, after);
            let moves = b.both(exists, before);
            let moved = b.select(moves, next, found);
            b.set(found, moved);
            step /= 2;
        }
        found.into()
    }
}
