//! Arithmetic on all lanes of a warp: one dispatch per instruction, then a loop over the lanes.
//!
//! In and out: rows of bits, one element per lane. Inactive lanes are computed too and their
//! results discarded, so that no function here may panic on any bits; [`first_domain_error`] finds
//! the operands that are an error in a live lane.

use std::array;

use quantloom_dsl::format::{E4M3, F16, Overflow};

use super::half;
use crate::ir::{Binary, Compare, Ternary, Unary};

/// One register of a warp, as bits.
pub(super) type Row<const L: usize> = [u32; L];

fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

fn one<const L: usize>(a: &Row<L>, op: impl Fn(u32) -> u32) -> Row<L> {
    array::from_fn(|lane| op(a[lane]))
}

fn two<const L: usize>(a: &Row<L>, b: &Row<L>, op: impl Fn(u32, u32) -> u32) -> Row<L> {
    array::from_fn(|lane| op(a[lane], b[lane]))
}

fn floats<const L: usize>(a: &Row<L>, b: &Row<L>, op: impl Fn(f32, f32) -> f32) -> Row<L> {
    two(a, b, |a, b| op(f(a), f(b)).to_bits())
}

fn three<const L: usize>([a, b, c]: [&Row<L>; 3], op: impl Fn(u32, u32, u32) -> u32) -> Row<L> {
    array::from_fn(|lane| op(a[lane], b[lane], c[lane]))
}

/// The bits of a number, or of one up to so many units in the last place from there, as the bits of an operand decide. What is
/// exact stays: 0, 1 and what is not finite.
fn near(number: f32, (operand, units): (u32, u32)) -> u32 {
    if number == 0.0 || number.abs() == 1.0 || !number.is_finite() {
        return number.to_bits();
    }
    let off = (operand.wrapping_mul(0x9e37_79b9) >> 16) % (2 * units + 1);
    let magnitude = (number.abs().to_bits() + off).saturating_sub(units);
    let infinite = f32::INFINITY.to_bits();
    f32::from_bits(magnitude.min(infinite)).copysign(number).to_bits()
}

/// The number, 0 of its sign if subnormal.
fn flushed(number: f32) -> f32 {
    if number.is_subnormal() { 0f32.copysign(number) } else { number }
}

/// dst = op(a), lane by lane.
pub(super) fn unary<const L: usize>(op: Unary, a: &Row<L>) -> Row<L> {
    match op {
        Unary::Not => one(a, |a| !a),
        Unary::Negate => one(a, |a| a ^ 0x8000_0000),
        Unary::Abs => one(a, |a| a & 0x7fff_ffff),
        Unary::Sqrt => one(a, |a| f(a).sqrt().to_bits()),
        Unary::RoundEven => one(a, |a| f(a).round_ties_even().to_bits()),
        Unary::Exp2Near => one(a, |a| near(f64::from(f(a)).exp2() as f32, (a, 2))),
        Unary::ReciprocalNear => one(a, |a| near(flushed(1.0 / flushed(f(a))), (a, 1))),
        Unary::PopCount => one(a, u32::count_ones),
        Unary::AsF32 | Unary::AsU32 | Unary::NotPred => *a,
        Unary::F32FromU32 => one(a, |a| (a as f32).to_bits()),
        Unary::F32FromS32 => one(a, |a| (a as i32 as f32).to_bits()),
        Unary::S32FromF32 => one(a, |a| f(a).round_ties_even() as i32 as u32),
        Unary::F32FromHalf(half, side) => one(a, |a| half::side(half, side, a).to_bits()),
        Unary::F16x2From(of, pair) => one(a, |a| {
            let (format, field) = (of.format(), of.field());
            let pair = a >> (2 * field * u32::from(pair) % 32);
            let mask = (1 << format.bits()) - 1;
            let half = |code: u32| F16.encode(format.decode(code & mask), Overflow::Special);
            half(pair) | half(pair >> field) << 16
        }),
    }
}

