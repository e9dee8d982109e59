//! Correct kernels give the correct result with every seed, and the verifier accepts them.

use super::{Outcome, kernels, simulate};
use crate::ir::verify;
use crate::sim::InstructionClass;

#[test]
fn correct_kernels_give_correct_results() {
    for (name, case) in kernels::ALL {
        let case = case();
        if let Err(refusals) = verify(case.kernel.clone()) {
            panic!("{name}: {refusals}");
        }
        for seed in 0..5 {
            match simulate(&case, seed) {
                Outcome::Right(_) => {}
                Outcome::WrongResult(what) => panic!("{name}, seed {seed}: {what}"),
                Outcome::Fault(fault) => panic!("{name}, seed {seed}: {fault}"),
            }
        }
    }
}

/// A second launch on the workspace of the first: the counter wraps to 0.
#[test]
fn a_workspace_can_be_reused() {
    let mut case = kernels::split();
    for _ in 0..2 {
        let options = crate::sim::SimulationOptions::default();
        let kernel = verify(case.kernel.clone()).expect("a right kernel");
        crate::sim::run(&kernel, &mut case.arguments, &options).expect("right");
        assert_eq!(case.arguments.buffers[1].words(), case.expected[0].1);
    }
}

/// Counts that can be derived by hand.
#[test]
fn counts() {
    let Outcome::Right(report) = simulate(&kernels::product(), 0) else { panic!("right") };
    // 4 warps: one load of b by the first 2, one matrix load, 4 loads of sums each.
    assert_eq!(report.count(InstructionClass::Matrix), 4);
    assert_eq!(report.count(InstructionClass::Barrier), 8);
    // 16 rows of a times 32 words, 8 rows of b: each word once.
    let bytes: u64 = report
        .accesses
        .iter()
        .filter(|access| access.sectors.is_some())
        .map(|access| access.bytes)
        .sum();
    assert_eq!(bytes, 16 * 64 * 2 + 8 * 64 * 2 + 16 * 8 * 4);
    // Swizzled stores and matrix loads have no bank conflicts; the sums of y are read word by word.
    assert_eq!(report.conflicts(), 0, "{report}");
    // Four loads of 4 bytes by 32 lanes of each warp, in flight together.
    assert_eq!(report.bytes_in_flight, 4 * 4 * 32 * 4);
}
