//! `mma` with block scales: a second transcription of the documents' layouts, which the rows of the table and the
//! simulator are held to, and rows with one mistake, all of which it finds.

use std::sync::LazyLock;

use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::{
    Access, Accumulator, Address, Builder, Element, Extent, Kernel, LaunchConfig, MATRIX_OPS,
    MatrixOp, MatrixScale, Reg, Special, Type, Verified, Width, Word, verify,
};
use quantloom_codegen::plan::plan;
use quantloom_codegen::sim::{Arguments, Contents, SimulationOptions, run};
use quantloom_codegen::target::{ScaleCode, ScaleLanes, Scaling, target};
use quantloom_dsl::format::{E2M1, E2M3, E3M2, E4M3, FloatFormat, Variant};
use quantloom_dsl::layout::Point;
use quantloom_dsl::{parse, parse_fragment};

use crate::kernels::product::Random;
use crate::matrix_rows::exchanged;

fn rows() -> Vec<&'static MatrixOp> {
    MATRIX_OPS.iter().filter(|row| row.name.starts_with("mma.scale.")).collect()
}

/// Where an element of A is by the documents: its register, its first bit there, its lane. PTX ISA, "Matrix Fragments for
/// mma.m16n8k32" (8 bits) and "for mma.m16n8k64" (4 bits): of a lane's elements a_i, row = groupID for the first e of
/// each 2e, else groupID + 8, where e elements are a register; col = e threadID_in_group + i mod e, and half of K more in
/// the second 2e.
fn place_of_a(bits: u32, row: u32, k: u32) -> [u32; 3] {
    let e = 32 / bits;
    let (group, upper) = (row % 8, row / 8);
    let (second, in_half) = (k / (4 * e), k % (4 * e));
    [2 * second + upper, bits * (in_half % e), 4 * group + in_half / e]
}

/// The same of B: col = groupID, row = e threadID_in_group + i mod e, half of K more in the second e.
fn place_of_b(bits: u32, column: u32, k: u32) -> [u32; 3] {
    let e = 32 / bits;
    let (second, in_half) = (k / (4 * e), k % (4 * e));
    [second, bits * (in_half % e), 4 * column + in_half / e]
}

/// Of D, for all shapes: row = groupID for c0 and c1, groupID + 8 for c2 and c3; col = 2 threadID_in_group + i mod 2.
fn place_of_d(row: u32, column: u32) -> [u32; 2] {
    [2 * (row / 8) + column % 2, 4 * (row % 8) + column / 2]
}

/// The lane and the byte, from byte-id on, of a scale for thread-id 0: of A, lanes 0 and 1 of a quad have rows groupID and
/// groupID + 8; of B, lane 0 has column groupID (CUTLASS, SFALayout `((2, 2, 8), K) : ((8, 0, 1), 16)` and SFBLayout
/// `((4, 8), K) : ((0, 1), 8)`).
fn place_of_scale(of_a: bool, row: u32, block: u32) -> [u32; 2] {
    [4 * (row % 8) + if of_a { row / 8 } else { 0 }, block]
}

/// Columns of a scale by the qualifier: the step divided by 1, 2 or 4.
fn columns_of_scale(row: &MatrixOp) -> u32 {
    let parts = [("::1X", 1), ("::2X", 2), ("::4X", 4)];
    let found = parts.iter().find(|(text, _)| row.mnemonic.contains(text)).unwrap();
    row.shape[2] / found.1
}

