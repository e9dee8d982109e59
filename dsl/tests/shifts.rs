//! Levels of shifts, and offsets of integer scales: what they mean, and what a quantiser makes of them.

use quantloom_dsl::format::{F32, NUMBER_F16, Number};
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::{PlainCodes, dequantise, quantise};
use quantloom_dsl::{
    Activation, Code, Group, ScaleLevel, ScaleRule, ScaleType, Scheme, SchemeBuilder, ShiftLevel,
    parse, parse_layout,
};

fn scheme(clauses: &str) -> Scheme {
    let text = format!("s {{ {clauses}, pack: u8 [k:* | w, n], activation: bf16 }}");
    parse(&text).unwrap_or_else(|faults| panic!("{text}\n{faults}"))
}

/// Codes without a pattern; those of f16 are finite.
fn codes(scheme: &Scheme, shape: Shape) -> PlainCodes {
    let mut state = 7u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    let of = |component: Component| {
        let granularity = scheme.granularity(component).unwrap();
        let (rows, cols) = granularity.elements(shape);
        let mask =
            if granularity.bits == 16 { 0xbbff } else { u32::MAX >> (32 - granularity.bits) };
        (component, (0..rows * cols).map(|_| next() & mask).collect())
    };
    PlainCodes { shape, components: scheme.components().into_iter().map(of).collect() }
}

/// The clauses of a scheme, the rows and columns that share a number of each component after the code,
/// and a weight from the codes.
type Meaning = (&'static str, &'static [(Component, [usize; 2])], fn(&[u32]) -> f64);

const SCALE: [Component; 2] = [Component::Scale(0), Component::Scale(1)];
const SHIFT: [Component; 3] = [Component::Shift(0), Component::Shift(1), Component::Shift(2)];

/// The number of a code of f16, without the table of formats.
fn f16(code: u32) -> f64 {
    let (exponent, mantissa) = ((code >> 10 & 31) as i32, f64::from(code & 1023));
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
    };
    if code >> 15 == 1 { -magnitude } else { magnitude }
}

/// A signed integer of 4 bits.
fn i4(code: u32) -> f64 {
    f64::from(code) - if code > 7 { 16.0 } else { 0.0 }
}

const MEANINGS: &[Meaning] = &[
    (
        "weight: u4, scale: u6 per 1x8, scale: f16 per 1x64, shift: -u6 per 1x8, shift: f16 per 1x64",
        &[(SCALE[0], [1, 8]), (SCALE[1], [1, 64]), (SHIFT[0], [1, 8]), (SHIFT[1], [1, 64])],
        |c| f64::from(c[0]) * f64::from(c[1]) * f16(c[2]) - f64::from(c[3]) * f16(c[4]),
    ),
    (
        "weight: u3 - 4, scale: u6 - 32 per 1x16, scale: f16 per 1x64",
        &[(SCALE[0], [1, 16]), (SCALE[1], [1, 64])],
        |c| (f64::from(c[0]) - 4.0) * (f64::from(c[1]) - 32.0) * f16(c[2]),
    ),
    (
        "weight: u2, scale: i4 + 3 per 2x4, shift: f16 per 1x16, shift: -u4 - 9 per 2x32,
         shift: -i4 + 2 per channel",
        &[(SCALE[0], [2, 4]), (SHIFT[0], [1, 16]), (SHIFT[1], [2, 32]), (SHIFT[2], [1, 1 << 20])],
        |c| {
            let level = -(f64::from(c[3]) - 9.0);
            f64::from(c[0]) * (i4(c[1]) + 3.0) + f16(c[2]) * level * -(i4(c[4]) + 2.0)
        },
    ),
    (
        "weight: u4 - 8, zero: u4 per 1x16, scale: f16 per channel, shift: -f16 per 1x32",
        &[(Component::Zero, [1, 16]), (SCALE[0], [1, 1 << 20]), (SHIFT[0], [1, 32])],
        |c| (f64::from(c[0]) - 8.0 - f64::from(c[1])) * f16(c[2]) - f16(c[3]),
    ),
];

