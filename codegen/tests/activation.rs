//! The operand of x: codes, scales and zero points are the reference's, for every quantiser of the
//! catalogue and some that nobody uses.

use std::collections::BTreeSet;
use std::path::Path;

use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::{Kernel, Verified, verify};
use quantloom_codegen::plan::OperandType;
use quantloom_codegen::schedule::activation::{ActivationProblem, activation};
use quantloom_codegen::schedule::{InputScale, Problem, Unscheduled};
use quantloom_codegen::target::target;
use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number};
use quantloom_dsl::{Activation, Scheme, parse};
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::ptxas;
use rayon::prelude::*;

use crate::kernels::operand::{RowValues, Rows};

mod columns;
mod mistakes;
mod prescale;

const OWN: [FloatFormat; 3] = [BF16, F16, F32];
const OPERANDS: [OperandType; 8] = [
    OperandType::I8,
    OperandType::I4,
    OperandType::E4m3,
    OperandType::E4m3Fnuz,
    OperandType::E5m2,
    OperandType::Bf16,
    OperandType::F16,
    OperandType::F32,
];

/// Schemes of the catalogue with each of their activations.
fn every() -> Vec<(Scheme, Activation)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels-generated/schemes");
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

const TOKEN: &str = "i8 { scale: own per token }";
const AWAY: &str = "i8 { scale: f32 per token, ties: away }";
const ZERO: &str = "i8 { zero: i8, scale: f32 per token, ties: away }";
const TENSOR: &str = "i8 { scale: f32 per tensor from amax / 127 }";
const GIVEN: &str = "i8 { scale: f32 per tensor static }";
const BLOCKS: &str = "e4m3 { scale: f32 per 1x128 }";
const MX: &str = "e2m1 { scale: e8m0 per 1x32 from pow2 above 1.75 }";
const NV: &str =
    "e2m1 { scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688 static }";

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
/// several blocks a row, several iterations a thread. A case is a quantiser, a type and a shape.
#[test]
fn the_operand_is_the_references() {
    let share = Share::new(40, 18);
    let shapes = [(200, 256), (300, 320), (130, 256), (77, 80), (2056, 2304), (5128, 5248)];
    for (number, one) in all().iter().enumerate() {
        for (turn, own) in OWN.into_iter().enumerate() {
            let (mut tried, mut taken) = (0, 0);
            for (at, shape) in shapes.into_iter().enumerate() {
                // Every shape for every quantiser, the large ones for one type each.
                if at >= 4 && (number + turn + at) % 3 != 0 {
                    continue;
                }
                if !share.takes((number * OWN.len() + turn) * shapes.len() + at) {
                    continue;
                }
                tried += 1;
                let kinds = if at >= 4 { &RowValues::ALL[4..8] } else { &RowValues::ALL };
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
            assert!(taken > 0 || tried == 0 || float, "{:?} {own} is not taken", one.1);
        }
    }
}

/// Codes of 4, 6 and 8 bits and scales of e8m0 as an instruction reads them that scales: with pads and
/// without, groups that are cut, several blocks a row.
#[test]
fn codes_with_their_scales_are_the_references() {
    let shapes = [(200, 256), (300, 384), (256, 256), (77, 128), (2056, 2304)];
    for (code, operand, above) in [
        ("e2m1", OperandType::E2m1, 1.75),
        ("e2m3", OperandType::E2m3, 1.9375),
        ("e3m2", OperandType::E3m2, 1.875),
        ("e4m3", OperandType::E4m3, 1.75),
        ("e5m2", OperandType::E5m2, 1.75),
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
                let x = Rows::draw(problem.quantiser(), own, shape.0 as usize, &RowValues::ALL, 1);
                let outcome = x.check(&scheme, &problem, &verified(&problem, false));
                outcome.unwrap_or_else(|wrong| panic!("{code} {own} {shape:?}: {wrong}"));
            }
        }
    }
}