/// The first difference of a row from the documents.
fn differs(row: &MatrixOp) -> Option<String> {
    let [m, n, k] = row.shape;
    if k * row.a.bits() != 256 || row.a.bits() != row.b.bits() || row.registers(32) != [4, 2, 4] {
        return Some(format!("{}: operands of 256 bits a row", row.name));
    }
    let layouts = [row.a_layout, row.b_layout, row.d_layout];
    let [a, b, d] = layouts.map(|text| parse_fragment(text).unwrap());
    let bits = row.a.bits();
    for k in 0..k {
        for row_of_a in 0..m {
            let [element, register, lane] = a.place(Point { n: row_of_a, k })[..] else { panic!() };
            if [register, bits * element, lane] != place_of_a(bits, row_of_a, k) {
                return Some(format!("{}: A[{row_of_a}, {k}]", row.name));
            }
        }
        for column in 0..n {
            let [element, register, lane] = b.place(Point { n: column, k })[..] else { panic!() };
            if [register, bits * element, lane] != place_of_b(bits, column, k) {
                return Some(format!("{}: B[{k}, {column}]", row.name));
            }
        }
    }
    for (row_of_d, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
        let [_, register, lane] = d.place(Point { n: row_of_d, k: column })[..] else { panic!() };
        if [register, lane] != place_of_d(row_of_d, column) {
            return Some(format!("{}: D[{row_of_d}, {column}]", row.name));
        }
    }
    let Some(scaling) = row.scaling else { return Some(format!("{}: no scales", row.name)) };
    if scaling.columns != columns_of_scale(row) {
        return Some(format!("{}: columns of a scale", row.name));
    }
    for (of_a, lanes, rows) in [(true, scaling.a, m), (false, scaling.b, n)] {
        let layout = parse_fragment(lanes.layout).unwrap();
        if layout.extents() != (rows, k / scaling.columns) {
            return Some(format!("{}: extents of scales", row.name));
        }
        for (row_of, block) in (0..rows).flat_map(|r| (0..k / scaling.columns).map(move |b| (r, b)))
        {
            let [byte, register, lane] = layout.place(Point { n: row_of, k: block })[..] else {
                panic!()
            };
            if register != 0 || [lanes.lane(lane), byte] != place_of_scale(of_a, row_of, block) {
                return Some(format!("{}: scale {row_of}, {block} (of A: {of_a})", row.name));
            }
        }
    }
    None
}

#[test]
fn rows_are_the_documents_formulas() {
    assert_eq!(rows().len(), 26);
    let wrong: Vec<String> = rows().into_iter().filter_map(differs).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The types and kinds of the instruction's text are those of the row.
    for row in rows() {
        let scaling = row.scaling.unwrap();
        let (kind, code) = match (row.a.bits(), scaling.code) {
            (8, ScaleCode::E8m0) => ("kind::mxf8f6f4.", ".ue8m0"),
            (4, ScaleCode::E8m0) => ("kind::mxf4.", ".ue8m0"),
            (_, _) => ("kind::mxf4nvf4.", ".ue4m3"),
        };
        let types = format!(".f32.{}.{}.f32{code}", name_of(row.a), name_of(row.b));
        assert!(row.mnemonic.contains(kind) && row.mnemonic.ends_with(&types), "{}", row.mnemonic);
        let [m, n, k] = row.shape;
        assert!(row.mnemonic.contains(&format!(".m{m}n{n}k{k}.row.col.")), "{}", row.mnemonic);
    }
}

fn name_of(element: Element) -> &'static str {
    match element {
        Element::E2m1 | Element::PaddedE2m1 => "e2m1",
        Element::PaddedE2m3 => "e2m3",
        Element::PaddedE3m2 => "e3m2",
        Element::E4m3 => "e4m3",
        Element::E5m2 => "e5m2",
        other => panic!("{other:?}"),
    }
}

/// Rows with one mistake: two digits of an operand's, the result's or the scales' lane map exchanged, scales from other
/// lanes, scales of A and B exchanged, another number of columns.
fn mistaken(row: &MatrixOp) -> Vec<MatrixOp> {
    let leaked = |text: String| -> &'static str { text.leak() };
    let scaling = row.scaling.unwrap();
    let mut all = Vec::new();
    for layout in exchanged(row.a_layout).into_iter().map(leaked) {
        all.push(MatrixOp { a_layout: layout, ..*row });
    }
    for layout in exchanged(row.b_layout).into_iter().map(leaked) {
        all.push(MatrixOp { b_layout: layout, ..*row });
    }
    for layout in exchanged(row.d_layout).into_iter().map(leaked) {
        all.push(MatrixOp { d_layout: layout, ..*row });
    }
    let with = |scaling: Scaling| MatrixOp { scaling: Some(scaling), ..*row };
    for layout in exchanged(scaling.a.layout).into_iter().map(leaked) {
        all.push(with(Scaling { a: ScaleLanes { layout, ..scaling.a }, ..scaling }));
    }
    for bits in [0b11110, 0b01111, 0b10111, 0b11011] {
        all.push(with(Scaling { a: ScaleLanes { bits, ..scaling.a }, ..scaling }));
    }
    for bits in [0b11010, 0b00111, 0b01110, 0b11001] {
        all.push(with(Scaling { b: ScaleLanes { bits, ..scaling.b }, ..scaling }));
    }
    all.push(with(Scaling { a: scaling.b, b: scaling.a, ..scaling }));
    all.push(with(Scaling { columns: scaling.columns / 2, ..scaling }));
    all.push(MatrixOp { scaling: None, ..*row });
    all
}

