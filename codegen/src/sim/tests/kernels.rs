//! Small kernels, one for each way to copy and order data.

use super::Case;
use crate::ir::{
    Access, Accumulator, Address, AtomicOp, BarrierRef, BufferId, Builder, Cache, Extent, Half,
    Kernel, LaunchConfig, MatrixOperand, MemoryOrder, Op, Operand, Reg, Scope, SharedTile, Shuffle,
    Special, Swizzle, TensorMap, Type, Unary, Uniformity, Width, Word, matrix_op,
};
use crate::sim::half::narrow;
use crate::sim::random::Random;
use crate::sim::{Arguments, Contents};
use crate::target::{ConvertedCode, Target, target};

/// Makes a case.
pub(super) type Make = fn() -> Case;

/// Every case, with a name.
pub(super) const ALL: &[(&str, Make)] = &[
    ("staged", staged),
    ("staged_64", staged_64),
    ("pipeline", pipeline),
    ("product", product),
    ("product_mfma", product_mfma),
    ("product_wmma", product_wmma),
    ("split", split),
    ("dependent", dependent),
    ("guessing", super::guess::guessing),
    ("bulk", bulk),
    ("tensor_group", tensor_group),
    ("divergent", divergent),
    ("conversion", conversion),
    ("neighbours", neighbours),
];

pub(super) fn chip(name: &str) -> &'static Target {
    target(name).expect("a target of the table")
}

pub(super) fn launch(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig {
        grid: [Extent::Constant(blocks), Extent::Constant(1), Extent::Constant(1)],
        threads,
        min_blocks: 1,
        cluster: 1,
        programmatic: false,
    }
}

pub(super) fn buffer(
    b: &mut Builder,
    name: &str,
    word: Word,
    access: Access,
    len: u32,
) -> BufferId {
    b.buffer(name, word, access, &[Extent::Constant(len)], "[i]")
}

pub(super) fn numbers(seed: u64, len: u32) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.next() as u32).collect()
}

pub(super) fn of(reg: Reg) -> Operand {
    reg.into()
}

/// y = x reversed within each block of 64, through shared memory.
fn reversed(on: &str) -> Case {
    let (blocks, threads) = (3, 64);
    let len = blocks * threads;
    let mut b = Builder::new("staged", "Reverses blocks.", chip(on), launch(blocks, threads));
    let x = buffer(&mut b, "x", Word::U32, Access::ReadOnly, len);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, len);
    let tile = b.shared("tile", Word::U32, threads, "[i]");
    let thread = b.special(Special::Thread);
    let block = b.special(Special::Block(0));
    let base = b.mul(block, threads);
    let at = b.add(base, thread);
    b.comment("stage the block");
    let word = b.load(Address::new(x, at), Width::B32)[0];
    b.store(Address::new(tile, thread), &[of(word)], Width::B32, None);
    b.barrier();
    b.comment("read it back reversed");
    let mirror = b.sub(threads - 1, thread);
    let word = b.load(Address::new(tile, mirror), Width::B32)[0];
    b.store(Address::new(y, at), &[of(word)], Width::B32, None);
    let words = numbers(1, len);
    let expected = words.chunks(threads as usize).flat_map(|block| block.iter().rev().copied());
    Case {
        kernel: b.finish(),
        expected: vec![(1, expected.collect())],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![Contents::from_words(&words), Contents::poison(4 * len as usize)],
        },
    }
}

pub(super) fn staged() -> Case {
    reversed("sm_80")
}

pub(super) fn staged_64() -> Case {
    reversed("gfx942")
}

