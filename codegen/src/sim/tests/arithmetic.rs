//! Operations on values against their definitions in `ir::arithmetic`.

use crate::ir::{Binary, Compare, Half, Side, Ternary, Unary};
use crate::sim::lanes::{binary, compare, ternary, unary};
use crate::sim::random::Random;
use crate::target::ConvertedCode;

fn f(x: f32) -> u32 {
    x.to_bits()
}

fn un(op: Unary, a: u32) -> u32 {
    unary(op, &[a; 32])[31]
}

fn bi(op: Binary, a: u32, b: u32) -> u32 {
    binary(op, &[a; 32], &[b; 32])[31]
}

fn tri(op: Ternary, a: u32, b: u32, c: u32) -> u32 {
    ternary(op, [&[a; 32], &[b; 32], &[c; 32]])[31]
}

#[test]
fn one_operand() {
    for (op, a, want) in [
        (Unary::Not, 0xf0, 0xffff_ff0f),
        (Unary::Negate, f(0.0), f(-0.0)),
        (Unary::RoundEven, f(2.5), f(2.0)),
        (Unary::RoundEven, f(-3.5), f(-4.0)),
        (Unary::Exp2Near, f(f32::NEG_INFINITY), 0),
        (Unary::ReciprocalNear, f(-1e-39), f(f32::NEG_INFINITY)),
        (Unary::ReciprocalNear, f(-3e38), f(-0.0)),
        (Unary::PopCount, 0xff01, 9),
        (Unary::F32FromU32, 0xffff_ffff, f(4294967296.0)),
        (Unary::F32FromU32, 0x0100_0001, f(16777216.0)),
        (Unary::F32FromS32, 0xffff_ffff, f(-1.0)),
        (Unary::S32FromF32, f(-2.5), (-2i32) as u32),
        (Unary::S32FromF32, f(3e9), 0x7fff_ffff),
        (Unary::S32FromF32, f(f32::NAN), 0),
        (Unary::F32FromHalf(Half::F16, Side::High), 0x0001_0000, f(2f32.powi(-24))),
        (Unary::F32FromHalf(Half::Bf16, Side::Low), 0xffff_3f80, f(1.0)),
        (Unary::F16x2From(ConvertedCode::E4m3, 0), 0xffff_7e01, 0x5f00_1800),
        (Unary::F16x2From(ConvertedCode::E4m3, 1), 0x7e01_ffff, 0x5f00_1800),
        // 0.5 and -6; 1 and -1.5.
        (Unary::F16x2From(ConvertedCode::E2m1, 0), 0xffff_fff1, 0xc600_3800),
        (Unary::F16x2From(ConvertedCode::E2m1, 3), 0xb2ff_ffff, 0xbe00_3c00),
        // 0.125 and -7.5; 0.0625 and -28.
        (Unary::F16x2From(ConvertedCode::E2m3, 0), 0xffff_3f01, 0xc780_3000),
        (Unary::F16x2From(ConvertedCode::E3m2, 1), 0x3f01_ffff, 0xcf00_2c00),
    ] {
        assert_eq!(un(op, a), want, "{op:?} {a:#x}");
    }
}

/// Results that are not rounded to nearest: each number of units in the last place that is allowed.
#[test]
fn near_functions_are_off_by_some_units() {
    for (op, units) in [(Unary::Exp2Near, 2), (Unary::ReciprocalNear, 1)] {
        let mut found = std::collections::BTreeSet::new();
        for at in 0..1000u32 {
            let a = -1.0 - at as f32 / 37.0;
            let exact = match op {
                Unary::Exp2Near => f64::from(a).exp2() as f32,
                _ => 1.0 / a,
            };
            if exact != -1.0 {
                found.insert(un(op, f(a)) as i64 - i64::from(exact.to_bits()));
            }
        }
        let expected = if units == 2 { vec![-2, -1, 0, 1, 2] } else { vec![-1, 0, 1] };
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected, "{op:?}");
    }
    // The smallest numbers, and the largest.
    for at in 0..1000u32 {
        for a in [-149.9 + at as f32 / 300.0, 127.99 + at as f32 / 1e5] {
            let exact = f64::from(a).exp2() as f32;
            let found = f32::from_bits(un(Unary::Exp2Near, f(a)));
            let off = i64::from(found.to_bits()) - i64::from(exact.to_bits());
            assert!(off.abs() <= 2 && found >= 0.0, "2^{a}: {found:e}, {exact:e}");
        }
    }
}

