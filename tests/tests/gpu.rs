//! GPU products behind the common interface, run by the simulator: choice of kernels, packing,
//! launch rules, arguments. On hardware only the executor's launch differs.

use std::sync::Arc;

use quantloom::codegen::jit::{Jit, JitWithOverrides, KEPT_REPORTS, Overrides, Simulator};
use quantloom::codegen::sim::Report;
use quantloom::runtime::gpu::{
    Arrangement, ChosenKernel, GpuDevice, NativeBuffer, Products, Request,
};
use quantloom::runtime::op::{Op as _, Values, bf16};
use quantloom::runtime::pack::pack;
use quantloom::runtime::source::{KernelKey, KernelSource, KernelText, Refusal};
use quantloom::runtime::unpacked::Unpacked;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::checkpoint::{Checkpoint, Options};
use quantloom_runtime::weight_data::WeightData;
use quantloom_tests::ops::{answers_for_any_tokens, weights};
use quantloom_tests::sweep::Share;
use quantloom_tests::{golden_file, golden_layers};
use quantloom_tools::check::{Finding, Subject, Verdict, check};
use quantloom_tools::conformance::{Failure, Suite, Summary, draw};
use rayon::prelude::*;

fn scheme(name: &str) -> &'static Scheme {
    quantloom_kernels::scheme(name).unwrap()
}

fn simulator(target: &str) -> Simulator {
    Simulator::new(target).unwrap()
}

/// One shape, these M, seeds of both types of x.
fn verify(
    simulator: Simulator,
    scheme: &Scheme,
    shape: (u64, u64),
    tokens: &[usize],
) -> Result<Summary, Box<Failure>> {
    let suite =
        Suite { shapes: vec![shape], tokens: tokens.to_vec(), seeds: vec![0, 1, 5], every: 1 };
    suite.run(scheme, &[&GpuDevice::new(simulator)], &|_| {}).remove(0).map_err(Box::new)
}

/// A scheme says the type of y: results in memory of that type, and of f32, are compared, and all tokens have kernels.
#[test]
fn the_type_of_y_is_the_schemes() {
    for (output, target) in
        [("f16", "sm_80"), ("bf16", "sm_90a"), ("f32", "sm_90a"), ("f16", "wgsl")]
    {
        let text = format!(
            "s {{ weight: u4 - 8, scale: bf16 per 1x32, pack: u32 [k:8 | k, n], activation: bf16 | f16 | f32, \
             output: {output} }}"
        );
        let tokens: Vec<usize> = (1..5).collect();
        let done = verify(simulator(target), &parse(&text).unwrap(), (33, 160), &tokens).unwrap();
        assert!(done.not_scheduled.is_empty(), "{output}, {target}: {done:?}");
        assert_eq!(done.products, 3 * tokens.len(), "{output}, {target}");
    }
}

/// x that is not finite is refused where x is quantised, as on a CPU; a float x carries the value into y.
#[test]
fn quantised_x_is_finite() {
    let layers = ["ct_w8a8", "ct_fp8", "ct_nvfp4", "ct_w4a16"];
    for (name, target) in layers.into_iter().flat_map(|name| [(name, "sm_90a"), (name, "wgsl")]) {
        let checkpoint = Checkpoint::open(golden_file(name)).unwrap();
        let layer = checkpoint.layers().find_map(|(_, layer)| layer.ok()).unwrap();
        let Ok(prepared) = layer.prepare(&GpuDevice::new(simulator(target))) else {
            assert_eq!(target, "wgsl", "{name}");
            continue;
        };
        let k = layer.shape().k as usize;
        for value in [f32::NAN, f32::NEG_INFINITY] {
            let mut x = vec![bf16::from_f32(0.5); 3 * k];
            x[k + 7] = bf16::from_f32(value);
            let found = prepared.op().matmul(0, Values::Bf16(&x));
            match name {
                "ct_w4a16" => assert!(!found.unwrap()[layer.shape().n as usize].is_finite()),
                _ => {
                    let said = found.unwrap_err().to_string();
                    assert!(said.starts_with("x[1, 7] is"), "{name}, {target}: {said}");
                }
            }
        }
    }
}