/// y[t] = the sum over steps of what the neighbour thread copied, through a pipeline of three
/// stages.
pub(super) fn pipeline() -> Case {
    const THREADS: u32 = 64;
    const STEPS: u32 = 7;
    const STAGES: u32 = 3;
    let mut b =
        Builder::new("pipeline", "Sums through a pipeline.", chip("sm_80"), launch(2, THREADS));
    let x = buffer(&mut b, "x", Word::U32, Access::ReadOnly, 2 * STEPS * THREADS);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, 2 * THREADS);
    let tile = b.shared("stages", Word::U32, STAGES * THREADS, "[t, stage]");
    let thread = b.special(Special::Thread);
    let block = b.special(Special::Block(0));
    let base = b.mul(block, STEPS * THREADS);
    let sum = b.variable("sum", Type::U32, Uniformity::Varying);
    b.set(sum, 0);
    let fetch = |b: &mut Builder, step: Operand| {
        let stage = b.rem(step, STAGES);
        let from = b.mad(step, THREADS, base);
        let from = b.add(from, thread);
        let to = b.mad(stage, THREADS, thread);
        let inside = b.less(step, STEPS);
        b.copy_async(Address::new(tile, to), Address::new(x, from), Width::B32, Some(inside));
        b.push(Op::CopyCommit);
    };
    b.comment("fill all but one stage");
    for step in 0..STAGES - 1 {
        fetch(&mut b, step.into());
    }
    b.for_each(0, STEPS, 1, "step", |b, step| {
        b.comment("this stage is complete, for all threads");
        b.push(Op::CopyWait { pending: STAGES - 2 });
        b.barrier();
        let stage = b.rem(step, STAGES);
        let neighbour = b.xor(thread, THREADS / 2);
        let at = b.mad(stage, THREADS, neighbour);
        let word = b.load(Address::new(tile, at), Width::B32)[0];
        let total = b.add(sum, word);
        b.set(sum, total);
        b.comment("the stage before is free");
        let next = b.add(step, STAGES - 1);
        fetch(b, next);
    });
    b.push(Op::CopyWait { pending: 0 });
    let at = b.mad(block, THREADS, thread);
    b.store(Address::new(y, at), &[of(sum)], Width::B32, None);
    let words = numbers(2, 2 * STEPS * THREADS);
    let expected = (0..2 * THREADS).map(|at| {
        let (block, thread) = (at / THREADS, (at % THREADS) ^ (THREADS / 2));
        (0..STEPS).fold(0u32, |sum, step| {
            sum.wrapping_add(words[((block * STEPS + step) * THREADS + thread) as usize])
        })
    });
    Case {
        kernel: b.finish(),
        expected: vec![(1, expected.collect())],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![Contents::from_words(&words), Contents::poison(8 * THREADS as usize)],
        },
    }
}

/// Small integers as bf16, so that every sum is exact.
pub(super) fn small(seed: u64, len: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(17) as f32 - 8.0).collect()
}

pub(super) fn bf16_words(values: &[f32]) -> Vec<u32> {
    let code = |x: f32| u32::from(narrow(Half::Bf16, f64::from(x)));
    values.chunks(2).map(|pair| code(pair[0]) | code(pair[1]) << 16).collect()
}

/// c[m][n] = sum over k of a[m][k] b[n][k], as bits of f32.
pub(super) fn product_of(a: &[f32], b: &[f32], [m, n, k]: [usize; 3]) -> Vec<u32> {
    let element = |at: usize| {
        let (row, column) = (at / n, at % n);
        let sum: f32 = (0..k).map(|k_at| a[row * k + k_at] * b[column * k + k_at]).sum();
        sum.to_bits()
    };
    (0..m * n).map(element).collect()
}

