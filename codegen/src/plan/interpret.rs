//! The meaning of steps, bit by bit: what every emitter's source must compute.

use quantloom_dsl::format::{F16, Number, Overflow};

use super::sequence::Sequence;
use super::sink::{ShiftOp, StepSink, WordOp};
use super::step::Arg;
use crate::target::{ConvertedCode, Half};

/// Runs a sequence: its output words, in the order of its outputs.
///
/// # Panics
/// If there are fewer words than inputs, or a step reads what no earlier step wrote:
/// [`Sequence::check`] finds the second.
pub fn interpret(sequence: &Sequence, words: &[u32]) -> Vec<u32> {
    let mut bits = Bits { registers: words[..sequence.inputs.len()].to_vec() };
    for step in &sequence.steps {
        let word = step.lower(&mut bits).expect("every step has a meaning in bits");
        bits.registers.push(word);
    }
    let word = |register: usize| bits.registers[register];
    sequence.outputs.iter().map(|output| word(usize::from(output.register.0))).collect()
}

/// The registers as they are written, bit by bit.
struct Bits {
    registers: Vec<u32>,
}

impl StepSink for Bits {
    type Value = u32;

    fn arg(&mut self, arg: Arg) -> u32 {
        match arg {
            Arg::Word(word) => word,
            Arg::Register(register) => self.registers[usize::from(register.0)],
        }
    }

    fn word(&mut self, op: WordOp, a: u32, b: u32) -> Option<u32> {
        Some(match op {
            WordOp::And => a & b,
            WordOp::Or => a | b,
            WordOp::Xor => a ^ b,
            WordOp::Add => a.wrapping_add(b),
        })
    }

    fn shift(&mut self, op: ShiftOp, a: u32, by: u8) -> Option<u32> {
        Some(match op {
            ShiftOp::Left => a << by,
            ShiftOp::Right => a >> by,
            ShiftOp::RightSigned => ((a as i32) >> by) as u32,
            ShiftOp::RotateLeft => a.rotate_left(by.into()),
        })
    }

    fn lop3(&mut self, of: [u32; 3], table: u8) -> Option<u32> {
        Some(lop3(of, table))
    }

    fn prmt(&mut self, [low, high, select]: [u32; 3]) -> Option<u32> {
        Some(prmt(low, high, select))
    }

    fn fma16(&mut self, half: Half, of: [u32; 3]) -> Option<u32> {
        Some(halves(of, half, |[a, b, c]| fma(a, b, c)))
    }

    fn sub16(&mut self, half: Half, [a, b]: [u32; 2]) -> Option<u32> {
        Some(halves([a, b, 0], half, |[a, b, _]| fma(b, -1.0, a)))
    }

    fn convert_f16(&mut self, codes: u32, of: ConvertedCode, pair: u8) -> Option<u32> {
        let codes = codes >> (2 * of.field() * u32::from(pair));
        let lower = codes & ((1 << of.field()) - 1);
        let upper = codes >> of.field() & ((1 << of.field()) - 1);
        let [lower, upper] = [lower, upper].map(|code| {
            // Other bits than a code's would be an error of the sequence: NaN is no value of any code here.
            let alone = code >> of.format().bits() == 0;
            let value = if alone { of.format().decode(code) } else { f64::NAN };
            F16.encode(value, Overflow::Special)
        });
        Some(lower | upper << 16)
    }

    fn lookup_f32(&mut self, table: &[u32], index: u32) -> Option<u32> {
        Some(table[index as usize % table.len()])
    }

    fn lookup_half(&mut self, table: &[u32], index: u32) -> Option<u32> {
        Some(table[index as usize % table.len()])
    }

    fn lookup_bytes(&mut self, table: &[u8; 16], indices: u32) -> Option<u32> {
        let bytes = indices.to_le_bytes().map(|index| table[usize::from(index) % table.len()]);
        Some(u32::from_le_bytes(bytes))
    }

