//! Seeded faults: right kernels with one thing wrong, and the detector that must say so.

use super::{Case, Outcome, kernels, simulate};
use crate::ir::{
    Address, Binary, Body, Fetch, Kernel, MatrixOperand, Op, Operand, Order, Reg, Register,
    RegisterId, Scope, SharedBlock, SharedId, Space, Statement, Swizzle, Type, Uniformity, Width,
    Word,
};
use crate::target::target;

/// A fault: what is wrong, the kernel, how it comes about, and who must notice.
struct Seeded {
    what: &'static str,
    kernel: fn() -> Case,
    change: fn(&mut Kernel),
    detector: &'static str,
}

const fn seeded(
    what: &'static str,
    kernel: fn() -> Case,
    change: fn(&mut Kernel),
    detector: &'static str,
) -> Seeded {
    Seeded { what, kernel, change, detector }
}

#[rustfmt::skip]
const FAULTS: &[Seeded] = &[
    // Order within a block.
    seeded("dropped barrier", kernels::staged, |k| drop_op(k, 0, barrier), "race"),
    seeded("dropped barrier, 64 lanes", kernels::staged_64, |k| drop_op(k, 0, barrier), "race"),
    seeded("dropped barrier in a ring", kernels::ring, |k| drop_op(k, 0, barrier), "race"),
    seeded("barrier that half of the warps pass", kernels::product, barrier_in_branch, "divergent"),
    seeded("barrier in a branch of some lanes", kernels::split, barrier_in_branch, "divergent"),
    seeded("tile read before all warps brought it", kernels::product, |k| drop_op(k, 0, barrier), "race"),
    seeded("sums taken before all warps wrote", kernels::product, |k| drop_op(k, 1, barrier), "race"),
    seeded("memory shared by two blocks too early", kernels::product, overlay_too_early, "race"),
    seeded("block read after its memory was given away", kernels::staged, read_after_overlay, "overwritten"),
    // Poison.
    seeded("accumulator not cleared", kernels::ring, |k| drop_op(k, 0, copy_of_zero), "poison register"),
    seeded("poison passed on by a copy", kernels::ring, copy_of_nothing, "poison register"),
    seeded("shared memory never filled", kernels::staged, |k| drop_op(k, 0, shared_store), "poison memory"),
    seeded("counter of a loop used behind it", kernels::divergent, counter_behind_loop, "poison register"),
    // Addresses.
    seeded("off by one in shared memory", kernels::staged, |k| op(k, 0, shared_store, |op| shift(op, 1)), "out of bounds"),
    seeded("off by one group", kernels::product, |k| op(k, 0, global_store, |op| shift(op, 8)), "out of bounds"),
    seeded("misaligned wide load", kernels::product, |k| op(k, 0, wide_load, |op| shift(op, 1)), "misaligned"),
    seeded("copy without its mask", kernels::ring, |k| op(k, 0, copy_async, unmask), "out of bounds"),
    seeded("load without its mask", kernels::dependent, |k| op(k, 0, global_load, unmask), "out of bounds"),
    seeded("store without its mask", kernels::dependent, |k| op(k, 0, global_store, unmask), "out of bounds"),
    seeded("store to weights", kernels::dependent, |k| op(k, 0, global_store, |op| to_buffer(op, 0)), "wrong access"),
    // Data in the wrong place.
    seeded("wrong lane bit", kernels::product, |k| constant(k, Binary::And, 3, 1), "result"),
    seeded("missing swizzle", kernels::product, |k| op(k, 0, xor, |op| becomes(op, Binary::Or)), "result"),
    seeded("wrong swizzle of a tile", kernels::tensor_group, wrong_tile_swizzle, "result"),
    seeded("wrong register of a fragment", kernels::product, |k| op(k, 0, matrix, swap_a), "result"),
    seeded("wrong lane map, 64 lanes", kernels::product_mfma, |k| constant(k, Binary::Shr, 4, 5), "stored twice"),
    // Outputs.
    seeded("double store", kernels::staged, |k| twice(k, global_store), "stored twice"),
    seeded("dropped store", kernels::staged, |k| drop_op(k, 0, global_store), "never written"),
    seeded("one block too few", kernels::ring, |k| k.launch.grid[0] = crate::ir::Extent::Constant(1), "never written"),
    // Copies in flight.
    seeded("short wait", kernels::ring, |k| op(k, 1, copy_wait, |op| *op = Op::CopyWait { pending: 2 }), "in flight"),
    seeded("dropped wait", kernels::ring, |k| drop_op(k, 1, copy_wait), "in flight"),
    seeded("dropped last wait", kernels::ring, |k| drop_op(k, 0, copy_wait), "unfinished"),
    seeded("slot reused early", kernels::ring, |k| constant(k, Binary::Add, 2, 3), "in flight"),
    // Between blocks.
    seeded("last arriver without release", kernels::split, |k| op(k, 0, atomic, |op| ordered(op, Order::Acquire, Scope::Device)), "race"),
    seeded("last arriver without acquire", kernels::split, |k| op(k, 0, atomic, |op| ordered(op, Order::Release, Scope::Device)), "race"),
    seeded("last arriver of the block's scope", kernels::split, |k| op(k, 0, atomic, |op| ordered(op, Order::AcquireRelease, Scope::Block)), "race"),
    seeded("counted before all have written", kernels::split, |k| drop_op(k, 0, barrier), "race"),
    seeded("last arriver is the one before", kernels::split, compare_with_two, "poison memory"),
    seeded("counter not atomic", kernels::split, plain_counter, "race"),
    seeded("missing griddepcontrol.wait", kernels::dependent, |k| drop_op(k, 0, |op| matches!(op, Op::GridWait)), "grid wait"),
    // mbarriers and the async proxy.
    seeded("missing proxy fence", kernels::bulk, |k| drop_op(k, 0, |op| matches!(op, Op::FenceAsync)), "proxy fence"),
    seeded("missing warp sync", kernels::bulk, |k| drop_op(k, 0, |op| matches!(op, Op::WarpSync)), "race"),
    seeded("missing wait for a bulk store", kernels::bulk, |k| drop_op(k, 0, |op| matches!(op, Op::BulkWait { .. })), "unfinished"),
    seeded("consumer does not wait", kernels::bulk, |k| drop_op(k, 1, mbarrier_wait), "in flight"),
    seeded("producer does not wait", kernels::bulk, |k| drop_op(k, 0, mbarrier_wait), "barrier"),
    seeded("too few bytes expected", kernels::bulk, |k| op(k, 0, expecting, |op| expect(op, 64)), "deadlock"),
    seeded("no bytes expected", kernels::bulk, |k| op(k, 0, expecting, |op| expect(op, 0)), "in flight"),
    seeded("wrong parity", kernels::bulk, |k| constant(k, Binary::Xor, 1, 0), "deadlock"),
    seeded("one arrival too many expected", kernels::bulk, |k| op(k, 1, mbarrier_init, |op| arrivals(op, 33)), "deadlock"),
    seeded("missing mbarrier fence", kernels::bulk, |k| drop_op(k, 0, |op| matches!(op, Op::MbarrierFence)), "barrier"),
    seeded("mbarrier used before a barrier", kernels::bulk, |k| drop_op(k, 0, barrier), "barrier"),
    seeded("tensor copy from the middle of 16 bytes", kernels::tensor_group, |k| op(k, 0, |op| matches!(op, Op::TensorLoad { .. }), |op| if let Op::TensorLoad { at, .. } = op { at[0] = 4.into() }), "misaligned"),
    seeded("tensor copy not awaited", kernels::tensor_group, |k| drop_op(k, 0, mbarrier_wait), "in flight"),
    // Warp-group products.
    seeded("missing matrix fence", kernels::tensor_group, |k| drop_op(k, 0, |op| matches!(op, Op::MatrixFence)), "matrix fence"),
    seeded("fragment reused in flight", kernels::tensor_group, |k| op(k, 1, matrix_wait, |op| *op = Op::MatrixWait { pending: 2 }), "being read"),
    seeded("accumulator read in flight", kernels::tensor_group, |k| drop_op(k, 4, matrix_wait), "in flight"),
    // Values.
    seeded("shuffle from beyond the warp", kernels::divergent, |k| op(k, 0, shuffle, |op| if let Op::Shuffle { by, .. } = op { *by = 32.into() }), "lane range"),
    seeded("shuffle from beyond the neighbours", kernels::neighbours, |k| op(k, 1, shuffle, |op| if let Op::Shuffle { by, .. } = op { *by = 4.into() }), "lane range"),
    seeded("shuffle where none exchange registers", kernels::neighbours, |k| k.target = target("wgsl").unwrap(), "lane range"),
    seeded("shuffle in a block that is not whole", kernels::neighbours, |k| k.launch.threads = 112, "lane range"),
    seeded("the same shuffle twice", kernels::neighbours, |k| op(k, 1, shuffle, |op| if let Op::Shuffle { by, .. } = op { *by = 1.into() }), "result"),
    seeded("shift by 32", kernels::divergent, |k| constant(k, Binary::Shr, 1, 32), "shift range"),
    seeded("loop without a step", kernels::divergent, no_step, "loop range"),
    seeded("loop without an end", kernels::divergent, endless, "endless"),
    seeded("broken promise of uniformity", kernels::staged, promise, "not uniform"),
];

