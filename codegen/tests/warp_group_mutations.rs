//! Nothing that is wrong in a kernel of warp groups stays unnoticed.

use std::ops::Range;

use crate::kernels::mutation::{Mutation, all_found, gone, mutate, wrong};
use crate::kernels::product::RandomProduct;
use crate::kernels::products::problem;
use crate::kernels::tiles::WARP_GROUP;
use quantloom_codegen::ir::{Binary, Kernel, Op, Operand, Statement, Ternary, Width};
use quantloom_codegen::schedule::Schedule;
use quantloom_codegen::schedule::warp_group::WarpGroupTile;
/// A mutation, its description, and a part of what must be said of it.
const MUTATIONS: &[(&str, &str, Mutation)] = &[
    ("no fence before products", "matrix fence", |_, op| {
        if *op == Op::MatrixFence {
            gone(op);
        }
    }),
    ("a batch more in flight than there are registers for", "", |place, op| {
        if let Op::MatrixWait { pending } = op
            && place.in_loop
        {
            *pending += 1;
        }
    }),
    ("sums exchanged or y written over stages that another warp reads", "unordered", |_, op| {
        if matches!(op, Op::NamedBarrier { id: 2, .. }) {
            gone(op);
        }
    }),
    ("sums read while products are in flight", "in flight", |place, op| {
        if matches!(op, Op::MatrixWait { .. }) && !place.in_loop {
            gone(op);
        }
    }),
    ("words read before they are there", "still being written", |place, op| {
        if matches!(op, Op::MbarrierWait { .. }) && !place.in_loop {
            gone(op);
        }
    }),
    ("a stage filled while it is read, or read while it is filled", "", |place, op| {
        if matches!(op, Op::MbarrierWait { .. }) && place.in_loop {
            gone(op);
        }
    }),
    ("a stage released before all lanes have read it", "unordered", |_, op| {
        if *op == Op::WarpSync {
            gone(op);
        }
    }),
    ("a stage that is never released", "wait", |_, op| {
        if matches!(op, Op::MbarrierArrive { expect: None, .. }) {
            gone(op);
        }
    }),
    ("more bytes announced than are copied", "wait", |_, op| {
        if let Op::MbarrierArrive { expect: Some(Operand::U32(bytes)), .. } = op {
            *bytes += 16;
        }
    }),
    ("fewer bytes announced than are copied", "", |_, op| {
        if let Op::MbarrierArrive { expect: Some(Operand::U32(bytes)), .. } = op {
            *bytes -= 16;
        }
    }),
    ("mbarriers that copies do not see", "MbarrierFence", |_, op| {
        if *op == Op::MbarrierFence {
            gone(op);
        }
    }),
    ("lines of y that the store does not see", "without a FenceAsync", |_, op| {
        if *op == Op::FenceAsync {
            gone(op);
        }
    }),
    ("lines of y stored before all warps wrote them", "unordered", |_, op| {
        if matches!(op, Op::NamedBarrier { .. }) {
            gone(op);
        }
    }),
    ("the block ends before y is read", "", |_, op| {
        if matches!(op, Op::BulkWait { .. }) {
            gone(op);
        }
    }),
    ("no wait for the grid before", "earlier grids", |_, op| {
        if *op == Op::GridWait {
            gone(op);
        }
    }),
    ("no swizzle", "", |_, op| {
        if let Op::Binary { op: op @ Binary::Xor, b, .. } = op
            && *b != Operand::U32(1)
        {
            *op = Binary::Or;
        }
    }),
    ("a parity that never changes", "", |_, op| {
        if let Op::Binary { op: Binary::Xor, b, .. } = op
            && *b == Operand::U32(1)
        {
            *b = Operand::U32(0);
        }
    }),
    ("y not transposed", "expected", |_, op| {
        if let Op::MatrixStore { transpose, .. } = op {
            *transpose = false;
        }
    }),
    ("words of another lane", "expected", |_, op| {
        if let Op::MatrixLoad { dst, .. } = op {
            dst.swap(0, 1);
        }
    }),
    ("x of the token beside", "expected", |_, op| {
        if let Op::TensorLoad { at, .. } = op
            && let [_, token] = &mut at[..]
        {
            *token = Operand::U32(1);
        }
    }),
    ("the scale of the first half of a tile for both", "expected", |_, op| {
        if let Op::Ternary { c, .. } = op
            && *c == Operand::U32(0x3232)
        {
            *c = Operand::U32(0x1010);
        }
    }),
];

