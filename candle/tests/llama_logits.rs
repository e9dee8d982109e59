//! The example's model, on a small file of random weights, beside candle's.

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, IndexOp as _, Result, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use quantloom_candle::QuantLinear;
use quantloom_candle::quantloom::prelude::{Checkpoint, Layer};

use crate::inputs::{gguf, values};
use crate::llama::{Linear, Llama, Sizes};
use crate::random::{Shape, write};

/// Two blocks.
const SMALL: Shape = Shape {
    sizes: Sizes {
        blocks: 2,
        heads: 4,
        kv_heads: 2,
        width: 64,
        context: 64,
        rope_base: 10_000.0,
        epsilon: 1e-5,
    },
    feed_forward: 96,
    vocabulary: 96,
};

/// A file of two blocks; matrices are of `matrices`, and the embedding of `embedding`.
fn file(matrices: GgmlDType, embedding: GgmlDType) -> Result<Vec<u8>> {
    let mut file = std::io::Cursor::new(Vec::new());
    write(&mut file, &SMALL, [matrices, embedding])?;
    Ok(file.into_inner())
}

fn ours(file: &[u8], dtype: DType) -> Result<Llama> {
    let checkpoint = Checkpoint::from_bytes(file.to_vec(), Default::default()).expect("it opens");
    let linear = |layer: &Layer| -> Result<Linear> {
        Ok(Box::new(QuantLinear::from_layer(layer, &Device::Cpu)?))
    };
    Llama::load(&checkpoint, dtype, &Device::Cpu, &linear)
}

/// candle's logits after the last of some tokens.
fn by_candle(model: &mut ModelWeights, tokens: &[u32], seen: usize) -> Result<Vec<f32>> {
    values(&model.forward(&Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?, seen)?)
}

fn candles(file: Vec<u8>) -> Result<ModelWeights> {
    let mut file = std::io::Cursor::new(file);
    ModelWeights::from_gguf(Content::read(&mut file)?, &mut file, &Device::Cpu)
}

/// The greatest difference, in standard deviations of the second.
fn difference(one: &[f32], other: &[f32]) -> f32 {
    let mean = other.iter().sum::<f32>() / other.len() as f32;
    let variance = other.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / other.len() as f32;
    let furthest = one.iter().zip(other).map(|(one, other)| (one - other).abs());
    furthest.fold(0.0, f32::max) / variance.sqrt()
}

/// Both round sums of `f32` alone, some 2^-24 each, where candle's matrices are floats: the
/// same weights, decoded when the file was made. A wrong rotation, mask or head moves logits by their own size.
const ROUNDING: f32 = 1e-4;

const PROMPT: [u32; 9] = [3, 1, 41, 5, 9, 26, 53, 5, 80];

#[test]
fn logits_are_those_of_candles_llama() -> Result<()> {
    let file = file(GgmlDType::Q4_1, GgmlDType::Q8_0)?;
    let mut candle = candles(decoded(&file)?)?;
    let mut ours = ours(&file, DType::F32)?;
    // The prompt, a token at a time, two at a time behind what was seen.
    let parts: [&[u32]; 5] = [&PROMPT, &[17], &[8], &[60, 61], &[0]];
    let mut seen = 0;
    for part in parts {
        let (one, other) = (values(&ours.next(part)?)?, by_candle(&mut candle, part, seen)?);
        let off = difference(&one, &other);
        assert!(off <= ROUNDING, "after {seen} tokens: {off:e}");
        seen += part.len();
    }
    assert_eq!(ours.seen()?, seen);
    ours.forget();
    assert_eq!(ours.seen()?, 0);
    let again = values(&ours.next(&PROMPT)?)?;
    assert!(difference(&again, &by_candle(&mut candle, &PROMPT, 0)?) <= ROUNDING);
    Ok(())
}

/// The file with each matrix as the floats that candle decodes.
fn decoded(file: &[u8]) -> Result<Vec<u8>> {
    let mut reader = std::io::Cursor::new(file);
    let content = Content::read(&mut reader)?;
    let mut tensors = Vec::new();
    for name in content.tensor_infos.keys() {
        let tensor = content.tensor(&mut reader, name, &Device::Cpu)?.dequantize(&Device::Cpu)?;
        tensors.push((name.clone(), tensor, GgmlDType::F32));
    }
    let keys: Vec<_> =
        content.metadata.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    gguf(&keys, &tensors)
}

#[test]
fn logits_of_all_tokens_are_those_of_each() -> Result<()> {
    let file = file(GgmlDType::Q4_1, GgmlDType::Q8_0)?;
    let (mut all, mut each) = (ours(&file, DType::F32)?, ours(&file, DType::F32)?);
    let logits = all.all(&PROMPT)?;
    assert_eq!(logits.dims(), [PROMPT.len(), SMALL.vocabulary]);
    for (at, token) in PROMPT.iter().enumerate() {
        let one = values(&each.next(&[*token])?)?;
        let off = difference(&values(&logits.i(at)?)?, &one);
        assert!(off <= ROUNDING, "token {at}: {off:e}");
    }
    Ok(())
}

/// bf16 has 8 bits: each of some 30 steps rounds to 2^-9 of what it rounds, at random.
#[test]
fn activations_may_be_in_sixteen_bits() -> Result<()> {
    let file = file(GgmlDType::Q4_1, GgmlDType::Q8_0)?;
    let exact = values(&ours(&file, DType::F32)?.next(&PROMPT)?)?;
    for (dtype, bits) in [(DType::F16, 12), (DType::BF16, 9)] {
        let logits = ours(&file, dtype)?.next(&PROMPT)?;
        assert_eq!(logits.dtype(), DType::F32);
        let off = difference(&values(&logits)?, &exact);
        assert!(off <= 30.0 * 2f32.powi(-bits) && off > 0.0, "{dtype:?}: {off:e}");
    }
    Ok(())
}
