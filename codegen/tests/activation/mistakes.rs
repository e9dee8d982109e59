//! The comparison with the reference can fail: each mistake in a kernel of x's operand is found.

use super::prescale::prescaled;
use super::{AWAY, BLOCKS, GIVEN, MX, NV, TENSOR, TOKEN, ZERO, other, problems};
use crate::kernels::operand::{RowValues, Rows};
use quantloom_codegen::ir::{
    Binary, Body, Buffer, Compare, Half, Kernel, Op, Operand, Space, Statement, Ternary, Unary,
    Verified, verify,
};
use quantloom_codegen::plan::OperandType;
use quantloom_codegen::schedule::activation::{ActivationProblem, activation};
use quantloom_codegen::target::target;
use quantloom_dsl::format::{BF16, F32, Number};

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
const MISTAKES: &[(&str, &str, OperandType, Mutation)] = &[
    ("no wait for the grid before", TOKEN, OperandType::I8, |_, op| {
        if *op == Op::GridWait {
            *op = Op::Comment("nothing".into());
        }
    }),
    ("a row's extent read before it is there", TOKEN, OperandType::I8, |_, op| {
        if *op == Op::Barrier {
            *op = Op::Comment("nothing".into());
        }
    }),
    ("some lanes are not asked", TOKEN, OperandType::I8, |_, op| {
        if let Op::Shuffle { by: by @ Operand::U32(8), .. } = op {
            *by = 4u32.into();
        }
    }),
    ("negative values do not count", TOKEN, OperandType::I8, |_, op| {
        if let Op::Unary { dst, op: Unary::Abs, a } = op {
            *op = Op::Copy { dst: *dst, a: *a };
        }
    }),
    ("scales of zeros are 0", TOKEN, OperandType::I8, |_, op| {
        if let Op::Select { a: a @ Operand::F32(0.0078125), .. } = op {
            *a = 0.0f32.into();
        }
    }),
    ("bytes in another order", TOKEN, OperandType::I8, |_, op| {
        if let Op::Ternary { op: Ternary::Permute, c: c @ Operand::U32(0x5410), .. } = op {
            *c = 0x1054u32.into();
        }
    }),
    ("an integer beyond the code", TOKEN, OperandType::I8, |_, op| {
        if let Op::Binary { op: op @ Binary::MinSigned, .. } = op {
            *op = Binary::MaxSigned;
        }
    }),
    ("ties to even", AWAY, OperandType::I8, |_, op| {
        if let Op::Compare { op: Compare::EqualF32, b: b @ Operand::F32(0.5), .. } = op {
            *b = 0.25f32.into();
        }
    }),
    ("the smallest is the largest", ZERO, OperandType::Bf16, |_, op| {
        if let Op::Binary { op: op @ Binary::MinF32, .. } = op {
            *op = Binary::MaxF32;
        }
    }),
    ("a zero point that is not subtracted", ZERO, OperandType::Bf16, |_, op| {
        if let Op::Binary { op: op @ Binary::SubF32, .. } = op {
            *op = Binary::MaxF32;
        }
    }),
    ("a zero point in its scale's place", ZERO, OperandType::I8, |buffers, op| {
        if let Op::Store { to, values, .. } = op
            && is(buffers, to.space, "x_scale")
        {
            values.reverse();
        }
    }),
    ("a part of x is not looked through", TENSOR, OperandType::I8, |buffers, op| {
        if let Op::Load { from, .. } = op
            && is(buffers, from.space, "extents")
        {
            from.offset = 4;
        }
    }),
    ("quotients without their remainder", GIVEN, OperandType::I8, |_, op| {
        if let Op::Ternary { dst, op: Ternary::Fma, c: Operand::Reg(near), a, .. } = op
            && *a != Operand::Reg(*near)
            && a.reg().is_some_and(|rest| rest.id.0 == near.id.0 + 1)
        {
            *op = Op::Copy { dst: *dst, a: (*near).into() };
        }
    }),
    ("infinities have a remainder", GIVEN, OperandType::I8, |_, op| {
        if let Op::Select { dst, condition: Operand::Reg(_), a, b: Operand::Reg(_) } = op {
            *op = Op::Copy { dst: *dst, a: *a };
        }
    }),
    ("a step too coarse", BLOCKS, OperandType::Bf16, |_, op| {
        if let Op::Binary { op: Binary::Add, b: b @ Operand::U32(0x0a00_0000), .. } = op {
            *b = 0x0a80_0000u32.into();
        }
    }),
    ("subnormals as if they were normal", BLOCKS, OperandType::Bf16, |_, op| {
        if let Op::Binary { op: Binary::Max, b: b @ Operand::U32(_), .. } = op {
            *b = 0u32.into();
        }
    }),
    ("the scale of the next group", BLOCKS, OperandType::Bf16, |buffers, op| {
        if let Op::Store { to, .. } = op
            && is(buffers, to.space, "x_scale")
        {
            to.offset += 1;
        }
    }),
    ("stores beyond the row", BLOCKS, OperandType::Bf16, |buffers, op| {
        if let Op::Store { to, mask, .. } = op
            && is(buffers, to.space, "operand")
        {
            *mask = None;
        }
    }),
    ("another threshold", MX, OperandType::Bf16, |_, op| {
        if let Op::Binary { op: Binary::Add, b: b @ Operand::U32(0x0020_0000), .. } = op {
            *b = 0x0010_0000u32.into();
        }
    }),
    ("NaN as it is", MX, OperandType::Bf16, |_, op| {
        if let Op::Select { b: b @ Operand::F32(_), .. } = op {
            *b = 1.0f32.into();
        }
    }),
    ("a negative zero that is NaN", BLOCKS, OperandType::E4m3Fnuz, |_, op| {
        if let Op::Select { a: a @ Operand::U32(0), .. } = op {
            *a = 0x80u32.into();
        }
    }),
    ("NaN that is a number", BLOCKS, OperandType::E4m3Fnuz, |_, op| {
        if let Op::Select { b: b @ Operand::U32(0x80), .. } = op {
            *b = 0x7fu32.into();
        }
    }),
    ("elements twice as large", BLOCKS, OperandType::E4m3Fnuz, |_, op| {
        if let Op::Binary { op: Binary::MulF32, b: b @ Operand::F32(0.5), .. } = op {
            *b = 1.0f32.into();
        }
    }),
    ("the coarse level as a factor", NV, OperandType::Bf16, |_, op| {
        if let Op::Binary { op: op @ Binary::DivF32, a: Operand::F32(1.0), .. } = op {
            *op = Binary::MulF32;
        }
    }),
];

