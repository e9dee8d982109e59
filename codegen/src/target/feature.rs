//! The table of features: which chip has which instructions, since which version of PTX.

use std::fmt;

use super::Chip;

/// A version of the PTX language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PtxVersion(pub u8, pub u8);

/// A group of instructions that a chip has all or none of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Loads, stores, arithmetic, barriers, relaxed atomics: every chip has them.
    Base,
    /// Votes and barriers of a warp. For shuffles see
    /// [`Gpu::shuffle_group`](super::Gpu::shuffle_group).
    Warp,
    /// Fences, and atomics that order other memory.
    Ordered,
    /// f32 arithmetic without reassociation or contraction, each operation rounded to nearest, with
    /// subnormal numbers.
    StrictF32,
    /// The power of 2 and the reciprocal of f32 by one instruction each, not quite rounded to nearest.
    NearFunctions,
    /// `lop3`: any function of three bits.
    Lop3,
    /// Select bytes of two words.
    Permute,
    /// Four products of bytes and their sum.
    Dot4,
    /// The same by one instruction, whichever operands are signed; AMD's name of it is `sudot4`.
    Dot4AnySigns,
    /// Packed arithmetic on two f16.
    PackedF16,
    /// Packed fused multiply-add on two bf16.
    PackedBf16Fma,
    /// Packed add, subtract and multiply on two bf16.
    PackedBf16,
    /// Two f32 rounded to a packed pair of 16-bit floats.
    PackHalf,
    /// e4m3 to f16.
    ConvertE4m3,
    /// Floats of 4 and 6 bits to f16.
    ConvertSmall,
    /// f32 to e4m3.
    PackE4m3,
    /// Loads that do not allocate in L1.
    NoAllocate,
    /// `cp.async`.
    CpAsync,
    /// mbarriers with `test_wait`, without a blocking wait.
    Mbarrier,
    /// mbarriers with `try_wait`, byte counts and their fence.
    MbarrierBytes,
    /// Bulk copies, tensor copies, async-proxy fences.
    Bulk,
    /// Clusters.
    Cluster,
    /// Programmatic dependent launch.
    GridDependency,
    /// `setmaxnreg`.
    SetMaxRegisters,
    /// Several numbered barriers a block.
    NamedBarrier,
    /// `ldmatrix`.
    LdMatrix,
    /// `stmatrix`.
    StMatrix,
    /// `movmatrix`.
    MovMatrix,
    /// `mma` on 16-bit floats.
    Mma16,
    /// `mma` on bytes.
    MmaS8,
    /// `mma` on FP8.
    MmaE4m3,
    /// `mma` on floats of 4, 6 and 8 bits with scales of blocks of columns.
    MmaScale,
    /// `wgmma`.
    Wgmma,
    /// Tensor memory and its products (`tcgen05`).
    TensorMemory,
    /// Products of tensor memory on int8.
    TensorMemoryS8,
    /// Products of tensor memory with scales in e4m3.
    TensorMemoryE4m3Scales,
    /// MFMA 16x16x16 on 16-bit floats, 16x16x32 on bytes.
    Mfma,
    /// MFMA 16x16x32 on FP8 without negative zero.
    MfmaFnuz,
    /// MFMA 16x16x32 on FP8.
    MfmaE4m3,
    /// MFMA 16x16x32 on 16-bit floats, 16x16x64 on bytes.
    MfmaWide,
    /// MFMA 16x16x128 on floats of 4, 6 and 8 bits with e8m0 scales.
    MfmaScale,
    /// f32 to bf16 by one instruction, on AMD.
    ConvertBf16,
    /// WMMA 16x16x16 on 16-bit floats, bytes and integers of 4 bits whose operands two lanes hold.
    WmmaCopied,
    /// WMMA 16x16x16 on 16-bit floats, FP8 and bytes, 16x16x32 on integers of 4 bits, whose operands one lane holds.
    Wmma,
}

/// The chips of a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chips {
    /// NVIDIA chips from this number on.
    SmFrom(u32),
    /// The `a` variant of one NVIDIA chip.
    SmArchSpecific(u32),
    /// AMD chips.
    Gfx(&'static [&'static str]),
    /// Any GPU, through WGSL.
    Wgsl,
}

/// A row: these chips have this instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Availability {
    /// The instruction.
    pub feature: Feature,
    /// The chips.
    pub chips: Chips,
    /// The lowest PTX version, for NVIDIA chips.
    pub ptx: Option<PtxVersion>,
}

const fn sm(feature: Feature, from: u32, major: u8, minor: u8) -> Availability {
    Availability { feature, chips: Chips::SmFrom(from), ptx: Some(PtxVersion(major, minor)) }
}

const fn arch_specific(feature: Feature, number: u32, major: u8, minor: u8) -> Availability {
    Availability {
        feature,
        chips: Chips::SmArchSpecific(number),
        ptx: Some(PtxVersion(major, minor)),
    }
}

const fn gfx(feature: Feature, names: &'static [&'static str]) -> Availability {
    Availability { feature, chips: Chips::Gfx(names), ptx: None }
}

const fn wgsl(feature: Feature) -> Availability {
    Availability { feature, chips: Chips::Wgsl, ptx: None }
}

/// Every AMD chip.
const GFX: &[&str] = &["gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1200", "gfx1201"];
const CDNA: &[&str] = &["gfx942", "gfx950"];
const CDNA3: &[&str] = &["gfx942"];
const CDNA4: &[&str] = &["gfx950"];
const RDNA: &[&str] = &["gfx1100", "gfx1151", "gfx1200", "gfx1201"];
const RDNA3: &[&str] = &["gfx1100", "gfx1151"];
const RDNA4: &[&str] = &["gfx1200", "gfx1201"];

