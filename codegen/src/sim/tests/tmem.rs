//! Tensor memory: three kernels that use it as the schedules of sm_100a will, and the faults that each detector must
//! report.

use super::faults::{Injected, drop_op, injected, missed, op, replace};
use super::kernels::{bf16_words, buffer, chip, launch, of, product_of, small};
use super::{Case, Outcome, simulate};
use crate::ir::{
    Access, Address, BarrierId, BarrierRef, Binary, BufferId, Builder, Cache, Extent, Kernel,
    MatrixOp, Op, Operand, Reg, Register, RegisterId, SharedId, SharedTile, Special, Statement,
    Swizzle, TensorId, TensorMap, TmemAddress, TmemError, TmemOp, TmemOperand, TmemScale, Type,
    Unary, Uniformity, ValueError, VerifyErrorKind, Width, Word, matrix_op, verify,
};
use crate::sim::{Arguments, Contents};
use quantloom_dsl::format::{E2M1, E4M3};

/// Builds a kernel and its buffers.
type Make = fn() -> Case;

/// Every kernel, with a name.
const ALL: &[(&str, Make)] = &[("shared", shared), ("stored", stored), ("scaled", scaled)];

/// What the three kernels have in common: their blocks of shared memory and mbarriers, and what their threads know.
struct Parts {
    b: Builder,
    /// The address of the columns.
    base: Operand,
    /// The same for the warp's lanes.
    own: Operand,
    /// The thread that starts copies and products.
    first: Operand,
    warp: Operand,
    thread: Operand,
    full: BarrierRef,
    done: BarrierRef,
}

const N: u32 = 16;

/// A kernel of 128 threads that has initialised its mbarriers and allocated its columns.
fn begin(name: &str, columns: u32, declare: impl FnOnce(&mut Builder)) -> Parts {
    let target = chip("sm_100a");
    let mut b = Builder::new(name, "A product in tensor memory.", target, launch(1, 128));
    declare(&mut b);
    b.tmem_columns(columns);
    let at = b.shared("at", Word::U32, 4, "the address of the columns");
    let (full, done) = (b.barriers("full", 1), b.barriers("done", 1));
    let [full, done] = [full, done].map(|array| BarrierRef { array, index: 0.into() });
    let thread = b.special(Special::Thread);
    let warp = b.special(Special::Warp);
    let first = b.equal(thread, 0);
    b.when(first, |b| {
        b.push(Op::MbarrierInit { barrier: full, arrivals: 1 });
        b.push(Op::MbarrierInit { barrier: done, arrivals: 1 });
        b.push(Op::MbarrierFence);
    });
    let allocates = b.equal(warp, 0);
    b.when(allocates, |b| b.tmem_allocate(Address::new(at, 0)));
    b.barrier();
    b.comment("the address of the columns");
    let base = of(b.load(Address::new(at, 0), Width::B32)[0]);
    let lanes = b.shl(warp, 21);
    let own = b.add(base, lanes);
    Parts { b, base, own, first, warp, thread, full, done }
}

impl Parts {
    /// Waits for the products, stores `N` columns of D to y [128, N], and frees the columns.
    fn end(mut self, d: u32, y: BufferId) -> Kernel {
        let b = &mut self.b;
        b.push(Op::MbarrierWait { barrier: self.done, parity: 0.into() });
        b.tmem(TmemOp::FenceAfter);
        let row = b.tmem_load(Type::F32, TmemAddress::new(self.own).plus(d), N);
        let at = b.mul(self.thread, N);
        for (column, &sum) in row.iter().enumerate() {
            let bits = b.unary(Unary::AsU32, sum);
            let to = Address::new(y, at).plus(column as u32);
            b.store(to, &[bits], Width::B32, None);
        }
        b.tmem(TmemOp::FenceBefore);
        b.barrier();
        let frees = b.equal(self.warp, 0);
        b.when(frees, |b| {
            b.tmem(TmemOp::FenceAfter);
            b.tmem(TmemOp::Free { base: self.base });
        });
        self.b.finish()
    }
}

