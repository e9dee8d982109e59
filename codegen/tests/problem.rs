//! What a scheme becomes for its schedules: k-tiles and segments of columns, the group parameters that
//! products read, the operand of x.

use crate::kernels::products::catalogue;
use quantloom_codegen::plan::{OperandType, plan};
use quantloom_codegen::schedule::{
    ByteFragments, Chosen, GroupParams, InputScale, MainLoop, Order, ParamKind, Problem,
};
use quantloom_codegen::target::target;
use quantloom_dsl::BufferRole::{self, CoarseCorrection, CoarseScale, Correction, Scale};
use quantloom_dsl::format::{F16, Number};
use quantloom_dsl::parse;

fn params(name: &str, of: Option<GroupParams>) -> Option<String> {
    let GroupParams { kind, number, rows, columns, .. } = of?;
    let computed = if matches!(kind, ParamKind::Stored(_)) { "" } else { "computed " };
    Some(format!("{computed}{name} {number} {rows}x{columns}"))
}

fn described(problem: &Problem) -> String {
    let of = |there: bool, name: &str| there.then(|| name.to_owned());
    let numbers = [
        params(if problem.scales_sums() { "scale" } else { "weight scale" }, problem.scale),
        params("zero", problem.zero),
        params("correction", problem.correction),
        of(problem.channel_scale, "channel scale"),
        of(problem.bias, "bias"),
    ];
    let numbers: Vec<String> = numbers.into_iter().flatten().collect();
    let input = problem.input;
    let made = if input.prepared { "made, " } else { "" };
    let scale = input.scale.map(|scale| format!(", {scale:?}")).unwrap_or_default();
    format!(
        "{} of {}; {}; x {made}{} {}{scale}",
        problem.k_tile(),
        MainLoop::new(problem).segment(),
        numbers.join(", "),
        input.operand,
        input.columns,
    )
}

/// Weight, group parameters, x, target; whether elements of x have their finest scale.
const FOLDED: &[(&str, &str, &str, &str, bool)] = &[
    ("e2m1", "scale: e8m0 per 1x32", "e2m1 { scale: e8m0 per 1x32 }", "sm_90a", true),
    ("e2m1", "scale: e8m0 per 1x32", "e2m1 { scale: e8m0 per 1x32 }", "gfx1100", true),
    (
        "e2m1",
        "scale: e4m3 per 1x16",
        "e2m1 { scale: e4m3 per 1x16, scale: f32 per token }",
        "sm_80",
        true,
    ),
    ("e4m3", "scale: f32 per 128x128", "e4m3 { scale: e8m0 per 1x128 }", "sm_80", true),
    // Although e4m3 is decoded to f16 at a lower price.
    ("e4m3", "scale: f32 per 1x32", "e4m3 { scale: e8m0 per 1x32 }", "sm_90a", true),
    // A group is one warp's; what stands for a warp in a shader has 16 lanes of 8 columns.
    ("u4 - 8", "scale: bf16 per 1x32", "e4m3 { scale: e8m0 per 1x256 }", "sm_90a", true),
    ("u4 - 8", "scale: bf16 per 1x32", "e4m3 { scale: e8m0 per 1x128 }", "wgsl", true),
    ("u4 - 8", "scale: bf16 per 1x32", "e4m3 { scale: e8m0 per 1x256 }", "wgsl", false),
    // The instruction scales.
    (
        "e2m1",
        "scale: e8m0 per 1x32",
        "e2m1 { scale: e8m0 per 1x32 from pow2 above 1.75 }",
        "sm_120a",
        false,
    ),
    // x is in another order, or its groups are not those of its quantiser.
    ("e2m1", "scale: e8m0 per 1x32, index: i32", "e2m1 { scale: e8m0 per 1x32 }", "sm_90a", false),
    ("u4 - 8", "scale: f16 per 1x48", "e2m1 { scale: e8m0 per 1x32 }", "sm_90a", false),
    // Products are no bf16.
    ("e4m3", "scale: f32 per channel", "e4m3 { scale: f32 per 1x128 }", "sm_80", false),
];

