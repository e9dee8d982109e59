//! The prelude: functions for operations of the IR that WGSL lacks.

/// A function of the prelude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Helper {
    /// The f32 with these bits, for values without a literal.
    Float,
    /// The f32 value of an f16.
    FloatFromF16,
    /// f32 to bf16, to nearest even.
    Bf16,
    /// f32 to f16, to nearest even; overflow gives infinity.
    F16,
    /// The upper half of a product.
    MulHigh,
    /// f32 to the nearest integer, saturated; 0 for NaN.
    S32FromF32,
    /// Four products of signed and unsigned bytes.
    DotMixed,
    /// A quotient, rounded once.
    Quotient,
}

impl Helper {
    /// Its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::FloatFromF16 => "float_from_f16",
            Self::Bf16 => "bf16",
            Self::F16 => "f16_of",
            Self::MulHigh => "mul_high",
            Self::S32FromF32 => "s32_from_f32",
            Self::DotMixed => "dot_mixed",
            Self::Quotient => "quotient",
        }
    }

    /// Its definition.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Float => {
                "\
fn float(bits: u32) -> f32 {
    return bitcast<f32>(bits);
}"
            }
            // For a subnormal code, y has an implicit one and is half as large as it should be:
            // below the smallest normal value c, the result is y + (y - c).
            Self::FloatFromF16 => {
                "\
fn float_from_f16(code: u32) -> f32 {
    let magnitude = (code & 0x7fffu) << 13u;
    var value = bitcast<f32>(magnitude + 0x38000000u);
    value = value + min(value - 6.103515625e-05f, 0.0f);
    var bits = bitcast<u32>(value);
    if (magnitude >= 0x0f800000u) {
        bits = magnitude | 0x7f800000u;
    }
    return bitcast<f32>(bits | ((code & 0x8000u) << 16u));
}"
            }
            Self::Bf16 => {
                "\
fn bf16(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (bits >> 16u) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}"
            }
            // Below the smallest normal number the code counts multiples of 2^-24.
            Self::F16 => {
                "\
fn f16_of(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (magnitude >= 0x47800000u) {
        return sign | 0x7c00u;
    }
    if (magnitude >= 0x38800000u) {
        return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u);
    }
    let lack = min(126u - (magnitude >> 23u), 31u);
    let digits = (magnitude & 0x7fffffu) | 0x800000u;
    let even = (digits >> lack) & 1u;
    let rounded = (digits + ((1u << (lack - 1u)) - 1u) + even) >> lack;
    return sign | rounded;
}"
            }
            Self::MulHigh => {
                "\
fn mul_high(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let cross = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (cross & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (cross >> 16u) + (other >> 16u);
}"
            }
            Self::S32FromF32 => {
                "\
fn s32_from_f32(value: f32) -> u32 {
    if ((bitcast<u32>(value) & 0x7fffffffu) > 0x7f800000u) {
        return 0u;
    }
    let nearest = round(value);
    if (nearest >= 2147483648.0f) {
        return 0x7fffffffu;
    }
    if (nearest < -2147483648.0f) {
        return 0x80000000u;
    }
    return bitcast<u32>(i32(nearest));
}"
            }
            Self::DotMixed => {
                "\
fn dot_mixed(a: u32, b: u32) -> u32 {
    return bitcast<u32>(dot(unpack4xI8(a), vec4<i32>(unpack4xU8(b))));
}"
            }
            // With significands m and n of 24 bits each: finds q and r with m 2^24 = q n + r, 0 <=
            // r < n, from an approximate q. Its error is less than 8, so the low 32 bits of r
            // determine r. If q has 24 bits, r decides the rounding; if q has 25 bits, its last bit
            // does. There are no ties: an odd q of 25 bits divides no m 2^24, and 2 r = n is
            // impossible too.
            Self::Quotient => {
                "\
fn quotient(a: f32, b: f32) -> f32 {
    let x = bitcast<u32>(a);
    let y = bitcast<u32>(b);
    let of_x = (x >> 23u) & 0xffu;
    let of_y = (y >> 23u) & 0xffu;
    let near = a / b;
    if (of_x == 0u || of_x == 255u || of_y == 0u || of_y == 255u) {
        return near;
    }
    let m = (x & 0x7fffffu) | 0x800000u;
    let n = (y & 0x7fffffu) | 0x800000u;
    var q = u32(f32(m) / f32(n) * 16777216.0f);
    var r = bitcast<i32>((m << 24u) - q * n);
    while (r < 0i) {
        q = q - 1u;
        r = r + bitcast<i32>(n);
    }
    while (r >= bitcast<i32>(n)) {
        q = q + 1u;
        r = r - bitcast<i32>(n);
    }
    let longer = q >> 24u;
    let exponent = bitcast<i32>(of_x + 126u + longer) - bitcast<i32>(of_y);
    if (exponent < 1i || exponent > 254i) {
        return near;
    }
    let up = select(2i * r > bitcast<i32>(n), (q & 1u) == 1u, longer == 1u);
    let magnitude = (bitcast<u32>(exponent - 1i) << 23u) + (q >> longer) + select(0u, 1u, up);
    return bitcast<f32>(((x ^ y) & 0x80000000u) | magnitude);
}"
            }
        }
    }
}
