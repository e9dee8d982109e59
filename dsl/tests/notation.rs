//! Every example of the layout notation, packed by the reference and by a packer written from
//! the format's own description (`packers`), at ragged shapes too; and unpacked again.

use std::collections::BTreeMap;

use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::{PlainCodes, pack, unpack};
use quantloom_dsl::{Scheme, parse};

use crate::packers::*;

struct Example {
    name: &'static str,
    /// Widths of the code; `$b` in the clauses, and `$p` is 32 / b.
    bits: &'static [u32],
    clauses: &'static str,
    expect: fn(&PlainLayer) -> Tensors,
}

const SHAPES: &[(u64, u64, u64)] = &[
    (1, 16, 64),
    (1, 8, 320),
    (1, 1, 1),
    (1, 5, 37),
    (1, 13, 96),
    (1, 32, 31),
    (1, 2, 65),
    (1, 9, 100),
    (3, 6, 33),
];

const EXAMPLES: &[Example] = &[
    Example {
        name: "GPTQ 4 and 8 bit",
        bits: &[4, 8],
        clauses:
            "weight: u$b, zero: u$b + 1 u32 [n:$p | n, g, e] as \"qzeros\",
            scale: f16 per 1x32 [n, g, e] as \"scales\", pack: u32 [k:$p | n, k, e] as \"qweight\",",
        expect: gptq,
    },
    Example {
        name: "GPTQ 3 bit",
        bits: &[3],
        clauses: "weight: u3 - 4, scale: f16 per 1x32 [n, g, e] as \"scales\",
            pack: u32 [k:32 | n, w, k, e] as \"qweight\",",
        expect: gptq_3,
    },
    Example {
        name: "AWQ",
        bits: &[4],
        clauses: "weight: u4, zero: u4 u32 [n/2:4, n:2 | n, g, e] as \"qzeros\",
            scale: f16 per 1x64 [n, g, e] as \"scales\",
            pack: u32 [n/2:4, n:2 | n, k, e] as \"qweight\",",
        expect: awq,
    },
    Example {
        name: "compressed-tensors dense",
        bits: &[2, 3, 4, 5, 6, 7, 8],
        clauses: "weight: u$b, zero: u4 u32 [n:8 | g, n, e], scale: bf16 per 1x32 [g, n, e],
            pack: u32 [k:* | w, n, e] as \"weight_packed\",",
        expect: dense,
    },
    Example {
        name: "compressed-tensors aligned",
        bits: &[3, 5, 6, 7],
        clauses: "weight: u$b, scale: bf16 per 1x32 [g, n, e],
            pack: u32 [k:$p | k, n, e] as \"weight_packed\",",
        expect: aligned,
    },
    Example {
        name: "int4 kept in int8",
        bits: &[4],
        clauses: "weight: i4, scale: f32 per channel [n, e], pack: i8 [code, pad 4 = sign | k, n, e],",
        expect: int4_in_int8,
    },
    Example {
        name: "MXFP4, NVFP4, gpt-oss",
        bits: &[4],
        clauses: "weight: e2m1, scale: e8m0 per 1x32 [g, n, e], pack: u8 [k:2 | k, n, e],",
        expect: mxfp4,
    },
    Example {
        name: "FP6, 4 in 3 bytes",
        bits: &[6],
        clauses: "weight: e2m3, scale: e8m0 per 1x32 [g, n, e], pack: u8 [k:4 | w, k, n, e],",
        expect: fp6,
    },
    Example {
        name: "gate/up interleaved to halves",
        bits: &[4],
        clauses: "weight: e2m1, scale: e8m0 per 1x32 [g, n, n:2, e], pack: u8 [k:2 | k, n, n:2, e],",
        expect: |layer| halves(layer, |shard, row, _| 2 * row + shard),
    },
    Example {
        name: "gate/up concatenated to halves",
        bits: &[4],
        clauses: "weight: e2m1, scale: e8m0 per 1x32 [g, n, n//2, e],
            pack: u8 [k:2 | k, n, n/top:2, e],",
        expect: |layer| halves(layer, |shard, row, half| shard * half + row),
    },
    Example {
        name: "gate/up concatenated to interleaved",
        bits: &[4],
        clauses: "weight: e2m1, scale: e8m0 per 1x32 [g, n/top:2, n, e],
            pack: u8 [k:2 | k, n//2, n, e],",
        expect: interleaved,
    },
    Example {
        name: "older Quark FP6 record",
        bits: &[6],
        clauses: "weight: e3m2, scale: i8 per 1x32, pack: for [g, n, e] { scale, for [k/4:8] {
            u8 msf [code[4..6], k:4], u8 msf [code[0..4], k:2 | k/2:2] } },",
        expect: quark_fp6,
    },
    Example {
        name: "GGUF-like record",
        bits: &[4],
        clauses: "weight: u4 - 8, scale: f16 per 1x32,
            pack: for [g, n, e] { scale, u8 [k/16:2 | k:16] },",
        expect: gguf,
    },
    Example {
        name: "bit planes",
        bits: &[6],
        clauses: "weight: u6 - 32, scale: bf16 per 1x32 [g, n, e],
            pack: u8 [code[0..4], k:2 | k, n, e] as \"low\",
            pack: u8 [code[4..6], k:4 | k, n, e] as \"high\",",
        expect: planes,
    },
    Example {
        name: "most significant first, aligned",
        bits: &[5],
        clauses: "weight: u5, scale: bf16 per 1x32 [g, n, e], pack: u32 msf [k:6 | k, n, e],",
        expect: msf_aligned,
    },
    Example {
        name: "most significant first, dense",
        bits: &[5],
        clauses: "weight: u5, scale: bf16 per 1x32 [g, n, e], pack: u32 msf [k:32 | w, k, n, e],",
        expect: msf_dense,
    },
];