#[test]
fn elements_of_x_have_their_scale_where_that_is_exact() {
    for &(weight, numbers, x, chip, expected) in FOLDED {
        let text = format!(
            "s {{ weight: {weight}, {numbers}, pack: u32 [k:* | w, n], activation: {x}, output: bf16 }}"
        );
        let scheme = parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults:?}"));
        let target = target(chip).unwrap();
        let problem = Problem::new(&scheme, &scheme.activations[0], target, (1000, 1024));
        let problem = problem.unwrap_or_else(|why| panic!("{text} on {chip}: {why}"));
        assert_eq!(problem.plan.compute.folds_input, expected, "{text} on {chip}");
        if scheme.index.is_some() {
            let plan = plan(&scheme, &scheme.activations[0], target).unwrap();
            assert!(!plan.compute.folds_input, "{text}: what `show` prints");
        }
        let along_k = problem.input.scale.and_then(InputScale::columns).is_some();
        assert_eq!(along_k, !expected, "{text} on {chip}");
    }
}

/// Scheme, number of its activation, and with K = 1000 on Hopper: columns of a k-tile and of a segment,
/// numbers with their types and groups, whether a kernel makes the operand of x, its type, columns
/// and scales.
const PROBLEMS: &[(&str, usize, &str)] = &[
    ("ct_w4a16", 0, "128 of 128; scale bf16 1x128; x bf16 1000"),
    ("ct_w4a16_bias", 0, "128 of 128; scale f16 1x128, bias; x bf16 1000"),
    // Groups shorter than a chunk: their scales round weights. Of f16 and bf16 there is no such product: four segments a
    // k-tile.
    ("ct_mxint4", 0, "128 of 128; weight scale bf16 1x32; x bf16 1000"),
    ("ct_mxint4", 1, "128 of 32; scale bf16 1x32; x f16 1000"),
    // Zero points are subtracted from codes where the type of x holds the differences exactly.
    ("awq4", 0, "128 of 128; scale f16 1x128, zero f16 1x128; x f16 1000"),
    ("gptq8_v2", 0, "64 of 64; scale f16 1x128, zero f16 1x128; x f16 1000"),
    ("gptq8_v2", 1, "64 of 64; scale f16 1x128, zero bf16 1x128; x bf16 1000"),
    // Columns are sorted into whole k-tiles.
    ("gptq4_v1_actorder", 0, "128 of 128; scale f16 1x128, zero f16 1x128; x made, f16 1024"),
    // What does not change along K is a per-channel scale.
    ("ct_nvfp4a16", 0, "128 of 128; weight scale e4m3 1x16, channel scale; x bf16 1000"),
    ("ct_mxfp4a16", 0, "128 of 128; weight scale e8m0 1x32; x bf16 1000"),
    // f16 does not have the exponents of e8m0.
    ("ct_mxfp4a16", 1, "128 of 32; scale e8m0 1x32; x f16 1000"),
    // Scales of groups of x are in its elements, and the static one of all of x is one of each row.
    (
        "modelopt_nvfp4",
        0,
        "128 of 128; weight scale e4m3 1x16, channel scale; x made, bf16 1024, Row",
    ),
    ("ct_mxfp4", 0, "128 of 128; weight scale e8m0 1x32; x made, bf16 1024"),
    ("fp8_block", 0, "64 of 64; scale f32 128x128; x made, f16 1024, Columns(128)"),
    ("ct_fp8", 0, "64 of 64; channel scale; x made, f16 1024, Row"),
    // Integer products; of short groups of w, floats.
    ("quark_w8a8_int8_channel", 0, "128 of 128; channel scale; x made, i8 1024, Row"),
    ("ct_w4a8", 0, "128 of 128; scale bf16 1x128; x made, i8 1024, Row"),
    ("arm_w4a8_g32", 0, "128 of 128; weight scale bf16 1x32, bias; x made, bf16 1024, Row"),
];