/// A tensor map of rows of `k` elements of 16 bits, and the block that receives it.
fn matrix(b: &mut Builder, name: &str, (rows, k): (u32, u32)) -> (BufferId, TensorId, SharedId) {
    let words = buffer(b, name, Word::U16, Access::ReadOnly, rows * k);
    let map = b.tensor(TensorMap {
        name: format!("{name}_map"),
        buffer: words,
        extents: vec![Extent::Constant(k), Extent::Constant(rows)],
        strides: vec![Extent::Constant(1), Extent::Constant(k)],
        tile: vec![k, rows],
        swizzle: Swizzle::B128,
        cache: Cache::Default,
    });
    let layout = "[k, row], 128-byte swizzle";
    let tile = b.shared_block(&format!("{name}_tile"), Word::U16, rows * k, layout, 1024, None);
    (words, map, tile)
}

/// A step of 16 elements of such a tile.
fn step_of(block: SharedId, step: u32) -> SharedTile {
    SharedTile {
        block,
        index: 0.into(),
        offset: 16 * step,
        leading: 16,
        stride: 1024,
        swizzle: Swizzle::B128,
    }
}

const K: u32 = 64;

/// A kernel that multiplies A, [128, K], with x, [N, K], both in bf16, random numbers of a seed; y is its third buffer.
fn case_in_bf16(kernel: Kernel, seed: u64) -> Case {
    let (a, x) = (small(seed, 128 * K as usize), small(seed + 1, (N * K) as usize));
    Case {
        kernel,
        expected: vec![(2, product_of(&a, &x, [128, N as usize, K as usize]))],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![
                Contents::from_words(&bf16_words(&a)),
                Contents::from_words(&bf16_words(&x)),
                Contents::poison((128 * N * 4) as usize),
            ],
        },
    }
}

/// y = a x^T in bf16 by products of shared memory.
fn shared() -> Case {
    let (mut a, mut x, mut y) = (None, None, None);
    let mut parts = begin("shared", 32, |b| {
        a = Some(matrix(b, "a", (128, K)));
        x = Some(matrix(b, "x", (N, K)));
        y = Some(buffer(b, "y", Word::U32, Access::WriteOnce, 128 * N));
    });
    let (Some((_, a_map, a_tile)), Some((_, x_map, x_tile)), Some(y)) = (a, x, y) else {
        unreachable!("declared")
    };
    let (full, done, base) = (parts.full, parts.done, parts.base);
    let product = matrix_op("tcgen05.bf16", parts.b.target()).expect("a row of the table");
    let first = parts.first;
    parts.b.when(first, |b| {
        b.push(Op::MbarrierArrive { barrier: full, expect: Some((2 * K * (128 + N)).into()) });
        for (map, tile) in [(a_map, a_tile), (x_map, x_tile)] {
            let (to, at) = (Address::new(tile, 0), vec![Operand::U32(0); 2]);
            b.push(Op::TensorLoad { to, map, at, barrier: full, multicast: None });
        }
        b.push(Op::MbarrierWait { barrier: full, parity: 0.into() });
        for step in 0..K / product.shape[2] {
            let operands = (TmemOperand::Shared(step_of(a_tile, step)), step_of(x_tile, step));
            let d = (TmemAddress::new(base).plus(8), Operand::Pred(step > 0));
            b.tmem_product((product, N), d, operands, None);
        }
        b.tmem_commit(done);
    });
    case_in_bf16(parts.end(8, y), 21)
}

