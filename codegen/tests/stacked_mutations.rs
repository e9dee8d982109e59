//! The tests of products of experts can fail: kernels with one mutation, each refused by the verifier,
//! stopped by the simulator, or found to compute a wrong result.

use crate::kernels::mutation::{OpLocation, gone, keep_unpaired, leave_unused, mutate};
use crate::kernels::stacked::{RandomStack, Routing};
use crate::kernels::tiles::{SKINNY, TILE};
use quantloom_codegen::ir::{
    Binary, Compare, Kernel, Op, Operand, Shuffle, Ternary, Unary, verify,
};
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::tile::TileShape;
use quantloom_codegen::schedule::{Chosen, Problem, Stack};
use quantloom_dsl::experts::{ExpertProduct, Gate, OperandOf};
use quantloom_dsl::format::F32;
use quantloom_dsl::parse;

/// A mutation, and what it remembers of the operations before.
type Mutation = fn(&mut Seen, &OpLocation, &mut Op);

/// What a mutation has seen.
#[derive(Default)]
struct Seen {
    /// The register with the block's expert, and with its matrix.
    expert: Option<Operand>,
    matrix: Option<Operand>,
    /// First words of the matrix in buffers.
    first_words: usize,
    /// The result of the fused multiply-add before.
    fused: Option<Operand>,
    /// Whether the one change is made.
    changed: bool,
}

impl Seen {
    /// The number of a first word of the matrix in a buffer, from 1, if the operation computes one.
    fn first_word(&mut self, op: &Op) -> Option<usize> {
        match op {
            Op::Ternary { op: Ternary::Mad, dst, a, .. } if Some(*a) == self.expert => {
                self.matrix = Some((*dst).into());
            }
            Op::Binary { op: Binary::Mul | Binary::Shl, a, .. }
                if Some(*a) == self.matrix.or(self.expert) =>
            {
                self.first_words += 1;
                return Some(self.first_words);
            }
            _ => {}
        }
        None
    }
}

/// Whether the operation loads a part of the order: the count at 0, else experts and pairs.
fn of_order(location: &OpLocation, op: &Op, offset: u32) -> bool {
    matches!(op, Op::Load { from, .. } if location.is(from.space, "slots") && from.offset == offset)
}

fn zero(op: &mut Op) {
    if let [dst] = op.writes()[..] {
        *op = Op::Copy { dst, a: 0u32.into() };
    }
}

/// Drops the matrix's offset in one of the buffers.
fn without_offset(number: usize, seen: &mut Seen, location: &OpLocation, op: &mut Op) {
    if seen.expert.is_none() && of_order(location, op, 1) {
        seen.expert = op.writes().first().map(|reg| (*reg).into());
    }
    if seen.first_word(op) == Some(number) {
        zero(op);
    }
}

/// Of every product with an order.
const OF_ALL: &[(&str, Mutation)] = &[
    ("the weights of expert 0 for all", |seen, location, op| {
        if seen.expert.is_none() && of_order(location, op, 1) {
            seen.expert = op.writes().first().map(|reg| (*reg).into());
            zero(op);
        }
    }),
    ("codes of expert 0", |seen, location, op| without_offset(1, seen, location, op)),
    ("scales of expert 0", |seen, location, op| without_offset(2, seen, location, op)),
    ("biases of expert 0", |seen, location, op| without_offset(3, seen, location, op)),
    ("only the first token block", |_, location, op| {
        if of_order(location, op, 0)
            && let [dst] = op.writes()[..]
        {
            *op = Op::Copy { dst, a: 1u32.into() };
        }
    }),
    ("token blocks beyond those in use", |_, location, op| {
        if of_order(location, op, 0)
            && let [dst] = op.writes()[..]
        {
            *op = Op::Copy { dst, a: u32::MAX.into() };
        }
    }),
    ("the pair of the slot beside", |_, location, op| {
        if of_order(location, op, 1)
            && let Op::Load { from, mask: None, .. } = op
        {
            from.offset += 1;
        }
    }),
    ("slots without a pair are stored", |_, location, op| match op {
        Op::Store { to, mask, .. } if location.is(to.space, "y") => *mask = None,
        _ => {}
    }),
    ("the order before earlier kernels end", |_, _, op| {
        if *op == Op::GridWait {
            gone(op);
        }
    }),
];

const OF_GATE_UP: &[(&str, Mutation)] = &[
    ("one more expert a token", |_, _, op| {
        if let Op::Binary { op: Binary::Div, b: b @ Operand::U32(3), .. } = op {
            *b = 4u32.into();
        }
    }),
    ("the gate's matrix for up", |seen, location, op| {
        if seen.expert.is_none() && of_order(location, op, 1) {
            seen.expert = op.writes().first().map(|reg| (*reg).into());
        }
        if let Op::Ternary { op: Ternary::Mad, a, c, .. } = op
            && Some(*a) == seen.expert
        {
            *c = 0u32.into();
        }
    }),
];

