//! The comparison with the reference can fail: each way in which group parameters, factors, biases,
//! planes and sums of x reach a product, made wrong, is found on the simulator.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::kernels::mutation::{Mutation, gone, mutate, put_before};
use quantloom_codegen::ir::{
    Binary, Kernel, MatrixOperand, Op, Operand, Swizzle, Ternary, TmemOp, TmemOperand, Unary, Width,
};
use quantloom_codegen::jit::{JitWithOverrides, Overrides, Simulator};
use quantloom_codegen::plan::plan;
use quantloom_codegen::target::target;
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::parse;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_tests::sweep::Share;
use quantloom_tools::conformance::{Failure, Suite, draw};

/// Zero points that are not subtracted from codes, four segments a k-tile.
const CORRECTION: &str = "weight: i8, zero: u8 per 1x32, scale: bf16 per 1x32, pack: [k, n], activation: bf16, accuracy: exact";
/// Zero points that are, two segments a chunk.
const ZERO: &str =
    "weight: u4, zero: u4 per 1x32, scale: bf16 per 1x32, pack: u32 [k:8 | k, n], activation: bf16";
/// Segments of one step of the product, a factor of rows, a bias.
const FACTOR: &str = "weight: e2m1, scale: e4m3 per 1x16, scale: f32 per channel, \
                      pack: u8 [k:2 | k, n], bias: f32, activation: bf16";
/// Integer products with a scale a row of x.
const ROWS: &str =
    "weight: i8, scale: f32 per channel, pack: [k, n], activation: i8 { scale: f32 per token }";
/// Integer products with zero points: sums of x.
const INTEGERS: &str = "weight: i4, zero: i4 per 1x128, scale: f32 per 1x128, pack: u8 [k:2 | k, n], \
                        activation: i8 { scale: f32 per token }, accuracy: exact";
/// Integer products with a scale and a zero point a row of x.
const ZEROS_OF_X: &str = "weight: i4, scale: f16 per 1x128, scale: f32 per channel, pack: u8 [k:2 | k, n], \
                          activation: i8 { zero: i8, scale: f32 per token }";
/// Scales of x that change along K.
const COLUMNS: &str =
    "weight: e4m3, scale: f32 per 128x128, pack: [k, n], activation: e4m3 { scale: f32 per 1x128 }";
/// Scales that are powers of two and multiply weights.
const POWERS: &str = "weight: e2m1, scale: e8m0 per 1x32, pack: u8 [k:2 | k, n], activation: bf16";
/// Two planes of codes.
const PLANES: &str =
    "weight: u3 - 4, scale: bf16 per 1x128, pack: u32 [k:* | w, n], activation: bf16";

/// Scales in two parts: of codes of 8 bits, and with terms, of codes in planes.
const PARTS_OF_BYTES: &str = "weight: i8, scale: f16 per 1x32, pack: [k, n], activation: bf16";
const PARTS_OF_PLANES: &str = "weight: u5, shift: f16, scale: f16 per 1x32, \
                               pack: u32 [k:* | w, n], activation: bf16";

/// 1.5 * 2^23 and 2^23.
const START: f32 = 12_582_912.0;
const TOO_LOW: f32 = 8_388_608.0;

