//! The tests of products can fail: kernels with one mutation, each refused by the verifier, stopped
//! by the simulator, or found to compute a wrong result.

use crate::kernels::mutation::{Mutation, gone, wrong};
use crate::kernels::product::RandomProduct;
use crate::kernels::products::problem;
use crate::kernels::tiles;
use quantloom_codegen::ir::{
    Binary, Kernel, MatrixOperand, MemoryOrder, Op, Operand, Side, Ternary, Unary,
};
use quantloom_codegen::schedule::Schedule;
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::tile::TileShape;

const SKINNY: SkinnyTile = SkinnyTile {
    tokens: 4,
    row_tiles: 2,
    warps: 2,
    splits: 2,
    interleaved: false,
    programmatic: true,
    ..tiles::SKINNY
};
const TILE: TileShape = TileShape { splits: 2, programmatic: true, ..tiles::TILE };

/// A mutation and its description.
const BOTH: &[(&str, Mutation)] = &[
    ("halves of k swapped", |_, op| {
        if let Op::Matrix { b: MatrixOperand::Registers(b), .. } = op {
            b.swap(0, 1);
        }
    }),
    // Of the groups before the loop, which are not the last: the one after is there.
    ("the scale of the next group", |place, op| match op {
        Op::Load { from, .. } | Op::CopyAsync { from, .. }
            if place.is(from.space, "scale") && !place.in_loop =>
        {
            from.offset += 16;
        }
        _ => {}
    }),
    ("no zeros of x beyond K", |place, op| match op {
        Op::Load { from, mask, .. } if place.is(from.space, "x") => *mask = None,
        Op::CopyAsync { from, mask, .. } if place.is(from.space, "x") => *mask = None,
        _ => {}
    }),
    ("rows of the second half of a tile as those of the first", |_, op| {
        if let Op::Unary { op: Unary::F32FromHalf(_, side), .. } = op {
            *side = Side::Low;
        }
    }),
    ("the zero point of the first half of a tile for both", |_, op| {
        if let Op::Ternary { op: Ternary::Permute, c, .. } = op {
            *c = 0x1010u32.into();
        }
    }),
    ("the last to arrive does not see the others", |_, op| {
        if let Op::Atomic { order, .. } = op {
            *order = MemoryOrder::Relaxed;
        }
    }),
    ("results stored where there is no row of y", |place, op| match op {
        Op::Store { to, mask, .. } if place.is(to.space, "y") => *mask = None,
        _ => {}
    }),
    ("no wait for the grid before", |_, op| {
        if *op == Op::GridWait {
            gone(op);
        }
    }),
    ("sums read before all are there", |place, op| {
        if *op == Op::Barrier && !place.in_loop {
            gone(op);
        }
    }),
];

const OF_BIAS: &[(&str, Mutation)] = &[
    ("no bias", |place, op| match op {
        Op::CopyAsync { from, mask, .. } if place.is(from.space, "bias") => {
            *mask = Some(Operand::Pred(false));
        }
        _ => {}
    }),
    ("the bias of the rows beside", |place, op| match op {
        Op::CopyAsync { from, .. } if place.is(from.space, "bias") => from.offset ^= 8,
        _ => {}
    }),
];

/// Where N is ragged.
const OF_RAGGED_BIAS: &[(&str, Mutation)] =
    &[("the bias of rows that are not there", |place, op| match op {
        Op::CopyAsync { from, mask, .. } if place.is(from.space, "bias") => *mask = None,
        _ => {}
    })];

const OF_TILE: &[(&str, Mutation)] = &[
    ("no wait for copies", |place, op| {
        if matches!(op, Op::CopyWait { .. }) && place.in_loop {
            gone(op);
        }
    }),
    ("a wait for one group too few", |_, op| {
        if let Op::CopyWait { pending } = op
            && *pending > 0
        {
            *pending += 1;
        }
    }),
    ("a stage filled while it is read", |place, op| {
        if *op == Op::Barrier && place.in_loop {
            gone(op);
        }
    }),
    ("no swizzle where x is read or written", |_, op| {
        if let Op::Binary { op: op @ Binary::Xor, .. } = op {
            *op = Binary::Or;
        }
    }),
];

#[test]
fn mutations_are_found() {
    // Three tokens, ragged rows, K that ends inside of a chunk, zero points.
    let problem = problem("asym", 0, "sm_90a", (40, 840));
    let product = RandomProduct::draw(&problem, 3, 11);
    let kernels = [
        (SKINNY.build(&problem).unwrap(), BOTH),
        (TILE.build(&problem).unwrap(), BOTH),
        (TILE.build(&problem).unwrap(), OF_TILE),
    ];
    for (kernel, mutations) in kernels {
        all_found(&kernel, &product, mutations);
    }
}

#[test]
fn mutations_of_the_bias_are_found() {
    for (n, of_n) in [(64, &[][..]), (40, OF_RAGGED_BIAS)] {
        let problem = problem("bias", 0, "sm_90a", (n, 840));
        let product = RandomProduct::draw(&problem, 3, 12);
        // Two parts of each: of warps, of blocks that split K.
        for tile in [SkinnyTile { splits: 1, ..SKINNY }, SkinnyTile { warps: 1, ..SKINNY }] {
            all_found(&tile.build(&problem).unwrap(), &product, &[OF_BIAS, of_n].concat());
        }
        all_found(&TILE.build(&problem).unwrap(), &product, &[OF_BIAS, of_n].concat());
    }
}

fn all_found(kernel: &Kernel, product: &RandomProduct, mutations: &[(&str, Mutation)]) {
    assert_eq!(wrong(kernel, product, None), None, "{}", kernel.name);
    for (name, mutation) in mutations {
        let found = wrong(kernel, product, Some(*mutation));
        let found = found.is_some_and(|found| !found.contains("is the same"));
        assert!(found, "{}: not found: {name}", kernel.name);
    }
}
