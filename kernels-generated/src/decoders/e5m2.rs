//! `e5m2`: the float format e5m2.
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

/// The decoder of `e5m2` codes.
#[derive(Clone, Copy, Debug)]
pub struct E5m2;

impl CodeDecoder for E5m2 {
    const NAME: &'static str = "e5m2";
    const BITS: usize = 8;
    const INTEGERS: bool = false;
    const TABLE: bool = false;

    fn serves(&self, code: &Code) -> bool {
        *code == Code::Number(Number::Float(FloatFormat::new(5, 2, Variant::Ieee)))
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
    let exponents = V::splat(0x0f80_0000);
    let magnitude = column.shr::<3>().and(V::splat(0x0fe0_0000));
    let normal = magnitude.add(V::splat(0x3800_0000));
    let over = normal.add_f32(V::splat((-0.000061035156f32).to_bits()));
    normal
        .add_f32(over.and(over.sar::<31>()))
        .or(column.and(V::splat(0x8000_0000)))
        .or(magnitude.and(exponents).equal(exponents).and(V::splat(0x7f80_0000)))
}