/// What is wrong, the scheme, whether skinny and tile products have it, and the mutation.
const WRONG: &[(&str, &str, &[usize], Mutation)] = &[
    ("a correction forgotten", CORRECTION, BOTH, |place, op| match op {
        Op::Load { from, mask: Some(mask), .. } if place.is(from.space, "correction") => {
            mask.condition = Operand::Pred(false);
        }
        Op::CopyAsync { from, mask, .. } if place.is(from.space, "correction") => {
            *mask = Some(Operand::Pred(false));
        }
        _ => {}
    }),
    ("ones of f16 for sums of x in bf16", CORRECTION, BOTH, |_, op| {
        if let Op::Copy { a: a @ Operand::U32(0x3f80_3f80), .. } = op {
            *a = 0x3c00_3c00u32.into();
        }
    }),
    ("ones for half of the columns", INTEGERS, BOTH, |_, op| {
        if let Op::Copy { a: a @ Operand::U32(0x0101_0101), .. } = op {
            *a = 0x0001_0001u32.into();
        }
    }),
    ("sums of rows forgotten", ZEROS_OF_X, BOTH, |place, op| match op {
        Op::CopyAsync { from, mask, .. } if place.is(from.space, "row_sum") => {
            *mask = Some(Operand::Pred(false));
        }
        Op::Load { from, mask: Some(mask), .. } if place.is(from.space, "row_sum") => {
            mask.condition = Operand::Pred(false);
        }
        _ => {}
    }),
    ("the sum of another row", ZEROS_OF_X, BOTH, |place, op| {
        if let Op::CopyAsync { from, .. } | Op::Load { from, .. } = op
            && place.is(from.space, "row_sum")
        {
            from.index = 1u32.into();
        }
    }),
    ("scales in place of zero points", ZEROS_OF_X, BOTH, |_, op| {
        if let Op::Ternary {
            op: Ternary::Mad, b: Operand::U32(2), c: c @ Operand::U32(1), ..
        } = op
        {
            *c = 0u32.into();
        }
    }),
    ("the zero point of the first token", ZEROS_OF_X, BOTH, |_, op| {
        if let Op::Ternary { op: Ternary::Mad, a, b: Operand::U32(2), c: Operand::U32(1), .. } = op
        {
            *a = 0u32.into();
        }
    }),
    ("a factor forgotten", FACTOR, BOTH, |place, op| {
        if let Op::CopyAsync { to, from, width, .. } = op
            && place.is(from.space, "channel_scale")
        {
            let values = vec![Operand::U32(1f32.to_bits())];
            *op = Op::Store { to: *to, values, width: *width, mask: None };
        }
    }),
    ("scales of the next segment", ZERO, BOTH, |_, op| {
        if let Op::Unary { op: Unary::F32FromHalf(..), a: Operand::Reg(word), .. } = op {
            word.at ^= 1;
        }
    }),
    ("zero points of the next segment", ZERO, BOTH, |_, op| {
        if let Op::Ternary {
            op: Ternary::Permute, a: Operand::Reg(a), b: Operand::Reg(b), c, ..
        } = op
            && matches!(c, Operand::U32(0x1010 | 0x3232))
        {
            a.at ^= 1;
            b.at ^= 1;
        }
    }),
    ("scales of weights of the first of two rows", FACTOR, BOTH, |_, op| {
        if let Op::Ternary { op: Ternary::Permute, c: c @ Operand::U32(0x3232), .. } = op {
            *c = 0x1010u32.into();
        }
    }),
    ("scales of weights of the columns beside", FACTOR, BOTH, |_, op| {
        if let Op::Unary { op: Unary::F16x2From(_, pair), .. } = op {
            *pair ^= 1;
        }
    }),
    ("scales of weights of another lane", POWERS, SKINNY, |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "scale") => from.offset ^= 1,
        _ => {}
    }),
    ("powers of two of the first of two rows", POWERS, BOTH, |_, op| {
        // Of scales in range to the lower byte of each half, of any to the upper one.
        if let Op::Ternary { op: Ternary::Permute, c: Operand::U32(select), .. } = op {
            match (*select & 0x0f0f, *select & 0xf0f0) {
                (0x0404, _) => *select = *select & 0x0fff | (*select << 8 & 0xf000),
                (_, 0x4040) => *select = *select & 0xf0ff | (*select << 8 & 0x0f00),
                _ => {}
            }
        }
    }),
    ("the first row's scale of x for all", ROWS, BOTH, |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "x_scales") => from.index = 0u32.into(),
        _ => {}
    }),
    ("the first scale of x for all", COLUMNS, BOTH, |place, op| match op {
        Op::Load { from, .. } | Op::CopyAsync { from, .. } if place.is(from.space, "x_scale") => {
            from.index = 0u32.into();
        }
        _ => {}
    }),
    ("scales of x of the first of two tokens", COLUMNS, TILE, |place, op| match op {
        Op::Load { from, width: Width::B32, .. }
            if place.in_loop && place.is(from.space, "ring") =>
        {
            from.offset &= !1;
        }
        _ => {}
    }),
    // Right for sums that are not negative.
    ("integer sums that begin at 2^23", ROWS, BOTH, |_, op| match op {
        Op::Copy { a: Operand::U32(bits), .. } if *bits == START.to_bits() => {
            *bits = TOO_LOW.to_bits();
        }
        Op::Ternary { op: Ternary::Fma, c: Operand::F32(start), .. } if *start % START == 0.0 => {
            *start *= TOO_LOW / START;
        }
        _ => {}
    }),
    ("no swizzle of short segments where x is read or written", FACTOR, TILE, |_, op| {
        if let Op::Binary { op: op @ Binary::Xor, .. } = op {
            *op = Binary::Or;
        }
    }),
    ("words of a plane exchanged", PLANES, BOTH, |place, op| match op {
        Op::Load { dst, from, width: Width::B64, .. }
            if place.is(from.space, "w") || place.is(from.space, "ring") =>
        {
            dst.swap(0, 1);
        }
        _ => {}
    }),
    ("the first plane for the second", PLANES, SKINNY, |place, op| match op {
        Op::Load { from, width: Width::B32, .. } if place.is(from.space, "w") => from.offset -= 64,
        _ => {}
    }),
];

