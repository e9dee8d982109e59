//! A plan's dequantisation sequences as operations of the kernel.

mod fragments;
mod scale_parts;
mod scales;
mod steps;

use std::collections::BTreeMap;

use quantloom_dsl::format::Overflow;

use super::group_params::exact_pair;
use super::mapping::MainLoop;
use super::table::Table;
use crate::ir::{Binary, Builder, Half, Op, Operand, Reg, Side, Ternary, Type, Unary, Uniformity};
use crate::plan::sequence::{OutputWord, Sequence};
use crate::plan::sink::{ShiftOp, StepSink, WordOp};
use crate::plan::step::{Arg, SequenceRegister, Step};
use crate::plan::{DequantPlan, templates};
use crate::target::{ConvertedCode, Feature, Target};

pub(super) use fragments::fragments;
pub(super) use scales::{LaneGroups, Scales};
pub(super) use steps::{StepOfA, step_of_register, steps};

/// Zero points to subtract from the values of a sequence, by segment.
pub(super) struct Zeros {
    half: Half,
    /// Values of the sequence are `2^exponent` too large, and so are the zero points to be.
    exponent: i32,
    segments: Vec<OfSegment>,
    /// Registers of the operand in a segment.
    registers: usize,
}

/// The zero points of a segment: for each register of the operand (modulo their number) that of its row,
/// in both halves.
struct OfSegment {
    rows: Vec<Operand>,
    /// Differences of constants and zero points, by constant, sign and row: each is computed once.
    made: BTreeMap<(u32, bool, usize), Operand>,
}

impl Zeros {
    /// The zero points of a lane's rows, each in both halves, segment by segment.
    pub(super) fn new(half: Half, main: &MainLoop<'_>, segments: Vec<Vec<Operand>>) -> Self {
        let of_segment = |rows| OfSegment { rows, made: BTreeMap::new() };
        let registers = main.segment_steps() as usize * main.lanes().a.registers;
        let (_, exponent) = main.problem.plan.dequant.encoding();
        Self { half, exponent, segments: segments.into_iter().map(of_segment).collect(), registers }
    }

    /// constant - zero, or constant + zero, in both halves of a register of the operand, numbered
    /// from the first segment on. Exact: both are small integers times a power of two.
    fn shifted(&mut self, b: &mut Builder, constant: u32, plus: bool, register: usize) -> Operand {
        let segment = register / self.registers;
        let Some(OfSegment { rows, made }) = self.segments.get_mut(segment) else {
            return constant.into();
        };
        let row = register % rows.len();
        let sign = if plus { 1.0 } else { -1.0 };
        let factor = in_both_halves(self.half, sign * 2f64.powi(self.exponent));
        let (half, zero) = (self.half, rows[row]);
        let made = made.entry((constant, plus, row));
        *made.or_insert_with(|| multiply_add(b, half, [zero, factor, constant.into()]))
    }
}

/// The parameters that the last steps of a plan apply.
#[derive(Default)]
pub(super) struct ByRow {
    /// Subtracted.
    pub(super) zeros: Option<Zeros>,
    /// Multiplied.
    pub(super) scales: Option<Scales>,
}

/// The register of the operand that a step computes, if it computes one.
fn output_of(sequence: &Sequence, step: usize) -> Option<usize> {
    let register = sequence.inputs.len() + step;
    let code = sequence.outputs.iter().find(|output| usize::from(output.register.0) == register);
    let code = code?.codes.first()?;
    // Registers are in the order of their first codes.
    Some(sequence.outputs.iter().filter(|output| output.codes.first() < Some(code)).count())
}

/// The constants that a sequence's last steps subtract, as 16-bit floats; `None` if an output has none. Such steps
/// can subtract zero points at no cost.
pub(super) fn subtracted_constants(sequence: &Sequence) -> Option<Vec<(Half, f64)>> {
    let constant = |output: &OutputWord| match sequence.steps.get(sequence.step_of(output)?)? {
        Step::Fma16(half, .., Arg::Word(constant)) => Some((*half, -value_of(*half, *constant))),
        Step::Sub16(half, _, Arg::Word(constant)) => Some((*half, value_of(*half, *constant))),
        _ => None,
    };
    sequence.outputs.iter().map(constant).collect()
}

