//! Every scheme of the catalogue on simulated GPUs, on ragged shapes, against the reference.

use quantloom::codegen::jit::Simulator;
use quantloom::codegen::plan::plan;
use quantloom::codegen::sim::Report;
use quantloom::codegen::target::target;
use quantloom::runtime::gpu::GpuDevice;
use quantloom_dsl::Scheme;
use quantloom_dsl::layout::Shape;
use quantloom_tests::sweep::Share;
use quantloom_tools::conformance::{Failure, Suite};
use rayon::prelude::*;

use crate::warp_group::reads_in_rounds;

/// N and K; of each row a scheme has the first that its layouts hold. Fewer columns than a k-tile of
/// a warp; several k-tiles, the last one short; k-tiles for all warps of a block. Where whatever packs
/// codes lets them be, N is not a multiple of 16 and K is odd.
const SHAPES: [&[(u64, u64)]; 3] = [
    &[(17, 37), (24, 40), (24, 48), (24, 32), (24, 64), (24, 128)],
    &[(41, 321), (40, 328), (40, 336), (40, 352), (40, 384)],
    &[(3, 1157), (8, 1160), (8, 1168), (8, 1184), (8, 1152)],
];

/// One token; a part of a tile of them; more than a skinny product takes.
const TOKENS: [usize; 3] = [1, 3, 17];

/// As many as the suite takes.
fn experts(scheme: &Scheme) -> u64 {
    if scheme.experts.is_some() { 2 } else { 1 }
}

fn fits(scheme: &Scheme, (n, k): (u64, u64)) -> bool {
    let shape = Shape { experts: experts(scheme), n, k };
    scheme.stores.iter().all(|store| scheme.bind(store, shape).is_ok())
}

/// A scheme on a target: each shape with two of the six regimes of seeds, so that all three shapes have
/// every regime. A case is a scheme, a target and a shape.
fn compared(
    share: Share,
    number: usize,
    scheme: &Scheme,
    (of, target): (usize, &str),
    tokens: &[usize],
) -> Result<(), String> {
    let products = 2 * tokens.len() * experts(scheme) as usize;
    for (at, shapes) in SHAPES.iter().enumerate() {
        if !share.takes((number * 2 + of) * SHAPES.len() + at) {
            continue;
        }
        let shape = shapes.iter().find(|shape| fits(scheme, **shape));
        let shape = *shape.ok_or_else(|| format!("{}: none of {shapes:?}", scheme.name))?;
        let seed = (number / SHAPES.len() + at) as u64 % 6;
        let (shapes, seeds) = (vec![shape], vec![seed, seed + 9]);
        let suite = Suite { shapes, tokens: tokens.to_vec(), seeds, every: 1 };
        let device = GpuDevice::new(Simulator::new(target).unwrap());
        match suite.run(scheme, &[&device], &|_| {}).remove(0) {
            Ok(done) if done.products == products && done.not_scheduled.is_empty() => {
                let mut reports = device.executor().take_reports();
                // Warp groups read some planes in two rounds.
                let rounds = reads_in_rounds(scheme);
                reports.retain(|report| !rounds || !report.kernel.contains("warp_group"));
                no_conflicts(&reports)?;
            }
            Ok(done) => return Err(format!("{} {target} {shape:?}: {done:?}", scheme.name)),
            Err(failure) => return Err(failure.to_string()),
        }
    }
    Ok(())
}