/// y[16, 8] = a b^T over k = 64: four warps split k, each with one mma; b through `ldmatrix`; the
/// warps' sums are reduced in shared memory.
pub(super) fn product() -> Case {
    const WARPS: u32 = 4;
    let target = chip("sm_80");
    let k = 16 * WARPS;
    let mut b = Builder::new("product", "A small product.", target, launch(1, 32 * WARPS));
    let a_words = buffer(&mut b, "a", Word::U32, Access::Constant, 16 * k / 2);
    let b_words = buffer(&mut b, "b", Word::U32, Access::ReadOnly, 8 * k / 2);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, 16 * 8);
    // A row of b is 128 bytes; its 16-byte segments are permuted by the row.
    let tile = b.shared("b_tile", Word::U32, 8 * k / 2, "[k, n] of 16-byte segments ^ n");
    let parts = b.shared("parts", Word::U32, WARPS * 128, "[element, warp]");
    let thread = b.special(Special::Thread);
    let lane = b.special(Special::Lane);
    let warp = b.special(Special::Warp);
    b.comment("b to shared memory, 16 bytes a thread, for the first 64 threads");
    let first = b.less(thread, 64);
    b.when(first, |b| {
        let row = b.shr(thread, 3);
        let segment = b.and(thread, 7);
        let swizzled = b.xor(segment, row);
        let from = b.shl(thread, 2);
        let words = b.load(Address::new(b_words, from), Width::B128);
        let to = b.mad(row, 8, swizzled);
        let to = b.shl(to, 2);
        let words: Vec<Operand> = words.into_iter().map(of).collect();
        b.store(Address::new(tile, to), &words, Width::B128, None);
    });
    b.barrier();
    b.comment("fragments of this warp's 16 columns");
    let group = b.shr(lane, 2);
    let pair = b.and(lane, 3);
    let mut a = Vec::new();
    for (row, column) in [(0, 0), (8, 0), (0, 4), (8, 4)] {
        let row = b.add(group, row);
        let word = b.mad(warp, 8, pair);
        let word = b.add(word, column);
        let at = b.mad(row, k / 2, word);
        a.push(b.load_as(Type::U32, Address::new(a_words, at), Width::B32, None, Cache::Stream)[0]);
    }
    let row = b.and(lane, 7);
    let half = b.shr(lane, 3);
    let half = b.and(half, 1);
    let segment = b.mad(warp, 2, half);
    let segment = b.xor(segment, row);
    let at = b.mad(row, 8, segment);
    let at = b.shl(at, 2);
    let fragment = b.load_matrix(Address::new(tile, at), 2, false);
    let acc = b.zeros("acc", 4);
    let op = matrix_op("mma.m16n8k16.bf16", target).expect("a row of the table");
    b.matrix_add(op, &acc, &a, &fragment);
    b.comment("reduce over the warps");
    let bits: Vec<Operand> = acc.iter().map(|&reg| b.unary(Unary::AsU32, reg)).collect();
    let at = b.mad(warp, 32, lane);
    let at = b.shl(at, 2);
    b.store(Address::new(parts, at), &bits, Width::B128, None);
    b.barrier();
    let sum = b.zeros("sum", 1)[0];
    for part in 0..WARPS {
        let at = Address::new(parts, thread).plus(128 * part);
        let value = b.load_as(Type::F32, at, Width::B32, None, Cache::Default)[0];
        let total = b.add_f32(sum, value);
        b.set(sum, total);
    }
    // Thread t now has register t % 4 of lane t / 4.
    let owner = b.shr(thread, 2);
    let register = b.and(thread, 3);
    let row = b.shr(owner, 2);
    let below = b.shr(register, 1);
    let row = b.mad(below, 8, row);
    let column = b.and(owner, 3);
    let odd = b.and(register, 1);
    let column = b.mad(column, 2, odd);
    let at = b.mad(row, 8, column);
    let bits = b.unary(Unary::AsU32, sum);
    b.store(Address::new(y, at), &[bits], Width::B32, None);
    let (a, x) = (small(3, 16 * k as usize), small(4, 8 * k as usize));
    Case {
        kernel: b.finish(),
        expected: vec![(2, product_of(&a, &x, [16, 8, k as usize]))],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![
                Contents::from_words(&bf16_words(&a)),
                Contents::from_words(&bf16_words(&x)),
                Contents::poison(16 * 8 * 4),
            ],
        },
    }
}

/// y[16, 16] = a b^T over k = 16, one wavefront of 64 lanes.
pub(super) fn product_mfma() -> Case {
    let target = chip("gfx942");
    let mut b = Builder::new("product_mfma", "A small product.", target, launch(1, 64));
    let a_words = buffer(&mut b, "a", Word::U32, Access::Constant, 16 * 8);
    let b_words = buffer(&mut b, "b", Word::U32, Access::ReadOnly, 16 * 8);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, 256);
    let lane = b.special(Special::Lane);
    let row = b.and(lane, 15);
    let quarter = b.shr(lane, 4);
    let at = b.mad(row, 4, quarter);
    let at = b.shl(at, 1);
    let a = b.load_as(Type::U32, Address::new(a_words, at), Width::B64, None, Cache::Constant);
    let x = b.load(Address::new(b_words, at), Width::B64);
    let acc = b.zeros("acc", 4);
    let op = matrix_op("mfma.16x16x16.bf16", target).expect("a row of the table");
    b.matrix_add(op, &acc, &a, &x);
    for (register, &acc) in (0..).zip(&acc) {
        let m = b.mad(quarter, 4, register);
        let at = b.mad(m, 16, row);
        let bits = b.unary(Unary::AsU32, acc);
        b.store(Address::new(y, at), &[bits], Width::B32, None);
    }
    square_product(b.finish())
}