const SKINNY: &[usize] = &[3];
const TILE: &[usize] = &[19];
const BOTH: &[usize] = &[3, 19];

/// Both operands with their scales in the product: of 4 bits, two steps a k-tile; 6 bits and bytes.
const CODES: &str = "weight: e2m1, scale: e8m0 per 1x32, pack: u8 [k:2 | k, n], \
                     activation: e2m1 { scale: e8m0 per 1x32 from pow2 }";
const MIXED: &str = "weight: e2m3, scale: e8m0 per 1x32, pack: u8 [k:4 | w, k, n], \
                     activation: e4m3 { scale: e8m0 per 1x32 from pow2 }";

/// The same of products that scale their operands.
const WRONG_SCALES: &[(&str, &str, &[usize], Mutation)] = &[
    ("scales of A and B exchanged", CODES, BOTH, |_, op| {
        if let Op::Matrix { scales: Some(scales), .. } = op {
            scales.swap(0, 1);
        }
    }),
    ("scales of weights of the step beside", CODES, BOTH, |_, op| {
        if let Op::Matrix { scales: Some([of_w, _]), .. } = op {
            of_w.byte ^= 1;
        }
    }),
    ("the scale of the first of the columns' blocks for all", MIXED, BOTH, |_, op| {
        if let Op::Binary { op: Binary::Shr, b: by @ Operand::Reg(_), .. } = op {
            *by = 0u32.into();
        }
    }),
    ("scales of x of the first token for all", MIXED, SKINNY, |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "x_scale") => from.index = 0u32.into(),
        _ => {}
    }),
    ("halves of the columns of bytes exchanged", MIXED, BOTH, |_, op| {
        if let Op::Matrix { b: MatrixOperand::Registers(b), .. } = op {
            b.rotate_left(4);
        }
    }),
    ("a word of codes of 6 bits for the one before", MIXED, BOTH, |_, op| {
        if let Op::Matrix { a: MatrixOperand::Registers(a), .. } = op {
            a[5] = a[4];
        }
    }),
];

/// Every pair of formats of a product that scales both.
#[test]
fn every_pair_of_scaled_formats_is_right() {
    let (share, mut case) = (Share::new(4, 4), 0);
    let weights = [
        ("e2m1", "u8 [k:2 | k, n]"),
        ("e2m3", "u8 [k:4 | w, k, n]"),
        ("e3m2", "u8 [k:4 | w, k, n]"),
        ("e4m3", "[k, n]"),
        ("e5m2", "[k, n]"),
    ];
    for (weight, pack) in weights {
        for x in ["e2m1", "e2m3", "e3m2", "e4m3", "e5m2"] {
            let clauses = format!(
                "weight: {weight}, scale: e8m0 per 1x32, scale: f32 per channel, pack: {pack}, \
                 activation: {x} {{ scale: e8m0 per 1x32 from pow2 }}"
            );
            let scheme = parse(&format!("s {{ {clauses} }}")).unwrap();
            for (chip, prefix) in [("gfx950", "mfma_scale"), ("sm_120a", "mma_scale")] {
                let plan = plan(&scheme, &scheme.activations[0], target(chip).unwrap()).unwrap();
                let name = match (chip, weight, x) {
                    ("sm_120a", "e2m1", "e2m1") => "mma_scale_e2m1_ue8m0".to_owned(),
                    _ => format!("{prefix}_{weight}_{x}"),
                };
                assert_eq!(plan.compute.product.name, name);
                for &tokens in BOTH {
                    case += 1;
                    if !share.takes(case) {
                        continue;
                    }
                    let (failure, _) = compared_on(chip, &clauses, tokens, |_| false);
                    assert!(failure.is_none(), "{clauses} on {chip}: {}", failure.unwrap());
                }
            }
        }
    }
}