#[test]
fn wrong_lanes_are_found() {
    let mut tried = 0;
    for wrong in rows().into_iter().flat_map(mistaken) {
        assert!(differs(&wrong).is_some(), "{wrong:?}");
        tried += 1;
    }
    assert!(tried >= 26 * 20, "{tried}");
}

/// The value of an element's code, by the formats and not by the simulator.
fn value(element: Element, bits: u32) -> f64 {
    static E5M2: LazyLock<FloatFormat> = LazyLock::new(|| FloatFormat::new(5, 2, Variant::Ieee));
    match element {
        Element::E2m1 => E2M1.decode(bits & 0xf),
        // The PTX ISA pads e2m1 with two bits on either side, and 6 bits with two above.
        Element::PaddedE2m1 => E2M1.decode(bits >> 2 & 0xf),
        Element::PaddedE2m3 => E2M3.decode(bits & 0x3f),
        Element::PaddedE3m2 => E3M2.decode(bits & 0x3f),
        Element::E4m3 => E4M3.decode(bits & 0xff),
        Element::E5m2 => E5M2.decode(bits & 0xff),
        other => panic!("{other:?}"),
    }
}

/// Words of a lane of A, B, and of the two registers of scales.
const OF_LANE: u32 = 8;

/// D = A B + 0 by a row, with the scales from a byte on; D is written as a lane holds it.
fn kernel(row: &'static MatrixOp, byte: u8) -> Verified<Kernel> {
    let chip = target("sm_120a").unwrap();
    let launch = LaunchConfig {
        grid: [Extent::Constant(1); 3],
        threads: 32,
        min_blocks: 1,
        cluster: 1,
        programmatic: false,
    };
    let mut b = Builder::new("scaled", "A product of blocks with scales.", chip, launch);
    let words = |of_lane| [Extent::Constant(32 * of_lane)];
    let x = b.buffer("x", Word::U32, Access::ReadOnly, &words(OF_LANE), "A, B, scales");
    let y = b.buffer("y", Word::U32, Access::WriteOnce, &words(4), "D");
    let lane = b.special(Special::Lane);
    let (own, to) = (b.mul(lane, OF_LANE), b.mul(lane, 4u32));
    let words: Vec<Reg> =
        [0, 4].iter().flat_map(|at| b.load(Address::new(x, own).plus(*at), Width::B128)).collect();
    let d = b.fragment(Type::F32, 4);
    let scales = [6, 7].map(|at| MatrixScale { from: words[at], byte });
    b.matrix_scaled(row, &d, (&words[..4], &words[4..6]), Accumulator::Zero, scales);
    let values: Vec<_> = d.iter().map(|reg| (*reg).into()).collect();
    b.store(Address::new(y, to), &values, Width::B128, None);
    verify(b.finish()).unwrap_or_else(|refusals| panic!("{refusals}"))
}

/// Runs a row on random words; the D of the simulator, and by the documents.
fn compared(
    row: &'static MatrixOp,
    byte: u8,
    words: &[u32],
) -> Result<(Vec<f32>, Vec<f32>), String> {
    let buffers = vec![Contents::from_words(words), Contents::poison(4 * 4 * 32)];
    let mut arguments = Arguments { parameters: vec![], buffers };
    let ran = run(&kernel(row, byte), &mut arguments, &SimulationOptions::default());
    ran.map_err(|fault| fault.to_string())?;
    let found = arguments.buffers[1].words();
    let [m, n, k] = row.shape;
    let (bits, columns) = (row.a.bits(), columns_of_scale(row));
    let word = |lane: u32, at: u32| words[(lane * OF_LANE + at) as usize];
    let number = row.scaling.unwrap().code.number();
    let scale = |of_a: bool, row: u32, block: u32| {
        let [lane, at] = place_of_scale(of_a, row, block);
        let word = word(lane, if of_a { 6 } else { 7 });
        number.decode(word >> (8 * (u32::from(byte) + at)) & 0xff)
    };
    let mut pairs = (Vec::new(), Vec::new());
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        let product = |k: u32| {
            let [register, bit, lane] = place_of_a(bits, i, k);
            let a = value(row.a, word(lane, register) >> bit);
            let [register, bit, lane] = place_of_b(bits, j, k);
            let b = value(row.b, word(lane, 4 + register) >> bit);
            a * b * scale(true, i, k / columns) * scale(false, j, k / columns)
        };
        let [register, lane] = place_of_d(i, j);
        pairs.0.push(f32::from_bits(found[(4 * lane + register) as usize]));
        pairs.1.push((0..k).map(product).sum::<f64>() as f32);
    }
    Ok(pairs)
}

