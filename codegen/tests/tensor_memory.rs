//! Products on tensor memory beyond those that the schedule writes: W4A16, as a kernel of its own. Warps decode weights and
//! store them to tensor memory as operand A; one thread multiplies them with x in shared memory.
//!
//! The kernel shows that operations on tensor memory say all that this product needs: it is simulated against a sum in f64,
//! and assembled.

use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::*;
use quantloom_codegen::sim::{Arguments, Contents, Fault, Report, SimulationOptions, run};
use quantloom_codegen::target::target;
use quantloom_tests::tools::ptxas;

use crate::kernels::mutation::{Mutation, mutate};
use crate::kernels::product::Random;

/// Rows of w and tokens of a block, columns of a stage of x and of a group of w.
const ROWS: u32 = 128;
const TOKENS: u32 = 16;
const K_TILE: u32 = 64;
const GROUP: u32 = 128;
/// Buffers of x, and of A in tensor memory.
const STAGES: u32 = 2;
/// The first column of D, and of the first buffer of A, of 32 columns each.
const OF_A: u32 = 32;
const A_COLUMNS: u32 = K_TILE / 2;

/// y[M, N] = x w^T with w = (code - 8) scale, the scale in bf16 per row and 128 columns. Codes are rows of words `u32 [k:8 | k,
/// n]`, which lane i of 128 loads for row i.
fn w4a16(n: u32, k: u32) -> Kernel {
    let chip = target("sm_100a").unwrap();
    let fixed = Extent::Constant;
    let launch = LaunchConfig {
        grid: [fixed(1); 3],
        threads: 160,
        min_blocks: 1,
        cluster: 1,
        programmatic: false,
    };
    let mut b = Builder::new("w4a16", "Four-bit weights beside bf16.", chip, launch);
    let m = b.parameter("m", "rows of x");
    let codes = b.buffer("w", Word::U32, Access::Constant, &[fixed(n), fixed(k / 8)], "codes");
    let scales =
        b.buffer("scale", Word::U16, Access::Constant, &[fixed(n), fixed(k / GROUP)], "bf16");
    let x = b.buffer("x", Word::U16, Access::ReadOnly, &[Extent::Parameter(m), fixed(k)], "bf16");
    let y = b.buffer("y", Word::U32, Access::WriteOnce, &[Extent::Parameter(m), fixed(n)], "f32");
    b.grid([Extent::CeilDiv(m, TOKENS), fixed(n / ROWS), fixed(1)]);
    b.tmem_columns(128);
    let layout = "[k, token], 128-byte swizzle";
    let words = STAGES * TOKENS * K_TILE;
    let tile = b.shared_block("x_stages", Word::U16, words, layout, 1024, None);
    let at = b.shared("columns", Word::U32, 4, "the address of the columns");
    let map = b.tensor(TensorMap {
        name: "x_map".to_owned(),
        buffer: x,
        extents: vec![fixed(k), Extent::Parameter(m)],
        strides: vec![fixed(1), fixed(k)],
        tile: vec![K_TILE, TOKENS],
        swizzle: Swizzle::B128,
        cache: Cache::Default,
    });
    let [full, stored, empty] = ["full", "stored", "empty"].map(|name| b.barriers(name, STAGES));
    let of = |array, index: Operand| BarrierRef { array, index };
    let done = of(b.barriers("done", 1), 0u32.into());
    let (thread, warp) = (b.special(Special::Thread), b.special(Special::Warp));
    let lane = b.special(Special::Lane);
    let [token_block, row_block] = [0, 1].map(|axis| b.special(Special::Block(axis)));
    let tokens = b.argument(m);
    let first = b.equal(thread, 0u32);
    b.when(first, |b| {
        for stage in 0..STAGES {
            for (array, arrivals) in [(full, 1), (stored, 4), (empty, 1)] {
                b.push(Op::MbarrierInit { barrier: of(array, stage.into()), arrivals });
            }
        }
        b.push(Op::MbarrierInit { barrier: done, arrivals: 1 });
        b.push(Op::MbarrierFence);
    });
    let allocates = b.equal(warp, 0u32);
    b.when(allocates, |b| b.tmem_allocate(Address::new(at, 0u32)));
    b.barrier();
    let base: Operand = b.load(Address::new(at, 0u32), Width::B32)[0].into();
    // The stage of a k-tile, and the parity of that use of it.
    let phase = |b: &mut Builder, k_tile: Operand| {
        let stage = b.rem(k_tile, STAGES);
        let turn = b.div(k_tile, STAGES);
        (stage, b.and(turn, 1u32))
    };
    let leads = b.equal(lane, 0u32);
    let decodes = b.role("decode", 0..4, None, |b| {
        let lanes = b.shl(warp, 21u32);
        let own = b.add(base, lanes);
        let row = b.mad(row_block, ROWS, thread);
        b.for_each(0u32, k / K_TILE, 1u32, "k_tile", |b, k_tile| {
            let (stage, parity) = phase(b, k_tile);
            let word = b.mul(k_tile, K_TILE / 8);
            let word = b.mad(row, k / 8, word);
            let from = Address::new(codes, word);
            let words = [0, 4].map(|at| b.load(from.plus(at), Width::B128)).concat();
            let group = b.div(k_tile, GROUP / K_TILE);
            let group = b.mad(row, k / GROUP, group);
            let scale = b.load(Address::new(scales, group), Width::B16)[0];
            let scale = b.ternary(Ternary::Permute, scale, scale, 0x1010u32);
            b.comment("128 + code in bf16, less 136, times the scale");
            let mut values = Vec::new();
            for word in words {
                for pair in 0..4 {
                    let low = b.shr(word, 8 * pair);
                    let high = b.shl(low, 12u32);
                    let low = b.and(low, 0xfu32);
                    let high = b.and(high, 0xf_0000u32);
                    let both = b.binary(Binary::Or, low, high);
                    let both = b.binary(Binary::Or, both, 0x4300_4300u32);
                    let code = b.binary(Binary::SubPacked(Half::Bf16), both, 0x4308_4308u32);
                    values.push(b.binary(Binary::MulPacked(Half::Bf16), code, scale));
                }
            }
            let before = b.xor(parity, 1u32);
            b.push(Op::MbarrierWait { barrier: of(empty, stage), parity: before });
            b.tmem(TmemOp::FenceAfter);
            let to = TmemAddress::new(b.mad(stage, A_COLUMNS, own)).plus(OF_A);
            b.tmem(TmemOp::Store { to, values });
            b.tmem(TmemOp::WaitStores);
            b.tmem(TmemOp::FenceBefore);
            b.push(Op::WarpSync);
            let barrier = of(stored, stage);
            b.when(leads, |b| b.push(Op::MbarrierArrive { barrier, expect: None }));
        });
        b.push(Op::MbarrierWait { barrier: done, parity: 0u32.into() });
        b.tmem(TmemOp::FenceAfter);
        let sums = b.tmem_load(Type::F32, TmemAddress::new(own), TOKENS);
        for (token, &sum) in (0..).zip(&sums) {
            let token = b.mad(token_block, TOKENS, token);
            let inside = b.less(token, tokens);
            let to = b.mad(token, n, row);
            let bits = b.unary(Unary::AsU32, sum);
            b.store(Address::new(y, to), &[bits], Width::B32, Some(inside));
        }
        b.tmem(TmemOp::FenceBefore);
        b.push(Op::NamedBarrier { id: 1, threads: 128, wait: true });
        b.when(allocates, |b| {
            b.tmem(TmemOp::FenceAfter);
            b.tmem(TmemOp::Free { base });
        });
    });
    let op = matrix_op("tcgen05.bf16", chip).unwrap();
    let multiplies = b.role("copy and multiply", 4..5, None, |b| {
        b.when(leads, |b| {
            b.for_each(0u32, k / K_TILE, 1u32, "k_tile", |b, k_tile| {
                let (stage, parity) = phase(b, k_tile);
                let before = b.xor(parity, 1u32);
                b.push(Op::MbarrierWait { barrier: of(empty, stage), parity: before });
                let barrier = of(full, stage);
                let bytes = 2 * TOKENS * K_TILE;
                b.push(Op::MbarrierArrive { barrier, expect: Some(bytes.into()) });
                let of_stage = b.mul(stage, TOKENS * K_TILE);
                let at = vec![b.mul(k_tile, K_TILE), b.mul(token_block, TOKENS)];
                let to = Address::new(tile, of_stage);
                b.push(Op::TensorLoad { to, map, at, barrier, multicast: None });
                b.push(Op::MbarrierWait { barrier, parity });
                b.push(Op::MbarrierWait { barrier: of(stored, stage), parity });
                b.tmem(TmemOp::FenceAfter);
                let later = b.less(0u32, k_tile);
                let a = b.mad(stage, A_COLUMNS, base);
                for step in 0..K_TILE / op.shape[2] {
                    let a = TmemAddress::new(a).plus(OF_A + step * op.a_columns());
                    let x = SharedTile {
                        block: tile,
                        index: of_stage,
                        offset: step * op.shape[2],
                        leading: 16,
                        stride: 1024,
                        swizzle: Swizzle::B128,
                    };
                    let adds = if step == 0 { later } else { true.into() };
                    let d = TmemAddress::new(base);
                    b.tmem_product((op, TOKENS), (d, adds), (TmemOperand::Tmem(a), x), None);
                }
                b.tmem_commit(of(empty, stage));
            });
            b.tmem_commit(done);
        });
    });
    b.roles(vec![decodes, multiplies]);
    b.finish()
}

