//! Which codes are small integers times a power of two.

use quantloom_dsl::format::{BF16, E2M1, E2M3, E3M2, E4M3, Number};
use quantloom_dsl::{Code, SignedBytes, TableIntegers};

fn book(values: &[f32]) -> Code {
    Code::Codebook(values.iter().map(|value| value.to_bits()).collect())
}

#[test]
fn small_integers_times_a_power_of_two_are_bytes() {
    let e2m1 = TableIntegers::of(&Code::Number(Number::Float(E2M1))).unwrap();
    let table = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
    assert_eq!(e2m1, TableIntegers { table, offset: 12, exponent: 1 });
    let wide = TableIntegers::of(&book(&[-127.0, 113.0])).unwrap();
    assert_eq!((wide.table[..2].to_vec(), wide.offset, wide.exponent), (vec![0, 240], 127, 0));
    let quarters = TableIntegers::of(&book(&[-0.25, 0.5, 1.0, 3.0])).unwrap();
    assert_eq!((quarters.table[..4].to_vec(), quarters.offset), (vec![3, 6, 8, 16], 4));
    for code in [
        book(&[0.0, 128.0]),
        book(&[0.0, 1.0 / 16.0]),
        book(&[-0.5, 100.25]),
        book(&[0.0, f32::NAN]),
        book(&[0.0, 0.3]),
        Code::Number(Number::Float(E2M3)),
        Code::Number(Number::Uint(4)),
    ] {
        assert_eq!(TableIntegers::of(&code), None, "{code:?}");
    }
}

#[test]
fn numbers_of_short_formats_are_signed_bytes() {
    for (number, exponent, centre) in [
        (Number::Float(E2M1), 1, 0),
        (Number::Float(E2M3), 3, 0),
        (Number::Int(8), 0, 0),
        (Number::Uint(8), 0, 128),
        (Number::Uint(7), 0, 0),
    ] {
        let bytes = SignedBytes::of(number).unwrap();
        assert_eq!(bytes, SignedBytes { exponent, centre }, "{number}");
        for code in 0..1u32 << number.bits() {
            let value = number.decode(code) * 2f64.powi(exponent) - f64::from(centre);
            assert_eq!(f64::from(value as i8), value, "{number}");
            assert!(value.abs() <= bytes.largest(number), "{number}");
        }
    }
    for number in [
        Number::Float(E3M2),
        Number::Float(E4M3),
        Number::Float(BF16),
        Number::E8m0,
        Number::Int(9),
    ] {
        assert_eq!(SignedBytes::of(number), None, "{number}");
    }
}