/// With a gate in the epilogue.
const OF_FUSED: &[(&str, Mutation)] = &[
    ("gate for gate and up", |_, _, op| {
        if let Op::Binary { op: Binary::And, b: Operand::U32(1), .. } = op {
            zero(op);
        }
    }),
    ("up of the next tile", |_, _, op| {
        if let Op::Binary { op: Binary::Xor, b: b @ Operand::U32(16), .. } = op {
            *b = 8u32.into();
        }
    }),
    ("gate and up exchanged", |_, _, op| {
        if let Op::Compare { op: op @ Compare::Equal, b: Operand::U32(1), .. } = op {
            *op = Compare::NotEqual;
        }
    }),
    ("rows of slots without a pair are not 0", |_, _, op| keep_unpaired(op)),
    ("rows of token blocks that are not in use are not written", |_, location, op| {
        leave_unused(location, op);
    }),
];

/// Where x comes by copies that pass a mask.
const OF_DOWN_TILE: &[(&str, Mutation)] =
    &[("rows of slots without a pair are read", |_, location, op| match op {
        Op::CopyAsync { from, mask, .. } if location.is(from.space, "x") => *mask = None,
        _ => {}
    })];

fn layer(product: ExpertProduct) -> RandomStack {
    let clauses = "weight: u4 - 8, scale: bf16 per 1x128, bias: f32, pack: u32 [k:8 | k, n], \
                   activation: bf16";
    let scheme = parse(&format!("s {{ {clauses} }}")).unwrap();
    let shards = if product == ExpertProduct::GateUp { 2 } else { 1 };
    let stack = Stack {
        product,
        experts: 4,
        chosen_from: 4,
        shards,
        top_k: 3,
        gate: None,
        direct: false,
        weighted: false,
        combined: false,
        shared: None,
        operand: OperandOf::Row,
    };
    let routing = (9, Routing::Random);
    RandomStack::draw(&scheme, "sm_90a", (64, 384), stack, routing, 21).unwrap()
}

fn tiles() -> [Chosen; 2] {
    [
        Chosen::Skinny(SkinnyTile { tokens: 8, row_tiles: 2, programmatic: true, ..SKINNY }),
        Chosen::Tile(TileShape { programmatic: true, ..TILE }),
    ]
}

/// What is wrong with a kernel after a mutation; `None` if nothing is.
fn wrong(
    kernel: &Kernel,
    mutation: Option<(&str, Mutation)>,
    right: &dyn Fn(&quantloom_codegen::ir::Verified<Kernel>) -> Result<(), String>,
) -> Option<String> {
    let mut kernel = kernel.clone();
    if let Some((name, mutation)) = mutation {
        let mut seen = Seen::default();
        let changed = mutate(&mut kernel, |location, op| mutation(&mut seen, location, op));
        assert!(changed, "{}: {name}: nothing to change", kernel.name);
    }
    match verify(kernel) {
        Ok(kernel) => right(&kernel).err(),
        Err(refusals) => Some(refusals.to_string()),
    }
}

fn all_found(
    kernel: &Kernel,
    mutations: &[(&str, Mutation)],
    right: &dyn Fn(&quantloom_codegen::ir::Verified<Kernel>) -> Result<(), String>,
) {
    assert_eq!(wrong(kernel, None, right), None, "{}", kernel.name);
    for (name, mutation) in mutations {
        let found = wrong(kernel, Some((name, *mutation)), right);
        assert!(found.is_some(), "{}: not found: {name}", kernel.name);
    }
}

fn written(chosen: Chosen, problem: &Problem) -> Kernel {
    chosen.write(problem).unwrap_or_else(|why| panic!("{why}"))
}

#[test]
fn mutations_of_products_of_experts_are_found() {
    for product in [ExpertProduct::GateUp, ExpertProduct::Down] {
        let layer = layer(product);
        for chosen in tiles() {
            let tile = matches!(chosen, Chosen::Tile(_));
            let mutations = match (product, tile) {
                (ExpertProduct::GateUp, _) => OF_GATE_UP,
                (ExpertProduct::Down, true) => OF_DOWN_TILE,
                (ExpertProduct::Down, false) => &[],
            };
            let slots = chosen.schedule().block_tokens();
            let right = |kernel: &_| {
                let run = layer.run(kernel, slots, 1)?;
                layer.compare(chosen, &run)
            };
            let kernel = written(chosen, &layer.problem);
            all_found(&kernel, &[OF_ALL, mutations].concat(), &right);
        }
    }
}

#[test]
fn mutations_of_a_gate_in_the_epilogue_are_found() {
    let layer = layer(ExpertProduct::GateUp);
    let fused = layer.of_stack(Some(Gate::Silu), false);
    for chosen in tiles() {
        let slots = chosen.schedule().block_tokens();
        let z = layer.run(&layer.kernel(chosen, &layer.problem), slots, 0).unwrap();
        let expected = layer.gated(z, Gate::Silu, slots).unwrap();
        let right = |kernel: &_| {
            let run = layer.run(kernel, slots, 1)?;
            if run.y == expected { Ok(()) } else { Err("other bits".to_owned()) }
        };
        all_found(&written(chosen, &fused), OF_FUSED, &right);
    }
}