/// The table. Sources: the "PTX ISA Notes" and "Target ISA Notes" of each instruction in the PTX
/// ISA manual, checked with ptxas; for AMD, the builtins that clang accepts for the chip;
/// for WGSL, the builtins of its specification, and what `emit::wgsl` composes of them.
pub const AVAILABILITY: &[Availability] = &[
    sm(Feature::Base, 80, 7, 0),
    gfx(Feature::Base, GFX),
    wgsl(Feature::Base),
    sm(Feature::Warp, 80, 7, 0),
    gfx(Feature::Warp, GFX),
    sm(Feature::Ordered, 80, 7, 0),
    gfx(Feature::Ordered, GFX),
    sm(Feature::StrictF32, 80, 7, 0),
    gfx(Feature::StrictF32, GFX),
    sm(Feature::NearFunctions, 80, 7, 0),
    sm(Feature::Lop3, 80, 7, 0),
    gfx(Feature::Lop3, GFX),
    sm(Feature::Permute, 80, 7, 0),
    gfx(Feature::Permute, GFX),
    sm(Feature::Dot4, 80, 7, 0),
    gfx(Feature::Dot4, GFX),
    wgsl(Feature::Dot4),
    gfx(Feature::Dot4AnySigns, RDNA),
    sm(Feature::PackedF16, 80, 7, 0),
    gfx(Feature::PackedF16, GFX),
    sm(Feature::PackedBf16Fma, 80, 7, 0),
    sm(Feature::PackedBf16, 90, 7, 8),
    sm(Feature::PackHalf, 80, 7, 0),
    gfx(Feature::PackHalf, GFX),
    wgsl(Feature::PackHalf),
    sm(Feature::ConvertE4m3, 89, 8, 1),
    sm(Feature::ConvertE4m3, 90, 7, 8),
    arch_specific(Feature::ConvertSmall, 100, 8, 6),
    arch_specific(Feature::ConvertSmall, 103, 8, 8),
    arch_specific(Feature::ConvertSmall, 120, 8, 7),
    arch_specific(Feature::ConvertSmall, 121, 8, 8),
    sm(Feature::PackE4m3, 89, 8, 1),
    sm(Feature::PackE4m3, 90, 7, 8),
    gfx(Feature::PackE4m3, CDNA4),
    gfx(Feature::PackE4m3, RDNA4),
    sm(Feature::NoAllocate, 80, 7, 4),
    gfx(Feature::NoAllocate, GFX),
    sm(Feature::CpAsync, 80, 7, 0),
    sm(Feature::Mbarrier, 80, 7, 1),
    sm(Feature::MbarrierBytes, 90, 8, 0),
    sm(Feature::Bulk, 90, 8, 0),
    sm(Feature::Cluster, 90, 7, 8),
    sm(Feature::GridDependency, 90, 7, 8),
    arch_specific(Feature::SetMaxRegisters, 90, 8, 0),
    arch_specific(Feature::SetMaxRegisters, 100, 8, 6),
    arch_specific(Feature::SetMaxRegisters, 103, 8, 8),
    sm(Feature::NamedBarrier, 80, 7, 0),
    sm(Feature::LdMatrix, 80, 7, 0),
    sm(Feature::StMatrix, 90, 7, 8),
    sm(Feature::MovMatrix, 80, 7, 8),
    sm(Feature::Mma16, 80, 7, 0),
    sm(Feature::MmaS8, 80, 7, 0),
    sm(Feature::MmaE4m3, 89, 8, 4),
    arch_specific(Feature::MmaScale, 120, 8, 7),
    arch_specific(Feature::MmaScale, 121, 8, 8),
    arch_specific(Feature::Wgmma, 90, 8, 0),
    arch_specific(Feature::TensorMemory, 100, 8, 6),
    arch_specific(Feature::TensorMemory, 103, 8, 8),
    arch_specific(Feature::TensorMemoryS8, 100, 8, 6),
    arch_specific(Feature::TensorMemoryE4m3Scales, 100, 8, 7),
    arch_specific(Feature::TensorMemoryE4m3Scales, 103, 8, 8),
    gfx(Feature::Mfma, CDNA),
    gfx(Feature::MfmaFnuz, CDNA3),
    gfx(Feature::MfmaE4m3, CDNA4),
    gfx(Feature::MfmaWide, CDNA4),
    gfx(Feature::MfmaScale, CDNA4),
    gfx(Feature::ConvertBf16, CDNA4),
    gfx(Feature::WmmaCopied, RDNA3),
    gfx(Feature::Wmma, RDNA4),
];

impl Feature {
    /// The rows of this feature that apply to a chip.
    pub(super) fn rows(self, chip: Chip) -> impl Iterator<Item = &'static Availability> {
        AVAILABILITY.iter().filter(move |row| {
            row.feature == self
                && match (row.chips, chip) {
                    (Chips::SmFrom(from), Chip::Sm { number, .. }) => number >= from,
                    (Chips::SmArchSpecific(of), Chip::Sm { number, arch_specific }) => {
                        arch_specific && number == of
                    }
                    (Chips::Gfx(of), Chip::Gfx(name)) => of.contains(&name),
                    (Chips::Wgsl, Chip::Wgsl) => true,
                    _ => false,
                }
        })
    }
}

impl fmt::Display for PtxVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}