/// y = a x^T, where the warps write A to tensor memory: as weights that they have decoded. A has columns for one step of
/// 16, so that each step waits for the product before.
fn stored() -> Case {
    let (mut a, mut x, mut y) = (None, None, None);
    let mut parts = begin("stored", 64, |b| {
        a = Some(buffer(b, "a", Word::U32, Access::Constant, 128 * K / 2));
        x = Some(matrix(b, "x", (N, K)));
        y = Some(buffer(b, "y", Word::U32, Access::WriteOnce, 128 * N));
    });
    let (Some(a), Some((_, x_map, x_tile)), Some(y)) = (a, x, y) else { unreachable!("declared") };
    let (full, base, own, first) = (parts.full, parts.base, parts.own, parts.first);
    let (b, done) = (&mut parts.b, parts.done);
    let product = matrix_op("tcgen05.bf16", b.target()).expect("a row of the table");
    let steps = K / product.shape[2];
    let read = BarrierRef { array: b.barriers("read", steps - 1), index: 0.into() };
    b.when(first, |b| {
        for step in 0..steps - 1 {
            let barrier = BarrierRef { index: step.into(), ..read };
            b.push(Op::MbarrierInit { barrier, arrivals: 1 });
        }
        b.push(Op::MbarrierFence);
        b.push(Op::MbarrierArrive { barrier: full, expect: Some((2 * K * N).into()) });
        let (to, at) = (Address::new(x_tile, 0), vec![Operand::U32(0); 2]);
        b.push(Op::TensorLoad { to, map: x_map, at, barrier: full, multicast: None });
    });
    b.barrier();
    b.push(Op::MbarrierWait { barrier: full, parity: 0.into() });
    let row = b.mul(parts.thread, K / 2);
    for step in 0..steps {
        let from = Address::new(a, row).plus(8 * step);
        let mut words = b.load(from, Width::B128);
        words.extend(b.load(from.plus(4), Width::B128));
        let values = words.into_iter().map(of).collect();
        b.tmem(TmemOp::Store { to: TmemAddress::new(own), values });
        b.tmem(TmemOp::WaitStores);
        b.tmem(TmemOp::FenceBefore);
        b.barrier();
        let barrier =
            if step + 1 < steps { BarrierRef { index: step.into(), ..read } } else { done };
        b.when(first, |b| {
            b.tmem(TmemOp::FenceAfter);
            let operands = (TmemOperand::Tmem(TmemAddress::new(base)), step_of(x_tile, step));
            let d = (TmemAddress::new(base).plus(8), Operand::Pred(step > 0));
            b.tmem_product((product, N), d, operands, None);
            b.tmem_commit(barrier);
        });
        if step + 1 < steps {
            b.push(Op::MbarrierWait { barrier, parity: 0.into() });
            b.tmem(TmemOp::FenceAfter);
        }
    }
    case_in_bf16(parts.end(8, y), 23)
}

/// Words of codes of 4 bits of rows of 64, and of scales of e4m3 for 16 of them, with what they are.
fn nvfp4(seed: u64, rows: u32) -> (Vec<u32>, Vec<u32>, Vec<f64>) {
    let codes = super::kernels::numbers(seed, rows * 8);
    // 0.25 to 7.5 without a sign.
    let scales: Vec<u32> = super::kernels::numbers(seed + 1, rows)
        .iter()
        .map(|word| (word & 0x1f1f_1f1f) + 0x2828_2828)
        .collect();
    let value = |row: u32, k: u32| {
        let code = codes[(row * 8 + k / 8) as usize] >> (4 * (k % 8)) & 0xf;
        let scale = scales[row as usize] >> (8 * (k / 16)) & 0xff;
        E2M1.decode(code) * E4M3.decode(scale)
    };
    let values = (0..rows * 64).map(|at| value(at / 64, at % 64)).collect();
    (codes, scales, values)
}

