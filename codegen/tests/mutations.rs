//! The tests of products can fail: kernels with one thing wrong, each refused by the verifier,
//! stopped by the simulator, or found to compute something else.

mod kernels;

use kernels::product::Product;
use kernels::products::problem;
use quantloom_codegen::ir::{
    Binary, Body, Buffer, Kernel, MatrixOperand, Op, Operand, Order, Side, Space, Statement,
    Ternary, Unary, verify,
};
use quantloom_codegen::schedule::decode::{DecodeTile, decode};
use quantloom_codegen::schedule::tile::{TileShape, tile};

const DECODE: DecodeTile =
    DecodeTile { tokens: 4, row_tiles: 2, warps: 2, min_blocks: 1, splits: 2, programmatic: true };
const TILE: TileShape = TileShape {
    tokens: 16,
    rows: 32,
    warps: 2,
    min_blocks: 1,
    stages: 3,
    splits: 2,
    programmatic: true,
};

/// What is done to an operation of a kernel with these buffers; whether it stands in a loop.
type Mutation = fn(&[Buffer], bool, &mut Op);

/// Changes every operation of a body.
fn mutate(body: &mut Body, buffers: &[Buffer], in_loop: bool, mutation: Mutation) {
    for statement in body {
        match statement {
            Statement::Op(op) => mutation(buffers, in_loop, op),
            Statement::If { then, otherwise, .. } => {
                mutate(then, buffers, in_loop, mutation);
                mutate(otherwise, buffers, in_loop, mutation);
            }
            Statement::For { body, .. } => mutate(body, buffers, true, mutation),
            Statement::While { test, body, .. } => {
                mutate(test, buffers, true, mutation);
                mutate(body, buffers, true, mutation);
            }
            Statement::Roles(roles) => {
                for role in roles {
                    mutate(&mut role.body, buffers, in_loop, mutation);
                }
            }
        }
    }
}

fn gone(op: &mut Op) {
    *op = Op::Comment("nothing".into());
}

fn is(buffers: &[Buffer], space: Space, name: &str) -> bool {
    matches!(space, Space::Global(id) if buffers[id.0 as usize].name == name)
}

/// What is wrong, and the mutation.
const BOTH: &[(&str, Mutation)] = &[
    ("halves of k swapped", |_, _, op| {
        if let Op::Matrix { b: MatrixOperand::Registers(b), .. } = op {
            b.swap(0, 1);
        }
    }),
    // Of the groups before the loop, which are not the last: the one after is there.
    ("the scale of the next group", |buffers, in_loop, op| match op {
        Op::Load { from, .. } | Op::CopyAsync { from, .. }
            if is(buffers, from.space, "scale") && !in_loop =>
        {
            from.offset += 16;
        }
        _ => {}
    }),
    ("no zeros of x beyond K", |buffers, _, op| match op {
        Op::Load { from, mask, .. } if is(buffers, from.space, "x") => *mask = None,
        Op::CopyAsync { from, mask, .. } if is(buffers, from.space, "x") => *mask = None,
        _ => {}
    }),
    ("rows of the second half of a tile as those of the first", |_, _, op| {
        if let Op::Unary { op: Unary::F32FromHalf(_, side), .. } = op {
            *side = Side::Low;
        }
    }),
    ("the zero point of the first half of a tile for both", |_, _, op| {
        if let Op::Ternary { op: Ternary::Permute, c, .. } = op {
            *c = 0x1010u32.into();
        }
    }),
    ("the last to arrive does not see the others", |_, _, op| {
        if let Op::Atomic { order, .. } = op {
            *order = Order::Relaxed;
        }
    }),
    ("results stored where there is no row of y", |buffers, _, op| match op {
        Op::Store { to, mask, .. } if is(buffers, to.space, "y") => *mask = None,
        _ => {}
    }),
    ("no wait for the grid before", |_, _, op| {
        if *op == Op::GridWait {
            gone(op);
        }
    }),
    ("sums read before all are there", |_, in_loop, op| {
        if *op == Op::Barrier && !in_loop {
            gone(op);
        }
    }),
];

