//! Native layouts against the sequences and the fragments they are made of: random codes are put
//! where the layout says, the words that a lane loads are decoded, and every element must be the
//! one that the product's operand holds there.

use quantloom_codegen::plan::interpret::interpret;
use quantloom_codegen::plan::{DequantPlan, NativeLayout, OperandType, Plan, brief, plan};
use quantloom_codegen::target::{Class, TARGETS, Target};
use quantloom_dsl::layout::{
    BoundLayout, Component, Element, Granularity, GroupSize, Index, Shape, write_bits,
};
use quantloom_dsl::{Code, Scheme, WeightCode, parse, parse_fragment, parse_layout};

fn scheme(weight: &str, activation: &str) -> Scheme {
    scheme_in_groups(weight, activation, 128)
}

fn scheme_in_groups(weight: &str, activation: &str, group: u32) -> Scheme {
    let text = format!(
        "s {{ weight: {weight}, scale: f32 per 1x{group}, pack: u8 [code, pad {} | k, n], \
         activation: {activation}, accuracy: exact }}",
        8 - quantloom_dsl::format::Number::from_name(weight).unwrap().bits()
    );
    let text = text.replace(", pad 0 ", " ");
    parse(&text).unwrap_or_else(|faults| panic!("{text}\n{faults}"))
}

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).unwrap()
}

fn plan_of(scheme: &Scheme, name: &str) -> Result<Plan, String> {
    plan(scheme, &scheme.activations[0], target(name)).map_err(|refusal| refusal.to_string())
}

fn bind(plan: &Plan, shape: Shape) -> BoundLayout {
    let bits = plan.dequant.weight.code.bits();
    let granularity = Granularity { bits, rows: GroupSize::Each(1), cols: GroupSize::Each(1) };
    plan.native
        .layout
        .bind(shape, &|part| (part == Component::Code).then_some(granularity))
        .unwrap()
}

/// A code for each (n, k), different ones side by side.
fn code(n: u64, k: u64, bits: u32) -> u32 {
    let mixed = (n * 7919 + k * 104_729 + (n * k) % 251).wrapping_mul(0x9E37_79B9);
    (mixed >> 7) as u32 & ((1 << bits) - 1)
}

/// The native bytes of a matrix of those codes.
fn pack(plan: &Plan, bound: &BoundLayout, shape: Shape) -> Vec<u8> {
    let bits = plan.dequant.weight.code.bits();
    let mut bytes = vec![0; bound.bytes() as usize];
    for n in 0..shape.n {
        for k in 0..shape.k {
            for bit in 0..bits {
                let index = Index { e: 0, n, k };
                let at = bound.address(Element { component: Component::Code, index, bit });
                write_bits(&mut bytes, at.unwrap(), 1, u64::from(code(n, k, bits) >> bit & 1));
            }
        }
    }
    bytes
}

