//! The checked-in decoders on every instruction set of this machine: all codes at all places of a
//! chunk, packed here by the words of the layout's description and not by the layout algebra.

use quantloom_dsl::Code;
use quantloom_dsl::format::Number;
use quantloom_kernels::DECODERS;
use quantloom_runtime::cpu::decoder::DynDecoder;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::cpu::kernels::{Groups, PanelScales, Segment};

const ROWS: usize = 16;
const COLUMNS: usize = 32;

/// Planes of 8, 4, 2, 1 bits, low bits first; byte b of vector v holds row b / 4, and its field i
/// column `4 (v fields + i) + b % 4`.
fn pack(bits: usize, code: &dyn Fn(usize, usize) -> u32) -> Vec<[u8; 64]> {
    let mut vectors = Vec::new();
    let mut low = 0;
    for width in [8, 4, 2, 1].into_iter().filter(|width| bits & width != 0) {
        let fields = 8 / width;
        for v in 0..width {
            let byte = |b: usize| {
                (0..fields).fold(0u32, |byte, i| {
                    let code = code(b / 4, 4 * (v * fields + i) + b % 4);
                    byte | (code >> low & ((1 << width) - 1)) << (i * width)
                }) as u8
            };
            vectors.push(std::array::from_fn(byte));
        }
        low += width;
    }
    vectors
}

fn number(decoder: &dyn DynDecoder) -> Number {
    Number::from_name(decoder.name()).unwrap_or_else(|| panic!("{}", decoder.name()))
}

#[test]
fn every_code_is_decoded_at_every_place() {
    let ones = [[0x3f80u16; ROWS]];
    for decoder in DECODERS {
        let (number, bits) = (number(*decoder), decoder.bits());
        for isa in Isa::present() {
            // A chunk has 512 places: a step of an odd number walks through all codes.
            for step in 0..1usize << bits {
                let code = |row: usize, column: usize| {
                    ((row * COLUMNS + column) * 3 + step) as u32 & number.mask()
                };
                let planes = pack(bits, &code);
                let groups =
                    Groups { columns: COLUMNS, scales: PanelScales::Bf16(&ones), add: None };
                let mut values = [[0.0f32; ROWS]; COLUMNS];
                let segment = Segment { planes: &planes, first: 0, groups };
                decoder.decode_values(isa, segment, &mut values, 1);
                for (column, values) in values.iter().enumerate() {
                    for (row, found) in values.iter().enumerate() {
                        let code = code(row, column);
                        let expected = number.decode(code) as f32;
                        let same = *found == expected || found.is_nan() && expected.is_nan();
                        let name = decoder.name();
                        assert!(
                            same,
                            "{name} on {isa}: code {code:#x} at row {row}, column {column} gives {found}, not {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn codes_come_out_as_they_went_in() {
    for decoder in DECODERS {
        let mask = number(*decoder).mask();
        let code = |row: usize, column: usize| (row * 37 + column * 11) as u32 & mask;
        let mut out = [[0u8; 64]; 8];
        decoder.decode_codes(Isa::Portable, &pack(decoder.bits(), &code), None, &mut out, 1);
        for (at, found) in out.as_flattened().iter().enumerate() {
            let (row, column) = (at % 64 / 4, at / 64 * 4 + at % 4);
            let name = decoder.name();
            assert_eq!(u32::from(*found), code(row, column), "{name}: row {row}, column {column}");
        }
    }
}

/// Each code type is served by exactly one decoder: its own, integers of a width by one.
#[test]
fn a_code_type_has_one_family() {
    for decoder in DECODERS {
        let own = number(*decoder);
        let mut codes = vec![own];
        if let Number::Uint(bits) = own {
            codes.push(Number::Int(bits));
        }
        for number in codes {
            let serving = DECODERS.iter().filter(|other| other.serves(&Code::Number(number)));
            let serving: Vec<&str> = serving.map(|other| other.name()).collect();
            assert_eq!(serving, [decoder.name()], "{number}");
        }
    }
    for scheme in quantloom_kernels::catalogue() {
        let serving = DECODERS.iter().filter(|decoder| decoder.serves(&scheme.weight.code));
        assert_eq!(serving.count(), 1, "{}", scheme.name);
    }
}
