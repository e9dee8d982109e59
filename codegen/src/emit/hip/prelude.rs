//! The prelude of a source: types, and the functions that the kernel uses.
//!
//! Each function is exactly an operation of [`crate::ir`], in portable C++; if a chip has an
//! instruction for the operation, the compiler recognises it, or a builtin names it.

use std::collections::BTreeSet;
use std::fmt::{Display, Formatter, Result, Write};

use crate::target::{Feature, Target};

/// A function of the prelude, in the order of their definitions: a function comes after those that
/// it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Helper {
    AsF32,
    AsU32,
    AsF16,
    AsHalves,
    AsWord,
    Min,
    Max,
    ToInteger,
    F32FromF16,
    AddF16,
    SubF16,
    MulF16,
    FmaF16,
    PackF16,
    MaxF16,
    RoundBf16,
    PackBf16,
    RoundE4m3,
    PackE4m3,
    Permute,
    FunnelLeft,
    Dot4,
    MixedDot4,
    First,
    Lane,
    Warp,
    OfLane,
    FromLane,
    ShuffleXor,
    ShuffleUp,
    ShuffleDown,
    Votes,
    BlockBarrier,
    WarpBarrier,
    InAllLanes,
}

/// A vector type: element type and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Vector {
    /// The C++ name of an element.
    pub(super) of: &'static str,
    /// The element's name within the vector type's name.
    pub(super) short: &'static str,
    /// Number of elements.
    pub(super) len: u32,
}

impl Display for Vector {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}x{}", self.short, self.len)
    }
}

/// The types of loads, stores and atomics, which may alias: memory is read with other types than it
/// was written with.
const MEMORY: &str = "\
typedef unsigned char byte;
typedef unsigned long long wide;
typedef unsigned short half_word __attribute__((may_alias));
typedef unsigned word __attribute__((may_alias));
typedef unsigned word2 __attribute__((ext_vector_type(2), may_alias));
typedef unsigned word4 __attribute__((ext_vector_type(4), may_alias));
typedef _Float16 halves __attribute__((ext_vector_type(2)));
typedef __bf16 brains __attribute__((ext_vector_type(2)));
";

/// The specifiers of each function.
const FUNCTION: &str = "static inline __attribute__((device, always_inline)) ";