#[test]
fn int4_products_are_right_on_ragged_shapes() {
    // N and K whole; with partial tiles, chunks and groups; a K of real models; tiny.
    for (name, target, shape, tokens) in [
        ("ct_w4a16", "sm_90a", (64, 512), &[1, 3, 8, 16][..]),
        ("ct_w4a16", "sm_90a", (41, 200), &[1, 3, 8, 16]),
        ("ct_w4a16", "sm_80", (48, 2880), &[1, 8]),
        ("ct_w4a16", "sm_89", (5, 8), &[1, 16]),
        ("ct_w4a16_asym", "sm_90a", (72, 648), &[1, 3, 8, 16]),
        ("ct_w4a16_bias", "sm_90a", (41, 264), &[1, 3, 16]),
        ("awq4", "sm_90a", (48, 384), &[2, 16]),
        ("gptq4_v2", "sm_80", (33, 328), &[3, 8]),
    ] {
        let done = verify(simulator(target), scheme(name), shape, tokens)
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(done.products, tokens.len() * 3, "{name}: {done:?}");
        // Results are rounded to 16 bits, which alone may use up the bound.
        assert!(done.not_scheduled.is_empty() && done.share > 0.1, "{name}: {done:?}");
    }
}

#[test]
fn products_of_any_number_of_rows_are_right() {
    for (name, shape, tokens) in [
        ("ct_w4a16", (48, 256), &[17, 64, 130][..]),
        ("ct_w4a16_asym", (41, 200), &[35]),
        ("ct_w4a16_bias", (72, 264), &[19]),
        // Few rows of w and many groups: split-K.
        ("ct_w4a16", (32, 2048), &[33]),
    ] {
        let done = verify(simulator("sm_90a"), scheme(name), shape, tokens)
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(done.products, tokens.len() * 3, "{name}: {done:?}");
    }
}

