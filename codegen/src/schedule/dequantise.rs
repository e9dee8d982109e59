//! A plan's sequence, written as operations of the kernel.

use std::collections::BTreeMap;

use crate::ir::{Binary, Builder, Half, Op, Operand, Reg, Side, Ternary, Type, Unary, Uniformity};
use crate::plan::sequence::Sequence;
use crate::plan::step::{Arg, Half as StepHalf, Register, Step};
use crate::target::Feature;

/// Whether every step has an operation.
pub(super) fn writable(sequence: &Sequence) -> bool {
    let step = |step: &Step| {
        matches!(
            step,
            Step::And(..)
                | Step::Or(..)
                | Step::Xor(..)
                | Step::Add(..)
                | Step::Shl(..)
                | Step::Shr(..)
                | Step::Lop3 { .. }
                | Step::Prmt { .. }
                | Step::Fma16(..)
                | Step::Sub16(..)
                | Step::CvtF16 { e5m2: false, .. }
        )
    };
    sequence.inputs.len() == 1 && sequence.steps.iter().all(step)
}

/// Zero points to take off what a sequence decodes: for each register of the operand, modulo their
/// number, the zero point of its rows in both halves.
pub(super) struct Zeros {
    half: Half,
    rows: Vec<Operand>,
    /// Constants less the zero points, by constant, sign and row: made once.
    made: BTreeMap<(u32, bool, usize), Operand>,
}

impl Zeros {
    /// The zero points of rows g and g + 8 out of a word that holds both.
    pub(super) fn of_pair(b: &mut Builder, half: Half, word: Reg) -> Self {
        let rows =
            [0x1010u32, 0x3232].map(|select| b.ternary(Ternary::Permute, word, word, select));
        Self { half, rows: rows.to_vec(), made: BTreeMap::new() }
    }

    /// constant - zero, or constant + zero, in both halves. Exact: both are small integers.
    fn shifted(&mut self, b: &mut Builder, constant: u32, plus: bool, register: usize) -> Operand {
        let row = register % self.rows.len();
        let (half, zero) = (self.half, self.rows[row]);
        let factor = match (half, plus) {
            (Half::Bf16, true) => 0x3f80_3f80u32,
            (Half::Bf16, false) => 0xbf80_bf80,
            (Half::F16, true) => 0x3c00_3c00,
            (Half::F16, false) => 0xbc00_bc00,
        };
        let made = self.made.entry((constant, plus, row));
        *made.or_insert_with(|| b.ternary(Ternary::FmaPacked(half), zero, factor, constant))
    }
}

/// Which register of the operand a step's result is, if it is one.
fn output_of(sequence: &Sequence, step: usize) -> Option<usize> {
    let register = sequence.inputs.len() + step;
    let code = sequence.outputs.iter().find(|output| usize::from(output.register.0) == register);
    let code = code?.codes.first()?;
    // Registers are in the order of their first codes.
    Some(sequence.outputs.iter().filter(|output| output.codes.first() < Some(code)).count())
}

/// Whether zero points can be taken off in a sequence's last steps, at no cost: each output adds
/// or subtracts a constant.
pub(super) fn takes_zeros(sequence: &Sequence) -> bool {
    (0..sequence.outputs.len()).all(|register| {
        let mut steps = sequence.steps.iter().enumerate();
        steps.any(|(at, step)| {
            output_of(sequence, at) == Some(register)
                && matches!(step, Step::Fma16(.., Arg::Word(_)) | Step::Sub16(.., Arg::Word(_)))
        })
    })
}

