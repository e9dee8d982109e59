//! The operand of x with a prescale.

use super::{MX, NV, OWN, other, verified};
use crate::kernels::operand::{RowValues, Rows};
use quantloom_codegen::plan::OperandType;
use quantloom_codegen::schedule::activation::ActivationProblem;
use quantloom_codegen::target::target;
use quantloom_dsl::format::{F32, Number};
use quantloom_dsl::{Activation, Scheme};
use quantloom_tests::sweep::Share;

/// Quantisers whose kernels load x in different ways, their operands, the columns of a segment that the
/// product takes, and whether lanes find the scales.
const PRESCALED: &[(&str, OperandType, Option<u32>)] = &[
    ("bf16", OperandType::Bf16, None),
    ("f16", OperandType::F16, None),
    ("f32", OperandType::F32, None),
    ("f32", OperandType::Bf16, None),
    ("i8 { scale: own per token }", OperandType::I8, None),
    ("i8 { zero: i8, scale: f32 per token, ties: away }", OperandType::Bf16, None),
    ("i8 { scale: f32 per tensor static }", OperandType::I8, None),
    ("u8 { zero: u8, scale: f32 per tensor }", OperandType::F32, None),
    ("e4m3 { scale: f32 per 1x128 }", OperandType::E4m3Fnuz, Some(128)),
    (NV, OperandType::F16, Some(16)),
    (
        "e2m1 { scale: e4m3 per 1x16, scale: f32 per token from amax / 2688 }",
        OperandType::F32,
        Some(8),
    ),
    ("i8 { scale: divide f32 per 1x48, scale: f32 per tensor }", OperandType::F32, Some(16)),
];

pub(super) fn prescaled(clause: &str, arithmetic: &str, number: Number) -> Scheme {
    Scheme { prescale: Some(number), ..other(clause, arithmetic) }
}

/// x is multiplied by the prescale first: rows of every alignment, with pads,
/// in an order, all tokens as one row, a row that is read twice.
#[test]
fn columns_are_multiplied_first() {
    let shapes = [(200, 256), (300, 320), (130, 256), (77, 96), (16_640, 16_640)];
    let targets = ["sm_80", "sm_90a", "gfx942", "wgsl", "wgsl_subgroups"];
    let share = Share::new(4, 1);
    for (number, (clause, operand, segment)) in PRESCALED.iter().enumerate() {
        for (at, (k, padded)) in shapes.into_iter().enumerate() {
            for (number_of_own, own) in OWN.into_iter().enumerate() {
                if !share.takes((number * shapes.len() + at) * OWN.len() + number_of_own) {
                    continue;
                }
                let of = number + at + number_of_own;
                let (chip, arithmetic) = (targets[of % 5], ["own", "f32"][of % 2]);
                // The long rows for a type each.
                if at == 4 && number % 3 != number_of_own {
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
                let kinds = if at == 4 { &RowValues::ALL[..2] } else { &RowValues::ALL };
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
                ActivationProblem::new(&scheme, of, number, OperandType::E2m1, chip, shape, false);
            let problem = problem.and_then(ActivationProblem::leaving_codes).unwrap();
            let x = Rows::draw(problem.quantiser(), own, shape.0 as usize, &RowValues::ALL, 10);
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
                ActivationProblem::new(&scheme, of, number, OperandType::F32, chip, shape, true);
            let problem = problem.unwrap().in_segments(Some(16));
            let x =
                Rows::draw(problem.quantiser(), own, 90, &RowValues::ALL, 11).with_factors(factors);
            let x = x.in_order(order.clone());
            let outcome = x.check(&scheme, &problem, &verified(&problem, false));
            outcome.unwrap_or_else(|wrong| panic!("{own} in an order: {wrong}"));
        }
    }
}
