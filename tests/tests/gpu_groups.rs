//! Zero points, shifts, groups of every form and prescales on simulated GPUs: schemes outside of the
//! catalogue.

use quantloom::codegen::jit::Simulator;
use quantloom::runtime::backend::Backend;
use quantloom::runtime::cpu::CpuDevice;
use quantloom::runtime::gpu::GpuDevice;
use quantloom_dsl::{Scheme, parse};
use quantloom_tests::sweep::Share;
use quantloom_tools::conformance::{Failure, Suite};
use rayon::prelude::*;

const TARGETS: [&str; 7] = ["sm_80", "sm_90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "wgsl"];

/// A part of a skinny product's tile of tokens, more than one, a part of a tile of many.
const TOKENS: [usize; 3] = [1, 3, 17];

/// Ragged N and K; K ends inside of a k-tile of every target.
const SHAPES: [(u64, u64); 2] = [(33, 160), (17, 328)];

fn scheme(weight: &str, rest: &str, activation: &str) -> Scheme {
    let text =
        format!("odd {{ weight: {weight}, {rest}, pack: [k, n], activation: {activation} }}");
    parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults}"))
}

/// Products of the schemes on the targets, in the range of seeds of one of them; a case is a scheme on a
/// target.
fn compared(schemes: &[Scheme], targets: &[&str]) {
    all_compared(&Share::new(14, 4).of(cases(schemes, targets).into_iter().enumerate()));
}

fn cases<'s>(schemes: &'s [Scheme], targets: &[&'s str]) -> Vec<(&'s Scheme, &'s str)> {
    schemes.iter().flat_map(|s| targets.iter().map(move |t| (s, *t))).collect()
}