/// y = a x^T of NVFP4 by one product with scales. Those of A go to tensor memory by way of shared memory, 32 rows by 16
/// bytes; the warps write those of x, all four the same.
fn scaled() -> Case {
    let mut names = None;
    let mut parts = begin("scaled", 64, |b| {
        let a = buffer(b, "a", Word::U32, Access::Constant, 128 * 8);
        let a_scales = buffer(b, "a_scales", Word::U32, Access::Constant, 128);
        let x = buffer(b, "x", Word::U32, Access::ReadOnly, N * 8);
        let x_scales = buffer(b, "x_scales", Word::U32, Access::ReadOnly, 32);
        let y = buffer(b, "y", Word::U32, Access::WriteOnce, 128 * N);
        let of_rows = "[k:32, row:8, k/32:2, row/8]";
        let a_tile = b.shared_block("a_tile", Word::U32, 128 * 8, of_rows, 128, None);
        let x_tile = b.shared_block("x_tile", Word::U32, N * 8, of_rows, 128, None);
        let words =
            b.shared_block("scales", Word::U32, 128, "[k/16:4, row/32:4, row:32]", 128, None);
        names = Some(([a, a_scales, x, x_scales, y], [a_tile, x_tile, words]));
    });
    let Some(([a, a_scales, x, x_scales, y], [a_tile, x_tile, words])) = names else {
        unreachable!("declared")
    };
    let (base, own, first, thread, warp) =
        (parts.base, parts.own, parts.first, parts.thread, parts.warp);
    let (full, done) = (parts.full, parts.done);
    let b = &mut parts.b;
    let copied = BarrierRef { array: b.barriers("copied", 1), index: 0.into() };
    b.when(first, |b| {
        b.push(Op::MbarrierInit { barrier: copied, arrivals: 1 });
        b.push(Op::MbarrierFence);
    });
    let product = matrix_op("tcgen05.scale.e2m1.e4m3", b.target()).expect("a row");
    // The codes of a row are 32 bytes: two of its 16-byte segments, 128 bytes of eight rows apart.
    b.when(first, |b| {
        b.push(Op::MbarrierArrive { barrier: full, expect: Some((32 * (128 + N)).into()) });
        for (from, tile, rows) in [(a, a_tile, 128), (x, x_tile, N)] {
            for row in 0..rows {
                for half in 0..2 {
                    let to = row / 8 * 64 + half * 32 + row % 8 * 4;
                    b.push(Op::BulkLoad {
                        to: Address::new(tile, 0).plus(to),
                        from: Address::new(from, 0).plus(8 * row + 4 * half),
                        bytes: 16.into(),
                        barrier: full,
                    });
                }
            }
        }
    });
    b.comment("scales of A: row 32 c + r to word c of row r");
    let word = b.load(Address::new(a_scales, thread), Width::B32)[0];
    let lane = b.and(thread, 31);
    let to = b.mad(lane, 4, warp);
    b.store(Address::new(words, to), &[of(word)], Width::B32, None);
    b.push(Op::FenceAsync);
    b.comment("scales of x: row r to lane r of each warp's lanes");
    let word = b.load(Address::new(x_scales, lane), Width::B32)[0];
    b.tmem(TmemOp::Store { to: TmemAddress::new(own).plus(4), values: vec![of(word)] });
    b.tmem(TmemOp::WaitStores);
    b.tmem(TmemOp::FenceBefore);
    b.barrier();
    b.when(first, |b| {
        b.tmem(TmemOp::FenceAfter);
        let columns = TmemAddress::new(base);
        b.comment("whether it has landed or not, the product is after it");
        b.tmem(TmemOp::Copy { to: columns, from: Address::new(words, 0) });
        b.tmem_commit(copied);
        b.push(Op::MbarrierWait { barrier: full, parity: 0.into() });
        let tile = |block| SharedTile {
            block,
            index: 0.into(),
            offset: 0,
            leading: 128,
            stride: 256,
            swizzle: Swizzle::None,
        };
        let scales = [columns, columns.plus(4)].map(|at| TmemScale { at, byte: 0 });
        let operands = (TmemOperand::Shared(tile(a_tile)), tile(x_tile));
        let d = (columns.plus(16), Operand::Pred(false));
        b.tmem_product((product, N), d, operands, Some(scales));
        b.tmem_commit(done);
    });
    let (a_codes, of_a, a) = nvfp4(31, 128);
    let (x_codes, mut of_x, x) = nvfp4(33, N);
    of_x.resize(32, 0);
    let sum = |row: usize, column: usize| {
        let products = (0..64).map(|k| a[row * 64 + k] * x[column * 64 + k]);
        (products.sum::<f64>() as f32).to_bits()
    };
    let n = N as usize;
    let expected = (0..128 * n).map(|at| sum(at / n, at % n)).collect();
    Case {
        kernel: parts.end(16, y),
        expected: vec![(4, expected)],
        arguments: Arguments {
            parameters: Vec::new(),
            buffers: vec![
                Contents::from_words(&a_codes),
                Contents::from_words(&of_a),
                Contents::from_words(&x_codes),
                Contents::from_words(&of_x),
                Contents::poison(128 * n * 4),
            ],
        },
    }
}

