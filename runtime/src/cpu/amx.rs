//! AMX: integer products of 16 tokens and 16 rows in one instruction.
//!
//! In: a block of codes as [`super::decode`] leaves it, tokens of which a step's columns lie
//! together. Out: the same sums as [`super::tile::dot_tile`], bit for bit: integer sums are exact,
//! and the scales of the pieces are added up in the same order.
//!
//! A tile register holds 16 rows of 64 bytes. `tdpbssd` adds to C [16 tokens][16 rows] the
//! products of A [16 tokens][64 columns] with B [16 steps of 4 columns][16 rows][4 columns]: a
//! panel's decoded codes are a B already, its step of 4 columns being 64 bytes. Half as many
//! columns take as long.
//!
//! The compiler knows no tile registers but as clobbers, so all of them are named here, between
//! [`Configured::new`] and its drop. The intrinsics are not stable; the instructions are written
//! as assembly. Their operation: Intel 64 and IA-32 Architectures Software Developer's Manual,
//! volume 2, `TDPBSSD`, `TDPBSUD`, `LDTILECFG`.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use super::blocking::Blocking;
use super::isa::Isa;
use super::native::Native;

/// Tokens and rows of a tile.
pub(super) const SIDE: usize = 16;

/// Columns of a step, what a tile takes at once.
pub(super) const STEP: usize = 64;

/// Whether products of a weight in pieces of `piece` columns run here: its integers are signed
/// bytes, or its codes the integers themselves; and pieces are whole steps. (Half a step takes as
/// long as a whole one, and each piece is stored and loaded: in pieces of 32 columns AMX was no
/// faster than `vpdpbusd`, docs/performance/cpu.md.)
pub(super) fn takes(weight: &Native, piece: usize) -> bool {
    let (offset, codes) = (weight.offset(), 1 << weight.bits());
    let bytes = offset == 0 || (0..=128).contains(&offset) && codes - offset <= 128;
    bytes && piece.is_multiple_of(STEP) && weight.columns().is_multiple_of(STEP)
}

/// Whether this processor has the instructions and the operating system keeps their registers.
///
/// Linux gives tile registers to a process that asks for them (`arch_prctl`, since 5.16).
pub(super) fn present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| {
        // CPUID leaf 7: EDX bit 24 is AMX-TILE, bit 25 AMX-INT8.
        let leaves = __cpuid(0).eax;
        let tiles = 0b11 << 24;
        leaves >= 7 && __cpuid_count(7, 0).edx & tiles == tiles && granted()
    })
}

#[cfg(target_os = "linux")]
fn granted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: a system call that takes two numbers and no memory; the kernel clobbers rcx and r11.
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

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row of each register; there are eight, and what is beyond must be 0.
    row_bytes: [u16; 16],
    /// Rows of each register.
    rows: [u8; 16],
}

/// The tile registers are shaped while this lives.
struct Configured;

impl Configured {
    /// All eight of 16 rows of 64 bytes.
    ///
    /// # Safety
    /// [`present`].
    unsafe fn new() -> Self {
        let eight =
            |value: u8| std::array::from_fn(|register| if register < 8 { value } else { 0 });
        let (rows, row_bytes) = (eight(16), eight(64).map(u16::from));
        let shapes = Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows };
        // SAFETY: AMX is there, the caller says; the operand is 64 bytes of a valid palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &shapes, options(nostack, readonly)) };
        Self
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: there is a `Configured` only where AMX is there.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Pieces between a product and its scaling: what a tile register stores cannot be forwarded to a
/// load, which waits until the store has left for the cache. (Of 0 to 15, 2 was fastest.)
const LAG: usize = 2;
/// Parts that take turns: a power of two above [`LAG`].
const PARTS: usize = 4;

/// A C in memory.
#[repr(align(64))]
struct Part([[i32; SIDE]; SIDE]);

/// All tiles of tokens on a block of decoded codes.
pub(super) struct Tiles<'a> {
    pub(super) blocking: &'a Blocking,
    /// Native columns, and the block's first.
    pub(super) columns: usize,
    pub(super) start: usize,
    /// `[step of 4 columns][panel]`; shifted here by the offset.
    pub(super) codes: &'a mut [[u8; 64]],
    /// `[piece][panel]`.
    pub(super) scales: &'a [[f32; 16]],
    /// Unsigned code less this = integer.
    pub(super) offset: i32,
    /// `[tile][step][token]`.
    pub(super) x: &'a [u32],
    /// `[tile][token][panel]`.
    pub(super) sums: &'a mut [[f32; 16]],
}

impl Tiles<'_> {
    /// Adds the block's products to the sums.
    pub(super) fn run(self) {
        assert!(Isa::Avx512Amx.check().is_ok(), "AMX is chosen where it is not");
        // SAFETY: the set is there, and AVX-512 is part of it.
        unsafe { self.tiles() }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    fn tiles(self) {
        let Self { blocking, columns, start, codes, scales, offset, x, sums } = self;
        let Blocking { panels, piece, .. } = *blocking;
        if offset != 0 {
            let less = _mm512_set1_epi8(offset as u8 as i8);
            for line in codes.iter_mut() {
                // SAFETY: 64 bytes are there, and either access takes any alignment.
                unsafe {
                    let codes = _mm512_loadu_si512(line.as_ptr().cast());
                    _mm512_storeu_si512(line.as_mut_ptr().cast(), _mm512_sub_epi8(codes, less));
                }
            }
        }
        // SAFETY: the caller has asked.
        let _shaped = unsafe { Configured::new() };
        let words = codes.len() / panels * SIDE;
        for tile in blocking.tiles() {
            let x = &x[(tile.first * columns + SIDE * start) / 4..][..words];
            let sums = &mut sums[tile.first * panels..][..SIDE * panels];
            for panel in 0..panels {
                let operands = Operands { x, codes, scales, panel, panels, piece };
                if offset == 0 {
                    operands.add::<true>(sums);
                } else {
                    operands.add::<false>(sums);
                }
            }
        }
    }
}