/// The number in the lower half of a word.
fn value_of(half: Half, word: u32) -> f64 {
    half.number().decode(word & 0xffff)
}

/// Runs a sequence on its input words, with zero points and scales applied: the registers of its output
/// in the order of their codes; `None` if a step has no operation here. `before` registers of the
/// operand precede these.
fn run(
    b: &mut Builder,
    (sequence, table): (&Sequence, Option<Table>),
    words: &[Reg],
    (by_row, before): (&mut ByRow, usize),
) -> Option<Vec<Reg>> {
    let values = words.iter().map(|&word| word.into()).collect();
    let mut registers = Registers { b, values, table };
    while registers.values.len() < sequence.inputs.len() + sequence.steps.len() {
        registers.step(sequence, (by_row, before))?;
    }
    let Registers { b, values, .. } = registers;
    // The first code of an output determines the number of its register.
    let mut outputs: Vec<_> = sequence.outputs.iter().collect();
    outputs.sort_by_key(|output| output.codes.first().copied());
    let value = |at: SequenceRegister| values[usize::from(at.0)];
    Some(outputs.iter().map(|output| in_register(b, value(output.register))).collect())
}

/// The registers of a sequence as values of the kernel.
struct Registers<'b> {
    b: &'b mut Builder,
    values: Vec<Operand>,
    table: Option<Table>,
}

impl Registers<'_> {
    /// Runs the next step of a sequence; `before` registers of the operand precede those of the sequence.
    /// `None` if the step has no operation here.
    fn step(&mut self, sequence: &Sequence, (by_row, before): (&mut ByRow, usize)) -> Option<()> {
        let at = self.values.len() - sequence.inputs.len();
        let step = sequence.steps.get(at)?;
        let last = output_of(sequence, at)
            .and_then(|register| by_row.last_step(self, step, before + register));
        let value = match last {
            Some(value) => value,
            None => step.lower(self)?,
        };
        self.values.push(value);
        Some(())
    }
}

impl StepSink for Registers<'_> {
    type Value = Operand;

    fn arg(&mut self, arg: Arg) -> Operand {
        match arg {
            Arg::Register(SequenceRegister(at)) => self.values[usize::from(at)],
            Arg::Word(word) => Operand::U32(word),
        }
    }

    fn word(&mut self, op: WordOp, x: Operand, y: Operand) -> Option<Operand> {
        let op = match op {
            WordOp::And => Binary::And,
            WordOp::Or => Binary::Or,
            WordOp::Xor => Binary::Xor,
            WordOp::Add => Binary::Add,
        };
        Some(self.b.binary(op, x, y))
    }

    fn shift(&mut self, op: ShiftOp, x: Operand, by: u8) -> Option<Operand> {
        let by = u32::from(by);
        match op {
            ShiftOp::Left => Some(self.b.binary(Binary::Shl, x, by)),
            ShiftOp::Right => Some(self.b.binary(Binary::Shr, x, by)),
            ShiftOp::RotateLeft => Some(self.b.ternary(Ternary::FunnelLeft, x, x, by)),
            ShiftOp::RightSigned => None,
        }
    }

    fn lop3(&mut self, [x, y, z]: [Operand; 3], table: u8) -> Option<Operand> {
        Some(self.b.ternary(Ternary::Lop3(table), x, y, z))
    }

    fn prmt(&mut self, [low, high, select]: [Operand; 3]) -> Option<Operand> {
        Some(self.b.ternary(Ternary::Permute, low, high, select))
    }

    fn fma16(&mut self, of: Half, values: [Operand; 3]) -> Option<Operand> {
        Some(fused(self.b, of, values))
    }

    fn sub16(&mut self, of: Half, values: [Operand; 2]) -> Option<Operand> {
        Some(difference(self.b, of, values))
    }

    fn convert_f16(&mut self, codes: Operand, of: ConvertedCode, pair: u8) -> Option<Operand> {
        Some(self.b.unary(Unary::F16x2From(of, pair), codes))
    }

    fn lookup_half(&mut self, _: &[u32], index: Operand) -> Option<Operand> {
        Some(self.table?.read(self.b, index))
    }
}