/// bf16, rounded to nearest even; for finite numbers.
fn bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    (bits + 0x7fff + (bits >> 16 & 1)) >> 16
}

fn of_bf16(half: u32) -> f64 {
    f64::from(f32::from_bits(half << 16))
}

/// Two words of 16 bits in each.
fn packed(halves: &[u32]) -> Vec<u32> {
    halves.chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 16).collect()
}

/// A layer and tokens, and the largest error of a kernel's y over its bound.
fn compared(kernel: &Verified<Kernel>, (n, k, m): (u32, u32, u32)) -> Result<f64, Box<Fault>> {
    let mut random = Random(7);
    let mut words = |count: u32| (0..count).map(|_| random.next() as u32).collect::<Vec<_>>();
    let codes = words(n * k / 8);
    // A different scale for each row and group, from 2^-6 on.
    let scales: Vec<u32> = words(n * k / GROUP).iter().map(|word| 0x3c80 + word % 0x180).collect();
    let x: Vec<u32> =
        words(m * k).iter().map(|word| bf16(*word as i32 as f32 / 2f32.powi(31))).collect();
    let buffers = vec![
        Contents::from_words(&codes),
        Contents::from_words(&packed(&scales)),
        Contents::from_words(&packed(&x)),
        Contents::poison((4 * m * n) as usize),
    ];
    let mut arguments = Arguments { parameters: vec![m], buffers };
    let _: Report = run(kernel, &mut arguments, &SimulationOptions::default())?;
    let y = arguments.buffers[3].words();
    let mut worst = 0f64;
    for (token, row) in (0..m).flat_map(|token| (0..n).map(move |row| (token, row))) {
        let (mut sum, mut magnitude) = (0.0, 0.0);
        for column in 0..k {
            let code = codes[((row * k + column) / 8) as usize] >> (4 * (column % 8)) & 0xf;
            let scale = of_bf16(scales[((row * k + column) / GROUP) as usize]);
            let product =
                (f64::from(code) - 8.0) * scale * of_bf16(x[(token * k + column) as usize]);
            sum += product;
            magnitude += f64::abs(product);
        }
        // A weight is rounded once to 8 bits; each of K / 16 sums of a step, and their sum with D, once to 24 here.
        let bound = magnitude * (2f64.powi(-9) + f64::from(k / 16) * 2f64.powi(-24));
        let found = f64::from(f32::from_bits(y[(token * n + row) as usize]));
        worst = worst.max(f64::abs(found - sum) / bound);
    }
    Ok(worst)
}