#[test]
fn examples_pack_as_their_formats_say() {
    for example in EXAMPLES {
        for &bits in example.bits {
            let scheme = scheme(example, bits);
            for &(e, n, k) in SHAPES {
                let shape = Shape { experts: e, n, k };
                let plain = random(&scheme, shape, e << 40 | n << 20 | k | u64::from(bits) << 50);
                let at = format!("{}, {bits} bits, shape {e}x{n}x{k}", example.name);
                let packed = pack(&scheme, &plain).unwrap_or_else(|error| panic!("{at}: {error}"));
                let expected: BTreeMap<String, Vec<u8>> =
                    (example.expect)(&PlainLayer::new(&plain, bits))
                        .into_iter()
                        .map(|(name, bytes)| (name.to_owned(), bytes))
                        .collect();
                for (name, bytes) in &expected {
                    let ours = packed.get(name).unwrap_or_else(|| panic!("{at}: no \"{name}\""));
                    let differ = ours.iter().zip(bytes).position(|(a, b)| a != b);
                    assert!(
                        ours == bytes,
                        "{at}, \"{name}\": {} bytes, expected {}; first difference {differ:?}\n{scheme}",
                        ours.len(),
                        bytes.len()
                    );
                }
                assert_eq!(packed.len(), expected.len(), "{at}");
                assert_eq!(unpack(&scheme, shape, &packed), Ok(plain), "{at}");
            }
        }
    }
}

fn scheme(example: &Example, bits: u32) -> Scheme {
    let clauses =
        example.clauses.replace("$b", &bits.to_string()).replace("$p", &(32 / bits).to_string());
    let text = format!("Example {{ {clauses} activation: bf16, experts: single }}");
    parse(&text).unwrap_or_else(|faults| panic!("{}\n{faults}", example.name))
}

/// Random codes of every component.
fn random(scheme: &Scheme, shape: Shape, seed: u64) -> PlainCodes {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut code = |bits: u32| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as u32 & (u32::MAX >> (32 - bits))
    };
    let components = scheme.components().into_iter().map(|component| {
        let granularity = scheme.granularity(component).unwrap();
        let (rows, cols) = granularity.elements(shape);
        let codes = (0..shape.experts * rows * cols).map(|_| code(granularity.bits)).collect();
        (component, codes)
    });
    PlainCodes { shape, components: components.collect() }
}