/// The compiler's kernels, with other choices.
struct Chosen(fn(&Request<'_>, u64) -> Result<ChosenKernel, Refusal>);

impl KernelSource for Chosen {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        Jit.text(key)
    }
}

impl Products for Chosen {
    fn arrangement(&self, request: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Jit.arrangement(request)
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativeBuffer>, Refusal> {
        Jit.native(request)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<ChosenKernel, Refusal> {
        self.0(request, tokens)
    }

    fn operand(
        &self,
        request: &Request<'_>,
        product: Option<&KernelKey>,
    ) -> Result<Vec<KernelKey>, Refusal> {
        Jit.operand(request, product)
    }
}

/// A one-line scheme: its weight, its group parameters, and x.
fn declared(weight: &str, numbers: &str, activation: &str) -> Scheme {
    let text = format!(
        "s {{ weight: {weight}, {numbers}, pack: u32 [k:* | w, n], activation: {activation} }}"
    );
    parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults:?}"))
}

/// Groups that products do not use directly: they are divided into smaller ones, or padded. Groups
/// of w, of x, of both with other sizes; blocks; several levels; zero points and shifts with their
/// own groups. Every target, skinny and tile schedules, K that is not a multiple of a group.
const GROUPS: &[(&str, &str, &str)] = &[
    // Whole segments of 16 or 8, none, and columns with scales of their own.
    ("u4 - 8", "scale: f16 per 1x48", "f16"),
    ("u4 - 8", "scale: bf16 per 1x40", "bf16"),
    ("u3 - 4", "scale: f16 per 1x72", "f16"),
    ("e2m1", "scale: e8m0 per 1x24", "bf16"),
    ("u4 - 8", "scale: bf16 per 1x8", "bf16"),
    ("u4 - 8", "scale: bf16 per 1x100", "bf16"),
    ("u4 - 8", "scale: bf16 per 1x3", "bf16"),
    ("u4 - 8", "scale: bf16 per 1x1", "bf16"),
    ("u8 - 128", "scale: f32 per 5x7", "bf16"),
    ("e4m3", "scale: f32 per 2x24", "f16"),
    // Levels, zero points and shifts with other sizes; the last groups of 16 and 48 are padded to
    // 16.
    ("u4", "zero: u4 per 1x24, scale: f16 per 1x40", "f16"),
    ("u4", "zero: f16 per 1x20, scale: f16 per 1x60", "f16"),
    ("u4 - 8", "scale: e4m3 per 1x12, scale: f32 per 1x36, shift: f16 per 1x18", "bf16"),
    ("u4", "zero: u8 per 1x64, scale: f16 per 1x48", "f16"),
    // x in groups other than those of w.
    ("i4", "scale: f32 per 1x64", "i8 { scale: f32 per 1x48 }"),
    ("i4", "scale: f32 per 1x24", "i8 { scale: f32 per 1x24 }"),
    ("i4", "scale: f32 per 1x40", "i8 { scale: f32 per token }"),
    (
        "e4m3",
        "scale: f32 per 128x128",
        "e4m3 { scale: f32 per 1x20, scale: f32 per token from amax / 7168 }",
    ),
    ("i4", "scale: f32 per 1x32", "u8 { zero: u8, scale: f32 per 1x10 }"),
    ("i8", "scale: f32 per channel", "i8 { scale: f32 per 1x384 }"),
];

/// Columns with a group index: groups of any size and balance, x quantised, each kind of parameter
/// grouped.
const ORDERED: &[(&str, &str, &str)] = &[
    ("u4 - 8", "scale: f16 per 1x32, index: i32", "f16"),
    ("u4", "zero: u4 + 1 per 1x32, scale: f16 per 1x32, index: i32", "f16 | bf16"),
    ("u4 - 8", "scale: f16 per 1x8, index: i32", "f16"),
    ("u3 - 4", "scale: f16 per 1x44, index: i16", "bf16"),
    ("e3m3", "scale: e8m0 per 1x64, index: i32", "bf16"),
    ("u4", "zero: u8 per 1x128, scale: f16 per channel, index: i32", "f16"),
    ("u4", "shift: f16 per 1x128, scale: f16 per channel, index: i32", "f16"),
    ("u4 - 8", "scale: e8m0 per channel, scale: f16 per 3x16, index: u8", "f16"),
    ("i4", "scale: f16 per 1x32, index: i32", "i8 { scale: f32 per token }"),
    ("i4", "scale: f16 per 1x32, index: i32", "i8 { scale: f32 per 1x32 }"),
    ("i4", "scale: f16 per 1x48, index: i32", "i4 { scale: f32 per 1x24 }"),
    ("e4m3", "scale: f32 per 1x64, index: i16", "e4m3 { scale: f32 per token }"),
];

/// A case is a scheme on a target.
#[test]
fn groups_of_any_size_and_order_are_multiplied() {
    let share = Share::new(18, 2);
    let all = GROUPS.iter().chain(ORDERED).enumerate().collect::<Vec<_>>();
    let targets = ["sm_80", "sm_89", "sm_90a", "sm_120", "gfx942", "gfx950", "wgsl"];
    all.par_iter().for_each(|(number, (weight, numbers, activation))| {
        let scheme = declared(weight, numbers, activation);
        for (at, target) in
            targets.into_iter().enumerate().filter(|(at, _)| share.takes(7 * number + at))
        {
            // A token, some of them, and a tile of them; whole k-tiles, and not.
            let shape = [(48, 256), (33, 160), (17, 321)][(number + at) % 3];
            let tokens = [1, [3, 7, 16, 19][(number + 2 * at) % 4]];
            let done = verify(simulator(target), &scheme, shape, &tokens);
            let done = done.unwrap_or_else(|failure| panic!("{scheme} on {target}: {failure}"));
            assert!(done.not_scheduled.is_empty(), "{scheme} on {target}: {done:?}");
        }
    });
}

/// Nine bits: the difference of a code of i8 and a static zero point of u8.
#[test]
fn differences_of_codes_and_static_zero_points_are_exact() {
    let text = "s { weight: e2m3, pack: u8 [code, pad 2 | k, n], activation: i8 { zero: u8, \
                scale: e4m3 per tensor static, scale: f16 per 1x285 } }";
    let scheme = parse(text).unwrap_or_else(|faults| panic!("{faults:?}"));
    for target in ["sm_80", "sm_90a", "gfx942"] {
        let suite =
            Suite { shapes: vec![(39, 1024)], tokens: vec![6], seeds: vec![3, 15, 27], every: 1 };
        let device = GpuDevice::new(simulator(target));
        let done = suite.run(&scheme, &[&device], &|_| {}).remove(0);
        let done = done.unwrap_or_else(|failure| panic!("{target}: {failure}"));
        assert_eq!(done.products, 3, "{target}: {done:?}");
    }
}

#[test]
fn more_rows_than_a_launch_takes_are_cut_into_chunks() {
    let few = Chosen(|request, tokens| Jit.choose(request, tokens.min(16)));
    let simulator = simulator("sm_90a").with_source(Arc::new(few));
    let done = verify(simulator, scheme("ct_w4a16"), (32, 256), &[17, 35]);
    let done = done.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!((done.products, done.elements), (6, 3 * (17 + 35) * 32), "{done:?}");
}

#[test]
fn blocks_that_split_k_find_their_workspaces() {
    let cases: [(&str, &[usize]); 2] =
        [("use skinny; skinny(splits=3)", &[1, 9]), ("use tile; tile(splits=3)", &[20])];
    for (choices, tokens) in cases {
        let split = JitWithOverrides::new(choices.parse().unwrap());
        let simulator = simulator("sm_90a").with_source(Arc::new(split));
        let done = verify(simulator, scheme("ct_w4a16_asym"), (48, 512), tokens);
        let done = done.unwrap_or_else(|failure| panic!("{choices}: {failure}"));
        assert_eq!(done.products, 3 * tokens.len(), "{choices}: {done:?}");
    }
}

#[test]
fn what_no_schedule_takes_is_never_a_pass() {
    let scheme = parse(quantloom_tests::UNSCHEDULED).unwrap();
    let result = verify(simulator("sm_90a"), &scheme, (64, 256), &[1]);
    let Some(Failure::NotScheduled { why, case }) = result.as_ref().err().map(Box::as_ref) else {
        panic!("{result:?}")
    };
    let why = why.to_string();
    assert!(why.contains("u32 scales of activations"), "{case}: {why}");
    // A scheme with some unsupported products passes with the others, and reports the unsupported
    // ones: here scales of 32-bit integers, for x of a type that the list leaves to the quantiser.
    let text = "s { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], \
                activation: bf16 | i8 { scale: u32 per token } }";
    let shapes = vec![(33, 160), (17, 321)];
    let suite = Suite { shapes, seeds: (0..6).collect(), tokens: vec![1], every: 1 };
    let device = GpuDevice::new(simulator("sm_90a"));
    let done = suite.run(&parse(text).unwrap(), &[&device], &|_| {}).remove(0).unwrap();
    assert!(done.products > 2, "{done:?}");
    assert!(
        done.not_scheduled.iter().any(|(_, why)| why.to_string().contains("u32 scales")),
        "{done:?}"
    );
}

/// One row per lane and several, K whole and split, one token and several, on shapes that are
/// multiples of none of them; exact integer sums, two levels of scales, groups shorter than a
/// chunk. If lanes exchange registers, four, two or one of them add up a row's sum.
#[test]
fn every_tile_of_lanes_is_right() {
    let tiles =
        [[1, 1, 1, 1], [8, 4, 2, 1], [4, 2, 1, 4], [2, 1, 4, 4], [8, 1, 1, 8], [4, 4, 4, 1]];
    for (tokens, tile) in tiles.into_iter().enumerate() {
        for (name, shape) in
            [("ct_w4a16_asym", (41, 264)), ("ct_w8a8", (72, 320)), ("ct_nvfp4a16", (24, 352))]
        {
            let [_, _, groups, parts] = tile;
            let whole = 16 * groups * parts % 128 == 0;
            let targets = if whole { &["wgsl", "wgsl_subgroups"][..] } else { &["wgsl"] };
            for target in targets {
                let names = ["tokens", "row_tiles", "groups", "parts"].map(str::to_owned);
                let choices = names.into_iter().zip(tile).collect();
                let source = Arc::new(JitWithOverrides::new(Overrides::of_all(choices)));
                let simulator = simulator(target).with_source(source);
                let done = verify(simulator, scheme(name), shape, &[1, 2 * tokens + 1])
                    .unwrap_or_else(|failure| panic!("{target} {tile:?}: {failure}"));
                assert!(done.not_scheduled.is_empty() && done.share > 0.01, "{name}: {done:?}");
            }
        }
    }
}

fn golden(name: &str) -> Vec<Finding> {
    let path = golden_file(name);
    let checkpoint = Checkpoint::open_with(&path, Options::default()).unwrap();
    check(&checkpoint, &GpuDevice::new(simulator("sm_90a")))
}

#[test]
fn the_simulator_meets_the_results_of_other_software() {
    let findings: Vec<(String, Finding)> = golden_layers()
        .into_par_iter()
        .flat_map_iter(|name| golden(&name).into_iter().map(move |found| (name.clone(), found)))
        .collect();
    let (passed, others): (Vec<_>, Vec<_>) =
        findings.iter().partition(|(_, found)| found.verdict == Verdict::Pass);
    assert!(others.is_empty(), "{others:?}");
    let products = passed.iter().filter(|(_, found)| found.subject == Subject::Product).count();
    assert!(products > 40 && passed.len() > 90, "{products} products of {}", passed.len());
}

/// A simulator that lives long does not grow with each launch, and keeps the total of all costs.
#[test]
fn the_simulator_keeps_the_latest_reports_and_totals() {
    let device = GpuDevice::new(simulator("sm_90a"));
    let scheme = scheme("ct_w4a16");
    let weight = draw::layer(scheme, Shape::matrix(32, 128), 0);
    let packed = pack(scheme, &weight).unwrap();
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    let weight = Unpacked::new(scheme, Shape::matrix(32, 128), &stored).unwrap();
    let weight = device.prepare(scheme, &weight).unwrap();
    let x = vec![bf16::ONE; 128];
    weight.matmul(0, Values::Bf16(&x)).unwrap();
    let first: Vec<_> = device.executor().take_reports();
    let instructions = |reports: &[Report]| reports.iter().map(Report::instructions).sum::<u64>();
    let before = device.executor().totals();
    assert_eq!(before.launches, first.len() as u64);
    assert_eq!(before.instructions, instructions(&first));
    let products = KEPT_REPORTS + 20;
    for _ in 0..products {
        weight.matmul(0, Values::Bf16(&x)).unwrap();
    }
    let launches = (products * first.len()) as u64;
    let after = device.executor().totals();
    assert_eq!(after.launches - before.launches, launches);
    let all = instructions(&first) * products as u64;
    assert_eq!(after.instructions - before.instructions, all);
    let latest = device.executor().take_reports();
    assert_eq!(latest.len(), KEPT_REPORTS);
    assert_eq!(latest.last(), first.last());
}

/// However many tokens are asked about, an op has an answer: no sum of bytes wraps.
#[test]
fn no_number_of_tokens_is_too_large_to_ask_a_gpu_about() {
    for (scheme, weight) in weights() {
        for target in ["sm_90a", "gfx942", "wgsl"] {
            let device = GpuDevice::new(simulator(target));
            let data = WeightData::unpacked(&scheme, &weight);
            let op = device.prepare_weight(&data).unwrap();
            answers_for_any_tokens(&*op, 256);
        }
    }
}
