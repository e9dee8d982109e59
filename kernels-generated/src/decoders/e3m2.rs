//! `e3m2`: the float format e3m2 (OCP MX v1.0, section 5.3.2).
//!
//! Codes are stored in planes: bits 0 to 3 and bits 4 to 5.
//! Where they lie in a chunk says `quantloom_runtime::cpu::native`.
//!
//! Generated from the sequences of `quantloom_codegen::plan`; do not edit.
//! Again: `cargo run -p quantloom-codegen --features catalogue --bin quantloom-catalogue -- --write`.

use quantloom_dsl::Code;
use quantloom_dsl::format::{E3M2, Number};
use quantloom_runtime::cpu::decoder::CodeDecoder;
use quantloom_runtime::cpu::vector::Vector;

/// The decoder of `e3m2` codes.
#[derive(Clone, Copy, Debug)]
pub struct E3m2;

impl CodeDecoder for E3m2 {
    const NAME: &'static str = "e3m2";
    const BITS: usize = 6;
    const INTEGERS: bool = false;
    const TABLE: bool = false;

    fn serves(&self, code: &Code) -> bool {
        *code == Code::Number(Number::Float(E3M2))
    }

    #[inline(always)]
    fn codes<V: Vector>(&self, planes: &[[u8; 64]]) -> [V; 8] {
        let low = [
            V::load(&planes[0]),
            V::load(&planes[1]),
            V::load(&planes[2]),
            V::load(&planes[3]),
        ];
        let high = [V::load(&planes[4]), V::load(&planes[5])];
        let low_mask = V::splat(0x0f0f_0f0f);
        let high_mask = V::splat(0x3030_3030);
        [
            low[0].and(low_mask).or(high[0].shl::<4>().and(high_mask)),
            low[0].shr::<4>().and(low_mask).or(high[0].shl::<2>().and(high_mask)),
            low[1].and(low_mask).or(high[0].and(high_mask)),
            low[1].shr::<4>().and(low_mask).or(high[0].shr::<2>().and(high_mask)),
            low[2].and(low_mask).or(high[1].shl::<4>().and(high_mask)),
            low[2].shr::<4>().and(low_mask).or(high[1].shl::<2>().and(high_mask)),
            low[3].and(low_mask).or(high[1].and(high_mask)),
            low[3].shr::<4>().and(low_mask).or(high[1].shr::<2>().and(high_mask)),
        ]
    }

    #[inline(always)]
    fn values<V: Vector>(&self, codes: V) -> [V; 4] {
        [
            value(codes.shl::<26>()),
            value(codes.shl::<18>()),
            value(codes.shl::<10>()),
            value(codes.shl::<2>()),
        ]
    }
}

/// The values of the codes in the top bits of each lane.
#[inline(always)]
fn value<V: Vector>(column: V) -> V {
    let normal = column.shr::<5>().and(V::splat(0x03e0_0000)).add(V::splat(0x3e00_0000));
    let over = normal.add_f32(V::splat((-0.25f32).to_bits()));
    normal.add_f32(over.and(over.sar::<31>())).or(column.and(V::splat(0x8000_0000)))
}