/// The case of a kernel that multiplies 16 x 16 numbers by as many: buffers a, b and y.
fn square_product(kernel: Kernel) -> Case {
    let (a, x) = (small(5, 256), small(6, 256));
    Case {
        kernel,
        expected: vec![(2, product_of(&a, &x, [16, 16, 16]))],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![
                Contents::from_words(&bf16_words(&a)),
                Contents::from_words(&bf16_words(&x)),
                Contents::poison(1024),
            ],
        },
    }
}

/// y[16, 16] = a b^T over k = 16, one wave of 32 lanes whose halves hold the same rows of A and of B: register r of
/// lane l is row 2 r + l / 16 of the result.
pub(super) fn product_wmma() -> Case {
    let target = chip("gfx1100");
    let mut b = Builder::new("product_wmma", "A small product.", target, launch(1, 32));
    let a_words = buffer(&mut b, "a", Word::U32, Access::Constant, 16 * 8);
    let b_words = buffer(&mut b, "b", Word::U32, Access::ReadOnly, 16 * 8);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, 256);
    let lane = b.special(Special::Lane);
    let row = b.and(lane, 15);
    let half = b.shr(lane, 4);
    let at = b.mul(row, 8);
    let [a, x] = [a_words, b_words].map(|from| {
        [0, 4].map(|word| b.load(Address::new(from, at).plus(word), Width::B128)).concat()
    });
    let acc = b.zeros("acc", 8);
    let op = matrix_op("wmma.copied.16x16x16.bf16", target).expect("a row of the table");
    b.matrix_add(op, &acc, &a, &x);
    for (register, &acc) in (0..).zip(&acc) {
        let m = b.add(half, 2 * register);
        let at = b.mad(m, 16, row);
        let bits = b.unary(Unary::AsU32, acc);
        b.store(Address::new(y, at), &[bits], Width::B32, None);
    }
    square_product(b.finish())
}

/// y[t] = the sum over four blocks of x[block][t]: partial results, a wrapping counter, and the
/// last arriver sums in index order.
pub(super) fn split() -> Case {
    const BLOCKS: u32 = 4;
    const THREADS: u32 = 64;
    let mut b = Builder::new("split", "Sums over blocks.", chip("sm_80"), launch(BLOCKS, THREADS));
    let x = buffer(&mut b, "x", Word::U32, Access::ReadOnly, BLOCKS * THREADS);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, THREADS);
    let parts = buffer(&mut b, "parts", Word::U32, Access::Workspace, BLOCKS * THREADS);
    let counter = buffer(&mut b, "counter", Word::U32, Access::Workspace, 1);
    let last = b.shared("last", Word::U32, 1, "whether this block is the last");
    let thread = b.special(Special::Thread);
    let block = b.special(Special::Block(0));
    let at = b.mad(block, THREADS, thread);
    let word = b.load(Address::new(x, at), Width::B32)[0];
    b.store(Address::new(parts, at), &[of(word)], Width::B32, None);
    b.comment("all of the block's partial results are written; count it");
    b.barrier();
    let first = b.equal(thread, 0);
    b.when(first, |b| {
        let place = Address::new(counter, 0);
        let arrived = b.atomic(AtomicOp::Add, place, 1, MemoryOrder::AcquireRelease, Scope::Device);
        let arrived = b.rem(arrived, BLOCKS);
        b.store(Address::new(last, 0), &[arrived], Width::B32, None);
    });
    b.barrier();
    let arrived = b.load(Address::new(last, 0), Width::B32)[0];
    let is_last = b.equal(arrived, BLOCKS - 1);
    b.comment("the last block sums");
    b.when(is_last, |b| {
        let sum = b.variable("sum", Type::U32, Uniformity::Varying);
        b.set(sum, 0);
        for part in 0..BLOCKS {
            let at = Address::new(parts, thread).plus(part * THREADS);
            let word = b.load(at, Width::B32)[0];
            let total = b.add(sum, word);
            b.set(sum, total);
        }
        b.store(Address::new(y, thread), &[of(sum)], Width::B32, None);
    });
    let words = numbers(7, BLOCKS * THREADS);
    let sum = |t: u32| {
        (0..BLOCKS).fold(0u32, |sum, block| sum.wrapping_add(words[(block * THREADS + t) as usize]))
    };
    Case {
        kernel: b.finish(),
        expected: vec![(1, (0..THREADS).map(sum).collect())],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![
                Contents::from_words(&words),
                Contents::poison(4 * THREADS as usize),
                Contents::poison((4 * BLOCKS * THREADS) as usize),
                Contents::from_words(&[0]),
            ],
        },
    }
}

