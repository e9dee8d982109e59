//! A GGUF file of the llama architecture with random weights, and no vocabulary: for measuring, and for tests. The time
//! of a product does not depend on the values that it multiplies.

use std::io::{Seek, Write};

use candle_core::quantized::gguf_file::{Value, write as write_gguf};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Result, Tensor};

use crate::llama::Sizes;

/// The sizes of a model.
pub(crate) struct Shape {
    /// What the file says.
    pub(crate) sizes: Sizes,
    /// Rows of gate and up.
    pub(crate) feed_forward: usize,
    /// Rows of the embedding.
    pub(crate) vocabulary: usize,
}

/// SmolLM2-135M.
pub(crate) const SMOLLM2: Shape = Shape {
    sizes: Sizes {
        blocks: 30,
        heads: 9,
        kv_heads: 3,
        width: 576,
        context: 8192,
        rope_base: 100_000.0,
        epsilon: 1e-5,
    },
    feed_forward: 1536,
    vocabulary: 49_152,
};

/// Numbers between -1 and 1 in `f32`, other ones for another seed.
pub(crate) fn numbers(dims: &[usize], seed: u32) -> Result<Tensor> {
    let count: usize = dims.iter().product();
    let number = |at: u32| {
        let bits = (at ^ seed.rotate_left(16)).wrapping_mul(0x9E37_79B1);
        // The low bits of a product know less of it than the high ones.
        ((bits ^ bits >> 15).wrapping_mul(0x85EB_CA6B) >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..count as u32).map(number).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)
}

/// Writes a model whose matrices and whose embedding, which is the output's weight too, have these types.
pub(crate) fn write(
    to: &mut (impl Write + Seek),
    shape: &Shape,
    [matrices, embedding]: [GgmlDType; 2],
) -> Result<()> {
    let Shape { sizes, feed_forward, vocabulary } = *shape;
    let Sizes { blocks, heads, kv_heads, width, context, rope_base, epsilon } = sizes;
    let (head, kv) = (width / heads, width / heads * kv_heads);
    let count = |size: usize| Value::U32(size as u32);
    let keys = [
        ("general.architecture", Value::String("llama".to_owned())),
        ("llama.block_count", count(blocks)),
        ("llama.context_length", count(context)),
        ("llama.embedding_length", count(width)),
        ("llama.feed_forward_length", count(feed_forward)),
        ("llama.attention.head_count", count(heads)),
        ("llama.attention.head_count_kv", count(kv_heads)),
        ("llama.rope.dimension_count", count(head)),
        ("llama.rope.freq_base", Value::F32(rope_base as f32)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(epsilon as f32)),
    ];
    let mut tensors = Vec::new();
    let mut add = |name: String, dims: &[usize], dtype| -> Result<()> {
        let tensor = numbers(dims, tensors.len() as u32)?;
        // Products that keep the size of what they multiply; factors of norms near 1.
        let tensor = match dims {
            [_, k] => (tensor * (3.0 / *k as f64).sqrt())?,
            _ => ((tensor * 0.1)? + 1.0)?,
        };
        tensors.push((format!("{name}.weight"), QTensor::quantize(&tensor, dtype)?));
        Ok(())
    };
    add("token_embd".to_owned(), &[vocabulary, width], embedding)?;
    add("output_norm".to_owned(), &[width], GgmlDType::F32)?;
    for block in 0..blocks {
        let name = |part: &str| format!("blk.{block}.{part}");
        add(name("attn_norm"), &[width], GgmlDType::F32)?;
        add(name("ffn_norm"), &[width], GgmlDType::F32)?;
        add(name("attn_q"), &[width, width], matrices)?;
        add(name("attn_k"), &[kv, width], matrices)?;
        add(name("attn_v"), &[kv, width], matrices)?;
        add(name("attn_output"), &[width, width], matrices)?;
        add(name("ffn_gate"), &[feed_forward, width], matrices)?;
        add(name("ffn_up"), &[feed_forward, width], matrices)?;
        add(name("ffn_down"), &[width, feed_forward], matrices)?;
    }
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let keys: Vec<_> = keys.iter().map(|(key, value)| (*key, value)).collect();
    write_gguf(to, &keys, &tensors)
}