/// What may be wrong with lines that lanes copy to y.
const MUTATIONS_OF_COPIED_LINES: &[(&str, &str, Mutation)] = &[
    ("the numbers of a word exchanged", "", |_, op| {
        if let Op::Store { to, width: Width::B16, .. } = op {
            to.offset = 1 - to.offset;
        }
    }),
    ("the first number of a word twice", "expected", |_, op| {
        if let Op::Binary { op: Binary::Shr, b, .. } = op
            && *b == Operand::U32(16)
        {
            *b = Operand::U32(0);
        }
    }),
    ("rows beyond M or N", "", |_, op| {
        if let Op::Store { mask: mask @ Some(_), width: Width::B16, .. } = op {
            *mask = None;
        }
    }),
    ("no swizzle", "", |_, op| {
        if let Op::Binary { op: op @ Binary::Xor, b, .. } = op
            && *b != Operand::U32(1)
        {
            *op = Binary::Or;
        }
    }),
    ("no wait for the grid before", "earlier grids", |_, op| {
        if *op == Op::GridWait {
            gone(op);
        }
    }),
];

#[test]
fn mutations_of_copied_lines_are_found() {
    let problem = problem("sym", 0, "sm_90a", (141, 264));
    let product = RandomProduct::draw(&problem, 21, 23).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 16, groups: 1, row_tiles: 2, stages: 3, ..WARP_GROUP };
    let kernel = tile.build(&problem).unwrap();
    all_found(&kernel, &product, MUTATIONS_OF_COPIED_LINES);
    // Each barrier of the warp group: before the lines of either tile of rows are read, and before those of the second are written.
    each_barrier_is_needed(&kernel, &product, 0..3);
    // Of whole tokens, rows beyond N alone; of an even number of rows words of two.
    for (rows, width) in [(141, Width::B16), (142, Width::B32)] {
        let problem = self::problem("sym", 0, "sm_90a", (rows, 264));
        let product = RandomProduct::draw(&problem, 32, 23).with_scaled_weights();
        let mut kernel = tile.build(&problem).unwrap();
        assert_eq!(wrong(&kernel, &product, None), None);
        let mut changed = 0;
        mutate(&mut kernel, |_, op| {
            if let Op::Store { mask: mask @ Some(_), width: own, .. } = op
                && *own == width
            {
                *mask = None;
                changed += 1;
            }
        });
        assert!(changed > 0 && wrong(&kernel, &product, None).is_some(), "{rows} rows");
    }
    // A block that has several tiles, one tile of rows a warp group each. (That the first barrier is needed the simulator does not see:
    // its warps multiply the next tile together, and so have all left the lines.)
    let problem = self::problem("sym", 0, "sm_90a", (269, 392));
    let product = RandomProduct::draw(&problem, 20, 22).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 8, groups: 1, batch: 2, persistent: true, ..WARP_GROUP };
    each_barrier_is_needed(&tile.build(&problem).unwrap(), &product, 1..2);
}

/// Without any one of these barriers of the only warp group, whose last one is the kernel's, a kernel is wrong.
fn each_barrier_is_needed(kernel: &Kernel, product: &RandomProduct, barriers: Range<usize>) {
    let count = barriers.end;
    for gone_is in barriers {
        let (mut kernel, mut number) = (kernel.clone(), 0);
        mutate(&mut kernel, |_, op| {
            if matches!(op, Op::NamedBarrier { id: 1, .. }) {
                if number == gone_is {
                    gone(op);
                }
                number += 1;
            }
        });
        assert_eq!(number, count);
        assert!(wrong(&kernel, product, None).is_some(), "barrier {gone_is} of {count}");
    }
}

