//! The llama architecture over candle's tensors; every product with a weight is a module that the caller makes.
//!
//! In: a GGUF file. Out: logits. Rows of q and k are in llama.cpp's order, so that the rotary embedding turns
//! neighbours. Source: "LLaMA", arXiv 2302.13971; the keys of the file, `docs/gguf.md` of ggml.

use candle_core::{D, DType, Device, IndexOp as _, Module, Result, Tensor, bail};
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope_i;
use quantloom_candle::dequantize;
use quantloom_candle::quantloom::prelude::{Checkpoint, Layer};
use quantloom_candle::quantloom::runtime::checkpoint::GgufValue;

/// A product with a weight.
pub(crate) type Linear = Box<dyn Module + Send + Sync>;

/// What a file says of its model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Blocks.
    pub(crate) blocks: usize,
    /// Heads of queries.
    pub(crate) heads: usize,
    /// Heads of keys and values, each of which serves several of queries.
    pub(crate) kv_heads: usize,
    /// Elements of a token between blocks.
    pub(crate) width: usize,
    /// Tokens of the longest text.
    pub(crate) context: usize,
    /// The base of the rotary embedding's frequencies.
    pub(crate) rope_base: f64,
    /// What is added to the mean square before its root is taken.
    pub(crate) epsilon: f64,
}

impl Sizes {
    /// Those of a GGUF file of the architecture `llama`.
    pub(crate) fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let Some(gguf) = checkpoint.tensors().gguf() else { bail!("the file is not GGUF") };
        match gguf.value("general.architecture") {
            Some(GgufValue::Text("llama")) => {}
            other => bail!("the architecture is {other:?}, this example has llama's"),
        }
        let count = |key: &str| match gguf.value(key) {
            Some(GgufValue::Unsigned(value)) => Ok(value as usize),
            other => bail!("the key `{key}` is {other:?}, expected a number"),
        };
        let real = |key: &str, default: Option<f64>| match (gguf.value(key), default) {
            (Some(GgufValue::Float(value)), _) => Ok(value),
            (None, Some(default)) => Ok(default),
            (other, _) => bail!("the key `{key}` is {other:?}, expected a float"),
        };
        Ok(Self {
            blocks: count("llama.block_count")?,
            heads: count("llama.attention.head_count")?,
            kv_heads: count("llama.attention.head_count_kv")?,
            width: count("llama.embedding_length")?,
            context: count("llama.context_length")?,
            rope_base: real("llama.rope.freq_base", Some(10_000.0))?,
            epsilon: real("llama.attention.layer_norm_rms_epsilon", None)?,
        })
    }

    fn head(&self) -> usize {
        self.width / self.heads
    }
}

/// The weights, and the keys and values of the tokens so far.
pub(crate) struct Llama {
    sizes: Sizes,
    dtype: DType,
    device: Device,
    embedding: Tensor,
    blocks: Vec<Block>,
    norm: Tensor,
    output: Linear,
    rope: (Tensor, Tensor),
}

struct Block {
    norm: Tensor,
    q: Linear,
    k: Linear,
    v: Linear,
    attended: Linear,
    feed_forward_norm: Tensor,
    gate: Linear,
    up: Linear,
    down: Linear,
    /// Keys and values of the tokens so far, [1, heads, tokens, head].
    seen: Option<(Tensor, Tensor)>,
}

impl Llama {
    /// The model of a file with tensors of `dtype` on a device; `linear` makes the products.
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        dtype: DType,
        device: &Device,
        linear: &dyn Fn(&Layer) -> Result<Linear>,
    ) -> Result<Self> {
        let sizes = Sizes::read(checkpoint)?;
        let vector = |name: &str| {
            let Some(tensor) = checkpoint.tensors().get(name) else { bail!("no tensor `{name}`") };
            let known = tensor.dtype().try_into()?;
            Tensor::from_raw_buffer(tensor.bytes(), known, tensor.shape(), device)?.to_dtype(dtype)
        };
        let layer = |name: &str| checkpoint.layer(name).map_err(candle_core::Error::wrap);
        let block = |at: usize| {
            let product = |name: &str| linear(layer(&format!("blk.{at}.{name}"))?);
            Ok(Block {
                norm: vector(&format!("blk.{at}.attn_norm.weight"))?,
                q: product("attn_q")?,
                k: product("attn_k")?,
                v: product("attn_v")?,
                attended: product("attn_output")?,
                feed_forward_norm: vector(&format!("blk.{at}.ffn_norm.weight"))?,
                gate: product("ffn_gate")?,
                up: product("ffn_up")?,
                down: product("ffn_down")?,
                seen: None,
            })
        };
        let embedding = layer("token_embd")?;
        // The output's weight is that of the embedding where the file has none of its own.
        let output = checkpoint.layer("output").unwrap_or(embedding);
        Ok(Self {
            sizes,
            dtype,
            device: device.clone(),
            embedding: dequantize(embedding, dtype, device)?,
            blocks: (0..sizes.blocks).map(block).collect::<Result<_>>()?,
            norm: vector("output_norm.weight")?,
            output: linear(output)?,
            rope: rope(&sizes, dtype, device)?,
        })
    }

    /// Forgets the tokens so far.
    pub(crate) fn forget(&mut self) {
        self.blocks.iter_mut().for_each(|block| block.seen = None);
    }

    /// The tokens so far.
    pub(crate) fn seen(&self) -> Result<usize> {
        self.blocks[0].seen.as_ref().map_or(Ok(0), |(keys, _)| keys.dim(2))
    }

    /// The logits after the last of some more tokens, [vocabulary], in `f32`.
    pub(crate) fn next(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let x = self.run(tokens)?;
        self.logits(&x.i((.., tokens.len() - 1.., ..))?)?.squeeze(0)
    }

    /// The logits after each of some more tokens, [tokens, vocabulary], in `f32`.
    pub(crate) fn all(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let x = self.run(tokens)?;
        self.logits(&x)
    }

    fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let x = rms_norm(x, &self.norm, self.sizes.epsilon as f32)?;
        self.output.forward(&x)?.to_dtype(DType::F32)?.squeeze(0)
    }

    /// Runs the blocks; x is [1, tokens, width].
    fn run(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let (seen, more) = (self.seen()?, tokens.len());
        if more == 0 || seen + more > self.sizes.context {
            bail!("{seen} and {more} tokens: the model takes 1 to {}", self.sizes.context)
        }
        let tokens = Tensor::new(tokens, &self.device)?;
        let mut x = self.embedding.index_select(&tokens, 0)?.unsqueeze(0)?;
        let rope = (self.rope.0.narrow(0, seen, more)?, self.rope.1.narrow(0, seen, more)?);
        let mask = mask(seen, more, self.sizes.heads / self.sizes.kv_heads, &x)?;
        for block in &mut self.blocks {
            x = block.run(&x, &self.sizes, &rope, mask.as_ref())?;
        }
        x.to_dtype(self.dtype)
    }
}

