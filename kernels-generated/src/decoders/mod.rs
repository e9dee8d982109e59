//! The decoders of the catalogue's code types: a file each.
//!
//! In: the planes of a chunk of codes. Out: codes, and values. [`DECODERS`] is for schemes that are
//! known only at run time; a declared scheme names its own. [`u4`] is a good one to read first.
//!
//! Generated; do not edit.
//! Again: `cargo run -p quantloom-codegen --features catalogue --bin quantloom-catalogue -- --write`.

pub mod u2;
pub mod u3;
pub mod u4;
pub mod u5;
pub mod u6;
pub mod u7;
pub mod u8;
pub mod e2m1;
pub mod e2m3;
pub mod e3m2;
pub mod e3m4;
pub mod e4m3;
pub mod e4m3fnuz;
pub mod e5m2;

use quantloom_runtime::cpu::decoder::Decoders;

/// Every decoder of this crate: `CpuDevice::best().with_decoders(DECODERS)`.
pub static DECODERS: Decoders = &[
    &u2::U2,
    &u3::U3,
    &u4::U4,
    &u5::U5,
    &u6::U6,
    &u7::U7,
    &u8::U8,
    &e2m1::E2m1,
    &e2m3::E2m3,
    &e3m2::E3m2,
    &e3m4::E3m4,
    &e4m3::E4m3,
    &e4m3fnuz::E4m3fnuz,
    &e5m2::E5m2,
];