/// Scales of 16 columns, four of a lane's in a step, with signs; a static scale of all of x.
const SIGNED: &str = "weight: e2m1, scale: e4m3 per 1x16, scale: f32 per tensor, \
                      pack: u8 [k:2 | k, n], activation: e2m1 { scale: e4m3 per 1x16, \
                      scale: divide f32 per tensor from amax / 2688 static }";
/// Bytes on both sides: a scale of a lane in a step, four steps in a register.
const BYTES: &str = "weight: e4m3, scale: e8m0 per 1x32, pack: [k, n], \
                     activation: e4m3 { scale: e8m0 per 1x32 from pow2 }";

/// Mutations of products by `mma` with block scales: 1X, 2X and 4X.
const WRONG_BLOCKS: &[(&str, &str, &[usize], Mutation)] = &[
    ("scales of A and B exchanged", CODES, BOTH, |_, op| {
        if let Op::Matrix { scales: Some(scales), .. } = op {
            scales.swap(0, 1);
        }
    }),
    ("scales of A and B exchanged", SIGNED, BOTH, |_, op| {
        if let Op::Matrix { scales: Some(scales), .. } = op {
            scales.swap(0, 1);
        }
    }),
    ("scales of weights of the step beside", CODES, BOTH, |_, op| {
        if let Op::Matrix { scales: Some([of_w, _]), .. } = op {
            of_w.byte ^= 2;
        }
    }),
    ("scales of x of the step beside", BYTES, BOTH, |_, op| {
        if let Op::Matrix { scales: Some([_, of_x]), .. } = op {
            of_x.byte ^= 1;
        }
    }),
    ("scales of the first step for all", BYTES, BOTH, |_, op| {
        if let Op::Matrix { scales: Some([of_w, _]), .. } = op {
            of_w.byte = 0;
        }
    }),
    ("scales of x of the first token for all", SIGNED, SKINNY, |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "x_scale") => from.index = 0u32.into(),
        _ => {}
    }),
    ("halves of the columns of x exchanged", CODES, BOTH, |_, op| {
        if let Op::Matrix { b: MatrixOperand::Registers(b), .. } = op {
            b.swap(0, 1);
        }
    }),
    ("rows of the halves of a tile exchanged", SIGNED, BOTH, |_, op| {
        if let Op::Matrix { a: MatrixOperand::Registers(a), .. } = op {
            a.swap(0, 1);
        }
    }),
    ("halves of the columns of w exchanged", MIXED, BOTH, |_, op| {
        if let Op::Matrix { a: MatrixOperand::Registers(a), .. } = op {
            a.swap(0, 2);
        }
    }),
    ("rows of the second half of the columns exchanged", BYTES, BOTH, |_, op| {
        if let Op::Matrix { a: MatrixOperand::Registers(a), .. } = op {
            a.swap(2, 3);
        }
    }),
    ("no scales of rows and of x", SIGNED, BOTH, |place, op| match op {
        Op::CopyAsync { from, mask, .. } if place.is(from.space, "channel_scale") => {
            *mask = Some(Operand::Pred(false));
        }
        _ => {}
    }),
];

