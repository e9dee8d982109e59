//! Products of every catalogue scheme on every instruction set of this machine, at ragged shapes,
//! against the f64 reference: with the families that were generated, and by the table of values.

use quantloom_runtime::conformance::Suite;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::device::{Backend, Device};

/// Whole and ragged panels; K of whole storage words, for the packings that have no ragged form,
/// and of whole steps of 64 columns, which the sets with matrix registers take. M: the products
/// that decode on the fly, a tile and its rest, more than one tile of every set.
fn suite(seeds: Vec<u64>) -> Suite {
    Suite {
        shapes: vec![(24, 384), (37, 352), (32, 64)],
        tokens: vec![1, 2, 3, 5, 9, 17, 35],
        seeds,
        every: 1,
    }
}

fn check(families: bool, seeds: &[u64]) {
    for scheme in quantloom_kernels::catalogue() {
        let devices: Vec<Device> =
            Isa::present()
                .map(|isa| Device::named(isa.name()).unwrap())
                .map(|device| {
                    if families {
                        device.with_families(quantloom_kernels::FAMILIES)
                    } else {
                        device
                    }
                })
                .collect();
        let backends: Vec<&dyn Backend> =
            devices.iter().map(|device| device as &dyn Backend).collect();
        for result in suite(seeds.to_vec()).run(scheme, &backends, &|_| {}) {
            let summary = result.unwrap_or_else(|failure| panic!("{failure}"));
            assert!(summary.products >= 7 && summary.not_scheduled.is_empty(), "{}", scheme.name);
        }
    }
}

#[test]
fn every_catalogue_scheme_multiplies_as_its_reference() {
    check(true, &[0, 4]);
}

#[test]
fn a_table_serves_a_scheme_without_a_family() {
    check(false, &[3]);
}