/// Decodes one word of codes, less the zero points if there are any: the registers of the operand,
/// in the order of the fragment.
fn dequantise(
    b: &mut Builder,
    sequence: &Sequence,
    word: Reg,
    mut zeros: Option<&mut Zeros>,
) -> Vec<Reg> {
    let mut values: Vec<Operand> = vec![word.into()];
    for (at, step) in sequence.steps.iter().enumerate() {
        if let (Some(zeros), Some(register)) = (&mut zeros, output_of(sequence, at)) {
            let arg = |arg: &Arg| match arg {
                Arg::Register(Register(at)) => values[usize::from(*at)],
                Arg::Word(word) => Operand::U32(*word),
            };
            let value = match step {
                Step::Fma16(_, x, y, Arg::Word(constant)) => {
                    let constant = zeros.shifted(b, *constant, false, register);
                    Some(fused(b, zeros.half, [arg(x), arg(y), constant]))
                }
                Step::Sub16(_, x, Arg::Word(constant)) => {
                    let constant = zeros.shifted(b, *constant, true, register);
                    Some(b.binary(Binary::SubPacked(zeros.half), arg(x), constant))
                }
                _ => None,
            };
            if let Some(value) = value {
                values.push(value);
                continue;
            }
        }
        let arg = |arg: &Arg| match arg {
            Arg::Register(Register(at)) => values[usize::from(*at)],
            Arg::Word(word) => Operand::U32(*word),
        };
        let half = |half: &StepHalf| match half {
            StepHalf::F16 => Half::F16,
            StepHalf::Bf16 => Half::Bf16,
        };
        let value = match step {
            Step::And(x, y) => b.binary(Binary::And, arg(x), arg(y)),
            Step::Or(x, y) => b.binary(Binary::Or, arg(x), arg(y)),
            Step::Xor(x, y) => b.binary(Binary::Xor, arg(x), arg(y)),
            Step::Add(x, y) => b.binary(Binary::Add, arg(x), arg(y)),
            Step::Shl(x, by) => b.binary(Binary::Shl, arg(x), u32::from(*by)),
            Step::Shr(x, by) => b.binary(Binary::Shr, arg(x), u32::from(*by)),
            Step::Lop3 { a, b: second, c, table } => {
                b.ternary(Ternary::Lop3(*table), arg(a), arg(second), arg(c))
            }
            Step::Prmt { low, high, select } => {
                b.ternary(Ternary::Permute, arg(low), arg(high), arg(select))
            }
            Step::Fma16(of, x, y, z) => fused(b, half(of), [arg(x), arg(y), arg(z)]),
            Step::Sub16(of, x, y) => b.binary(Binary::SubPacked(half(of)), arg(x), arg(y)),
            Step::CvtF16 { codes, high, .. } => {
                let side = if *high { Side::High } else { Side::Low };
                b.unary(Unary::F16x2FromE4m3(side), arg(codes))
            }
            // `writable` has refused the others.
            _ => Operand::U32(0),
        };
        values.push(value);
    }
    // Codes are numbered so that the first code of an output says which register it is.
    let mut outputs: Vec<_> = sequence.outputs.iter().collect();
    outputs.sort_by_key(|output| output.codes.first().copied());
    let value = |at: Register| values[usize::from(at.0)];
    outputs.iter().map(|output| in_register(b, value(output.register))).collect()
}

/// Decodes words of one lane's codes, in order, and gives `each` the registers of A of one step of
/// the product after the other: a step's A can be used as soon as it is there.
pub(super) fn steps(
    b: &mut Builder,
    sequence: &Sequence,
    words: &[Reg],
    mut zeros: Option<&mut Zeros>,
    mut each: impl FnMut(&mut Builder, usize, Vec<Reg>),
) {
    let (mut registers, mut step) = (Vec::new(), 0);
    for word in words {
        registers.extend(dequantise(b, sequence, *word, zeros.as_deref_mut()));
        while registers.len() >= A_REGISTERS {
            each(b, step, registers.drain(..A_REGISTERS).collect());
            step += 1;
        }
    }
}

/// x * y + z in both halves; where y is 1 and the target can, a sum: the same number without a
/// register for the 1.
fn fused(b: &mut Builder, half: Half, [x, y, z]: [Operand; 3]) -> Operand {
    const ONES: Operand = Operand::U32(0x3f80_3f80);
    if half == Half::Bf16 && y == ONES && b.target().has(Feature::PackedBf16) {
        return b.binary(Binary::AddPacked(half), x, z);
    }
    b.ternary(Ternary::FmaPacked(half), x, y, z)
}

/// Registers of A of a 16-bit product of 16 columns.
const A_REGISTERS: usize = 4;

/// A value that a matrix operation can read.
fn in_register(b: &mut Builder, value: Operand) -> Reg {
    match value {
        Operand::Reg(reg) => reg,
        constant => {
            let dst = b.variable("constant", Type::U32, Uniformity::Varying);
            b.push(Op::Copy { dst, a: constant });
            dst
        }
    }
}