/// Scales multiply weights, and round them, on Hopper alone, in groups shorter than a chunk or of 32 columns, and as long
/// as a lane's columns at least, with x in bf16: a scale of bf16 once, other scales and what is added to weights in parts.
#[test]
fn scales_round_weights_of_short_groups_on_hopper() {
    let bf16 = "bf16";
    for (weight, numbers, x, chip, expected) in [
        ("u4 - 8", "scale: bf16 per 1x32", bf16, "sm_90a", true),
        ("u4 - 8", "scale: bf16 per 1x16", bf16, "sm_90a", true),
        ("i4", "scale: bf16 per 1x32, scale: f32 per tensor", bf16, "sm_90a", true),
        ("u2 - 2", "scale: bf16 per 1x64", bf16, "sm_90a", true),
        ("u8 - 128", "scale: bf16 per 1x16", bf16, "sm_90a", true),
        ("u4 - 8", "scale: f16 per 1x32", bf16, "sm_90a", true),
        ("u4", "shift: f16, scale: f16 per 1x32", bf16, "sm_90a", true),
        ("u4", "zero: u4 u32 [n:8 | n, g], scale: bf16 per 1x32", bf16, "sm_90a", true),
        ("u4 - 8", "scale: bf16 per 1x32, scale: bf16 per 1x64", bf16, "sm_90a", true),
        ("codebook(-3, -1, 1, 4)", "scale: f16 per 1x32", bf16, "sm_90a", true),
        ("codebook(0.1, 0.2, 0.3, 0.4)", "scale: f16 per 1x32", bf16, "sm_90a", false),
        ("u4 - 8", "scale: f16 per 1x32", "f16", "sm_90a", false),
        ("u4 - 8", "scale: f16 per 1x64", bf16, "sm_90a", false),
        ("u4", "shift: f16, scale: f16 per 1x32", bf16, "sm_89", false),
        // Others have exact sums.
        ("i4", "scale: bf16 per 1x64", "i8 { scale: f32 per token }", "sm_90a", false),
        ("u4 - 8", "scale: bf16 per 1x32", bf16, "sm_80", false),
        ("u4 - 8", "scale: bf16 per 1x32", bf16, "gfx942", false),
        ("u4 - 8", "scale: bf16 per 1x64", bf16, "sm_90a", false),
        ("u8 - 128", "scale: bf16 per 1x32", bf16, "sm_90a", true),
        ("u8 - 128", "scale: bf16 per 1x64", bf16, "sm_90a", false),
        // Codes in planes.
        ("u3 - 4", "scale: bf16 per 1x32", bf16, "sm_90a", true),
        ("u6 - 32", "scale: f16 per 1x32", bf16, "sm_90a", true),
        ("u6 - 32", "scale: bf16 per 1x32, scale: bf16 per 1x64", bf16, "sm_90a", true),
        ("u5", "shift: f16, scale: f16 per 1x32", bf16, "sm_90a", true),
        ("u5", "shift: f16, scale: f16 per 1x32, scale: f16 per 1x64", bf16, "sm_90a", true),
        ("u4 - 8", "scale: bf16 per 1x96", bf16, "sm_90a", false),
        ("u4 - 8", "scale: bf16 per 1x48", bf16, "sm_90a", false),
        ("u4 - 8", "scale: bf16 per 2x32", bf16, "sm_90a", false),
        ("u4 - 8", "scale: bf16 per 1x32", "f16", "sm_90a", false),
        ("u4 - 8", "scale: bf16 per 1x32, index: i32", bf16, "sm_90a", false),
    ] {
        let text = format!(
            "s {{ weight: {weight}, {numbers}, pack: u32 [k:* | w, n], activation: {x}, output: bf16 }}"
        );
        let scheme = parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults:?}"));
        let problem =
            Problem::new(&scheme, &scheme.activations[0], target(chip).unwrap(), (1024, 1024));
        let problem = problem.unwrap_or_else(|why| panic!("{text} on {chip}: {why}"));
        let rounds = problem.plan.scale.rounds_weights();
        assert_eq!(rounds, expected, "{text} on {chip}");
    }
}

