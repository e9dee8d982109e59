//! `u3`: 3-bit integers; signed ones are stored with their top bit flipped.
//!
//! Codes are stored in planes: bits 0 to 1 and bit 2.
//! Where they lie in a chunk says `quantloom_runtime::cpu::native`.
//!
//! Generated from the sequences of `quantloom_codegen::plan`; do not edit.
//! Again: `cargo run -p quantloom-codegen --features catalogue --bin quantloom-catalogue -- --write`.

use quantloom_dsl::Code;
use quantloom_dsl::format::Number;
use quantloom_runtime::cpu::decoder::CodeDecoder;
use quantloom_runtime::cpu::vector::Vector;

/// The decoder of `u3` codes.
#[derive(Clone, Copy, Debug)]
pub struct U3;

impl CodeDecoder for U3 {
    const NAME: &'static str = "u3";
    const BITS: usize = 3;
    const INTEGERS: bool = true;
    const TABLE: bool = false;

    fn serves(&self, code: &Code) -> bool {
        matches!(code, Code::Number(Number::Uint(3) | Number::Int(3)))
    }

    #[inline(always)]
    fn codes<V: Vector>(&self, planes: &[[u8; 64]]) -> [V; 8] {
        let low = [V::load(&planes[0]), V::load(&planes[1])];
        let high = V::load(&planes[2]);
        let low_mask = V::splat(0x0303_0303);
        let high_mask = V::splat(0x0404_0404);
        [
            low[0].and(low_mask).or(high.shl::<2>().and(high_mask)),
            low[0].shr::<2>().and(low_mask).or(high.shl::<1>().and(high_mask)),
            low[0].shr::<4>().and(low_mask).or(high.and(high_mask)),
            low[0].shr::<6>().and(low_mask).or(high.shr::<1>().and(high_mask)),
            low[1].and(low_mask).or(high.shr::<2>().and(high_mask)),
            low[1].shr::<2>().and(low_mask).or(high.shr::<3>().and(high_mask)),
            low[1].shr::<4>().and(low_mask).or(high.shr::<4>().and(high_mask)),
            low[1].shr::<6>().and(low_mask).or(high.shr::<5>().and(high_mask)),
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
