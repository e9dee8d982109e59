//! The steps' meaning, bit by bit: what every emitter's text must compute.

use quantloom_dsl::format::{BF16, E4M3, F16, Number, Overflow};

use super::sequence::Sequence;
use super::step::{Arg, Half, Step};

/// The words that a sequence makes of its input words, in the order of its outputs.
///
/// # Panics
/// If there are fewer words than inputs, or a step reads what no earlier step wrote:
/// [`Sequence::check`] finds the second.
pub fn interpret(sequence: &Sequence, words: &[u32]) -> Vec<u32> {
    let mut registers = words[..sequence.inputs.len()].to_vec();
    for step in &sequence.steps {
        let word = apply(step, &|arg| match arg {
            Arg::Word(word) => word,
            Arg::Register(register) => registers[usize::from(register.0)],
        });
        registers.push(word);
    }
    let word = |register: usize| registers[register];
    sequence.outputs.iter().map(|output| word(usize::from(output.register.0))).collect()
}

fn apply(step: &Step, get: &dyn Fn(Arg) -> u32) -> u32 {
    match *step {
        Step::And(a, b) => get(a) & get(b),
        Step::Or(a, b) => get(a) | get(b),
        Step::Xor(a, b) => get(a) ^ get(b),
        Step::Add(a, b) => get(a).wrapping_add(get(b)),
        Step::Rotl(a, by) => get(a).rotate_left(by.into()),
        Step::Shl(a, by) => get(a) << by,
        Step::Shr(a, by) => get(a) >> by,
        Step::Sar(a, by) => ((get(a) as i32) >> by) as u32,
        Step::Lop3 { a, b, c, table } => lop3([get(a), get(b), get(c)], table),
        Step::Prmt { low, high, select } => prmt(get(low), get(high), get(select)),
        Step::Fma16(half, a, b, c) => {
            halves([get(a), get(b), get(c)], half, |[a, b, c]| fma(a, b, c))
        }
        Step::Sub16(half, a, b) => halves([get(a), get(b), 0], half, |[a, b, _]| fma(b, -1.0, a)),
        Step::CvtF16 { codes, high } => {
            let codes = if high { get(codes) >> 16 } else { get(codes) };
            let convert = |code: u32| F16.encode(E4M3.decode(code & 0xff), Overflow::Special);
            convert(codes) | convert(codes >> 8) << 16
        }
        Step::LookupF32 { ref table, index } => table[get(index) as usize % table.len()],
        Step::LookupHalf { ref table, index } => table[get(index) as usize % table.len()],
        Step::IntToF32(a) => (get(a) as i32 as f32).to_bits(),
        Step::Equal(a, b) => {
            if get(a) == get(b) {
                u32::MAX
            } else {
                0
            }
        }
        Step::AddF32(a, b) => (f32::from_bits(get(a)) + f32::from_bits(get(b))).to_bits(),
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
    let format = match half {
        Half::F16 => F16,
        Half::Bf16 => BF16,
    };
    let one = |at: u32| {
        let values = words.map(|word| Number::Float(format).decode(word >> at & 0xffff));
        format.encode(of(values), Overflow::Special) << at
    };
    one(0) | one(16)
}

/// `a * b + c` of 16-bit floats, rounded to odd in `f64`, so that rounding it once more to 16
/// bits gives what one rounding would (Boldo and Melquiond, "Emulation of a FMA and correctly
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
