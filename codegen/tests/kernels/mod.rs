//! Small kernels that together use every operation.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod host;
pub mod mutation;
pub mod operand;
pub mod product;
pub mod products;
pub mod stacked;
pub mod stored;
pub mod tiles;
pub mod tmem;

use quantloom_codegen::ir::*;
use quantloom_codegen::target::{ConvertedCode, Feature, Target, target};

pub fn sm(name: &str) -> &'static Target {
    target(name).unwrap()
}

pub fn launch(threads: u32) -> LaunchConfig {
    let one = Extent::Constant(1);
    LaunchConfig { grid: [one; 3], threads, min_blocks: 1, cluster: 1, programmatic: false }
}

/// A kernel of every value operation that the target has; each result is stored.
pub fn arithmetic(target: &'static Target) -> Kernel {
    let mut b = Builder::new("arithmetic", "Every value operation once.", target, launch(64));
    let m = b.parameter("m", "any number");
    let n = Extent::Constant(4096);
    let source = b.buffer("source", Word::U32, Access::ReadOnly, &[n], "numbers");
    let result = b.buffer("result", Word::U32, Access::WriteOnce, &[n], "results");
    let thread = b.special(Special::Thread);
    let (lane, warp) = (b.special(Special::Lane), b.special(Special::Warp));
    let (block, blocks) = (b.special(Special::Block(0)), b.special(Special::Blocks(2)));
    let argument = b.argument(m);
    let words = b.load(Address::new(source, thread), Width::B32)[0];
    let base = b.mul(thread, 64u32);
    let next = std::cell::Cell::new(0);
    let store = |b: &mut Builder, value: Operand| {
        let at = Address::new(result, base).plus(next.get());
        next.set(next.get() + 1);
        b.store(at, &[value], Width::B32, None);
    };
    for value in [lane, warp, block, blocks, argument] {
        store(&mut b, value);
    }
    let f = b.unary(Unary::AsF32, words);
    let p = b.less(words, 7u32);
    use ConvertedCode::{E2m1, E2m3, E3m2, E4m3};
    use Half::{Bf16, F16};
    use Side::{High, Low};
    let unary = [
        Unary::Not,
        Unary::PopCount,
        Unary::F32FromU32,
        Unary::F32FromS32,
        Unary::F32FromHalf(F16, Low),
        Unary::F32FromHalf(F16, High),
        Unary::F32FromHalf(Bf16, Low),
        Unary::F32FromHalf(Bf16, High),
        Unary::F16x2From(E4m3, 0),
        Unary::F16x2From(E4m3, 1),
        Unary::F16x2From(E2m1, 0),
        Unary::F16x2From(E2m1, 1),
        Unary::F16x2From(E2m1, 2),
        Unary::F16x2From(E2m1, 3),
        Unary::F16x2From(E2m3, 0),
        Unary::F16x2From(E2m3, 1),
        Unary::F16x2From(E3m2, 0),
        Unary::F16x2From(E3m2, 1),
        Unary::Negate,
        Unary::Abs,
        Unary::Sqrt,
        Unary::RoundEven,
        Unary::Exp2Near,
        Unary::ReciprocalNear,
        Unary::AsU32,
        Unary::S32FromF32,
    ];
    for op in unary {
        let a = if op.signature().0[0] == Type::F32 { f } else { words.into() };
        let test = Op::Unary { dst: words, op, a };
        if target.has(test.needs()) {
            let value = b.unary(op, a);
            store(&mut b, value);
        }
    }
    use Binary::*;
    let binary = [
        Add,
        Sub,
        Mul,
        MulHigh,
        Div,
        Rem,
        Min,
        Max,
        MinSigned,
        MaxSigned,
        And,
        Or,
        Xor,
        Shl,
        Shr,
        ShrSigned,
        AddF32,
        SubF32,
        MulF32,
        DivF32,
        MinF32,
        MaxF32,
        AddPacked(F16),
        AddPacked(Bf16),
        SubPacked(F16),
        SubPacked(Bf16),
        MulPacked(F16),
        MulPacked(Bf16),
        MaxPacked(F16),
        MaxPacked(Bf16),
        Pack(F16),
        Pack(Bf16),
        PackE4m3,
    ];
    for op in binary {
        let (a, c) = if op.signature().0[0] == Type::F32 { (f, f) } else { (words.into(), lane) };
        if target.has(Op::Binary { dst: words, op, a, b: c }.needs()) {
            let value = b.binary(op, a, c);
            store(&mut b, value);
        }
    }
    let ternary = [
        Ternary::Mad,
        Ternary::Fma,
        Ternary::FmaPacked(F16),
        Ternary::FmaPacked(Bf16),
        Ternary::Lop3(0xEA),
        Ternary::Permute,
        Ternary::FunnelLeft,
        Ternary::FunnelRight,
        Ternary::Dot4 { a_signed: true, b_signed: false },
    ];
    for op in ternary {
        let (a, c) = if op == Ternary::Fma { (f, f) } else { (words.into(), lane) };
        if target.has(Op::Ternary { dst: words, op, a, b: c, c }.needs()) {
            let value = b.ternary(op, a, c, c);
            store(&mut b, value);
        }
    }
    if target.has(Feature::PackedBf16Fma) {
        let packed = b.ternary(Ternary::FmaPacked(Bf16), words, 0x3f80_3f80u32, 0xc308_c308u32);
        store(&mut b, packed);
    }
    let compare = [
        Compare::Equal,
        Compare::NotEqual,
        Compare::Less,
        Compare::LessEqual,
        Compare::LessSigned,
        Compare::EqualF32,
        Compare::LessF32,
    ];
    for op in compare {
        let (a, c) = if op.operands() == Type::F32 { (f, f) } else { (words.into(), lane) };
        let q = b.compare(op, a, c);
        let q = b.both(q, p);
        let q = b.binary(OrPred, q, false);
        let q = b.unary(Unary::NotPred, q);
        let q = b.select(p, q, true);
        let value = b.select(q, f, 1.5f32);
        store(&mut b, value);
    }
    b.finish()
}

