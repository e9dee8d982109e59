//! The example's encoder, on small random weights, beside candle's.

use std::collections::HashMap;

use candle_core::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use quantloom_candle::quantloom::prelude::{Checkpoint, parse};
use quantloom_candle::quantloom::runtime::checkpoint::Tensors;
use quantloom_candle::quantloom::runtime::quantise::{candidates, quantise_checkpoint};
use quantloom_candle::{QuantLinear, dequantize};

use crate::bert_model::{Bert, Linear, pooled};
use crate::cosine::{Moved, cosine};
use crate::inputs::{numbers, values};

const WIDTH: usize = 64;
const FEED_FORWARD: usize = 96;
const VOCABULARY: usize = 50;

const TEXT: [u32; 9] = [3, 1, 41, 5, 9, 26, 49, 5, 8];

fn config() -> Config {
    Config {
        vocab_size: VOCABULARY,
        hidden_size: WIDTH,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: FEED_FORWARD,
        max_position_embeddings: 16,
        model_type: None,
        ..Config::default()
    }
}

/// The tensors of two blocks.
fn weights() -> Result<HashMap<String, Tensor>> {
    let mut tensors = HashMap::new();
    let mut add = |name: String, dims: &[usize]| -> Result<()> {
        let tensor = numbers(dims, tensors.len() as u32, DType::F32)?;
        // Products that keep the size of what they multiply; factors of norms near 1, biases near 0.
        let tensor = match dims {
            [_, k] => (tensor * (3.0 / *k as f64).sqrt())?,
            _ if name.ends_with("Norm.weight") => ((tensor * 0.1)? + 1.0)?,
            _ => (tensor * 0.1)?,
        };
        tensors.insert(name, tensor);
        Ok(())
    };
    for (name, rows) in [("word", VOCABULARY), ("position", 16), ("token_type", 2)] {
        add(format!("embeddings.{name}_embeddings.weight"), &[rows, WIDTH])?;
    }
    let mut both = |name: String, dims: &[usize]| -> Result<()> {
        add(format!("{name}.weight"), dims)?;
        add(format!("{name}.bias"), &dims[..1])
    };
    both("embeddings.LayerNorm".to_owned(), &[WIDTH])?;
    for block in 0..2 {
        let name = |part: &str| format!("encoder.layer.{block}.{part}");
        for part in ["self.query", "self.key", "self.value", "output.dense"] {
            both(name(&format!("attention.{part}")), &[WIDTH, WIDTH])?;
        }
        both(name("attention.output.LayerNorm"), &[WIDTH])?;
        both(name("intermediate.dense"), &[FEED_FORWARD, WIDTH])?;
        both(name("output.dense"), &[WIDTH, FEED_FORWARD])?;
        both(name("output.LayerNorm"), &[WIDTH])?;
    }
    Ok(tensors)
}

/// candle's last hidden states.
fn by_candle(weights: HashMap<String, Tensor>) -> Result<Tensor> {
    let weights = VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu);
    let tokens = Tensor::new(&TEXT, &Device::Cpu)?.unsqueeze(0)?;
    let model = BertModel::load(weights, &config())?;
    model.forward(&tokens, &tokens.zeros_like()?, None)?.squeeze(0)
}

/// The same weights on both sides, so that sums of `f32` differ alone, some 2^-24 each. States have a deviation of
/// about 1, by the last norm; a wrong head, position or residual moves them by their own size.
const ROUNDING: f32 = 1e-4;

fn furthest(one: &Tensor, other: &Tensor) -> Result<f32> {
    let (one, other) = (values(one)?, values(other)?);
    assert_eq!(one.len(), other.len());
    Ok(one.iter().zip(&other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max))
}

#[test]
fn states_are_those_of_candles_bert() -> Result<()> {
    let weights = weights()?;
    let float = |name: &str| -> Result<Linear> {
        let [weight, bias] =
            ["weight", "bias"].map(|part| weights[&format!("{name}.{part}")].clone());
        Ok(Box::new(candle_nn::Linear::new(weight, Some(bias))))
    };
    let ours = Bert::load(&weights, &config(), &float)?.states(&TEXT)?;
    assert_eq!(ours.dims(), [TEXT.len(), WIDTH]);
    let off = furthest(&ours, &by_candle(weights.clone())?)?;
    assert!(off <= ROUNDING, "{off:e}");
    Ok(())
}

#[test]
fn a_quantised_encoder_is_candles_with_decoded_weights() -> Result<()> {
    let text =
        "int4_g32 { weight: u4 - 8, scale: f16 per 1x32, pack: u8 [k:2 | k, n], activation: f32 }";
    let scheme = parse(text).map_err(Error::wrap)?;
    let folder = tempfile::tempdir()?;
    let [floats, out] =
        ["floats", "out"].map(|name| folder.path().join(format!("{name}.safetensors")));
    let weights = weights()?;
    candle_core::safetensors::save(&weights, &floats)?;
    let tensors = Tensors::open(&floats).map_err(Error::wrap)?;
    let mut chosen = candidates(&tensors, &scheme);
    chosen.retain(|candidate| candidate.layer.starts_with("encoder."));
    assert_eq!(chosen.len(), 12);
    quantise_checkpoint(&tensors, &scheme, &chosen, &out, &|_| {}).map_err(Error::wrap)?;
    let checkpoint = Checkpoint::open(&out).map_err(Error::wrap)?;
    let mut decoded = weights.clone();
    for candidate in &chosen {
        let layer = checkpoint.layer(&candidate.layer).map_err(Error::wrap)?;
        decoded.insert(candidate.tensor.clone(), dequantize(layer, DType::F32, &Device::Cpu)?);
    }
    let linear = |name: &str| -> Result<Linear> {
        let layer = checkpoint.layer(name).map_err(Error::wrap)?;
        Ok(Box::new(QuantLinear::from_layer(layer, &Device::Cpu)?))
    };
    let ours = Bert::load(&weights, &config(), &linear)?.states(&TEXT)?;
    let candles = by_candle(decoded)?;
    let off = furthest(&ours, &candles)?;
    assert!(off <= ROUNDING, "{off:e}");
    // Four bits are not the floats.
    let exact = by_candle(weights)?;
    assert!(furthest(&candles, &exact)? > 100.0 * ROUNDING);
    let [ours, exact] = [pooled(&ours)?, pooled(&exact)?];
    let cosine = cosine(&ours, &exact);
    assert!(cosine > 0.9 && cosine < 1.0 - 1e-6, "{cosine}");
    Ok(())
}

#[test]
fn embeddings_have_length_one() -> Result<()> {
    let states = Tensor::new(&[[1f32, 6.0], [5.0, 2.0]], &Device::Cpu)?;
    // The mean is (3, 4).
    assert_eq!(pooled(&states)?, [0.6, 0.8]);
    Ok(())
}

#[test]
fn the_tables_numbers_are_means_and_extremes() {
    let exact = [vec![1.0, 0.0], vec![0.0, 1.0], vec![1.0, 0.0]];
    let moved = [vec![1.0, 0.0], vec![0.6, 0.8], vec![0.8, -0.6]];
    let Moved { mean, least, pairs } = Moved::of(&moved, &exact);
    let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-6, "{one} and {other}");
    near(mean, (1.0 + 0.8 + 0.8) / 3.0);
    near(least, 0.8);
    // The first two texts were at a right angle, and have a cosine of 0.6.
    near(pairs, 0.6);
    near(cosine(&[3.0, 4.0], &[30.0, 40.0]), 1.0);
}