#[test]
fn kernels_of_tensor_memory_give_correct_results() {
    for (name, case) in ALL {
        let case = case();
        if let Err(refusals) = verify(case.kernel.clone()) {
            panic!("{name}: {refusals}");
        }
        for seed in 0..4 {
            match simulate(&case, seed) {
                Outcome::Right(_) => {}
                Outcome::WrongResult(what) => panic!("{name}, seed {seed}: {what}"),
                Outcome::Fault(fault) => panic!("{name}, seed {seed}: {fault}"),
            }
        }
    }
}

fn tmem(wanted: fn(&TmemOp) -> bool) -> impl Fn(&Op) -> bool {
    move |op| matches!(op, Op::Tmem(op) if wanted(op))
}

fn loads(op: &TmemOp) -> bool {
    matches!(op, TmemOp::Load { .. })
}
fn stores(op: &TmemOp) -> bool {
    matches!(op, TmemOp::Store { .. })
}
fn products(op: &TmemOp) -> bool {
    matches!(op, TmemOp::Product { .. })
}
fn waits(op: &Op) -> bool {
    matches!(op, Op::MbarrierWait { .. })
}
fn barriers(op: &Op) -> bool {
    matches!(op, Op::Barrier)
}
fn fences_before(op: &TmemOp) -> bool {
    matches!(op, TmemOp::FenceBefore)
}
fn fences_after(op: &TmemOp) -> bool {
    matches!(op, TmemOp::FenceAfter)
}

/// Changes the nth product.
fn product(kernel: &mut Kernel, nth: usize, change: fn(&mut Parameters<'_>)) {
    op(kernel, nth, tmem(products), |op| {
        if let Op::Tmem(TmemOp::Product { op, n, d, a, b, adds, scales }) = op {
            change(&mut Parameters { op, n, d, a, b, adds, scales });
        }
    });
}

/// What a fault changes of a product.
struct Parameters<'o> {
    op: &'o mut &'static MatrixOp,
    n: &'o mut u32,
    d: &'o mut TmemAddress,
    a: &'o mut TmemOperand,
    b: &'o mut SharedTile,
    adds: &'o mut Operand,
    scales: &'o mut Option<[TmemScale; 2]>,
}

