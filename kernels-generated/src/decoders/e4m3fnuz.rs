//! `e4m3fnuz`: the float format e4m3fnuz.
//!
//! Codes are stored whole.
//! Where they lie in a chunk says `quantloom_runtime::cpu::native`.
//!
//! Generated from the sequences of `quantloom_codegen::plan`; do not edit.
//! Again: `cargo run -p quantloom-codegen --features catalogue --bin quantloom-catalogue -- --write`.

use quantloom_dsl::Code;
use quantloom_dsl::format::{FloatFormat, Number, Variant};
use quantloom_runtime::cpu::decoder::CodeDecoder;
use quantloom_runtime::cpu::vector::Vector;

/// The decoder of `e4m3fnuz` codes.
#[derive(Clone, Copy, Debug)]
pub struct E4m3fnuz;

impl CodeDecoder for E4m3fnuz {
    const NAME: &'static str = "e4m3fnuz";
    const BITS: usize = 8;
    const INTEGERS: bool = false;
    const TABLE: bool = false;

    fn serves(&self, code: &Code) -> bool {
        *code == Code::Number(Number::Float(FloatFormat::new(4, 3, Variant::Fnuz)))
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
        [
            value(codes.shl::<24>()),
            value(codes.shl::<16>()),
            value(codes.shl::<8>()),
            value(codes),
        ]
    }
}

/// The values of the codes in the top bits of each lane.
#[inline(always)]
fn value<V: Vector>(column: V) -> V {
    let top = V::splat(0x8000_0000);
    let magnitude = column.shr::<4>().and(V::splat(0x07f0_0000));
    let normal = magnitude.add(V::splat(0x3b80_0000));
    let over = normal.add_f32(V::splat((-0.0078125f32).to_bits()));
    let sign = column.and(top);
    normal.add_f32(over.and(over.sar::<31>())).or(sign).or(magnitude.or(sign).equal(top))
}