/// Every weight of ragged shapes, computed from raw codes and group numbers. Products of a code of 4, one
/// of 6 and one of 11 bits are exact.
#[test]
fn weights_are_what_levels_signs_and_offsets_say() {
    for (clauses, parts, meaning) in MEANINGS {
        let (scheme, shape) = (scheme(clauses), Shape::matrix(5, 150));
        let plain = codes(&scheme, shape);
        let w = dequantise(&scheme, &plain).unwrap();
        for (at, w) in w.iter().enumerate() {
            let (n, k) = (at / 150, at % 150);
            let part = |(component, [rows, cols]): &(Component, [usize; 2])| {
                plain.of(*component)[n / rows * 150usize.div_ceil(*cols) + k / cols]
            };
            let mut of = vec![plain.of(Component::Code)[at]];
            of.extend(parts.iter().map(part));
            assert_eq!(*w, meaning(&of), "{clauses}: w[{n}, {k}] of {of:?}");
        }
    }
}

/// A group index names a group of each level.
#[test]
fn an_index_names_groups_of_shift_levels() {
    let clauses = "weight: u4, scale: f16 per 1x8, shift: -u6 - 3 per 1x8, shift: f16 per 1x16, \
                   index: i32";
    let (scheme, shape) = (scheme(clauses), Shape::matrix(2, 32));
    let mut plain = codes(&scheme, shape);
    let index: Vec<u32> = (0..32).map(|k| k * 7 % 2).collect();
    plain.components.insert(Component::Index, index.clone());
    let w = dequantise(&scheme, &plain).unwrap();
    for (at, w) in w.iter().enumerate() {
        let (n, group) = (at / 32, index[at % 32] as usize);
        let of = |component: Component, groups: usize| plain.of(component)[n * groups + group];
        let scale = f16(of(SCALE[0], 4));
        let shift = -(f64::from(of(SHIFT[0], 4)) - 3.0) * f16(of(SHIFT[1], 2));
        assert_eq!(*w, f64::from(plain.of(Component::Code)[at]) * scale + shift, "{at}");
    }
    plain.components.insert(Component::Index, vec![2; 32]);
    // The coarser level has two groups.
    assert!(dequantise(&scheme, &plain).is_err());
}

/// Every sign, offset, group and layout prints as what reads back, and no two forms as the same text.
#[test]
fn forms_print_back_to_themselves() {
    let mut printed = std::collections::BTreeSet::new();
    let mut count = 0;
    for number in ["u6", "i4", "u6 - 32", "u6 + 5", "i8 - 3", "f16", "e4m3"] {
        for (sign, group) in [("", ""), ("-", ""), ("-", " per 1x16"), ("", " per tensor")] {
            for second in ["f16", "-bf16 per 1x256", "-u4 - 15 per 1x256", "e5m2 [g, n] as \"m\""] {
                let scale =
                    if number.contains('f') || number == "e4m3" { "u6 - 32" } else { number };
                let text = format!(
                    "weight: u4, scale: {scale} per 1x32, scale: f16 per 1x256, \
                     shift: {sign}{number}{group}, shift: {second}, shift: f32 per tensor"
                );
                let scheme = scheme(&text);
                let again = parse(&scheme.to_string()).unwrap();
                assert_eq!(again, scheme, "{text}\n{scheme}");
                printed.insert(scheme.to_string());
                count += 1;
            }
        }
    }
    assert_eq!(printed.len(), count);
}

