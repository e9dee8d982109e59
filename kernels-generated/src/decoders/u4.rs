//! `u4`: 4-bit integers; signed ones are stored with their top bit flipped.
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

/// The decoder of `u4` codes.
#[derive(Clone, Copy, Debug)]
pub struct U4;

impl CodeDecoder for U4 {
    const NAME: &'static str = "u4";
    const BITS: usize = 4;
    const INTEGERS: bool = true;
    const TABLE: bool = false;

    fn serves(&self, code: &Code) -> bool {
        matches!(code, Code::Number(Number::Uint(4) | Number::Int(4)))
    }

    #[inline(always)]
    fn codes<V: Vector>(&self, planes: &[[u8; 64]]) -> [V; 8] {
        let plane = [
            V::load(&planes[0]),
            V::load(&planes[1]),
            V::load(&planes[2]),
            V::load(&planes[3]),
        ];
        let mask = V::splat(0x0f0f_0f0f);
        [
            plane[0].and(mask),
            plane[0].shr::<4>().and(mask),
            plane[1].and(mask),
            plane[1].shr::<4>().and(mask),
            plane[2].and(mask),
            plane[2].shr::<4>().and(mask),
            plane[3].and(mask),
            plane[3].shr::<4>().and(mask),
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