impl Block {
    fn run(
        &mut self,
        x: &Tensor,
        sizes: &Sizes,
        rope: &(Tensor, Tensor),
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let normal = rms_norm(x, &self.norm, sizes.epsilon as f32)?;
        let x = (x + self.attend(&normal, sizes, rope, mask)?)?;
        let normal = rms_norm(&x, &self.feed_forward_norm, sizes.epsilon as f32)?;
        let gated = (self.gate.forward(&normal)?.silu()? * self.up.forward(&normal)?)?;
        &x + self.down.forward(&gated)?
    }

    fn attend(
        &mut self,
        x: &Tensor,
        sizes: &Sizes,
        (cos, sin): &(Tensor, Tensor),
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (_, tokens, _) = x.dims3()?;
        let (heads, kv_heads, head) = (sizes.heads, sizes.kv_heads, sizes.head());
        let by_head =
            |x: Tensor, heads| x.reshape((1, tokens, heads, head))?.transpose(1, 2)?.contiguous();
        let q = rope_i(&by_head(self.q.forward(x)?, heads)?, cos, sin)?;
        let k = rope_i(&by_head(self.k.forward(x)?, kv_heads)?, cos, sin)?;
        let v = by_head(self.v.forward(x)?, kv_heads)?;
        let (k, v) = match self.seen.take() {
            None => (k, v),
            Some((keys, values)) => {
                (Tensor::cat(&[&keys, &k], 2)?, Tensor::cat(&[&values, &v], 2)?)
            }
        };
        self.seen = Some((k.clone(), v.clone()));
        // The heads of queries that share keys are one matrix, [1, kv_heads, rows, head].
        let q = q.reshape((1, kv_heads, heads / kv_heads * tokens, head))?;
        let scores = (q.matmul(&k.t()?)? * (1.0 / (head as f64).sqrt()))?;
        let scores = match mask {
            None => scores,
            Some(mask) => scores.broadcast_add(mask)?,
        };
        let y = softmax_last_dim(&scores)?.matmul(&v)?;
        let y = y.reshape((1, heads, tokens, head))?.transpose(1, 2)?;
        self.attended.forward(&y.reshape((1, tokens, heads * head))?)
    }
}

/// Cosines and sines by position, [context, head / 2].
fn rope(sizes: &Sizes, dtype: DType, device: &Device) -> Result<(Tensor, Tensor)> {
    let half = sizes.head() / 2;
    let angle = |position: usize, pair: usize| {
        position as f64 * sizes.rope_base.powf(-(pair as f64) / half as f64)
    };
    let table = |function: fn(f64) -> f64| {
        let places = (0..sizes.context).flat_map(|at| (0..half).map(move |pair| (at, pair)));
        let values: Vec<f32> = places.map(|(at, pair)| function(angle(at, pair)) as f32).collect();
        Tensor::from_vec(values, (sizes.context, half), device)?.to_dtype(dtype)
    };
    Ok((table(f64::cos)?, table(f64::sin)?))
}

/// What is added to scores so that no token sees a later one, [rows, seen + more]; rows are those of
/// `shared` heads, one head after another. `None` where there is one token.
fn mask(seen: usize, more: usize, shared: usize, like: &Tensor) -> Result<Option<Tensor>> {
    if more == 1 {
        return Ok(None);
    }
    let values = (0..more).flat_map(|row| {
        (0..seen + more).map(move |at| if at > seen + row { f32::NEG_INFINITY } else { 0.0 })
    });
    let mask = Tensor::from_vec(values.collect(), (more, seen + more), like.device())?;
    let mask = mask.to_dtype(like.dtype())?.repeat((shared, 1))?;
    Ok(Some(mask))
}

/// The place of the greatest logit; the first of several.
pub(crate) fn greatest(logits: &Tensor) -> Result<u32> {
    logits.argmax(D::Minus1)?.to_scalar()
}
