//! The matrix instructions, one row each: D = A B + C with A `[m, k]`, B `[k, n]`, C and D `[m,
//! n]`.
//!
//! A row's layouts are lane maps, in the notation of docs/scheme-language.md as `[position in the
//! register ; register ; lane]`, fastest digit first. In A, `n` is the row and `k` the column; in
//! B, `n` is the *column* and `k` the row; in D, `n` is the row and `k` the *column*. A warp-group
//! instruction's lane is the thread's number in its warp group.
//!
//! Where two lanes hold each element of A and B ([`MatrixOp::copies`]), their lane maps are those of the
//! first half of the lanes; the other half holds the same. Rows are numbered so that a lane's registers of D
//! are adjacent rows: the sum over k does not know which row of A it belongs to.
//!
//! Values: products are exact. The chip sums them and C in an order of its choice, and rounds the
//! result to the type of D (integers: exact modulo 2^32). A scaling instruction ([`Scaling`])
//! multiplies the products with both scales, exactly, before the sum.

use quantloom_dsl::format::{E4M3, Number};

use super::{Feature, Target};

/// The type of a matrix operand's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit float, 4 exponent bits, no infinity.
    E4m3,
    /// The AMD variant without negative zero; bias 8.
    E4m3Fnuz,
    /// 8-bit float, 5 exponent bits, infinities.
    E5m2,
    /// 6-bit float, 2 exponent bits, finite.
    E2m3,
    /// 6-bit float, 3 exponent bits, finite.
    E3m2,
    /// 4-bit float, 2 exponent bits, finite.
    E2m1,
    /// e2m1 in bits 2 to 5 of a byte; the instruction ignores the others.
    PaddedE2m1,
    /// e2m3 in the low 6 bits of a byte; the instruction ignores the others.
    PaddedE2m3,
    /// e3m2 in the low 6 bits of a byte; the instruction ignores the others.
    PaddedE3m2,
    /// Two's complement byte.
    S8,
    /// Two's complement integer of 4 bits.
    S4,
    /// IEEE binary32.
    F32,
    /// Two's complement 32-bit integer.
    S32,
}

/// The threads that execute a matrix instruction together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixScope {
    /// A warp; the result is available to the next statement.
    Warp,
    /// A warp group; the result is in flight until `ir::Op::MatrixWait`.
    WarpGroup,
    /// One thread; D is in tensor memory ([`tmem`](super::tmem)), whose lanes are those of the row's layouts.
    TensorMemory,
}

/// A matrix instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixOp {
    /// The name in this project.
    pub name: &'static str,
    /// The vendor's name: a PTX mnemonic, or a clang builtin.
    pub mnemonic: &'static str,
    /// M, N, K.
    pub shape: [u32; 3],
    /// Elements of A.
    pub a: Element,
    /// Elements of B.
    pub b: Element,
    /// Elements of C and D.
    pub d: Element,
    /// The threads that execute it.
    pub scope: MatrixScope,
    /// Lanes that hold each element of A and B, 1 or 2: lane l and lane l + lanes / 2.
    pub copies: u32,
    /// Lane map of A.
    pub a_layout: &'static str,
    /// Lane map of B; empty if B can only be in shared memory.
    pub b_layout: &'static str,
    /// Lane map of C and D.
    pub d_layout: &'static str,
    /// Its scales of A and B, if it is a scaling instruction.
    pub scaling: Option<Scaling>,
    /// The feature that a chip must have.
    pub needs: Feature,
    /// The document of its layouts.
    pub cite: &'static str,
}

/// The scales of a scaling instruction, which multiply A and B: A `[m, k]` has scales
/// `[m, k / columns]`, B likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// Columns that share a scale.
    pub columns: u32,
    /// The type of scales.
    pub code: ScaleCode,
    /// Which lane supplies which scales of A.
    pub a: ScaleLanes,
    /// Which lane supplies which scales of B.
    pub b: ScaleLanes,
}

/// The type of a scaling instruction's scales, a byte each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleCode {
    /// Powers of two from 2^-127; 255 is NaN.
    E8m0,
    /// e4m3 without a sign: the top bit has to be 0.
    UnsignedE4m3,
}

