//! The operand of x with columns in another order, and scales of groups of any size.

use super::{OWN, other, verified};
use crate::kernels::operand::{RowValues, Rows};
use quantloom_codegen::plan::OperandType;
use quantloom_codegen::schedule::ByteFragments;
use quantloom_codegen::schedule::activation::ActivationProblem;
use quantloom_codegen::target::target;
use quantloom_dsl::Activation;
use quantloom_dsl::format::{BF16, F16, Number};
use quantloom_dsl::layout::GroupSize;

/// x as it is, in another order and with zeros.
#[test]
fn columns_are_gathered() {
    for (own, operand) in [(BF16, OperandType::Bf16), (F16, OperandType::F16)] {
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
            let x = Rows::draw(None, own, k as usize, &RowValues::ALL, 4).shuffled(padded as usize);
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
            let (target, operand) = (target(chip).unwrap(), OperandType::F32);
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
            let x = Rows::draw(problem.quantiser(), own, k as usize, &RowValues::ALL, 7);
            let outcome = x.in_order(order).check(&scheme, &problem, &kernels);
            outcome.unwrap_or_else(|wrong| panic!("{clause} of {own}, K = {k}, {chip}: {wrong}"));
        }
    }
}

/// A scale of a row, or of all of x, and columns in any order.
#[test]
fn gathered_columns_are_quantised() {
    for (clause, operand) in [
        ("i8 { scale: f32 per token }", OperandType::I8),
        ("e4m3 { scale: f32 per token }", OperandType::E4m3),
        ("i8 { zero: i8, scale: own per token }", OperandType::Bf16),
        ("i8 { scale: f32 per tensor static, ties: away }", OperandType::F16),
        ("e4m3 { scale: f32 per tensor }", OperandType::F32),
    ] {
        let scheme = other(clause, "f32");
        for (k, padded) in [(200, 264), (77, 80), (5000, 5248)] {
            let (own, target) = (Number::Float(BF16), target("sm_89").unwrap());
            let of = &scheme.activations[0];
            let shape = (k, padded);
            let problem = ActivationProblem::new(&scheme, of, own, operand, target, shape, true);
            let problem = problem.unwrap();
            let kinds = if k > 1000 { &RowValues::ALL[..3] } else { &RowValues::ALL };
            let x = Rows::draw(problem.quantiser(), BF16, k as usize, kinds, 8);
            let outcome =
                x.shuffled(padded as usize).check(&scheme, &problem, &verified(&problem, false));
            outcome.unwrap_or_else(|wrong| panic!("{clause}, K = {k}: {wrong}"));
        }
    }
}

/// Bytes in the order of fragments are those in the order of columns, at other places: pads, several blocks a row,
/// several vectors a thread, a scale a group.
#[test]
fn bytes_are_written_in_the_order_of_fragments() {
    let cases = [
        ("i8 { scale: own per token }", OperandType::I8, ByteFragments::Whole),
        ("e4m3 { scale: f32 per token }", OperandType::E4m3, ByteFragments::Rows),
        ("e4m3 { scale: f32 per tensor static }", OperandType::E4m3, ByteFragments::Rows),
        ("i8 { scale: f32 per 1x128 }", OperandType::I8, ByteFragments::Whole),
        ("e4m3 { scale: f32 per 1x48 }", OperandType::E4m3, ByteFragments::Rows),
        ("e4m3 { scale: f32 per token }", OperandType::E4m3, ByteFragments::Nibbles),
    ];
    for (clause, operand, fragments) in cases {
        let scheme = other(clause, "f32");
        for (k, padded) in [(200, 256), (77, 128), (2056, 2304), (9000, 9088)] {
            let of = &scheme.activations[0];
            let (own, hopper) = (Number::Float(BF16), target("sm_90a").unwrap());
            let shape = (k, padded);
            let problem =
                ActivationProblem::new(&scheme, of, own, operand, hopper, shape, false).unwrap();
            let x = Rows::draw(
                problem.quantiser(),
                BF16,
                k as usize,
                &[RowValues::Plain, RowValues::Wide],
                1,
            );
            let written = |problem: &ActivationProblem| {
                let memory = x.simulate(&verified(problem, true), 3).unwrap().0;
                memory["operand"].bytes.clone()
            };
            let expected = written(&problem);
            let found = written(&problem.in_fragments(Some(fragments)));
            let columns = (0..padded).map(|position| fragments.column(position));
            let columns: Vec<usize> = columns.map(|column| column as usize).collect();
            let in_fragments = expected
                .chunks(padded as usize)
                .flat_map(|row| columns.iter().map(|&column| row[column]).collect::<Vec<u8>>());
            assert!(found.iter().copied().eq(in_fragments), "{clause}, K = {k}");
            let in_order = fragments == ByteFragments::Rows;
            assert_eq!(found == expected, in_order, "{clause}, K = {k}");
        }
    }
}