/// Takes any id for one of an expert, after so many comparisons that stay: that of the guess is the first.
fn any_id(kept: usize, seen: &mut Seen, op: &mut Op) {
    if let Op::Compare { op: Compare::Less, b: Operand::U32(4), dst, .. } = op {
        seen.first_words += 1;
        if seen.first_words == kept + 1 {
            *op = Op::Copy { dst: *dst, a: true.into() };
        }
    }
}

/// Of a product that adds the experts of a token.
const OF_COMBINED: &[(&str, Mutation)] = &[
    ("the first expert for all", |seen, location, op| {
        if let Op::Load { from, .. } = op
            && location.is(from.space, "ids")
            && !std::mem::replace(&mut seen.changed, true)
        {
            zero(op);
        }
    }),
    ("any guess of a warp", |seen, _, op| any_id(0, seen, op)),
    ("any id of a warp", |seen, _, op| any_id(1, seen, op)),
    ("weights of the choice beside", |_, location, op| {
        if let Op::Load { from, .. } = op
            && location.is(from.space, "router_weights")
        {
            from.offset ^= 1;
        }
    }),
    ("parts of the choice before", |seen, location, op| {
        if let Op::Load { from, .. } = op
            && location.is(from.space, "sums")
            && from.offset > 0
            && !std::mem::replace(&mut seen.changed, true)
        {
            from.offset = 0;
        }
    }),
    ("biases of the first expert", |seen, location, op| {
        if let Op::Load { from, .. } = op
            && location.is(from.space, "biases")
        {
            let base = *seen.expert.get_or_insert(from.index);
            from.index = base;
        }
    }),
    ("absent experts are added", |seen, _, op| {
        if let Op::Select { a, b, .. } = op
            && seen.fused == Some(*a)
        {
            *b = *a;
        }
        if let Op::Ternary { op: Ternary::Fma, dst, .. } = op {
            seen.fused = Some((*dst).into());
        }
    }),
    ("weights of a wrong guess are kept", |_, _, op| {
        if let Op::Unary { op: Unary::NotPred, dst, .. } = op {
            *op = Op::Copy { dst: *dst, a: false.into() };
        }
    }),
    ("later weights are those of the guess", |seen, _, op| match op {
        Op::Shuffle { dst, op: Shuffle::Index, .. } => seen.matrix = Some((*dst).into()),
        Op::Select { dst, a, .. } if Some(*a) == seen.matrix => seen.expert = Some((*dst).into()),
        Op::Binary { op: Binary::Sub, dst, b, .. } if Some(*b) == seen.expert => {
            seen.fused = Some((*dst).into());
        }
        Op::Ternary { op: Ternary::Mad, a, .. } if Some(*a) == seen.fused => *a = 0u32.into(),
        _ => {}
    }),
    ("shared experts of the row beside", |_, location, op| {
        if let Op::Load { from, .. } = op
            && location.is(from.space, "shared_y")
        {
            from.offset ^= 1;
        }
    }),
    ("the row of y of another token", |_, location, op| match op {
        Op::Store { to, .. } if location.is(to.space, "y") => to.offset += 64,
        _ => {}
    }),
];

#[test]
fn mutations_of_the_sum_of_experts_are_found() {
    let layer = layer(ExpertProduct::Down);
    let tile = SkinnyTile { row_tiles: 2, programmatic: true, warps: 2, ..SKINNY };
    let plain = layer.kernel(Chosen::Skinny(tile), &layer.of_stack(None, true));
    let plain = layer.run(&plain, 1, 0).unwrap();
    let right = |kernel: &_| {
        let run = layer.run(kernel, 1, 1)?;
        let expected = layer.sums_of_pairs(&plain, &run, true, Some(F32));
        if run.y.words() == expected { Ok(()) } else { Err("other bits".to_owned()) }
    };
    let chosen = Chosen::Skinny(SkinnyTile { warps: 6, ..tile });
    all_found(&written(chosen, &layer.combined(true, false, Some(F32))), OF_COMBINED, &right);
}

/// Ids below 0 as numbers with a sign: below the number of experts.
#[test]
fn ids_of_no_expert_are_not_taken_for_one() {
    let layer = layer(ExpertProduct::Down);
    let chosen = Chosen::Skinny(SkinnyTile { row_tiles: 2, programmatic: true, ..SKINNY });
    let right = |kernel: &_| {
        let run = layer.run(kernel, 1, 1)?;
        layer.compare(chosen, &run)
    };
    let kernel = written(chosen, &layer.of_stack(None, true));
    let mutations: &[(&str, Mutation)] = &[
        ("numbers with a sign", |_, _, op| {
            if let Op::Compare { op: op @ Compare::Less, b: Operand::U32(4), .. } = op {
                *op = Compare::LessSigned;
            }
        }),
        ("the id of the next pair", |_, location, op| match op {
            Op::Load { from, .. } if location.is(from.space, "ids") => from.offset += 1,
            _ => {}
        }),
        ("any id", |_, _, op| {
            if let Op::Compare { op: Compare::Less, b: Operand::U32(4), dst, .. } = op {
                *op = Op::Copy { dst: *dst, a: true.into() };
            }
        }),
    ];
    all_found(&kernel, mutations, &right);
}