const OF_BIAS: &[(&str, Mutation)] = &[
    ("no bias", |buffers, _, op| match op {
        Op::Load { from, mask: Some(mask), .. } if is(buffers, from.space, "bias") => {
            mask.condition = Operand::Pred(false);
        }
        _ => {}
    }),
    ("the bias of the rows beside", |buffers, _, op| match op {
        Op::Load { from, .. } if is(buffers, from.space, "bias") => from.offset ^= 8,
        _ => {}
    }),
    // Where N is ragged, beyond the last row too.
    ("the bias in each part", |buffers, _, op| match op {
        Op::Load { from, mask, .. } if is(buffers, from.space, "bias") => *mask = None,
        _ => {}
    }),
];

const OF_TILE: &[(&str, Mutation)] = &[
    ("no wait for copies", |_, in_loop, op| {
        if matches!(op, Op::CopyWait { .. }) && in_loop {
            gone(op);
        }
    }),
    ("a wait for one group too few", |_, _, op| {
        if let Op::CopyWait { pending } = op
            && *pending > 0
        {
            *pending += 1;
        }
    }),
    ("a stage filled while it is read", |_, in_loop, op| {
        if *op == Op::Barrier && in_loop {
            gone(op);
        }
    }),
    ("no swizzle where x is read or written", |_, _, op| {
        if let Op::Binary { op: op @ Binary::Xor, .. } = op {
            *op = Binary::Or;
        }
    }),
];

/// What a kernel with a mutation does: `None` if it is right.
fn wrong(kernel: &Kernel, product: &Product, mutation: Option<Mutation>) -> Option<String> {
    let mut kernel = kernel.clone();
    let buffers = kernel.buffers.clone();
    if let Some(mutation) = mutation {
        let before = kernel.body.clone();
        mutate(&mut kernel.body, &buffers, false, mutation);
        assert_ne!(before, kernel.body, "the mutation finds nothing to change");
    }
    let kernel = match verify(kernel) {
        Ok(kernel) => kernel,
        Err(refusals) => return Some(refusals.to_string()),
    };
    product.simulate(&kernel, 64, 1).err()
}

#[test]
fn what_is_wrong_is_found() {
    // Three tokens, ragged rows, K that ends inside of a chunk, zero points.
    let problem = problem("asym", 0, "sm_90a", (40, 840));
    let product = Product::draw(&problem, 3, 11);
    let kernels = [
        (decode(&problem, DECODE).unwrap(), BOTH),
        (tile(&problem, TILE).unwrap(), BOTH),
        (tile(&problem, TILE).unwrap(), OF_TILE),
    ];
    for (kernel, mutations) in kernels {
        all_found(&kernel, &product, mutations);
    }
}

#[test]
fn a_bias_that_is_wrong_is_found() {
    for n in [64, 40] {
        let problem = problem("bias", 0, "sm_90a", (n, 840));
        let product = Product::draw(&problem, 3, 12);
        // Two parts of each: of warps, of blocks that split K.
        for tile in [DecodeTile { splits: 1, ..DECODE }, DecodeTile { warps: 1, ..DECODE }] {
            all_found(&decode(&problem, tile).unwrap(), &product, OF_BIAS);
        }
        all_found(&tile(&problem, TILE).unwrap(), &product, OF_BIAS);
    }
}

fn all_found(kernel: &Kernel, product: &Product, mutations: &[(&str, Mutation)]) {
    assert_eq!(wrong(kernel, product, None), None, "{}", kernel.name);
    for (name, mutation) in mutations {
        let found = wrong(kernel, product, Some(*mutation));
        assert!(found.is_some(), "{}: not found: {name}", kernel.name);
    }
}
