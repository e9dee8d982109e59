//! `e2m1`: the float format e2m1 (OCP MX v1.0, section 5.3.3).
//!
//! Codes are stored whole.
//! Where they lie in a chunk says `quantloom_runtime::cpu::native`.
//!
//! Generated from the sequences of `quantloom_codegen::plan`; do not edit.
//! Again: `cargo run -p quantloom-codegen --features catalogue --bin quantloom-catalogue -- --write`.

use quantloom_dsl::Code;
use quantloom_dsl::format::{E2M1, Number};
use quantloom_runtime::cpu::decoder::CodeDecoder;
use quantloom_runtime::cpu::vector::Vector;

/// The decoder of `e2m1` codes.
#[derive(Clone, Copy, Debug)]
pub struct E2m1;

/// The value of each code.
const TABLE: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0,
    -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

impl CodeDecoder for E2m1 {
    const NAME: &'static str = "e2m1";
    const BITS: usize = 4;
    const INTEGERS: bool = false;
    const TABLE: bool = true;

    fn serves(&self, code: &Code) -> bool {
        *code == Code::Number(Number::Float(E2M1))
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
        [
            codes.table_f32(&TABLE),
            codes.shr::<8>().table_f32(&TABLE),
            codes.shr::<16>().table_f32(&TABLE),
            codes.shr::<24>().table_f32(&TABLE),
        ]
    }
}