impl ScaleCode {
    /// The number format of a code.
    pub const fn number(self) -> Number {
        match self {
            Self::E8m0 => Number::E8m0,
            Self::UnsignedE4m3 => Number::Float(E4M3),
        }
    }
}

/// Which lane supplies which scales of an operand, for all element types: adjacent bytes of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleLanes {
    /// The lane map, `[byte, from the first on ; register ; lane]`: `n` is the row of A (column of B), `k`
    /// the number of the block of columns. Lanes are numbered by the bits of [`Self::bits`].
    pub layout: &'static str,
    /// The bits of a lane's number that count the lanes of the layout. The instruction ignores the registers
    /// of lanes with other bits.
    pub bits: u32,
}

impl ScaleLanes {
    /// The lane of a number in the layout: its bits, from the lowest on, in the places of [`Self::bits`].
    pub fn lane(&self, number: u32) -> u32 {
        let places = (0..u32::BITS).filter(|place| self.bits >> place & 1 == 1);
        (0..).zip(places).map(|(bit, place)| (number >> bit & 1) << place).sum()
    }
}

impl Element {
    /// Width in bits. Elements are packed in the registers without gaps: a 6-bit element may start
    /// in one register and end in the next.
    pub const fn bits(self) -> u32 {
        match self {
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E4m3Fnuz | Self::E5m2 | Self::S8 => 8,
            Self::PaddedE2m1 | Self::PaddedE2m3 | Self::PaddedE3m2 => 8,
            Self::E2m3 | Self::E3m2 => 6,
            Self::E2m1 | Self::S4 => 4,
            Self::F32 | Self::S32 => 32,
        }
    }
}

impl MatrixOp {
    /// Threads that execute it; lanes of the layouts.
    pub fn threads(&self, warp: u32) -> u32 {
        match self.scope {
            MatrixScope::Warp => warp,
            MatrixScope::WarpGroup | MatrixScope::TensorMemory => 4 * warp,
        }
    }

    /// Lanes of a warp of `warp` lanes, or of a warp group of such, that hold different elements of A.
    pub fn holders(&self, warp: u32) -> u32 {
        self.threads(warp) / self.copies
    }

    /// Scales of an operand that a lane supplies, 1, 2 or 4 in adjacent bytes of which the first is a multiple of that; 0
    /// if the instruction does not scale.
    pub fn lane_scales(&self) -> u32 {
        let [m, _, k] = self.shape;
        self.scaling.map_or(0, |of| (m * (k / of.columns)) >> of.a.bits.count_ones())
    }

    /// Registers per thread of A, of B (if in registers) and of D.
    pub fn registers(&self, warp: u32) -> [u32; 3] {
        let [m, n, k] = self.shape;
        let (of_operand, of_sum) = (32 * self.holders(warp), 32 * self.threads(warp));
        [
            m * k * self.a.bits() / of_operand,
            n * k * self.b.bits() / of_operand,
            m * n * self.d.bits() / of_sum,
        ]
    }
}

const PTX_MMA16: &str = "PTX ISA, Matrix Fragments for mma.m16n8k16 with floating point type";
const PTX_MMA8: &str = "PTX ISA, Matrix Fragments for mma.m16n8k32";
const PTX_MMA_SCALE: &str = "PTX ISA, Block Scaling for mma.sync; Matrix Fragments for mma.m16n8k32 and \
    mma.m16n8k64; lanes of scales as in CUTLASS's MMA_Traits of SM120_16x8x32_TN_VS and SM120_16x8x64_TN_VS";
const PTX_WGMMA16: &str = "PTX ISA, Register Fragments for wgmma.mma_async.m64nNk16";
const PTX_WGMMA8: &str = "PTX ISA, Register Fragments for wgmma.mma_async.m64nNk32";
const PTX_TCGEN05: &str = "PTX ISA 9.1, TensorCore 5th Generation Instructions; words of scales as in \
    CUTLASS's layouts of SM100 block-scaled products";
const AMD_MFMA: &str =
    "AMD CDNA3 ISA, Matrix Arithmetic Instructions; amd_matrix_instruction_calculator";