/// y = w + x with programmatic dependent launch: w is read before the wait, x after it. The length
/// is a parameter, and a mask guards the ragged edge.
pub(super) fn dependent() -> Case {
    const THREADS: u32 = 32;
    let (blocks, len) = (3, 80);
    let mut launch = launch(blocks, THREADS);
    launch.programmatic = true;
    let mut b = Builder::new("dependent", "Adds.", chip("sm_90a"), launch);
    let n = b.parameter("n", "numbers");
    let extent = [Extent::Parameter(n)];
    b.grid([Extent::CeilDiv(n, THREADS), Extent::Constant(1), Extent::Constant(1)]);
    let w = b.buffer("w", Word::U32, Access::Constant, &extent, "[i]");
    let x = b.buffer("x", Word::U32, Access::ReadOnly, &extent, "[i]");
    let y = b.buffer("y", Word::U32, Access::WriteOnce, &extent, "[i]");
    let thread = b.special(Special::Thread);
    let block = b.special(Special::Block(0));
    let n = b.argument(n);
    let at = b.mad(block, THREADS, thread);
    let inside = b.less(at, n);
    let mask = Some(crate::ir::Mask::or_zero(inside));
    b.push(Op::GridLaunch);
    let weight = b.load_as(Type::U32, Address::new(w, at), Width::B32, mask, Cache::Stream)[0];
    b.push(Op::GridWait);
    let value = b.load_as(Type::U32, Address::new(x, at), Width::B32, mask, Cache::Default)[0];
    let sum = b.add(weight, value);
    b.store(Address::new(y, at), &[sum], Width::B32, Some(inside));
    let (weights, values) = (numbers(8, len), numbers(9, len));
    let sums = weights.iter().zip(&values).map(|(w, x)| w.wrapping_add(*x)).collect();
    Case {
        kernel: b.finish(),
        expected: vec![(2, sums)],
        arguments: Arguments {
            parameters: vec![len],
            buffers: vec![
                Contents::from_words(&weights),
                Contents::from_words(&values),
                Contents::poison(4 * len as usize),
            ],
        },
    }
}