/// The words that the stages make of one chunk's words, in the order of the outputs.
fn decode(dequant: &DequantPlan, words: &[u32]) -> Vec<u32> {
    let mut words = words.to_vec();
    for stage in &dequant.stages {
        // The same word of all units side by side.
        let units = words.len() / stage.inputs.len();
        let unit = |unit| words.iter().skip(unit).step_by(units).copied().collect::<Vec<_>>();
        words = (0..units).flat_map(|at| interpret(stage, &unit(at))).collect();
    }
    words
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

const CODES: &[&str] =
    &["u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8", "i4", "i7", "i8", "e2m1", "e2m3", "e4m3"];

/// 16 lanes, a row each; four columns a word: as the vector machines read it.
#[test]
fn a_lane_is_a_row_on_vector_machines() {
    let shape = Shape { experts: 1, n: 48, k: 96 };
    for weight in CODES {
        for activation in ["bf16", "i8 { scale: f32 per token }"] {
            if weight.starts_with('e') && activation != "bf16" {
                continue;
            }
            let scheme = scheme(weight, activation);
            let plan = plan_of(&scheme, "x86").unwrap();
            assert_eq!((plan.native.rows, plan.native.columns), (16, 32), "{weight}");
            let bound = bind(&plan, shape);
            let bytes = pack(&plan, &bound, shape);
            let bits = plan.dequant.weight.code.bits();
            // Chunks of 16 rows by 32 columns, one after the other along k.
            let chunk = 16 * 32 * bits as usize / 8;
            for (position, bytes) in bytes.chunks(chunk).enumerate() {
                let (panel, first) = (position as u64 / 3, position as u64 % 3 * 32);
                for lane in 0..16u64 {
                    let lane_words: Vec<u32> =
                        words(bytes).into_iter().skip(lane as usize).step_by(16).collect();
                    check_row(&plan, &lane_words, panel * 16 + lane, first);
                }
            }
        }
    }
}

/// 16 lanes, a row each; the words that a lane loads at once side by side: as shaders read it.
#[test]
fn a_lane_is_a_row_of_shaders() {
    let shape = Shape { experts: 1, n: 48, k: 96 };
    for weight in CODES {
        for activation in ["bf16", "i8 { scale: f32 per token }"] {
            let scheme = scheme(weight, activation);
            let plan = plan_of(&scheme, "wgsl").unwrap();
            let columns = if weight.ends_with('8') || *weight == "e4m3" { 16 } else { 32 };
            assert_eq!((plan.native.rows, plan.native.columns), (16, columns), "{weight}");
            let bytes = pack(&plan, &bind(&plan, shape), shape);
            let own: u32 = plan.native.plane_words.iter().sum();
            for (position, bytes) in bytes.chunks(16 * 4 * own as usize).enumerate() {
                let chunks = shape.k / u64::from(columns);
                let (tile, chunk) = (position as u64 / chunks, position as u64 % chunks);
                for lane in 0..16u64 {
                    let mut rest = &words(bytes)[..];
                    let mut held = Vec::new();
                    for &plane in &plan.native.plane_words {
                        let (all, after) = rest.split_at(16 * plane as usize);
                        held.extend(all.chunks(plane as usize).nth(lane as usize).unwrap());
                        rest = after;
                    }
                    check_row(&plan, &held, tile * 16 + lane, chunk * u64::from(columns));
                }
            }
        }
    }
}

/// The decoded words of a lane are columns `first..first + 32` of row n, in order.
fn check_row(plan: &Plan, lane_words: &[u32], n: u64, first: u64) {
    let (dequant, bits) = (&plan.dequant, plan.dequant.weight.code.bits());
    let (add, exponent) = dequant.encoding();
    let operand = plan.compute.product.weight;
    for (at, word) in decode(dequant, lane_words).into_iter().enumerate() {
        for element in 0..operand.per_word() {
            let k = first + (at * operand.per_word() + element) as u64;
            let element = word >> (operand.bits() * element as u32) & operand.number().mask();
            let wanted = dequant.weight.decode(code(n, k, bits)) + f64::from(add);
            let (found, wanted) = (operand.number().decode(element), wanted * 2f64.powi(exponent));
            let same = found == wanted || found.is_nan() && wanted.is_nan();
            assert!(same, "{} {dequant}: w[{n}, {k}] = {found}, not {wanted}", dequant.weight);
        }
    }
}

/// The layout that all CPU kernels share, as it is agreed for each plane.
#[test]
fn the_shared_layout_is_the_agreed_one() {
    let granularity =
        |bits| Granularity { bits, rows: GroupSize::Each(1), cols: GroupSize::Each(1) };
    let shape = Shape { experts: 1, n: 48, k: 96 };
    let of_code = |bits: u32| move |part| (part == Component::Code).then_some(granularity(bits));
    for (weight, width) in [("u1", 1), ("u2", 2), ("u4", 4), ("u8", 8)] {
        let plan = plan_of(&scheme(weight, "bf16"), "neon").unwrap();
        let inner = if width == 8 { "code".to_owned() } else { format!("k/4:{}", 8 / width) };
        let agreed = format!("u8 [{inner} | k:4, n:16, k, n]");
        let agreed = parse_layout(&agreed, Component::Code).unwrap();
        let agreed = agreed.bind(shape, &of_code(width)).unwrap();
        let ours = bind(&plan, shape);
        assert_eq!(agreed.bytes(), ours.bytes(), "{weight}");
        for address in 0..agreed.bits() {
            assert_eq!(agreed.content(address), ours.content(address), "{weight} bit {address}");
        }
    }
}

/// A lane of a warp loads words in order; decoded, they are the registers of the operands of
/// consecutive k steps. Rows are the fragment's; the columns of a lane in a group, or a chunk if
/// that is shorter, are neighbours. The layout says which of its registers of x has those of w.
#[test]
fn a_lane_holds_its_fragment_on_matrix_machines() {
    const A16: &str = "[k:2 ; n/8:2, k/8:2 ; k/2:4, n:8]";
    const A8: &str = "[k:4 ; n/8:2, k/16:2 ; k/4:4, n:8]";
    const K16: &str = "[k:2 ; k/2:2 ; n:16, k/4:4]";
    const K32: &str = "[k:2 ; k/2:4 ; n:16, k/8:4]";
    const BYTES: &str = "[k:4 ; k/4:2 ; n:16, k/8:4]";
    const WIDE_BYTES: &str = "[k:4 ; k/4:4 ; n:16, k/16:4]";
    // A lane has a whole row; rows of even number come first.
    const COPIED: &str = "[k:2 ; k/2:8 ; n/8:2, n:8]";
    const COPIED_BYTES: &str = "[k:4 ; k/4:4 ; n/8:2, n:8]";
    const TWO: &str = "[k:2 ; k/2:2, k/8:2 ; n:16, k/4:2]";
    const COPIED_NIBBLES: &str = "[k:8 ; k/8:2 ; n/8:2, n:8]";
    const TWO_NIBBLES: &str = "[k:8 ; k/8:2 ; n:16, k/16:2]";
    const TWO_BYTES: &str = "[k:4 ; k/4:2 ; n:16, k/8:2]";
    let rows = [
        ("u1", "bf16", "sm_80", A16, 128),
        ("u2", "bf16", "sm_80", A16, 128),
        ("u4", "bf16", "sm_90a", A16, 128),
        ("u4", "f16", "sm_90a", A16, 128),
        ("i4", "bf16", "sm_90a", A16, 128),
        ("e2m1", "bf16", "sm_90a", A16, 128),
        ("u8", "bf16", "sm_90a", A16, 128),
        ("i8", "f16", "sm_80", A16, 128),
        ("e4m3", "f16", "sm_90a", A16, 128),
        ("e4m3", "bf16", "sm_90a", A16, 128),
        ("i8", "i8 { scale: f32 per token }", "sm_90a", A8, 128),
        ("i4", "i8 { scale: f32 per token }", "sm_80", A8, 128),
        ("i2", "i8 { scale: f32 per token }", "sm_80", A8, 128),
        ("u3", "bf16", "sm_90a", A16, 128),
        ("u5", "bf16", "sm_90a", A16, 128),
        ("u6", "f16", "sm_80", A16, 128),
        ("i7", "bf16", "sm_90a", A16, 128),
        ("e2m3", "bf16", "sm_90a", A16, 128),
        ("u5", "i8 { scale: f32 per token }", "sm_90a", A8, 128),
        ("e4m3", "e4m3 { scale: f32 per token }", "sm_89", A8, 128),
        ("e2m1", "e4m3 { scale: f32 per token }", "sm_89", A8, 32),
        ("e2m1", "bf16", "sm_90a", A16, 32),
        ("e2m1", "f16", "sm_90a", A16, 16),
        ("u4", "bf16", "sm_80", A16, 64),
        ("u8", "f16", "sm_90a", A16, 16),
        ("e3m2", "bf16", "sm_90a", A16, 32),
        ("e3m2", "f16", "sm_80", A16, 64),
        ("e2m3", "bf16", "sm_80", A16, 32),
        ("e2m1", "bf16", "sm_80", A16, 16),
        ("u3", "f16", "sm_80", A16, 32),
        ("i4", "i8 { scale: f32 per token }", "sm_90a", A8, 32),
        ("u1", "bf16", "gfx942", K16, 128),
        ("u2", "f16", "gfx942", K16, 128),
        ("u4", "bf16", "gfx942", K16, 128),
        ("u4", "f16", "gfx942", K16, 32),
        ("i4", "bf16", "gfx942", K16, 64),
        ("e2m1", "bf16", "gfx942", K16, 16),
        ("e2m1", "f16", "gfx942", K16, 32),
        ("u8", "bf16", "gfx942", K16, 128),
        ("i8", "f16", "gfx942", K16, 64),
        ("e4m3", "bf16", "gfx942", K16, 128),
        ("u3", "bf16", "gfx942", K16, 128),
        ("u5", "f16", "gfx942", K16, 32),
        ("e3m2", "bf16", "gfx942", K16, 32),
        ("e2m3", "f16", "gfx942", K16, 32),
        ("i8", "i8 { scale: f32 per token }", "gfx942", BYTES, 128),
        ("i4", "i8 { scale: f32 per token }", "gfx942", BYTES, 32),
        ("u5", "i8 { scale: f32 per token }", "gfx942", BYTES, 128),
        ("u4", "bf16", "gfx950", K32, 128),
        ("e2m1", "bf16", "gfx950", K16, 16),
        ("e2m1", "f16", "gfx950", K32, 32),
        ("u6", "bf16", "gfx950", K32, 64),
        ("i8", "i8 { scale: f32 per token }", "gfx950", WIDE_BYTES, 128),
        ("i4", "i8 { scale: f32 per token }", "gfx950", BYTES, 32),
        ("e4m3", "e4m3 { scale: f32 per token }", "gfx942", BYTES, 128),
        ("e4m3fnuz", "e4m3fnuz { scale: f32 per token }", "gfx942", BYTES, 128),
        ("e4m3", "e4m3 { scale: f32 per token }", "gfx950", BYTES, 128),
        ("e2m1", "e4m3 { scale: f32 per token }", "gfx950", BYTES, 32),
        ("u1", "bf16", "gfx1100", COPIED, 128),
        ("u2", "f16", "gfx1100", COPIED, 128),
        ("u4", "bf16", "gfx1100", COPIED, 128),
        ("u4", "f16", "gfx1151", COPIED, 32),
        ("e2m1", "bf16", "gfx1100", COPIED, 16),
        ("u8", "bf16", "gfx1100", COPIED, 128),
        ("e4m3", "f16", "gfx1100", COPIED, 32),
        ("u3", "bf16", "gfx1100", COPIED, 128),
        ("u5", "f16", "gfx1100", COPIED, 32),
        ("e2m3", "bf16", "gfx1100", COPIED, 32),
        ("i8", "i8 { scale: f32 per token }", "gfx1100", COPIED_BYTES, 128),
        ("i4", "i8 { scale: f32 per token }", "gfx1100", COPIED_BYTES, 32),
        ("i4", "i4 { scale: f32 per token }", "gfx1100", COPIED_NIBBLES, 256),
        ("i2", "i4 { scale: f32 per token }", "gfx1151", COPIED_NIBBLES, 128),
        ("i4", "i4 { scale: f32 per token }", "gfx1201", TWO_NIBBLES, 128),
        ("u4", "i4 { scale: f32 per token }", "gfx1200", TWO_NIBBLES, 256),
        ("i2", "i4 { scale: f32 per token }", "gfx1201", TWO_NIBBLES, 128),
        // Planes, and groups that are too short, as bytes.
        ("i3", "i4 { scale: f32 per token }", "gfx1201", TWO_BYTES, 128),
        ("i4", "i4 { scale: f32 per token }", "gfx1201", TWO_BYTES, 64),
        ("u1", "f16", "gfx1201", TWO, 128),
        ("u4", "bf16", "gfx1201", TWO, 128),
        ("u4", "f16", "gfx1200", TWO, 32),
        ("e2m1", "bf16", "gfx1201", TWO, 16),
        ("u8", "f16", "gfx1201", TWO, 128),
        ("u6", "bf16", "gfx1201", TWO, 64),
        ("e3m2", "bf16", "gfx1201", TWO, 32),
        ("i8", "i8 { scale: f32 per token }", "gfx1201", TWO_BYTES, 128),
        ("i4", "i8 { scale: f32 per token }", "gfx1201", TWO_BYTES, 16),
        ("e4m3", "e4m3 { scale: f32 per token }", "gfx1201", TWO_BYTES, 128),
        ("e2m1", "e4m3 { scale: f32 per token }", "gfx1201", TWO_BYTES, 32),
        ("e5m2", "e5m2 { scale: f32 per token }", "gfx1201", TWO_BYTES, 128),
        ("e5m2", "e4m3 { scale: f32 per token }", "gfx1200", TWO_BYTES, 64),
        ("e2m1", "e5m2 { scale: f32 per token }", "gfx1201", TWO_BYTES, 32),
        ("e2m1", "f16", "sm_120a", A16, 32),
        ("e2m3", "f16", "sm_121a", A16, 64),
    ];
    for (weight, activation, name, fragment, group) in rows {
        let plan = plan_of(&scheme_in_groups(weight, activation, group), name).unwrap();
        let fragment = parse_fragment(fragment).unwrap();
        let (rows, _) = fragment.extents();
        let sizes = fragment.sizes();
        let lanes = sizes[2] as usize;
        // Lanes of a row, by the columns that they have, and registers of a row likewise.
        let least = (0..sizes[2]).map(|lane| fragment.point(&[0, 0, lane]).k);
        let least = least.filter(|&k| k > 0).min().unwrap_or(1);
        let part = |lane: usize| fragment.point(&[0, 0, lane as u32]).k / least;
        let of_row = (0..lanes).map(part).max().unwrap() + 1;
        let rank = |register: u32| {
            let own = fragment.point(&[0, register, 0]);
            let others = (0..sizes[1]).map(|other| fragment.point(&[0, other, 0]));
            others.filter(|other| other.n == own.n && other.k < own.k).count() as u32
        };
        let (columns, bits) = (plan.native.columns, plan.dequant.weight.code.bits());
        assert_eq!(plan.native.rows, rows, "{weight} {activation}");
        let shape = Shape { experts: 1, n: 32, k: u64::from(columns) * 3 };
        let bound = bind(&plan, shape);
        let bytes = pack(&plan, &bound, shape);
        let unit = (rows * columns * bits / 8) as usize;
        if plan.native.plane_words.len() == 1 && plan.dequant.joining().is_none() {
            // What a lane loads at once: 16 bytes.
            assert_eq!(unit / lanes, 16, "{weight} {activation}");
        }
        let operand = plan.compute.product.weight;
        let per_word = operand.per_word() as u32;
        // The lanes of a row share out its columns: neighbours to each.
        let shared = columns.min(group).min(1024 / operand.bits());
        // Registers of a row in A.
        let of_a = (0..sizes[1]).map(rank).max().unwrap() + 1;
        for (position, bytes) in bytes.chunks(unit).enumerate() {
            let (tile, first) = (position as u64 / 3, position as u64 % 3 * u64::from(columns));
            for lane in 0..lanes {
                // The first columns of this lane's registers of x, as it loads them.
                let own = part(lane) * (shared / of_row);
                let starts = (0..columns).step_by(shared as usize);
                let x = starts.flat_map(|start| {
                    let words = (0..shared / of_row).step_by(per_word as usize);
                    words.map(move |word| start + own + word)
                });
                let x: Vec<u32> = x.collect();
                let lane_words = lane_words(&plan.native, bytes, (lane, lanes));
                let registers = decode(&plan.dequant, &lane_words);
                // Registers are numbered by the first of their codes: units, then fragments.
                let numbered = number_registers(&plan.dequant, registers);
                for (register, word) in numbered.into_iter().enumerate() {
                    for element in 0..per_word {
                        let (of_step, step) =
                            (register as u32 % sizes[1], register as u32 / sizes[1]);
                        let point = fragment.point(&[element, of_step, lane as u32]);
                        let n = tile * 16 + u64::from(point.n);
                        let of_x = (step * of_a + rank(of_step)) as usize;
                        let of_x = plan.native.in_order_of_columns(of_x);
                        let k = first + u64::from(x[of_x] + element);
                        let bits_of = word >> (operand.bits() * element) & operand.number().mask();
                        let found = operand.number().decode(bits_of);
                        let (add, exponent) = plan.dequant.encoding();
                        let code = code(n, k, bits);
                        let wanted = plan.dequant.weight.decode(code) + f64::from(add);
                        let wanted = wanted * 2f64.powi(exponent);
                        let same = found == wanted || found.is_nan() && wanted.is_nan();
                        assert!(
                            same,
                            "{weight} {activation} {name}: w[{n}, {k}] lane {lane} register {register}: {found}, not {wanted}"
                        );
                    }
                }
            }
        }
    }
}

/// What `ldmatrix` loads of the same bytes: matrix i has the 16 bytes of lanes (g, i), of which word t goes to
/// register i of lane (g, t). Decoded, the registers are whole fragments in the order of x: of 16-bit operands
/// with 4-bit codes one a register, of narrower codes several, 64 columns apart, of wider ones one in two. Codes
/// whose bits are in words of several planes are loaded from each.
#[test]
fn ldmatrix_loads_fragments_in_the_order_of_x() {
    const A16: &str = "[k:2 ; n/8:2, k/8:2 ; k/2:4, n:8]";
    const A8: &str = "[k:4 ; n/8:2, k/16:2 ; k/4:4, n:8]";
    let i8 = "i8 { scale: f32 per token }";
    for (weight, activation, name, fragment, group) in [
        ("u1", "bf16", "sm_90a", A16, 256),
        ("u2", "bf16", "sm_90a", A16, 128),
        ("u4", "bf16", "sm_90a", A16, 128),
        ("u4", "bf16", "sm_80", A16, 64),
        ("i4", "f16", "sm_90a", A16, 128),
        ("u8", "bf16", "sm_90a", A16, 128),
        ("i8", "f16", "sm_90a", A16, 32),
        ("e4m3", "bf16", "sm_90a", A16, 128),
        ("e2m1", "bf16", "sm_90a", A16, 128),
        ("e2m1", "f16", "sm_90a", A16, 64),
        ("e2m3", "bf16", "sm_90a", A16, 256),
        ("e3m2", "bf16", "sm_80", A16, 128),
        ("e3m2", "f16", "sm_90a", A16, 128),
        ("i2", i8, "sm_90a", A8, 128),
        ("i4", i8, "sm_90a", A8, 64),
    ] {
        let plan = plan_of(&scheme_in_groups(weight, activation, group), name).unwrap();
        let fragment = parse_fragment(fragment).unwrap();
        let (_, step) = fragment.extents();
        let (operand, bits) = (plan.compute.product.weight, plan.dequant.weight.code.bits());
        let columns = plan.native.columns;
        let planes = plan.dequant.placed().map_or(1, |sequence| sequence.inputs.len());
        assert_eq!(plan.native.plane_words, vec![4; planes], "{weight} {activation}");
        let shape = Shape { experts: 1, n: 32, k: u64::from(columns) * 2 };
        let bytes = pack(&plan, &bind(&plan, shape), shape);
        for (position, bytes) in bytes.chunks((16 * columns * bits / 8) as usize).enumerate() {
            let (tile, first) = (position as u64 / 2, position as u64 % 2 * u64::from(columns));
            for lane in 0..32 {
                let (row, word) = (lane / 4, lane % 4);
                let all = words(bytes);
                let loaded = (0..4).map(|matrix| {
                    let of_plane = |plane| all[128 * plane + 4 * (4 * row + matrix) + word];
                    (0..planes).map(of_plane).collect::<Vec<u32>>()
                });
                // Of a word of each plane the registers of A; those of a fragment are in one or in several.
                let decoded = loaded
                    .map(|unit| number_registers(&plan.dequant, decode(&plan.dequant, &unit)));
                let decoded: Vec<Vec<u32>> = decoded.collect();
                let fragments: Vec<(usize, Vec<u32>)> = match decoded[0].len() {
                    ..4 => {
                        let all = decoded.concat();
                        all.chunks(4).map(<[u32]>::to_vec).enumerate().collect()
                    }
                    _ => {
                        let word = |(at, registers): (usize, &Vec<u32>)| {
                            let several = registers.chunks(4).map(<[u32]>::to_vec).enumerate();
                            several.map(|(more, a)| (at + 4 * more, a)).collect::<Vec<_>>()
                        };
                        decoded.iter().enumerate().flat_map(word).collect()
                    }
                };
                assert_eq!(fragments.len() as u32, columns / step, "{weight} {activation}");
                for (number, registers) in fragments {
                    for (register, element) in
                        (0..4).flat_map(|at| (0..operand.per_word() as u32).map(move |of| (at, of)))
                    {
                        let point = fragment.point(&[element, register, lane as u32]);
                        let n = tile * 16 + u64::from(point.n);
                        let k = first + u64::from(number as u32 * step + point.k);
                        let found = registers[register as usize] >> (operand.bits() * element);
                        let found = operand.number().decode(found & operand.number().mask());
                        let (add, exponent) = plan.dequant.encoding();
                        let wanted = plan.dequant.weight.decode(code(n, k, bits));
                        let wanted = (wanted + f64::from(add)) * 2f64.powi(exponent);
                        let same = found == wanted || found.is_nan() && wanted.is_nan();
                        assert!(
                            same,
                            "{weight} {activation} {name}: w[{n}, {k}] in lane {lane}, step {number}: \
                             {found}, not {wanted}"
                        );
                    }
                }
            }
        }
    }
}

/// Codes for an instruction that scales stay as they are, each where its fragment has that very
/// column: a column has its scale. Elements of 6 bits go on from word to word, of two steps side by
/// side: three loads of four words.
#[test]
fn a_lane_holds_its_columns_where_products_scale() {
    for (weight, rest, columns, words) in
        [("e2m1", 4, 128, 4), ("e2m3", 2, 256, 12), ("e4m3", 0, 64, 4)]
    {
        let text = format!(
            "s {{ weight: {weight}, scale: e8m0 per 1x32, pack: u8 [code, pad {rest} | k, n], \
             activation: e2m1 {{ scale: e8m0 per 1x32 from pow2 }} }}"
        );
        let scheme = parse(&text.replace(", pad 0 ", " ")).unwrap();
        let plan = plan_of(&scheme, "gfx950").unwrap();
        assert!(plan.compute.product.scaling().is_some() && plan.dequant.stages.is_empty());
        assert_eq!((plan.native.rows, plan.native.columns), (16, columns), "{weight}");
        assert_eq!(plan.native.plane_words, [words], "{weight}");
        let (bits, shape) = (8 - rest, Shape { experts: 1, n: 32, k: 512 });
        let bytes = pack(&plan, &bind(&plan, shape), shape);
        let units = bytes.chunks((16 * columns * bits / 8) as usize);
        let chunks = shape.k / u64::from(columns);
        for (tile, units) in units.collect::<Vec<_>>().chunks(chunks as usize).enumerate() {
            for lane in 0..64 {
                // Word after word of all that the lane loads; a step takes `bits` words of them.
                let held = units.iter().flat_map(|unit| lane_words(&plan.native, unit, (lane, 64)));
                let held: Vec<u32> = held.collect();
                for e in 0..held.len() as u64 * 32 / u64::from(bits) {
                    let (step, e_of_step, quarter) = (e / 32, e % 32, lane as u64 / 16);
                    let k = match bits {
                        8 if e_of_step < 16 => 16 * quarter + e_of_step,
                        8 => 64 + 16 * quarter + (e_of_step - 16),
                        _ => 32 * quarter + e_of_step,
                    };
                    let bit = (e * u64::from(bits)) as usize;
                    let after = held.get(bit / 32 + 1).copied().unwrap_or(0);
                    let both = u64::from(held[bit / 32]) | u64::from(after) << 32;
                    let found = (both >> (bit % 32)) as u32 & ((1 << bits) - 1);
                    let (n, k) = (16 * tile as u64 + lane as u64 % 16, 128 * step + k);
                    assert_eq!(found, code(n, k, bits), "{weight}: w[{n}, {k}], lane {lane}");
                }
            }
        }
    }
}

/// The words of one lane of several in a unit: plane after plane, its words side by side.
fn lane_words(native: &NativeLayout, unit: &[u8], (lane, lanes): (usize, usize)) -> Vec<u32> {
    let mut first = 0;
    let of_plane = |&of_lane: &u32| {
        let bytes = 4 * of_lane as usize;
        let plane = &unit[first..first + lanes * bytes];
        first += lanes * bytes;
        words(&plane[bytes * lane..bytes * (lane + 1)])
    };
    let all: Vec<u32> = native.plane_words.iter().flat_map(of_plane).collect();
    assert_eq!(4 * lanes * all.len(), unit.len(), "planes fill a unit");
    all
}

/// Outputs of a sequence come in the order of its steps; registers are counted by their codes.
fn number_registers(dequant: &DequantPlan, registers: Vec<u32>) -> Vec<u32> {
    let Some(last) = dequant.stages.last() else { return registers };
    let mut order: Vec<usize> = (0..last.outputs.len()).collect();
    order.sort_by_key(|output| last.outputs[*output].codes[0]);
    let unit = |words: &[u32]| order.iter().map(|at| words[*at]).collect::<Vec<_>>();
    registers.chunks(order.len()).flat_map(unit).collect()
}

#[test]
fn what_cannot_be_planned_is_refused_by_name() {
    let refused = |weight: &str, activation: &str, name: &str| {
        plan_of(&scheme(weight, activation), name).unwrap_err()
    };
    assert_eq!(
        refused("u4", "f32", "sm_90a"),
        "sm_90a has no product of u4 weights and f32 activations: x in bf16 or f16 has one"
    );
    let group = |group: u32, activation: &str| {
        let text = format!(
            "s {{ weight: i4, scale: f16 per 1x{group}, pack: [k, n], activation: {activation} }}"
        );
        parse(&text).unwrap()
    };
    for (activation, clause) in [("bf16", "bf16"), ("i8 { scale: f32 per token }", "quantised i8")]
    {
        let why = format!(
            "sm_80 has no product of i4 weights and {clause} activations: what multiplies sums changes \
             every 24 columns, and its products add up 16 at a time; groups of a multiple of 16 columns \
             have one"
        );
        assert_eq!(plan_of(&group(24, activation), "sm_80").unwrap_err(), why);
        plan_of(&group(48, activation), "sm_80").unwrap();
    }
}

/// A codebook of many values is told by the first ones.
#[test]
fn long_codebooks_are_cut_in_messages() {
    let book = |len: usize| WeightCode {
        code: Code::Codebook((0..len).map(|value| (value as f32 * 0.5).to_bits()).collect()),
        offset: 0,
    };
    assert_eq!(brief(&book(4)), "codebook(0, 0.5, 1, 1.5)");
    assert_eq!(brief(&book(256)), "codebook(0, 0.5, 1, ... 256 values)");
    let values = (0..256).map(|value| value.to_string()).collect::<Vec<_>>().join(", ");
    let text = format!(
        "s {{ weight: codebook({values}), scale: f32 per 1x24, pack: [k, n], activation: bf16 }}"
    );
    let why = plan_of(&parse(&text).unwrap(), "sm_80").unwrap_err();
    assert!(why.starts_with("sm_80 has no product of codebook(0, 1, 2, ... 256 values) weights"));
}

/// Where the operand does not hold what codes stand for, the plan says what is lost.
#[test]
fn rounded_values_are_told() {
    let plan = |weight: &str, x: &str, target: &str| {
        let text = format!(
            "s {{ weight: {weight}, scale: f32 per 1x32, pack: u8 [code, pad 6 | k, n], activation: {x} }}"
        );
        plan_of(&parse(&text).unwrap(), target).unwrap()
    };
    const THIRDS: &str = "codebook(-1, -0.3333333, 0.3333333, 1)";
    let rounded = plan(THIRDS, "bf16", "sm_90a");
    let lost = "values are rounded to bf16, by 2.0e-3 of each at most";
    assert_eq!(rounded.rounding().unwrap(), lost);
    assert_eq!(rounded.compute_dtype(), format!("in bf16; {lost}"));
    assert!(rounded.to_string().contains(&format!("instructions a code; {lost}\n")));
    // Codes of x have either type; that with more digits loses less.
    let i8 = plan(THIRDS, "i8 { scale: f32 per token }", "gfx942");
    assert_eq!(i8.compute.product.weight, OperandType::F16);
    let wide = "codebook(-1e20, -1e-20, 1e-20, 1e20)";
    let lost = "values are rounded to f16, whose range is narrower than theirs: the smallest lose \
                digits or become 0";
    assert_eq!(plan(wide, "f16", "sm_80").rounding().unwrap(), lost);
    // Nothing is lost in f32, nor where a scale takes a power of two.
    assert_eq!(plan(wide, "f16", "wgsl").rounding(), None);
    let large = plan("codebook(-98304, -2, 2, 98304)", "f16", "sm_80");
    assert_eq!((large.rounding(), large.dequant.encoding()), (None, (0, -1)));
    assert_eq!(plan("codebook(0, 1, -1, 0)", "bf16", "sm_80").dequant.to_string(), "byte_tables");
}

/// Of RDNA: integers of 4 bits on both sides as they are, but for groups whose sums a lane has no registers for, and weights
/// that no sequence spreads to 4 bits; FP8 of both kinds in all pairs, where the chip has them.
#[test]
fn rdna_multiplies_few_bits_as_they_are() {
    let (i4, e4m3, e5m2) = (
        "i4 { scale: f32 per token }",
        "e4m3 { scale: f32 per token }",
        "e5m2 { scale: f32 per token }",
    );
    for (weight, x, name, group, wanted) in [
        ("i4", i4, "gfx1100", 128, "wmma_s4_copied"),
        ("i2", i4, "gfx1151", 128, "wmma_s4_copied"),
        ("u4", "i2 { scale: f32 per token }", "gfx1200", 256, "wmma_s4"),
        ("i4", i4, "gfx1100", 64, "wmma_s8_copied"),
        ("i4", i4, "gfx1201", 64, "wmma_s8"),
        ("i3", i4, "gfx1201", 128, "wmma_s8"),
        ("i4", "i8 { scale: f32 per token }", "gfx1201", 128, "wmma_s8"),
        ("e5m2", e5m2, "gfx1201", 32, "wmma_e5m2"),
        ("e5m2", e4m3, "gfx1200", 32, "wmma_e5m2_e4m3"),
        ("e4m3", e5m2, "gfx1201", 32, "wmma_e4m3_e5m2"),
        ("e4m3", e4m3, "gfx1201", 32, "wmma_e4m3"),
        ("e5m2", e5m2, "gfx1100", 32, "wmma_f16_copied"),
        ("i4", i4, "gfx950", 128, "mfma_s8_k64"),
    ] {
        let plan = plan_of(&scheme_in_groups(weight, x, group), name).unwrap();
        assert_eq!(plan.compute.product.name, wanted, "{weight} in groups of {group}, {x}, {name}");
    }
}

/// A product that a chip lacks is replaced by a wider one that it has.
#[test]
fn the_next_product_takes_over() {
    let plan = plan_of(&scheme("e2m1", "e4m3 { scale: f32 per token }"), "sm_89").unwrap();
    assert_eq!(
        (plan.compute.product.name, plan.dequant.to_string()),
        ("mma_e4m3", "byte_tables".to_owned())
    );
    let hopper = plan_of(&scheme("e4m3", "e4m3 { scale: f32 per token }"), "sm_90a").unwrap();
    assert_eq!(hopper.compute.product.name, "mma_f16", "decoded by one conversion");
    let amd = plan_of(&scheme("e4m3", "e4m3 { scale: f32 per token }"), "gfx942").unwrap();
    assert_eq!((amd.dequant.to_string(), amd.compute.exponent), ("rebias".to_owned(), -1));
    let why = "in e4m3fnuz, since gfx942 has no product of e4m3 weights and e4m3 activations";
    assert_eq!(amd.compute_dtype(), why);
    let why = "in f16, since sm_90a has no product of e4m3 weights and e4m3 activations";
    assert_eq!(
        (plan.compute_dtype(), hopper.compute_dtype()),
        ("in e4m3".to_owned(), why.to_owned())
    );
    let grouped = "i8 { scale: f32 per 1x32 }";
    let asymmetric = "i8 { zero: i8, scale: f32 per 1x32 }";
    for (weight, x, product) in [
        ("i4", grouped, "dot_u8s8"),
        ("e2m1", grouped, "dot_u8s8"),
        ("i4", asymmetric, "dot_u8s8"),
        ("e2m1", "u8 { scale: f32 per 1x32 }", "dot_u8s8"),
        ("e2m3", grouped, "fma_f32"),
    ] {
        let grouped = plan_of(&scheme(weight, x), "x86").unwrap();
        assert_eq!(grouped.compute.product.name, product, "{weight}, {x}");
    }
}

/// A product scales its operands where both have just its scales; other schemes have other
/// products.
#[test]
fn products_scale_groups_of_theirs_alone() {
    const MX: &str = "scale: e8m0 per 1x32 from pow2";
    let product = |weight: &str, scales: &str, activation: &str, chip: &str| {
        let text = format!(
            "s {{ weight: {weight}, {scales}, pack: u8 [code, pad 4 | k, n], activation: {activation} }}"
        );
        let scheme = parse(&text).unwrap_or_else(|faults| panic!("{text}\n{faults}"));
        plan_of(&scheme, chip).unwrap().compute.product
    };
    let x = format!("e2m1 {{ {MX} }}");
    let scaled = product("e2m1", MX, &x, "gfx950");
    assert_eq!((scaled.name, scaled.scaling().is_some()), ("mfma_scale_e2m1_e2m1", true));
    let also = format!("{MX}, scale: f32 per channel");
    assert!(product("e2m1", &also, &x, "gfx950").scaling().is_some());
    let (fine, coarse) = (MX.replace("32", "16"), MX.replace("32", "64"));
    let shifted = format!("{MX}, shift: f32 per channel");
    let other = [
        ("e2m1", MX, x.as_str(), "gfx942"),
        ("e2m1", MX, &x, "sm_90a"),
        ("e2m1", MX, "bf16", "gfx950"),
        ("e2m1", &fine, &x, "gfx950"),
        ("e2m1", &coarse, &x, "gfx950"),
        ("e2m1", "scale: e4m3 per 1x32", &x, "gfx950"),
        ("e2m1", "scale: divide e8m0 per 1x32 from pow2", &x, "gfx950"),
        ("e2m1", &shifted, &x, "gfx950"),
        ("u4", MX, &x, "gfx950"),
        ("e2m1", MX, "e2m1 { scale: e8m0 per 1x64 from pow2 }", "gfx950"),
        ("e2m1", MX, "e2m1 { scale: bf16 per 1x32 }", "gfx950"),
        ("e2m1", MX, "e4m3 { scale: f32 per token }", "gfx950"),
        ("e2m1", MX, "i4 { scale: e8m0 per 1x32 from pow2 }", "gfx950"),
    ];
    for (weight, scales, activation, chip) in other {
        let product = product(weight, scales, activation, chip);
        let what = format!("{weight} {scales} {activation} {chip}: {}", product.name);
        assert!(product.scaling().is_none(), "{what}");
    }
}

/// Classes are rows of a table each: none is forgotten.
#[test]
fn every_class_has_a_row_of_costs() {
    use quantloom_codegen::plan::cost::COSTS;
    for target in TARGETS {
        assert_eq!(COSTS.iter().filter(|row| row.class == target.class).count(), 1, "{target}");
    }
    assert!(TARGETS.iter().filter(|target| target.class == Class::Lanes).count() == 3);
}
