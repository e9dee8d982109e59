//! Kernels that together use every operation on tensor memory.

use quantloom_codegen::ir::*;
use quantloom_codegen::target::{Feature, Target};

use super::launch;

/// A kernel of every product that the target has, with A in either memory, and of every other operation. It is only assembled: its
/// stores overlap, and its products share one D.
pub fn operations(target: &'static Target) -> Vec<Kernel> {
    if !target.has(Feature::TensorMemory) {
        return Vec::new();
    }
    let mut b = Builder::new("tmem", "Every operation on tensor memory.", target, launch(128));
    let y = b.buffer("y", Word::U32, Access::WriteOnce, &[Extent::Constant(128)], "sums");
    b.tmem_columns(512);
    let at = b.shared("at", Word::U32, 4, "the address of the columns");
    let layout = "[k, row], 128-byte swizzle";
    let tile = b.shared_block("tile", Word::U8, 128 * 128, layout, 1024, None);
    let array = b.barriers("done", 1);
    let barrier = BarrierRef { array, index: 0.into() };
    let (thread, warp) = (b.special(Special::Thread), b.special(Special::Warp));
    let (first, allocates) = (b.equal(thread, 0), b.equal(warp, 0));
    b.when(first, |b| {
        b.push(Op::MbarrierInit { barrier, arrivals: 1 });
        b.push(Op::MbarrierFence);
    });
    b.when(allocates, |b| b.tmem_allocate(Address::new(at, 0)));
    b.barrier();
    let base: Operand = b.load(Address::new(at, 0), Width::B32)[0].into();
    let lanes = b.shl(warp, 21);
    let own = TmemAddress::new(b.add(base, lanes));
    let columns = TmemAddress::new(base);
    for count in [1, 2, 4, 8, 16, 32, 64, 128] {
        b.tmem(TmemOp::Store { to: own.plus(128), values: vec![thread; count] });
    }
    b.tmem(TmemOp::WaitStores);
    b.tmem(TmemOp::FenceBefore);
    b.barrier();
    b.when(first, |b| {
        b.tmem(TmemOp::FenceAfter);
        b.tmem(TmemOp::Copy { to: columns, from: Address::new(tile, 0) });
        let of_tmem =
            |op: &&MatrixOp| op.scope == MatrixScope::TensorMemory && target.has(op.needs);
        for product in MATRIX_OPS.iter().filter(of_tmem) {
            let of = |swizzle| SharedTile {
                block: tile,
                index: 0.into(),
                offset: 32,
                leading: 128,
                stride: 1024,
                swizzle,
            };
            let byte = product.row_scales() as u8 % 4;
            let scales = [TmemScale { at: columns, byte }, TmemScale { at: columns.plus(8), byte }];
            let scales = product.scaling.map(|_| scales);
            for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
                let operands = (TmemOperand::Shared(of(swizzle)), of(swizzle));
                let d = (columns.plus(256), Operand::Pred(swizzle != Swizzle::None));
                b.tmem_product((product, 256), d, operands, scales);
            }
            let operands = (TmemOperand::Tmem(columns.plus(128)), of(Swizzle::B128));
            b.tmem_product((product, 16), (columns.plus(256), first), operands, scales);
        }
        b.tmem_commit(barrier);
    });
    b.push(Op::MbarrierWait { barrier, parity: 0.into() });
    b.tmem(TmemOp::FenceAfter);
    let mut sum = Operand::F32(0.0);
    for count in [1, 2, 4, 8, 16, 32, 64, 128] {
        for reg in b.tmem_load(Type::F32, own.plus(256), count) {
            sum = b.add_f32(sum, reg);
        }
    }
    let bits = b.unary(Unary::AsU32, sum);
    b.store(Address::new(y, thread), &[bits], Width::B32, None);
    b.tmem(TmemOp::FenceBefore);
    b.barrier();
    b.when(allocates, |b| {
        b.tmem(TmemOp::FenceAfter);
        b.tmem(TmemOp::Free { base });
    });
    vec![b.finish()]
}