/// Which products sum integers: of x with scales of rows or of groups, and with zero points of rows. Hopper's warp groups have no
/// such sums of short groups of w, or with corrections: those are floats if warp groups multiply them then, unless the scheme asks
/// for integers or exact weights.
#[test]
fn products_of_integers_sum_integers() {
    let (row, group) = ("i8 { scale: f32 per token }", "i8 { scale: f32 per 1x128 }");
    let (zero, zeros) =
        ("i8 { zero: i8, scale: f32 per token }", "i8 { zero: i8, scale: f32 per 1x128 }");
    let all = ["sm_80", "gfx942", "sm_90a", "wgsl"];
    for (weight, numbers, x, expected) in [
        ("i8", "scale: f32 per channel", row, [true, true, true, true]),
        ("i8", "scale: f32 per channel", zero, [true, true, true, false]),
        ("i8", "scale: f32 per 128x128", group, [true, true, true, true]),
        ("i4", "scale: f16 per 1x128", group, [true, true, true, true]),
        ("i4", "scale: f16 per 1x128", zero, [true, true, true, false]),
        ("i4", "scale: f16 per 1x128", zeros, [false, false, false, false]),
        ("i4", "scale: f16 per 1x32", row, [true, true, false, true]),
        ("i4", "scale: f16 per 1x32", zero, [true, true, false, false]),
        ("i4", "scale: f16 per 1x32", "i8 { scale: f32 per 1x32 }", [true, true, true, true]),
        ("i2", "scale: f16 per 1x64", row, [true, true, false, true]),
        ("u4", "zero: u4 per 1x128, scale: f16 per 1x128", row, [true, true, false, true]),
        ("u4", "zero: u4, scale: f16 per channel", row, [true, true, true, true]),
        ("u4", "shift: f16 per 1x128, scale: f16 per 1x128", row, [true, true, true, true]),
        ("u4", "shift: f16 per 1x32, scale: f16 per 1x32", row, [true, true, false, true]),
        ("i4", "scale: f16 per 1x32, index: i32", row, [true, true, true, true]),
        ("i8", "scale: f16 per 1x32", row, [true, true, false, true]),
    ] {
        for (chip, expected) in all.into_iter().zip(expected) {
            let integers = |clause: &str| {
                let text = format!(
                    "s {{ weight: {weight}, {numbers}, pack: u32 [k:* | w, n], activation: {x}, {clause}output: bf16 }}"
                );
                let scheme = parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults:?}"));
                let problem = Problem::new(
                    &scheme,
                    &scheme.activations[0],
                    target(chip).unwrap(),
                    (1024, 1024),
                );
                problem.unwrap_or_else(|why| panic!("{text} on {chip}: {why}")).sums_integers()
            };
            assert_eq!(integers(""), expected, "{weight}, {numbers}, x in {x}, on {chip}");
            let exact = expected || x != zeros && chip != "wgsl";
            for clause in ["accuracy: exact, ", "accumulate: i32, "] {
                assert_eq!(
                    integers(clause),
                    exact,
                    "{clause}{weight}, {numbers}, x in {x}, on {chip}"
                );
            }
        }
    }
}

/// Warp groups multiply whatever y is, so that floats gain as much.
#[test]
fn products_of_integers_are_floats_for_any_y() {
    for output in ["bf16", "f16", "f32"] {
        let text = format!(
            "s {{ weight: i4, scale: f16 per 1x32, pack: [k, n], \
             activation: i8 {{ scale: f32 per token }}, output: {output} }}"
        );
        let scheme = parse(&text).unwrap();
        let hopper = target("sm_90a").unwrap();
        let problem = Problem::new(&scheme, &scheme.activations[0], hopper, (1024, 1024)).unwrap();
        assert!(!problem.sums_integers(), "{output}");
    }
}

#[test]
fn schemes_become_problems() {
    let catalogue = catalogue();
    for &(name, activation, expected) in PROBLEMS {
        let scheme = catalogue.iter().find(|scheme| scheme.name == name).unwrap();
        let activation = &scheme.activations[activation];
        let problem = Problem::new(scheme, activation, target("sm_90a").unwrap(), (1000, 1000));
        let problem = problem.unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(described(&problem), expected, "{name}");
    }
}