/// Random words whose scales are near 1, also in the bytes and lanes that the instruction does not read; bytes of FP8
/// without infinities and NaN, padding of any bits.
fn words(row: &MatrixOp, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    let mut words = Vec::new();
    for at in 0..32 * OF_LANE {
        let draw = random.next() as u32;
        let element = if at % OF_LANE < 4 { row.a } else { row.b };
        words.push(match (at % OF_LANE, row.scaling.unwrap().code) {
            (6 | 7, ScaleCode::E8m0) => 0x7c7c_7c7c + (draw & 0x0707_0707),
            (6 | 7, ScaleCode::UnsignedE4m3) => 0x3030_3030 + (draw & 0x0f0f_0f0f),
            _ => match element {
                Element::E4m3 => draw & 0xbfbf_bfbf,
                Element::E5m2 => draw & 0x9f9f_9f9f | 0x2020_2020,
                _ => draw,
            },
        });
    }
    words
}

#[test]
fn the_simulator_multiplies_as_the_documents_say() {
    for row in rows() {
        let of_lane = row.lane_scales();
        for byte in (0..4u8).step_by(of_lane as usize) {
            let (found, expected) = compared(row, byte, &words(row, u64::from(byte) + 7)).unwrap();
            // Sums are exact in f64, whatever the order, and are rounded once.
            assert_eq!(found, expected, "{}, byte {byte}", row.name);
            assert!(found.iter().filter(|value| **value != 0.0).count() > 100, "{}", row.name);
        }
    }
}

/// NaN in a scale of A makes a row of D NaN, in one of B a column; what no lane supplies is not read. A sign of an unsigned
/// scale is refused: what the chip takes it for is not published.
#[test]
fn special_scales_of_blocks() {
    for row in rows() {
        let (nan, scaling) = (0xffu32, row.scaling.unwrap());
        let nan = if scaling.code == ScaleCode::E8m0 { nan } else { nan & 0x7f };
        assert!(scaling.code.number().decode(nan).is_nan());
        let plain = words(row, 3);
        let set = |lane: u32, register: u32, byte: u32| {
            let mut words = plain.clone();
            let word = &mut words[(lane * OF_LANE + register) as usize];
            *word = *word & !(0xff << (8 * byte)) | nan << (8 * byte);
            words
        };
        let is_nan = |words: &[u32]| {
            let (found, expected) = compared(row, 0, words).unwrap();
            let nans = |of: &[f32]| of.iter().map(|value| value.is_nan()).collect::<Vec<_>>();
            assert_eq!(nans(&found), nans(&expected), "{}", row.name);
            let at = |(at, value): (usize, &f32)| value.is_nan().then_some((at / 8, at % 8));
            found.iter().enumerate().filter_map(at).collect::<Vec<_>>()
        };
        let row_11: Vec<_> = (0..8).map(|column| (11, column)).collect();
        assert_eq!(is_nan(&set(13, 6, 0)), row_11, "{}", row.name);
        let column_5: Vec<_> = (0..16).map(|row| (row, 5)).collect();
        assert_eq!(is_nan(&set(20, 7, 0)), column_5, "{}", row.name);
        for (lane, register) in [(14, 6), (15, 6), (21, 7), (22, 7), (23, 7)] {
            assert_eq!(is_nan(&set(lane, register, 0)), [], "{}", row.name);
        }
        if row.lane_scales() < 4 {
            assert_eq!(is_nan(&set(13, 6, 3)), [], "{}", row.name);
        }
        if scaling.code == ScaleCode::UnsignedE4m3 {
            let mut signed = plain.clone();
            signed[(4 * OF_LANE + 6) as usize] |= 0x8000;
            let why = compared(row, 0, &signed).unwrap_err();
            assert!(why.contains("top bit"), "{why}");
        }
    }
}