const AMD_MFMA_950: &str = "AMD CDNA4 ISA, Matrix Arithmetic Instructions";
const AMD_WMMA_RDNA3: &str = "AMD RDNA3 ISA, Wave Matrix Multiply Accumulate; \
    amd_matrix_instruction_calculator, wave32";
const AMD_WMMA_RDNA4: &str = "AMD RDNA4 ISA, Wave Matrix Multiply Accumulate; \
    amd_matrix_instruction_calculator, wave32";
const AMD_MFMA_SCALE: &str = "AMD CDNA4 ISA, V_MFMA_SCALE_F32_16X16X128_F8F6F4; layouts as in \
    ROCm/composable_kernel test/mx_mfma_op/mx_mfma_op.hpp";

macro_rules! mma {
    ($name:literal, $k:literal, $a:ident, $d:ident, $ptx:literal, $needs:ident) => {
        MatrixOp {
            name: $name,
            mnemonic: $ptx,
            shape: [16, 8, $k],
            a: Element::$a,
            b: Element::$a,
            d: Element::$d,
            scope: MatrixScope::Warp,
            copies: 1,
            a_layout: match $k {
                16 => "[k:2 ; n/8:2, k/8:2 ; k/2:4, n:8]",
                _ => "[k:4 ; n/8:2, k/16:2 ; k/4:4, n:8]",
            },
            b_layout: match $k {
                16 => "[k:2 ; k/8:2 ; k/2:4, n:8]",
                _ => "[k:4 ; k/16:2 ; k/4:4, n:8]",
            },
            d_layout: "[ ; k:2, n/8:2 ; k/2:4, n:8]",
            scaling: None,
            needs: Feature::$needs,
            cite: match $k {
                16 => PTX_MMA16,
                _ => PTX_MMA8,
            },
        }
    };
}

macro_rules! wgmma {
    ($n:literal, $tiles:literal, $k:literal, $a:ident, $d:ident, $suffix:literal, $types:literal) => {
        MatrixOp {
            name: concat!("wgmma.m64n", $n, "k", $k, ".", $suffix),
            mnemonic: concat!("wgmma.mma_async.sync.aligned.m64n", $n, "k", $k, ".", $types),
            shape: [64, $n, $k],
            a: Element::$a,
            b: Element::$a,
            d: Element::$d,
            scope: MatrixScope::WarpGroup,
            copies: 1,
            a_layout: match $k {
                16 => "[k:2 ; n/8:2, k/8:2 ; k/2:4, n:8, n/16:4]",
                _ => "[k:4 ; n/8:2, k/16:2 ; k/4:4, n:8, n/16:4]",
            },
            b_layout: "",
            d_layout: concat!("[ ; k:2, n/8:2, k/8:", $tiles, " ; k/2:4, n:8, n/16:4]"),
            scaling: None,
            needs: Feature::Wgmma,
            cite: match $k {
                16 => PTX_WGMMA16,
                _ => PTX_WGMMA8,
            },
        }
    };
}

/// A product of tensor memory; D is as wide as the row says, or a multiple.
const fn tcgen05(
    name: &'static str,
    mnemonic: &'static str,
    (element, d): (Element, Element),
    scaling: Option<Scaling>,
    needs: Feature,
) -> MatrixOp {
    MatrixOp {
        name,
        mnemonic,
        shape: [128, if scaling.is_some() { 8 } else { 16 }, 256 / element.bits()],
        a: element,
        b: element,
        d,
        scope: MatrixScope::TensorMemory,
        copies: 1,
        a_layout: match element.bits() {
            16 => "[k:2 ; k/2:8 ; n:128]",
            8 => "[k:4 ; k/4:8 ; n:128]",
            _ => "[k:8 ; k/8:8 ; n:128]",
        },
        b_layout: "",
        d_layout: if scaling.is_some() { "[ ; k:8 ; n:128]" } else { "[ ; k:16 ; n:128]" },
        scaling,
        needs,
        cite: PTX_TCGEN05,
    }
}