/// Which schemes warp groups multiply as bytes that other instructions read otherwise: K is padded to lines of 128 bytes.
#[test]
fn bytes_are_multiplied_as_they_are_stored() {
    let catalogue = catalogue();
    let of = |name: &str| {
        let scheme = catalogue.iter().find(|scheme| scheme.name == name).unwrap();
        let hopper = target("sm_90a").unwrap();
        let problem = Problem::new(scheme, &scheme.activations[0], hopper, (1000, 1000)).unwrap();
        let of_warp_groups = problem.of_warp_groups().input;
        let changed = problem.giving(Number::Float(F16)).unwrap();
        assert_eq!(changed.of_warp_groups().output, changed.output, "{name}");
        (of_warp_groups.operand, of_warp_groups.columns, of_warp_groups.fragments)
    };
    for name in ["ct_w8a8", "quark_w8a8_int8_tensor_static"] {
        assert_eq!(of(name), (OperandType::I8, 1024, Some(ByteFragments::Whole)), "{name}");
    }
    for name in ["ct_fp8", "ct_fp8_dynamic", "modelopt_fp8"] {
        assert_eq!(of(name), (OperandType::E4m3, 1024, Some(ByteFragments::Rows)), "{name}");
    }
    // With scales of blocks, and of groups of x.
    for name in ["fp8_block", "ct_fp8_block"] {
        assert_eq!(of(name), (OperandType::E4m3, 1024, Some(ByteFragments::Rows)), "{name}");
    }
    assert_eq!(of("ct_w4afp8"), (OperandType::E4m3, 1024, Some(ByteFragments::Nibbles)));
    // Codes of fewer bits, x in bf16, groups shorter than a line.
    for name in ["ct_w4a8", "ct_mxfp8a16", "ct_w8a16", "ct_mxfp8"] {
        assert_eq!(of(name).2, None, "{name}");
    }
}

/// A scale that multiplies weights is of a type whose product with any code, less the power of two that
/// it lacks, is one of the operand's numbers; of e8m0 as far as its exponents go, and up to half of the operand's smallest
/// number, which the bound of products has. A plan says so where products are rounded.
#[test]
fn scales_of_weights_are_exact() {
    let mut checked = 0;
    for scheme in catalogue() {
        for activation in &scheme.activations {
            let hopper = target("sm_90a").unwrap();
            let Ok(problem) = Problem::new(&scheme, activation, hopper, (1000, 1000)) else {
                continue;
            };
            let scale = &problem.plan.scale;
            let Some(folded) = scale.folded.filter(|_| !scale.rounds_weights()) else {
                continue;
            };
            let of = problem.scale.unwrap();
            let unit = match folded.exponent {
                Some(_) => 2f64.powi(-folded.exponent_deficit),
                None => 2f64.powi(problem.scaled_exponent()),
            };
            let operand = problem.plan.dequant.operand.number();
            let codes = 0..1 << scheme.weight.code.bits();
            let codes: Vec<f64> = codes.map(|code| scheme.weight.decode(code)).collect();
            for scale in (0..1 << of.number.bits()).map(|scale| of.number.decode(scale)) {
                for product in codes.iter().map(|code| code * scale * unit) {
                    let held = operand.round(product) == product;
                    let power = of.number == Number::E8m0;
                    let beyond = power && product.abs() > operand.max();
                    let lost = (operand.round(product) - product).abs();
                    let held = held || power && lost <= operand.decode(1) / 2.0;
                    assert!(held || beyond || product.is_nan(), "{}: {product}", scheme.name);
                }
            }
            checked += 1;
        }
    }
    assert!(checked >= 12, "{checked}");
}

/// x that is quantised has a 16-bit operand of the plan's choice: bf16, where a scale stands for a power of two that decoding multiplies with,
/// or no range of scales is asked for. In f16 the scales of long groups multiply sums.
#[test]
fn scales_on_weights_choose_no_costlier_operand() {
    let (hopper, ampere) = (target("sm_90a").unwrap(), target("sm_80").unwrap());
    let catalogue = catalogue();
    let of = |name: &str, activation: usize, target, of_range| {
        let scheme = catalogue.iter().find(|scheme| scheme.name == name).unwrap();
        let activation = &scheme.activations[activation];
        Problem::in_layout(scheme, activation, target, ((1024, 1024), of_range)).unwrap()
    };
    for (name, target) in [("arm_w4a8_g32", hopper), ("ct_nvfp4", hopper), ("ct_nvfp4", ampere)] {
        let problem = of(name, 0, target, true);
        assert_eq!(problem.input.operand, OperandType::Bf16, "{name}");
        assert!(problem.plan.scale.folded.is_some() && !problem.is_of_range(), "{name}");
    }
    for target in [hopper, ampere] {
        let [long, short] = ["e3m4_g64", "ct_nvfp4a16"].map(|name| of(name, 1, target, true));
        assert_eq!([&long, &short].map(|of| of.input.operand), [OperandType::F16; 2]);
        assert!(long.plan.scale.folded.is_none() && short.plan.scale.folded.is_some());
    }
}

