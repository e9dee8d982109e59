//! Quantloom beside other software's products on the CPU, in turns.
//!
//! In: `--help` says it. Out: a Markdown table.
//!
//! Beside candle, in one process: W4A8 (int4 in groups of 32, dynamic int8 activations) beside candle's Q4K
//! (4.5 bits a weight, activations quantised to int8 in blocks); W4A16 beside candle's f32 product. Data is
//! random; each call takes another copy of its weight, all copies of a weight together being twice the last
//! level of cache. The bandwidth and the rate of the 8-bit dot product are measured in turns with them, since
//! a shared machine's change from second to second.
//!
//! Beside ggml, the library of llama.cpp, which is built from the sources of a PyPI package: see
//! [`beside_ggml`].

mod beside_ggml;
mod candle;
mod contest;
mod ggml;
mod ours;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use contest::{Contestant, medians};
use quantloom_tools::measure::{Arithmetic, Memory, Rate, last_level_cache, rates};

const SHAPES: [(usize, usize); 2] = [(4096, 4096), (14336, 4096)];
const TOKENS: [usize; 4] = [1, 8, 32, 128];

/// Times Quantloom's CPU products in turns with those of other software, and prints a Markdown table.
///
/// Both sides take all threads; RAYON_NUM_THREADS=2 limits both.
#[derive(Parser)]
struct Arguments {
    /// Whose products ours are compared with
    #[arg(long, value_enum, default_value_t = Peer::Candle)]
    against: Peer,
    /// Seconds of a cell of the table
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    budget: f64,
    /// A `ggml_bench` that is built already
    #[arg(long, value_name = "PROGRAM")]
    ggml_bench: Option<PathBuf>,
    /// Tokens of a product, separated by commas (ggml)
    #[arg(long, value_name = "M", value_delimiter = ',', default_values_t = [1, 8, 32, 128, 512])]
    m: Vec<usize>,
    /// Leave out weights with more rows (ggml)
    #[arg(long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true)]
    rows: usize,
    /// Whole expert layers in place of products (ggml)
    #[arg(long)]
    experts: bool,
    /// Only the tables whose heading, or the layers whose name, has this text (ggml)
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    only: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Peer {
    /// candle 0.11, in this process
    Candle,
    /// ggml 0.25, the library of llama.cpp: needs a C++ compiler, CMake and pip
    Ggml,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let budget = Duration::try_from_secs_f64(arguments.budget)?;
    match arguments.against {
        Peer::Candle => beside_candle(budget),
        Peer::Ggml => {
            let Arguments { ggml_bench, m, rows, experts, only, .. } = arguments;
            match ggml::Ggml::start(ggml_bench, rayon::current_num_threads())? {
                Some(mut ggml) if experts => {
                    beside_ggml::print_experts(&mut ggml, budget, &m, &only)
                }
                Some(mut ggml) => beside_ggml::print(&mut ggml, budget, &m, rows, &only),
                None => Ok(()),
            }
        }
    }
}

fn beside_candle(budget: Duration) -> Result<(), Box<dyn Error>> {
    let memory = Memory::beyond_the_caches();
    let dot = rates().into_iter().find(|rate| rate.arithmetic == Arithmetic::Int8Dot);
    let dot = dot.ok_or("this machine has no 8-bit dot product")?;
    println!(
        "{} threads; from registers {} computes {:.0} GOP/s; {} beside candle 0.11.\n",
        rayon::current_num_threads(),
        dot.instruction,
        dot.giga,
        ours::device().name(),
    );
    println!(
        "| N x K | M | W4A8 | Q4K | faster | read | of bandwidth | of {} | W4A16 | f32 | faster |",
        dot.instruction
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let (mut eight, mut sixteen) = (Vec::new(), Vec::new());
    for (n, k) in SHAPES {
        let shape = ShapeWeights::new(n, k)?;
        for m in TOKENS {
            let (quantised, float) = shape.row(m, &memory, &dot, budget)?;
            eight.push(quantised);
            sixteen.push(float);
        }
    }
    println!();
    for (name, ratios) in [("W4A8 against Q4K", eight), ("W4A16 against f32", sixteen)] {
        let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64;
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        println!("{name}: {:.2}x in geometric mean, {least:.2}x at least.", mean.exp());
    }
    Ok(())
}

/// All weights of a shape.
struct ShapeWeights {
    n: usize,
    k: usize,
    w4a8: ours::PreparedCopies,
    w4a16: ours::PreparedCopies,
    q4k: Vec<candle_core::quantized::QMatMul>,
    f32: Vec<candle_core::Tensor>,
}

impl ShapeWeights {
    fn new(n: usize, k: usize) -> Result<Self, Box<dyn Error>> {
        let copies = |bytes: usize| (2 * last_level_cache()).div_ceil(bytes).max(2);
        Ok(Self {
            n,
            k,
            w4a8: ours::layer(ours::W4A8, n, k)?,
            w4a16: ours::layer(ours::W4A16, n, k)?,
            // 144 bytes for 256 weights.
            q4k: candle::q4k(n, k, copies(n * k / 256 * 144))?,
            f32: candle::f32(n, k, copies(4 * n * k))?,
        })
    }

    /// Measures and prints a row; how many times faster than candle we are.
    fn row(
        &self,
        m: usize,
        memory: &Memory,
        dot: &Rate,
        budget: Duration,
    ) -> Result<(f64, f64), Box<dyn Error>> {
        let Self { n, k, w4a8, w4a16, q4k, f32 } = self;
        let tokens = candle::tokens(m, *k)?;
        let mut eight = ours::Call::new(w4a8, m);
        let mut sixteen = ours::Call::new(w4a16, m);
        let mut contestants = [
            Contestant {
                copies: w4a8.copies.len(),
                call: Box::new(|turn| eight.multiply(&w4a8.copies[turn])),
            },
            Contestant {
                copies: q4k.len(),
                call: Box::new(|turn| Ok(candle::quantised(&q4k[turn], &tokens)?)),
            },
            Contestant {
                copies: w4a16.copies.len(),
                call: Box::new(|turn| sixteen.multiply(&w4a16.copies[turn])),
            },
            Contestant {
                copies: f32.len(),
                call: Box::new(|turn| Ok(candle::float(&f32[turn], &tokens)?)),
            },
            Contestant {
                copies: 1,
                call: Box::new(|_| {
                    memory.sample();
                    Ok(())
                }),
            },
            Contestant {
                copies: 1,
                call: Box::new(|_| {
                    dot.sample();
                    Ok(())
                }),
            },
        ];
        let times = medians(&mut contestants, budget)?;
        let [ours, theirs, ours16, theirs16, reading, multiplying] = times[..] else {
            return Err("six contestants have six times".into());
        };
        let bandwidth = memory.bytes() as f64 / reading;
        let read = w4a8.copies[0].bytes() as f64 / ours;
        let peak = dot.operations() as f64 / multiplying;
        let rate = 2.0 * (m * n * k) as f64 / ours;
        let ms = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
        println!(
            "| {n} x {k} | {m} | {} | {} | {:.2}x | {:.1} GB/s | {:.0}% of {:.1} | {:.0}% of {:.0} | {} | {} | {:.2}x |",
            ms(ours),
            ms(theirs),
            theirs / ours,
            read / 1e9,
            read / bandwidth * 100.0,
            bandwidth / 1e9,
            rate / peak * 100.0,
            peak / 1e9,
            ms(ours16),
            ms(theirs16),
            theirs16 / ours16,
        );
        Ok((theirs / ours, theirs16 / ours16))
    }
}