impl Helper {
    /// Its name in the source.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::AsF32 => "as_f32",
            Self::AsU32 => "as_u32",
            Self::AsF16 => "as_f16",
            Self::AsHalves => "as_halves",
            Self::AsWord => "as_word",
            Self::Min => "min_number",
            Self::Max => "max_number",
            Self::ToInteger => "nearest_integer",
            Self::F32FromF16 => "from_f16",
            Self::AddF16 => "add_f16",
            Self::SubF16 => "sub_f16",
            Self::MulF16 => "mul_f16",
            Self::FmaF16 => "fma_f16",
            Self::MaxF16 => "max_f16",
            Self::PackF16 => "pack_f16",
            Self::RoundBf16 => "round_bf16",
            Self::PackBf16 => "pack_bf16",
            Self::RoundE4m3 => "round_e4m3",
            Self::PackE4m3 => "pack_e4m3",
            Self::Permute => "permute",
            Self::FunnelLeft => "funnel_left",
            Self::Dot4 => "dot_s8",
            Self::MixedDot4 => "dot_u8_s8",
            Self::Lane => "lane",
            Self::Warp => "warp",
            Self::First => "first",
            Self::OfLane => "of_lane",
            Self::FromLane => "from_lane",
            Self::ShuffleXor => "shuffle_xor",
            Self::ShuffleUp => "shuffle_up",
            Self::ShuffleDown => "shuffle_down",
            Self::Votes => "votes",
            Self::BlockBarrier => "block_barrier",
            Self::WarpBarrier => "warp_barrier",
            Self::InAllLanes => "in_all_lanes",
        }
    }

    /// The functions that it calls.
    fn calls(self, target: &Target) -> &'static [Self] {
        match self {
            Self::Min | Self::Max | Self::RoundBf16 | Self::RoundE4m3 => {
                &[Self::AsF32, Self::AsU32]
            }
            Self::F32FromF16 => &[Self::AsF16],
            Self::AddF16 | Self::SubF16 | Self::MulF16 | Self::FmaF16 => {
                &[Self::AsHalves, Self::AsWord]
            }
            Self::MaxF16 => &[Self::AsHalves, Self::AsWord, Self::AsF16, Self::Max, Self::PackF16],
            Self::PackF16 => &[Self::AsWord],
            Self::PackBf16 if !target.has(Feature::ConvertBf16) => &[Self::RoundBf16],
            Self::PackE4m3 => &[Self::RoundE4m3],
            Self::Warp => &[Self::First],
            Self::ShuffleXor | Self::ShuffleUp | Self::ShuffleDown => &[Self::Lane, Self::FromLane],
            _ => &[],
        }
    }

    /// Its definition on a chip, without the specifiers.
    fn text(self, target: &Target) -> &'static str {
        match self {
            Self::AsF32 => {
                "float as_f32(unsigned bits) { return __builtin_bit_cast(float, bits); }"
            }
            Self::AsU32 => {
                "unsigned as_u32(float value) { return __builtin_bit_cast(unsigned, value); }"
            }
            Self::AsF16 => {
                "_Float16 as_f16(unsigned bits)
{
    return __builtin_bit_cast(_Float16, (unsigned short)bits);
}"
            }
            Self::AsHalves => {
                "halves as_halves(unsigned bits) { return __builtin_bit_cast(halves, bits); }"
            }
            Self::AsWord => {
                "unsigned as_word(halves two) { return __builtin_bit_cast(unsigned, two); }"
            }
            // Equal numbers have equal bits, or are zeros, whose bits give the sign of the result.
            Self::Min => {
                "float min_number(float a, float b)
{
#if __has_builtin(__builtin_elementwise_minimumnum)
    return __builtin_elementwise_minimumnum(a, b);
#else
    return a == b ? as_f32(as_u32(a) | as_u32(b)) : a < b || b != b ? a : b;
#endif
}"
            }
            Self::Max => {
                "float max_number(float a, float b)
{
#if __has_builtin(__builtin_elementwise_maximumnum)
    return __builtin_elementwise_maximumnum(a, b);
#else
    return a == b ? as_f32(as_u32(a) & as_u32(b)) : a > b || b != b ? a : b;
#endif
}"
            }
            Self::ToInteger => {
                "unsigned nearest_integer(float value)
{
    const float nearest = __builtin_roundevenf(value);
    if (nearest >= 2147483648.0f) return 0x7fffffffu;
    if (nearest < -2147483648.0f) return 0x80000000u;
    return nearest == nearest ? (unsigned)(int)nearest : 0u;
}"
            }
            Self::F32FromF16 => "float from_f16(unsigned bits) { return (float)as_f16(bits); }",
            Self::AddF16 => {
                "unsigned add_f16(unsigned a, unsigned b)
{
    return as_word(as_halves(a) + as_halves(b));
}"
            }
            Self::SubF16 => {
                "unsigned sub_f16(unsigned a, unsigned b)
{
    return as_word(as_halves(a) - as_halves(b));
}"
            }
            Self::MulF16 => {
                "unsigned mul_f16(unsigned a, unsigned b)
{
    return as_word(as_halves(a) * as_halves(b));
}"
            }
            Self::FmaF16 => {
                "unsigned fma_f16(unsigned a, unsigned b, unsigned c)
{
    return as_word(__builtin_elementwise_fma(as_halves(a), as_halves(b), as_halves(c)));
}"
            }
            Self::MaxF16 => {
                "unsigned max_f16(unsigned a, unsigned b)
{
#if __has_builtin(__builtin_elementwise_maximumnum)
    return as_word(__builtin_elementwise_maximumnum(as_halves(a), as_halves(b)));
#else
    return pack_f16(max_number(as_f16(a), as_f16(b)), max_number(as_f16(a >> 16), as_f16(b >> 16)));
#endif
}"
            }
            Self::PackF16 => {
                "unsigned pack_f16(float low, float high)
{
    return as_word((halves){(_Float16)low, (_Float16)high});
}"
            }
            // Rounds by adding half of the last place, or slightly less, and truncating.
            Self::RoundBf16 => {
                "unsigned round_bf16(float value)
{
    const unsigned bits = as_u32(value);
    const unsigned rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return value == value ? rounded : bits | 0x400000u;
}"
            }
            Self::PackBf16 if target.has(Feature::ConvertBf16) => {
                "unsigned pack_bf16(float low, float high)
{
    return __builtin_bit_cast(unsigned, (brains){(__bf16)low, (__bf16)high});
}"
            }
            Self::PackBf16 => {
                "unsigned pack_bf16(float low, float high)
{
    return round_bf16(low) >> 16 | (round_bf16(high) & 0xffff0000u);
}"
            }
            // From 464 on (between 448 and the next value of an unlimited format): the largest
            // number. Below 2^-6, the sum with 2^14 has the last place of the subnormals.
            Self::RoundE4m3 => {
                "unsigned round_e4m3(float value)
{
    const unsigned sign = as_u32(value) >> 24 & 0x80u, bits = as_u32(value) & 0x7fffffffu;
    if (bits > 0x7f800000u) return 0x7fu;
    if (bits >= 0x43e80000u) return sign | 0x7eu;
    if (bits < 0x3c800000u) return sign | (as_u32(as_f32(bits) + 16384.0f) & 0xffu);
    return sign | (((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - 960u);
}"
            }
            Self::PackE4m3 => {
                "unsigned pack_e4m3(float low, float high)
{
    return round_e4m3(low) | round_e4m3(high) << 8;
}"
            }
            // Expands selectors to bytes, since v_perm_b32 has only the signs of odd bytes.
            Self::Permute => {
                "unsigned permute(unsigned a, unsigned b, unsigned select)
{
    unsigned each = (select & 0xffu) | (select & 0xff00u) << 8;
    each = (each | each << 4) & 0x0f0f0f0fu;
    const unsigned bytes = __builtin_amdgcn_perm(b, a, each & 0x07070707u);
    const unsigned signs = each >> 3 & 0x01010101u;
    return (bytes & ~(signs * 0xffu)) | (bytes >> 7 & signs) * 0xffu;
}"
            }
            Self::FunnelLeft => {
                "unsigned funnel_left(unsigned low, unsigned high, unsigned by)
{
    return (unsigned)((((wide)high << 32 | low) << by) >> 32);
}"
            }
            Self::MixedDot4 if target.has(Feature::Dot4AnySigns) => {
                "unsigned dot_u8_s8(unsigned a, unsigned b, unsigned c)
{
    return (unsigned)__builtin_amdgcn_sudot4(false, (int)a, true, (int)b, (int)c, false);
}"
            }
            // An unsigned byte is a signed one with its top bit inverted, plus 128.
            Self::MixedDot4 => {
                "unsigned dot_u8_s8(unsigned a, unsigned b, unsigned c)
{
    const unsigned sum = (unsigned)__builtin_amdgcn_sdot4(0x01010101, (int)b, 0, false);
    const unsigned rest = c + (sum << 7);
    return (unsigned)__builtin_amdgcn_sdot4((int)(a ^ 0x80808080u), (int)b, (int)rest, false);
}"
            }
            Self::Dot4 if target.has(Feature::Dot4AnySigns) => {
                "unsigned dot_s8(unsigned a, unsigned b, unsigned c)
{
    return (unsigned)__builtin_amdgcn_sudot4(true, (int)a, true, (int)b, (int)c, false);
}"
            }
            Self::Dot4 => {
                "unsigned dot_s8(unsigned a, unsigned b, unsigned c)
{
    return (unsigned)__builtin_amdgcn_sdot4((int)a, (int)b, (int)c, false);
}"
            }
            Self::Lane => {
                "unsigned lane() { return __builtin_amdgcn_workitem_id_x() & (lanes - 1u); }"
            }
            // Tells the compiler that the number is the same in all lanes.
            Self::Warp => {
                "unsigned warp() { return first(__builtin_amdgcn_workitem_id_x() / lanes); }"
            }
            Self::First => {
                "unsigned first(unsigned value)
{
    return (unsigned)__builtin_amdgcn_readfirstlane((int)value);
}"
            }
            Self::OfLane => {
                "unsigned of_lane(unsigned value, unsigned lane)
{
    return (unsigned)__builtin_amdgcn_readlane((int)value, (int)lane);
}"
            }
            // The instruction addresses lanes in bytes.
            Self::FromLane => {
                "unsigned from_lane(unsigned value, unsigned lane)
{
    return (unsigned)__builtin_amdgcn_ds_bpermute((int)(lane << 2), (int)value);
}"
            }
            Self::ShuffleXor => {
                "unsigned shuffle_xor(unsigned value, unsigned by)
{
    return from_lane(value, lane() ^ by);
}"
            }
            // A source lane outside of the warp is replaced by the lane itself.
            Self::ShuffleUp => {
                "unsigned shuffle_up(unsigned value, unsigned by)
{
    return from_lane(value, lane() - (by <= lane() ? by : 0u));
}"
            }
            Self::ShuffleDown => {
                "unsigned shuffle_down(unsigned value, unsigned by)
{
    return from_lane(value, lane() + (by < lanes - lane() ? by : 0u));
}"
            }
            Self::Votes if warp(target) == 32 => {
                "unsigned votes(bool says) { return __builtin_amdgcn_ballot_w32(says); }"
            }
            Self::Votes => "wide votes(bool says) { return __builtin_amdgcn_ballot_w64(says); }",
            // The barrier instruction does not order memory accesses.
            Self::BlockBarrier => {
                "void block_barrier()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, \"workgroup\");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"workgroup\");
}"
            }
            // Without this, clang 22 moves a matrix instruction, and what computes its operands, behind a
            // branch of some lanes if its result is used there only. Assembly stays where all lanes are.
            Self::InAllLanes => {
                "sums in_all_lanes(sums value)
{
#ifdef __AMDGCN__
    asm(\"\" : \"+v\"(value));
#endif
    return value;
}"
            }
            Self::WarpBarrier => {
                "void warp_barrier()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, \"wavefront\");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"wavefront\");
}"
            }
        }
    }
}

/// Lanes of a warp.
fn warp(target: &Target) -> u32 {
    target.gpu.map_or(0, |gpu| gpu.warp)
}

/// Writes the types, and the functions with those that they call.
pub(super) fn write(
    out: &mut String,
    target: &Target,
    used: &BTreeSet<Helper>,
    vectors: &BTreeSet<Vector>,
) -> Result {
    out.push_str(MEMORY);
    writeln!(out, "constexpr unsigned lanes = {};", warp(target))?;
    for vector in vectors {
        let (of, len) = (vector.of, vector.len);
        writeln!(out, "typedef {of} {vector} __attribute__((ext_vector_type({len})));")?;
    }
    out.push('\n');
    let mut all = BTreeSet::new();
    let mut open: Vec<Helper> = used.iter().copied().collect();
    while let Some(helper) = open.pop() {
        if all.insert(helper) {
            open.extend(helper.calls(target));
        }
    }
    for helper in all {
        let template = if helper == Helper::InAllLanes { "template <class sums> " } else { "" };
        writeln!(out, "{template}{FUNCTION}{}\n", helper.text(target))?;
    }
    Ok(())
}