/// A layout that is not for scales of a range is that for any: also where a plan of range would be another one, which has no scales of
/// 16 bits on weights (groups of x are segments).
#[test]
fn other_layouts_do_not_depend_on_the_range() {
    let of_x = "s { weight: e3m2, scale: f16 per 1x32, pack: u32 [k:* | w, n], activation: e4m3 { scale: f32 per 1x32 } }";
    let mut schemes = catalogue();
    schemes.push(parse(of_x).unwrap());
    // Integers that may be floats on Hopper.
    for weight in ["i8", "i4", "u4 - 8", "u8 - 40", "i2"] {
        for numbers in [
            "scale: f16 per 1x32",
            "zero: u4 per 1x32, scale: f16 per 1x32",
            "shift: f16, scale: f32 per 1x16",
        ] {
            for x in ["i8 { scale: f32 per token }", "i8 { zero: i8, scale: f32 per token }"] {
                let text = format!(
                    "s {{ weight: {weight}, {numbers}, pack: u32 [k:* | w, n], activation: {x} }}"
                );
                schemes.push(parse(&text).unwrap());
            }
        }
    }
    let mut of_range = 0;
    for scheme in &schemes {
        for activation in &scheme.activations {
            for target in ["sm_90a", "sm_80", "gfx942"].map(|name| target(name).unwrap()) {
                let [any, own] = [false, true].map(|of_range| {
                    Problem::in_layout(scheme, activation, target, ((1024, 1024), of_range))
                });
                let (Ok(any), Ok(own)) = (any, own) else { continue };
                match own.is_of_range() {
                    true => of_range += 1,
                    false => assert_eq!(own.plan, any.plan, "{} on {}", scheme.name, target.name),
                }
            }
        }
    }
    assert!(of_range >= 5, "{of_range}");
}

/// By buffer, the largest number of a range.
type Largest = &'static [(BufferRole, f64)];

/// Short groups beside x in f16: weight, numbers of groups, and by buffer the largest number of the range, none if there is one layout for
/// all. e4m3's products are numbers of f16; groups as long as a chunk multiply sums.
const OF_RANGE: &[(&str, &str, Largest)] = &[
    ("u4 - 8", "scale: f16 per 1x32", &[(Scale, 4096.0)]),
    ("u4 - 8", "scale: bf16 per 1x16", &[(Scale, 4096.0)]),
    ("i2", "scale: f16 per 1x64", &[(Scale, 16384.0)]),
    ("e2m1", "scale: e8m0 per 1x32", &[(Scale, 2.0)]),
    ("e2m3", "scale: e8m0 per 1x32", &[(Scale, 2.0)]),
    ("e2m1", "scale: e4m3 per 1x16", &[]),
    ("u4 - 8", "scale: f16 per 1x64", &[]),
    ("i8", "scale: f16 per 1x32", &[]),
    ("u4 - 8", "scale: f32 per 1x32", &[(Scale, 4096.0)]),
    // With a term, both are at most a half; of levels those of larger groups are what matters.
    ("u4", "zero: u4 per 1x32, scale: f16 per 1x32", &[(Scale, 2048.0), (Correction, 16384.0)]),
    ("u4", "shift: f16, scale: f16 per 1x32", &[(Scale, 2048.0), (Correction, 16384.0)]),
    ("u6 - 32", "scale: i8 per 1x16, scale: f16 per 1x256", &[(CoarseScale, 8.0)]),
    (
        "u4",
        "shift: -u6, shift: f16 per 1x256, scale: u6 per 1x32, scale: f16 per 1x256",
        &[(CoarseScale, 8.0), (CoarseCorrection, 128.0)],
    ),
];

