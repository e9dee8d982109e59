//! Our products beside ggml's: bursts of calls in turns, and the ratio of each round.
//!
//! In: the seconds of a cell. Out: a Markdown table.

use std::error::Error;
use std::time::{Duration, Instant};

use quantloom_tools::measure::{median, seconds};

use crate::ggml::{Ggml, GgmlWeights};
use crate::ours;

/// Products that are compared.
struct Case {
    name: &'static str,
    scheme: &'static str,
    /// Ours is compared with the fastest of these, for each number of tokens.
    kinds: &'static [GgmlWeights],
}

const CASES: [Case; 5] = [
    Case {
        name: "4 bits, x with one scale a token (ggml: one of 32 or 256 columns)",
        scheme: ours::W4A8,
        kinds: &[
            GgmlWeights::repack("q4_0"),
            GgmlWeights::repack("q4_K"),
            GgmlWeights::plain("q4_K"),
        ],
    },
    Case {
        name: "4 bits, x in groups of 32: the same numbers as Q4_0",
        scheme: "w4a8_g32_x32 {
            weight: u4 - 8,
            scale: f16 per 1x32,
            pack: u8 [k:2 | k, n],
            activation: i8 { scale: f16 per 1x32 },
        }",
        kinds: &[GgmlWeights::repack("q4_0"), GgmlWeights::plain("q4_0")],
    },
    Case {
        name: "8 bits, x in groups of 32: the same numbers as Q8_0",
        scheme: "w8a8_g32_x32 {
            weight: i8,
            scale: f16 per 1x32,
            pack: [k, n],
            activation: i8 { scale: f16 per 1x32 },
        }",
        kinds: &[GgmlWeights::plain("q8_0")],
    },
    Case {
        name: "MXFP4, x in int8 in groups of 32 on both sides",
        scheme: "mxfp4a8_x32 {
            weight: e2m1,
            scale: e8m0 per 1x32,
            pack: u8 [k:2 | k, n],
            activation: i8 { scale: f16 per 1x32 },
        }",
        kinds: &[GgmlWeights::repack("mxfp4"), GgmlWeights::plain("mxfp4")],
    },
    Case {
        name: "4 bits, x rounded to bf16 (ggml: weights in bf16)",
        scheme: ours::W4A16,
        kinds: &[GgmlWeights::plain("bf16")],
    },
];

const SHAPES: [(usize, usize); 4] = [(768, 2048), (2048, 2048), (4096, 4096), (14336, 4096)];

/// A burst of one side.
const BURST: Duration = Duration::from_millis(120);

/// Prints the tables whose name has the text `only`, of the shapes that have at most `rows` rows.
pub fn print(
    ggml: &mut Ggml,
    budget: Duration,
    tokens: &[usize],
    rows: usize,
    only: &str,
) -> Result<(), Box<dyn Error>> {
    println!(
        "{} threads on both sides; {}; bursts of {} ms in turns; ms, median of the rounds [least, most].\n",
        rayon::current_num_threads(),
        ours::device().name(),
        BURST.as_millis(),
    );
    let mut ratios = Vec::new();
    for case in CASES.iter().filter(|case| case.name.contains(only)) {
        println!("**{}**\n", case.name);
        println!("| N x K | M | ours | ggml's best | which | ggml over ours |");
        println!("|---|---|---|---|---|---|");
        for shape in SHAPES.into_iter().filter(|(n, _)| *n <= rows) {
            let layer = ours::layer(case.scheme, shape.0, shape.1)?;
            for &m in tokens {
                let cell = cell(ggml, case, &layer, shape, m, budget)?;
                ratios.push(cell.ratio.1);
                println!("{}", cell.row(shape, m));
            }
        }
        println!();
    }
    let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64;
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    println!("ggml over ours: {:.2}x in geometric mean, {least:.2}x at least.", mean.exp());
    Ok(())
}

/// What a cell of the table says.
struct Cell {
    kind: GgmlWeights,
    ours: f64,
    theirs: f64,
    /// Least, median, most.
    ratio: (f64, f64, f64),
}

impl Cell {
    fn row(&self, (n, k): (usize, usize), m: usize) -> String {
        let ms = |seconds: f64| format!("{:.3}", seconds * 1e3);
        let (least, ratio, most) = self.ratio;
        format!(
            "| {n} x {k} | {m} | {} | {} | {} | **{ratio:.2}** [{least:.2}, {most:.2}] |",
            ms(self.ours),
            ms(self.theirs),
            self.kind,
        )
    }
}

fn cell(
    ggml: &mut Ggml,
    case: &Case,
    layer: &ours::PreparedCopies,
    shape: (usize, usize),
    m: usize,
    budget: Duration,
) -> Result<Cell, Box<dyn Error>> {
    let mut call = ours::Call::new(layer, m);
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); case.kinds.len()];
    let start = Instant::now();
    while ours.len() < 5 || start.elapsed() < budget {
        ours.push(burst(&mut call, layer)?);
        for (kind, times) in case.kinds.iter().zip(&mut theirs) {
            times.push(ggml.matmul(*kind, shape, m, BURST)?);
        }
    }
    let mut best: Option<Cell> = None;
    for (kind, times) in case.kinds.iter().zip(&theirs) {
        let mut ratios: Vec<f64> =
            ours.iter().zip(times).map(|(ours, theirs)| theirs / ours).collect();
        let middle = median(&mut ratios);
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        if best.as_ref().is_none_or(|best| middle < best.ratio.1) {
            best = Some(Cell {
                kind: *kind,
                ours: median(&mut ours.clone()),
                theirs: median(&mut times.clone()),
                ratio: (least, middle, most),
            });
        }
    }
    best.ok_or_else(|| "a case without a kind".into())
}

/// The median time of the calls of a burst, without those of its first fifth.
fn burst(call: &mut ours::Call, layer: &ours::PreparedCopies) -> Result<f64, Box<dyn Error>> {
    let mut times = Vec::new();
    let start = Instant::now();
    let mut turn = 0;
    while times.len() < 3 || start.elapsed() < BURST {
        let counts = start.elapsed() > BURST / 5;
        let mut done = Ok(());
        let time = seconds(|| done = call.multiply(&layer.copies[turn % layer.copies.len()]));
        done?;
        turn += 1;
        if counts {
            times.push(time);
        }
    }
    Ok(median(&mut times))
}