#[test]
fn four_bit_weights_multiply_in_tensor_memory() {
    for shape in [(128, 128, 1), (256, 512, 17), (128, 256, 40)] {
        let kernel = verify(w4a16(shape.0, shape.1)).unwrap_or_else(|why| panic!("{why}"));
        let worst = compared(&kernel, shape).unwrap_or_else(|fault| panic!("{fault}"));
        assert!(worst > 0.0 && worst <= 1.0, "{shape:?}: {worst}");
        let text = ptx::emit(&kernel).unwrap();
        let Some(ptxas) = ptxas::find() else { continue };
        let assembled = ptxas.assemble(&text, "sm_100a");
        assert!(assembled.is_clean(), "{}\n{text}", assembled.report);
    }
}

/// What would be wrong of this product, and is found: as a result or a fault.
const WRONG: &[(&str, Mutation)] = &[
    ("a code's constant of signed 4 bits", |_, op| {
        if let Op::Binary { b: b @ Operand::U32(0x4308_4308), .. } = op {
            *b = 0x4300_4300u32.into();
        }
    }),
    ("scales of the first group for all", |place, op| match op {
        Op::Load { from, .. } if place.is(from.space, "scale") => from.index = 0u32.into(),
        _ => {}
    }),
    ("A of the step beside", |_, op| {
        if let Op::Tmem(TmemOp::Product { a: TmemOperand::Tmem(a), .. }) = op {
            a.column ^= 8;
        }
    }),
    ("x of the step beside", |_, op| {
        if let Op::Tmem(TmemOp::Product { b, .. }) = op {
            b.offset ^= 16;
        }
    }),
    ("sums of the last k-tile alone", |_, op| {
        if let Op::Tmem(TmemOp::Product { adds: adds @ Operand::Reg(_), .. }) = op {
            *adds = Operand::Pred(false);
        }
    }),
];

#[test]
fn wrong_products_in_tensor_memory_are_found() {
    for (what, mutation) in WRONG {
        let mut kernel = w4a16(128, 256);
        assert!(mutate(&mut kernel, *mutation), "{what}: there is nothing to change");
        let kernel = verify(kernel).unwrap_or_else(|why| panic!("{what}: {why}"));
        let found = compared(&kernel, (128, 256, 17));
        assert!(!matches!(found, Ok(worst) if worst <= 1.0), "{what}: {found:?}");
    }
}
