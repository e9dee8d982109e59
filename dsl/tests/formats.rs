//! Every code of every small float, and casts to it, against `ml_dtypes`.

use std::path::Path;

use quantloom_dsl::format::{Number, Overflow};
use safetensors::SafeTensors;

/// Name in the golden file, name in the language.
const NAMES: &[(&str, &str)] = &[
    ("float4_e2m1fn", "e2m1"),
    ("float6_e2m3fn", "e2m3"),
    ("float6_e3m2fn", "e3m2"),
    ("float8_e3m4", "e3m4"),
    ("float8_e4m3fn", "e4m3"),
    ("float8_e4m3fnuz", "e4m3fnuz"),
    ("float8_e5m2", "e5m2"),
    ("float8_e5m2fnuz", "e5m2fnuz"),
    ("float8_e8m0fnu", "e8m0"),
];

fn golden() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/codes_ml_dtypes.safetensors");
    std::fs::read(path).expect("the golden file is part of the repository")
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = file.tensor(name).expect("a tensor of the golden file").data().to_vec();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn same(a: f64, b: f32) -> bool {
    a.is_nan() && b.is_nan() || a == f64::from(b) && a.is_sign_negative() == b.is_sign_negative()
}

#[test]
fn every_code_decodes_as_ml_dtypes_says() {
    let bytes = golden();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for (golden, name) in NAMES {
        let number = Number::from_name(name).unwrap();
        let values = floats(&file, golden);
        assert!(values.len() >= 1 << number.bits(), "{name}: {} values", values.len());
        for (code, value) in values.iter().enumerate().take(1 << number.bits()) {
            let ours = number.decode(code as u32);
            assert!(same(ours, *value), "{name} code {code:#x}: {ours}, ml_dtypes {value}");
        }
    }
}

#[test]
fn every_cast_encodes_as_ml_dtypes_says() {
    let bytes = golden();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let inputs = floats(&file, "enc_in");
    for (golden, name) in NAMES {
        let number = Number::from_name(name).unwrap();
        let codes = file.tensor(&format!("enc.{golden}")).unwrap().data().to_vec();
        assert_eq!(codes.len(), inputs.len());
        for (input, code) in inputs.iter().zip(codes) {
            let ours = number.encode(f64::from(*input), Overflow::Special);
            let both_nan = number.decode(ours).is_nan() && number.decode(u32::from(code)).is_nan();
            assert!(
                both_nan || ours == u32::from(code),
                "{name}({input:e}): {ours:#x}, ml_dtypes {code:#x}"
            );
        }
    }
}

#[test]
fn sixteen_bit_floats_round_as_their_bits_say() {
    for bits in (0..=u16::MAX).step_by(7) {
        for name in ["f16", "bf16"] {
            let number = Number::from_name(name).unwrap();
            let value = number.decode(u32::from(bits));
            if !value.is_nan() {
                assert_eq!(number.encode(value, Overflow::Special), u32::from(bits), "{name}");
            }
        }
        let wide = u32::from(bits) << 16 | 0x1234;
        let f32_value = f64::from(f32::from_bits(wide));
        if !f32_value.is_nan() {
            assert_eq!(
                Number::from_name("f32").unwrap().encode(f32_value, Overflow::Special),
                wide
            );
        }
    }
}

#[test]
fn names_read_back() {
    for name in [
        "u4", "i8", "u32", "f32", "f16", "bf16", "e8m0", "e2m1", "e4m3fnuz", "e4m3ieee", "e3m4",
        "e3m2fn",
    ] {
        assert_eq!(Number::from_name(name).unwrap().to_string(), name);
    }
    for name in
        ["u0", "u33", "i04", "e9m0", "e5m3", "e0m3", "e1m0ieee", "f8", "", "u", "e4m", "e4m3fnx"]
    {
        assert_eq!(Number::from_name(name), None, "{name}");
    }
}

/// What scales of groups of zeros are: 1, or a positive number where the type rounds 1 to 0.
#[test]
fn one_is_a_positive_number_of_every_type_that_has_one() {
    let (mut rounded_to_0, mut numbers) = (0, 0);
    for (exponent, mantissa) in (1..=5).flat_map(|e| (0..=7 - e).map(move |m| (e, m))) {
        for suffix in ["", "fn", "finite", "fnuz"] {
            let name = format!("e{exponent}m{mantissa}{suffix}");
            let Some(number) = Number::from_name(&name).filter(|number| number.max() > 0.0) else {
                continue;
            };
            let (one, rounded) = (number.one(), number.round(1.0));
            assert!(one > 0.0 && one.is_finite() && number.round(one) == one, "{name}: {one}");
            assert!(rounded == 0.0 || one == rounded, "{name}: {one}, not {rounded}");
            rounded_to_0 += u32::from(rounded == 0.0);
            numbers += 1;
        }
    }
    assert!(numbers > 40 && rounded_to_0 > 0, "{numbers} types, {rounded_to_0} without 1");
}
