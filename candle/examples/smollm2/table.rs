//! The model quantised again, by scheme: bits a weight, and perplexity of a passage.

use std::error::Error;
use std::path::Path;

use candle_core::{DType, Device, IndexOp as _, Result as CandleResult, Tensor};
use quantloom_candle::quantloom::prelude::{Checkpoint, Layer};
use quantloom_candle::quantloom::runtime::checkpoint::Tensors;
use quantloom_candle::quantloom::runtime::quantise::{candidates, quantise_checkpoint};
use quantloom_candle::{QuantLinear, dequantize};

use crate::compare::Float;
use crate::llama::{Linear, Llama};
use crate::schemes::{SCHEMES, bits, scheme_of};
use crate::text;

/// The beginning of "Alice's Adventures in Wonderland" (Lewis Carroll, 1865).
const PASSAGE: &str = include_str!("passage.txt");

/// Prints the table.
pub(crate) fn table(path: &Path) -> Result<(), Box<dyn Error>> {
    let checkpoint = Checkpoint::open(path)?;
    let tokens = text::tokens(&text::tokenizer(path)?, PASSAGE)?;
    let folder = tempfile::tempdir()?;
    let floats = folder.path().join("floats.safetensors");
    let names = write_floats(&checkpoint, &floats)?;
    println!("Perplexity of {} tokens, {} matrices quantised again:\n", tokens.len(), names.len());
    println!("| matrices | bits a weight | perplexity |\n|---|---|---|");
    let row = |what: &str, bits: f64, perplexity: f64| {
        println!("| {what} | {bits:.2} | {perplexity:.2} |")
    };

    let float = |layer: &Layer| -> CandleResult<Linear> { Ok(Box::new(Float::new(layer)?)) };
    row("f32, as the file decodes", 32.0, perplexity(&checkpoint, &tokens, &float)?);
    let own = |layer: &Layer| -> CandleResult<Linear> {
        Ok(Box::new(QuantLinear::from_layer(layer, &Device::Cpu)?))
    };
    let stored = bits(&checkpoint, &names)?;
    row("the file's own, products by Quantloom", stored, perplexity(&checkpoint, &tokens, &own)?);

    for (what, scheme) in SCHEMES {
        let scheme = scheme_of(scheme)?;
        let tensors = Tensors::open(&floats)?;
        let out = folder.path().join("quantised.safetensors");
        quantise_checkpoint(&tensors, &scheme, &candidates(&tensors, &scheme), &out, &|_| {})?;
        let quantised = Checkpoint::open(&out)?;
        let again = |layer: &Layer| -> CandleResult<Linear> {
            // The embedding, which is the output's weight too, is the file's.
            let layer = quantised.layer(layer.name()).unwrap_or(layer);
            Ok(Box::new(QuantLinear::from_layer(layer, &Device::Cpu)?))
        };
        let perplexity = perplexity(&checkpoint, &tokens, &again)?;
        row(what, bits(&quantised, &names)?, perplexity);
        drop(quantised);
        std::fs::remove_file(&out)?;
    }
    Ok(())
}

/// Writes the blocks' matrices as `f32`; their layers' names.
fn write_floats(checkpoint: &Checkpoint, to: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut tensors = std::collections::HashMap::new();
    let mut names = Vec::new();
    for (name, layer) in checkpoint.layers().filter(|(name, _)| name.starts_with("blk.")) {
        let weight = dequantize(layer?, DType::F32, &Device::Cpu)?;
        tensors.insert(format!("{name}.weight"), weight);
        names.push(name.to_owned());
    }
    candle_core::safetensors::save(&tensors, to)?;
    Ok(names)
}

/// e to the mean of `-ln p` of each token after the first.
fn perplexity(
    checkpoint: &Checkpoint,
    tokens: &[u32],
    linear: &dyn Fn(&Layer) -> CandleResult<Linear>,
) -> CandleResult<f64> {
    let mut model = Llama::load(checkpoint, DType::F32, &Device::Cpu, linear)?;
    let logits: Tensor = model.all(&tokens[..tokens.len() - 1])?;
    let mut sum = 0.0;
    for (at, token) in tokens[1..].iter().enumerate() {
        let logits: Vec<f32> = logits.i(at)?.to_vec1()?;
        let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let all: f64 = logits.iter().map(|logit| (f64::from(*logit) - most).exp()).sum();
        sum += most + all.ln() - f64::from(logits[*token as usize]);
    }
    Ok((sum / (tokens.len() - 1) as f64).exp())
}
