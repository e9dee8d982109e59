//! Products of every catalogue scheme on every instruction set of this machine, at ragged shapes,
//! against the f64 reference: with the families that were generated, and by the table of values.

use quantloom_dsl::Scheme;
use quantloom_runtime::conformance::Suite;
use quantloom_runtime::cpu::family::Families;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::device::{Backend, Device};

/// Whole and ragged panels, more of them than are read side by side; K of whole storage words, for
/// the packings that have no ragged form, more than a decoded block, and of whole steps of 64
/// columns, which the sets with matrix registers take. M: the products
/// that decode on the fly, a tile and its rest, more than one tile of every set.
fn check(scheme: &Scheme, families: Families, seeds: &[u64]) {
    let suite = Suite {
        shapes: vec![(24, 384), (70, 640), (32, 64)],
        tokens: vec![1, 2, 3, 5, 9, 17, 35],
        seeds: seeds.to_vec(),
        every: 1,
    };
    let device = |isa: Isa| Device::named(isa.name()).unwrap().with_families(families);
    let devices: Vec<Device> = Isa::present().map(device).collect();
    let backends: Vec<&dyn Backend> = devices.iter().map(|device| device as &dyn Backend).collect();
    for result in suite.run(scheme, &backends, &|_| {}) {
        let summary = result.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(summary.products >= 7 && summary.not_scheduled.is_empty(), "{}", scheme.name);
    }
}

#[test]
fn every_catalogue_scheme_multiplies_as_its_reference() {
    for scheme in quantloom_kernels::catalogue() {
        check(scheme, quantloom_kernels::FAMILIES, &[0, 4]);
    }
}

#[test]
fn a_table_serves_a_scheme_without_a_family() {
    for scheme in quantloom_kernels::catalogue() {
        check(scheme, &[], &[3]);
    }
}

/// Codes above 127 that have no offset to take off: the dot products take them unsigned.
#[test]
fn unsigned_codes_of_eight_bits_are_not_taken_for_signed() {
    let text = "unsigned {
        weight: u8,
        zero: u8 [g, n],
        scale: f16 per 1x128,
        pack: [k, n],
        activation: i8 { scale: f32 per token },
    }";
    check(&quantloom_dsl::parse(text).unwrap(), quantloom_kernels::FAMILIES, &[0, 4]);
}
