//! The tests of these kernels can fail: kernels with one mutation, each refused by the verifier, stopped by
//! the simulator, or found to compute something else.

use quantloom_codegen::ir::{Binary, Compare, Kernel, Op, Operand, Ternary};
use quantloom_dsl::experts::Gate;
use quantloom_dsl::format::F32;

use super::combine::{check_combine, check_gate};
use super::route;
use super::sort::{NONE, Pairs};
use crate::kernels::mutation::{Mutation, gone, mutate};

/// A mutation of some kernel changes it, and is found.
pub(crate) fn found(
    what: &str,
    mutation: Mutation,
    check: impl Fn(&dyn Fn(&mut Kernel)) -> Result<(), String>,
) {
    check(&|_| {}).unwrap_or_else(|wrong| panic!("without `{what}`: {wrong}"));
    let changed = std::cell::Cell::new(false);
    let change = |kernel: &mut Kernel| changed.set(mutate(kernel, mutation) || changed.get());
    let outcome = check(&change);
    assert!(changed.get(), "{what} changes nothing");
    assert!(outcome.is_err(), "not found: {what}");
}

const OF_ALL: &[(&str, Mutation)] = &[("no wait for the grid before", |_, op| {
    if *op == Op::GridWait {
        gone(op);
    }
})];

const OF_SORT: &[(&str, Mutation)] = &[
    ("shared memory read before all is there", |_, op| {
        if *op == Op::Barrier {
            gone(op);
        }
    }),
    ("ids of E or more as experts", |_, op| {
        if let Op::Compare { op: Compare::Less, b: experts @ Operand::U32(24), .. } = op {
            *experts = 25u32.into();
        }
    }),
    ("experts elsewhere as experts", |_, op| {
        if let Op::Compare { op: of @ Compare::Less, b: Operand::U32(16), .. } = op {
            *of = Compare::NotEqual;
        }
    }),
    ("a pair counted among those before it", |_, op| {
        if let Op::Compare {
            op: of @ Compare::Less, a: Operand::Reg(_), b: Operand::Reg(_), ..
        } = op
        {
            *of = Compare::LessEqual;
        }
    }),
    ("pairs of earlier parts of a chunk left out", |_, op| {
        if let Op::Binary { op: Binary::Mul, b: ones @ Operand::U32(0x0101_0101), .. } = op {
            *ones = 0u32.into();
        }
    }),
    ("a part counted as one before itself", |_, op| {
        if let Op::Compare {
            op: of @ Compare::Less, a: Operand::U32(3), b: Operand::Reg(_), ..
        } = op
        {
            *of = Compare::LessEqual;
        }
    }),
    ("token blocks rounded down", |_, op| {
        if let Op::Binary { op: Binary::Add, b: more @ Operand::U32(7), .. } = op {
            *more = 0u32.into();
        }
    }),
    ("empty slots left as they are", |_, op| {
        if matches!(op, Op::Store { values, mask: Some(_), .. } if values == &[Operand::U32(NONE)])
        {
            gone(op);
        }
    }),
    ("the weight of the pair beside", |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "router_weights") => from.offset ^= 1,
        _ => {}
    }),
    ("the pairs of another chunk", |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "ids") => from.offset += 1,
        _ => {}
    }),
    ("an expert map of the expert beside", |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "expert_map") => from.offset ^= 1,
        _ => {}
    }),
];

/// Where each block counts all pairs.
const OF_COUNTS: &[(&str, Mutation)] = &[
    ("pairs of chunks before that are not counted", |place, op| {
        if matches!(op, Op::Atomic { at, .. } if place.is(at.space, "earlier")) {
            gone(op);
        }
    }),
    ("the block's chunk counted as one before", |_, op| {
        if let Op::Compare { op: of @ Compare::Less, a, b: Operand::Reg(_), .. } = op
            && matches!(a, Operand::Reg(_))
        {
            *of = Compare::LessEqual;
        }
    }),
    ("pairs that count twice", |_, op| {
        if let Op::Atomic { value, .. } = op {
            *value = 2u32.into();
        }
    }),
];

#[test]
fn mistakes_in_the_order_of_pairs_are_found() {
    let pairs = Pairs::draw(24, 600, 8, 5).mapped();
    assert_eq!(pairs.local, 16);
    let expected = pairs.order();
    for counted in [true, false] {
        let of_all = if counted { &[] } else { OF_COUNTS };
        for (what, mutation) in OF_ALL.iter().chain(OF_SORT).chain(of_all) {
            found(what, *mutation, |change| {
                let order = pairs.sorted("sm_90a", counted, 1, change)?;
                if order == expected { Ok(()) } else { Err("another order".to_owned()) }
            });
        }
    }
}

const OF_GATE: &[(&str, Mutation)] = &[
    ("no limit from above", |_, op| {
        if let Op::Select { dst, a: Operand::F32(7.0), b, .. } = op {
            *op = Op::Copy { dst: *dst, a: *b };
        }
    }),
    ("no limit of u from below", |_, op| {
        if let Op::Select { dst, a: Operand::F32(-7.0), b, .. } = op {
            *op = Op::Copy { dst: *dst, a: *b };
        }
    }),
    ("alpha 1", |_, op| {
        if let Op::Binary { op: Binary::MulF32, b: alpha @ Operand::F32(1.702), .. } = op {
            *alpha = 1.0f32.into();
        }
    }),
    ("rows without a pair read", |_, op| {
        if let Op::Compare { op: Compare::NotEqual, b: none @ Operand::U32(NONE), .. } = op {
            *none = (NONE - 1).into();
        }
    }),
    ("the pair of the slot beside", |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "slots") => from.offset += 1,
        _ => {}
    }),
    ("up of the row beside", |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "z") => from.offset += 41,
        _ => {}
    }),
    ("a power of a coarser base", |_, op| {
        if let Op::Binary { op: Binary::MulF32, b: Operand::F32(last), .. } = op
            && (*last + std::f32::consts::LOG2_E).abs() < 1e-3
        {
            *last *= 1.0001;
        }
    }),
];