#[test]
fn mutations_are_found() {
    // Ragged in M, N and K, with zero points; a stage is used again.
    let problem = problem("asym", 0, "sm_90a", (72, 840));
    let product = RandomProduct::draw(&problem, 9, 21).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 16, groups: 1, row_tiles: 2, stages: 3, ..WARP_GROUP };
    all_found(&tile.build(&problem).unwrap(), &product, MUTATIONS);
}

/// What may be wrong with scales in constants.
const MUTATIONS_OF_CONSTANTS: &[(&str, &str, Mutation)] = &[
    ("the scale of one row for both", "expected", |_, op| {
        if let Op::Ternary { c, .. } = op
            && *c == Operand::U32(0x3232)
        {
            *c = Operand::U32(0x1010);
        }
    }),
    ("a base without its scale", "expected", |_, op| {
        // -8 / 64, the base of codes of 4 bits.
        if let Op::Binary { op: Binary::MulPacked(_), a, b, .. } = op
            && *b == Operand::U32(0xbe00_be00)
        {
            *a = Operand::U32(0x3f80_3f80);
        }
    }),
];

#[test]
fn mutations_of_constants_are_found() {
    let problem = problem("short", 0, "sm_90a", (72, 840)).of_scales(true);
    let product = RandomProduct::draw(&problem, 9, 21).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 16, groups: 1, row_tiles: 2, stages: 3, ..WARP_GROUP };
    all_found(&tile.build(&problem).unwrap(), &product, MUTATIONS_OF_CONSTANTS);
}

/// What may be wrong with codes in planes.
const OF_PLANES: &[(&str, &str, Mutation)] = &[
    ("parts where they are loaded", "expected", |place, op| {
        if let Op::Ternary { op: Ternary::FunnelLeft, c, .. } = op
            && place.in_loop
            && matches!(c, Operand::Reg(_))
        {
            *c = Operand::U32(0);
        }
    }),
    ("one lane's parts for two", "expected", |_, op| {
        if let Op::Ternary { op: Ternary::Lop3(0xe4), c, .. } = op {
            *c = Operand::U32(u32::MAX);
        }
    }),
    ("bits of the part before", "expected", |_, op| {
        if let Op::Ternary { op: Ternary::Lop3(0xe4), c: Operand::U32(mask), .. } = op {
            *mask >>= 1;
        }
    }),
    ("another plane's lines", "", |_, op| {
        if let Op::TensorLoad { at, .. } = op
            && let [_, line, _, _] = &mut at[..]
            && *line != Operand::U32(0)
        {
            *line = Operand::U32(0);
        }
    }),
    ("words of the lane beside", "expected", |place, op| {
        if let Op::Load { from, width: Width::B32, .. } = op
            && place.in_loop
            && place.is(from.space, "w1_stages")
        {
            from.offset ^= 2;
        }
    }),
];

#[test]
fn mutations_of_planes_are_found() {
    // Planes of 4, 2 and 1 bits.
    let problem = problem("seven", 0, "sm_90a", (72, 392));
    let product = RandomProduct::draw(&problem, 9, 21).with_scaled_weights();
    let tile =
        WarpGroupTile { tokens: 16, groups: 1, row_tiles: 2, stages: 3, batch: 2, ..WARP_GROUP };
    all_found(&tile.build(&problem).unwrap(), &product, OF_PLANES);
}

