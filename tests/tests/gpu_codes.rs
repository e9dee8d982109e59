//! Codes of every type on simulated GPUs, including codes that 16-bit floats do not represent:
//! codebooks of every size, floats beyond f16's range, integers with large offsets.

use quantloom::codegen::jit::Simulator;
use quantloom::codegen::sim::Report;
use quantloom::runtime::backend::Backend;
use quantloom::runtime::gpu::GpuDevice;
use quantloom_dsl::{Scheme, parse};
use quantloom_tests::sweep::Share;
use quantloom_tools::conformance::{Failure, Suite, Summary};
use rayon::prelude::*;

const TARGETS: [&str; 7] = ["sm_80", "sm_90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "wgsl"];

/// A part of a skinny product's tile of tokens, more than one, a part of a tile of many.
const TOKENS: [usize; 3] = [1, 7, 17];

fn scheme(weight: &str, scale: &str, activation: &str) -> Scheme {
    let text = format!(
        "odd {{ weight: {weight}, scale: {scale}, pack: [k, n], activation: {activation} }}"
    );
    parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults}"))
}

fn run(scheme: &Scheme, backend: &dyn Backend, seed: u64) -> Result<Summary, Failure> {
    let (shapes, seeds) = (vec![(33, 160), (17, 328)], vec![seed]);
    let suite = Suite { shapes, tokens: TOKENS.to_vec(), seeds, every: 1 };
    suite.run(scheme, &[backend], &|_| {}).remove(0)
}

/// Products of the schemes on [`TARGETS`]; a case is a scheme on a target.
fn compared(schemes: &[Scheme]) {
    compared_on(&TARGETS, schemes, Share::new(6, 2));
}