/// A tile of tokens and a panel of a block.
struct Operands<'a> {
    /// `[step][token]`, a step's columns four to a word.
    x: &'a [u32],
    codes: &'a [[u8; 64]],
    scales: &'a [[f32; 16]],
    panel: usize,
    panels: usize,
    piece: usize,
}

impl Operands<'_> {
    /// `sums += scale * (codes . x)`, piece by piece, each scaled [`LAG`] pieces after it was
    /// multiplied; two sets of registers take turns. `UNSIGNED` codes, or signed ones.
    #[target_feature(enable = "avx512f")]
    fn add<const UNSIGNED: bool>(&self, sums: &mut [[f32; 16]]) {
        let Self { x, codes, scales, panel, panels, piece } = *self;
        assert_eq!(scales.len() / panels, x.len().div_ceil(piece * SIDE / 4), "a scale a piece");
        let mut totals = [_mm512_setzero_ps(); SIDE];
        for (total, sum) in totals.iter_mut().zip(sums[panel..].iter().step_by(panels)) {
            // SAFETY: 16 values are there.
            *total = unsafe { _mm512_loadu_ps(sum.as_ptr()) };
        }
        let mut parts = [const { MaybeUninit::<Part>::uninit() }; PARTS];
        let mut pieces = x.chunks(piece * SIDE / 4).zip(codes.chunks(piece / 4 * panels));
        let mut scales = scales[panel..].iter().step_by(panels);
        for turn in 0.. {
            if let Some((x, codes)) = pieces.next() {
                let (part, codes) = (&mut parts[turn % PARTS], &codes[panel..]);
                if turn % 2 == 0 {
                    product::<UNSIGNED, true>(x, codes, panels, part);
                } else {
                    product::<UNSIGNED, false>(x, codes, panels, part);
                }
            }
            if turn < LAG {
                continue;
            }
            let Some(scale) = scales.next() else { break };
            // SAFETY: 16 values are there.
            let scale = unsafe { _mm512_loadu_ps(scale.as_ptr()) };
            // SAFETY: written LAG turns ago: there are as many scales as pieces.
            let part = unsafe { parts[(turn - LAG) % PARTS].assume_init_ref() };
            for (total, part) in totals.iter_mut().zip(&part.0) {
                // SAFETY: 16 values are there.
                let part = unsafe { _mm512_loadu_si512(part.as_ptr().cast()) };
                *total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part), scale, *total);
            }
        }
        for (total, sum) in totals.iter().zip(sums[panel..].iter_mut().step_by(panels)) {
            // SAFETY: there is room for 16 values.
            unsafe { _mm512_storeu_ps(sum.as_mut_ptr(), *total) };
        }
    }
}

/// `part = codes . x` of a piece, codes in lines `panels` apart; C, A and B being registers 0, 1
/// and 2 (`FIRST`) or 3, 4 and 5.
#[inline(always)]
fn product<const UNSIGNED: bool, const FIRST: bool>(
    x: &[u32],
    codes: &[[u8; 64]],
    panels: usize,
    part: &mut MaybeUninit<Part>,
) {
    let steps = x.len() / (SIDE * STEP / 4);
    // What the loads read: [16][STEP] bytes of x a step, [STEP / 4] lines of codes.
    assert!(steps > 0 && codes.len() > (steps * STEP / 4 - 1) * panels);
    /// The whole of it in one piece of assembly: nothing is left in a register between two.
    macro_rules! tiles {
        ($product:literal, $c:tt, $a:tt, $b:tt) => {
            asm!(
                concat!("tilezero ", $c),
                "2:",
                concat!("tileloadd ", $a, ", [{x} + {line}]"),
                concat!("tileloadd ", $b, ", [{codes} + {stride}]"),
                concat!($product, " ", $c, ", ", $a, ", ", $b),
                "add {x}, {x_step}",
                "add {codes}, {codes_step}",
                "dec {steps}",
                "jnz 2b",
                concat!("tilestored [{part} + {line}], ", $c),
                x = inout(reg) x.as_ptr() => _,
                codes = inout(reg) codes.as_ptr() => _,
                steps = inout(reg) steps => _,
                part = in(reg) part.as_mut_ptr(),
                line = in(reg) 4 * SIDE,
                stride = in(reg) 64 * panels,
                x_step = const SIDE * STEP,
                codes_step = in(reg) 64 * panels * (STEP / 4),
                out($c) _,
                out($a) _,
                out($b) _,
                options(nostack),
            )
        };
    }
    // SAFETY: the registers have been shaped; every row that is read lies inside of x and of the
    // codes, as asserted, and the result is a whole C.
    unsafe {
        match (UNSIGNED, FIRST) {
            (true, true) => tiles!("tdpbsud", "tmm0", "tmm1", "tmm2"),
            (true, false) => tiles!("tdpbsud", "tmm3", "tmm4", "tmm5"),
            (false, true) => tiles!("tdpbssd", "tmm0", "tmm1", "tmm2"),
            (false, false) => tiles!("tdpbssd", "tmm3", "tmm4", "tmm5"),
        }
    }
}