/// Loads, stores, masks, atomics, control flow, shuffles, votes; if the target has them, cp.async,
/// mbarriers without byte counts, and named barriers.
pub fn memory(target: &'static Target) -> Kernel {
    let mut b = Builder::new("memory", "Memory, control and warps.", target, launch(64));
    let m = b.parameter("m", "rows of x");
    let n = Extent::Constant(8192);
    let w = b.buffer("w", Word::U32, Access::Constant, &[n], "weights");
    let x = b.buffer("x", Word::U16, Access::ReadOnly, &[Extent::Parameter(m), n], "[m, n]");
    let bytes = b.buffer("bytes", Word::U8, Access::ReadOnly, &[n], "bytes");
    let y = b.buffer("y", Word::U16, Access::WriteOnce, &[Extent::Parameter(m), n], "[m, n]");
    let space = b.buffer("space", Word::U32, Access::Workspace, &[n], "counters");
    let tile = b.shared("tile", Word::U32, 1024, "words of threads");
    let over = b.shared_block("over", Word::U16, 64, "reused", 16, Some(tile));
    let ready = target.has(Feature::Mbarrier).then(|| b.barriers("ready", 2));
    b.grid([Extent::CeilDiv(m, 16), n, Extent::Constant(1)]);
    let (thread, lane, warp) =
        (b.special(Special::Thread), b.special(Special::Lane), b.special(Special::Warp));
    let rows = b.argument(m);
    let inside = b.less(thread, rows);
    let quad = b.mul(thread, 4u32);
    let v4 = Address::new(w, quad);
    let first = b.load_as(Type::U32, v4, Width::B128, None, Cache::Stream);
    let second = b.load_as(
        Type::F32,
        v4.plus(256),
        Width::B64,
        Some(Mask { condition: inside, fill: 2.5f32.into() }),
        Cache::Constant,
    );
    let half = Some(Mask::or_zero(inside));
    let half = b.load_as(Type::U32, Address::new(x, thread), Width::B16, half, Cache::Default);
    let byte = b.load(Address::new(bytes, thread), Width::B8);
    b.push(Op::Prefetch { from: v4.plus(512), mask: Some(inside) });
    let sum = b.variable("sum", Type::U32, Uniformity::Varying);
    b.set(sum, 0u32);
    match ready {
        Some(ready) => {
            let first_lane = b.equal(thread, 0u32);
            b.when(first_lane, |b| {
                for index in 0..2u32 {
                    let barrier = BarrierRef { array: ready, index: index.into() };
                    b.push(Op::MbarrierInit { barrier, arrivals: 64 });
                }
            });
            b.barrier();
            let words = Address::new(w, thread);
            let masked = (Address::new(tile, quad), v4.plus(8), inside);
            asynchronous(&mut b, ready, masked, (Address::new(tile, thread).plus(512), words));
        }
        None => {
            b.store(Address::new(tile, quad), &[first[0].into(); 4], Width::B128, Some(inside));
            b.store(Address::new(tile, thread).plus(512), &[quad], Width::B32, None);
            b.barrier();
        }
    }
    b.for_each(0u32, rows, 2u32, "row", |b, row| {
        let at = b.add(row, thread);
        let value = b.load(Address::new(tile, at), Width::B32)[0];
        let total = b.add(sum, value);
        b.set(sum, total);
        b.for_each(warp, 8u32, 1u32, "inner", |b, inner| {
            let total = b.add(sum, inner);
            b.set(sum, total);
        });
    });
    b.repeat_while(
        Uniformity::Varying,
        |b| b.less(sum, 100u32),
        |b| {
            let total = b.add(sum, 7u32);
            b.set(sum, total);
        },
    );
    b.if_else(
        inside,
        |b| {
            let total = b.add(sum, first[3]);
            b.set(sum, total);
        },
        |b| {
            let total = b.add(sum, byte[0]);
            b.set(sum, total);
        },
    );
    for op in [Shuffle::Xor, Shuffle::Up, Shuffle::Down, Shuffle::Index] {
        let other = b.shuffle(op, sum, 1u32);
        let total = b.add(sum, other);
        b.set(sum, total);
    }
    let any = b.variable("any", Type::Pred, Uniformity::Warp);
    b.push(Op::Vote { dst: any, op: Vote::Any, a: inside });
    b.push(Op::Vote { dst: any, op: Vote::All, a: any.into() });
    let ballot = b.array("ballot", Type::U32, b.warp_size() / 32, Uniformity::Warp);
    b.push(Op::Ballot { dst: ballot.clone(), a: inside });
    b.push(Op::WarpSync);
    b.push(Op::SchedulingBarrier);
    b.push(Op::Fence { scope: Scope::Device });
    b.barrier();
    let counter = Address::new(space, 0u32);
    let old = b.atomic(AtomicOp::Add, counter, 1u32, MemoryOrder::AcquireRelease, Scope::Device);
    for (op, order, scope) in [
        (AtomicOp::Exchange, MemoryOrder::Relaxed, Scope::Device),
        (AtomicOp::Max, MemoryOrder::Release, Scope::Block),
    ] {
        b.push(Op::Atomic { dst: None, op, at: counter, value: old, order, scope });
    }
    let now = b.variable("now", Type::U32, Uniformity::Varying);
    let (order, scope) = (MemoryOrder::Acquire, Scope::Device);
    b.push(Op::AtomicLoad { dst: now, from: counter, order, scope });
    if target.has(Feature::NamedBarrier) {
        b.push(Op::NamedBarrier { id: 3, threads: 64, wait: true });
        b.push(Op::NamedBarrier { id: 4, threads: 64, wait: false });
        b.push(Op::NamedBarrier { id: 4, threads: 64, wait: true });
    }
    let total = b.add(sum, half[0]);
    let total = b.add(total, now);
    let bits = b.unary(Unary::AsU32, second[0]);
    let total = b.add(total, bits);
    b.store(Address::new(over, lane), &[total], Width::B16, Some(inside));
    b.store(Address::new(y, thread), &[total], Width::B16, Some(inside));
    let pair = b.mul(lane, 4u32);
    let values = [total; 4];
    b.when(any, |b| b.store(Address::new(space, pair).plus(64), &values, Width::B128, None));
    b.finish()
}