#[test]
fn each_fault_is_caught_by_its_detector() {
    let mut missed = Vec::new();
    for fault in FAULTS {
        let mut case = (fault.kernel)();
        let before = case.kernel.clone();
        (fault.change)(&mut case.kernel);
        assert_ne!(before, case.kernel, "{}: nothing was changed", fault.what);
        for seed in 0..3 {
            let outcome = simulate(&case, seed);
            if outcome.detector() != fault.detector {
                let (what, detector) = (fault.what, fault.detector);
                missed.push(format!("{what}, seed {seed}: not {detector}: {outcome:?}"));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    assert!(FAULTS.len() >= 20);
}

/// A fault names everything that is needed to find it.
#[test]
fn a_fault_reads_well() {
    let mut case = kernels::staged();
    drop_op(&mut case.kernel, 0, barrier);
    let Outcome::Fault(fault) = simulate(&case, 0) else { panic!("a race") };
    let text = fault.to_string();
    for part in [
        "kernel staged, block (",
        "warp ",
        "lane ",
        "#9 Load (take it back reversed)",
        "tile[",
        "unordered with the write at #6 Store (bring the block) by block (",
    ] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

// What a fault does to a kernel.

fn each(body: &mut Body, change: &mut dyn FnMut(&mut Body)) {
    change(body);
    for statement in body {
        match statement {
            Statement::Op(_) => {}
            Statement::If { then, otherwise, .. } => {
                each(then, change);
                each(otherwise, change);
            }
            Statement::For { body, .. } => each(body, change),
            Statement::While { test, body, .. } => {
                each(test, change);
                each(body, change);
            }
            Statement::Roles(roles) => {
                for role in roles {
                    each(&mut role.body, change);
                }
            }
        }
    }
}

/// Replaces the nth wanted operation, bodies before their nested ones.
fn replace(kernel: &mut Kernel, nth: usize, wanted: fn(&Op) -> bool, by: &dyn Fn(Op) -> Vec<Op>) {
    let mut left = nth as isize;
    each(&mut kernel.body, &mut |body| {
        let mut at = 0;
        while at < body.len() {
            if let Statement::Op(op) = &body[at]
                && wanted(op)
            {
                left -= 1;
                if left == -1 {
                    let new = by(op.clone()).into_iter().map(Statement::Op);
                    body.splice(at..=at, new);
                    return;
                }
            }
            at += 1;
        }
    });
}

fn drop_op(kernel: &mut Kernel, nth: usize, wanted: fn(&Op) -> bool) {
    replace(kernel, nth, wanted, &|_| Vec::new());
}

fn op(kernel: &mut Kernel, nth: usize, wanted: fn(&Op) -> bool, change: fn(&mut Op)) {
    replace(kernel, nth, wanted, &|mut op| {
        change(&mut op);
        vec![op]
    });
}

fn twice(kernel: &mut Kernel, wanted: fn(&Op) -> bool) {
    replace(kernel, 0, wanted, &|op| vec![op.clone(), op]);
}

/// Changes the second operand of the first such operation with this constant.
fn constant(kernel: &mut Kernel, of: Binary, from: u32, to: u32) {
    let mut done = false;
    each(&mut kernel.body, &mut |body| {
        for statement in body {
            if let Statement::Op(Op::Binary { op, b, .. }) = statement
                && *op == of
                && *b == Operand::U32(from)
                && !done
            {
                *b = to.into();
                done = true;
            }
        }
    });
}

fn barrier(op: &Op) -> bool {
    matches!(op, Op::Barrier)
}
fn shuffle(op: &Op) -> bool {
    matches!(op, Op::Shuffle { .. })
}
fn copy_of_zero(op: &Op) -> bool {
    matches!(op, Op::Copy { a: Operand::U32(0), .. })
}
fn shared_store(op: &Op) -> bool {
    matches!(op, Op::Store { to: Address { space: Space::Shared(_), .. }, .. })
}
fn global_store(op: &Op) -> bool {
    matches!(op, Op::Store { to: Address { space: Space::Global(_), .. }, .. })
}
fn global_load(op: &Op) -> bool {
    matches!(op, Op::Load { from: Address { space: Space::Global(_), .. }, .. })
}
fn wide_load(op: &Op) -> bool {
    matches!(op, Op::Load { width: Width::B128, .. })
}
fn copy_async(op: &Op) -> bool {
    matches!(op, Op::CopyAsync { mask: Some(Operand::Reg(_)), .. })
}
fn copy_wait(op: &Op) -> bool {
    matches!(op, Op::CopyWait { .. })
}
fn xor(op: &Op) -> bool {
    matches!(op, Op::Binary { op: Binary::Xor, .. })
}
fn matrix(op: &Op) -> bool {
    matches!(op, Op::Matrix { .. })
}
fn atomic(op: &Op) -> bool {
    matches!(op, Op::Atomic { .. })
}
fn mbarrier_init(op: &Op) -> bool {
    matches!(op, Op::MbarrierInit { .. })
}
fn mbarrier_wait(op: &Op) -> bool {
    matches!(op, Op::MbarrierWait { .. })
}
fn expecting(op: &Op) -> bool {
    matches!(op, Op::MbarrierArrive { expect: Some(_), .. })
}
fn matrix_wait(op: &Op) -> bool {
    matches!(op, Op::MatrixWait { .. })
}

fn shift(op: &mut Op, words: u32) {
    if let Op::Load { from: at, .. } | Op::Store { to: at, .. } = op {
        at.offset += words;
    }
}
fn unmask(op: &mut Op) {
    match op {
        Op::Load { mask, .. } => *mask = None,
        Op::Store { mask, .. } | Op::CopyAsync { mask, .. } => *mask = None,
        _ => {}
    }
}
fn to_buffer(op: &mut Op, buffer: u32) {
    if let Op::Store { to, .. } = op {
        to.space = Space::Global(crate::ir::BufferId(buffer));
    }
}
fn becomes(op: &mut Op, binary: Binary) {
    if let Op::Binary { op, .. } = op {
        *op = binary;
    }
}
fn swap_a(op: &mut Op) {
    if let Op::Matrix { a: MatrixOperand::Registers(a), .. } = op {
        a.swap(1, 2);
    }
}
fn ordered(op: &mut Op, to: Order, whom: Scope) {
    if let Op::Atomic { order, scope, .. } = op {
        (*order, *scope) = (to, whom);
    }
}
fn expect(op: &mut Op, bytes: u32) {
    if let Op::MbarrierArrive { expect, .. } = op {
        *expect = Some(bytes.into());
    }
}
fn arrivals(op: &mut Op, count: u32) {
    if let Op::MbarrierInit { arrivals, .. } = op {
        *arrivals = count;
    }
}

fn wrong_tile_swizzle(kernel: &mut Kernel) {
    op(kernel, 0, matrix, |op| {
        if let Op::Matrix { b: MatrixOperand::Shared(tile), .. } = op {
            tile.swizzle = Swizzle::None;
        }
    });
}

fn barrier_in_branch(kernel: &mut Kernel) {
    let mut done = false;
    each(&mut kernel.body, &mut |body| {
        for statement in body {
            if let Statement::If { then, .. } = statement
                && !done
            {
                then.push(Statement::Op(Op::Barrier));
                done = true;
            }
        }
    });
}

fn overlay_too_early(kernel: &mut Kernel) {
    kernel.shared[0].len = kernel.shared[1].len;
    kernel.shared[1].over = Some(SharedId(0));
}

fn read_after_overlay(kernel: &mut Kernel) {
    let late = SharedBlock {
        name: "late".to_owned(),
        word: Word::U32,
        len: 64,
        align: 16,
        layout: String::new(),
        over: Some(SharedId(0)),
    };
    kernel.shared.push(late);
    replace(kernel, 0, shared_store, &|store| {
        let mut again = store.clone();
        if let Op::Store { to, .. } = &mut again {
            to.space = Space::Shared(SharedId(1));
        }
        vec![store, Op::Barrier, again]
    });
}

fn counter_behind_loop(kernel: &mut Kernel) {
    let counter = kernel.body.iter().find_map(|statement| match statement {
        Statement::For { counter, .. } => Some(*counter),
        _ => None,
    });
    let counter = counter.expect("a loop");
    replace(kernel, 0, global_store, &|mut store| {
        if let Op::Store { values, .. } = &mut store {
            values[0] = counter.into();
        }
        vec![store]
    });
}

fn copy_of_nothing(kernel: &mut Kernel) {
    let id = RegisterId(kernel.registers.len() as u32);
    let (name, uniformity) = ("nothing".to_owned(), Uniformity::Varying);
    kernel.registers.push(Register { name, ty: Type::U32, len: 1, uniformity });
    replace(kernel, 0, copy_of_zero, &|mut copy| {
        if let Op::Copy { a, .. } = &mut copy {
            *a = Reg { id, at: 0 }.into();
        }
        vec![copy]
    });
}

fn compare_with_two(kernel: &mut Kernel) {
    replace(kernel, 0, |op| matches!(op, Op::Compare { b: Operand::U32(3), .. }), &|mut op| {
        if let Op::Compare { b, .. } = &mut op {
            *b = 2.into();
        }
        vec![op]
    });
}

fn plain_counter(kernel: &mut Kernel) {
    replace(kernel, 0, atomic, &|op| {
        let Op::Atomic { dst: Some(dst), op: Fetch::Add, at, value, .. } = op else {
            return Vec::new();
        };
        let add = Op::Binary { dst, op: Binary::Add, a: dst.into(), b: value };
        let store = Op::Store { to: at, values: vec![dst.into()], width: Width::B32, mask: None };
        let load = Op::Load {
            dst: vec![dst],
            from: at,
            width: Width::B32,
            mask: None,
            cache: crate::ir::Cache::Default,
        };
        vec![load, add, store]
    });
}

fn no_step(kernel: &mut Kernel) {
    for statement in &mut kernel.body {
        if let Statement::For { step, .. } = statement {
            *step = 0.into();
        }
    }
}

fn endless(kernel: &mut Kernel) {
    for statement in &mut kernel.body {
        if let Statement::While { body, .. } = statement {
            body.clear();
        }
    }
}

fn promise(kernel: &mut Kernel) {
    let id = RegisterId(kernel.registers.len() as u32);
    let (name, uniformity) = ("same".to_owned(), Uniformity::Warp);
    kernel.registers.push(Register { name, ty: Type::U32, len: 1, uniformity });
    let dst = Reg { id, at: 0 };
    replace(kernel, 0, |op| matches!(op, Op::Special { .. }), &|special| {
        let a = match &special {
            Op::Special { dst, .. } => (*dst).into(),
            _ => Operand::U32(0),
        };
        vec![special, Op::Uniform { dst, a }]
    });
}