/// The same of `mma` with block scales: padded elements, and scales of e4m3 beside a static one of all of x.
#[test]
fn codes_with_scales_of_blocks_are_the_references() {
    let shapes = [(200, 256), (300, 512), (77, 256)];
    let nvfp4 =
        "e2m1 { scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688 static }";
    for (activation, operand) in [
        ("e2m1 { scale: e8m0 per 1x32 from pow2 above 1.75 }", OperandType::PaddedE2m1),
        ("e2m3 { scale: e8m0 per 1x32 from pow2 above 1.9375 }", OperandType::PaddedE2m3),
        ("e3m2 { scale: e8m0 per 1x32 from pow2 above 1.875 }", OperandType::PaddedE3m2),
        ("e2m1 { scale: e4m3 per 1x16 }", OperandType::E2m1),
        (nvfp4, OperandType::E2m1),
    ] {
        for (own, arithmetic) in OWN.into_iter().flat_map(|own| [(own, "own"), (own, "f32")]) {
            let scheme = other(activation, arithmetic);
            let (of, number) = (&scheme.activations[0], Number::Float(own));
            for shape in shapes {
                let chip = target("sm_120a").unwrap();
                let problem =
                    ActivationProblem::new(&scheme, of, number, operand, chip, shape, false);
                let problem = problem.and_then(ActivationProblem::leaving_codes).unwrap();
                let x = Rows::draw(problem.quantiser(), own, shape.0 as usize, &RowValues::ALL, 1);
                let outcome = x.check(&scheme, &problem, &verified(&problem, false));
                outcome.unwrap_or_else(|wrong| panic!("{activation} {own} {shape:?}: {wrong}"));
            }
        }
    }
}

/// Elements that are codes times their finest scale: with pads and without, groups that are cut, several blocks a row;
/// beside a static scale of all of x, which is the row's.
#[test]
fn elements_with_their_scales_are_the_references() {
    let (share, mut case) = (Share::new(3, 2), 0);
    let shapes = [(200, 256), (300, 384), (77, 128), (2056, 2304)];
    let nvfp4 =
        "e2m1 { scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688 static }";
    for (activation, operands) in [
        (
            "e2m1 { scale: e8m0 per 1x32 from pow2 above 1.75 }",
            &[OperandType::Bf16, OperandType::F32][..],
        ),
        ("e3m2 { scale: e8m0 per 1x64 from pow2 above 1.875 }", &[OperandType::Bf16]),
        ("e4m3 { scale: e8m0 per 1x32 from pow2 above 1.75 }", &[OperandType::Bf16]),
        (nvfp4, &[OperandType::Bf16, OperandType::F16, OperandType::F32]),
    ] {
        for (own, arithmetic) in OWN.into_iter().flat_map(|own| [(own, "own"), (own, "f32")]) {
            let scheme = other(activation, arithmetic);
            let (of, number) = (&scheme.activations[0], Number::Float(own));
            let problems = ["sm_90a", "gfx942", "wgsl"].into_iter().flat_map(|chip| {
                shapes.into_iter().flat_map(move |shape| {
                    operands.iter().map(move |&operand| (chip, shape, operand))
                })
            });
            for (chip, shape, operand) in problems {
                case += 1;
                if !share.takes(case) {
                    continue;
                }
                let chip = target(chip).unwrap();
                let problem =
                    ActivationProblem::new(&scheme, of, number, operand, chip, shape, false);
                let problem = problem.unwrap().folding().unwrap();
                let x = Rows::draw(problem.quantiser(), own, shape.0 as usize, &RowValues::ALL, 1);
                let outcome = x.check(&scheme, &problem, &verified(&problem, false));
                outcome.unwrap_or_else(|wrong| {
                    panic!("{activation} {own} {operand} {shape:?} {}: {wrong}", chip.name)
                });
            }
        }
    }
}

/// Scales that a lane's warp cannot find, zero points, static scales, and products that the operand does not hold, stay
/// beside the operand.
#[test]
fn elements_without_exact_scales_have_none() {
    for (activation, operand) in [
        ("e2m1 { scale: e8m0 per 1x32 from pow2 above 1.75 }", OperandType::F16),
        ("e2m1 { scale: f32 per 1x32 }", OperandType::Bf16),
        ("e4m3 { scale: e4m3 per 1x16 }", OperandType::F16),
        ("e4m3 { scale: e4m3 per 1x48 }", OperandType::Bf16),
        ("e4m3 { scale: e4m3 per 1x512 }", OperandType::Bf16),
        ("e4m3 { scale: divide e4m3 per 1x16 }", OperandType::Bf16),
        ("e4m3 { scale: e4m3 per token }", OperandType::Bf16),
        ("i8 { scale: e4m3 per 1x16 }", OperandType::Bf16),
    ] {
        let scheme = other(activation, "f32");
        let chip = target("sm_90a").unwrap();
        let (of, number) = (&scheme.activations[0], Number::Float(BF16));
        let problem = ActivationProblem::new(&scheme, of, number, operand, chip, (256, 256), false);
        assert!(problem.unwrap().folding().is_err(), "{activation} as {operand}");
    }
}