#[test]
fn levels_can_be_built() {
    let level = |number, offset, columns| ScaleLevel {
        number: ScaleType::Number(number),
        offset,
        group: Group::along_k(columns),
        divide: false,
        rule: ScaleRule::amax(31.0),
        stored: true,
    };
    let shift = |number, negative, columns| ShiftLevel {
        number,
        offset: 0,
        negative,
        group: Group::along_k(columns),
    };
    let built = SchemeBuilder::new("s", Code::Number(Number::Uint(4)), 0)
        .scale(level(Number::Uint(6), 32, 32))
        .scale(level(NUMBER_F16, 0, 256))
        .shift(shift(Number::Uint(6), true, 32))
        .shift(shift(NUMBER_F16, false, 256))
        .pack(parse_layout("u8 [k:* | w, n]", Component::Code).unwrap())
        .activation(Activation::Float(NUMBER_F16))
        .finish()
        .unwrap();
    let text = "s { weight: u4, scale: u6 - 32 per 1x32 from amax / 31,
        scale: f16 per 1x256 from amax / 31, shift: -u6, shift: f16 per 1x256,
        pack: u8 [k:* | w, n], activation: f16 }";
    assert_eq!(built, parse(text).unwrap());
    let names: Vec<&str> = built.stores.iter().map(|store| store.name.as_str()).collect();
    assert_eq!(
        names,
        ["weight", "weight_scale", "weight_scale_2", "weight_shift", "weight_shift_2"]
    );
}

/// The coarser level is the largest minimum over 63, the finer one the minimum in its units; a minimum
/// above 0 has no code of a level that is subtracted.
#[test]
fn minima_are_codes_of_their_largest() {
    let lows = [-63.0, -31.5, -0.4, 5.0];
    let row = |low: f64| (0..8).map(move |k| low + f64::from(k));
    let w: Vec<f64> = lows.into_iter().flat_map(row).collect();
    let of = |shifts: &str| {
        let scheme = scheme(&format!("weight: u4, scale: f16 per 1x8, {shifts}"));
        let plain = quantise(&scheme, Shape::matrix(1, 32), &w, F32, None).unwrap();
        let coarse = f16(plain.of(SHIFT[1])[0]);
        (plain.of(SHIFT[0]).to_vec(), coarse, dequantise(&scheme, &plain).unwrap())
    };
    let (fine, coarse, decoded) = of("shift: -u6, shift: f16 per 1x32");
    assert_eq!((fine, coarse), (vec![63, 32, 0, 0], 1.0));
    for (w, decoded) in w.iter().zip(&decoded) {
        assert!((w - decoded).abs() <= 0.8, "{w}: {decoded}");
    }
    // The sign may be that of the other level; an offset gives a level both signs.
    let (fine, coarse, _) = of("shift: u6, shift: -f16 per 1x32");
    assert_eq!((fine, coarse), (vec![63, 32, 0, 0], 1.0));
    let (fine, coarse, _) = of("shift: u6 - 31, shift: f16 per 1x32");
    assert_eq!((fine, coarse), (vec![0, 16, 31, 33], NUMBER_F16.round(63.0 / 31.0)));
    // Without a minimum below 0 there is nothing to subtract.
    let scheme = scheme("weight: u4, scale: f16 per 1x8, shift: -u6, shift: f16 per 1x16");
    let plain = quantise(&scheme, Shape::matrix(1, 16), &[3.0; 16], F32, None).unwrap();
    assert_eq!((plain.of(SHIFT[0]), plain.of(SHIFT[1])), (&[0, 0][..], &[0][..]));
    let w = dequantise(&scheme, &plain).unwrap();
    assert!(w.iter().all(|w| (w - 3.0).abs() < 0.01), "{w:?}");
}

/// A scale with an offset is the nearest number, offset included; zeros have the scale 0.
#[test]
fn a_scale_is_stored_with_its_offset() {
    let scheme = scheme(
        "weight: i4, scale: u6 - 32 per 1x4 from amax / 7, scale: f32 per 1x16 from amax / 217",
    );
    let w: Vec<f64> =
        [31.0, 10.2, 0.0, 1.0].into_iter().flat_map(|s| [7.0 * s, 0.0, -s, s]).collect();
    let plain = quantise(&scheme, Shape::matrix(1, 16), &w, F32, None).unwrap();
    assert_eq!(plain.of(SCALE[0]), [63, 42, 32, 33]);
    let decoded = dequantise(&scheme, &plain).unwrap();
    assert_eq!(decoded[..4], [217.0, 0.0, -31.0, 31.0]);
    assert_eq!(decoded[8..], [0.0, 0.0, 0.0, 0.0, 7.0, 0.0, -1.0, 1.0]);
}