/// Whether every step of a plan has an operation on its target, so that [`steps`] can write the plan;
/// tried on a kernel that is dropped.
pub(super) fn writable(plan: &DequantPlan, target: &'static Target) -> bool {
    let mut b = Builder::trial(target);
    let table = Table::declare(&mut b, plan);
    plan.stages.iter().all(|sequence| {
        let words = sequence.inputs.len() as u32;
        let words = b.array("codes", Type::U32, words, Uniformity::Varying);
        run(&mut b, (sequence, table), &words, (&mut ByRow::default(), 0)).is_some()
    })
}

/// The registers of a sequence that [`writable`] has accepted. If there were none, they would stay
/// unwritten, which the verifier refuses.
fn written(b: &mut Builder, sequence: &Sequence, registers: Option<Vec<Reg>>) -> Vec<Reg> {
    let none = |b: &mut Builder| {
        b.array("missing", Type::U32, sequence.outputs.len() as u32, Uniformity::Varying)
    };
    registers.unwrap_or_else(|| none(b))
}

impl ByRow {
    /// The last step of a register of the operand, if zero points or scales change it.
    fn last_step(
        &mut self,
        registers: &mut Registers<'_>,
        step: &Step,
        register: usize,
    ) -> Option<Operand> {
        let value = match (&mut self.zeros, step) {
            (Some(zeros), Step::Fma16(_, x, y, Arg::Word(constant))) => {
                let constant = zeros.shifted(registers.b, *constant, false, register);
                let [x, y] = [*x, *y].map(|arg| registers.arg(arg));
                Some(fused(registers.b, zeros.half, [x, y, constant]))
            }
            (Some(zeros), Step::Sub16(_, x, Arg::Word(constant))) => {
                let constant = zeros.shifted(registers.b, *constant, true, register);
                let x = registers.arg(*x);
                Some(difference(registers.b, zeros.half, [x, constant]))
            }
            _ => None,
        };
        let decoded = |registers: &mut Registers<'_>| match value {
            Some(value) => Some(value),
            None => step.lower(registers),
        };
        match &mut self.scales {
            None => value,
            Some(Scales::Made(scales)) => {
                let (value, power) = match (value, step, scales.power_of(step)) {
                    (None, Step::Fma16(_, x, ..), Some(power)) => (registers.arg(*x), power),
                    _ => (decoded(registers)?, 0),
                };
                scales.applied(registers.b, (value, power), register)
            }
            Some(Scales::Whole(scales)) => {
                if scales.in_constants
                    && let (None, false, Step::Fma16(_, x, Arg::Word(factor), Arg::Word(base))) =
                        (value, scales.instead, step)
                    && let Some([factor, base]) =
                        scales.constants(registers.b, [*factor, *base], register)
                {
                    let x = registers.arg(*x);
                    return Some(fused(registers.b, scales.half, [x, factor, base]));
                }
                let scale = scales.of(register)?;
                let value = match (value, step) {
                    (None, Step::Fma16(_, x, ..)) if scales.instead => registers.arg(*x),
                    _ => decoded(registers)?,
                };
                Some(fused(registers.b, scales.half, [value, scale, NOTHING]))
            }
        }
    }
}

/// A number in both halves of a word.
fn in_both_halves(half: Half, value: f64) -> Operand {
    let bits = half.number().encode(value, Overflow::Special);
    Operand::U32(bits | bits << 16)
}