#[rustfmt::skip]
const FAULTS: &[Injected] = &[
    // The allocation.
    injected("columns not freed", shared, |k| drop_op(k, 0, tmem(|op| matches!(op, TmemOp::Free { .. }))), "tensor memory"),
    injected("columns not allocated", shared, |k| drop_op(k, 0, tmem(|op| matches!(op, TmemOp::Allocate { .. }))), "poison memory"),
    injected("columns assumed at address 0", shared, |k| product(k, 0, |of| of.d.base = 0.into()), "tensor memory"),
    injected("columns beyond the allocation", shared, |k| product(k, 0, |of| of.d.column = 24), "tensor memory"),
    injected("columns freed at another address", shared, |k| op(k, 0, tmem(|op| matches!(op, TmemOp::Free { .. })), |op| *op = Op::Tmem(TmemOp::Free { base: 0.into() })), "tensor memory"),
    injected("columns freed before all have read them", shared, |k| drop_op(k, 1, barriers), "race"),
    injected("columns freed by another warp", shared, other_warp_frees, "tensor memory"),
    // Orders of threads.
    injected("products not awaited", shared, |k| drop_op(k, 0, waits), "poison memory"),
    injected("no fence after the wait", shared, |k| drop_op(k, 0, tmem(fences_after)), "race"),
    injected("products not committed", shared, |k| drop_op(k, 0, tmem(|op| matches!(op, TmemOp::Commit { .. }))), "deadlock"),
    injected("operands not awaited", shared, |k| drop_op(k, 1, waits), "in flight"),
    injected("the last product after the commit", shared, commit_too_early, "in flight"),
    injected("stores without a fence before the barrier", stored, |k| drop_op(k, 0, tmem(fences_before)), "race"),
    injected("stores without a fence after the barrier", stored, |k| drop_op(k, 0, tmem(fences_after)), "race"),
    injected("stores without a barrier", stored, |k| drop_op(k, 2, barriers), "race"),
    injected("A overwritten while a product reads it", stored, |k| drop_op(k, 1, waits), "race"),
    injected("A overwritten without a fence after the wait", stored, |k| drop_op(k, 1, tmem(fences_after)), "race"),
    injected("scales written without a fence to the async proxy", scaled, |k| drop_op(k, 0, |op| matches!(op, Op::FenceAsync)), "proxy fence"),
    injected("scales of x without a fence", scaled, |k| drop_op(k, 0, tmem(fences_before)), "race"),
    // What is in flight.
    injected("stores not awaited", stored, |k| drop_op(k, 0, tmem(|op| matches!(op, TmemOp::WaitStores))), "in flight"),
    injected("loads not awaited", shared, |k| drop_op(k, 0, tmem(|op| matches!(op, TmemOp::WaitLoads))), "in flight"),
    injected("a copy after the product that reads it", scaled, copy_after_product, "poison memory"),
    // Who executes an operation, and where.
    injected("a product by all threads", shared, all_threads, "tensor memory"),
    injected("the lanes of another warp", shared, |k| op(k, 0, |op| matches!(op, Op::Binary { op: Binary::Shl, .. }), |op| if let Op::Binary { b, .. } = op { *b = 22.into(); }), "tensor memory"),
    injected("a fence before the barrier by one lane", stored, |k| by_one_thread(k, tmem(fences_before)), "race"),
    injected("another instruction on the same sums", shared, |k| product(k, 2, |of| *of.op = matrix_op("tcgen05.f16", chip("sm_100a")).unwrap()), "in flight"),
    injected("more arrivals than the mbarrier counts", shared, commit_twice, "barrier"),
    injected("the first product adds", shared, |k| product(k, 0, |of| *of.adds = Operand::Pred(true)), "poison memory"),
    injected("a later product does not add", shared, |k| product(k, 2, |of| *of.adds = Operand::Pred(false)), "result"),
    injected("a product of fewer columns", shared, |k| (0..4).for_each(|nth| product(k, nth, |of| *of.n = 8)), "poison memory"),
    injected("wrong swizzle of A", shared, |k| product(k, 1, |of| if let TmemOperand::Shared(tile) = of.a { tile.swizzle = Swizzle::None }), "result"),
    injected("wrong stride of B", shared, |k| product(k, 1, |of| of.b.stride = 128), "result"),
    injected("wrong columns of A", stored, |k| product(k, 1, |of| *of.a = TmemOperand::Tmem(TmemAddress { column: 4, ..of.d.to_owned() })), "in flight"),
    injected("scales of A and x exchanged", scaled, |k| product(k, 0, |of| if let Some(scales) = of.scales { scales.swap(0, 1) }), "poison memory"),
    injected("scales from another column", scaled, |k| product(k, 0, |of| if let Some([_, of_x]) = of.scales { of_x.at.column = 1 }), "result"),
    injected("scales that differ between the quarters", scaled, scales_of_warps, "tensor memory"),
];

/// The threads of warp 0 start products, not its first one alone.
fn all_threads(kernel: &mut Kernel) {
    let compared = |statement: &Statement| match statement {
        Statement::Op(Op::Compare { dst, .. }) => Some(*dst),
        _ => None,
    };
    let of_warp = kernel.body.iter().filter_map(compared).nth(1).expect("a comparison of the warp");
    for statement in &mut kernel.body {
        if let Statement::If { condition, then, .. } = statement
            && then.iter().any(|inner| matches!(inner, Statement::Op(op) if tmem(products)(op)))
        {
            *condition = of_warp.into();
            then.retain(|inner| matches!(inner, Statement::Op(op) if tmem(products)(op)));
        }
    }
}