/// Two asynchronous copies, the first with a mask; one wait by group, one by mbarrier.
fn asynchronous(
    b: &mut Builder,
    ready: BarrierId,
    (to, from, mask): (Address, Address, Operand),
    word: (Address, Address),
) {
    b.copy_async(to, from, Width::B128, Some(mask));
    b.copy_async(word.0, word.1, Width::B32, None);
    b.push(Op::CopyCommit);
    b.push(Op::CopyWait { pending: 1 });
    b.push(Op::CopyWait { pending: 0 });
    let barrier = BarrierRef { array: ready, index: 0u32.into() };
    b.push(Op::CopyArrive { barrier });
    b.push(Op::MbarrierWait { barrier, parity: 0u32.into() });
    let barrier = BarrierRef { array: ready, index: 1u32.into() };
    b.push(Op::MbarrierArrive { barrier, expect: None });
    b.push(Op::MbarrierWait { barrier, parity: 0u32.into() });
}

/// Loads matrices from shared memory, and stores a transposed one.
fn rearranged(b: &mut Builder, at: Address) -> (Vec<Reg>, Vec<Reg>) {
    let a = b.load_matrix(at, 4, false);
    let two = b.load_matrix(at.plus(256), 2, true);
    let dst = b.variable("turned", Type::U32, Uniformity::Varying);
    b.push(Op::MatrixTranspose { dst, a: two[0].into() });
    if b.target().has(Feature::StMatrix) {
        let values = vec![dst.into(), two[1].into()];
        b.push(Op::MatrixStore { to: at.plus(512), values, transpose: true });
    }
    (a, two)
}

