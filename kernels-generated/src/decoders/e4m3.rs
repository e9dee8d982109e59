//! `e4m3`: the float format e4m3 (OCP OFP8 v1.0, section 5).
//!
//! Codes are stored whole.
//! Where they lie in a chunk says `quantloom_runtime::cpu::native`.
//!
//! Generated from the sequences of `quantloom_codegen::plan`; do not edit.
//! Again: `cargo run -p quantloom-codegen --features catalogue --bin quantloom-catalogue -- --write`.

use quantloom_dsl::Code;
use quantloom_dsl::format::{E4M3, Number};
use quantloom_runtime::cpu::decoder::CodeDecoder;
use quantloom_runtime::cpu::vector::Vector;

/// The decoder of `e4m3` codes.
#[derive(Clone, Copy, Debug)]
pub struct E4m3;

impl CodeDecoder for E4m3 {
    const NAME: &'static str = "e4m3";
    const BITS: usize = 8;
    const INTEGERS: bool = false;
    const TABLE: bool = false;

    fn serves(&self, code: &Code) -> bool {
        *code == Code::Number(Number::Float(E4M3))
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
    let ones = V::splat(0x07f0_0000);
    let magnitude = column.shr::<4>().and(ones);
    let normal = magnitude.add(V::splat(0x3c00_0000));
    let over = normal.add_f32(V::splat((-0.015625f32).to_bits()));
    normal
        .add_f32(over.and(over.sar::<31>()))
        .or(column.and(V::splat(0x8000_0000)))
        .or(magnitude.equal(ones))
}
