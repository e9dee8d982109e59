//! How fast this machine multiplies from registers: one row per instruction.
//!
//! In: nothing. Out: [`rates`], each instruction that this CPU has with the rate of all threads
//! together, and [`Rate::sample`], the rate at this moment: the clock of a shared machine and its
//! share of the ports change from second to second. A burst is a loop of fourteen instructions on as many independent
//! accumulators (more than latency times ports of any core that has the instruction; AMX has six, where
//! four would do: 52 cycles, one each 16), written in assembly, so that no compiler removes instructions or spills registers.

use super::seconds;

/// The arithmetic of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// 8-bit integers into 32-bit sums, by matrix registers (AMX).
    Int8Matrix,
    /// 8-bit integers into 32-bit sums.
    Int8Dot,
    /// bf16 products into f32 sums, by matrix registers (AMX).
    Bf16Matrix,
    /// bf16 products into f32 sums.
    Bf16Dot,
    /// f32 fused multiply-add.
    F32Fma,
}

impl Arithmetic {
    /// The text in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8Matrix => "int8 matrix",
            Self::Int8Dot => "int8 dot",
            Self::Bf16Matrix => "bf16 matrix",
            Self::Bf16Dot => "bf16 dot",
            Self::F32Fma => "f32 fma",
        }
    }
}

/// A measured rate.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// The arithmetic.
    pub arithmetic: Arithmetic,
    /// The instruction, with the width of its registers.
    pub instruction: &'static str,
    /// The instruction set.
    pub set: &'static str,
    /// 10^9 operations per second on all threads, counting a multiplication and an addition as one
    /// each: the best of several bursts.
    pub giga: f64,
    row: &'static Row,
    /// Rounds of a burst of some ten milliseconds.
    rounds: u64,
}

impl Rate {
    /// Operations of one sample.
    pub fn operations(&self) -> u64 {
        let turns = ACCUMULATORS * self.rounds * rayon::current_num_threads() as u64;
        self.row.operations * turns
    }

    /// One burst of some ten milliseconds on every thread of the pool; 10^9 operations per second.
    pub fn sample(&self) -> f64 {
        self.operations() as f64 / self.row.seconds(self.rounds) / 1e9
    }
}

/// One instruction: its operations per round, and its arithmetic.
#[derive(Debug)]
struct Row {
    arithmetic: Arithmetic,
    instruction: &'static str,
    set: &'static str,
    /// Multiplications and additions per instruction.
    operations: u64,
    present: fn() -> bool,
    burst: fn(u64),
}

/// Instructions of a round of a burst.
const ACCUMULATORS: u64 = 14;

/// Every rate of this CPU, the fastest of each kind first.
pub fn rates() -> Vec<Rate> {
    let mut rates: Vec<Rate> = ROWS.iter().filter(|row| (row.present)()).map(measured).collect();
    rates.sort_by(|a, b| {
        let kind = |rate: &Rate| rate.arithmetic as u8;
        kind(a).cmp(&kind(b)).then(b.giga.total_cmp(&a.giga))
    });
    rates
}

impl Row {
    /// Seconds of `rounds` rounds on every thread of the pool.
    fn seconds(&self, rounds: u64) -> f64 {
        seconds(|| {
            rayon::broadcast(|_| (self.burst)(rounds));
        })
    }
}

/// The best of several samples.
fn measured(row: &'static Row) -> Rate {
    let mut rounds = 1 << 12;
    // The least of three: an interrupted burst would be too long.
    let least = |rounds| (0..3).map(|_| row.seconds(rounds)).fold(f64::INFINITY, f64::min);
    while least(rounds) < 0.005 && rounds < 1 << 40 {
        rounds *= 2;
    }
    let Row { arithmetic, instruction, set, .. } = *row;
    let rate = Rate { arithmetic, instruction, set, giga: 0.0, row, rounds };
    Rate { giga: (0..7).map(|_| rate.sample()).fold(0.0, f64::max), ..rate }
}

/// The rate of f32 multiply-adds in plain Rust as this build compiles it.
fn plain(rounds: u64) {
    let (a, b) = (std::hint::black_box([0.999f32; 8]), std::hint::black_box([1e-3f32; 8]));
    let mut sums = [[1.0f32; 8]; ACCUMULATORS as usize];
    for _ in 0..rounds {
        for sum in &mut sums {
            for ((sum, a), b) in sum.iter_mut().zip(&a).zip(&b) {
                *sum = *sum * a + b;
            }
        }
    }
    std::hint::black_box(sums);
}

