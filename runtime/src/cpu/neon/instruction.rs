//! Instructions beyond base NEON, for which stable Rust has no intrinsics yet.
//!
//! In: registers. Out: a register. Each function is one line of assembly without memory or state,
//! so that the compiler may reorder and merge them like intrinsics. `.arch_extension` lets the
//! assembler accept the instruction in any function; the types of [`super::vector`] guarantee that
//! the CPU has it.

use core::arch::aarch64::{
    float32x4_t, int8x16_t, int16x8_t, int32x4_t, uint8x16_t, uint16x4_t, uint16x8_t,
};
use core::arch::asm;

/// `sum[i] + codes[4i..4i+4] . x[4i..4i+4]`, signed by signed (FEAT_DotProd).
#[inline(always)]
pub(super) fn sdot(mut sum: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: registers only; the set of the caller's type has the instruction.
    unsafe {
        asm!(".arch_extension dotprod", "sdot {sum:v}.4s, {codes:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum, codes = in(vreg) codes, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// `sum[i] + codes[4i..4i+4] . x[4 LANE..4 LANE + 4]`, signed by signed (FEAT_DotProd).
#[inline(always)]
pub(super) fn sdot_lane<const LANE: i32>(
    mut sum: int32x4_t,
    codes: int8x16_t,
    x: int8x16_t,
) -> int32x4_t {
    // SAFETY: registers only; the set of the caller's type has the instruction.
    unsafe {
        asm!(".arch_extension dotprod", "sdot {sum:v}.4s, {codes:v}.16b, {x:v}.4b[{lane}]",
            sum = inout(vreg) sum, codes = in(vreg) codes, x = in(vreg) x, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// `sum[i] + codes[4i..4i+4] . x[4i..4i+4]`, unsigned by signed (FEAT_I8MM).
#[inline(always)]
pub(super) fn usdot(mut sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: registers only; the set of the caller's type has the instruction.
    unsafe {
        asm!(".arch_extension i8mm", "usdot {sum:v}.4s, {codes:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum, codes = in(vreg) codes, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// `sum[2i + j] + codes[8i..8i+8] . x[8j..8j+8]`, unsigned by signed (FEAT_I8MM).
#[inline(always)]
pub(super) fn usmmla(mut sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: registers only; the set of the caller's type has the instruction.
    unsafe {
        asm!(".arch_extension i8mm", "usmmla {sum:v}.4s, {codes:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum, codes = in(vreg) codes, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// `sum[2i + j] + rows[4i..4i+4] . x[4j..4j+4]` of bf16 numbers, two products at a time, rounded as
/// [`super::bf16`] says (FEAT_BF16).
#[inline(always)]
pub(super) fn bfmmla(mut sum: float32x4_t, rows: uint16x8_t, x: uint16x8_t) -> float32x4_t {
    // SAFETY: registers only; the set of the caller has the instruction.
    unsafe {
        asm!(".arch_extension bf16", "bfmmla {sum:v}.4s, {rows:v}.8h, {x:v}.8h",
            sum = inout(vreg) sum, rows = in(vreg) rows, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// Four f16 numbers, widened (base NEON; its intrinsic needs an unstable type).
#[inline(always)]
pub(super) fn fcvtl(bits: uint16x4_t) -> float32x4_t {
    let wide;
    // SAFETY: registers only; base NEON has the instruction.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {bits:v}.4h", wide = lateout(vreg) wide, bits = in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// Products of the upper eight bytes (base NEON; the compiler splits its intrinsic if x has equal
/// halves, and then moves the upper half of each operand down).
#[inline(always)]
pub(super) fn smull2(codes: int8x16_t, x: int8x16_t) -> int16x8_t {
    let products;
    // SAFETY: registers only; base NEON has the instruction.
    unsafe {
        asm!("smull2 {products:v}.8h, {codes:v}.16b, {x:v}.16b",
            products = lateout(vreg) products, codes = in(vreg) codes, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    products
}

/// [`smull2`] added to `sum`.
#[inline(always)]
pub(super) fn smlal2(mut sum: int16x8_t, codes: int8x16_t, x: int8x16_t) -> int16x8_t {
    // SAFETY: registers only; base NEON has the instruction.
    unsafe {
        asm!("smlal2 {sum:v}.8h, {codes:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum, codes = in(vreg) codes, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}
