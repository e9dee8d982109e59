//! From steps of the matrix instruction to f32 sums: a segment is summed in the accumulator's type, then
//! scaled.
//!
//! The matrix instruction adds the steps of a segment. The scale multiplies that sum and not the weights:
//! products are exact, and a scale costs one multiplication per result. The zero-point correction
//! multiplies the segment's sum of x for each token, which the same instruction computes with ones as
//! weights.
//!
//! An instruction that scales its operands adds to the accumulators directly.
//!
//! Integer sums start at the bits of 1.5 * 2^23, where the spacing of f32 is 1: the sum's bits are a float
//! without a conversion. Subtracting the constant also removes the power of two that dequantisation left.
//! This is valid for sums below 2^22 in magnitude; a segment of 128 products of bytes stays below 2^21.

use super::mapping::MainLoop;
use crate::ir::{
    Accumulator, Builder, MatrixScale, Operand, Reg, Ternary, Type, Unary, Uniformity,
};

/// 1.5 * 2^23 in f32.
pub(super) const MAGIC: f32 = 12_582_912.0;

/// The factors of a segment's sums.
#[derive(Clone, Default)]
pub(super) struct SegmentScales {
    /// For this lane's rows.
    pub(super) rows: Option<Vec<Operand>>,
    /// For this lane's tokens.
    pub(super) tokens: Option<Vec<Operand>>,
    /// For this lane's rows: the zero-point correction, which multiplies the sum of x.
    pub(super) correction: Option<Vec<Operand>>,
}

pub(super) struct Summing<'p> {
    main: &'p MainLoop<'p>,
    /// A fragment of ones, if sums of x are needed.
    ones: Vec<Reg>,
    /// The initial value of integer sums.
    start: Vec<Reg>,
    /// Registers of B in a step.
    x_registers: usize,
    /// Whether the instruction scales, so that a segment is added to the accumulators directly.
    straight: bool,
}

impl<'p> Summing<'p> {
    pub(super) fn declare(b: &mut Builder, main: &'p MainLoop<'p>) -> Self {
        let constants = |b: &mut Builder, name: &str, len: usize, word: u32| {
            let registers = b.array(name, Type::U32, len as u32, Uniformity::Varying);
            for &register in &registers {
                b.set(register, word);
            }
            registers
        };
        let (of_a, of_d) = (main.lanes().a.registers, main.lanes().d.registers.len());
        let one = || main.problem.input.operand.ones();
        let ones = main.problem.corrects_sums().then(|| constants(b, "ones", of_a, one()));
        let ones = ones.unwrap_or_default();
        let start = match main.problem.sums_integers() {
            true => constants(b, "start", of_d, MAGIC.to_bits()),
            false => Vec::new(),
        };
        let x_registers = main.x_fragment().map_or(0, |tokens| tokens.registers);
        Self { main, ones, start, x_registers, straight: main.scaled().is_some() }
    }

    /// Registers for the sums of a segment.
    fn part(&self, b: &mut Builder) -> Vec<Reg> {
        let ty = if self.main.problem.sums_integers() { Type::U32 } else { Type::F32 };
        b.fragment(ty, self.main.lanes().d.registers.len() as u32)
    }

    /// The registers for the sums of a segment that is added to `sums`.
    pub(super) fn part_of(&self, b: &mut Builder, sums: &[Reg]) -> Vec<Reg> {
        if self.straight { sums.to_vec() } else { self.part(b) }
    }

    /// A step of a segment: part += a x; the segment's first step starts from 0. `scales` are those of
    /// an instruction that scales. Registers of x beyond B are ignored.
    pub(super) fn step(
        &self,
        b: &mut Builder,
        part: &[Reg],
        (a, x): (&[Reg], &[Reg]),
        scales: Option<[MatrixScale; 2]>,
        first: bool,
    ) {
        let accumulator = match first && !self.straight {
            true if self.start.is_empty() => Accumulator::Zero,
            true => Accumulator::Registers(self.start.clone()),
            false => Accumulator::Registers(part.to_vec()),
        };
        // A schedule with matrix instructions always has one.
        let Some(product) = self.main.instruction() else { return };
        let x = &x[..self.x_registers];
        match scales {
            Some(scales) => b.matrix_scaled(product, part, (a, x), accumulator, scales),
            None => b.matrix(product, part, a, x, accumulator),
        }
    }

    /// For each segment of a k-tile, the sums of x of this lane's tokens, in every register of D; empty
    /// if they are not needed.
    pub(super) fn of_x(&self, b: &mut Builder, x: &[Reg]) -> Vec<Vec<Reg>> {
        if self.ones.is_empty() {
            return Vec::new();
        }
        let (steps, of_step) = (self.main.segment_steps() as usize, self.x_registers);
        let segment = |x: &[Reg]| {
            let part = self.part(b);
            for (step, x) in x.chunks_exact(of_step).enumerate() {
                self.step(b, &part, (&self.ones, x), None, step == 0);
            }
            part
        };
        x.chunks_exact(of_step * steps).map(segment).collect()
    }

    /// sums += part * scale + sum of x * correction, in the given registers, which hold tokens.
    pub(super) fn add(
        &self,
        b: &mut Builder,
        sums: &[Reg],
        (part, of_x): (&[Reg], Option<&Vec<Reg>>),
        scales: &SegmentScales,
        registers: &[usize],
    ) {
        if self.straight {
            return;
        }
        let held = &self.main.lanes().d.registers;
        for &at in registers {
            let [row, token] = held[at];
            let tokens = scales.tokens.as_ref().map(|tokens| tokens[token]);
            let with_tokens = |b: &mut Builder, of_row: Operand| match tokens {
                Some(tokens) => b.mul_f32(of_row, tokens),
                None => of_row,
            };
            let part = self.as_float(b, part[at], self.main.problem.plan.dequant.encoding().1);
            match scales.rows.as_ref().map(|rows| rows[row]) {
                Some(of_row) => {
                    let scale = with_tokens(b, of_row);
                    b.accumulate(sums[at], scale, part);
                }
                None => match tokens {
                    Some(tokens) => b.accumulate(sums[at], tokens, part),
                    None => {
                        let sum = b.add_f32(sums[at], part);
                        b.set(sums[at], sum);
                    }
                },
            }
            if let (Some(correction), Some(of_x)) = (&scales.correction, of_x) {
                let correction = with_tokens(b, correction[row]);
                // The sum of x is the same for all rows.
                let first = held.iter().position(|&[_, other]| other == token).unwrap_or(at);
                let of_x = self.as_float(b, of_x[first], 0);
                b.accumulate(sums[at], correction, of_x);
            }
        }
    }

    /// A sum as f32; an integer sum without the power of two of its codes.
    fn as_float(&self, b: &mut Builder, sum: Reg, exponent: i32) -> Operand {
        if self.start.is_empty() {
            return sum.into();
        }
        let unit = 2f32.powi(-exponent);
        let sum = b.unary(Unary::AsF32, sum);
        b.ternary(Ternary::Fma, sum, unit, -MAGIC * unit)
    }
}