/// What a product reads is made: its elements, its columns, its scales.
#[test]
fn products_get_their_operand() {
    let mut made = 0;
    for (scheme, activation) in every() {
        for (sm, k) in ["sm_80", "sm_89", "sm_90a", "sm_120a", "gfx950", "wgsl"]
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
                let folds = product.plan.compute.folds_input;
                let problem = match input.codes {
                    true => problem.leaving_codes().unwrap(),
                    false if folds => problem.folding().unwrap(),
                    false => problem.in_segments(input.scale.and_then(InputScale::columns)),
                };
                // Codes are four to a word.
                let of_word = if input.codes { 4 } else { 1 };
                let groups = problem.quantiser().map(|_| problem.groups() / of_word);
                let alone = problem.quantiser().is_some_and(|quantiser| quantiser.scales.len() < 2);
                let groups = groups.filter(|_| !(folds && alone));
                assert_eq!(groups, product.input.groups(), "{} {activation:?}", scheme.name);
                made += 1;
            }
        }
    }
    assert!(made > 0);
}

/// Rows longer than a block's registers, and so many columns that lanes have several vectors.
#[test]
fn long_rows_are_read_twice() {
    let scheme = other("i8 { zero: i8, scale: own per token, ties: away }", "own");
    let one = (scheme.clone(), scheme.activations[0].clone());
    for k in [32_776, 33_000] {
        let problem = problems(&one, BF16, "sm_90a", (k, 33_024)).remove(0);
        let kinds = [RowValues::Ties, RowValues::NotFinite];
        let x = Rows::draw(problem.quantiser(), BF16, k as usize, &kinds, 2);
        let kernels = verified(&problem, true);
        x.check(&scheme, &problem, &kernels).unwrap();
    }
}

#[test]
fn quantisers_that_are_not_taken_are_named() {
    let cases = [
        (
            "i8 { scale: own per token }",
            OperandType::E4m3,
            (64, 64),
            false,
            "i8 activations as oper",
        ),
        ("e4m3 { scale: own per token }", OperandType::I8, (64, 64), false, "as operands in i8"),
        ("bf16", OperandType::I8, (64, 64), false, "bf16 activations as operands in i8"),
        (
            "i8 { zero: i8, scale: f32 per 1x32 }",
            OperandType::I8,
            (64, 64),
            false,
            "operands in i8",
        ),
        (
            "i8 { scale: u25 per token }",
            OperandType::Bf16,
            (64, 64),
            false,
            "u25 scales of activations",
        ),
        (
            "i8 { scale: i32 per 1x32 }",
            OperandType::Bf16,
            (64, 64),
            false,
            "i32 scales of activations",
        ),
        ("i8 { scale: own per token }", OperandType::I8, (0, 64), false, "K = 0"),
        ("i8 { scale: own per token }", OperandType::I8, (64, 68), false, "P = 68"),
        ("i8 { scale: own per token }", OperandType::I8, (64, 56), false, "P = 56"),
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

/// Large shapes without spills; a case is a quantiser and a target.
#[test]
fn kernels_of_each_quantiser_assemble() {
    let Some(ptxas) = ptxas::find() else { return };
    let targets = ["sm_80", "sm_89", "sm_90a"];
    let factored = all().into_iter().map(|(scheme, activation)| {
        (Scheme { prescale: Some(Number::Float(BF16)), ..scheme }, activation)
    });
    let quantisers: Vec<_> = all().into_iter().chain(factored.step_by(3)).collect();
    let cases = quantisers.iter().enumerate().flat_map(|(number, one)| {
        targets.into_iter().enumerate().map(move |(at, sm)| (number, one, at, sm))
    });
    Share::new(6, 4).of(cases).par_iter().for_each(|&(number, one, at, sm)| {
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

/// A group may be declared larger than any row: its scale is found in as few steps as the row has.
#[test]
fn groups_beyond_the_row_take_no_longer() {
    let instructions = |group: u32| {
        let scheme = other(&format!("i8 {{ scale: f32 per 1x{group} }}"), "f32");
        let one = (scheme.clone(), scheme.activations[0].clone());
        let problem = problems(&one, F32, "sm_90a", (36, 64)).remove(0);
        let kernels = verified(&problem, false);
        let x = Rows::draw(problem.quantiser(), F32, 36, &RowValues::ALL, 1);
        x.check(&scheme, &problem, &kernels).unwrap();
        let (_, reports) = x.simulate(&kernels, 0).unwrap();
        let counts = reports.iter().flat_map(|report| &report.instructions);
        counts.map(|(_, count)| count).sum::<u64>()
    };
    assert_eq!(instructions(100_000), instructions(100));
}
