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
use crate::{load, text};

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

/// Prints the comparison; an error if logits or tokens are not as they should be.
pub(crate) fn compare(path: &Path, prompt: &str) -> Result<(), Box<dyn Error>> {
    let device = Device::Cpu;
    let mut ours = load(path, DType::F32, &device)?;
    let mut candle = {
        let mut file = File::open(path)?;
        ModelWeights::from_gguf(Content::read(&mut file)?, &mut file, &device)?
    };
    let tokenizer = text::tokenizer(path)?;
    let prompt = text::tokens(&tokenizer, prompt)?;
    let tokens = logits(path, &prompt, &mut ours, &mut candle)?;
    println!("The answer begins: {:?}\n", text::text(&tokenizer, &tokens)?);
    speed(&prompt, &tokens, &mut ours, &mut candle)
}

/// Compares logits with the model in `f32` after the prompt, and greedy tokens; our tokens.
///
/// All three multiply the same weights: `float` by candle's `f32` product, ours without rounding x, candle's
/// quantised product with x rounded to 8 bits in blocks of 32. So ours differs from `float` by the rounding of
/// `f32` sums, some 2^-24 of each, and candle's by some 2^-9 of the largest x of a block: that is
/// what a difference of logits is measured with.
fn logits(
    path: &Path,
    prompt: &[u32],
    ours: &mut Llama,
    candle: &mut ModelWeights,
) -> Result<Vec<u32>, Box<dyn Error>> {
    let device = Device::Cpu;
    let linear = |layer: &Layer| -> CandleResult<Linear> { Ok(Box::new(Float::new(layer)?)) };
    let mut float = Llama::load(&Checkpoint::open(path)?, DType::F32, &device, &linear)?;
    let mut float_logits = float.next(prompt)?;
    let mut our_logits = ours.next(prompt)?;
    let mut candle_logits = next(candle, prompt, 0)?;
    let spread = deviation(&float_logits)?;
    let [ours_off, candle_off, between] = [
        difference(&our_logits, &float_logits)?,
        difference(&candle_logits, &float_logits)?,
        difference(&our_logits, &candle_logits)?,
    ];
    println!("Logits after {} tokens; their standard deviation is {spread:.3}.\n", prompt.len());
    println!("| | greatest difference |\n|---|---|");
    println!("| Quantloom and f32 | {ours_off:.2e} |");
    println!("| candle's quantised llama and f32 | {candle_off:.2e} |");
    println!("| Quantloom and candle's quantised llama | {between:.2e} |\n");
    let (mut tokens, mut same) = (Vec::new(), 0);
    for at in 0..TOKENS {
        let all = [greatest(&our_logits)?, greatest(&candle_logits)?, greatest(&float_logits)?];
        same += usize::from(all[0] == all[1] && all[0] == all[2]);
        tokens.push(all[0]);
        our_logits = ours.next(&all[..1])?;
        float_logits = float.next(&all[..1])?;
        candle_logits = next(candle, &all[..1], prompt.len() + at)?;
    }
    println!("{same} of the first {TOKENS} greedy tokens are the same on all three.\n");
    if ours_off > candle_off / 8.0 {
        return Err(
            "our logits are further from f32's than products without rounded x may be".into()
        );
    }
    if same < TOKENS { Err("greedy tokens differ".into()) } else { Ok(tokens) }
}

/// Measures both in turns, and prints tokens a second.
fn speed(
    prompt: &[u32],
    tokens: &[u32],
    ours: &mut Llama,
    candle: &mut ModelWeights,
) -> Result<(), Box<dyn Error>> {
    let mut read = [Vec::new(), Vec::new()];
    for _ in 0..READS {
        ours.forget();
        read[0].push(timed(|| ours.next(prompt))?);
        read[1].push(timed(|| next(candle, prompt, 0))?);
    }
    let mut written = [Vec::new(), Vec::new()];
    let mut at = prompt.len();
    for _ in 0..TURNS {
        let turn: Vec<u32> = (0..=TURN).map(|step| tokens[(at + step) % tokens.len()]).collect();
        for (step, token) in turn.iter().enumerate() {
            let time = timed(|| ours.next(&[*token]))?;
            if step > 0 {
                written[0].push(time);
            }
        }
        for (step, token) in turn.iter().enumerate() {
            let time = timed(|| next(candle, &[*token], at + step))?;
            if step > 0 {
                written[1].push(time);
            }
        }
        at += turn.len();
    }
    let [our_read, candle_read] = read.map(median);
    let [our_write, candle_write] = written.map(median);
    println!(
        "Tokens a second, medians of turns, {} threads, contexts of {} to {at}:\n",
        rayon::current_num_threads(),
        prompt.len(),
    );
    println!("| | reading {} tokens | writing |\n|---|---|---|", prompt.len());
    let row = |name: &str, read: f64, write: f64| {
        println!("| {name} | {:.1} | {:.1} |", prompt.len() as f64 / read, 1.0 / write);
    };
    row("Quantloom", our_read, our_write);
    row("candle's quantised llama", candle_read, candle_write);
    println!("| faster | {:.2}x | {:.2}x |", candle_read / our_read, candle_write / our_write);
    Ok(())
}

/// candle's logits, [vocabulary].
fn next(candle: &mut ModelWeights, tokens: &[u32], seen: usize) -> CandleResult<Tensor> {
    let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    candle.forward(&tokens, seen)?.squeeze(0)
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

fn difference(one: &Tensor, other: &Tensor) -> CandleResult<f32> {
    (one - other)?.abs()?.max(0)?.to_scalar()
}

fn deviation(logits: &Tensor) -> CandleResult<f32> {
    logits.var(0)?.sqrt()?.to_scalar()
}