/// What may be wrong with levels of scales and minima, and with groups of half a k-tile.
const OF_LEVELS: &[(&str, &str, Mutation)] = &[
    ("the byte of one row for both", "expected", |_, op| {
        if let Op::Ternary { op: Ternary::Permute, c: Operand::U32(select), .. } = op
            && *select & 0xf0f0 == 0x4040
        {
            *select = 0x4040;
        }
    }),
    ("signed bytes as they are", "expected", |_, op| {
        if let Op::Binary { op: Binary::Xor, b, .. } = op
            && *b == Operand::U32(0x8080_8080)
        {
            *b = Operand::U32(0);
        }
    }),
    ("bytes with what they are too large", "expected", |_, op| {
        // -128 times 2^-6.
        if let Op::Ternary { op: Ternary::FmaPacked(_), c, .. } = op
            && *c == Operand::U32(0xc000_c000)
        {
            *c = Operand::U32(0x8000_8000);
        }
    }),
    ("what the high part lacks with its sign", "expected", |_, op| {
        if let Op::Binary { op: Binary::Xor, b, .. } = op
            && *b == Operand::U32(0x8000_8000)
        {
            *b = Operand::U32(0);
        }
    }),
    ("the larger group without its power of two", "expected", |place, op| {
        if let Op::Binary { op: Binary::MulF32, b: Operand::F32(power), .. } = op
            && place.in_loop
            && power.log2().fract() == 0.0
            && *power > 1.0
        {
            *power = 1.0;
        }
    }),
    ("groups of the other half", "expected", |place, op| {
        if let Op::Binary { op: Binary::And, b, .. } = op
            && place.in_loop
            && *b == Operand::U32(1)
        {
            *b = Operand::U32(0);
        }
    }),
    ("scales of one power of two for two", "expected", |place, op| {
        // 2^-4, by which codes in the upper half of a byte are larger.
        if let Op::Binary { op: Binary::MulPacked(_), b, .. } = op
            && place.in_loop
            && *b == Operand::U32(0x3d80_3d80)
        {
            *b = Operand::U32(0x3f80_3f80);
        }
    }),
];

#[test]
fn mutations_of_levels_are_found() {
    let problem = problem("minima", 0, "sm_90a", (72, 840));
    let product = RandomProduct::draw(&problem, 9, 21).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 16, groups: 1, stages: 3, parts: 2, batch: 2, ..WARP_GROUP };
    all_found(&tile.build(&problem).unwrap(), &product, OF_LEVELS);
}

/// Mutations of kernels whose blocks split K.
const OF_CLUSTER: &[(&str, &str, Mutation)] = &[
    ("no barriers of the cluster", "", |_, op| {
        if *op == Op::ClusterBarrier {
            gone(op);
        }
    }),
    ("sums exchanged over codes that another warp reads", "unordered", |_, op| {
        if matches!(op, Op::NamedBarrier { id: 2, .. }) {
            gone(op);
        }
    }),
    ("the own sums twice", "expected", |_, op| {
        if let Op::ClusterLoad { block, .. } = op {
            *block = Operand::U32(0);
        }
    }),
];

/// A block that does not wait at its end, while the other one may still read its memory or arrive at its mbarriers.
fn an_early_end_is_found(mut kernel: Kernel, product: &RandomProduct) {
    let Some(Statement::Roles(roles)) = kernel.body.last_mut() else { panic!("no roles") };
    for role in roles {
        let last = role.body.iter().rposition(|op| *op == Statement::Op(Op::ClusterBarrier));
        role.body.remove(last.unwrap());
    }
    let found = wrong(&kernel, product, None).unwrap();
    assert!(found.contains("may end before"), "{found}");
}

#[test]
fn mutations_of_clusters_are_found() {
    let problem = problem("sym", 0, "sm_90a", (72, 520));
    let product = RandomProduct::draw(&problem, 9, 22).with_scaled_weights();
    // With one tile of rows a warp's sums take the place of its own codes alone.
    let tile = WarpGroupTile { tokens: 16, row_tiles: 2, stages: 3, splits: 2, ..WARP_GROUP };
    let kernel = tile.build(&problem).unwrap();
    all_found(&kernel, &product, OF_CLUSTER);
    an_early_end_is_found(kernel, &product);
}