#[test]
fn short_groups_in_f16_have_a_layout_for_scales_of_a_range() {
    let hopper = target("sm_90a").unwrap();
    for &(weight, numbers, expected) in OF_RANGE {
        let text = |accuracy: &str| {
            format!(
                "s {{ weight: {weight}, {numbers}, pack: u32 [k:* | w, n], activation: f16{accuracy} }}"
            )
        };
        let posed = |text: &str, target, of_range| {
            let scheme = quantloom_dsl::parse(text).unwrap_or_else(|why| panic!("{text}: {why:?}"));
            Problem::in_layout(&scheme, &scheme.activations[0], target, ((72, 512), of_range))
                .unwrap()
        };
        let fast = text("");
        let [any, of_range] = [false, true].map(|of_range| posed(&fast, hopper, of_range));
        assert!(!any.is_of_range(), "{fast}");
        assert_eq!(of_range.is_of_range(), !expected.is_empty(), "{fast}");
        assert_eq!(of_range.plan.native == any.plan.native, expected.is_empty(), "{fast}");
        if !expected.is_empty() {
            let ranges = of_range.param_ranges();
            let found: Vec<_> = ranges.iter().map(|(role, range)| (*role, range.most)).collect();
            assert_eq!(found, expected, "{fast}");
            for (role, range) in ranges {
                let mut params = of_range.group_params();
                let (_, of) = params.find(|(found, _)| *found == role).unwrap();
                assert_eq!(range.number, of.number, "{fast}");
            }
            let warp_group = |problem: &Problem| Chosen::of("warp_group", problem, 64).is_ok();
            assert!(warp_group(&of_range) && !warp_group(&any), "{fast}");
        }
        // Neither exact products nor other targets have it.
        let exact = text(", accuracy: exact");
        assert!(!posed(&exact, hopper, true).is_of_range(), "{exact}");
        for other in ["sm_89", "sm_120a", "gfx942"] {
            assert!(!posed(&fast, target(other).unwrap(), true).is_of_range(), "{other}: {fast}");
        }
    }
}

/// Levels and minima have one layout for x in bf16 and x in f16, if their numbers are in range: a device holds them once.
#[test]
fn levels_have_one_layout_for_both_types_of_x() {
    for numbers in [
        "weight: u6 - 32, scale: i8 per 1x16, scale: f16 per 1x256",
        "weight: u4, shift: -u6, shift: f16 per 1x256, scale: u6 per 1x32, scale: f16 per 1x256",
        "weight: u4, shift: f16, scale: f16 per 1x32",
    ] {
        let text = format!("s {{ {numbers}, pack: u32 [k:* | w, n], activation: bf16 | f16 }}");
        let scheme = parse(&text).unwrap();
        let [in_bf16, in_f16] = [0, 1].map(|x| {
            let of = ((72, 512), true);
            Problem::in_layout(&scheme, &scheme.activations[x], target("sm_90a").unwrap(), of)
                .unwrap()
        });
        assert!(in_f16.is_of_range() && !in_bf16.is_of_range(), "{text}");
        assert_eq!(in_bf16.plan.native, in_f16.plan.native, "{text}");
        assert!(in_bf16.group_params().eq(in_f16.group_params()), "{text}");
    }
}

/// Powers of two up to where bf16 ends stand for the power of two that decoding multiplies with, in one layout for all scales; beside
/// integers, whose last step is another one, they do not.
#[test]
fn powers_of_two_have_a_range_in_bf16() {
    for chip in ["sm_90a", "sm_80", "gfx942"] {
        for (weight, most) in
            [("e2m1", Some(2.0)), ("e2m3", Some(2.0)), ("e3m2", Some(8.0)), ("u4 - 8", None)]
        {
            let text = format!(
                "s {{ weight: {weight}, scale: e8m0 per 1x32, pack: u32 [k:* | w, n], activation: bf16 }}"
            );
            let scheme = quantloom_dsl::parse(&text).unwrap();
            let of = |of_range| {
                let target = target(chip).unwrap();
                Problem::in_layout(&scheme, &scheme.activations[0], target, ((72, 512), of_range))
                    .unwrap()
            };
            let [any, of_range] = [false, true].map(of);
            let found: Vec<f64> = any.param_ranges().iter().map(|(_, range)| range.most).collect();
            assert_eq!(found, Vec::from_iter(most), "{chip}: {text}");
            assert!(any.plan == of_range.plan && !of_range.is_of_range(), "{chip}: {text}");
        }
    }
}

