//! AMX: products of 16 tokens and 16 rows in one instruction, with eight tile registers.
//!
//! In: a block of decoded weights, and tokens with the columns of a step contiguous. Out: sums of
//! every tile of tokens with the block, of integers ([`bytes`]) or of bf16 parts ([`bf16`]).
//!
//! A tile register holds 16 rows of 64 bytes. The compiler knows tile registers only as clobbers,
//! so the assembly names all of them, between [`Configured::new`] and its drop. The intrinsics are
//! not stable, so the instructions are assembly. Their definition: Intel 64 and IA-32 Architectures
//! Software Developer's Manual, volume 2, `TDPBSSD`, `TDPBSUD`, `TDPBF16PS`, `LDTILECFG`.

pub(super) mod bf16;
pub(super) mod bytes;

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _MM_HINT_T0, _mm_prefetch};
use std::ops::Range;
use std::sync::OnceLock;

use super::product::Prefetcher;

/// Tokens and rows of a tile.
pub(super) const SIDE: usize = 16;

/// Whether the CPU has the instructions and the operating system saves their registers.
///
/// Linux grants tile registers to a process that requests them (`arch_prctl`, since 5.16).
pub(super) fn present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| {
        // CPUID leaf 7: EDX bit 22 is AMX-BF16, bit 24 AMX-TILE, bit 25 AMX-INT8.
        let leaves = __cpuid(0).eax;
        let tiles = 0b1101 << 22;
        leaves >= 7 && __cpuid_count(7, 0).edx & tiles == tiles && granted()
    })
}

#[cfg(target_os = "linux")]
fn granted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: a system call with two numbers and no memory; the kernel clobbers rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn granted() -> bool {
    false
}

/// Prefetches the next lines of some tiles.
fn prefetch(prefetcher: Prefetcher<'_>, tiles: Range<usize>) {
    for line in tiles.flat_map(|at| prefetcher.lines(at)) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
}

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row of each register; there are eight, and the rest must be 0.
    row_bytes: [u16; 16],
    /// Rows of each register.
    rows: [u8; 16],
}

/// The tile registers are configured while this value lives.
struct Configured;

impl Configured {
    /// All eight registers have 16 rows of 64 bytes.
    ///
    /// # Safety
    /// AMX is [`present`].
    unsafe fn new() -> Self {
        let eight =
            |value: u8| std::array::from_fn(|register| if register < 8 { value } else { 0 });
        let (rows, row_bytes) = (eight(16), eight(64).map(u16::from));
        let shapes = Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows };
        // SAFETY: AMX is present, by the caller's contract; the operand is 64 bytes of a valid
        // palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &shapes, options(nostack, readonly)) };
        Self
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: a `Configured` exists only if AMX is present.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