/// y[t] = the sum over steps of x[step][t]: a producer warp copies in bulk through two stages
/// with full and empty mbarriers; a consumer warp sums, and writes its result back in bulk.
pub(super) fn bulk() -> Case {
    const STEPS: u32 = 5;
    const STAGES: u32 = 2;
    let mut b = Builder::new("bulk", "Sums bulk copies.", chip("sm_90a"), launch(2, 64));
    let x = buffer(&mut b, "x", Word::U32, Access::Constant, 2 * STEPS * 32);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, 2 * 32);
    let full = b.barriers("full", STAGES);
    let empty = b.barriers("empty", STAGES);
    let tile = b.shared("stages", Word::U32, STAGES * 32, "[t, stage]");
    let out = b.shared("out", Word::U32, 32, "[t]");
    let at = |array, index: Operand| BarrierRef { array, index };
    let block = b.special(Special::Block(0));
    let thread = b.special(Special::Thread);
    let lane = b.special(Special::Lane);
    let first = b.equal(thread, 0);
    b.when(first, |b| {
        for stage in 0..STAGES {
            b.push(Op::MbarrierInit { barrier: at(full, stage.into()), arrivals: 1 });
            b.push(Op::MbarrierInit { barrier: at(empty, stage.into()), arrivals: 32 });
        }
        b.push(Op::MbarrierFence);
    });
    b.barrier();
    let producer = b.role("producer", 0..1, None, |b| {
        let first = b.equal(lane, 0);
        b.when(first, |b| {
            b.for_each(0, STEPS, 1, "step", |b, step| {
                let stage = b.rem(step, STAGES);
                let round = b.div(step, STAGES);
                let parity = b.and(round, 1);
                let parity = b.xor(parity, 1);
                b.comment("the consumer has released the stage");
                b.push(Op::MbarrierWait { barrier: at(empty, stage), parity });
                let expect = Some(Operand::U32(128));
                b.push(Op::MbarrierArrive { barrier: at(full, stage), expect });
                let from = b.mad(block, STEPS, step);
                let from = b.shl(from, 5);
                let to = b.shl(stage, 5);
                b.push(Op::BulkLoad {
                    to: Address::new(tile, to),
                    from: Address::new(x, from),
                    bytes: 128.into(),
                    barrier: at(full, stage),
                });
            });
        });
    });
    let consumer = b.role("consumer", 1..2, None, |b| {
        let sum = b.variable("sum", Type::U32, Uniformity::Varying);
        b.set(sum, 0);
        b.for_each(0, STEPS, 1, "step", |b, step| {
            let stage = b.rem(step, STAGES);
            let round = b.div(step, STAGES);
            let parity = b.and(round, 1);
            b.push(Op::MbarrierWait { barrier: at(full, stage), parity });
            let place = b.mad(stage, 32, lane);
            let word = b.load(Address::new(tile, place), Width::B32)[0];
            let total = b.add(sum, word);
            b.set(sum, total);
            b.push(Op::MbarrierArrive { barrier: at(empty, stage), expect: None });
        });
        b.comment("one bulk store of the warp's row");
        b.store(Address::new(out, lane), &[of(sum)], Width::B32, None);
        b.push(Op::FenceAsync);
        b.push(Op::WarpSync);
        let first = b.equal(lane, 0);
        b.when(first, |b| {
            let to = b.shl(block, 5);
            let (to, from) = (Address::new(y, to), Address::new(out, 0));
            b.push(Op::BulkStore { to, from, bytes: 128.into() });
            b.push(Op::BulkCommit);
            b.push(Op::BulkWait { pending: 0, reads_only: true });
        });
    });
    b.roles(vec![producer, consumer]);
    let words = numbers(10, 2 * STEPS * 32);
    let sum = |at: u32| {
        (0..STEPS).fold(0u32, |sum, step| {
            sum.wrapping_add(words[((at / 32 * STEPS + step) * 32 + at % 32) as usize])
        })
    };
    Case {
        kernel: b.finish(),
        expected: vec![(1, (0..64).map(sum).collect())],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![Contents::from_words(&words), Contents::poison(256)],
        },
    }
}

