//! Computes a whole expert layer (mixture of experts) of a checkpoint: router, experts, sum.
//!
//! ```text
//! cargo run --release --example expert_layer -- tests/golden/moe_ct_w4a16.safetensors model.layers.0.mlp.experts
//! ```

#![allow(clippy::print_stdout)]

use std::error::Error;

use quantloom::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: expert_layer CHECKPOINT LAYER [DEVICE]";
    let (path, name) = (arguments.next().ok_or(usage)?, arguments.next().ok_or(usage)?);
    let device = Device::named(&arguments.next().unwrap_or("cpu".to_owned()))?;

    let checkpoint = Checkpoint::open(&path)?;
    let experts = checkpoint.expert_layer(&name)?;
    println!("{}", experts.layer()?);
    let op = experts.prepare(&device)?;

    // Two tokens: x is [2, H], the logits [2, E], y [2, H].
    let hidden = experts.sizes().hidden as usize;
    let x: Vec<f32> = (0..2 * hidden).map(|i| (i as f32 * 0.37).sin()).collect();
    let logits = experts.router()?.logits(&x);
    let routed = Routed::Logits(&logits);
    let y = op.forward(&ExpertCall { x: (&x).into(), routed, shared: None })?;
    println!("{}\ny[0, 0] = {}", op.explain(2), y[0]);
    Ok(())
}
