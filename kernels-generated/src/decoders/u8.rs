//! `u8`: 8-bit integers; signed ones are stored with their top bit flipped.
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

/// The decoder of `u8` codes.
#[derive(Clone, Copy, Debug)]
pub struct U8;

impl CodeDecoder for U8 {
    const NAME: &'static str = "u8";
    const BITS: usize = 8;
    const INTEGERS: bool = true;
    const TABLE: bool = false;

    fn serves(&self, code: &Code) -> bool {
        matches!(code, Code::Number(Number::Uint(8) | Number::Int(8)))
    }

    #[inline(always)]
    fn codes<V: Vector>(&self, planes: &[[u8; 64]]) -> [V; 8] {
        [
            V::load(&planes[0]),
            V::load(&planes[1]),
            V::load(&planes[2]),
            V::load(&planes[3]),
            V::load(&planes[4]),
            V::load(&planes[5]),
            V::load(&planes[6]),
            V::load(&planes[7]),
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