/// What is wrong of codes with scales as an instruction reads them that scales: the code, the mutation.
const CODE_MISTAKES: &[(&str, &str, OperandType, Mutation)] = &[
    ("no signs", "e2m1", OperandType::E2m1, |_, op| {
        if let Op::Binary { op: Binary::And, b: b @ Operand::U32(8), .. } = op {
            *b = 0u32.into();
        }
    }),
    ("codes that are cut at a word's end", "e2m3", OperandType::E2m3, |_, op| {
        if let Op::Binary { op: Binary::Shr, b: b @ Operand::U32(2), .. } = op {
            *b = 8u32.into();
        }
    }),
    ("parts side by side, without the zeros", "e3m2", OperandType::E3m2, |_, op| {
        if let Op::Binary { op: Binary::And, b: b @ Operand::U32(24), .. } = op {
            *b = 8u32.into();
        }
    }),
    ("scales twice as large", "e4m3", OperandType::E4m3, |buffers, op| {
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
        let x = Rows::draw(problem.quantiser(), BF16, 300, &RowValues::ALL, 6);
        found(what, *mutation, activation(&problem, false), |kernels| {
            x.check(&scheme, &problem, kernels)
        });
    }
}

/// What is wrong with factors, the quantiser and the operand, and the mutation.
const FACTOR_MISTAKES: &[(&str, &str, OperandType, Mutation)] = &[
    ("the factor of the next column", "bf16", OperandType::Bf16, |buffers, op| {
        if let Op::Load { from, .. } = op
            && is(buffers, from.space, "prescale")
        {
            from.offset ^= 4;
        }
    }),
    ("no factor", TOKEN, OperandType::I8, |_, op| {
        if let Op::Binary { dst, op: Binary::MulF32, a: a @ Operand::Reg(_), b: Operand::Reg(_) } =
            op
        {
            *op = Op::Copy { dst: *dst, a: *a };
        }
    }),
    ("a product rounded to another type", GIVEN, OperandType::I8, |_, op| {
        if let Op::Binary { op: Binary::Pack(half), .. } = op {
            *half = Half::F16;
        }
    }),
    ("rows after the first begin at another column", TENSOR, OperandType::I8, |_, op| {
        if let Op::Binary { op: Binary::Rem, b: b @ Operand::U32(300), .. } = op {
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
        let kinds = [RowValues::Plain, RowValues::Outliers];
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
        let x = Rows::draw(problem.quantiser(), BF16, 300, &RowValues::ALL, 6);
        found(what, *mutation, activation(problem, true), |kernels| {
            x.check(&scheme, problem, kernels)
        });
    }
}
