//! The adapter against the runtime, against candle, and against its own words.

#[path = "../examples/smollm2/llama.rs"]
#[expect(dead_code, reason = "the example's model, of which a test uses a part")]
mod llama_model;

#[cfg(feature = "cuda")]
mod cuda;
mod experts;
mod inputs;
mod layers;
mod llama;
mod refusals;