/// Warp-scope matrix operations that the target has.
pub fn warp_matrices(target: &'static Target) -> Kernel {
    let warp = target.gpu.unwrap().warp;
    let mut b = Builder::new("warp_matrices", "Matrix operations of a warp.", target, launch(warp));
    let n = Extent::Constant(if target.has(Feature::MfmaScale) { 16_384 } else { 4096 });
    let y = b.buffer("y", Word::U32, Access::WriteOnce, &[n], "results");
    let tile = b.shared("tile", Word::U16, 32 * warp, "x");
    let lane = b.special(Special::Lane);
    let row = b.mul(lane, 8u32);
    let zeros = [Operand::U32(0); 4];
    for quarter in 0..4 {
        b.store(Address::new(tile, row).plus(8 * warp * quarter), &zeros, Width::B128, None);
    }
    b.push(Op::WarpSync);
    let (a, two) = if target.has(Feature::LdMatrix) {
        rearranged(&mut b, Address::new(tile, row))
    } else {
        let [mut a, mut two] =
            [0, 8 * warp].map(|at| b.load(Address::new(tile, row).plus(at), Width::B128));
        if target.has(Feature::MfmaScale) || target.has(Feature::WmmaCopied) {
            // Eight registers, the most of any operand.
            for (of, at) in [(&mut a, 16 * warp), (&mut two, 24 * warp)] {
                of.extend(b.load(Address::new(tile, row).plus(at), Width::B128));
            }
        }
        (a, two)
    };
    let mut at = 0;
    for row in MATRIX_OPS {
        if row.scope != MatrixScope::Warp || !target.has(row.needs) {
            continue;
        }
        b.comment(row.name);
        let [in_a, in_b, in_d] = row.registers(b.warp_size());
        let ty = if row.d == Element::F32 { Type::F32 } else { Type::U32 };
        let d = b.fragment(ty, in_d);
        let (a, two) = (&a[..in_a as usize], &two[..in_b as usize]);
        if row.scaling.is_some() {
            let byte = if row.lane_scales() == 4 { 0 } else { 2 };
            let scales = [a, two].map(|regs| MatrixScale { from: regs[0], byte });
            b.matrix_scaled(row, &d, (a, two), Accumulator::Zero, scales);
            b.matrix_scaled(row, &d, (a, two), Accumulator::Registers(d.clone()), scales);
        } else {
            b.matrix(row, &d, a, two, Accumulator::Zero);
            b.matrix_add(row, &d, a, two);
        }
        for reg in &d {
            b.store(Address::new(y, lane).plus(at), &[(*reg).into()], Width::B32, None);
            at += warp;
        }
    }
    b.finish()
}

