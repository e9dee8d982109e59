//! A scheme of your own: declared as a type, filled with random weights, multiplied, and compared with the
//! scalar reference that defines it.
//!
//! ```text
//! cargo run --release --example own_scheme
//! ```

#![allow(clippy::print_stdout)]

use std::error::Error;

use quantloom::prelude::*;
use quantloom_tools::conformance::Suite;

quantloom::scheme! {
    /// int5 weights in groups of 40 columns, a zero point a group, x quantised to int8.
    pub W5A8 {
        weight:     u5,
        zero:       u5,
        scale:      f16 per 1x40,
        pack:       [n, k],
        activation: i8 { scale: f32 per token },
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let scheme = W5A8::scheme().ok_or("a scheme with errors does not compile")?;
    println!("{scheme}{:.3} bits a weight", scheme.bits_per_weight());
    // Random layers of 48 x 400, M = 1 and 5, on the CPU and on simulated GPUs.
    let suite = Suite { shapes: vec![(48, 400)], tokens: vec![1, 5], seeds: vec![0], every: 1 };
    for name in ["cpu", "sim:sm_90a", "sim:gfx942", "sim:wgsl"] {
        let device = Device::named(name)?;
        for result in suite.run(scheme, &[device.backend()], &|_| {}) {
            let done = result?;
            println!("{name}: {} results, at most {:.2} of the bound", done.elements, done.share);
        }
    }
    Ok(())
}