/// x * y + z in both halves; all values of a dequantisation are numbers of the half's type. If y is 1 or
/// z is -0, and the target has packed sums and products, one of these: the same result without a
/// register for the constant.
fn fused(b: &mut Builder, half: Half, [x, y, z]: [Operand; 3]) -> Operand {
    if half == Half::Bf16 && b.target().has(Feature::PackedBf16) {
        match (y, z) {
            (ONES, _) => return b.binary(Binary::AddPacked(half), x, z),
            (_, NOTHING) => return b.binary(Binary::MulPacked(half), x, y),
            _ => {}
        }
    }
    multiply_add(b, half, [x, y, z])
}

/// x * y + z in both halves by one operation, or in f32 on targets without packed bf16.
fn multiply_add(b: &mut Builder, half: Half, [x, y, z]: [Operand; 3]) -> Operand {
    if half == Half::Bf16 && !b.target().has(Feature::PackedBf16Fma) {
        let halves = [Side::Low, Side::High].map(|side| {
            let [x, y, z] = [x, y, z].map(|operand| widened(b, side, operand));
            match (y, z) {
                (Operand::F32(1.0), _) => b.add_f32(x, z),
                (_, Operand::F32(z)) if z.to_bits() == (-0f32).to_bits() => b.mul_f32(x, y),
                _ => b.ternary(Ternary::Fma, x, y, z),
            }
        });
        return exact_pair(b, half, halves);
    }
    b.ternary(Ternary::FmaPacked(half), x, y, z)
}

/// x - y in both halves, likewise.
fn difference(b: &mut Builder, half: Half, [x, y]: [Operand; 2]) -> Operand {
    if half == Half::Bf16 && !b.target().has(Feature::PackedBf16Fma) {
        let halves = [Side::Low, Side::High].map(|side| {
            let [x, y] = [x, y].map(|operand| widened(b, side, operand));
            b.binary(Binary::SubF32, x, y)
        });
        return exact_pair(b, half, halves);
    }
    b.binary(Binary::SubPacked(half), x, y)
}

/// The bf16 in one half of a register as f32.
fn widened(b: &mut Builder, side: Side, operand: Operand) -> Operand {
    match (operand, side) {
        (Operand::U32(word), Side::Low) => f32::from_bits(word << 16).into(),
        (Operand::U32(word), Side::High) => f32::from_bits(word & 0xffff_0000).into(),
        _ => b.half_to_f32(Half::Bf16, side, operand),
    }
}

/// 1 in both halves, in bf16.
const ONES: Operand = Operand::U32(0x3f80_3f80);
/// -0 in both halves.
const NOTHING: Operand = Operand::U32(templates::NEGATIVE_ZEROS);

/// A value in a register, which a matrix instruction can read.
pub(super) fn in_register(b: &mut Builder, value: Operand) -> Reg {
    match value {
        Operand::Reg(reg) => reg,
        constant => {
            let dst = b.variable("constant", Type::U32, Uniformity::Varying);
            b.push(Op::Copy { dst, a: constant });
            dst
        }
    }
}

#[cfg(test)]
mod tests {
    use super::writable;
    use crate::plan::plan;
    use crate::plan::step::{Arg, Step};
    use crate::schedule::shader;
    use crate::target::target;

    /// A step without an operation is refused, and not written as something else.
    #[test]
    fn what_has_no_operation_is_refused() {
        let text = "s { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], \
                    activation: bf16 }";
        let scheme = quantloom_dsl::parse(text).unwrap();
        let x = Arg::Word(0x8000_0000);
        let of_lanes = [Step::Rotl(x, 1), Step::Prmt { low: x, high: x, select: x }];
        for (name, steps) in [("sm_90a", &[Step::Sar(x, 1)][..]), ("wgsl", &of_lanes[..])] {
            let target = target(name).unwrap();
            let plan = plan(&scheme, &scheme.activations[0], target).unwrap().dequant;
            let taken = if name == "wgsl" { shader::writable } else { writable };
            assert!(taken(&plan, target), "{name}");
            for step in steps {
                let mut other = plan.clone();
                other.stages.last_mut().unwrap().steps.push(step.clone());
                assert!(!taken(&other, target), "{name}: {step:?}");
            }
        }
    }
}
