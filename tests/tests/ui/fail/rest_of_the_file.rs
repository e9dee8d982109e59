//! A faulty scheme is a type all the same: what uses it is checked, and only real mistakes show.

mod schemes {
    quantloom::scheme! {
        pub W4 {
            weight: u44,
            pack: u32 [k:8 | k, n],
            activation: bf16,
        }
    }
}

use quantloom::prelude::*;
use schemes::W4;

fn multiply(layer: &Layer, x: &[f32]) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let weight: Weight<W4> = W4::load(layer)?.prepare(&Device::cpu())?;
    Ok(weight.matmul(x)?)
}

fn main() {
    let _ = W4::default();
    let text: u32 = W4::TEXT;
}