/// What [`compared`] says of schemes, side by side.
fn all_compared(share: Share, schemes: &[(usize, &Scheme)], targets: &[(&str, &[usize])]) {
    let wrong = schemes.par_iter().filter_map(|&(number, scheme)| {
        let mut runs = targets
            .iter()
            .enumerate()
            .map(|(of, (target, tokens))| compared(share, number, scheme, (of, *target), tokens));
        runs.find_map(Result::err)
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn catalogue() -> Vec<(usize, &'static Scheme)> {
    quantloom_kernels::catalogue().iter().enumerate().collect()
}

/// An error if lanes in one access have a shared-memory bank conflict; WGSL does not specify banks.
fn no_conflicts(reports: &[Report]) -> Result<(), String> {
    let lost = |report: &&Report| report.conflicts() > 0 && !report.target.starts_with("wgsl");
    reports.iter().find(lost).map_or(Ok(()), |report| Err(report.to_string()))
}

#[test]
fn schemes_multiply() {
    let targets: [(&str, &[usize]); 2] = [("sm_80", &TOKENS), ("sm_90a", &TOKENS)];
    all_compared(Share::new(24, 4), &catalogue(), &targets);
}

/// The same schedules on other chips: 64 lanes, other fragments, no copies that bypass registers.
#[test]
fn schemes_multiply_on_amd_gpus() {
    let targets: [(&str, &[usize]); 2] = [("gfx942", &TOKENS), ("gfx950", &TOKENS)];
    all_compared(Share::new(24, 4), &catalogue(), &targets);
}

/// The same schedules with WMMA: waves of 32 lanes, operands that two lanes hold, and operands that one lane
/// holds.
#[test]
fn schemes_multiply_on_rdna_gpus() {
    let targets: [(&str, &[usize]); 2] = [("gfx1100", &TOKENS), ("gfx1201", &TOKENS)];
    all_compared(Share::new(32, 4), &catalogue(), &targets);
}

/// Elements of x of half the value beside a term that multiplies the sum of x: where scales multiply sums
/// of runs, and where one serves a row.
#[test]
fn shifts_meet_the_sum_of_x_whatever_its_unit() {
    for (number, group) in ["per 1x128", "per channel"].into_iter().enumerate() {
        for code in ["e4m3", "e4m3fnuz"] {
            let scheme = quantloom_dsl::parse(&format!(
                "shifted {{ weight: {code}, scale: f32 {group}, shift: f32 {group}, pack: [k, n], \
                 activation: {code} {{ scale: f32 per token }} }}"
            ));
            let targets: [(&str, &[usize]); 2] = [("gfx942", &TOKENS), ("gfx950", &TOKENS)];
            all_compared(Share::new(4, 2), &[(number, &scheme.unwrap())], &targets);
        }
    }
}

/// Several k-tiles of whole tiles, of few tokens and of many: copies to shared memory, reads of x, of its
/// scales, of codes and of sums. The other tests count ragged shapes of all schemes.
#[test]
fn whole_tiles_have_no_bank_conflicts() {
    let share = Share::new(20, 6);
    let targets = ["gfx942", "gfx950", "gfx1100", "gfx1201", "sm_89", "sm_90a"];
    for (of, target) in targets.into_iter().enumerate() {
        let names = [
            "ct_w4a16",
            "gptq8_v1",
            "ct_mxfp4a16",
            "ct_w4a8",
            "ct_fp8_dynamic",
            "ct_fp8_block",
            "ct_nvfp4a16",
            "ct_nvfp4",
            "ct_mxfp8",
            "quark_w_mxfp6_e3m2_a_mxfp6_e2m3",
        ];
        for (number, name) in names.into_iter().enumerate() {
            if !share.takes(targets.len() * number + of) {
                continue;
            }
            let device = GpuDevice::new(Simulator::new(target).unwrap());
            let (shapes, tokens, seeds) = (vec![(64, 1024)], vec![5, 17, 33], vec![0]);
            let suite = Suite { shapes, tokens, seeds, every: 1 };
            let scheme = quantloom_kernels::scheme(name).unwrap();
            let done = suite.run(scheme, &[&device], &|_| {}).remove(0).unwrap();
            assert_eq!(done.not_scheduled.len(), 0, "{name} on {target}: {done:?}");
            let reports = device.executor().take_reports();
            // Of warp groups or of warps, as the target and the scheme have them.
            let kinds = [
                ["__skinny_", "__skinny_"],
                ["__warp_group_m16", "__tile_m32"],
                ["__warp_group_m32", "__tile_m64"],
            ];
            for kinds in kinds {
                let ran = |report: &Report| kinds.iter().any(|kind| report.kernel.contains(kind));
                assert!(reports.iter().any(ran), "none of {kinds:?} of {name} on {target}");
            }
            no_conflicts(&reports).unwrap();
        }
    }
}

/// The schemes whose products scale both operands in the instruction of a chip.
fn scaled_by_the_product(chip: &str) -> Vec<&'static Scheme> {
    let target = target(chip).unwrap();
    let scales = |scheme: &&Scheme| {
        let mut plans =
            scheme.activations.iter().map(|activation| plan(scheme, activation, target));
        plans.any(|plan| plan.is_ok_and(|plan| plan.compute.product.scaling().is_some()))
    };
    quantloom_kernels::catalogue().iter().filter(scales).collect()
}

/// Formats of 4, 6 and 8 bits on both sides, mixed ones too, with every regime of seeds.
#[test]
fn mx_times_mx_is_right_where_it_is_native() {
    let schemes = scaled_by_the_product("gfx950");
    for name in ["ct_mxfp4", "ct_mxfp8", "ct_mxfp6a8", "quark_w_mxfp4_a_mxfp6_e3m2"] {
        assert!(schemes.iter().any(|scheme| scheme.name == name), "{name}");
    }
    let all = (0..4).flat_map(|first| {
        schemes.iter().enumerate().map(move |(number, scheme)| (3 * first + number, *scheme))
    });
    all_compared(Share::new(48, 4), &all.collect::<Vec<_>>(), &[("gfx950", &TOKENS)]);
}

/// The same by `mma` with block scales, NVFP4 too.
#[test]
fn blocks_with_scales_are_right_where_they_are_native() {
    let schemes = scaled_by_the_product("sm_120a");
    for name in ["ct_mxfp4", "ct_mxfp8", "ct_mxfp6a8", "ct_nvfp4", "modelopt_nvfp4"] {
        assert!(schemes.iter().any(|scheme| scheme.name == name), "{name}");
    }
    let all = (0..4).flat_map(|first| {
        schemes.iter().enumerate().map(move |(number, scheme)| (3 * first + number, *scheme))
    });
    let tokens = [1, 3, 17, 33];
    all_compared(Share::new(48, 4), &all.collect::<Vec<_>>(), &[("sm_120a", &tokens)]);
}

/// The same in tensor memory.
#[test]
fn blocks_with_scales_are_right_in_tensor_memory() {
    let schemes = scaled_by_the_product("sm_100a");
    for name in ["ct_mxfp4", "ct_mxfp8", "ct_nvfp4", "modelopt_nvfp4"] {
        assert!(schemes.iter().any(|scheme| scheme.name == name), "{name}");
    }
    let all = (0..4).flat_map(|first| {
        schemes.iter().enumerate().map(move |(number, scheme)| (3 * first + number, *scheme))
    });
    let tokens = [1, 3, 17, 33];
    all_compared(Share::new(48, 4), &all.collect::<Vec<_>>(), &[("sm_100a", &tokens)]);
}

/// With lanes only, as in WGSL; also few tokens with four lanes that exchange registers.
#[test]
fn schemes_multiply_without_matrix_instructions() {
    let targets: [(&str, &[usize]); 2] = [("wgsl", &TOKENS), ("wgsl_subgroups", &TOKENS[..2])];
    all_compared(Share::new(80, 8), &catalogue(), &targets);
}

/// The schemes that are multiplied in FP8 if the instruction exists.
fn in_fp8() -> Vec<&'static Scheme> {
    let target = target("sm_89").unwrap();
    let is_fp8 = |scheme: &&Scheme| {
        let mut plans =
            scheme.activations.iter().map(|activation| plan(scheme, activation, target));
        plans.any(|plan| plan.is_ok_and(|plan| plan.compute.product.name == "mma_e4m3"))
    };
    quantloom_kernels::catalogue().iter().filter(is_fp8).collect()
}

#[test]
fn fp8_products_are_right_where_they_are_native() {
    let schemes = in_fp8();
    assert!(schemes.iter().any(|scheme| scheme.name == "fp8_block"));
    let schemes: Vec<_> = schemes.into_iter().enumerate().collect();
    all_compared(Share::new(24, 4), &schemes, &[("sm_89", &TOKENS), ("sm_120", &TOKENS)]);
}

/// The bound is that of f32 sums: a chip that truncates FP8 sums to 14 bits exceeds it.
#[test]
fn coarse_fp8_sums_are_found() {
    let scheme = quantloom_kernels::scheme("fp8_block").unwrap();
    let shapes = vec![(41, 321)];
    let suite = Suite { shapes, tokens: TOKENS.to_vec(), seeds: (0..6).collect(), every: 1 };
    let simulator = Simulator::new("sm_89").unwrap();
    let device = GpuDevice::new(simulator.with_truncated_fp8());
    let failure = suite.run(scheme, &[&device], &|_| {}).remove(0).unwrap_err();
    assert!(matches!(failure, Failure::Mismatch { .. }), "{failure}");
}
