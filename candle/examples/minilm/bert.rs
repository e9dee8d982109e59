//! BERT's encoder over candle's tensors; every product with a weight is a module that the caller makes.
//!
//! In: the tensors of a checkpoint by their names, and one text at a time, so that there is no padding and no mask.
//! Out: the last hidden states, or the text's embedding: their mean, of length 1. Source: "BERT", arXiv 1810.04805;
//! "Sentence-BERT", arXiv 1908.10084.

use std::collections::HashMap;

use candle_core::{DType, Device, Error, Module, Result, Tensor, bail};
use candle_nn::LayerNorm;
use candle_nn::ops::softmax_last_dim;
use candle_transformers::models::bert::{Config, HiddenAct};

/// A product with a weight, and its bias.
pub(crate) type Linear = Box<dyn Module + Send + Sync>;

/// The encoder.
pub(crate) struct Bert {
    words: Tensor,
    positions: Tensor,
    first_type: Tensor,
    norm: LayerNorm,
    blocks: Vec<Block>,
    heads: usize,
}

struct Block {
    q: Linear,
    k: Linear,
    v: Linear,
    attended: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
}

impl Bert {
    /// The encoder of a checkpoint's float tensors; `linear` makes the product of a layer, with its bias, by its name,
    /// `encoder.layer.0.output.dense`.
    pub(crate) fn load(
        tensors: &HashMap<String, Tensor>,
        config: &Config,
        linear: &dyn Fn(&str) -> Result<Linear>,
    ) -> Result<Self> {
        if config.hidden_act != HiddenAct::Gelu {
            bail!("the activation is {:?}, this example has Gelu", config.hidden_act)
        }
        let tensor = |name: &str| {
            let missing = || Error::msg(format!("no tensor `{name}`"));
            tensors.get(name).ok_or_else(missing)?.to_dtype(DType::F32)
        };
        let norm = |name: &str| {
            let (weight, bias) =
                (tensor(&format!("{name}.weight"))?, tensor(&format!("{name}.bias"))?);
            Ok::<_, Error>(LayerNorm::new(weight, bias, config.layer_norm_eps))
        };
        let block = |at: usize| {
            let name = |part: &str| format!("encoder.layer.{at}.{part}");
            let product = |part: &str| linear(&name(part));
            Ok(Block {
                q: product("attention.self.query")?,
                k: product("attention.self.key")?,
                v: product("attention.self.value")?,
                attended: product("attention.output.dense")?,
                attention_norm: norm(&name("attention.output.LayerNorm"))?,
                up: product("intermediate.dense")?,
                down: product("output.dense")?,
                norm: norm(&name("output.LayerNorm"))?,
            })
        };
        Ok(Self {
            words: tensor("embeddings.word_embeddings.weight")?,
            positions: tensor("embeddings.position_embeddings.weight")?,
            first_type: tensor("embeddings.token_type_embeddings.weight")?.get(0)?,
            norm: norm("embeddings.LayerNorm")?,
            blocks: (0..config.num_hidden_layers).map(block).collect::<Result<_>>()?,
            heads: config.num_attention_heads,
        })
    }

    /// The last hidden states of a text, [tokens, width].
    pub(crate) fn states(&self, tokens: &[u32]) -> Result<Tensor> {
        let words = self.words.index_select(&Tensor::new(tokens, &Device::Cpu)?, 0)?;
        let x = (words + self.positions.narrow(0, 0, tokens.len())?)?;
        let mut x = self.norm.forward(&x.broadcast_add(&self.first_type)?)?;
        for block in &self.blocks {
            let attended = block.attended.forward(&block.attend(&x, self.heads)?)?;
            let attended = block.attention_norm.forward(&(attended + x)?)?;
            let up = block.up.forward(&attended)?.gelu_erf()?;
            x = block.norm.forward(&(block.down.forward(&up)? + attended)?)?;
        }
        Ok(x)
    }
}

impl Block {
    /// What each token sees of all, [tokens, width].
    fn attend(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        let (tokens, width) = x.dims2()?;
        let head = width / heads;
        let by_head = |x: Tensor| x.reshape((tokens, heads, head))?.transpose(0, 1)?.contiguous();
        let q = by_head(self.q.forward(x)?)?;
        let k = by_head(self.k.forward(x)?)?;
        let v = by_head(self.v.forward(x)?)?;
        let scores = (q.matmul(&k.t()?.contiguous()?)? / (head as f64).sqrt())?;
        let seen = softmax_last_dim(&scores)?.matmul(&v)?;
        seen.transpose(0, 1)?.contiguous()?.reshape((tokens, width))
    }
}

/// The embedding of a text from its last hidden states [tokens, width]: their mean, of length 1.
pub(crate) fn pooled(states: &Tensor) -> Result<Vec<f32>> {
    let mean = states.mean(0)?;
    let length = mean.sqr()?.sum_all()?.sqrt()?;
    mean.broadcast_div(&length)?.to_vec1()
}
