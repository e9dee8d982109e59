//! The operand of x: codes, scales and zero points are the reference's, for every quantiser of the
//! catalogue and some that nobody uses.

use std::collections::BTreeSet;
use std::path::Path;

use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::{
    Binary, Body, Buffer, Compare, Half, Kernel, Op, Operand as Value, Space, Statement, Ternary,
    Unary, Verified, verify,
};
use quantloom_codegen::plan::Operand;
use quantloom_codegen::schedule::activation::{ActivationProblem, activation};
use quantloom_codegen::schedule::{InputScale, Problem, Unscheduled};
use quantloom_codegen::target::target;
use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number};
use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{Activation, Scheme, parse};
use quantloom_tests::tools::ptxas;
use rayon::prelude::*;

use crate::kernels::operand::{Kind, Rows};

const OWN: [FloatFormat; 3] = [BF16, F16, F32];
const OPERANDS: [Operand; 6] =
    [Operand::I8, Operand::E4m3, Operand::E4m3Fnuz, Operand::Bf16, Operand::F16, Operand::F32];

/// Schemes of the catalogue with each of their activations.
fn every() -> Vec<(Scheme, Activation)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels-generated/schemes");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let schemes = files.iter().map(|path| parse(&std::fs::read_to_string(path).unwrap()).unwrap());
    let pairs = |scheme: Scheme| {
        let activations = scheme.activations.clone().into_iter();
        activations.map(move |activation| (scheme.clone(), activation))
    };
    schemes.flat_map(pairs).collect()
}

/// Those of the catalogue, one for each quantiser.
fn catalogue() -> Vec<(Scheme, Activation)> {
    let mut known = BTreeSet::new();
    let mut all = every();
    all.retain(|(scheme, activation)| {
        known.insert(format!("{activation:?} {:?}", scheme.arithmetic))
    });
    all
}

/// Quantisers that nobody uses, each with something that no other has.
const OTHERS: &[(&str, &str)] = &[
    ("u8 { zero: u8, scale: f32 per 1x64 }", "f32"),
    ("e5m2 { scale: f32 per token }", "f32"),
    ("e2m3 { scale: e8m0 per 1x32 from pow2 }", "own"),
    ("e2m1 { scale: bf16 per 1x32 from pow2 above 1.5 }", "own"),
    ("i8 { zero: i8, scale: own per token }", "own"),
    ("i8 { scale: f32 per token, ties: away }", "f32"),
    ("i8 { zero: i8, scale: f32 per tensor }", "f32"),
    ("i8 { zero: i8, scale: f32 per tensor static, ties: away }", "f32"),
    ("e2m1 { scale: divide f32 per 1x32 from pow2 }", "f32"),
    ("e4m3 { scale: divide bf16 per token }", "own"),
    ("e2m1 { scale: e4m3 per 1x16, scale: f32 per tensor from amax / 2688 }", "f32"),
    ("e2m1 { scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688 }", "own"),
    ("e2m1 { scale: e4m3 per 1x16, scale: f32 per token from amax / 2688 }", "own"),
    ("i8 { scale: divide f32 per 1x64, scale: bf16 per token from amax / 16 }", "own"),
    ("i4 { scale: u8 per 1x16, scale: f32 per token from amax / 256 }", "f32"),
    ("i8 { scale: divide i16 per token }", "own"),
    // Of a row of zeros the product of the levels is 0.
    ("e2m1 { scale: e8m0 per 1x32, scale: f32 per token }", "f32"),
    ("e4m3 { scale: e8m0 per 1x32 from pow2, scale: f32 per token }", "own"),
    ("i8 { zero: i8, scale: e8m0 per 1x64 from pow2, scale: f32 per token }", "f32"),
    // 1 is subnormal in the one, and no number of the other.
    ("i8 { scale: e1m3fn per token }", "f32"),
    ("i8 { scale: divide e1m0 per token }", "f32"),
    // Groups of several tokens, alone and around others.
    ("i8 { scale: own per 4x16 }", "own"),
    ("u8 { zero: u8, scale: f32 per 3x32 }", "f32"),
    (
        "i8 { scale: f32 per 2x16, scale: bf16 per token, scale: f32 per tensor from amax / 16 }",
        "own",
    ),
    ("e4m3 { scale: f32 per 2x32, scale: f32 per 5x32 from amax / 16 }", "f32"),
    // A group has columns of several groups of the next level.
    ("i8 { scale: own per 1x24, scale: own per 1x32 }", "own"),
    ("e2m1 { scale: e4m3 per 1x32, scale: f32 per 1x48 from amax / 2688 }", "f32"),
    ("u4 { zero: u4, scale: f32 per 1x64, scale: f32 per 1x16 from amax / 4 }", "f32"),
    ("u4 { zero: u4, scale: f32 per token, scale: f32 per 1x64 }", "f32"),
    ("i8 { scale: f32 per token, scale: bf16 per 1x64, scale: f32 per token }", "own"),
    ("i8 { scale: f32 per tensor, scale: f32 per token from amax / 16 }", "f32"),
    ("u8 { zero: u8, scale: f32 per tensor, scale: own per 3x16 from amax / 16 }", "own"),
    ("i8 { scale: f32 per tensor static, scale: f32 per 1x32 }", "f32"),
    // Powers of two by other rules, and for codes below 2.
    ("i8 { scale: e8m0 per 1x32 from amax / 127 }", "f32"),
    ("i8 { scale: e8m0 per token from amax / 127, ties: away }", "own"),
    ("e4m3 { scale: divide e8m0 per 1x32 from amax / 448 }", "f32"),
    ("i8 { scale: divide e8m0 per token from pow2 }", "own"),
    ("u1 { scale: e8m0 per token from pow2 above 1.5 }", "f32"),
    ("i1 { scale: bf16 per 1x32 from pow2 / 0.3 }", "own"),
    // Types that do not hold the smallest step of arithmetic, nor 1.
    ("i8 { scale: e1m6finite per token from amax / 127 }", "f32"),
    ("i8 { scale: divide e1m6finite per token from amax / 127 }", "f32"),
    ("i8 { scale: u24 per token from amax / 1e-3 }", "f32"),
];