/// The text names the byte of the first scale, and thread 0.
#[test]
fn scales_are_operands_of_the_text() {
    let row = |name: &str| rows().into_iter().find(|row| row.name == name).unwrap();
    for (name, byte) in [("mma.scale.m16n8k32.e4m3.e2m1", 3), ("mma.scale.m16n8k64.e2m1", 2)] {
        let text = ptx::emit(&kernel(row(name), byte)).unwrap();
        let line = text.lines().find(|line| line.contains("mma.sync")).unwrap();
        assert!(line.contains(row(name).mnemonic), "{line}");
        assert_eq!(line.matches(&format!("}}, {{{byte}, 0}}")).count(), 2, "{line}");
    }
}

/// The products of the schemes on the chips, with the name's suffix and without it.
#[test]
fn only_the_chips_own_targets_have_them() {
    for (scheme, own, other) in [
        ("ct_mxfp8", "mma_scale_e4m3_e4m3", Some("mma_e4m3")),
        ("ct_mxfp4", "mma_scale_e2m1_ue8m0", None),
        ("ct_nvfp4", "mma_scale_e2m1_ue4m3", None),
        ("modelopt_nvfp4", "mma_scale_e2m1_ue4m3", None),
        ("ct_mxfp6a8", "mma_scale_e2m3_e4m3", None),
        ("ct_w4a16", "mma_bf16", Some("mma_bf16")),
        ("fp8_block", "mma_e4m3", Some("mma_e4m3")),
    ] {
        let scheme = crate::kernels::products::catalogue()
            .into_iter()
            .find(|one| one.name == scheme)
            .unwrap_or_else(|| panic!("{scheme}"));
        let product = |name: &str| {
            let plan = plan(&scheme, &scheme.activations[0], target(name).unwrap()).unwrap();
            plan.compute.product
        };
        for name in ["sm_120a", "sm_121a"] {
            assert_eq!(product(name).name, own, "{} on {name}", scheme.name);
        }
        // sm_100a has some of them in tensor memory.
        let in_tensor_memory = match own {
            "mma_scale_e4m3_e4m3" => "tcgen05_scale_e4m3",
            "mma_scale_e2m1_ue8m0" => "tcgen05_scale_e2m1_ue8m0",
            "mma_scale_e2m1_ue4m3" => "tcgen05_scale_e2m1_ue4m3",
            // The FP8 product of registers is emulated there, as on Hopper.
            "mma_e4m3" => product("sm_90a").name,
            _ => product("sm_89").name,
        };
        for name in ["sm_100a", "sm_103a"] {
            assert_eq!(product(name).name, in_tensor_memory, "{} on {name}", scheme.name);
        }
        // sm_120 has the products of sm_89.
        assert_eq!(product("sm_120"), product("sm_89"), "{}", scheme.name);
        assert!(product("sm_120").scaling().is_none(), "{}", scheme.name);
        assert!(other.is_none_or(|other| product("sm_120").name == other), "{}", scheme.name);
    }
}

/// Scales of NVFP4 may have signs, which go into the codes: see `the_device_packs_codes_that_products_scale`. x has one
/// more level at most that the product leaves to the epilogue: static, of all of x.
#[test]
fn levels_that_the_instruction_does_not_take_are_of_all_of_x() {
    let product = |x: &str| {
        let text = format!(
            "s {{ weight: e2m1, scale: e4m3 per 1x16, pack: u8 [k:2 | k, n], activation: e2m1 {{ {x} }} }}"
        );
        let scheme = parse(&text).unwrap_or_else(|faults| panic!("{text}\n{faults}"));
        let plan = plan(&scheme, &scheme.activations[0], target("sm_120a").unwrap()).unwrap();
        (plan.compute.product.scaling().is_some(), plan.scale.input_in_channel_scale())
    };
    assert_eq!(product("scale: e4m3 per 1x16"), (true, false));
    let fixed = "scale: e4m3 per 1x16, scale: f32 per tensor from amax / 2688 static";
    assert_eq!(product(fixed), (true, true));
    let dynamic = "scale: e4m3 per 1x16, scale: f32 per tensor from amax / 2688";
    assert!(!product(dynamic).0);
    assert!(!product("scale: e4m3 per 1x16, scale: f32 per token from amax / 2688").0);
    assert!(!product("scale: e5m2 per 1x16").0);
    assert!(!product("scale: e4m3 per 1x32").0);
}