/// Mutations of the same products on tensor memory.
const WRONG_IN_TENSOR_MEMORY: &[(&str, &str, Mutation)] = &[
    ("scales of A and B exchanged", SIGNED, |_, op| {
        if let Op::Tmem(TmemOp::Product { scales: Some(scales), .. }) = op {
            scales.swap(0, 1);
        }
    }),
    ("scales of weights of the step beside", CODES, |_, op| {
        if let Op::Tmem(TmemOp::Product { scales: Some([of_w, _]), .. }) = op {
            of_w.byte ^= 2;
        }
    }),
    ("scales of x of the step beside", BYTES, |_, op| {
        if let Op::Tmem(TmemOp::Product { scales: Some([_, of_x]), .. }) = op {
            of_x.byte ^= 1;
        }
    }),
    ("scales of the word of the step beside", SIGNED, |_, op| {
        if let Op::Tmem(TmemOp::Product { scales: Some([of_w, _]), .. }) = op {
            of_w.at.column ^= 4;
        }
    }),
    ("scales of x of the first token for all", SIGNED, |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "x_scale") => from.index = 0u32.into(),
        _ => {}
    }),
    ("scales of the first rows for all", CODES, |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "scale") => from.index = 0u32.into(),
        _ => {}
    }),
    ("codes of the step beside", CODES, |_, op| {
        if let Op::Tmem(TmemOp::Product { a: TmemOperand::Shared(a), .. }) = op {
            a.offset ^= 1024;
        }
    }),
    ("the first half of the columns of w twice", BYTES, |_, op| {
        if let Op::Tmem(TmemOp::Product { a: TmemOperand::Shared(a), .. }) = op {
            a.leading = 0;
        }
    }),
    ("x without its swizzle", BYTES, |_, op| {
        if let Op::Tmem(TmemOp::Product { b, .. }) = op {
            b.swizzle = Swizzle::None;
        }
    }),
    ("sums of the last k-tile alone", CODES, |_, op| {
        if let Op::Tmem(TmemOp::Product { adds: adds @ Operand::Reg(_), .. }) = op {
            *adds = Operand::Pred(false);
        }
    }),
    ("no scales of rows and of x", SIGNED, |place, op| match op {
        Op::CopyAsync { from, mask, .. } if place.is(from.space, "channel_scale") => {
            *mask = Some(Operand::Pred(false));
        }
        _ => {}
    }),
];

#[test]
fn wrong_products_of_schemes_in_tensor_memory_are_found() {
    for clauses in [CODES, SIGNED, BYTES] {
        for tokens in [1, 17, 70] {
            let (failure, _) = compared_on("sm_100a", clauses, tokens, |_| false);
            assert!(failure.is_none(), "{clauses}: {}", failure.unwrap());
        }
    }
    for &(what, clauses, mutation) in WRONG_IN_TENSOR_MEMORY {
        let change = move |kernel: &mut Kernel| mutate(kernel, mutation);
        is_found(what, 17, compared_on("sm_100a", clauses, 17, change));
    }
}

/// Whether an operation is there for the order of others alone.
fn orders(op: &Op) -> bool {
    match op {
        Op::Barrier
        | Op::NamedBarrier { .. }
        | Op::WarpSync
        | Op::MbarrierWait { .. }
        | Op::MbarrierFence
        | Op::FenceAsync
        | Op::CopyWait { .. }
        | Op::GridWait => true,
        Op::Tmem(op) => matches!(
            op,
            TmemOp::FenceBefore | TmemOp::FenceAfter | TmemOp::WaitLoads | TmemOp::WaitStores
        ),
        _ => false,
    }
}

/// Each operation that orders others is needed: the kernel without it is refused or fails. K is long enough that stages are
/// used again, and split.
#[test]
fn nothing_that_orders_a_product_in_tensor_memory_is_spare() {
    let scheme = parse(&format!("s {{ {SIGNED}, bias: f32 }}")).unwrap();
    let mut all = None;
    let mut spare = Vec::new();
    for number in 0.. {
        if all.is_some_and(|all| number >= all) {
            break;
        }
        let of = Arc::new(Mutex::new((0, String::new())));
        let noted = of.clone();
        let choices = [("stages", 2), ("splits", 2)].map(|(name, of)| (name.to_owned(), of));
        let source = JitWithOverrides::new(Overrides::of_all(choices.into()));
        let simulator = Simulator::new("sm_100a").unwrap().with_source(Arc::new(source));
        let simulator = simulator.with_change(move |kernel| {
            if kernel.tmem_columns == 0 {
                return;
            }
            let (mut at, mut what) = (0, String::new());
            mutate(kernel, |_, op| {
                if orders(op) {
                    if at == number {
                        what = format!("{op:?}");
                        gone(op);
                    }
                    at += 1;
                }
            });
            *noted.lock().unwrap() = (at, what);
        });
        let suite = Suite { shapes: vec![(136, 2048)], tokens: vec![9], seeds: vec![0], every: 1 };
        let result = suite.run(&scheme, &[&GpuDevice::new(simulator)], &|_| {}).remove(0);
        let (count, what) = of.lock().unwrap().clone();
        all = Some(count);
        if !matches!(result, Err(Failure::Mismatch { .. } | Failure::Refused { .. })) {
            spare.push(format!("{number}: {what}: {result:?}"));
        }
    }
    assert!(all.is_some_and(|all| all >= 20), "{all:?}");
    assert!(spare.is_empty(), "{}", spare.join("\n"));
}