fn other(activation: &str, arithmetic: &str) -> Scheme {
    let text = format!(
        "s {{ weight: i8, scale: f32 per channel, pack: u8 [code | k, n], \
         activation: {activation}, arithmetic: {arithmetic} }}"
    );
    parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults:?}"))
}

fn all() -> Vec<(Scheme, Activation)> {
    let others = OTHERS.iter().map(|(activation, arithmetic)| other(activation, arithmetic));
    let others = others.map(|scheme| (scheme.clone(), scheme.activations[0].clone()));
    catalogue().into_iter().chain(others).collect()
}

fn verified(problem: &ActivationProblem, programmatic: bool) -> Vec<Verified<Kernel>> {
    let kernels = activation(problem, programmatic).into_iter();
    kernels.map(|kernel| verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"))).collect()
}

/// The problem of each operand that holds what is multiplied.
fn problems(
    (scheme, activation): &(Scheme, Activation),
    own: FloatFormat,
    sm: &str,
    shape: (u32, u32),
) -> Vec<ActivationProblem> {
    let problem = |operand| {
        let own = Number::Float(own);
        let target = target(sm).unwrap();
        ActivationProblem::new(scheme, activation, own, operand, target, shape, false).ok()
    };
    OPERANDS.into_iter().filter_map(problem).collect()
}

/// Rows that fit 16 bytes, and rows that fit 8, 4 and 2; with pads and without; groups that are cut;
/// several blocks a row, several iterations a thread. All of these for each quantiser and type, or one.
fn operands_are_the_references(all_shapes: bool) {
    let shapes = [(200, 256), (300, 320), (130, 256), (77, 80), (2056, 2304), (5128, 5248)];
    for (number, one) in all().iter().enumerate() {
        for (turn, own) in OWN.into_iter().enumerate() {
            let mut taken = 0;
            for (at, shape) in shapes.into_iter().enumerate() {
                // Every shape for every quantiser, the large ones for one type each.
                if at >= 4 && (number + turn + at) % 3 != 0 {
                    continue;
                }
                let quick = (number + turn) % 4 == at || at >= 4 && number % 8 == 0;
                if !all_shapes && !quick {
                    continue;
                }
                let kinds = if at >= 4 { &Kind::ALL[4..8] } else { &Kind::ALL };
                // Without shuffles, byte permutations and more than 256 threads, too; with shuffles of
                // four.
                let portable = if at % 2 == 0 { "wgsl" } else { "wgsl_subgroups" };
                let plain = problems(one, own, portable, shape);
                for problem in problems(one, own, "sm_90a", shape).into_iter().chain(plain) {
                    let x = Rows::draw(problem.quantiser(), own, shape.0 as usize, kinds, 1);
                    let kernels = verified(&problem, at % 2 == 0);
                    let outcome = x.check(&one.0, &problem, &kernels);
                    outcome.unwrap_or_else(|wrong| {
                        panic!("{:?} {own} {:?} {shape:?}: {wrong}", one.1, problem.operand)
                    });
                    taken += 1;
                }
            }
            let float =
                matches!(one.1, Activation::Float(own_type) if own_type != Number::Float(own));
            assert!(taken > 0 || float, "{:?} {own} is not taken", one.1);
        }
    }
}

#[test]
fn the_operand_is_the_references() {
    operands_are_the_references(false);
}

#[test]
#[ignore = "a long sweep: .ci/run runs it"]
fn the_operand_is_the_references_for_every_shape() {
    operands_are_the_references(true);
}

/// Codes of 4, 6 and 8 bits and scales of e8m0 as an instruction reads them that scales: with pads and
/// without, groups that are cut, several blocks a row.
#[test]
fn codes_with_their_scales_are_the_references() {
    let shapes = [(200, 256), (300, 384), (256, 256), (77, 128), (2056, 2304)];
    for (code, operand, above) in [
        ("e2m1", Operand::E2m1, 1.75),
        ("e2m3", Operand::E2m3, 1.9375),
        ("e3m2", Operand::E3m2, 1.875),
        ("e4m3", Operand::E4m3, 1.75),
    ] {
        for (own, arithmetic) in OWN.into_iter().flat_map(|own| [(own, "own"), (own, "f32")]) {
            let activation = format!("{code} {{ scale: e8m0 per 1x32 from pow2 above {above} }}");
            let scheme = other(&activation, arithmetic);
            let (of, number) = (&scheme.activations[0], Number::Float(own));
            for shape in shapes {
                let chip = target("gfx950").unwrap();
                let problem =
                    ActivationProblem::new(&scheme, of, number, operand, chip, shape, false);
                let problem = problem.and_then(ActivationProblem::leaving_codes).unwrap();
                let x = Rows::draw(problem.quantiser(), own, shape.0 as usize, &Kind::ALL, 1);
                let outcome = x.check(&scheme, &problem, &verified(&problem, false));
                outcome.unwrap_or_else(|wrong| panic!("{code} {own} {shape:?}: {wrong}"));
            }
        }
    }
}

/// What a product reads is made: its elements, its columns, its scales.
#[test]
fn products_get_their_operand() {
    let mut made = 0;
    for (scheme, activation) in every() {
        for (sm, k) in ["sm_80", "sm_89", "sm_90a", "gfx950", "wgsl"]
            .into_iter()
            .flat_map(|sm| [(sm, 4096), (sm, 200)])
        {
            let target = target(sm).unwrap();
            let Ok(product) = Problem::new(&scheme, &activation, target, (256, k)) else {
                continue;
            };
            if !product.input.prepared {
                continue;
            }
            let (input, gathers) = (product.input, product.order.is_some());
            let (operand, shape) = (input.operand, (k, input.columns));
            for own in OWN.map(Number::Float) {
                if matches!(activation, Activation::Float(number) if number != own) {
                    continue;
                }
                let problem = ActivationProblem::new(
                    &scheme,
                    &activation,
                    own,
                    operand,
                    target,
                    shape,
                    gathers,
                );
                let problem = problem.unwrap_or_else(|error| panic!("{}: {error}", scheme.name));
                let problem = match input.codes {
                    true => problem.leaving_codes().unwrap(),
                    false => problem.in_segments(input.scale.and_then(InputScale::columns)),
                };
                // Codes are four to a word.
                let of_word = if input.codes { 4 } else { 1 };
                let groups = problem.quantiser().map(|_| problem.groups() / of_word);
                assert_eq!(groups, product.input.groups(), "{} {activation:?}", scheme.name);
                made += 1;
            }
        }
    }
    assert!(made > 0);
}

/// Rows longer than a block's registers, and so many columns that lanes have several pieces.
#[test]
fn long_rows_are_read_twice() {
    let scheme = other("i8 { zero: i8, scale: own per token, ties: away }", "own");
    let one = (scheme.clone(), scheme.activations[0].clone());
    for k in [32_776, 33_000] {
        let problem = problems(&one, BF16, "sm_90a", (k, 33_024)).remove(0);
        let kinds = [Kind::Ties, Kind::NotFinite];
        let x = Rows::draw(problem.quantiser(), BF16, k as usize, &kinds, 2);
        let kernels = verified(&problem, true);
        x.check(&scheme, &problem, &kernels).unwrap();
    }
}

/// x as it is, in another order and with zeros.
#[test]
fn columns_are_gathered() {
    for (own, operand) in [(BF16, Operand::Bf16), (F16, Operand::F16)] {
        let scheme = other(&own.to_string(), "own");
        for (k, padded) in [(200, 264), (77, 80), (2048, 2048)] {
            let (number, target) = (Number::Float(own), target("sm_80").unwrap());
            let problem = ActivationProblem::new(
                &scheme,
                &scheme.activations[0],
                number,
                operand,
                target,
                (k, padded),
                true,
            );
            let problem = problem.unwrap();
            let x = Rows::draw(None, own, k as usize, &Kind::ALL, 4).shuffled(padded as usize);
            x.check(&scheme, &problem, &verified(&problem, false)).unwrap();
        }
    }
}

/// Groups of any size, in segments that products take, and columns in an order that keeps segments inside of
/// groups: the last groups come first, each padded to whole segments.
#[test]
fn groups_of_any_size_are_quantised() {
    // A quantiser, the type of its arithmetic, columns of a segment, whether columns have an order.
    let cases = [
        ("i8 { scale: f32 per 1x48 }", "f32", 16, false),
        ("i8 { scale: f32 per 1x512 }", "f32", 512, false),
        ("i8 { scale: own per 1x5 }", "own", 16, true),
        ("u8 { zero: u8, scale: f32 per 1x24 }", "f32", 16, true),
        ("u4 { zero: u4, scale: f32 per 1x6 }", "f32", 2, false),
        ("e4m3 { scale: e8m0 per 1x40 from pow2 }", "f32", 16, true),
        ("e2m1 { scale: e4m3 per 1x12, scale: bf16 per 1x36 }", "own", 4, false),
        ("e2m1 { scale: e4m3 per 1x32, scale: f32 per token from amax / 2688 }", "f32", 16, true),
        (
            "i8 { scale: divide f32 per 1x10, scale: f32 per tensor from amax / 16 }",
            "f32",
            16,
            true,
        ),
        ("i8 { zero: i8, scale: bf16 per 1x1 }", "f32", 1, false),
        ("u8 { zero: u8, scale: f32 per 4x40 }", "f32", 8, true),
        ("i8 { scale: bf16 per 1x24, scale: f32 per 1x40 }", "own", 8, false),
    ];
    for (number, (clause, arithmetic, segment, ordered)) in cases.into_iter().enumerate() {
        let scheme = other(clause, arithmetic);
        let of = &scheme.activations[0];
        let shapes = [(77u32, "sm_90a"), (1300, "wgsl"), (640, "gfx942")];
        for (at, (k, chip)) in shapes.into_iter().enumerate() {
            let own = OWN[(number + at) % 3];
            let (target, operand) = (target(chip).unwrap(), Operand::F32);
            let finest = match of {
                Activation::Quantised(quantiser) => match quantiser.scales[0].group.cols {
                    GroupSize::Each(columns) => columns,
                    GroupSize::All => panic!("{clause} has no groups"),
                },
                Activation::Float(_) => panic!("{clause} is no quantiser"),
            };
            let mut order = Vec::new();
            for group in (0..k.div_ceil(finest)).rev().filter(|_| ordered) {
                order.extend(group * finest..k.min((group + 1) * finest));
                order.resize(order.len().next_multiple_of(segment as usize), u32::MAX);
            }
            let padded = if ordered { order.len() as u32 } else { k };
            let padded = padded.next_multiple_of(segment.max(8));
            order.resize(if ordered { padded as usize } else { 0 }, u32::MAX);
            let own_type = Number::Float(own);
            let shape = (k, padded);
            let problem =
                ActivationProblem::new(&scheme, of, own_type, operand, target, shape, ordered);
            let problem = problem.unwrap().in_segments(Some(segment));
            let kernels = verified(&problem, at == 0);
            assert_eq!(kernels.len() as u32, problem.launches(), "{clause}");
            let x = Rows::draw(problem.quantiser(), own, k as usize, &Kind::ALL, 7);
            let outcome = x.in_order(order).check(&scheme, &problem, &kernels);
            outcome.unwrap_or_else(|wrong| panic!("{clause} of {own}, K = {k}, {chip}: {wrong}"));
        }
    }
}

/// A scale of a row, or of all of x, and columns in any order.
#[test]
fn gathered_columns_are_quantised() {
    for (clause, operand) in [
        ("i8 { scale: f32 per token }", Operand::I8),
        ("e4m3 { scale: f32 per token }", Operand::E4m3),
        ("i8 { zero: i8, scale: own per token }", Operand::Bf16),
        ("i8 { scale: f32 per tensor static, ties: away }", Operand::F16),
        ("e4m3 { scale: f32 per tensor }", Operand::F32),
    ] {
        let scheme = other(clause, "f32");
        for (k, padded) in [(200, 264), (77, 80), (5000, 5248)] {
            let (own, target) = (Number::Float(BF16), target("sm_89").unwrap());
            let of = &scheme.activations[0];
            let shape = (k, padded);
            let problem = ActivationProblem::new(&scheme, of, own, operand, target, shape, true);
            let problem = problem.unwrap();
            let kinds = if k > 1000 { &Kind::ALL[..3] } else { &Kind::ALL };
            let x = Rows::draw(problem.quantiser(), BF16, k as usize, kinds, 8);
            let outcome =
                x.shuffled(padded as usize).check(&scheme, &problem, &verified(&problem, false));
            outcome.unwrap_or_else(|wrong| panic!("{clause}, K = {k}: {wrong}"));
        }
    }
}

/// Quantisers whose kernels load x in different ways, their operands, the columns of a segment that the
/// product takes, and whether lanes find the scales.
const FACTORED: &[(&str, Operand, Option<u32>)] = &[
    ("bf16", Operand::Bf16, None),
    ("f16", Operand::F16, None),
    ("f32", Operand::F32, None),
    ("f32", Operand::Bf16, None),
    ("i8 { scale: own per token }", Operand::I8, None),
    ("i8 { zero: i8, scale: f32 per token, ties: away }", Operand::Bf16, None),
    ("i8 { scale: f32 per tensor static }", Operand::I8, None),
    ("u8 { zero: u8, scale: f32 per tensor }", Operand::F32, None),
    ("e4m3 { scale: f32 per 1x128 }", Operand::E4m3Fnuz, Some(128)),
    (NV, Operand::F16, Some(16)),
    ("e2m1 { scale: e4m3 per 1x16, scale: f32 per token from amax / 2688 }", Operand::F32, Some(8)),
    ("i8 { scale: divide f32 per 1x48, scale: f32 per tensor }", Operand::F32, Some(16)),
];

fn prescaled(clause: &str, arithmetic: &str, number: Number) -> Scheme {
    Scheme { prescale: Some(number), ..other(clause, arithmetic) }
}

/// x is multiplied by the factors of its columns before all else: rows of every alignment, with pads,
/// in an order, all tokens as one row, a row that is read twice.
#[test]
fn columns_are_multiplied_first() {
    let shapes = [(200, 256), (300, 320), (130, 256), (77, 96), (16_640, 16_640)];
    let targets = ["sm_80", "sm_90a", "gfx942", "wgsl", "wgsl_subgroups"];
    for (number, (clause, operand, segment)) in FACTORED.iter().enumerate() {
        for (at, (k, padded)) in shapes.into_iter().enumerate() {
            for (turn, own) in OWN.into_iter().enumerate() {
                let of = number + at + turn;
                let (chip, arithmetic) = (targets[of % 5], ["own", "f32"][of % 2]);
                // The long rows for a type each.
                if at == 4 && number % 3 != turn {
                    continue;
                }
                let factors = Number::Float(OWN[(of / 2) % 3]);
                let scheme = prescaled(clause, arithmetic, factors);
                let activation = &scheme.activations[0];
                let float = matches!(activation, Activation::Float(_));
                // Gathered groups are as an order has them: `groups_of_any_size_are_quantised`.
                let gathers = of % 2 == 0 && at < 4 && segment.is_none();
                let problem = ActivationProblem::new(
                    &scheme,
                    activation,
                    Number::Float(own),
                    *operand,
                    target(chip).unwrap(),
                    (k, padded),
                    gathers,
                );
                let problem = problem.unwrap().in_segments(*segment);
                let kinds = if at == 4 { &Kind::ALL[..2] } else { &Kind::ALL };
                let x = Rows::draw(problem.quantiser(), own, k as usize, kinds, 9);
                let x = x.with_factors(factors);
                let x = if gathers { x.shuffled(padded as usize) } else { x };
                let outcome = x.check(&scheme, &problem, &verified(&problem, of % 3 == 0));
                outcome.unwrap_or_else(|wrong| {
                    panic!("{clause} of {own}, K = {k}, {chip}, gathered {gathers}: {wrong}")
                });
                // The factors decide something.
                let without = Scheme { prescale: None, ..scheme.clone() };
                let found = x.check(&without, &problem, &verified(&problem, false));
                assert!(found.is_err() || !float, "{clause}: factors change nothing");
            }
        }
    }
}

/// Codes for an instruction that scales, of x times its factors, in an order of groups.
#[test]
fn codes_and_groups_are_of_the_multiplied_x() {
    let factors = Number::Float(F32);
    for (at, own) in OWN.into_iter().enumerate() {
        let scheme = prescaled(MX, ["f32", "own"][at % 2], factors);
        let (of, number) = (&scheme.activations[0], Number::Float(own));
        let chip = target("gfx950").unwrap();
        for shape in [(200, 256), (77, 128)] {
            let problem =
                ActivationProblem::new(&scheme, of, number, Operand::E2m1, chip, shape, false);
            let problem = problem.and_then(ActivationProblem::leaving_codes).unwrap();
            let x = Rows::draw(problem.quantiser(), own, shape.0 as usize, &Kind::ALL, 10);
            let outcome =
                x.with_factors(factors).check(&scheme, &problem, &verified(&problem, false));
            outcome.unwrap_or_else(|wrong| panic!("{own} {shape:?}: {wrong}"));
        }
        // Groups of 20 columns, the last first, each padded to segments of 16.
        let scheme = prescaled("i8 { zero: i8, scale: f32 per 1x20 }", "f32", factors);
        let mut order: Vec<u32> = Vec::new();
        for group in (0..5u32).rev() {
            order.extend(group * 20..(group * 20 + 20).min(90));
            order.resize(order.len().next_multiple_of(16), u32::MAX);
        }
        let (of, shape) = (&scheme.activations[0], (90, order.len() as u32));
        for chip in ["sm_80", "wgsl"] {
            let chip = target(chip).unwrap();
            let problem =
                ActivationProblem::new(&scheme, of, number, Operand::F32, chip, shape, true);
            let problem = problem.unwrap().in_segments(Some(16));
            let x = Rows::draw(problem.quantiser(), own, 90, &Kind::ALL, 11).with_factors(factors);
            let x = x.in_order(order.clone());
            let outcome = x.check(&scheme, &problem, &verified(&problem, false));
            outcome.unwrap_or_else(|wrong| panic!("{own} in an order: {wrong}"));
        }
    }
}

#[test]
fn quantisers_that_are_not_taken_are_named() {
    let cases = [
        ("i8 { scale: own per token }", Operand::E4m3, (64, 64), false, "i8 activations as oper"),
        ("e4m3 { scale: own per token }", Operand::I8, (64, 64), false, "as operands in i8"),
        ("bf16", Operand::I8, (64, 64), false, "bf16 activations as operands in i8"),
        ("i8 { zero: i8, scale: f32 per token }", Operand::I8, (64, 64), false, "operands in i8"),
        (
            "i8 { scale: u25 per token }",
            Operand::Bf16,
            (64, 64),
            false,
            "u25 scales of activations",
        ),
        ("i8 { scale: i32 per 1x32 }", Operand::Bf16, (64, 64), false, "i32 scales of activations"),
        ("i8 { scale: own per token }", Operand::I8, (0, 64), false, "K = 0"),
        ("i8 { scale: own per token }", Operand::I8, (64, 68), false, "P = 68"),
        ("i8 { scale: own per token }", Operand::I8, (64, 56), false, "P = 56"),
    ];
    for (activation, operand, shape, gathers, expected) in cases {
        let scheme = other(activation, "f32");
        let (own, target) = (Number::Float(BF16), target("sm_90a").unwrap());
        let activation = &scheme.activations[0];
        let problem =
            ActivationProblem::new(&scheme, activation, own, operand, target, shape, gathers);
        let error: Unscheduled = problem.unwrap_err();
        assert!(error.to_string().contains(expected), "{activation:?}: {error}");
    }
}

/// Large shapes, every quantiser, without spills: on every target, or each on one.
fn quantisers_assemble(every: usize) {
    let Some(ptxas) = ptxas::find() else { return };
    let targets = ["sm_80", "sm_89", "sm_90a"];
    let factored = all().into_iter().map(|(scheme, activation)| {
        (Scheme { prescale: Some(Number::Float(BF16)), ..scheme }, activation)
    });
    let quantisers: Vec<_> = all().into_iter().chain(factored.step_by(3)).collect();
    let cases = quantisers.iter().enumerate().flat_map(|(number, one)| {
        targets.into_iter().enumerate().map(move |(at, sm)| (number, one, at, sm))
    });
    let cases: Vec<_> = cases.filter(|(number, _, at, _)| (number + at) % every == 0).collect();
    cases.par_iter().for_each(|&(number, one, at, sm)| {
        let own = OWN[(number + at) % 3];
        let shape = [(8192, 8192), (28_672, 28_672), (1000, 1024)][(number + 2 * at) % 3];
        for problem in problems(one, own, sm, shape) {
            for kernel in verified(&problem, true) {
                let assembled = ptxas.assemble(&ptx::emit(&kernel).unwrap(), sm);
                assert!(assembled.is_clean(), "{}:\n{}", kernel.name, assembled.report);
            }
        }
    });
}

#[test]
fn kernels_of_each_quantiser_assemble() {
    quantisers_assemble(3);
}

#[test]
#[ignore = "a long sweep: .ci/run runs it"]
fn kernels_of_each_quantiser_assemble_on_every_target() {
    quantisers_assemble(1);
}

/// What is done to an operation of a kernel with these buffers.
type Mutation = fn(&[Buffer], &mut Op);

fn mutate(body: &mut Body, buffers: &[Buffer], mutation: Mutation) {
    for statement in body {
        match statement {
            Statement::Op(op) => mutation(buffers, op),
            Statement::If { then, otherwise, .. } => {
                mutate(then, buffers, mutation);
                mutate(otherwise, buffers, mutation);
            }
            Statement::For { body, .. } => mutate(body, buffers, mutation),
            other => panic!("the kernels have no {other:?}"),
        }
    }
}

fn is(buffers: &[Buffer], space: Space, name: &str) -> bool {
    matches!(space, Space::Global(id) if buffers[id.0 as usize].name == name)
}

const TOKEN: &str = "i8 { scale: own per token }";
const AWAY: &str = "i8 { scale: f32 per token, ties: away }";
const ZERO: &str = "i8 { zero: i8, scale: f32 per token, ties: away }";
const TENSOR: &str = "i8 { scale: f32 per tensor from amax / 127 }";
const GIVEN: &str = "i8 { scale: f32 per tensor static }";
const BLOCKS: &str = "e4m3 { scale: f32 per 1x128 }";
const MX: &str = "e2m1 { scale: e8m0 per 1x32 from pow2 above 1.75 }";
const NV: &str =
    "e2m1 { scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688 static }";

/// A mutation of some kernels changes them, and is refused by the verifier or found by a check.
fn found(
    what: &str,
    mutation: Mutation,
    mut kernels: Vec<Kernel>,
    check: impl Fn(&[Verified<Kernel>]) -> Result<(), String>,
) {
    let right = kernels.clone();
    for kernel in &mut kernels {
        let buffers = kernel.buffers.clone();
        mutate(&mut kernel.body, &buffers, mutation);
    }
    assert!(kernels != right, "{what} changes nothing");
    let verified: Result<Vec<_>, _> = kernels.into_iter().map(verify).collect();
    let outcome = verified.map_err(|refusals| refusals.to_string());
    let outcome = outcome.and_then(|kernels| check(&kernels));
    assert!(outcome.is_err(), "not found: {what}");
}

/// What is wrong, the quantiser and the operand, and the mutation.
const MISTAKES: &[(&str, &str, Operand, Mutation)] = &[
    ("no wait for the grid before", TOKEN, Operand::I8, |_, op| {
        if *op == Op::GridWait {
            *op = Op::Comment("nothing".into());
        }
    }),
    ("a row's extent read before it is there", TOKEN, Operand::I8, |_, op| {
        if *op == Op::Barrier {
            *op = Op::Comment("nothing".into());
        }
    }),
    ("some lanes are not asked", TOKEN, Operand::I8, |_, op| {
        if let Op::Shuffle { by: by @ Value::U32(8), .. } = op {
            *by = 4u32.into();
        }
    }),
    ("negative values do not count", TOKEN, Operand::I8, |_, op| {
        if let Op::Unary { dst, op: Unary::Abs, a } = op {
            *op = Op::Copy { dst: *dst, a: *a };
        }
    }),
    ("scales of zeros are 0", TOKEN, Operand::I8, |_, op| {
        if let Op::Select { a: a @ Value::F32(0.0078125), .. } = op {
            *a = 0.0f32.into();
        }
    }),
    ("bytes in another order", TOKEN, Operand::I8, |_, op| {
        if let Op::Ternary { op: Ternary::Permute, c: c @ Value::U32(0x5410), .. } = op {
            *c = 0x1054u32.into();
        }
    }),
    ("an integer beyond the code", TOKEN, Operand::I8, |_, op| {
        if let Op::Binary { op: op @ Binary::MinSigned, .. } = op {
            *op = Binary::MaxSigned;
        }
    }),
    ("ties to even", AWAY, Operand::I8, |_, op| {
        if let Op::Compare { op: Compare::EqualF32, b: b @ Value::F32(0.5), .. } = op {
            *b = 0.25f32.into();
        }
    }),
    ("the smallest is the largest", ZERO, Operand::Bf16, |_, op| {
        if let Op::Binary { op: op @ Binary::MinF32, .. } = op {
            *op = Binary::MaxF32;
        }
    }),
    ("a zero point that is not taken off", ZERO, Operand::Bf16, |_, op| {
        if let Op::Binary { op: op @ Binary::SubF32, .. } = op {
            *op = Binary::MaxF32;
        }
    }),
    ("a part of x is not looked through", TENSOR, Operand::I8, |buffers, op| {
        if let Op::Load { from, .. } = op
            && is(buffers, from.space, "extents")
        {
            from.offset = 4;
        }
    }),
    ("quotients without their remainder", GIVEN, Operand::I8, |_, op| {
        if let Op::Ternary { dst, op: Ternary::Fma, c: Value::Reg(near), a, .. } = op
            && *a != Value::Reg(*near)
            && a.reg().is_some_and(|rest| rest.id.0 == near.id.0 + 1)
        {
            *op = Op::Copy { dst: *dst, a: (*near).into() };
        }
    }),
    ("infinities have a remainder", GIVEN, Operand::I8, |_, op| {
        if let Op::Select { dst, condition: Value::Reg(_), a, b: Value::Reg(_) } = op {
            *op = Op::Copy { dst: *dst, a: *a };
        }
    }),
    ("a step too coarse", BLOCKS, Operand::Bf16, |_, op| {
        if let Op::Binary { op: Binary::Add, b: b @ Value::U32(0x0a00_0000), .. } = op {
            *b = 0x0a80_0000u32.into();
        }
    }),
    ("subnormals as if they were normal", BLOCKS, Operand::Bf16, |_, op| {
        if let Op::Binary { op: Binary::Max, b: b @ Value::U32(_), .. } = op {
            *b = 0u32.into();
        }
    }),
    ("the scale of the next group", BLOCKS, Operand::Bf16, |buffers, op| {
        if let Op::Store { to, .. } = op
            && is(buffers, to.space, "x_scale")
        {
            to.offset += 1;
        }
    }),
    ("stores beyond the row", BLOCKS, Operand::Bf16, |buffers, op| {
        if let Op::Store { to, mask, .. } = op
            && is(buffers, to.space, "operand")
        {
            *mask = None;
        }
    }),
    ("another threshold", MX, Operand::Bf16, |_, op| {
        if let Op::Binary { op: Binary::Add, b: b @ Value::U32(0x0020_0000), .. } = op {
            *b = 0x0010_0000u32.into();
        }
    }),
    ("NaN as it is", MX, Operand::Bf16, |_, op| {
        if let Op::Select { b: b @ Value::F32(_), .. } = op {
            *b = 1.0f32.into();
        }
    }),
    ("a negative zero that is NaN", BLOCKS, Operand::E4m3Fnuz, |_, op| {
        if let Op::Select { a: a @ Value::U32(0), .. } = op {
            *a = 0x80u32.into();
        }
    }),
    ("NaN that is a number", BLOCKS, Operand::E4m3Fnuz, |_, op| {
        if let Op::Select { b: b @ Value::U32(0x80), .. } = op {
            *b = 0x7fu32.into();
        }
    }),
    ("elements twice as large", BLOCKS, Operand::E4m3Fnuz, |_, op| {
        if let Op::Binary { op: Binary::MulF32, b: b @ Value::F32(0.5), .. } = op {
            *b = 1.0f32.into();
        }
    }),
    ("the coarse level as a factor", NV, Operand::Bf16, |_, op| {
        if let Op::Binary { op: op @ Binary::DivF32, a: Value::F32(1.0), .. } = op {
            *op = Binary::MulF32;
        }
    }),
];

/// What is wrong of codes with scales as an instruction reads them that scales: the code, the mutation.
const CODE_MISTAKES: &[(&str, &str, Operand, Mutation)] = &[
    ("no signs", "e2m1", Operand::E2m1, |_, op| {
        if let Op::Binary { op: Binary::And, b: b @ Value::U32(8), .. } = op {
            *b = 0u32.into();
        }
    }),
    ("codes that are cut at a word's end", "e2m3", Operand::E2m3, |_, op| {
        if let Op::Binary { op: Binary::Shr, b: b @ Value::U32(2), .. } = op {
            *b = 8u32.into();
        }
    }),
    ("pieces side by side, without the zeros", "e3m2", Operand::E3m2, |_, op| {
        if let Op::Binary { op: Binary::And, b: b @ Value::U32(24), .. } = op {
            *b = 8u32.into();
        }
    }),
    ("scales twice as large", "e4m3", Operand::E4m3, |buffers, op| {
        if let Op::Store { to, values, .. } = op
            && is(buffers, to.space, "x_scale")
        {
            values[0] = 128u32.into();
        }
    }),
];

#[test]
fn mistakes_of_codes_are_found() {
    for (what, code, operand, mutation) in CODE_MISTAKES {
        let scheme = other(&format!("{code} {{ scale: e8m0 per 1x32 from pow2 }}"), "f32");
        let (own, chip, shape) = (Number::Float(BF16), target("gfx950").unwrap(), (300, 384));
        let of = &scheme.activations[0];
        let problem = ActivationProblem::new(&scheme, of, own, *operand, chip, shape, false);
        let problem = problem.and_then(ActivationProblem::leaving_codes).unwrap();
        let x = Rows::draw(problem.quantiser(), BF16, 300, &Kind::ALL, 6);
        found(what, *mutation, activation(&problem, false), |kernels| {
            x.check(&scheme, &problem, kernels)
        });
    }
}

/// What is wrong with factors, the quantiser and the operand, and the mutation.
const FACTOR_MISTAKES: &[(&str, &str, Operand, Mutation)] = &[
    ("the factor of the next column", "bf16", Operand::Bf16, |buffers, op| {
        if let Op::Load { from, .. } = op
            && is(buffers, from.space, "prescale")
        {
            from.offset ^= 4;
        }
    }),
    ("no factor", TOKEN, Operand::I8, |_, op| {
        if let Op::Binary { dst, op: Binary::MulF32, a: a @ Value::Reg(_), b: Value::Reg(_) } = op {
            *op = Op::Copy { dst: *dst, a: *a };
        }
    }),
    ("a product rounded to another type", GIVEN, Operand::I8, |_, op| {
        if let Op::Binary { op: Binary::Pack(half), .. } = op {
            *half = Half::F16;
        }
    }),
    ("rows after the first begin at another column", TENSOR, Operand::I8, |_, op| {
        if let Op::Binary { op: Binary::Rem, b: b @ Value::U32(300), .. } = op {
            *b = 296u32.into();
        }
    }),
];

#[test]
fn mistakes_of_factors_are_found() {
    let factors = Number::Float(F32);
    for (what, clause, operand, mutation) in FACTOR_MISTAKES {
        let scheme = prescaled(clause, "f32", factors);
        let (of, own, chip) = (&scheme.activations[0], Number::Float(BF16), target("sm_90a"));
        let (chip, shape) = (chip.unwrap(), (300, 320));
        let problem = ActivationProblem::new(&scheme, of, own, *operand, chip, shape, false);
        let problem = problem.unwrap();
        let kinds = [Kind::Plain, Kind::Outliers];
        let x = Rows::draw(problem.quantiser(), BF16, 300, &kinds, 6).with_factors(factors);
        found(what, *mutation, activation(&problem, true), |kernels| {
            x.check(&scheme, &problem, kernels)
        });
    }
}

#[test]
fn mistakes_of_activation_kernels_are_found() {
    for (what, clause, operand, mutation) in MISTAKES {
        let scheme = other(clause, if *clause == TOKEN { "own" } else { "f32" });
        let one = (scheme.clone(), scheme.activations[0].clone());
        let shape = (300, 320);
        let mut problems = problems(&one, BF16, "sm_90a", shape);
        problems.retain(|problem| problem.operand == *operand);
        let problem = &problems[0];
        let x = Rows::draw(problem.quantiser(), BF16, 300, &Kind::ALL, 6);
        found(what, *mutation, activation(problem, true), |kernels| {
            x.check(&scheme, problem, kernels)
        });
    }
}

/// A group may be declared larger than any row: its scale is found in as few steps as the row has.
#[test]
fn groups_beyond_the_row_take_no_longer() {
    let instructions = |group: u32| {
        let scheme = other(&format!("i8 {{ scale: f32 per 1x{group} }}"), "f32");
        let one = (scheme.clone(), scheme.activations[0].clone());
        let problem = problems(&one, F32, "sm_90a", (36, 64)).remove(0);
        let kernels = verified(&problem, false);
        let x = Rows::draw(problem.quantiser(), F32, 36, &Kind::ALL, 1);
        x.check(&scheme, &problem, &kernels).unwrap();
        let (_, reports) = x.simulate(&kernels, 0).unwrap();
        let counts = reports.iter().flat_map(|report| &report.instructions);
        counts.map(|(_, count)| count).sum::<u64>()
    };
    assert_eq!(instructions(100_000), instructions(100));
}
