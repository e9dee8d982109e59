//! Our products beside ggml's: bursts of calls in turns, and the ratio of each round.
//!
//! In: the seconds of a cell. Out: a Markdown table.

use std::error::Error;
use std::time::{Duration, Instant};

use quantloom::dsl::experts::ExpertLayer;
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

/// The numbers of Q4_0, times those of Q8_0.
const Q4_0: &str = "w4a8_g32_x32 {
    weight: u4 - 8,
    scale: f16 per 1x32,
    pack: u8 [k:2 | k, n],
    activation: i8 { scale: f16 per 1x32 },
}";

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
        scheme: Q4_0,
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

/// Whole expert layers that are compared.
struct Layer {
    name: &'static str,
    text: &'static str,
    kinds: &'static [GgmlWeights],
}

const LAYERS: [Layer; 3] = [
    Layer {
        name: "Qwen3-30B-A3B",
        text: "128 experts of 2048 x 768, top 8, softmax renormalised, silu",
        kinds: &[
            GgmlWeights::repack("q4_0"),
            GgmlWeights::repack("q4_K"),
            GgmlWeights::plain("q4_K"),
        ],
    },
    Layer {
        name: "Mixtral-8x7B",
        text: "8 experts of 4096 x 14336, top 2, softmax renormalised, silu",
        kinds: &[
            GgmlWeights::repack("q4_0"),
            GgmlWeights::repack("q4_K"),
            GgmlWeights::plain("q4_K"),
        ],
    },
    Layer {
        name: "gpt-oss-20b",
        text: "32 experts of 2880 x 2880, top 4, softmax renormalised, swigluoai alpha 1.702 limit 7",
        // Rows of 2880 columns are not whole blocks of 256.
        kinds: &[GgmlWeights::repack("q4_0"), GgmlWeights::plain("q4_0")],
    },
];

/// Prints the table of whole expert layers whose name has the text `only`: ours from ids to y, ggml's three
/// products alone.
pub fn print_experts(
    ggml: &mut Ggml,
    budget: Duration,
    tokens: &[usize],
    only: &str,
) -> Result<(), Box<dyn Error>> {
    println!(
        "{} threads on both sides; {}; int4 with the numbers of Q4_0, x and h in int8 in groups of 32; ours from ids to \
         y, ggml's three products alone, without activation and sums; ms, median of the rounds [least, most].\n",
        rayon::current_num_threads(),
        ours::device().name(),
    );
    println!("| layer | M | ours | ggml's best | which | ggml over ours |");
    println!("|---|---|---|---|---|---|");
    let mut ratios = Vec::new();
    for layer in LAYERS.iter().filter(|layer| layer.name.contains(only)) {
        let parsed: ExpertLayer = layer.text.parse()?;
        let op = ours::experts(Q4_0, &parsed)?;
        for &m in tokens {
            let mut call = ours::ExpertCalls::new(&parsed, m);
            let mut of_ours = || burst(&mut |turn| call.forward(op.as_ref(), turn));
            let mut of_ggml = |kind| ggml.experts(kind, &parsed, m, BURST);
            let cell = rounds(layer.kinds, budget, &mut of_ours, &mut of_ggml)?;
            ratios.push(cell.ratio.1);
            println!("{}", cell.row(layer.name, m));
        }
    }
    print_mean(&ratios);
    Ok(())
}

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
                let mut call = ours::Call::new(&layer, m);
                let copies = &layer.copies;
                let mut of_ours = || burst(&mut |turn| call.multiply(&copies[turn % copies.len()]));
                let mut of_ggml = |kind| ggml.matmul(kind, shape, m, BURST);
                let cell = rounds(case.kinds, budget, &mut of_ours, &mut of_ggml)?;
                ratios.push(cell.ratio.1);
                println!("{}", cell.row(&format!("{} x {}", shape.0, shape.1), m));
            }
        }
        println!();
    }
    print_mean(&ratios);
    Ok(())
}

fn print_mean(ratios: &[f64]) {
    let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64;
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    println!("ggml over ours: {:.2}x in geometric mean, {least:.2}x at least.", mean.exp());
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
    fn row(&self, name: &str, m: usize) -> String {
        let ms = |seconds: f64| format!("{:.3}", seconds * 1e3);
        let (least, ratio, most) = self.ratio;
        format!(
            "| {name} | {m} | {} | {} | {} | **{ratio:.2}** [{least:.2}, {most:.2}] |",
            ms(self.ours),
            ms(self.theirs),
            self.kind,
        )
    }
}

/// Bursts of both sides in turns, until the budget is spent.
fn rounds(
    kinds: &[GgmlWeights],
    budget: Duration,
    of_ours: &mut dyn FnMut() -> Result<f64, Box<dyn Error>>,
    of_ggml: &mut dyn FnMut(GgmlWeights) -> Result<f64, Box<dyn Error>>,
) -> Result<Cell, Box<dyn Error>> {
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); kinds.len()];
    let start = Instant::now();
    while ours.len() < 5 || start.elapsed() < budget {
        ours.push(of_ours()?);
        for (kind, times) in kinds.iter().zip(&mut theirs) {
            times.push(of_ggml(*kind)?);
        }
    }
    let mut best: Option<Cell> = None;
    for (kind, times) in kinds.iter().zip(&theirs) {
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
fn burst(call: &mut dyn FnMut(usize) -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut times = Vec::new();
    let start = Instant::now();
    let mut turn = 0;
    while times.len() < 3 || start.elapsed() < BURST {
        let counts = start.elapsed() > BURST / 5;
        let mut done = Ok(());
        let time = seconds(|| done = call(turn));
        done?;
        turn += 1;
        if counts {
            times.push(time);
        }
    }
    Ok(median(&mut times))
}