/// A mutation of blocks that share copies of x, as above.
const OF_SHARED_COPIES: &[(&str, &str, Mutation)] = &[
    ("copies before the other block's mbarriers are there", "", |place, op| {
        if *op == Op::ClusterBarrier && !place.in_loop {
            *op = Op::Barrier;
        }
    }),
    ("no arrival at the other block", "wait", |_, op| {
        if matches!(op, Op::ClusterArrive { .. }) {
            gone(op);
        }
    }),
    ("two arrivals at one block", "", |_, op| {
        if let Op::ClusterArrive { block, .. } = op {
            *block = Operand::U32(0);
        }
    }),
    ("x for one block", "", |_, op| {
        if let Op::TensorLoad { multicast: Some(blocks), .. } = op {
            *blocks = Operand::U32(1);
        }
    }),
    ("half of the arrivals", "unordered", |_, op| {
        if let Op::MbarrierInit { arrivals, .. } = op
            && *arrivals > 1
        {
            *arrivals /= 2;
        }
    }),
];

#[test]
fn mutations_of_shared_copies_are_found() {
    let problem = problem("sym", 0, "sm_90a", (136, 1032));
    let product = RandomProduct::draw(&problem, 20, 22).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 16, groups: 1, stages: 3, multicast: 2, ..WARP_GROUP };
    let kernel = tile.build(&problem).unwrap();
    all_found(&kernel, &product, OF_SHARED_COPIES);
    an_early_end_is_found(kernel, &product);
}

/// Mutations of blocks that persist, as above, with 8 tokens a block.
const OF_PERSISTENT: &[(&str, &str, Mutation)] = &[
    ("lines of y written while the store of the tile before reads them", "", |place, op| {
        if matches!(op, Op::BulkWait { .. }) && place.in_loop {
            gone(op);
        }
    }),
    ("the block ends before its last tile is read", "", |place, op| {
        if matches!(op, Op::BulkWait { .. }) && !place.in_loop {
            gone(op);
        }
    }),
    ("no token block for the last tokens", "never written", |_, op| {
        if let Op::Binary { op: Binary::Add, b, .. } = op
            && *b == Operand::U32(7)
        {
            *b = Operand::U32(0);
        }
    }),
    ("the last stage of a tile is not released", "wait", |place, op| {
        if matches!(op, Op::MbarrierArrive { expect: None, .. }) && place.loops == 1 {
            gone(op);
        }
    }),
];

#[test]
fn mutations_of_blocks_that_persist_are_found() {
    let problem = problem("sym", 0, "sm_90a", (264, 392));
    let product = RandomProduct::draw(&problem, 20, 22).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 8, groups: 1, batch: 2, persistent: true, ..WARP_GROUP };
    let kernel = tile.build(&problem).unwrap();
    all_found(&kernel, &product, OF_PERSISTENT);
    // Both halves of many tokens in one buffer.
    let problem = self::problem("sym", 0, "sm_90a", (392, 136));
    let product = RandomProduct::draw(&problem, 200, 22).with_scaled_weights();
    let tile = WarpGroupTile { tokens: 256, groups: 1, batch: 1, persistent: true, ..WARP_GROUP };
    let kernel = tile.build(&problem).unwrap();
    assert_eq!(wrong(&kernel, &product, None), None);
    // The wait before either half is needed: of one in turn there are no others.
    for half in 0..2 {
        let (mut kernel, mut number) = (kernel.clone(), 0);
        mutate(&mut kernel, |place, op| {
            if matches!(op, Op::BulkWait { .. }) && place.in_loop {
                if number == half {
                    gone(op);
                }
                number += 1;
            }
        });
        assert_eq!(number, 2);
        assert!(wrong(&kernel, &product, None).is_some(), "half {half}");
    }
}
