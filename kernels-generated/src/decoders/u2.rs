//! `u2`: 2-bit integers; signed ones are stored with their top bit flipped.
//!
//! Codes are stored whole.
//! Where they lie in a chunk says `quantloom_runtime::cpu::native`.
//!
//! Generated from the sequences of `quantloom_codegen::plan`; do not edit.
//! Again: `cargo run -p quantloom-codegen --features catalogue --bin quantloom-catalogue -- --write`.

use quantloom_dsl::Code;
use quantloom_dsl::format::Number;
use quantloom_runtime::cpu::decoder::CodeDecoder;
use quantloom_runtime::cpu::vector::Vector;

/// The decoder of `u2` codes.
#[derive(Clone, Copy, Debug)]
pub struct U2;

impl CodeDecoder for U2 {
    const NAME: &'static str = "u2";
    const BITS: usize = 2;
    const INTEGERS: bool = true;
    const TABLE: bool = false;

    fn serves(&self, code: &Code) -> bool {
        matches!(code, Code::Number(Number::Uint(2) | Number::Int(2)))
    }

    #[inline(always)]
    fn codes<V: Vector>(&self, planes: &[[u8; 64]]) -> [V; 8] {
        let plane = [V::load(&planes[0]), V::load(&planes[1])];
        let mask = V::splat(0x0303_0303);
        [
            plane[0].and(mask),
            plane[0].shr::<2>().and(mask),
            plane[0].shr::<4>().and(mask),
            plane[0].shr::<6>().and(mask),
            plane[1].and(mask),
            plane[1].shr::<2>().and(mask),
            plane[1].shr::<4>().and(mask),
            plane[1].shr::<6>().and(mask),
        ]
    }

    #[inline(always)]
    fn values<V: Vector>(&self, codes: V) -> [V; 4] {
        let byte = V::splat(0xff);
        [
            codes.and(byte).to_f32(),
            codes.shr::<8>().and(byte).to_f32(),
            codes.shr::<16>().and(byte).to_f32(),
            codes.shr::<24>().to_f32(),
        ]
    }
}