const PLAIN: Row = Row {
    arithmetic: Arithmetic::F32Fma,
    instruction: "plain Rust",
    set: "portable",
    operations: 16,
    present: || true,
    burst: plain,
};

#[cfg(target_arch = "aarch64")]
use arm::ROWS;
#[cfg(target_arch = "x86_64")]
use x86::ROWS;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ROWS: &[Row] = &[PLAIN];

/// Operands of the bursts: as bytes, small integers; as bf16, about 1; as f32, about 1. No sum is
/// ever subnormal or NaN, which some cores handle in microcode.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[repr(align(64))]
struct Operand([u32; 16]);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static OPERAND: Operand = Operand([0x3f81_3f82; 16]);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::{asm, is_x86_feature_detected as has};

    use quantloom_runtime::cpu::isa::Isa;

    use super::{Arithmetic, OPERAND, PLAIN, Row};

    /// A loop over accumulators 0 to 13; registers 14 and 15 hold the operand.
    macro_rules! burst {
        ($name:ident, $load:literal, $before:literal $(, twice $between:literal)?, $after:literal) => {
            fn $name(rounds: u64) {
                let operand = OPERAND.0.as_ptr();
                // SAFETY: `present` of the row with this function has checked the CPU; only vector
                // registers change, all named below, and the operand's 64 bytes are read.
                unsafe {
                    asm!(
                        "vzeroall",
                        concat!($load, "14, [{operand}]"),
                        concat!($load, "15, [{operand}]"),
                        "2:",
                        concat!($before, "0" $(, $between, "0")?, $after),
                        concat!($before, "1" $(, $between, "1")?, $after),
                        concat!($before, "2" $(, $between, "2")?, $after),
                        concat!($before, "3" $(, $between, "3")?, $after),
                        concat!($before, "4" $(, $between, "4")?, $after),
                        concat!($before, "5" $(, $between, "5")?, $after),
                        concat!($before, "6" $(, $between, "6")?, $after),
                        concat!($before, "7" $(, $between, "7")?, $after),
                        concat!($before, "8" $(, $between, "8")?, $after),
                        concat!($before, "9" $(, $between, "9")?, $after),
                        concat!($before, "10" $(, $between, "10")?, $after),
                        concat!($before, "11" $(, $between, "11")?, $after),
                        concat!($before, "12" $(, $between, "12")?, $after),
                        concat!($before, "13" $(, $between, "13")?, $after),
                        "dec {rounds}",
                        "jnz 2b",
                        "vzeroupper",
                        operand = in(reg) operand,
                        rounds = inout(reg) rounds => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(nostack, readonly),
                    );
                }
            }
        };
    }

    burst!(vpdpbusd_zmm, "vmovups zmm", "vpdpbusd zmm", ", zmm14, zmm15");
    burst!(vpdpbusd_ymm, "vmovups ymm", "vpdpbusd ymm", ", ymm14, ymm15");
    burst!(vpdpbusd_vex, "vmovups ymm", "{{vex}} vpdpbusd ymm", ", ymm14, ymm15");
    burst!(
        vpmaddubsw_ymm,
        "vmovups ymm",
        "vpmaddubsw ymm15, ymm14, ymm14\nvpmaddwd ymm15, ymm15, ymm14\nvpaddd ymm",
        twice ", ymm",
        ", ymm15"
    );
    burst!(vdpbf16ps_zmm, "vmovups zmm", "vdpbf16ps zmm", ", zmm14, zmm15");
    burst!(fma_zmm, "vmovups zmm", "vfmadd231ps zmm", ", zmm14, zmm15");
    burst!(fma_ymm, "vmovups ymm", "vfmadd231ps ymm", ", ymm14, ymm15");

    /// The operand of `ldtilecfg`: palette 1, eight registers of 16 rows of 64 bytes.
    #[repr(align(64))]
    struct TileShapes([u8; 64]);

    static TILE_SHAPES: TileShapes = {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let mut register = 0;
        while register < 8 {
            bytes[16 + 2 * register] = 64;
            bytes[48 + register] = 16;
            register += 1;
        }
        TileShapes(bytes)
    };

    /// Bytes from one row of a tile's operand to the next: all rows are the same.
    const SAME_ROW: usize = 0;

    /// A loop over tile registers 0 to 5; registers 6 and 7 hold the operand.
    macro_rules! tile_burst {
        ($name:ident, $instruction:literal) => {
            fn $name(rounds: u64) {
                // SAFETY: `present` of the row with this function has checked the CPU, and asked for the tile
                // registers; only these change, all named below, and 64 bytes of either operand are read.
                unsafe {
                    asm!(
                        "ldtilecfg [{shapes}]",
                        "tileloadd tmm6, [{operand} + {stride}]",
                        "tileloadd tmm7, [{operand} + {stride}]",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "tilezero tmm4",
                        "tilezero tmm5",
                        "2:",
                        concat!($instruction, " tmm0, tmm6, tmm7"),
                        concat!($instruction, " tmm1, tmm6, tmm7"),
                        concat!($instruction, " tmm2, tmm6, tmm7"),
                        concat!($instruction, " tmm3, tmm6, tmm7"),
                        concat!($instruction, " tmm4, tmm6, tmm7"),
                        concat!($instruction, " tmm5, tmm6, tmm7"),
                        concat!($instruction, " tmm0, tmm6, tmm7"),
                        concat!($instruction, " tmm1, tmm6, tmm7"),
                        concat!($instruction, " tmm2, tmm6, tmm7"),
                        concat!($instruction, " tmm3, tmm6, tmm7"),
                        concat!($instruction, " tmm4, tmm6, tmm7"),
                        concat!($instruction, " tmm5, tmm6, tmm7"),
                        concat!($instruction, " tmm2, tmm6, tmm7"),
                        concat!($instruction, " tmm3, tmm6, tmm7"),
                        "dec {rounds}",
                        "jnz 2b",
                        "tilerelease",
                        shapes = in(reg) TILE_SHAPES.0.as_ptr(),
                        operand = in(reg) OPERAND.0.as_ptr(),
                        stride = in(reg) SAME_ROW,
                        rounds = inout(reg) rounds => _,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack, readonly),
                    );
                }
            }
        };
    }

    tile_burst!(tdpbusd, "tdpbusd");
    tile_burst!(tdpbf16ps, "tdpbf16ps");

    /// Whether this process has tile registers.
    fn amx() -> bool {
        Isa::Avx512Amx.check().is_ok()
    }

    const fn row(
        arithmetic: Arithmetic,
        (instruction, set): (&'static str, &'static str),
        operations: u64,
        present: fn() -> bool,
        burst: fn(u64),
    ) -> Row {
        Row { arithmetic, instruction, set, operations, present, burst }
    }

    use Arithmetic::{Bf16Dot, Bf16Matrix, F32Fma, Int8Dot, Int8Matrix};
    pub(super) const ROWS: &[Row] = &[
        row(Int8Matrix, ("tdpbusd tmm", "AMX-INT8"), 2 * 16 * 16 * 64, amx, tdpbusd),
        row(Bf16Matrix, ("tdpbf16ps tmm", "AMX-BF16"), 2 * 16 * 16 * 32, amx, tdpbf16ps),
        row(Int8Dot, ("vpdpbusd zmm", "AVX-512 VNNI"), 128, || has!("avx512vnni"), vpdpbusd_zmm),
        row(
            Int8Dot,
            ("vpdpbusd ymm", "AVX-512VL VNNI"),
            64,
            || has!("avx512vnni") && has!("avx512vl"),
            vpdpbusd_ymm,
        ),
        row(Int8Dot, ("vpdpbusd ymm", "AVX-VNNI"), 64, || has!("avxvnni"), vpdpbusd_vex),
        row(
            Int8Dot,
            ("vpmaddubsw, vpmaddwd, vpaddd ymm", "AVX2"),
            64,
            || has!("avx2"),
            vpmaddubsw_ymm,
        ),
        row(Bf16Dot, ("vdpbf16ps zmm", "AVX-512 BF16"), 64, || has!("avx512bf16"), vdpbf16ps_zmm),
        row(F32Fma, ("vfmadd231ps zmm", "AVX-512F"), 32, || has!("avx512f"), fma_zmm),
        row(F32Fma, ("vfmadd231ps ymm", "FMA"), 16, || has!("fma"), fma_ymm),
        PLAIN,
    ];
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::{asm, is_aarch64_feature_detected as has};

    use super::{Arithmetic, OPERAND, PLAIN, Row};

    /// A loop over accumulators v0 to v13; v14 and v15 hold the operand.
    macro_rules! burst {
        ($name:ident, $feature:literal, $before:literal, $after:literal) => {
            fn $name(rounds: u64) {
                #[target_feature(enable = $feature)]
                fn burst(rounds: u64) {
                    let operand = OPERAND.0.as_ptr();
                    // SAFETY: only vector registers change, all named below, and 16 bytes of
                    // the operand's 64 are read.
                    unsafe {
                        asm!(
                            "ldr q14, [{operand}]",
                            "ldr q15, [{operand}]",
                            "movi v0.16b, #0",
                            "movi v1.16b, #0",
                            "movi v2.16b, #0",
                            "movi v3.16b, #0",
                            "movi v4.16b, #0",
                            "movi v5.16b, #0",
                            "movi v6.16b, #0",
                            "movi v7.16b, #0",
                            "movi v8.16b, #0",
                            "movi v9.16b, #0",
                            "movi v10.16b, #0",
                            "movi v11.16b, #0",
                            "movi v12.16b, #0",
                            "movi v13.16b, #0",
                            "2:",
                            concat!($before, "0", $after),
                            concat!($before, "1", $after),
                            concat!($before, "2", $after),
                            concat!($before, "3", $after),
                            concat!($before, "4", $after),
                            concat!($before, "5", $after),
                            concat!($before, "6", $after),
                            concat!($before, "7", $after),
                            concat!($before, "8", $after),
                            concat!($before, "9", $after),
                            concat!($before, "10", $after),
                            concat!($before, "11", $after),
                            concat!($before, "12", $after),
                            concat!($before, "13", $after),
                            "subs {rounds}, {rounds}, #1",
                            "b.ne 2b",
                            operand = in(reg) operand,
                            rounds = inout(reg) rounds => _,
                            out("v0") _, out("v1") _, out("v2") _, out("v3") _,
                            out("v4") _, out("v5") _, out("v6") _, out("v7") _,
                            out("v8") _, out("v9") _, out("v10") _, out("v11") _,
                            out("v12") _, out("v13") _, out("v14") _, out("v15") _,
                            options(nostack, readonly),
                        );
                    }
                }
                // SAFETY: `present` of the row with this function has checked the CPU.
                unsafe { burst(rounds) }
            }
        };
    }

    burst!(smmla, "i8mm", "smmla v", ".4s, v14.16b, v15.16b");
    burst!(sdot, "dotprod", "sdot v", ".4s, v14.16b, v15.16b");
    burst!(bfmmla, "bf16", "bfmmla v", ".4s, v14.8h, v15.8h");
    burst!(bfdot, "bf16", "bfdot v", ".4s, v14.8h, v15.8h");
    burst!(fmla, "neon", "fmla v", ".4s, v14.4s, v15.4s");

    const fn row(
        arithmetic: Arithmetic,
        (instruction, set): (&'static str, &'static str),
        operations: u64,
        present: fn() -> bool,
        burst: fn(u64),
    ) -> Row {
        Row { arithmetic, instruction, set, operations, present, burst }
    }

    use Arithmetic::{Bf16Dot, F32Fma, Int8Dot};
    pub(super) const ROWS: &[Row] = &[
        row(Int8Dot, ("smmla", "i8mm"), 64, || has!("i8mm"), smmla),
        row(Int8Dot, ("sdot", "dotprod"), 32, || has!("dotprod"), sdot),
        row(Bf16Dot, ("bfmmla", "bf16"), 32, || has!("bf16"), bfmmla),
        row(Bf16Dot, ("bfdot", "bf16"), 16, || has!("bf16"), bfdot),
        row(F32Fma, ("fmla", "NEON"), 8, || has!("neon"), fmla),
        PLAIN,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_multiplies_floats() {
        let rates = rates();
        assert!(rates.iter().any(|rate| rate.arithmetic == Arithmetic::F32Fma));
        for pair in rates.windows(2) {
            let kinds = (pair[0].arithmetic as u8, pair[1].arithmetic as u8);
            assert!(kinds.0 < kinds.1 || kinds.0 == kinds.1 && pair[0].giga >= pair[1].giga);
        }
        // A core with any of these instruction sets has a clock between 0.1 and 10 GHz and one to
        // eight ports; a busy machine may give a thousandth of the time.
        for (rate, row) in ROWS.iter().filter(|row| (row.present)()).map(|row| (measured(row), row))
        {
            let turns = rate.giga / row.operations as f64 / rayon::current_num_threads() as f64;
            assert!((0.0001..80.0).contains(&turns), "{rate:?}");
        }
    }
}