/// Only the first thread executes the first such operation.
fn by_one_thread(kernel: &mut Kernel, wanted: impl Fn(&Op) -> bool) {
    let compared = |statement: &Statement| match statement {
        Statement::Op(Op::Compare { dst, .. }) => Some(*dst),
        _ => None,
    };
    let condition = kernel.body.iter().find_map(compared).expect("a comparison").into();
    let at = |statement: &Statement| matches!(statement, Statement::Op(op) if wanted(op));
    let at = kernel.body.iter().position(at).expect("the operation");
    let then = vec![kernel.body.remove(at)];
    kernel.body.insert(at, Statement::If { condition, then, otherwise: Vec::new() });
}

/// Two commits of the same products to an mbarrier whose phase lacks one arrival and no bytes, and a third that waits for
/// bytes.
fn commit_twice(kernel: &mut Kernel) {
    replace(kernel, 0, tmem(|op| matches!(op, TmemOp::Commit { .. })), &|commit| {
        let Op::Tmem(TmemOp::Commit { barrier }) = commit else { return Vec::new() };
        let expects = Op::MbarrierArrive { barrier, expect: Some(16.into()) };
        vec![expects, commit]
    });
}

/// Warp 1 frees what warp 0 has allocated.
fn other_warp_frees(kernel: &mut Kernel) {
    change_compare(kernel, 2, |op, _| {
        if let Op::Compare { b, .. } = op {
            *b = 1.into();
        }
    });
}

/// Changes the nth comparison for equality; the register that it compares comes with it.
fn change_compare(kernel: &mut Kernel, nth: usize, change: fn(&mut Op, Reg)) {
    replace(kernel, nth, |op| matches!(op, Op::Compare { .. }), &|mut op| {
        if let Op::Compare { a: Operand::Reg(reg), .. } = op {
            change(&mut op, reg);
        }
        vec![op]
    });
}

fn commit_too_early(kernel: &mut Kernel) {
    drop_op(kernel, 0, tmem(|op| matches!(op, TmemOp::Commit { .. })));
    let barrier = BarrierRef { array: BarrierId(1), index: 0.into() };
    replace(kernel, 3, tmem(products), &|product| {
        vec![Op::Tmem(TmemOp::Commit { barrier }), product]
    });
}

fn copy_after_product(kernel: &mut Kernel) {
    let mut copy = None;
    let find = |op: &Op| matches!(op, Op::Tmem(TmemOp::Copy { .. }));
    crate::ir::each_op(&kernel.body, &mut |op| {
        if find(op) {
            copy = Some(op.clone());
        }
    });
    let copy = copy.expect("a copy");
    drop_op(kernel, 0, find);
    replace(kernel, 0, tmem(products), &|product| vec![product, copy.clone()]);
}

/// Each warp stores other scales of x.
fn scales_of_warps(kernel: &mut Kernel) {
    let warp = kernel.registers.iter().position(|register| register.name == "warp");
    let id = RegisterId(warp.expect("its number") as u32);
    replace(kernel, 0, tmem(stores), &|mut op| {
        if let Op::Tmem(TmemOp::Store { values, .. }) = &mut op {
            values[0] = Reg { id, at: 0 }.into();
        }
        vec![op]
    });
}