fn all_compared(cases: &[(usize, (&Scheme, &str))]) {
    let wrong = cases.par_iter().filter_map(|(number, (scheme, target))| {
        let seeds = vec![*number as u64 % 6];
        let suite = Suite { shapes: SHAPES.to_vec(), tokens: TOKENS.to_vec(), seeds, every: 1 };
        let device = GpuDevice::new(Simulator::new(target).unwrap());
        match suite.run(scheme, &[&device], &|_| {}).remove(0) {
            Ok(done) if done.not_scheduled.is_empty() && done.products == 6 => None,
            Ok(done) => Some(format!("{scheme}\n{target}: {done:?}")),
            Err(failure) => Some(format!("{scheme}\n{failure}")),
        }
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Decoding subtracts small zero points, larger ones are a term of the sum of x, and a shift always
/// is: a zero point that is subtracted in decoding is not in the term.
#[test]
fn a_zero_point_beside_a_shift_is_taken_off_once() {
    let mut schemes = Vec::new();
    for weight in ["u4", "u2", "u8", "i4", "u4 - 8"] {
        for zero in ["u4", "u8", "u4 + 1", "f16"] {
            for more in ["", ", scale: f16 per channel"] {
                let rest = format!(
                    "zero: {zero} per 1x32, shift: f16 per 1x32, scale: f16 per 1x32{more}"
                );
                schemes.push(scheme(weight, &rest, if more.is_empty() { "f16" } else { "bf16" }));
            }
        }
    }
    compared(&schemes, &["sm_90a", "gfx942", "wgsl"]);
}

/// The product of a shift's levels is a term of the sum of x, with its sign; a scale of integers has its
/// offset subtracted. Segments of 16 and of 32 columns, groups of odd sizes, a level of the whole row.
#[test]
fn levels_of_shifts_and_offsets_of_scales_are_folded() {
    let minima = |bits: u32, columns: u32| {
        format!(
            "scale: u{bits} per 1x{columns}, scale: f16 per 1x256, shift: -u{bits}, \
             shift: f16 per 1x256"
        )
    };
    let book = "codebook(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)";
    let schemes = [
        // The finest group is a level's of the shift.
        scheme("u4", "scale: f16 per 1x64, shift: -u4 per 1x16, shift: f16 per 1x64", "f16"),
        scheme("u4", &minima(6, 32), "bf16"),
        scheme("u2", &minima(4, 16), "f16"),
        scheme("u3 - 4", "scale: u6 - 32 per 1x16, scale: f16 per 1x256", "f16"),
        scheme(book, "scale: u6 - 32 per 1x32, scale: f16 per 1x256", "bf16"),
        scheme(
            "u4",
            "scale: i4 + 9 per 1x24, shift: u3 - 7 per 1x40, shift: -f32 per channel",
            "bf16",
        ),
        scheme("i8", "scale: f16 per 1x32, zero: u8, shift: -f16, shift: -e4m3 per 1x64", "f16"),
        scheme(
            "i4",
            "scale: u6 - 32 per 1x32, scale: f32 per channel, shift: -u6, shift: f32 per channel",
            "i8 { scale: f32 per token }",
        ),
    ];
    // Each of them on some target, and each target.
    let targets = ["sm_90a", "gfx942", "wgsl"];
    let cases = cases(&schemes, &targets).into_iter().enumerate();
    let cases = cases.filter(|(number, _)| (number + number / 3) % 3 == 0);
    all_compared(&cases.collect::<Vec<_>>());
    compared(&schemes, &TARGETS);
    let cpu = CpuDevice::best();
    for scheme in &schemes {
        let suite = Suite {
            shapes: SHAPES.to_vec(),
            tokens: TOKENS.to_vec(),
            seeds: (0..6).collect(),
            every: 1,
        };
        let done = suite.run(scheme, &[&cpu], &|_| {}).remove(0);
        let done = done.unwrap_or_else(|failure| panic!("{scheme}\n{failure}"));
        assert!(done.not_scheduled.is_empty() && done.products >= 36, "{scheme}\n{done:?}");
    }
}

/// The constant added to stored zero points may make them too large for the integers that 16 bits
/// represent.
#[test]
fn zero_points_far_from_their_codes_are_exact() {
    // A signed one that wraps is 0 to 127.
    let schemes = [
        ("u4", "u2 + 137"),
        ("i7", "u4 + 75"),
        ("u4", "u3 + 250"),
        ("u8", "u7 + 129"),
        ("u4 - 2", "i7 wraps"),
    ];
    let schemes = schemes.map(|(weight, zero)| {
        let rest = format!("zero: {zero} per 1x32, scale: f16 per 1x32");
        [scheme(weight, &rest, "bf16"), scheme(weight, &rest, "f16")]
    });
    compared(&schemes.concat(), &["sm_90a", "gfx942", "wgsl"]);
}

/// One number for a block of rows: the groups of a k-tile are read at once, whether or not K ends there.
#[test]
fn blocks_of_rows_end_inside_of_k_tiles() {
    let mut schemes = Vec::new();
    for (rows, columns) in [(16, 16), (32, 32), (16, 64), (64, 64), (128, 32), (32, 128)] {
        let scale = format!("scale: f32 per {rows}x{columns}");
        schemes.push(scheme("e4m3", &scale, "e4m3 { scale: f32 per 1x128 }"));
        schemes.push(scheme("u4 - 8", &scale, "bf16"));
        schemes.push(scheme("i8", &scale, "i8 { scale: f32 per token }"));
        let zero = format!("{scale}, zero: u8 per {rows}x{columns}");
        schemes.push(scheme("u4", &zero, "f16"));
        let shift = format!("{scale}, shift: f16 per 1x{columns}");
        schemes.push(scheme("u4", &shift, "f16"));
    }
    compared(&schemes, &TARGETS);
}

/// Blocks with other columns than x's scale groups, neither a multiple of the other: no lane can
/// read them as they are stored.
#[test]
fn blocks_that_turns_do_not_hold_are_computed_by_run() {
    let blocks = |columns: u32| format!("scale: f32 per 32x{columns}");
    let x = "e4m3 { scale: f32 per 1x128 }";
    compared(&[scheme("e4m3", &blocks(96), x), scheme("e4m3", &blocks(192), x)], &TARGETS);
}

/// Decoding adds a constant to codes, and a term subtracts it. If x has a single code that is not
/// 0, times a weight of 0, only the rounding of both remains.
#[test]
fn what_decoding_leaves_on_codes_cancels_within_the_bound() {
    let mut schemes = Vec::new();
    for weight in ["i2", "i3", "i4", "i8", "u4 - 8", "u8"] {
        for x in ["i3", "i4"] {
            let x = format!("{x} {{ scale: f32 per token }}");
            schemes.push(scheme(weight, "scale: f32 per 1x32", &x));
        }
    }
    compared(&schemes, &TARGETS);
}

/// Stored numbers that are not whole bytes: the last byte is padded.
#[test]
fn numbers_of_less_than_a_byte_may_end_inside_of_one() {
    let mut schemes = Vec::new();
    for zero in ["u4", "u2", "u3", "u6"] {
        let code = "weight: u4";
        for (rest, activation) in [
            (format!("zero: {zero}, scale: f16 per 1x64"), "f16"),
            (format!("zero: {zero} per channel, scale: bf16 per 1x256"), "bf16"),
        ] {
            let pack = "pack: u32 [k:8 | k, n]";
            let text = format!("odd {{ {code}, {rest}, {pack}, activation: {activation} }}");
            schemes.push(parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults}")));
        }
    }
    schemes.push(scheme("e4m3", "scale: e2m1 per 1x32, scale: f32 per channel", "bf16"));
    compared(&schemes, &TARGETS);
}

/// Each expert has its own static scale of x, and its own zero point.
#[test]
fn static_scales_of_x_belong_to_an_expert() {
    let activations = [
        "i8 { scale: f32 per tensor static [g, e] }",
        "u8 { zero: u8 [g, e], scale: f32 per tensor static [g, e] }",
        "e4m3 { scale: f32 per 1x32, scale: f32 per tensor static [g, e] }",
    ];
    let scheme = |x: &str| {
        let text = format!(
            "odd {{ weight: i8, scale: f32 per channel [g, n, e], pack: [k, n, e], activation: {x}, \
             experts: interleaved }}"
        );
        parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults}"))
    };
    let schemes = activations.map(scheme);
    let suite =
        Suite { shapes: SHAPES.to_vec(), tokens: TOKENS.to_vec(), seeds: vec![3], every: 1 };
    let portable = CpuDevice::portable();
    let share = Share::new(2, 2);
    for (number, scheme) in schemes.iter().enumerate() {
        suite.run(scheme, &[&portable], &|_| {}).remove(0).unwrap_or_else(|why| panic!("{why}"));
        for (at, target) in ["sm_90a", "wgsl"].into_iter().enumerate() {
            if !share.takes(2 * number + at) {
                continue;
            }
            let device = GpuDevice::new(Simulator::new(target).unwrap());
            let done = suite.run(scheme, &[&device], &|_| {}).remove(0);
            done.unwrap_or_else(|why| panic!("{scheme}\n{why}"));
        }
    }
}

/// The padding of permuted columns is code 0, even for scales whose type has no number 0.
#[test]
fn scales_without_a_zero_are_padded() {
    compared(&[scheme("u4", "scale: e8m0 per 1x24", "bf16")], &TARGETS);
}

/// Products of x times the factors of its columns: x as it is and quantised in every way, columns in
/// another order, instructions that scale.
#[test]
fn x_is_multiplied_by_the_factors_of_its_columns() {
    let group = "scale: f16 per 1x32";
    let schemes = [
        ("u4 - 8", "prescale: bf16, scale: bf16 per 1x128", "bf16"),
        ("u4 - 8", "prescale: f32, scale: f16 per channel", "f16 | bf16"),
        ("u4", "prescale: f16, zero: u4, scale: f16 per 1x32", "f32"),
        ("u4", "prescale: bf16, zero: f16, scale: f16 per 1x24", "f16"),
        ("u4 - 8", &format!("prescale: bf16, {group}, index: i32"), "bf16"),
        ("i8", "prescale: f16, scale: f32 per channel", "i8 { scale: own per token }"),
        ("i8", "prescale: f32, scale: f32 per 1x20, index: i32", "i8 { scale: f32 per token }"),
        ("i8", "prescale: bf16, scale: f32 per tensor", "u8 { zero: u8, scale: f32 per token }"),
        ("i4", "prescale: bf16, scale: f32 per 1x128", "e4m3 { scale: f32 per tensor static }"),
        ("e4m3", "prescale: f32, scale: f32 per 128x128", "e4m3 { scale: f32 per 1x128 }"),
        ("e4m3", "prescale: f32, scale: f32 per tensor", "e4m3 { scale: f32 per tensor } | bf16"),
        ("e2m1", "prescale: bf16, scale: e8m0 per 1x32", "e2m1 { scale: e8m0 per 1x32 }"),
        (
            "e2m1",
            "prescale: bf16, scale: e4m3 per 1x16, scale: f32 per tensor from amax / 2688",
            "e2m1 { scale: e4m3 per 1x16, scale: f32 per tensor from amax / 2688 static }",
        ),
        ("u6 - 32", "prescale: bf16, scale: f16 per 1x40", "i8 { scale: f32 per 1x48 }"),
    ];
    let schemes = schemes.map(|(weight, rest, activation)| scheme(weight, rest, activation));
    compared(&schemes, &TARGETS);
    compared(&schemes[..8], &["sm_89", "wgsl_subgroups"]);
}

/// One scale of all of x inside of those of tokens: it makes up for the first token's scale.
#[test]
fn a_scale_of_all_of_x_inside_of_tokens() {
    let levels = "scale: f32 per tensor from amax / 127, scale: f32 per token from amax / 127";
    let scheme = scheme("i8", "scale: f32 per channel", &format!("i8 {{ {levels} }}"));
    compared(&[scheme], &TARGETS);
}

/// Scales of x that several tokens share, that do not nest, and that a prescale precedes.
#[test]
fn scales_of_x_of_any_groups() {
    let channel = "scale: f32 per channel";
    let schemes = [
        ("u4 - 8", "scale: bf16 per 1x128", "i8 { scale: f32 per 4x32 }"),
        ("i8", channel, "i8 { scale: f32 per 1x24, scale: f32 per 1x32 }"),
        ("i8", channel, "i8 { scale: e1m6finite per token from amax / 127 }"),
        (
            "i8",
            "prescale: f16, scale: f32 per channel",
            "i8 { scale: f32 per token from amax / 127, scale: f32 per 1x32 from amax / 127 }",
        ),
    ];
    let schemes = schemes.map(|(weight, rest, activation)| scheme(weight, rest, activation));
    compared(&schemes, &TARGETS);
    // CPUs take these by the reference's own quantiser.
    let suite =
        Suite { shapes: SHAPES.to_vec(), tokens: TOKENS.to_vec(), seeds: vec![0], every: 1 };
    for scheme in &schemes {
        let done = suite.run(scheme, &[&CpuDevice::portable()], &|_| {}).remove(0);
        done.unwrap_or_else(|failure| panic!("{scheme}\n{failure}"));
    }
}

/// A layer may have groups that the type of its index cannot name: no column is in them.
#[test]
fn groups_that_no_index_names_are_no_columns() {
    let scheme = scheme("i8", "scale: f32 per 1x4, index: i8", "bf16");
    let suite = Suite { shapes: vec![(4, 513)], tokens: vec![2], seeds: vec![0, 1], every: 1 };
    let backends: [&dyn Backend; 2] =
        [&CpuDevice::portable(), &GpuDevice::new(Simulator::new("sm_90a").unwrap())];
    for done in suite.run(&scheme, &backends, &|_| {}) {
        done.unwrap_or_else(|why| panic!("{why}"));
    }
}

/// A kernel of WebGPU has eight arrays at most. Numbers made of more are packed by the host; a product
/// that needs more is refused with that reason.
#[test]
fn kernels_of_too_many_arrays_are_no_fault() {
    let levels = |level: &str| [level; 8].join(", ");
    let stored = scheme("u4 - 8", &levels("scale: f32 per 1x32"), "f32");
    let of_x = format!("i8 {{ {} }}", levels("scale: f32 per tensor static"));
    let given = scheme("i8", "scale: f32 per channel", &of_x);
    let suite = Suite { shapes: vec![(33, 160)], tokens: vec![3], seeds: vec![0], every: 1 };
    let device = GpuDevice::new(Simulator::new("wgsl").unwrap());
    let run = |scheme| suite.run(scheme, &[&device as &dyn Backend], &|_| {}).remove(0);
    run(&stored).unwrap_or_else(|why| panic!("{why}"));
    match run(&given) {
        Err(Failure::NotScheduled { why, .. }) => {
            assert!(why.to_string().contains("arrays"), "{why}")
        }
        other => panic!("{other:?}"),
    }
}
