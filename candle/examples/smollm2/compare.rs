//! Beside candle's own quantised llama: logits, greedy tokens, tokens a second.

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Module, Result as CandleResult, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use quantloom_candle::dequantize;
use quantloom_candle::quantloom::prelude::{Checkpoint, Layer};

use crate::llama::{Linear, Llama, greatest};
use crate::{Products, load, text};

/// Greedy tokens that must be the same.
const TOKENS: usize = 20;
/// Tokens of a turn; one more goes before them, while the threads of the other side may still spin.
const TURN: usize = 8;
/// Turns of each side.
const TURNS: usize = 12;
/// Prompts that each side reads.
const READS: usize = 5;

/// A product in `f32` with the decoded weight.
pub(crate) struct Float(Tensor);

impl Float {
    /// That of a layer.
    pub(crate) fn new(layer: &Layer) -> CandleResult<Self> {
        // Transposed here and once: [K, N].
        Ok(Self(dequantize(layer, DType::F32, &Device::Cpu)?.t()?))
    }
}

impl Module for Float {
    fn forward(&self, x: &Tensor) -> CandleResult<Tensor> {
        x.broadcast_matmul(&self.0)
    }
}

/// Tokens, and how many there were before them, to logits, [vocabulary].
type Next = Box<dyn FnMut(&[u32], usize) -> CandleResult<Tensor>>;

/// A model that is compared.
struct Side {
    name: &'static str,
    next: Next,
}

impl Side {
    fn llama(name: &'static str, mut model: Llama) -> Self {
        let next = move |tokens: &[u32], seen| {
            if seen == 0 {
                model.forget();
            }
            model.next(tokens)
        };
        Self { name, next: Box::new(next) }
    }

    fn candle(path: &Path) -> Result<Self, Box<dyn Error>> {
        let mut file = File::open(path)?;
        let mut model =
            ModelWeights::from_gguf(Content::read(&mut file)?, &mut file, &Device::Cpu)?;
        let next = move |tokens: &[u32], seen| {
            let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
            model.forward(&tokens, seen)?.squeeze(0)
        };
        Ok(Self { name: "candle's quantised llama", next: Box::new(next) })
    }
}

/// Prints the comparison; an error if logits or tokens are not as they should be.
pub(crate) fn compare(path: &Path, prompt: &str) -> Result<(), Box<dyn Error>> {
    let ours = |products| load(path, DType::F32, &Device::Cpu, products);
    let mut sides = [
        Side::llama("Quantloom", ours(Products::OfTheFile)?),
        Side::llama("Quantloom, x in 8 bits", ours(Products::EightBits)?),
        Side::candle(path)?,
    ];
    let tokenizer = text::tokenizer(path)?;
    let prompt = text::tokens(&tokenizer, prompt)?;
    let tokens = logits(path, &prompt, &mut sides)?;
    println!("The answer begins: {:?}\n", text::text(&tokenizer, &tokens)?);
    speed(&prompt, &tokens, &mut sides)
}

/// Compares logits after the prompt, and greedy tokens, with the model in `f32`; its tokens.
///
/// All multiply the same weights. The `f32` model does so by candle's `f32` product with decoded weights. Ours, which
/// leaves x as it is, differs from it by the rounding of `f32` sums, some 2^-24 of what is added. Those with x
/// in 8 bits round each x to 1/254 of the largest of 32: 2^15 times as coarse. How far
/// that moves logits through 30 blocks no formula says; it is measured, and a side that does not round x may be no
/// further off than 2^-10 of it.
fn logits(path: &Path, prompt: &[u32], sides: &mut [Side; 3]) -> Result<Vec<u32>, Box<dyn Error>> {
    let linear = |layer: &Layer| -> CandleResult<Linear> { Ok(Box::new(Float::new(layer)?)) };
    let float = Llama::load(&Checkpoint::open(path)?, DType::F32, &Device::Cpu, &linear)?;
    let mut float = Side::llama("f32", float);
    let mut exact = (float.next)(prompt, 0)?;
    let mut logits = Vec::new();
    for side in sides.iter_mut() {
        logits.push((side.next)(prompt, 0)?);
    }
    let spread: f32 = exact.var(0)?.sqrt()?.to_scalar()?;
    println!("Logits after {} tokens; their standard deviation is {spread:.2}.\n", prompt.len());
    println!(
        "| | furthest from f32 | first {TOKENS} greedy tokens that are f32's |\n|---|---|---|"
    );
    let mut off = Vec::new();
    for logits in &logits {
        off.push((logits - &exact)?.abs()?.max(0)?.to_scalar::<f32>()?);
    }
    let (mut tokens, mut same) = (Vec::new(), [0; 3]);
    for at in 0..TOKENS {
        let token = greatest(&exact)?;
        tokens.push(token);
        exact = (float.next)(&[token], prompt.len() + at)?;
        for ((side, logits), same) in sides.iter_mut().zip(&mut logits).zip(&mut same) {
            *same += usize::from(greatest(logits)? == token);
            *logits = (side.next)(&[token], prompt.len() + at)?;
        }
    }
    for ((side, off), same) in sides.iter().zip(&off).zip(&same) {
        println!("| {} | {off:.1e} | {same} |", side.name);
    }
    println!();
    if off[0] > off[1].min(off[2]) * 2f32.powi(-10) {
        return Err("our logits are further from f32's than the rounding of sums explains".into());
    }
    if same != [TOKENS; 3] { Err("greedy tokens differ".into()) } else { Ok(tokens) }
}

/// Measures in turns, and prints tokens a second.
fn speed(prompt: &[u32], tokens: &[u32], sides: &mut [Side; 3]) -> Result<(), Box<dyn Error>> {
    let (mut read, mut written) = ([(); 3].map(|()| Vec::new()), [(); 3].map(|()| Vec::new()));
    for _ in 0..READS {
        for (side, times) in sides.iter_mut().zip(&mut read) {
            times.push(timed(|| (side.next)(prompt, 0))?);
        }
    }
    let mut seen = prompt.len();
    for _ in 0..TURNS {
        let turn: Vec<u32> = (0..=TURN).map(|at| tokens[(seen + at) % tokens.len()]).collect();
        for (side, times) in sides.iter_mut().zip(&mut written) {
            for (at, token) in turn.iter().enumerate() {
                let time = timed(|| (side.next)(&[*token], seen + at))?;
                if at > 0 {
                    times.push(time);
                }
            }
        }
        seen += turn.len();
    }
    let (threads, count) = (rayon::current_num_threads(), prompt.len());
    println!("Tokens a second, medians, {threads} threads, contexts of {count} to {seen}:\n");
    println!("| | reading {count} tokens | writing |\n|---|---|---|");
    for ((side, read), written) in sides.iter().zip(read).zip(written) {
        let (read, written) = (count as f64 / median(read), 1.0 / median(written));
        println!("| {} | {read:.1} | {written:.1} |", side.name);
    }
    Ok(())
}

fn timed<T>(call: impl FnOnce() -> CandleResult<T>) -> CandleResult<Duration> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed())
}

/// The median, in seconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}