/// dst = op(a, b), lane by lane.
pub(super) fn binary<const L: usize>(op: Binary, a: &Row<L>, b: &Row<L>) -> Row<L> {
    match op {
        Binary::Add => two(a, b, u32::wrapping_add),
        Binary::Sub => two(a, b, u32::wrapping_sub),
        Binary::Mul => two(a, b, u32::wrapping_mul),
        Binary::MulHigh => two(a, b, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        Binary::Div => two(a, b, |a, b| a.checked_div(b).unwrap_or(0)),
        Binary::Rem => two(a, b, |a, b| a.checked_rem(b).unwrap_or(0)),
        Binary::Min => two(a, b, u32::min),
        Binary::Max => two(a, b, u32::max),
        Binary::MinSigned => two(a, b, |a, b| (a as i32).min(b as i32) as u32),
        Binary::MaxSigned => two(a, b, |a, b| (a as i32).max(b as i32) as u32),
        Binary::And => two(a, b, |a, b| a & b),
        Binary::Or => two(a, b, |a, b| a | b),
        Binary::Xor => two(a, b, |a, b| a ^ b),
        Binary::Shl => two(a, b, |a, b| a.wrapping_shl(b)),
        Binary::Shr => two(a, b, |a, b| a.wrapping_shr(b)),
        Binary::ShrSigned => two(a, b, |a, b| (a as i32).wrapping_shr(b) as u32),
        Binary::AndPred | Binary::OrPred => *a,
        Binary::AddF32 => floats(a, b, |a, b| a + b),
        Binary::SubF32 => floats(a, b, |a, b| a - b),
        Binary::MulF32 => floats(a, b, |a, b| a * b),
        Binary::DivF32 => floats(a, b, |a, b| a / b),
        Binary::MinF32 => floats(a, b, |a, b| if before(a, b) { a } else { b }),
        Binary::MaxF32 => floats(a, b, larger),
        Binary::AddPacked(half) => two(a, b, |a, b| half::add(half, a, b)),
        Binary::SubPacked(half) => two(a, b, |a, b| half::sub(half, a, b)),
        Binary::MulPacked(half) => two(a, b, |a, b| half::mul(half, a, b)),
        Binary::MaxPacked(half) => two(a, b, |a, b| half::each(half, a, b, larger)),
        Binary::Pack(half) => two(a, b, |a, b| half::pack(half, f(a), f(b))),
        Binary::PackE4m3 => two(a, b, |a, b| {
            let code = |x: u32| E4M3.encode(f64::from(f(x)), Overflow::Saturate);
            code(a) | code(b) << 8
        }),
    }
}

/// The larger: a number before NaN, +0 before -0.
fn larger(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if before(a, b) => b,
        _ => a,
    }
}

/// Whether the minimum of the two is a: numbers before NaN, -0 before +0.
fn before(a: f32, b: f32) -> bool {
    b.is_nan() || a < b || (a == b && a.is_sign_negative())
}