/// Scales with signs, which the instruction does not read: codes take them.
#[test]
fn signs_of_scales_are_kept() {
    let scheme = parse(&format!("s {{ {SIGNED} }}")).unwrap();
    let (n, k) = (41, 608);
    // A seed that draws any number of the scale's type, and one that draws the largest.
    for (seed, least) in [(4, 100), (3, 0)] {
        let scales =
            &draw::layer(&scheme, Shape::matrix(n, k), seed).components[&Component::Scale(0)];
        let negative = scales.iter().filter(|code| *code & 0x80 > 0).count();
        assert!(negative >= least, "{negative} of {}", scales.len());
        let (shapes, tokens) = (vec![(n, k)], BOTH.to_vec());
        let suite = Suite { shapes, tokens, seeds: vec![seed], every: 1 };
        for chip in ["sm_100a", "sm_120a"] {
            let device = GpuDevice::new(Simulator::new(chip).unwrap());
            let done = suite.run(&scheme, &[&device], &|_| {}).remove(0);
            let done = done.unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!((done.products, done.not_scheduled.len()), (BOTH.len(), 0));
            for report in device.executor().take_reports() {
                assert_eq!(report.conflicts(), 0, "{report}");
            }
        }
    }
}

#[test]
fn wrong_scales_of_blocks_are_found() {
    for clauses in [CODES, MIXED, SIGNED, BYTES] {
        for &tokens in BOTH {
            let (failure, _) = compared_on("sm_120a", clauses, tokens, |_| false);
            assert!(failure.is_none(), "{clauses}: {}", failure.unwrap());
        }
    }
    for &(what, clauses, all, mutation) in WRONG_BLOCKS {
        for &tokens in all {
            let change = move |kernel: &mut Kernel| mutate(kernel, mutation);
            is_found(what, tokens, compared_on("sm_120a", clauses, tokens, change));
        }
    }
}

#[test]
fn wrong_scales_of_operands_are_found() {
    for clauses in [CODES, MIXED] {
        for &tokens in BOTH {
            let (failure, _) = compared_on("gfx950", clauses, tokens, |_| false);
            assert!(failure.is_none(), "{clauses}: {}", failure.unwrap());
        }
    }
    for &(what, clauses, all, mutation) in WRONG_SCALES {
        for &tokens in all {
            let change = move |kernel: &mut Kernel| mutate(kernel, mutation);
            is_found(what, tokens, compared_on("gfx950", clauses, tokens, change));
        }
    }
}

/// Products with kernels that are changed, and whether there was something to change.
fn compared(
    clauses: &str,
    tokens: usize,
    change: impl Fn(&mut Kernel) -> bool + Send + Sync + 'static,
) -> (Option<Failure>, bool) {
    compared_on("sm_90a", clauses, tokens, change)
}

