//! Quantises the float weights of a checkpoint, saves them in the scheme's own layout, and reads them back.
//!
//! ```text
//! cargo run --release --example quantise -- model.safetensors ct_w4a16 quantised.safetensors
//! ```

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;

use quantloom::prelude::*;
use quantloom::runtime::checkpoint::Tensors;
use quantloom::runtime::quantise::{candidates, quantise_checkpoint};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, scheme, to] = arguments.as_slice() else {
        return Err("usage: quantise CHECKPOINT SCHEME OUT".into());
    };
    let catalogue = quantloom::kernels::catalogue();
    let scheme = catalogue.iter().find(|known| known.name == *scheme).ok_or("no such scheme")?;
    let tensors = Tensors::open(Path::new(from))?;
    let chosen = candidates(&tensors, scheme);
    for layer in quantise_checkpoint(&tensors, scheme, &chosen, Path::new(to), &|_| {})? {
        println!(
            "{}: {} to {} bytes, {:.1} dB",
            layer.layer, layer.bytes.0, layer.bytes.1, layer.sqnr
        );
    }
    let checkpoint = Checkpoint::open(to)?;
    println!("{} layers read back", checkpoint.layers().count());
    Ok(())
}
