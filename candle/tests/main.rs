//! The adapter against the runtime, against candle, and against its own words.

#[path = "../examples/smollm2/llama.rs"]
#[expect(dead_code, reason = "the example's model, of which a test uses a part")]
mod llama;
#[path = "../examples/smollm2/random.rs"]
#[expect(dead_code, reason = "the shape of the example's model is its own")]
mod random;

#[path = "../examples/minilm/bert.rs"]
mod bert_model;
#[path = "../examples/minilm/cosine.rs"]
mod cosine;

mod bert;
#[cfg(feature = "cuda")]
mod cuda;
mod experts;
mod inputs;
mod layers;
mod llama_logits;
mod refusals;