/// y[64, 8] = a b^T over k = 64: one warp group, A from registers, B by a tensor copy with the
/// 128-byte swizzle, four products in flight, two sets of A registers.
pub(super) fn tensor_group() -> Case {
    let target = chip("sm_90a");
    let k = 64u32;
    let mut b = Builder::new("tensor_group", "A warp group's product.", target, launch(1, 128));
    let a_words = buffer(&mut b, "a", Word::U32, Access::Constant, 64 * k / 2);
    let x = buffer(&mut b, "x", Word::U16, Access::ReadOnly, 8 * k);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, 64 * 8);
    let map = b.tensor(TensorMap {
        name: "x_map".to_owned(),
        buffer: x,
        extents: vec![Extent::Constant(k), Extent::Constant(8)],
        strides: vec![Extent::Constant(1), Extent::Constant(k)],
        tile: vec![k, 8],
        swizzle: Swizzle::B128,
        cache: Cache::Default,
    });
    let full = b.barriers("full", 1);
    let tile = b.shared_block("x_tile", Word::U16, 8 * k, "[k, m], 128-byte swizzle", 1024, None);
    let barrier = BarrierRef { array: full, index: 0.into() };
    let thread = b.special(Special::Thread);
    let lane = b.special(Special::Lane);
    let warp = b.special(Special::Warp);
    let first = b.equal(thread, 0);
    b.when(first, |b| {
        b.push(Op::MbarrierInit { barrier, arrivals: 1 });
        b.push(Op::MbarrierFence);
    });
    b.barrier();
    b.when(first, |b| {
        b.push(Op::MbarrierArrive { barrier, expect: Some((8 * k * 2).into()) });
        let (to, at) = (Address::new(tile, 0), vec![Operand::U32(0), Operand::U32(0)]);
        b.push(Op::TensorLoad { to, map, at, barrier, multicast: None });
    });
    let op = matrix_op("wgmma.m64n8k16.bf16", target).expect("a row of the table");
    let group = b.shr(lane, 2);
    let pair = b.and(lane, 3);
    let row = b.mad(warp, 16, group);
    let acc = b.zeros("acc", 4);
    let sets = [0, 1].map(|set| b.array(&format!("a{set}"), Type::U32, 4, Uniformity::Varying));
    b.push(Op::MbarrierWait { barrier, parity: 0.into() });
    for step in 0..k / 16 {
        let a = &sets[(step % 2) as usize];
        for (at, (down, right)) in [(0, 0), (8, 0), (0, 4), (8, 4)].into_iter().enumerate() {
            let row = b.add(row, down);
            let word = b.mad(row, k / 2, pair);
            let from = Address::new(a_words, word).plus(8 * step + right);
            b.load_into(&[a[at]], from, Width::B32, None, Cache::Constant);
        }
        b.push(Op::MatrixFence);
        let shared = SharedTile {
            block: tile,
            index: 0.into(),
            offset: 16 * step,
            leading: 16,
            stride: 1024,
            swizzle: Swizzle::B128,
        };
        b.push(Op::Matrix {
            op,
            d: acc.clone(),
            a: MatrixOperand::Registers(a.clone()),
            b: MatrixOperand::Shared(shared),
            c: Accumulator::Registers(acc.clone()),
            scales: None,
        });
        b.push(Op::MatrixCommit);
        b.comment("the other set of A may be overwritten");
        b.push(Op::MatrixWait { pending: 1 });
    }
    b.push(Op::MatrixWait { pending: 0 });
    for (at, &acc) in acc.iter().enumerate() {
        let row = b.add(row, 8 * (at as u32 / 2));
        let column = b.mad(pair, 2, at as u32 % 2);
        let place = b.mad(row, 8, column);
        let bits = b.unary(Unary::AsU32, acc);
        b.store(Address::new(y, place), &[bits], Width::B32, None);
    }
    let (a, x) = (small(11, 64 * k as usize), small(12, 8 * k as usize));
    Case {
        kernel: b.finish(),
        expected: vec![(2, product_of(&a, &x, [64, 8, k as usize]))],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![
                Contents::from_words(&bf16_words(&a)),
                Contents::from_words(&bf16_words(&x)),
                Contents::poison(64 * 8 * 4),
            ],
        },
    }
}

/// y[t] = the sum of x over t's shuffle group of four lanes.
pub(super) fn neighbours() -> Case {
    const THREADS: u32 = 128;
    let mut b = Builder::new("neighbours", "Sums.", chip("wgsl_subgroups"), launch(1, THREADS));
    let x = buffer(&mut b, "x", Word::U32, Access::ReadOnly, THREADS);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, THREADS);
    let thread = b.special(Special::Thread);
    let mut sum = of(b.load(Address::new(x, thread), Width::B32)[0]);
    for by in [1, 2] {
        let other = b.shuffle(Shuffle::Xor, sum, by);
        sum = b.add(sum, other);
    }
    b.store(Address::new(y, thread), &[sum], Width::B32, None);
    let words: Vec<u32> = numbers(17, THREADS).iter().map(|word| word >> 2).collect();
    let sums = words.chunks(4).flat_map(|four| [four.iter().sum::<u32>(); 4]);
    Case {
        kernel: b.finish(),
        expected: vec![(1, sums.collect())],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![Contents::from_words(&words), Contents::poison(4 * THREADS as usize)],
        },
    }
}