/// Of targets without a power of 2 of their own.
const OF_POLYNOMIAL: &[(&str, Mutation)] = &[("exp of a coarser polynomial", |_, op| {
    if let Op::Ternary { op: Ternary::Fma, c: Operand::F32(last), .. } = op
        && (*last - 0.5).abs() < 1e-3
    {
        *last = 0.5001;
    }
})];

#[test]
fn mistakes_in_gates_are_found() {
    let gate = Gate::SwigluOai { alpha: 1.702, limit: 7.0 };
    for (what, mutation) in OF_ALL.iter().chain(OF_GATE) {
        found(what, *mutation, |change| check_gate("sm_90a", (gate, F32), 41, change));
    }
    for (what, mutation) in OF_POLYNOMIAL {
        found(what, *mutation, |change| check_gate("gfx942", (gate, F32), 41, change));
    }
}

const OF_COMBINE: &[(&str, Mutation)] = &[
    ("parts of experts elsewhere added", |_, op| {
        if let Op::Compare { op: Compare::NotEqual, b: none @ Operand::U32(NONE), .. } = op {
            *none = (NONE - 1).into();
        }
    }),
    ("the weight of the pair beside", |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "router_weights") => from.offset ^= 1,
        _ => {}
    }),
    ("no weights", |_, op| {
        if let Op::Ternary { op: Ternary::Fma, a, .. } = op {
            *a = 1.0f32.into();
        }
    }),
    ("no shared experts", |_, op| {
        if let Op::Binary { dst, op: Binary::AddF32, a, .. } = op {
            *op = Op::Copy { dst: *dst, a: *a };
        }
    }),
    ("the part of the pair beside", |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "parts") => from.offset += 41,
        _ => {}
    }),
    ("columns stored that are not there", |place, op| match op {
        Op::Store { to, mask, .. } if place.is(to.space, "y") => *mask = None,
        _ => {}
    }),
];

#[test]
fn mistakes_in_sums_are_found() {
    for (what, mutation) in OF_ALL.iter().chain(OF_COMBINE) {
        found(what, *mutation, |change| {
            check_combine("sm_90a", [F32; 3], (5, 4, 41), [true; 3], change)
        });
    }
}

const OF_ROUTE: &[(&str, Mutation)] = &[
    ("numbers read before all are there", |_, op| {
        if *op == Op::Barrier {
            gone(op);
        }
    }),
    ("ties to the larger number", |place, op| {
        if let Op::Compare {
            op: Compare::Less, a: a @ Operand::Reg(_), b: b @ Operand::Reg(_), ..
        } = op
            && place.in_loop
        {
            std::mem::swap(a, b);
        }
    }),
    ("the best of a group instead of its two best", |_, op| {
        if let Op::Select { dst, a: best @ Operand::Reg(_), b: Operand::Reg(_), .. } = op {
            let dst = *dst;
            *op = Op::Copy { dst, a: *best };
        }
    }),
    ("experts outside of the best groups", |_, op| {
        if let Op::Select { dst, a, b: Operand::F32(f32::NEG_INFINITY), .. } = op {
            *op = Op::Copy { dst: *dst, a: *a };
        }
    }),
    ("experts that are switched off", |_, op| {
        if let Op::Compare { op: of @ Compare::LessF32, a: least, b, .. } = op
            && *least == Operand::F32(f32::NEG_INFINITY)
        {
            (*of, *least) = (Compare::EqualF32, *b);
        }
    }),
    ("no scale", |_, op| {
        if let Op::Binary { dst, op: Binary::MulF32, a, b: Operand::F32(2.5) } = op {
            *op = Op::Copy { dst: *dst, a: *a };
        }
    }),
    ("the bias of the expert beside", |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "score_bias") => from.offset ^= 1,
        _ => {}
    }),
    ("the logits of the token beside", |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "logits") => from.offset += 64,
        _ => {}
    }),
    ("weights that are not renormalised", |_, op| {
        if let Op::Binary { op: Binary::AddF32, a, b: Operand::F32(1e-20), .. } = op {
            *a = 1.0f32.into();
        }
    }),
];

#[test]
fn mistakes_in_routing_are_found() {
    let layers = [
        "64 experts of 1 x 1, top 6, sigmoid with bias in 3 of 8 groups renormalised times 2.5, silu",
        "64 experts of 1 x 1, top 6, softmax, silu",
    ];
    let layers = layers.map(|text| text.parse().unwrap());
    for (what, mutation) in OF_ALL.iter().chain(OF_ROUTE) {
        found(what, *mutation, |change| {
            let check = |seed| {
                layers.iter().try_for_each(|layer| route::check("sm_90a", layer, seed, change))
            };
            (0..4).try_for_each(check)
        });
    }
}
