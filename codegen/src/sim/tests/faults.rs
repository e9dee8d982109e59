//! Injected faults: correct kernels with one change, and the detector that must report it.

use super::guess::guessing;
use super::{Case, Outcome, kernels, simulate};
use crate::ir::{
    Address, AtomicOp, Binary, Body, Cache, Kernel, MatrixOperand, MemoryOrder, Op, Operand, Reg,
    Register, RegisterId, Scope, SharedBlock, SharedId, Space, Statement, Swizzle, Type, Unary,
    Uniformity, Width, Word,
};
use crate::target::target;

/// An injected fault: its description, the kernel, the change, and the detector.
pub(super) struct Injected {
    what: &'static str,
    kernel: fn() -> Case,
    change: fn(&mut Kernel),
    detector: &'static str,
}

pub(super) const fn injected(
    what: &'static str,
    kernel: fn() -> Case,
    change: fn(&mut Kernel),
    detector: &'static str,
) -> Injected {
    Injected { what, kernel, change, detector }
}

#[rustfmt::skip]
const FAULTS: &[Injected] = &[
    // MemoryOrder within a block.
    injected("dropped barrier", kernels::staged, |k| drop_op(k, 0, barrier), "race"),
    injected("dropped barrier, 64 lanes", kernels::staged_64, |k| drop_op(k, 0, barrier), "race"),
    injected("dropped barrier in a pipeline", kernels::pipeline, |k| drop_op(k, 0, barrier), "race"),
    injected("barrier that half of the warps do not reach", kernels::product, barrier_in_branch, "divergent"),
    injected("barrier in a branch of some lanes", kernels::split, barrier_in_branch, "divergent"),
    injected("tile read before all warps wrote it", kernels::product, |k| drop_op(k, 0, barrier), "race"),
    injected("sums read before all warps wrote them", kernels::product, |k| drop_op(k, 1, barrier), "race"),
    injected("memory shared by two blocks too early", kernels::product, overlay_too_early, "race"),
    injected("block read after its memory was reused", kernels::staged, read_after_overlay, "overwritten"),
    // Poison.
    injected("accumulator not cleared", kernels::pipeline, |k| drop_op(k, 0, copy_of_zero), "poison register"),
    injected("poison passed on by a copy", kernels::pipeline, copy_of_nothing, "poison register"),
    injected("shared memory never filled", kernels::staged, |k| drop_op(k, 0, shared_store), "poison memory"),
    injected("loop counter used after the loop", kernels::divergent, counter_after_loop, "poison register"),
    // Addresses.
    injected("off by one in shared memory", kernels::staged, |k| op(k, 0, shared_store, |op| shift(op, 1)), "out of bounds"),
    injected("off by one group", kernels::product, |k| op(k, 0, global_store, |op| shift(op, 8)), "out of bounds"),
    injected("misaligned wide load", kernels::product, |k| op(k, 0, wide_load, |op| shift(op, 1)), "misaligned"),
    injected("copy without its mask", kernels::pipeline, |k| op(k, 0, copy_async, unmask), "out of bounds"),
    injected("load without its mask", kernels::dependent, |k| op(k, 0, global_load, unmask), "out of bounds"),
    injected("store without its mask", kernels::dependent, |k| op(k, 0, global_store, unmask), "out of bounds"),
    injected("store to weights", kernels::dependent, |k| op(k, 0, global_store, |op| to_buffer(op, 0)), "wrong access"),
    // Data in the wrong place.
    injected("wrong lane bit", kernels::product, |k| constant(k, Binary::And, 3, 1), "result"),
    injected("missing swizzle", kernels::product, |k| op(k, 0, xor, |op| becomes(op, Binary::Or)), "result"),
    injected("wrong swizzle of a tile", kernels::tensor_group, wrong_tile_swizzle, "result"),
    injected("wrong register of a fragment", kernels::product, |k| op(k, 0, matrix, swap_a), "result"),
    injected("wrong lane map, 64 lanes", kernels::product_mfma, |k| constant(k, Binary::Shr, 4, 5), "stored twice"),
    injected("wrong lane map, 32 lanes", kernels::product_wmma, |k| constant(k, Binary::Shr, 4, 5), "stored twice"),
    injected("wrong rows of a fragment, 32 lanes", kernels::product_wmma, |k| op(k, 0, matrix, swap_a), "result"),
    injected("halves of a wave with different rows", kernels::product_wmma, |k| op(k, 0, and, |op| if let Op::Binary { op, b, .. } = op { (*op, *b) = (Binary::Shr, 1.into()) }), "different copies"),
    // Outputs.
    injected("double store", kernels::staged, |k| store_twice(k, global_store), "stored twice"),
    injected("dropped store", kernels::staged, |k| drop_op(k, 0, global_store), "never written"),
    injected("one block too few", kernels::pipeline, |k| k.launch.grid[0] = crate::ir::Extent::Constant(1), "never written"),
    // Copies in flight.
    injected("short wait", kernels::pipeline, |k| op(k, 1, copy_wait, |op| *op = Op::CopyWait { pending: 2 }), "in flight"),
    injected("dropped wait", kernels::pipeline, |k| drop_op(k, 1, copy_wait), "in flight"),
    injected("dropped last wait", kernels::pipeline, |k| drop_op(k, 0, copy_wait), "unfinished"),
    injected("stage reused early", kernels::pipeline, |k| constant(k, Binary::Add, 2, 3), "in flight"),
    // Between blocks.
    injected("last arriver without release", kernels::split, |k| op(k, 0, atomic, |op| ordered(op, MemoryOrder::Acquire, Scope::Device)), "race"),
    injected("last arriver without acquire", kernels::split, |k| op(k, 0, atomic, |op| ordered(op, MemoryOrder::Release, Scope::Device)), "race"),
    injected("last arriver with block scope", kernels::split, |k| op(k, 0, atomic, |op| ordered(op, MemoryOrder::AcquireRelease, Scope::Block)), "race"),
    injected("counted before all have written", kernels::split, |k| drop_op(k, 0, barrier), "race"),
    injected("last arriver off by one", kernels::split, compare_with_two, "poison memory"),
    injected("counter not atomic", kernels::split, plain_counter, "race"),
    injected("missing griddepcontrol.wait", kernels::dependent, |k| drop_op(k, 0, |op| matches!(op, Op::GridWait)), "grid wait"),
    injected("a wrong guess is kept", guessing, |k| op(k, 0, unary, |op| if let Op::Unary { dst, .. } = *op { *op = Op::Copy { dst, a: false.into() } }), "result"),
    injected("a guess taken for a number in bounds", guessing, |k| op(k, 0, and, |op| becomes(op, Binary::Or)), "out of bounds"),
    injected("a word read in place of a guess", guessing, becomes_load, "grid wait"),
    injected("a guess beyond the buffer", guessing, |k| op(k, 0, guess, |op| if let Op::Guess { from, .. } = op { from.offset += 24 }), "out of bounds"),
    // mbarriers and the async proxy.
    injected("missing proxy fence", kernels::bulk, |k| drop_op(k, 0, |op| matches!(op, Op::FenceAsync)), "proxy fence"),
    injected("missing warp sync", kernels::bulk, |k| drop_op(k, 0, |op| matches!(op, Op::WarpSync)), "race"),
    injected("missing wait for a bulk store", kernels::bulk, |k| drop_op(k, 0, |op| matches!(op, Op::BulkWait { .. })), "unfinished"),
    injected("consumer without its wait", kernels::bulk, |k| drop_op(k, 1, mbarrier_wait), "in flight"),
    injected("producer without its wait", kernels::bulk, |k| drop_op(k, 0, mbarrier_wait), "barrier"),
    injected("too few bytes expected", kernels::bulk, |k| op(k, 0, expecting, |op| expect(op, 64)), "deadlock"),
    injected("no bytes expected", kernels::bulk, |k| op(k, 0, expecting, |op| expect(op, 0)), "in flight"),
    injected("wrong parity", kernels::bulk, |k| constant(k, Binary::Xor, 1, 0), "deadlock"),
    injected("one arrival too many expected", kernels::bulk, |k| op(k, 1, mbarrier_init, |op| arrivals(op, 33)), "deadlock"),
    injected("missing mbarrier fence", kernels::bulk, |k| drop_op(k, 0, |op| matches!(op, Op::MbarrierFence)), "barrier"),
    injected("mbarrier used before a barrier", kernels::bulk, |k| drop_op(k, 0, barrier), "barrier"),
    injected("tensor copy from the middle of 16 bytes", kernels::tensor_group, |k| op(k, 0, |op| matches!(op, Op::TensorLoad { .. }), |op| if let Op::TensorLoad { at, .. } = op { at[0] = 4.into() }), "misaligned"),
    injected("tensor copy not awaited", kernels::tensor_group, |k| drop_op(k, 0, mbarrier_wait), "in flight"),
    // Warp-group products.
    injected("missing matrix fence", kernels::tensor_group, |k| drop_op(k, 0, |op| matches!(op, Op::MatrixFence)), "matrix fence"),
    injected("fragment reused in flight", kernels::tensor_group, |k| op(k, 1, matrix_wait, |op| *op = Op::MatrixWait { pending: 2 }), "being read"),
    injected("accumulator read in flight", kernels::tensor_group, |k| drop_op(k, 4, matrix_wait), "in flight"),
    // Values.
    injected("shuffle from outside of the warp", kernels::divergent, |k| op(k, 0, shuffle, |op| if let Op::Shuffle { by, .. } = op { *by = 32.into() }), "lane range"),
    injected("shuffle from outside of the shuffle group", kernels::neighbours, |k| op(k, 1, shuffle, |op| if let Op::Shuffle { by, .. } = op { *by = 4.into() }), "lane range"),
    injected("shuffle on a target without shuffles", kernels::neighbours, |k| k.target = target("wgsl").unwrap(), "lane range"),
    injected("shuffle in a block with an incomplete shuffle group", kernels::neighbours, |k| k.launch.threads = 112, "lane range"),
    injected("wrong shuffle distance", kernels::neighbours, |k| op(k, 1, shuffle, |op| if let Op::Shuffle { by, .. } = op { *by = 1.into() }), "result"),
    injected("shift by 32", kernels::divergent, |k| constant(k, Binary::Shr, 1, 32), "shift range"),
    injected("bits beside a code of 6 bits", kernels::conversion, |k| constant(k, Binary::And, 0x3f3f_3f3f, u32::MAX), "unsupported"),
    injected("another pair of codes", kernels::conversion, |k| op(k, 0, unary, |op| if let Op::Unary { op: Unary::F16x2From(_, pair), .. } = op { *pair = 0 }), "result"),
    injected("loop without a step", kernels::divergent, no_step, "loop range"),
    injected("loop without an end", kernels::divergent, endless, "infinite loop"),
    injected("broken promise of uniformity", kernels::staged, promise, "not uniform"),
];

