//! Says which kernel multiplies with a layer on a device, and why others do not.
//!
//! ```text
//! cargo run --release --example explain -- cli/assets/demo.safetensors sim:sm_90a 1 64
//! ```

#![allow(clippy::print_stdout)]

use std::error::Error;

use quantloom::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: explain CHECKPOINT [DEVICE] [M...]")?;
    let device = Device::named(&arguments.next().unwrap_or("auto".to_owned()))?;
    let tokens: Vec<usize> = arguments.map(|tokens| tokens.parse()).collect::<Result<_, _>>()?;
    let tokens = if tokens.is_empty() { vec![1, 32] } else { tokens };
    println!("device: {}", device.name());
    let checkpoint = Checkpoint::open(&path)?;
    for (name, layer) in checkpoint.layers() {
        let linear = layer?.prepare(&device)?;
        for &tokens in &tokens {
            println!("\n{name}, M = {tokens}\n{}", linear.explain(tokens));
        }
    }
    Ok(())
}