/// Bulk and tensor copies, roles, clusters, warp-group matrix operations: sm_90a.
pub fn warp_groups() -> Kernel {
    let shape = LaunchConfig { cluster: 2, programmatic: true, ..launch(384) };
    let mut b = Builder::new("warp_groups", "A producer and two consumers.", sm("sm_90a"), shape);
    let n = Extent::Constant(1 << 16);
    let k = Extent::Constant(64);
    let w = b.buffer("w", Word::U32, Access::Constant, &[n], "weights");
    let x = b.buffer("x", Word::U16, Access::ReadOnly, &[n, k], "[m, k]");
    let y = b.buffer("y", Word::U16, Access::Workspace, &[n, k], "[m, k]");
    let map = |b: &mut Builder, name: &str, buffer, swizzle| {
        let (extents, strides) = (vec![k, n], vec![Extent::Constant(1), k]);
        let (name, tile) = (name.to_owned(), vec![64, 32]);
        b.tensor(TensorMap { name, buffer, extents, strides, tile, swizzle, cache: Cache::Default })
    };
    let x_map = map(&mut b, "x_map", x, Swizzle::B128);
    let y_map = map(&mut b, "y_map", y, Swizzle::None);
    let tile = b.shared_block("tile", Word::U16, 64 * 32, "x, swizzled", 1024, None);
    let words = b.shared_block("words", Word::U32, 1024, "weights", 128, None);
    let out = b.shared_block("out", Word::U16, 64 * 32, "y", 128, None);
    let full = b.barriers("full", 1);
    let barrier = BarrierRef { array: full, index: 0u32.into() };
    let thread = b.special(Special::Thread);
    let first = b.equal(thread, 0u32);
    b.when(first, |b| {
        b.push(Op::MbarrierInit { barrier, arrivals: 1 });
        b.push(Op::MbarrierFence);
    });
    b.push(Op::ClusterBarrier);
    b.push(Op::GridWait);
    b.push(Op::GridLaunch);
    let producer = b.role("producer", 0..4, Some(24), |b| {
        let thread = b.special(Special::Thread);
        let first = b.equal(thread, 0u32);
        let rank = b.special(Special::ClusterBlock);
        b.when(first, |b| {
            let bytes = Some((64 * 32 * 2 + 4096u32).into());
            b.push(Op::MbarrierArrive { barrier, expect: bytes });
            let at = vec![0u32.into(), 0u32.into()];
            let (to, multicast) = (Address::new(tile, 0u32), None);
            b.push(Op::TensorLoad { to, map: x_map, at, barrier, multicast });
            let (to, from) = (Address::new(words, 0u32), Address::new(w, 0u32));
            b.push(Op::BulkLoad { to, from, bytes: 4096u32.into(), barrier });
            let leads = b.equal(rank, 0u32);
            b.when(leads, |b| {
                let at = vec![0u32.into(), 64u32.into()];
                let to = Address::new(tile, 0u32);
                let multicast = Some(3u32.into());
                b.push(Op::TensorLoad { to, map: x_map, at, barrier, multicast });
            });
        });
    });
    let consumers = b.role("consumers", 4..12, Some(240), |b| {
        b.push(Op::MbarrierWait { barrier, parity: 0u32.into() });
        let a: Vec<Reg> = b.array("a", Type::U32, 4, Uniformity::Varying);
        let thread = b.special(Special::Thread);
        let lane = b.and(thread, 127u32);
        let quad = b.mul(lane, 4u32);
        b.load_into(&a, Address::new(words, quad), Width::B128, None, Cache::Default);
        let shared = |offset| {
            MatrixOperand::Shared(SharedTile {
                block: tile,
                index: 0u32.into(),
                offset,
                leading: 0,
                stride: 1024,
                swizzle: Swizzle::B128,
            })
        };
        for name in ["wgmma.m64n32k16.bf16", "wgmma.m64n32k32.e4m3", "wgmma.m64n32k32.s8"] {
            let op = matrix_op(name, b.target()).unwrap();
            let ty = if op.d == Element::F32 { Type::F32 } else { Type::U32 };
            let d = b.fragment(ty, 16);
            b.push(Op::MatrixFence);
            let from = MatrixOperand::Registers(a.clone());
            let (c, scales) = (Accumulator::Zero, None);
            b.push(Op::Matrix { op, d: d.clone(), a: from.clone(), b: shared(0), c, scales });
            let c = Accumulator::Registers(d.clone());
            b.push(Op::Matrix { op, d: d.clone(), a: from, b: shared(16), c: c.clone(), scales });
            b.push(Op::MatrixCommit);
            b.push(Op::MatrixWait { pending: 0 });
            let values: Vec<Operand> = d[..4].iter().map(|reg| (*reg).into()).collect();
            b.store(Address::new(out, quad), &values[..1], Width::B32, None);
        }
        b.push(Op::FenceAsync);
        b.push(Op::NamedBarrier { id: 1, threads: 256, wait: true });
        let leads = b.equal(lane, 0u32);
        b.when(leads, |b| {
            let at = vec![0u32.into(), 0u32.into()];
            b.push(Op::TensorStore { map: y_map, at, from: Address::new(out, 0u32) });
            let (to, from) = (Address::new(y, 4096u32), Address::new(out, 0u32));
            b.push(Op::BulkStore { to, from, bytes: 256u32.into() });
            b.push(Op::BulkCommit);
            b.push(Op::BulkWait { pending: 1, reads_only: true });
            b.push(Op::BulkWait { pending: 0, reads_only: false });
        });
    });
    b.roles(vec![producer, consumers]);
    b.finish()
}

/// All kernels of this file for a target.
pub fn all(name: &str) -> Vec<Kernel> {
    let target = sm(name);
    let mut kernels = vec![arithmetic(target), memory(target), warp_matrices(target)];
    if target.has(Feature::Wgmma) {
        kernels.push(warp_groups());
    }
    kernels.extend(tmem::operations(target));
    kernels
}
