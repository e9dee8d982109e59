//! Division of u32 by a constant, as a product with its reciprocal.
//!
//! NVIDIA's assembler has no short form for it: it computes a reciprocal in floating point and corrects twice, some 17 instructions.
//! With d the divisor, floor(n / d) = floor(n m / 2^(32 + l)) for all n below 2^p if 2^(32 + l) <= m d <= 2^(32 + l) + 2^(32 + l - p)
//! (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994, theorem 4.2). There is such an m of at most
//! p + 1 bits for the least l with 2^l >= d, and perhaps for a smaller l.

use super::Writer;

/// A way to floor(n / d).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quotient {
    /// The upper word of (n >> `before`) `by`, shifted right by `after`.
    Product { before: u32, by: u32, after: u32 },
    /// With a multiplier of 33 bits, 2^32 + `by`: t is the upper word of n `by`; then (t + ((n - t) >> 1)) >> `after`.
    LongProduct { by: u32, after: u32 },
}

impl Quotient {
    /// By a divisor from 3 on that is no power of two.
    fn by(divisor: u32) -> Self {
        let (by, after) = multiplier(divisor, 32);
        if let Ok(by) = u32::try_from(by) {
            return Self::Product { before: 0, by, after };
        }
        // The powers of two of the divisor first: fewer bits of n are left.
        let before = divisor.trailing_zeros();
        let (odd, odd_after) = multiplier(divisor >> before, 32 - before);
        match u32::try_from(odd) {
            Ok(by) => Self::Product { before, by, after: odd_after },
            // 2^32 is left out.
            Err(_) => Self::LongProduct { by: by as u32, after: after - 1 },
        }
    }
}

/// m for numbers below 2^`bits`, and l, the shift after the upper word of the product: as small as there are.
fn multiplier(divisor: u32, bits: u32) -> (u64, u32) {
    let mut shift = u32::BITS - (divisor - 1).leading_zeros();
    let of = |power: u128| power / u128::from(divisor);
    let whole = 1u128 << (32 + shift);
    let (mut least, mut most) = (of(whole), of(whole + (1 << (32 + shift - bits))));
    while shift > 0 && least / 2 < most / 2 {
        (least, most, shift) = (least / 2, most / 2, shift - 1);
    }
    (most as u64, shift)
}

impl Writer<'_> {
    /// dst = a / `divisor`, or the remainder, where the divisor is no power of two; `dst` may be `a`.
    pub(super) fn divide(&mut self, dst: &str, a: &str, divisor: u32, remainder: bool) {
        self.line("{ .reg .b32 quotient, rest;");
        for instruction in instructions(dst, a, divisor, remainder) {
            self.line(&instruction);
        }
        self.line("}");
    }
}