#[test]
fn each_fault_of_tensor_memory_is_caught_by_its_detector() {
    let missed = missed(FAULTS);
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// What the verifier refuses without running a kernel.
#[test]
fn the_verifier_knows_the_rules_of_the_allocation() {
    let refusals = |change: fn(&mut Kernel)| {
        let mut kernel = stored().kernel;
        change(&mut kernel);
        verify(kernel).expect_err("a broken rule").errors
    };
    let first = |change| refusals(change).remove(0).kind;
    let tmem_error = |error: TmemError| VerifyErrorKind::Tmem(error);
    assert_eq!(first(|k| k.tmem_columns = 48), tmem_error(TmemError::Columns(48)));
    assert_eq!(first(|k| k.tmem_columns = 1024), tmem_error(TmemError::Columns(1024)));
    assert_eq!(first(|k| k.tmem_columns = 0), tmem_error(TmemError::Undeclared));
    let resident = TmemError::ResidentColumns { blocks: 3, columns: 256 };
    let three = |k: &mut Kernel| (k.tmem_columns, k.launch.min_blocks) = (256, 3);
    assert_eq!(first(three), tmem_error(resident));
    let frees = |k: &mut Kernel| drop_op(k, 0, tmem(|op| matches!(op, TmemOp::Free { .. })));
    assert_eq!(first(frees), tmem_error(TmemError::NotOnce { what: "frees", times: 0 }));
    let early = |k: &mut Kernel| k.body.insert(0, Statement::Op(Op::Tmem(TmemOp::FenceAfter)));
    assert_eq!(first(early), tmem_error(TmemError::BeforeAllocation));
    let launches = |k: &mut Kernel| k.body.insert(0, Statement::Op(Op::GridLaunch));
    assert_eq!(first(launches), tmem_error(TmemError::LaunchBeforeAllocation));
    let cluster = |k: &mut Kernel| (k.tmem_columns, k.launch.cluster) = (256, 4);
    let resident = TmemError::ResidentColumns { blocks: 4, columns: 256 };
    assert_eq!(first(cluster), tmem_error(resident));
    let scope = |k: &mut Kernel| {
        product(k, 0, |of| *of.op = matrix_op("mma.m16n8k16.bf16", chip("sm_100a")).unwrap());
    };
    let other = ValueError::InstructionScope("mma.m16n8k16.bf16");
    assert_eq!(first(scope), VerifyErrorKind::Value(other));
    let looped = |k: &mut Kernel| {
        let body = std::mem::take(&mut k.body);
        let counter = k.registers.len() as u32;
        k.registers.push(Register {
            name: "again".to_owned(),
            ty: Type::U32,
            len: 1,
            uniformity: Uniformity::Block,
        });
        let counter = Reg { id: RegisterId(counter), at: 0 };
        let (start, end, step) = (0.into(), 1.into(), 1.into());
        k.body = vec![Statement::For { counter, start, end, step, body }];
    };
    assert_eq!(first(looped), tmem_error(TmemError::InLoop));
    // Operations: numbers, uniformity, registers in flight.
    let texts = |change| {
        let errors = refusals(change);
        errors.iter().map(|error| error.kind.to_string()).collect::<Vec<_>>().join("; ")
    };
    let n = |k: &mut Kernel| product(k, 0, |of| *of.n = 12);
    assert!(texts(n).contains("tcgen05.bf16 has no N of 12"));
    let lane = |k: &mut Kernel| {
        let thread = k.registers.iter().position(|register| register.name == "thread");
        let id = RegisterId(thread.expect("its number") as u32);
        replace(k, 0, tmem(loads), &|mut op| {
            if let Op::Tmem(TmemOp::Load { from, .. }) = &mut op {
                from.base = Reg { id, at: 0 }.into();
            }
            vec![op]
        });
    };
    assert!(texts(lane).contains("the address `thread` of tensor memory may differ"));
    let early = |k: &mut Kernel| drop_op(k, 0, tmem(|op| matches!(op, TmemOp::WaitLoads)));
    assert!(texts(early).contains("is used by an operation in flight"));
    let seven = |k: &mut Kernel| {
        op(k, 0, tmem(stores), |op| {
            if let Op::Tmem(TmemOp::Store { values, .. }) = op {
                values.pop();
            }
        });
    };
    assert!(texts(seven).contains("7 registers of tensor memory"));
    let other = |k: &mut Kernel| k.target = chip("sm_90a");
    assert!(texts(other).contains("sm_90a has no TensorMemory"));
}
