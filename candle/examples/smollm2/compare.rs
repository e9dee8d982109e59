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

    fn candle(path: &Path, device: &Device) -> Result<Self, Box<dyn Error>> {
        let mut file = File::open(path)?;
        let mut model = ModelWeights::from_gguf(Content::read(&mut file)?, &mut file, device)?;
        let device = device.clone();
        let next = move |tokens: &[u32], seen| {
            let tokens = Tensor::new(tokens, &device)?.unsqueeze(0)?;
            model.forward(&tokens, seen)?.squeeze(0)
        };
        Ok(Self { name: "candle's quantised llama", next: Box::new(next) })
    }
}

/// Prints the comparison; an error if logits or tokens are not as they should be.
pub(crate) fn compare(path: &Path, prompt: &str, device: &Device) -> Result<(), Box<dyn Error>> {
    let ours = |dtype, products| load(path, dtype, device, products);
    let [first, second] = if device.is_cuda() {
        [
            Side::llama("Quantloom, bf16", ours(DType::BF16, Products::OfTheFile)?),
            Side::llama("Quantloom, f16", ours(DType::F16, Products::OfTheFile)?),
        ]
    } else {
        [
            Side::llama("Quantloom", ours(DType::F32, Products::OfTheFile)?),
            Side::llama("Quantloom, x in 8 bits", ours(DType::F32, Products::EightBits)?),
        ]
    };
    let mut sides = [first, second, Side::candle(path, device)?];
    let tokenizer = text::has_vocabulary(path)?.then(|| text::tokenizer(path)).transpose()?;
    let prompt = match &tokenizer {
        Some(tokenizer) => text::tokens(tokenizer, prompt)?,
        // Any tokens, as many as the usual prompt has.
        None => (0..39).map(|at| 1237 * at % 40_000).collect(),
    };
    let found = logits(path, &prompt, &mut sides)?;
    if let Some(tokenizer) = &tokenizer {
        println!("The answer begins: {:?}\n", text::text(tokenizer, &found.tokens)?);
    }
    speed(&prompt, &found.tokens, &mut sides)?;
    if device.is_cuda() { found.on_a_gpu() } else { found.on_the_cpu(tokenizer.is_some()) }
}

/// Logits and tokens of the three sides, beside those of the model in `f32`.
struct Found {
    /// Greedy tokens of the model in `f32`.
    tokens: Vec<u32>,
    /// The standard deviation of the logits after the prompt.
    spread: f32,
    /// How far the furthest of each side is.
    off: [f32; 3],
    /// Tokens that are the same.
    same: [usize; 3],
}

impl Found {
    /// An error if ours are not those of the weights.
    ///
    /// All multiply the same weights. The `f32` model does so by candle's `f32` product with decoded weights. Ours,
    /// which leaves x as it is, differs from it by the rounding of `f32` sums, some 2^-24 of what is added. Those with
    /// x in 8 bits round each x to 1/254 of the largest of 32: 2^15 times as coarse. How far that moves logits through
    /// 30 blocks no formula says; it is measured, and a side that does not round x may be no further off than 2^-10 of
    /// it. Of a trained model tokens are the same; random weights may have two tokens that are nearly as good.
    fn on_the_cpu(&self, trained: bool) -> Result<(), Box<dyn Error>> {
        let [ours, eight, candle] = self.off;
        if ours > eight.min(candle) * 2f32.powi(-10) {
            let what = "our logits are further from f32's than the rounding of sums explains";
            return Err(what.into());
        }
        if trained && self.same != [TOKENS; 3] {
            Err("greedy tokens differ".into())
        } else {
            Ok(())
        }
    }

    /// The same where all round activations: ours to 12 bits in f16. 30 blocks have some 450 steps that round, each
    /// by 2^-12 of what it rounds. A wrong product moves logits by their own size.
    fn on_a_gpu(&self) -> Result<(), Box<dyn Error>> {
        if self.off[1] > 450.0 * 2f32.powi(-12) * self.spread {
            return Err("our logits in f16 are further from f32's than rounding explains".into());
        }
        Ok(())
    }
}

/// Compares logits after the prompt, and greedy tokens, with the model in `f32`, which is on the CPU.
fn logits(path: &Path, prompt: &[u32], sides: &mut [Side; 3]) -> Result<Found, Box<dyn Error>> {
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
    let mut off = [0.0; 3];
    for (off, logits) in off.iter_mut().zip(&logits) {
        let logits = logits.to_device(&Device::Cpu)?;
        *off = (logits - &exact)?.abs()?.max(0)?.to_scalar::<f32>()?;
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
    Ok(Found { tokens, spread, off, same })
}

/// Measures in turns, and prints tokens a second. A call's time ends when its greedy token is known.
fn speed(prompt: &[u32], tokens: &[u32], sides: &mut [Side; 3]) -> Result<(), Box<dyn Error>> {
    let (mut read, mut written) = ([(); 3].map(|()| Vec::new()), [(); 3].map(|()| Vec::new()));
    for _ in 0..READS {
        for (side, times) in sides.iter_mut().zip(&mut read) {
            times.push(timed(|| greatest(&(side.next)(prompt, 0)?))?);
        }
    }
    let mut seen = prompt.len();
    for _ in 0..TURNS {
        let turn: Vec<u32> = (0..=TURN).map(|at| tokens[(seen + at) % tokens.len()]).collect();
        for (side, times) in sides.iter_mut().zip(&mut written) {
            for (at, token) in turn.iter().enumerate() {
                let time = timed(|| greatest(&(side.next)(&[*token], seen + at)?))?;
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