fn compared_on(targets: &[&str], schemes: &[Scheme], share: Share) {
    let cases = schemes.iter().flat_map(|s| targets.iter().map(move |target| (s, *target)));
    let cases = share.of(cases.collect::<Vec<_>>().into_iter().enumerate());
    let wrong = cases.par_iter().filter_map(|(number, (scheme, target))| {
        let device = GpuDevice::new(Simulator::new(target).unwrap());
        match run(scheme, &device, *number as u64 % 6) {
            Ok(done) if done.not_scheduled.is_empty() && done.products == 6 => None,
            Ok(done) => Some(format!("{scheme}\n{target}: {done:?}")),
            Err(failure) => Some(format!("{scheme}\n{failure}")),
        }
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// A codebook with `len` values.
fn book(len: u32, value: impl Fn(u32) -> f64) -> String {
    let values: Vec<String> = (0..len).map(|code| format!("{:e}", value(code))).collect();
    format!("codebook({})", values.join(", "))
}

/// Numbers with all significant bits, without a pattern.
fn any(code: u32) -> f64 {
    (f64::from(code) * 0.731 + 0.37).sin()
}

#[test]
fn codebooks_of_every_size() {
    let mut schemes = Vec::new();
    for (number, len) in [2, 4, 8, 16, 32, 64, 128, 256].into_iter().enumerate() {
        let x = ["bf16", "f16", "i8 { scale: f32 per token }"][number % 3];
        schemes.push(scheme(&book(len, any), "f32 per 1x32", x));
        schemes.push(scheme(
            &book(len, |code| f64::from(code % 3) - 1.0),
            "f16 per channel",
            "f16",
        ));
    }
    let normal_float = "codebook(-1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, \
                        -0.091050036, 0, 0.0795803, 0.1609302, 0.24611230, 0.33791524, 0.44070983, \
                        0.562617, 0.72295684, 1)";
    schemes.push(scheme(normal_float, "f32 per 1x64", "bf16"));
    schemes.push(scheme("codebook(0, 1, -1, 0)", "f32 per tensor", "bf16"));
    compared(&schemes);
}

/// Beyond the largest f16, below the smallest, and both at once.
#[test]
fn values_of_any_size() {
    let mut schemes = Vec::new();
    for (len, x) in [(4, "f16"), (16, "f16"), (64, "f16"), (8, "bf16")] {
        schemes.push(scheme(&book(len, |code| any(code) * 1e12), "f32 per 1x32", x));
        schemes.push(scheme(&book(len, |code| any(code) * 1e-20), "f32 per channel", x));
        let wide = book(len, |code| any(code) * 10f64.powi(code as i32 % 40 - 20));
        schemes.push(scheme(&wide, "f32 per 1x32", x));
    }
    for code in ["e5m0", "e5m1", "e5m2", "e5m2fn", "e5m2fnuz", "e5m2finite", "e6m1", "e6m1ieee"] {
        schemes.push(scheme(code, "f16 per 1x32", "f16"));
    }
    schemes.push(scheme("e6m1", "f32 per channel", "bf16"));
    schemes.push(scheme("e6m1", "f32 per channel", "i8 { scale: f32 per token }"));
    compared(&schemes);
}

/// Codes that instructions of one chip alone convert to f16; x in bf16, for which they do not.
#[test]
fn codes_that_an_instruction_converts() {
    let mut schemes = Vec::new();
    for code in ["e2m1", "e2m3", "e3m2"] {
        for scale in ["e8m0 per 1x32", "f16 per channel", "e4m3 per 1x16"] {
            schemes.push(scheme(code, scale, "f16"));
        }
        schemes.push(scheme(code, "f32 per 1x64", "bf16"));
    }
    compared_on(&["sm_120a"], &schemes, Share::new(2, 2));
}

/// Codes that some chips multiply as they are stored, or spread, beside x in few bits: integers of 4 bits, e5m2 and pairs of it
/// with e4m3.
#[test]
fn few_bits_on_both_sides() {
    let (i4, e4m3, e5m2) = (
        "i4 { scale: f32 per token }",
        "e4m3 { scale: f32 per token }",
        "e5m2 { scale: f32 per token }",
    );
    let static_i4 = "i4 { scale: f32 per tensor static, ties: away }";
    let mut schemes = Vec::new();
    for (code, scale, x) in [
        ("i4", "bf16 per 1x128", i4),
        ("i4", "f32 per channel", static_i4),
        ("u4 - 8", "f16 per 1x32", i4),
        ("u4 - 5", "f32 per channel", i4),
        ("i2", "bf16 per 1x64", i4),
        ("u2 - 2", "f32 per channel", "i4 { scale: own per token }"),
        ("i3", "f32 per 1x32", i4),
        ("i4", "f32 per channel", "i3 { scale: f32 per token }"),
        ("e5m2", "f32 per channel", e5m2),
        ("e5m2", "bf16 per 1x32", e4m3),
        ("e4m3", "f32 per 128x128", e5m2),
        ("e2m1", "f32 per 1x32", e5m2),
        ("e5m2", "f32 per 1x64", "e5m2 { scale: f32 per 1x64 }"),
        ("e5m2", "e8m0 per 1x32", "e5m2 { scale: e8m0 per 1x32 from pow2 above 1.75 }"),
    ] {
        schemes.push(scheme(code, scale, x));
    }
    compared(&schemes);
}

/// Sums of codes without their offset, which a term times the sum of x corrects.
#[test]
fn offsets_that_16_bits_do_not_hold() {
    let codes =
        ["u4 + 1000", "u4 - 65536", "u4 - 249", "u8 - 2049", "u8 - 40000", "i8 + 300", "u3 + 5000"];
    let of = |(number, code): (usize, &&str)| {
        let (scale, x) =
            (["f16 per 1x32", "f32 per channel"][number / 2 % 2], ["bf16", "f16"][number % 2]);
        scheme(code, scale, x)
    };
    compared(&codes.iter().chain(&codes[1..]).enumerate().map(of).collect::<Vec<_>>());
}

/// Lanes that look up their codes have bank conflicts: these are not conflicts of a schedule, and
/// are the only ones that the count excludes.
#[test]
fn reads_of_tables_are_no_conflicts() {
    let scheme = scheme(&book(256, any), "f32 per channel", "bf16");
    for target in ["sm_80", "sm_90a", "gfx942", "gfx950", "gfx1100", "gfx1201"] {
        let device = GpuDevice::new(Simulator::new(target).unwrap());
        run(&scheme, &device, 0).unwrap();
        let reports = device.executor().take_reports();
        let product =
            |of: &&Report| ["__skinny_", "__tile_"].iter().any(|kind| of.kernel.contains(kind));
        assert!(reports.iter().filter(product).count() >= 2);
        for report in reports.iter().filter(product) {
            assert_eq!(report.conflicts(), 0, "{report}");
            let lookups = report.accesses.iter().filter(|access| access.table_lookup);
            let rounds = lookups.filter_map(|access| access.rounds);
            let lost: u64 = rounds.map(|[took, least]| took - least).sum();
            assert!(lost > 0, "{report}");
        }
    }
}