/// dst = op(a, b, c), lane by lane.
pub(super) fn ternary<const L: usize>(op: Ternary, rows: [&Row<L>; 3]) -> Row<L> {
    match op {
        Ternary::Mad => three(rows, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        Ternary::Fma => three(rows, |a, b, c| f(a).mul_add(f(b), f(c)).to_bits()),
        Ternary::FmaPacked(half) => three(rows, |a, b, c| half::fma(half, a, b, c)),
        Ternary::Lop3(table) => {
            // One mask per row of the truth table, for all bits together.
            let on: [u32; 8] = array::from_fn(|row| if table >> row & 1 == 1 { !0 } else { 0 });
            three(rows, |a, b, c| {
                (0..8).fold(0, |sum, row| {
                    let side = |x: u32, bit: usize| if row >> bit & 1 == 1 { x } else { !x };
                    sum | on[row] & side(a, 2) & side(b, 1) & side(c, 0)
                })
            })
        }
        Ternary::Permute => three(rows, |a, b, c| {
            let bytes = u64::from(b) << 32 | u64::from(a);
            (0..4).fold(0, |word, at| {
                let selector = c >> (4 * at);
                let byte = (bytes >> (8 * (selector & 7))) as u8;
                let sign = if byte & 0x80 == 0 { 0 } else { 0xff };
                word | u32::from(if selector & 8 == 0 { byte } else { sign }) << (8 * at)
            })
        }),
        Ternary::FunnelLeft => {
            three(rows, |a, b, c| ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32)
        }
        Ternary::FunnelRight => {
            three(rows, |a, b, c| ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32)
        }
        Ternary::Dot4 { a_signed, b_signed } => three(rows, |a, b, c| {
            let byte = |x: u32, at: u32, signed: bool| {
                let byte = (x >> (8 * at)) as u8;
                if signed { i32::from(byte as i8) } else { i32::from(byte) }
            };
            (0..4).fold(c, |sum, at| {
                sum.wrapping_add((byte(a, at, a_signed) * byte(b, at, b_signed)) as u32)
            })
        }),
    }
}

/// The lanes in which the comparison of a and b holds.
pub(super) fn compare<const L: usize>(op: Compare, a: &Row<L>, b: &Row<L>) -> u64 {
    let lanes = |holds: fn(u32, u32) -> bool| {
        (0..L).fold(0u64, |mask, lane| mask | u64::from(holds(a[lane], b[lane])) << lane)
    };
    match op {
        Compare::Equal => lanes(|a, b| a == b),
        Compare::NotEqual => lanes(|a, b| a != b),
        Compare::Less => lanes(|a, b| a < b),
        Compare::LessEqual => lanes(|a, b| a <= b),
        Compare::LessSigned => lanes(|a, b| (a as i32) < b as i32),
        Compare::EqualF32 => lanes(|a, b| f(a) == f(b)),
        Compare::LessF32 => lanes(|a, b| f(a) < f(b)),
    }
}

/// Why a lane's operand is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DomainError {
    /// A division by 0.
    Zero,
    /// A shift by 32 or more.
    Shift(u32),
    /// Bits beside the codes of a conversion.
    Padding,
}

/// The operands that an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Domain {
    /// Every operand.
    All,
    /// The last operand must not be 0.
    NotZero,
    /// The last operand must be below 32.
    Shift,
    /// These bits of the operand must be 0.
    Clear(u32),
}

/// The domain of a unary operation's operand: bits of other pairs than the converted one do not matter.
pub(super) fn unary_domain(op: Unary) -> Domain {
    match op {
        Unary::F16x2From(code, pair) => {
            let bits = 2 * code.field();
            let of_pair = u32::MAX >> (32 - bits) << (bits * u32::from(pair) % 32);
            Domain::Clear(code.padding() & of_pair)
        }
        _ => Domain::All,
    }
}

/// The domain of a binary operation's second operand.
pub(super) fn binary_domain(op: Binary) -> Domain {
    match op {
        Binary::Div | Binary::Rem => Domain::NotZero,
        Binary::Shl | Binary::Shr | Binary::ShrSigned => Domain::Shift,
        _ => Domain::All,
    }
}

/// The domain of a ternary operation's third operand.
pub(super) fn ternary_domain(op: Ternary) -> Domain {
    match op {
        Ternary::FunnelLeft | Ternary::FunnelRight => Domain::Shift,
        _ => Domain::All,
    }
}

/// The first live lane whose operand is an error.
pub(super) fn first_domain_error<const L: usize>(
    domain: Domain,
    row: &Row<L>,
    active: u64,
) -> Option<(usize, DomainError)> {
    let live = |lane: &usize| active >> lane & 1 == 1;
    match domain {
        Domain::All => None,
        Domain::NotZero => {
            (0..L).filter(live).find(|&lane| row[lane] == 0).map(|lane| (lane, DomainError::Zero))
        }
        Domain::Shift => (0..L)
            .filter(live)
            .find(|&lane| row[lane] >= 32)
            .map(|lane| (lane, DomainError::Shift(row[lane]))),
        Domain::Clear(bits) => (0..L)
            .filter(live)
            .find(|&lane| row[lane] & bits != 0)
            .map(|lane| (lane, DomainError::Padding)),
    }
}