/// Rows of x are read in vectors of 16 bytes: other rows are copied into whole k-tiles.
#[test]
fn rows_of_x_are_whole_vectors() {
    let catalogue = catalogue();
    let scheme = catalogue.iter().find(|scheme| scheme.name == "ct_w3a16").unwrap();
    for (k, columns) in [(1000, 1000), (1001, 1024), (1004, 1024), (1008, 1008)] {
        let hopper = target("sm_90a").unwrap();
        let problem = Problem::new(scheme, &scheme.activations[0], hopper, (16, k)).unwrap();
        let found = (problem.input.columns, problem.input.prepared);
        assert_eq!(found, (columns, columns != k), "K = {k}");
    }
}

/// Weight, group parameters, x, target; k-tile and segment, and the order of columns: the length of its segments,
/// `index` where one sorts columns, and the groups that segments do not cross.
const ARRANGED: &[(&str, &str, &str, &str, &str)] = &[
    // As they are.
    ("u4 - 8", "scale: f16 per 1x128", "f16", "sm_90a", "128 of 128"),
    ("u4 - 8", "scale: f16 per 1x8", "f16", "wgsl", "32 of 8"),
    ("i4", "scale: f32 per channel", "i8 { scale: f32 per 1x384 }", "sm_80", "128 of 128"),
    // Whole segments.
    ("u4 - 8", "scale: f16 per 1x48", "f16", "sm_90a", "128 of 16"),
    ("u4 - 8", "scale: f16 per 1x96", "f16", "gfx942", "128 of 32"),
    ("u4", "zero: u8 per 1x48, scale: f16 per 1x64", "f16", "sm_80", "128 of 16"),
    ("i4", "scale: f32 per 1x64", "i8 { scale: f32 per 1x48 }", "sm_90a", "128 of 16"),
    ("u4 - 8", "scale: f16 per 1x24", "f16", "wgsl", "32 of 8"),
    ("u4 - 8", "scale: f16 per 1x5", "f16", "wgsl", "32 of 1"),
    // Padded ones: the fewest columns, and of those the longest segments.
    ("u4 - 8", "scale: f16 per 1x24", "f16", "sm_90a", "128 of 32, order 32 [24]"),
    ("u4 - 8", "scale: f16 per 1x120", "f16", "sm_90a", "128 of 128, order 128 [120]"),
    (
        "u4 - 8",
        "scale: f16 per 1x24, shift: f16 per 1x40",
        "f16",
        "gfx950",
        "128 of 16, order 16 [24, 40]",
    ),
    (
        "i4",
        "scale: f32 per 1x24",
        "i8 { scale: f32 per token }",
        "sm_80",
        "128 of 32, order 32 [24]",
    ),
    // An index sorts columns; that of nothing does not.
    (
        "u4 - 8",
        "scale: f16 per 1x256, index: i32",
        "f16",
        "sm_90a",
        "128 of 128, order 128 index []",
    ),
    ("u4 - 8", "scale: f16 per 1x48, index: i32", "f16", "sm_90a", "128 of 16, order 16 index []"),
    (
        "i4",
        "scale: f32 per 1x32, index: i32",
        "i8 { scale: f32 per 1x64 }",
        "sm_90a",
        "128 of 16, order 16 index [64]",
    ),
    (
        "u4",
        "zero: u8 per 1x128, scale: f16 per channel, index: i32",
        "f16",
        "sm_90a",
        "128 of 128, order 128 index []",
    ),
];

#[test]
fn columns_are_arranged_in_runs_of_what_they_share() {
    for &(weight, numbers, x, chip, expected) in ARRANGED {
        let text =
            format!("s {{ weight: {weight}, {numbers}, pack: u32 [k:* | w, n], activation: {x} }}");
        let scheme = parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults:?}"));
        let target = target(chip).unwrap();
        let problem = Problem::new(&scheme, &scheme.activations[0], target, (1000, 1024));
        let problem = problem.unwrap_or_else(|why| panic!("{text} on {chip}: {why}"));
        let order = problem.order.as_ref().map(|Order { segment, indexed, groups }| {
            let index = if *indexed { "index " } else { "" };
            format!(", order {segment} {index}{groups:?}")
        });
        let found = format!(
            "{} of {}{}",
            problem.k_tile(),
            MainLoop::new(&problem).segment(),
            order.unwrap_or_default()
        );
        assert_eq!(found, expected, "{text} on {chip}");
    }
}