/// Scales of a product of tensor memory, numbered by the row of A and the column of B; where they are: [`tmem`](super::tmem).
const fn tcgen05_scaling(columns: u32, code: ScaleCode, [a, b]: [&'static str; 2]) -> Scaling {
    let a = ScaleLanes { layout: a, bits: 0x7f };
    let b = ScaleLanes { layout: b, bits: 0x07 };
    Scaling { columns, code, a, b }
}

macro_rules! mfma {
    ($name:literal, $builtin:literal, $k:literal, $a:ident, $d:ident, $layout:literal, $needs:ident, $cite:ident) => {
        MatrixOp {
            name: $name,
            mnemonic: $builtin,
            shape: [16, 16, $k],
            a: Element::$a,
            b: Element::$a,
            d: Element::$d,
            scope: MatrixScope::Warp,
            copies: 1,
            a_layout: $layout,
            b_layout: $layout,
            d_layout: "[ ; n:4 ; k:16, n/4:4]",
            scaling: None,
            needs: Feature::$needs,
            cite: $cite,
        }
    };
}

/// Scales of 32 columns: lane l has the scale of row l % 16, block l / 16.
const MX: Scaling = Scaling { columns: 32, code: ScaleCode::E8m0, a: MX_LANES, b: MX_LANES };
const MX_LANES: ScaleLanes = ScaleLanes { layout: "[ ; ; n:16, k:4]", bits: 0x3f };

/// Scales of `mma`, `columns` columns each, of the lanes that thread-id 0 selects: of A, lane 4g has those of row
/// g, lane 4g + 1 those of row g + 8; of B, lane 4g has those of column g.
const fn mma_scaling(columns: u32, code: ScaleCode, [a, b]: [&'static str; 2]) -> Scaling {
    let a = ScaleLanes { layout: a, bits: 0b11101 };
    let b = ScaleLanes { layout: b, bits: 0b11100 };
    Scaling { columns, code, a, b }
}

/// The lane map of 128 columns of small floats: a lane has 16 adjacent bytes of each half of the
/// columns, or 32 adjacent smaller elements.
const fn mx_layout(element: Element) -> &'static str {
    match element.bits() {
        8 => "[k:4 ; k/4:4, k/64:2 ; n:16, k/16:4]",
        6 => "[k:32 ; ; n:16, k/32:4]",
        _ => "[k:8 ; k/8:4 ; n:16, k/32:4]",
    }
}

macro_rules! scaled_mfma {
    ($name:literal, $a:ident, $b:ident) => {
        MatrixOp {
            name: $name,
            mnemonic: "__builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4",
            shape: [16, 16, 128],
            a: Element::$a,
            b: Element::$b,
            d: Element::F32,
            scope: MatrixScope::Warp,
            copies: 1,
            a_layout: mx_layout(Element::$a),
            b_layout: mx_layout(Element::$b),
            d_layout: "[ ; n:4 ; k:16, n/4:4]",
            scaling: Some(MX),
            needs: Feature::MfmaScale,
            cite: AMD_MFMA_SCALE,
        }
    };
}

/// `mma` with block scales on bytes: a step is one block.
macro_rules! scaled_mma_bytes {
    ($name:literal, $a:ident, $b:ident, $types:literal) => {
        MatrixOp {
            name: $name,
            mnemonic: concat!(
                "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.",
                $types,
                ".f32.ue8m0"
            ),
            shape: [16, 8, 32],
            a: Element::$a,
            b: Element::$b,
            d: Element::F32,
            scope: MatrixScope::Warp,
            copies: 1,
            a_layout: "[k:4 ; n/8:2, k/16:2 ; k/4:4, n:8]",
            b_layout: "[k:4 ; k/16:2 ; k/4:4, n:8]",
            d_layout: "[ ; k:2, n/8:2 ; k/2:4, n:8]",
            scaling: Some(mma_scaling(32, ScaleCode::E8m0, ["[ ; ; n/8:2, n:8]", "[ ; ; n:8]"])),
            needs: Feature::MmaScale,
            cite: PTX_MMA_SCALE,
        }
    };
}

/// `mma` with block scales on e2m1.
macro_rules! scaled_mma_e2m1 {
    ($name:literal, $kind:literal, $columns:literal, $code:ident, $scales:expr) => {
        MatrixOp {
            name: $name,
            mnemonic: concat!("mma.sync.aligned.m16n8k64.row.col.kind::", $kind),
            shape: [16, 8, 64],
            a: Element::E2m1,
            b: Element::E2m1,
            d: Element::F32,
            scope: MatrixScope::Warp,
            copies: 1,
            a_layout: "[k:8 ; n/8:2, k/32:2 ; k/8:4, n:8]",
            b_layout: "[k:8 ; k/32:2 ; k/8:4, n:8]",
            d_layout: "[ ; k:2, n/8:2 ; k/2:4, n:8]",
            scaling: Some(mma_scaling($columns, ScaleCode::$code, $scales)),
            needs: Feature::MmaScale,
            cite: PTX_MMA_SCALE,
        }
    };
}

/// WMMA of RDNA3. AMD's document has row i of D in register i / 2 of lanes 16 (i % 2) on: that is row
/// i / 2 + 8 (i % 2) here, in A too.
macro_rules! wmma_copied {
    ($name:literal, $builtin:literal, $a:ident, $d:ident, $layout:literal, $b_layout:literal) => {
        MatrixOp {
            name: $name,
            mnemonic: $builtin,
            shape: [16, 16, 16],
            a: Element::$a,
            b: Element::$a,
            d: Element::$d,
            scope: MatrixScope::Warp,
            copies: 2,
            a_layout: $layout,
            b_layout: $b_layout,
            d_layout: "[ ; n:8 ; k:16, n/8:2]",
            scaling: None,
            needs: Feature::WmmaCopied,
            cite: AMD_WMMA_RDNA3,
        }
    };
}

/// WMMA of RDNA4.
macro_rules! wmma {
    ($name:literal, $builtin:literal, $k:literal, $a:ident, $b:ident, $d:ident, $layout:literal) => {
        MatrixOp {
            name: $name,
            mnemonic: $builtin,
            shape: [16, 16, $k],
            a: Element::$a,
            b: Element::$b,
            d: Element::$d,
            scope: MatrixScope::Warp,
            copies: 1,
            a_layout: $layout,
            b_layout: $layout,
            d_layout: "[ ; n:8 ; k:16, n/8:2]",
            scaling: None,
            needs: Feature::Wmma,
            cite: AMD_WMMA_RDNA4,
        }
    };
}

/// Every matrix instruction that a schedule can use.
#[rustfmt::skip]
pub const MATRIX_OPS: &[MatrixOp] = &[
    mma!("mma.m16n8k16.bf16", 16, Bf16, F32, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", Mma16),
    mma!("mma.m16n8k16.f16", 16, F16, F32, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", Mma16),
    mma!("mma.m16n8k32.s8", 32, S8, S32, "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", MmaS8),
    mma!("mma.m16n8k32.e4m3", 32, E4m3, F32, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", MmaE4m3),
    wgmma!(8, 1, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(16, 2, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(24, 3, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(32, 4, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(48, 6, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(64, 8, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(80, 10, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(96, 12, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(112, 14, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(128, 16, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(144, 18, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(160, 20, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(176, 22, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(192, 24, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(208, 26, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(224, 28, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(240, 30, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(256, 32, 16, Bf16, F32, "bf16", "f32.bf16.bf16"),
    wgmma!(8, 1, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(16, 2, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(24, 3, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(32, 4, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(48, 6, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(64, 8, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(80, 10, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(96, 12, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(112, 14, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(128, 16, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(144, 18, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(160, 20, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(176, 22, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(192, 24, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(208, 26, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(224, 28, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(240, 30, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(256, 32, 16, F16, F32, "f16", "f32.f16.f16"),
    wgmma!(8, 1, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(16, 2, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(24, 3, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(32, 4, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(48, 6, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(64, 8, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(80, 10, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(96, 12, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(112, 14, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(128, 16, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(144, 18, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(160, 20, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(176, 22, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(192, 24, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(208, 26, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(224, 28, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(240, 30, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(256, 32, 32, E4m3, F32, "e4m3", "f32.e4m3.e4m3"),
    wgmma!(8, 1, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(16, 2, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(24, 3, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(32, 4, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(48, 6, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(64, 8, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(80, 10, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(96, 12, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(112, 14, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(128, 16, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(144, 18, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(160, 20, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(176, 22, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(192, 24, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(208, 26, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(224, 28, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(240, 30, 32, S8, S32, "s8", "s32.s8.s8"),
    wgmma!(256, 32, 32, S8, S32, "s8", "s32.s8.s8"),
    tcgen05("tcgen05.bf16", "tcgen05.mma.cta_group::1.kind::f16", (Element::Bf16, Element::F32), None, Feature::TensorMemory),
    tcgen05("tcgen05.f16", "tcgen05.mma.cta_group::1.kind::f16", (Element::F16, Element::F32), None, Feature::TensorMemory),
    tcgen05("tcgen05.e4m3", "tcgen05.mma.cta_group::1.kind::f8f6f4", (Element::E4m3, Element::F32), None, Feature::TensorMemory),
    tcgen05("tcgen05.s8", "tcgen05.mma.cta_group::1.kind::i8", (Element::S8, Element::S32), None, Feature::TensorMemoryS8),
    tcgen05("tcgen05.scale.e4m3", "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X", (Element::E4m3, Element::F32), Some(tcgen05_scaling(32, ScaleCode::E8m0, ["[ ; ; n:128]", "[ ; ; n:8]"])), Feature::TensorMemory),
    tcgen05("tcgen05.scale.e2m1", "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.scale_vec::2X", (Element::E2m1, Element::F32), Some(tcgen05_scaling(32, ScaleCode::E8m0, ["[k:2 ; ; n:128]", "[k:2 ; ; n:8]"])), Feature::TensorMemory),
    tcgen05("tcgen05.scale.e2m1.e4m3", "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X", (Element::E2m1, Element::F32), Some(tcgen05_scaling(16, ScaleCode::UnsignedE4m3, ["[k:4 ; ; n:128]", "[k:4 ; ; n:8]"])), Feature::TensorMemoryE4m3Scales),
    mfma!("mfma.16x16x16.bf16", "__builtin_amdgcn_mfma_f32_16x16x16bf16_1k", 16, Bf16, F32, "[k:2 ; k/2:2 ; n:16, k/4:4]", Mfma, AMD_MFMA),
    mfma!("mfma.16x16x16.f16", "__builtin_amdgcn_mfma_f32_16x16x16f16", 16, F16, F32, "[k:2 ; k/2:2 ; n:16, k/4:4]", Mfma, AMD_MFMA),
    mfma!("mfma.16x16x32.s8", "__builtin_amdgcn_mfma_i32_16x16x32_i8", 32, S8, S32, "[k:4 ; k/4:2 ; n:16, k/8:4]", Mfma, AMD_MFMA),
    mfma!("mfma.16x16x32.e4m3fnuz", "__builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8", 32, E4m3Fnuz, F32, "[k:4 ; k/4:2 ; n:16, k/8:4]", MfmaFnuz, AMD_MFMA),
    mfma!("mfma.16x16x32.e4m3", "__builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8", 32, E4m3, F32, "[k:4 ; k/4:2 ; n:16, k/8:4]", MfmaE4m3, AMD_MFMA_950),
    mfma!("mfma.16x16x32.bf16", "__builtin_amdgcn_mfma_f32_16x16x32_bf16", 32, Bf16, F32, "[k:2 ; k/2:4 ; n:16, k/8:4]", MfmaWide, AMD_MFMA_950),
    mfma!("mfma.16x16x32.f16", "__builtin_amdgcn_mfma_f32_16x16x32_f16", 32, F16, F32, "[k:2 ; k/2:4 ; n:16, k/8:4]", MfmaWide, AMD_MFMA_950),
    mfma!("mfma.16x16x64.s8", "__builtin_amdgcn_mfma_i32_16x16x64_i8", 64, S8, S32, "[k:4 ; k/4:4 ; n:16, k/16:4]", MfmaWide, AMD_MFMA_950),
    wmma_copied!("wmma.copied.16x16x16.bf16", "__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32", Bf16, F32, "[k:2 ; k/2:8 ; n/8:2, n:8]", "[k:2 ; k/2:8 ; n:16]"),
    wmma_copied!("wmma.copied.16x16x16.f16", "__builtin_amdgcn_wmma_f32_16x16x16_f16_w32", F16, F32, "[k:2 ; k/2:8 ; n/8:2, n:8]", "[k:2 ; k/2:8 ; n:16]"),
    wmma_copied!("wmma.copied.16x16x16.s8", "__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32", S8, S32, "[k:4 ; k/4:4 ; n/8:2, n:8]", "[k:4 ; k/4:4 ; n:16]"),
    wmma_copied!("wmma.copied.16x16x16.s4", "__builtin_amdgcn_wmma_i32_16x16x16_iu4_w32", S4, S32, "[k:8 ; k/8:2 ; n/8:2, n:8]", "[k:8 ; k/8:2 ; n:16]"),
    wmma!("wmma.16x16x16.bf16", "__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12", 16, Bf16, Bf16, F32, "[k:2 ; k/2:2, k/8:2 ; n:16, k/4:2]"),
    wmma!("wmma.16x16x16.f16", "__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12", 16, F16, F16, F32, "[k:2 ; k/2:2, k/8:2 ; n:16, k/4:2]"),
    wmma!("wmma.16x16x16.e4m3", "__builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12", 16, E4m3, E4m3, F32, "[k:4 ; k/4:2 ; n:16, k/8:2]"),
    wmma!("wmma.16x16x16.e4m3.e5m2", "__builtin_amdgcn_wmma_f32_16x16x16_fp8_bf8_w32_gfx12", 16, E4m3, E5m2, F32, "[k:4 ; k/4:2 ; n:16, k/8:2]"),
    wmma!("wmma.16x16x16.e5m2.e4m3", "__builtin_amdgcn_wmma_f32_16x16x16_bf8_fp8_w32_gfx12", 16, E5m2, E4m3, F32, "[k:4 ; k/4:2 ; n:16, k/8:2]"),
    wmma!("wmma.16x16x16.e5m2", "__builtin_amdgcn_wmma_f32_16x16x16_bf8_bf8_w32_gfx12", 16, E5m2, E5m2, F32, "[k:4 ; k/4:2 ; n:16, k/8:2]"),
    wmma!("wmma.16x16x16.s8", "__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12", 16, S8, S8, S32, "[k:4 ; k/4:2 ; n:16, k/8:2]"),
    wmma!("wmma.16x16x32.s4", "__builtin_amdgcn_wmma_i32_16x16x32_iu4_w32_gfx12", 32, S4, S4, S32, "[k:8 ; k/8:2 ; n:16, k/16:2]"),
    scaled_mfma!("mfma.scale.16x16x128.e2m1.e2m1", E2m1, E2m1),
    scaled_mfma!("mfma.scale.16x16x128.e2m1.e2m3", E2m1, E2m3),
    scaled_mfma!("mfma.scale.16x16x128.e2m1.e3m2", E2m1, E3m2),
    scaled_mfma!("mfma.scale.16x16x128.e2m1.e4m3", E2m1, E4m3),
    scaled_mfma!("mfma.scale.16x16x128.e2m1.e5m2", E2m1, E5m2),
    scaled_mfma!("mfma.scale.16x16x128.e2m3.e2m1", E2m3, E2m1),
    scaled_mfma!("mfma.scale.16x16x128.e2m3.e2m3", E2m3, E2m3),
    scaled_mfma!("mfma.scale.16x16x128.e2m3.e3m2", E2m3, E3m2),
    scaled_mfma!("mfma.scale.16x16x128.e2m3.e4m3", E2m3, E4m3),
    scaled_mfma!("mfma.scale.16x16x128.e2m3.e5m2", E2m3, E5m2),
    scaled_mfma!("mfma.scale.16x16x128.e3m2.e2m1", E3m2, E2m1),
    scaled_mfma!("mfma.scale.16x16x128.e3m2.e2m3", E3m2, E2m3),
    scaled_mfma!("mfma.scale.16x16x128.e3m2.e3m2", E3m2, E3m2),
    scaled_mfma!("mfma.scale.16x16x128.e3m2.e4m3", E3m2, E4m3),
    scaled_mfma!("mfma.scale.16x16x128.e3m2.e5m2", E3m2, E5m2),
    scaled_mfma!("mfma.scale.16x16x128.e4m3.e2m1", E4m3, E2m1),
    scaled_mfma!("mfma.scale.16x16x128.e4m3.e2m3", E4m3, E2m3),
    scaled_mfma!("mfma.scale.16x16x128.e4m3.e3m2", E4m3, E3m2),
    scaled_mfma!("mfma.scale.16x16x128.e4m3.e4m3", E4m3, E4m3),
    scaled_mfma!("mfma.scale.16x16x128.e4m3.e5m2", E4m3, E5m2),
    scaled_mfma!("mfma.scale.16x16x128.e5m2.e2m1", E5m2, E2m1),
    scaled_mfma!("mfma.scale.16x16x128.e5m2.e2m3", E5m2, E2m3),
    scaled_mfma!("mfma.scale.16x16x128.e5m2.e3m2", E5m2, E3m2),
    scaled_mfma!("mfma.scale.16x16x128.e5m2.e4m3", E5m2, E4m3),
    scaled_mfma!("mfma.scale.16x16x128.e5m2.e5m2", E5m2, E5m2),
    scaled_mma_bytes!("mma.scale.m16n8k32.e2m1.e2m3", PaddedE2m1, PaddedE2m3, "e2m1.e2m3"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e2m1.e3m2", PaddedE2m1, PaddedE3m2, "e2m1.e3m2"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e2m1.e4m3", PaddedE2m1, E4m3, "e2m1.e4m3"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e2m1.e5m2", PaddedE2m1, E5m2, "e2m1.e5m2"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e2m3.e2m1", PaddedE2m3, PaddedE2m1, "e2m3.e2m1"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e2m3.e2m3", PaddedE2m3, PaddedE2m3, "e2m3.e2m3"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e2m3.e3m2", PaddedE2m3, PaddedE3m2, "e2m3.e3m2"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e2m3.e4m3", PaddedE2m3, E4m3, "e2m3.e4m3"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e2m3.e5m2", PaddedE2m3, E5m2, "e2m3.e5m2"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e3m2.e2m1", PaddedE3m2, PaddedE2m1, "e3m2.e2m1"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e3m2.e2m3", PaddedE3m2, PaddedE2m3, "e3m2.e2m3"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e3m2.e3m2", PaddedE3m2, PaddedE3m2, "e3m2.e3m2"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e3m2.e4m3", PaddedE3m2, E4m3, "e3m2.e4m3"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e3m2.e5m2", PaddedE3m2, E5m2, "e3m2.e5m2"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e4m3.e2m1", E4m3, PaddedE2m1, "e4m3.e2m1"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e4m3.e2m3", E4m3, PaddedE2m3, "e4m3.e2m3"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e4m3.e3m2", E4m3, PaddedE3m2, "e4m3.e3m2"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e4m3.e4m3", E4m3, E4m3, "e4m3.e4m3"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e4m3.e5m2", E4m3, E5m2, "e4m3.e5m2"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e5m2.e2m1", E5m2, PaddedE2m1, "e5m2.e2m1"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e5m2.e2m3", E5m2, PaddedE2m3, "e5m2.e2m3"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e5m2.e3m2", E5m2, PaddedE3m2, "e5m2.e3m2"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e5m2.e4m3", E5m2, E4m3, "e5m2.e4m3"),
    scaled_mma_bytes!("mma.scale.m16n8k32.e5m2.e5m2", E5m2, E5m2, "e5m2.e5m2"),
    scaled_mma_e2m1!("mma.scale.m16n8k64.e2m1", "mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0", 32, E8m0, ["[k:2 ; ; n/8:2, n:8]", "[k:2 ; ; n:8]"]),
    scaled_mma_e2m1!("mma.scale.m16n8k64.e2m1.e4m3", "mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3", 16, UnsignedE4m3, ["[k:4 ; ; n/8:2, n:8]", "[k:4 ; ; n:8]"]),
];

/// The instruction of a name, if the target has it.
pub fn matrix_op(name: &str, target: &Target) -> Option<&'static MatrixOp> {
    MATRIX_OPS.iter().find(|row| row.name == name && target.has(row.needs))
}
