//! Every code of every type that numbers of groups may have becomes the f32 that its format says.

use quantloom_dsl::format::{FORMATS, FloatFormat, NUMBER_F32, Number, Variant};
use quantloom_dsl::layout::Component;

use super::{GroupParams, ParamKind};
use crate::ir::{Access, Address, Builder, Extent, LaunchConfig, Special, Width, Word, verify};
use crate::sim::{Arguments, Contents, SimulationOptions, run};
use crate::target::target;

const THREADS: u32 = 64;

/// Types of 8, 16 and 32 bits, as far as there is a way to f32.
fn numbers() -> Vec<GroupParams> {
    let named = FORMATS.iter().map(|row| row.format);
    let of = |exponent_bits, mantissa_bits, variant| FloatFormat {
        exponent_bits,
        mantissa_bits,
        variant,
    };
    let others = [
        of(4, 3, Variant::Fnuz),
        of(5, 2, Variant::Fnuz),
        of(5, 2, Variant::Fn),
        of(3, 4, Variant::Finite),
    ];
    let all = named.chain(others).map(Number::Float).chain([Number::E8m0]);
    let kind = ParamKind::Stored(Component::Scale(0));
    all.filter_map(|number| GroupParams::stored(kind, number, (1, 32), (16, 128))).collect()
}

/// Codes: all of them up to 16 bits, of 32 some of every exponent.
fn codes(number: Number) -> Vec<u32> {
    match number.bits() {
        32 => (0..1u32 << 16).map(|high| high << 16 | high.wrapping_mul(0x9e37) & 0xffff).collect(),
        bits => (0..1u32 << bits).collect(),
    }
}

/// Reads pairs of neighbouring numbers as a lane does that finds several groups, or one, in its words.
fn values(of: GroupParams, sm: &str, codes: &[u32], exponent: i32, single: bool) -> Vec<f32> {
    let bits = of.number.bits();
    let (per_word, words) = (32 / bits, if bits == 32 { 2 } else { 1 });
    // Lanes that share a word take a pair each, found by a shift.
    let (shifted, groups) = if single { (per_word / 2, 1) } else { (1, (per_word / 2).max(1)) };
    let (shifted, results) = (shifted.max(1), 2 * groups);
    let threads = codes.len() as u32 / results;
    let grid = [threads.div_ceil(THREADS), 1, 1].map(Extent::Constant);
    let launch =
        LaunchConfig { grid, threads: THREADS, min_blocks: 1, cluster: 1, programmatic: false };
    let mut b = Builder::new("values", "Numbers as f32.", target(sm).unwrap(), launch);
    let extent = [Extent::Constant(threads / shifted * words)];
    let from = b.buffer("codes", Word::U32, Access::Constant, &extent, "codes");
    let extent = [Extent::Constant(threads * results)];
    let to = b.buffer("values", Word::U32, Access::WriteOnce, &extent, "f32");
    let (block, thread) = (b.special(Special::Block(0)), b.special(Special::Thread));
    let thread = b.mad(block, THREADS, thread);
    let at = b.div(thread, shifted);
    let at = b.mul(at, words);
    let width = if words == 2 { Width::B64 } else { Width::B32 };
    let read = b.load(Address::new(from, at), width);
    let shift = (shifted > 1).then(|| {
        let place = b.rem(thread, shifted);
        b.mul(place, 2 * bits)
    });
    for group in 0..groups {
        let values = of.values(&mut b, 2, (&read, shift), group, exponent);
        let at = b.mul(thread, results);
        b.store(Address::new(to, at).plus(2 * group), &values, Width::B64, None);
    }
    let kernel = verify(b.finish()).unwrap_or_else(|refusals| panic!("{refusals}"));
    let bytes = codes.iter().flat_map(|code| code.to_le_bytes()[..bits as usize / 8].to_vec());
    let buffers = vec![Contents::from_bytes(bytes.collect()), Contents::poison(codes.len() * 4)];
    let mut arguments = Arguments { parameters: Vec::new(), buffers };
    run(&kernel, &mut arguments, &SimulationOptions::default())
        .unwrap_or_else(|fault| panic!("{fault}"));
    let floats = arguments.buffers[1].bytes.chunks_exact(4);
    floats.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn every_code_becomes_its_value() {
    let names: Vec<String> = numbers().iter().map(|of| of.number.to_string()).collect();
    for expected in ["f32", "f16", "bf16", "e4m3", "e4m3fnuz", "e5m2fnuz", "e8m0"] {
        assert!(names.iter().any(|name| name == expected), "{expected} is not in {names:?}");
    }
    for of in numbers() {
        let codes = codes(of.number);
        for sm in ["sm_80", "sm_90a"] {
            for exponent in [0, 14, -4] {
                for single in [true, false] {
                    let found = values(of, sm, &codes, exponent, single);
                    for (code, found) in codes.iter().zip(found) {
                        // The NaN of e8m0, as `power` says.
                        let value = match (of.number, code) {
                            (Number::E8m0, 255) => f64::INFINITY,
                            (number, code) => number.decode(*code),
                        };
                        let expected = (value * 2f64.powi(exponent)) as f32;
                        assert!(
                            found == expected
                                && found.is_sign_negative() == expected.is_sign_negative()
                                || found.is_nan() && expected.is_nan(),
                            "{} {code:#x} * 2^{exponent} on {sm}: {found:e}, expected {expected:e}",
                            of.number,
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn numbers_that_no_lane_can_read_are_not_kept() {
    let kind = ParamKind::Stored(Component::Scale(0));
    // Of blocks there is one number for all rows of a tile, as f32.
    let of = GroupParams::stored(kind, Number::E8m0, (128, 128), (16, 128)).unwrap();
    assert_eq!((of.number, of.rows), (NUMBER_F32, 128));
    assert!(
        GroupParams::stored(kind, Number::E8m0, (24, 128), (16, 128)).is_none(),
        "tiles of 16 rows"
    );
    assert!(
        GroupParams::stored(kind, NUMBER_F32, (1, 96), (16, 128)).is_none(),
        "k-tiles of 128 columns"
    );
    assert!(
        GroupParams::stored(kind, Number::Uint(8), (1, 128), (16, 128)).is_none(),
        "no way to f32"
    );
}