/// The instructions of [`Writer::divide`], with registers `quotient` and `rest`.
fn instructions(dst: &str, a: &str, divisor: u32, remainder: bool) -> Vec<String> {
    let quotient = if remainder { "quotient" } else { dst };
    let mut all = match Quotient::by(divisor) {
        Quotient::Product { before: 0, by, after } => vec![
            format!("mul.hi.u32 quotient, {a}, {by:#x};"),
            format!("shr.u32 {quotient}, quotient, {after};"),
        ],
        Quotient::Product { before, by, after } => vec![
            format!("shr.u32 rest, {a}, {before};"),
            format!("mul.hi.u32 quotient, rest, {by:#x};"),
            format!("shr.u32 {quotient}, quotient, {after};"),
        ],
        Quotient::LongProduct { by, after } => vec![
            format!("mul.hi.u32 quotient, {a}, {by:#x};"),
            format!("sub.u32 rest, {a}, quotient;"),
            "shr.u32 rest, rest, 1;".to_owned(),
            "add.u32 quotient, quotient, rest;".to_owned(),
            format!("shr.u32 {quotient}, quotient, {after};"),
        ],
    };
    if remainder {
        all.push(format!("mul.lo.u32 rest, quotient, {divisor};"));
        all.push(format!("sub.u32 {dst}, {a}, rest;"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::BTreeMap;

    use crate::ir::{
        Access, Address, Binary, Builder, Extent, LaunchConfig, Special, Width, Word, verify,
    };
    use crate::target::target;

    /// What the instructions make of n, the only register that they do not write: an interpreter of the five that there are.
    fn run<T: AsRef<str>>(instructions: &[T], n: u32) -> u32 {
        let (mut registers, mut last) = (BTreeMap::new(), n);
        for line in instructions.iter().map(AsRef::as_ref) {
            let (name, operands) = line.trim_end_matches(';').split_once(' ').expect("operands");
            let operands: Vec<&str> = operands.split(", ").collect();
            let [dst, a, b] = operands[..] else { panic!("{line}") };
            let value = |of: &str| match (of.strip_prefix("0x"), registers.get(of)) {
                (_, Some(value)) => *value,
                (Some(digits), None) => u32::from_str_radix(digits, 16).expect("digits"),
                (None, None) => of.parse().unwrap_or(n),
            };
            let (a, b) = (value(a), value(b));
            let result = match name {
                "mul.hi.u32" => ((u64::from(a) * u64::from(b)) >> 32) as u32,
                "mul.lo.u32" => a.wrapping_mul(b),
                "shr.u32" => a.checked_shr(b).unwrap_or(0),
                "sub.u32" => a.wrapping_sub(b),
                "add.u32" => a.wrapping_add(b),
                other => panic!("{other}"),
            };
            registers.insert(dst, result);
            last = result;
        }
        last
    }

    /// The emitted instructions of both operations, as the emitter chooses them.
    #[test]
    fn kernels_divide_and_take_remainders_by_products() {
        let chip = target("sm_90a").expect("a target of the table");
        let grid = [1; 3].map(Extent::Constant);
        let launch =
            LaunchConfig { grid, threads: 32, min_blocks: 1, cluster: 1, programmatic: false };
        let mut b = Builder::new("divides", "Divides.", chip, launch);
        let shape = [Extent::Constant(64)];
        let x = b.buffer("x", Word::U32, Access::ReadOnly, &shape, "[i]");
        let y = b.buffer("y", Word::U32, Access::WriteOnce, &shape, "[i]");
        let lane = b.special(Special::Lane);
        let n = b.load(Address::new(x, lane), Width::B32)[0];
        for (at, op) in (0..).zip([Binary::Div, Binary::Rem]) {
            let result = b.binary(op, n, 192u32);
            b.store(Address::new(y, lane).plus(32 * at), &[result], Width::B32, None);
        }
        let kernel = verify(b.finish()).expect("a right kernel");
        let text = super::super::emit(&kernel).expect("PTX");
        let blocks = text.split("{ .reg .b32 quotient, rest;").skip(1);
        let blocks: Vec<Vec<&str>> = blocks
            .map(|block| block.lines().map(str::trim).filter(|line| !line.is_empty()))
            .map(|lines| lines.take_while(|line| *line != "}").collect())
            .collect();
        for n in [0, 1, 191, 192, 193, 383, 12_345_678, u32::MAX] {
            let results: Vec<u32> = blocks.iter().map(|block| run(block, n)).collect();
            assert_eq!(results, [n / 192, n % 192], "{n}");
        }
    }

    /// Numbers beside multiples of the divisor, near both ends and the middle, are where a reciprocal that is too large or too small
    /// shows first.
    #[test]
    fn instructions_give_quotients_and_remainders() {
        let small = (3u32..1200).chain([28672, 151_936, 641, 6_700_417, 0x7fff_ffff, 0x8000_0001]);
        let large = (0..600).map(|below| u32::MAX - below);
        let mut forms = [false; 3];
        for divisor in small.chain(large).filter(|divisor| !divisor.is_power_of_two()) {
            forms[match Quotient::by(divisor) {
                Quotient::Product { before: 0, .. } => 0,
                Quotient::Product { .. } => 1,
                Quotient::LongProduct { .. } => 2,
            }] = true;
            let [quotient, remainder] =
                [false, true].map(|remainder| instructions("d", "n", divisor, remainder));
            let last = u32::MAX / divisor;
            let multiples = (0..8).flat_map(|near| [near, last - near.min(last), last / 2 + near]);
            for multiple in multiples.filter(|multiple| *multiple <= last) {
                let at = multiple * divisor;
                for n in [at.wrapping_sub(1), at, at.saturating_add(1), u32::MAX - multiple] {
                    let found = [&quotient, &remainder].map(|instructions| run(instructions, n));
                    assert_eq!(
                        found,
                        [n / divisor, n % divisor],
                        "{n} by {divisor}: {remainder:?}"
                    );
                }
            }
        }
        assert_eq!(forms, [true; 3]);
    }
}
