//! `u7`: 7-bit integers; signed ones are stored with their top bit flipped.
//!
//! Codes are stored in planes: bits 0 to 3, bits 4 to 5 and bit 6.
//! Where they lie in a chunk says `quantloom_runtime::cpu::native`.
//!
//! Generated from the sequences of `quantloom_codegen::plan`; do not edit.
//! Again: `cargo run -p quantloom-codegen --features catalogue --bin quantloom-catalogue -- --write`.

use quantloom_dsl::Code;
use quantloom_dsl::format::Number;
use quantloom_runtime::cpu::decoder::CodeDecoder;
use quantloom_runtime::cpu::vector::Vector;

/// The decoder of `u7` codes.
#[derive(Clone, Copy, Debug)]
pub struct U7;

impl CodeDecoder for U7 {
    const NAME: &'static str = "u7";
    const BITS: usize = 7;
    const INTEGERS: bool = true;
    const TABLE: bool = false;

    fn serves(&self, code: &Code) -> bool {
        matches!(code, Code::Number(Number::Uint(7) | Number::Int(7)))
    }

    #[inline(always)]
    fn codes<V: Vector>(&self, planes: &[[u8; 64]]) -> [V; 8] {
        let low = [
            V::load(&planes[0]),
            V::load(&planes[1]),
            V::load(&planes[2]),
            V::load(&planes[3]),
        ];
        let middle = [V::load(&planes[4]), V::load(&planes[5])];
        let high = V::load(&planes[6]);
        let low_mask = V::splat(0x0f0f_0f0f);
        let middle_mask = V::splat(0x3030_3030);
        let high_mask = V::splat(0x4040_4040);
        [
            low[0]
                .and(low_mask)
                .or(middle[0].shl::<4>().and(middle_mask))
                .or(high.shl::<6>().and(high_mask)),
            low[0]
                .shr::<4>()
                .and(low_mask)
                .or(middle[0].shl::<2>().and(middle_mask))
                .or(high.shl::<5>().and(high_mask)),
            low[1]
                .and(low_mask)
                .or(middle[0].and(middle_mask))
                .or(high.shl::<4>().and(high_mask)),
            low[1]
                .shr::<4>()
                .and(low_mask)
                .or(middle[0].shr::<2>().and(middle_mask))
                .or(high.shl::<3>().and(high_mask)),
            low[2]
                .and(low_mask)
                .or(middle[1].shl::<4>().and(middle_mask))
                .or(high.shl::<2>().and(high_mask)),
            low[2]
                .shr::<4>()
                .and(low_mask)
                .or(middle[1].shl::<2>().and(middle_mask))
                .or(high.shl::<1>().and(high_mask)),
            low[3].and(low_mask).or(middle[1].and(middle_mask)).or(high.and(high_mask)),
            low[3]
                .shr::<4>()
                .and(low_mask)
                .or(middle[1].shr::<2>().and(middle_mask))
                .or(high.shr::<1>().and(high_mask)),
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
