//! Multiplies with each layer of a checkpoint, on a device that is chosen by its name.
//!
//! ```text
//! cargo run --release --example multiply -- cli/assets/demo.safetensors
//! cargo run --release --example multiply -- cli/assets/demo.safetensors sim:sm_90a
//! ```

#![allow(clippy::print_stdout)]

use std::error::Error;

use quantloom::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: multiply CHECKPOINT [DEVICE]")?;
    let device = Device::named(&arguments.next().unwrap_or("cpu".to_owned()))?;
    let checkpoint = Checkpoint::open(&path)?;
    for (name, layer) in checkpoint.layers() {
        let layer = layer?;
        let Shape { n, k, .. } = layer.shape();
        let linear = layer.prepare(&device)?;
        // Two tokens: x is [2, K], y is [2, N].
        let x: Vec<f32> = (0..2 * k).map(|i| (i as f32 * 0.37).sin()).collect();
        let y = linear.matmul(&x)?;
        println!("{name}: {n} x {k}, {}, y[0, 0] = {}", layer.scheme().name, y[0]);
    }
    Ok(())
}