fn compared_on(
    chip: &str,
    clauses: &str,
    tokens: usize,
    change: impl Fn(&mut Kernel) -> bool + Send + Sync + 'static,
) -> (Option<Failure>, bool) {
    let scheme = parse(&format!("s {{ {clauses} }}"));
    let scheme = scheme.unwrap_or_else(|faults| panic!("{clauses}: {faults:?}"));
    let changed = Arc::new(AtomicBool::new(false));
    let change = Arc::new(change);
    let failed = |source: Option<&str>| {
        let (noted, change) = (changed.clone(), change.clone());
        let simulator = Simulator::new(chip).unwrap().with_change(move |kernel| {
            // Not the kernels of x.
            let product = kernel.buffers.iter().any(|buffer| buffer.name == "w");
            noted.fetch_or(product && change(kernel), Ordering::Relaxed);
        });
        let simulator = match source {
            Some(choices) => {
                let source = JitWithOverrides::new(choices.parse().unwrap());
                simulator.with_source(Arc::new(source))
            }
            None => simulator,
        };
        // Whole rows of 16 bytes of y, and ragged ones; a short last k-tile.
        let shapes = vec![(40, 608), (41, 608)];
        let suite = Suite { shapes, tokens: vec![tokens], seeds: vec![0], every: 1 };
        suite.run(&scheme, &[&GpuDevice::new(simulator)], &|_| {}).remove(0).err()
    };
    // Of many tokens Hopper has warp groups; tiles are for other targets.
    let tiles = chip == "sm_90a" && tokens > 16;
    let failure = failed(None).or_else(|| tiles.then(|| failed(Some("use tile"))).flatten());
    (failure, changed.load(Ordering::Relaxed))
}

#[test]
fn what_is_right_passes() {
    let parts = [PARTS_OF_BYTES, PARTS_OF_PLANES];
    let others = [CORRECTION, ZERO, FACTOR, ROWS, INTEGERS, ZEROS_OF_X, COLUMNS, PLANES, POWERS];
    for clauses in others.into_iter().chain(parts) {
        for &tokens in BOTH {
            let (failure, _) = compared(clauses, tokens, |_| false);
            assert!(failure.is_none(), "{clauses}: {}", failure.unwrap());
        }
    }
}

/// Scales of every 8-bit type, in groups of a lane's columns to beyond a k-tile: on weights or not,
/// as the plan has it.
#[test]
fn scales_of_floats_are_right() {
    let (share, mut case) = (Share::new(6, 1), 0);
    for code in ["e2m1", "e2m3", "e3m2"] {
        for (scale, group) in [
            ("e4m3", 32),
            ("e4m3", 64),
            ("e4m3", 256),
            ("e5m2", 16),
            ("e5m2", 128),
            ("e3m4", 16),
            ("e4m3fnuz", 32),
            ("e8m0", 16),
            ("e8m0", 64),
            ("e8m0", 256),
        ] {
            let clauses = format!(
                "weight: {code}, scale: {scale} per 1x{group}, pack: u8 [k:4 | w, k, n], \
                 activation: bf16"
            );
            for tokens in [1, 17] {
                case += 1;
                if !share.takes(case) {
                    continue;
                }
                let (failure, _) = compared(&clauses, tokens, |_| false);
                assert!(failure.is_none(), "{clauses}: {}", failure.unwrap());
            }
        }
    }
}

/// Found as a wrong result or by a detector of the simulator.
fn is_found(what: &str, tokens: usize, (failure, changed): (Option<Failure>, bool)) {
    assert!(changed, "{what}, M = {tokens}: there is nothing to change");
    assert!(
        matches!(failure, Some(Failure::Mismatch { .. } | Failure::Refused { .. })),
        "{what}, M = {tokens}: {failure:?}"
    );
}

#[test]
fn mutated_products_of_schemes_are_found() {
    for &(what, clauses, all, mutation) in WRONG {
        for &tokens in all {
            let found = compared(clauses, tokens, move |kernel| mutate(kernel, mutation));
            is_found(what, tokens, found);
        }
    }
}

/// `(sum + bias) factor` for `sum factor + bias`.
#[test]
fn a_bias_before_the_factor_is_found() {
    for &tokens in BOTH {
        let found = compared(FACTOR, tokens, |kernel| {
            put_before(kernel, |op| match op {
                Op::Ternary {
                    op: Ternary::Fma, b: factor, c: bias @ Operand::Reg(dst), ..
                } => Some(Op::Binary { dst: *dst, op: Binary::MulF32, a: *bias, b: *factor }),
                _ => None,
            })
        });
        is_found("a bias before the factor", tokens, found);
    }
}