/// y[t] = the upper two of the e2m3 codes in the low 6 bits of x[t]'s bytes, as f16.
pub(super) fn conversion() -> Case {
    let mut b = Builder::new("conversion", "Codes of 6 bits.", chip("sm_120a"), launch(1, 64));
    let x = buffer(&mut b, "x", Word::U32, Access::ReadOnly, 64);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, 64);
    let thread = b.special(Special::Thread);
    let word = b.load(Address::new(x, thread), Width::B32)[0];
    let codes = b.and(word, 0x3f3f_3f3f);
    let halves = b.unary(Unary::F16x2From(ConvertedCode::E2m3, 1), codes);
    b.store(Address::new(y, thread), &[halves], Width::B32, None);
    let words = numbers(21, 64);
    // Sign, 2 bits of exponent with bias 1, 3 of mantissa: eighths of 2^(exponent - 1), as f16 with bias 15.
    let half = |code: u32| {
        let (sign, exponent, mantissa) = (code >> 5 & 1, code >> 3 & 3, code & 7);
        let eighths = if exponent == 0 { mantissa } else { (8 + mantissa) << (exponent - 1) };
        let value = f64::from(eighths) / 8.0;
        u32::from(narrow(Half::F16, if sign == 1 { -value } else { value }))
    };
    let expected = words.iter().map(|word| half(word >> 16) | half(word >> 24) << 16).collect();
    Case {
        kernel: b.finish(),
        expected: vec![(1, expected)],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![Contents::from_words(&words), Contents::poison(256)],
        },
    }
}

/// y[t] = x[t] halved until it is below 8, odd ones plus 100; then the sum over the lanes of a warp
/// by shuffles, added up by all.
pub(super) fn divergent() -> Case {
    let mut b = Builder::new("divergent", "Branches.", chip("sm_80"), launch(1, 64));
    let x = buffer(&mut b, "x", Word::U32, Access::ReadOnly, 64);
    let y = buffer(&mut b, "y", Word::U32, Access::WriteOnce, 64);
    let thread = b.special(Special::Thread);
    let word = b.load(Address::new(x, thread), Width::B32)[0];
    let value = b.variable("value", Type::U32, Uniformity::Varying);
    b.set(value, word);
    b.repeat_while(
        Uniformity::Varying,
        |b| b.less(7, value),
        |b| {
            let half = b.shr(value, 1);
            b.set(value, half);
        },
    );
    let odd = b.and(word, 1);
    let odd = b.equal(odd, 1);
    b.if_else(
        odd,
        |b| {
            let more = b.add(value, 100);
            b.set(value, more);
        },
        |b| {
            let more = b.add(value, 1000);
            b.set(value, more);
        },
    );
    b.for_each(0, word, 7, "round", |b, round| {
        let more = b.add(value, round);
        b.set(value, more);
    });
    for by in [16, 8, 4, 2, 1] {
        let other = b.shuffle(Shuffle::Xor, value, by);
        let sum = b.add(value, other);
        b.set(value, sum);
    }
    b.store(Address::new(y, thread), &[of(value)], Width::B32, None);
    let words: Vec<u32> = numbers(13, 64).iter().map(|word| word % 200).collect();
    let alone = |&word: &u32| {
        let mut value = word;
        while value > 7 {
            value >>= 1;
        }
        value + if word % 2 == 1 { 100 } else { 1000 } + (0..word).step_by(7).sum::<u32>()
    };
    let sums = words.chunks(32).flat_map(|warp| [warp.iter().map(alone).sum::<u32>(); 32]);
    Case {
        kernel: b.finish(),
        expected: vec![(1, sums.collect())],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![Contents::from_words(&words), Contents::poison(256)],
        },
    }
}