#[test]
fn each_fault_is_caught_by_its_detector() {
    let missed = missed(FAULTS);
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    assert!(FAULTS.len() >= 20);
}

/// The faults that another detector reports, or none.
pub(super) fn missed(faults: &[Injected]) -> Vec<String> {
    let mut missed = Vec::new();
    for fault in faults {
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
    missed
}

/// A fault's message has all that is needed to find it.
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
        "#9 Load (read it back reversed)",
        "tile[",
        "unordered with the write at #6 Store (stage the block) by block (",
    ] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

// Functions that inject faults.

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
pub(super) fn replace(
    kernel: &mut Kernel,
    nth: usize,
    wanted: impl Fn(&Op) -> bool,
    by: &dyn Fn(Op) -> Vec<Op>,
) {
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

pub(super) fn drop_op(kernel: &mut Kernel, nth: usize, wanted: impl Fn(&Op) -> bool) {
    replace(kernel, nth, wanted, &|_| Vec::new());
}

pub(super) fn op(
    kernel: &mut Kernel,
    nth: usize,
    wanted: impl Fn(&Op) -> bool,
    change: impl Fn(&mut Op),
) {
    replace(kernel, nth, wanted, &|mut op| {
        change(&mut op);
        vec![op]
    });
}

fn store_twice(kernel: &mut Kernel, wanted: fn(&Op) -> bool) {
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

/// A load in place of the first guess.
fn becomes_load(kernel: &mut Kernel) {
    op(kernel, 0, guess, |op| {
        if let Op::Guess { dst, from, .. } = *op {
            let (dst, width, cache) = (vec![dst], Width::B32, Cache::Default);
            *op = Op::Load { dst, from, width, mask: None, cache };
        }
    });
}

fn guess(op: &Op) -> bool {
    matches!(op, Op::Guess { .. })
}
fn barrier(op: &Op) -> bool {
    matches!(op, Op::Barrier)
}
fn unary(op: &Op) -> bool {
    matches!(op, Op::Unary { .. })
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

fn and(op: &Op) -> bool {
    matches!(op, Op::Binary { op: Binary::And, .. })
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
fn ordered(op: &mut Op, to: MemoryOrder, whom: Scope) {
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
    kernel.shared[1].aliases = Some(SharedId(0));
}

fn read_after_overlay(kernel: &mut Kernel) {
    let late = SharedBlock {
        name: "late".to_owned(),
        word: Word::U32,
        len: 64,
        align: 16,
        layout: String::new(),
        aliases: Some(SharedId(0)),
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

fn counter_after_loop(kernel: &mut Kernel) {
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
        let Op::Atomic { dst: Some(dst), op: AtomicOp::Add, at, value, .. } = op else {
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