    fn int_to_f32(&mut self, a: u32) -> Option<u32> {
        Some((a as i32 as f32).to_bits())
    }

    fn add_f32(&mut self, a: u32, b: u32) -> Option<u32> {
        Some((f32::from_bits(a) + f32::from_bits(b)).to_bits())
    }

    fn equal(&mut self, a: u32, b: u32) -> Option<u32> {
        Some(if a == b { u32::MAX } else { 0 })
    }
}

fn lop3([a, b, c]: [u32; 3], table: u8) -> u32 {
    let minterm = |index: u8| {
        let part = |word: u32, bit: u8| if index & bit != 0 { word } else { !word };
        part(a, 4) & part(b, 2) & part(c, 1)
    };
    (0..8).filter(|index| table >> index & 1 == 1).fold(0, |word, index| word | minterm(index))
}

fn prmt(low: u32, high: u32, select: u32) -> u32 {
    let bytes = (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
    let byte = |at: u32| {
        let selector = select >> (4 * at);
        let byte = bytes[(selector & 7) as usize];
        let byte = if selector & 8 == 0 { byte } else { 0u8.wrapping_sub(byte >> 7) };
        u32::from(byte) << (8 * at)
    };
    (0..4).map(byte).sum()
}

fn halves(words: [u32; 3], half: Half, of: impl Fn([f64; 3]) -> f64) -> u32 {
    let format = half.format();
    let one = |at: u32| {
        let values = words.map(|word| Number::Float(format).decode(word >> at & 0xffff));
        format.encode(of(values), Overflow::Special) << at
    };
    one(0) | one(16)
}

/// `a * b + c` of 16-bit floats, rounded to odd in `f64`, so that rounding it once more to 16
/// bits gives the result of one rounding (Boldo and Melquiond, "Emulation of a FMA and correctly
/// rounded sums", 2008). The product of two 11-bit significands is exact in `f64`.
fn fma(a: f64, b: f64, c: f64) -> f64 {
    let product = a * b;
    let sum = product + c;
    if !sum.is_finite() {
        return sum;
    }
    // Knuth's two-sum: product + c = sum + error, exactly.
    let back = sum - product;
    let error = (product - (sum - back)) + (c - back);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lop3_tables_of_the_ptx_manual() {
        // PTX ISA, lop3: ta = 0xF0, tb = 0xCC, tc = 0xAA make the table of a function.
        let words = [0xDEAD_BEEF, 0x1234_5678, 0x0F0F_F00F];
        let [a, b, c] = words;
        assert_eq!(lop3(words, 0xEA), a & b | c, "(a & b) | c");
        assert_eq!(lop3(words, 0x6A), (a & b) ^ c, "(a & b) ^ c");
        assert_eq!(lop3(words, 0xF8), a | b & c, "a | (b & c)");
        assert_eq!(lop3(words, 0x96), a ^ b ^ c);
    }

    #[test]
    fn prmt_picks_bytes() {
        assert_eq!(prmt(0x3322_1100, 0x7766_5544, 0x7531), 0x7755_3311);
        assert_eq!(prmt(0x8022_7f80, 0, 0xb998), 0xff00_00ff, "bit 3 copies the top bit");
    }

    #[test]
    fn a_fused_product_rounds_once() {
        // In bf16 (8 bits) 1 + 2^-8 is a tie, to even 1; a little more must round up to 1 + 2^-7.
        let [one, tie, little] = [0x3f80, 0x3b80, 0x2f80];
        let fma = |a: u32, b: u32, c: u32| {
            halves([a, b, c], Half::Bf16, |[a, b, c]| super::fma(a, b, c)) & 0xffff
        };
        assert_eq!(fma(tie, one, one), 0x3f80);
        // (1 + 2^-7) * 2^-8 + 1 is above the tie by 2^-15.
        assert_eq!(fma(tie + 1, one, one), 0x3f81);
        assert_eq!(fma(little, little, 0x3f80), 0x3f80);
    }
}
