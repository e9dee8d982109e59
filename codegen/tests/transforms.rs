//! Transforms on the device: what the host packs, bit for bit, and back to the checkpoint's bytes;
//! for every scheme of the catalogue that schedules multiply.

#![cfg(feature = "jit")]
#![allow(clippy::print_stdout, reason = "a skipped part says so")]

mod kernels;

use std::path::Path;

use kernels::assembler;
use kernels::stored::Stored;
use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::{Binary, Body, Kernel, Op, Operand, Statement, Verified, verify};
use quantloom_codegen::schedule::Problem;
use quantloom_codegen::schedule::transform::{Direction, Part, transform};
use quantloom_codegen::target::target;
use quantloom_dsl::{Scheme, parse};

const DIRECTIONS: [Direction; 2] = [Direction::ToNative, Direction::FromNative];

fn catalogue() -> Vec<Scheme> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels-generated/schemes");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let texts = files.iter().map(|path| std::fs::read_to_string(path).unwrap());
    texts.map(|text| parse(&text).unwrap_or_else(|faults| panic!("{faults:?}"))).collect()
}

fn written(stored: &Stored, part: Part, direction: Direction) -> Kernel {
    transform(&stored.problem, &stored.scheme, part, direction).unwrap()
}

fn verified(kernel: Kernel) -> Verified<Kernel> {
    verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"))
}

/// N and K that no tile divides, K that ends inside of a lane's columns and of a group, odd N.
#[test]
fn the_device_packs_as_the_host_does() {
    let mut names = Vec::new();
    for scheme in catalogue() {
        for activation in &scheme.activations {
            for shape in [(41, 200), (48, 520), (16, 8), (136, 1288)] {
                let Some(stored) = Stored::draw(&scheme, activation, "sm_90a", shape) else {
                    continue;
                };
                names.push(scheme.name.clone());
                for &part in stored.parts() {
                    for direction in DIRECTIONS {
                        let kernel = verified(written(&stored, part, direction));
                        let wrong = stored.check(&kernel, part, direction);
                        wrong.unwrap_or_else(|wrong| {
                            panic!("{} {shape:?}: {wrong}\n{kernel}", scheme.name)
                        });
                    }
                }
            }
        }
    }
    names.dedup();
    for name in ["awq4", "ct_w4a16", "ct_w4a16_asym", "gptq4_v1", "gptq4_v2"] {
        assert!(names.iter().any(|known| known == name), "{name} is not among {names:?}");
    }
}
