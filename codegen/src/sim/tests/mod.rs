//! Tests of the simulator: small kernels of each kind (`kernels`) give the correct result with
//! every seed (`correct`); the same kernels with an injected fault are reported by the right
//! detector (`faults`). `tmem` has both of tensor memory.

mod arithmetic;
mod correct;
mod faults;
mod guess;
mod kernels;
mod tmem;

use super::{Arguments, Fault, Report, SimulationOptions, run_unverified};
use crate::ir::Kernel;

/// A kernel, its arguments, and the expected outputs.
struct Case {
    kernel: Kernel,
    arguments: Arguments,
    /// Number of a buffer and its words.
    expected: Vec<(usize, Vec<u32>)>,
}

/// The outcome of a run.
#[derive(Debug)]
enum Outcome {
    Right(Report),
    WrongResult(String),
    Fault(Box<Fault>),
}

impl Outcome {
    /// The detector that reported a fault; `right` if none did.
    fn detector(&self) -> &'static str {
        match self {
            Self::Right(_) => "right",
            Self::WrongResult(_) => "result",
            Self::Fault(fault) => fault.kind.detector(),
        }
    }
}

fn simulate(case: &Case, seed: u64) -> Outcome {
    let mut arguments = case.arguments.clone();
    let options = SimulationOptions { seed, limit: 1 << 20, ..SimulationOptions::default() };
    let report = match run_unverified(&case.kernel, &mut arguments, &options) {
        Ok(report) => report,
        Err(fault) => return Outcome::Fault(fault),
    };
    for (buffer, expected) in &case.expected {
        let got = arguments.buffers[*buffer].words();
        if let Some(at) = (0..expected.len()).find(|&at| got[at] != expected[at]) {
            let name = &case.kernel.buffers[*buffer].name;
            let (got, want) = (got[at], expected[at]);
            return Outcome::WrongResult(format!("{name}[{at}] = {got:#x}, expected {want:#x}"));
        }
    }
    Outcome::Right(report)
}