#[test]
fn two_operands() {
    for (op, a, b, want) in [
        (Binary::MulHigh, 0xffff_ffff, 0xffff_ffff, 0xffff_fffe),
        (Binary::MinSigned, 0xffff_ffff, 1, 0xffff_ffff),
        (Binary::Min, 0xffff_ffff, 1, 1),
        (Binary::ShrSigned, 0x8000_0000, 31, 0xffff_ffff),
        (Binary::Shr, 0x8000_0000, 31, 1),
        (Binary::MinF32, f(0.0), f(-0.0), f(-0.0)),
        (Binary::MaxF32, f(-0.0), f(0.0), f(0.0)),
        (Binary::MinF32, f(f32::NAN), f(1.0), f(1.0)),
        (Binary::MaxF32, f(1.0), f(f32::NAN), f(1.0)),
        // 136 - 8 in the high half: the magic decode of 4 bits.
        (Binary::SubPacked(Half::Bf16), 0x4308_430f, 0x4308_4308, 0x0000_40e0),
        (Binary::AddPacked(Half::F16), 0x0001_7bff, 0x0001_7bff, 0x0002_7c00),
        (Binary::MulPacked(Half::F16), 0x0400_3c00, 0x3800_3c00, 0x0200_3c00),
        // Subnormal before 0, a number before NaN.
        (Binary::MaxPacked(Half::Bf16), 0x7fc0_0000, 0x3f80_0040, 0x3f80_0040),
        (Binary::MaxPacked(Half::F16), 0x8000_bc00, 0x0000_c000, 0x0000_bc00),
        // 1 + 2^-8 is a tie of bf16; it goes to even.
        (Binary::Pack(Half::Bf16), 0x3f80_8000, 0x3f81_8000, 0x3f82_3f80),
        (Binary::Pack(Half::F16), f(65520.0), f(65519.0), 0x7bff_7c00),
        (Binary::PackE4m3, f(500.0), f(-0.001953125), 0x0000_817e),
        (Binary::PackE4m3, f(f32::NAN), f(f32::NEG_INFINITY), 0x0000_fe7f),
    ] {
        assert_eq!(bi(op, a, b), want, "{op:?} {a:#x} {b:#x}");
    }
}

#[test]
fn three_operands() {
    for (op, a, b, c, want) in [
        (Ternary::Mad, 0x1_0000, 0x1_0000, 5, 5),
        (Ternary::Lop3(0xEA), 0x1234_5678, 0x000f_000f, 0x4300_4300, 0x4304_4308),
        (Ternary::Lop3(0x80), 0xff, 0x0f, 0x03, 0x03),
        (Ternary::Permute, 0x3322_1100, 0x7766_5544, 0x5140, 0x5511_4400),
        // Bit 3: the byte's sign in all bits.
        (Ternary::Permute, 0x0080_0000, 0, 0x000a, 0x0000_00ff),
        (Ternary::FunnelLeft, 0x8000_0000, 1, 1, 3),
        (Ternary::FunnelRight, 0, 1, 1, 0x8000_0000),
        (
            Ternary::Dot4 { a_signed: true, b_signed: false },
            0xff01_0203,
            0xff01_0101,
            7,
            13u32.wrapping_sub(255),
        ),
        // 1 + 2^-7 times 1 + 2^-7 = 1 + 2^-6 + 2^-14: one rounding keeps what decides the tie.
        (Ternary::FmaPacked(Half::Bf16), 0x3f81, 0x3f81, 0x3b80, 0x3f83),
        (
            Ternary::Fma,
            f(1.0 + 2f32.powi(-12)),
            f(1.0 + 2f32.powi(-12)),
            f(-1.0),
            f(2f32.powi(-11) + 2f32.powi(-24)),
        ),
    ] {
        assert_eq!(tri(op, a, b, c), want, "{op:?} {a:#x} {b:#x} {c:#x}");
    }
}

/// lop3 by its definition, bit by bit, for every table.
#[test]
fn lop3_tables() {
    let mut random = Random::new(3);
    for table in 0..=255u8 {
        let [a, b, c] = [(); 3].map(|()| random.next() as u32);
        let want = (0..32).fold(0, |word, bit| {
            let at = |x: u32| x >> bit & 1;
            word | (u32::from(table) >> (4 * at(a) + 2 * at(b) + at(c)) & 1) << bit
        });
        assert_eq!(tri(Ternary::Lop3(table), a, b, c), want, "table {table:#x}");
    }
}

#[test]
fn comparisons() {
    let nan = f(f32::NAN);
    for (op, a, b, want) in [
        (Compare::Less, 1, 0xffff_ffff, true),
        (Compare::LessSigned, 1, 0xffff_ffff, false),
        (Compare::LessEqual, 2, 2, true),
        (Compare::EqualF32, f(0.0), f(-0.0), true),
        (Compare::EqualF32, nan, nan, false),
        (Compare::LessF32, nan, f(1.0), false),
        (Compare::LessF32, f(-1.0), f(1.0), true),
    ] {
        let mask = compare(op, &[a; 64], &[b; 64]);
        assert_eq!(mask, if want { !0 } else { 0 }, "{op:?} {a:#x} {b:#x}");
    }
}
