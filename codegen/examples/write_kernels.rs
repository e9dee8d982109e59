//! Writes kernels of int4 products as PTX, to be measured.
//!
//! ```text
//! cargo run --release -p quantloom-codegen --example write_kernels -- FOLDER
//! cargo run --release -p quantloom-codegen --example write_kernels -- FOLDER N K M [name=value ..]
//! ```
//!
//! The first form writes, for the shapes of docs/performance, what `choose` takes and tiles beside
//! it. The second writes one kernel; names are `scheme` (a .scheme file; int4 in groups of 128 with
//! bf16 scales otherwise), `target`, `schedule`, and the parameters of the schedule, which replace
//! those that `choose` takes. A line a kernel goes to FOLDER/kernels.tsv: file, M, N, K, schedule,
//! grid, threads, bytes of shared memory, and the bytes of each buffer in the order of arguments.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::{Extent, verify};
use quantloom_codegen::schedule::{Chosen, Problem, choose};
use quantloom_codegen::target::target;
use quantloom_dsl::parse;

const SYMMETRIC: &str = "w4a16 { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], \
                         activation: bf16 }";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (positional, named): (Vec<_>, Vec<_>) =
        arguments.iter().partition(|argument| !argument.contains('='));
    let named: BTreeMap<&str, &str> =
        named.iter().filter_map(|pair| pair.split_once('=')).collect();
    let (folder, shape) = positional.split_first().ok_or("usage: write_kernels FOLDER [N K M]")?;
    let folder = Path::new(folder.as_str());
    fs::create_dir_all(folder)?;
    let mut table = String::new();
    match shape {
        [] => {
            for (n, k) in [(4096, 4096), (8192, 8192), (8192, 28_672), (5760, 2880), (1024, 4096)] {
                for m in [1, 2, 4, 8, 16, 32, 64, 256] {
                    write_some(folder, (n, k, m), &named, &mut table)?;
                }
            }
        }
        [n, k, m] => {
            table += &write(folder, (n.parse()?, k.parse()?, m.parse()?), &named)?;
        }
        _ => return Err("expected N, K and M".into()),
    }
    fs::write(folder.join("kernels.tsv"), table)?;
    Ok(())
}

/// Other choices than the chosen: parameters and their values, each with each.
type Others = &'static [(&'static [&'static str], &'static [&'static [&'static str]])];
const DECODE: Others = &[
    (
        &["row_tiles", "warps", "min_blocks"],
        &[
            &["1", "16", "2"],
            &["2", "16", "2"],
            &["2", "16", "1"],
            &["2", "9", "2"],
            &["4", "16", "1"],
            &["4", "12", "1"],
            &["4", "8", "1"],
        ],
    ),
    (&["programmatic"], &[&["1"], &["0"]]),
];
const TILE: Others = &[
    (
        &["rows", "warps", "min_blocks"],
        &[&["256", "8", "1"], &["128", "8", "2"], &["128", "4", "2"], &["64", "4", "2"]],
    ),
    (&["splits"], &[&["1"], &["2"], &["4"]]),
];

/// The chosen kernel and others beside it.
fn write_some(
    folder: &Path,
    shape: (u32, u32, u32),
    named: &BTreeMap<&str, &str>,
    table: &mut String,
) -> Result<()> {
    *table += &write(folder, shape, named)?;
    let mut all = vec![named.clone()];
    for (names, values) in if shape.2 <= 16 { DECODE } else { TILE } {
        let with = |named: &BTreeMap<_, _>, values: &[&'static str]| {
            let mut named: BTreeMap<_, _> = named.clone();
            named.extend(names.iter().copied().zip(values.iter().copied()));
            named
        };
        all = all.iter().flat_map(|named| values.iter().map(|v| with(named, v))).collect();
    }
    for named in all {
        // What is the same kernel again is the same file; what does not fit is left out.
        if let Ok(line) = write(folder, shape, &named)
            && !table.contains(&line)
        {
            *table += &line;
        }
    }
    Ok(())
}

/// Writes one kernel; returns its line of the table.
fn write(
    folder: &Path,
    (n, k, m): (u32, u32, u32),
    named: &BTreeMap<&str, &str>,
) -> Result<String> {
    let text = match named.get("scheme") {
        Some(path) => fs::read_to_string(path)?,
        None => SYMMETRIC.to_owned(),
    };
    let scheme = parse(&text).map_err(|faults| format!("{faults}"))?;
    let name = named.get("target").copied().unwrap_or("sm_90a");
    let target = target(name).ok_or_else(|| format!("there is no target {name}"))?;
    let problem = Problem::new(&scheme, &scheme.activations[0], target, (n, k))?;
    let chosen = with(choose(&problem, m)?, named)?;
    let kernel = verify(chosen.write(&problem)?).map_err(|refusals| refusals.to_string())?;
    let file = format!("{}.ptx", kernel.name);
    fs::write(folder.join(&file), ptx::emit(&kernel)?)?;

    let value = |extent: &Extent| extent.value(&[m]).unwrap_or(0);
    let grid = kernel.launch.grid.map(|extent| value(&extent).to_string()).join("x");
    let (threads, shared) = (kernel.launch.threads, kernel.shared_map().bytes);
    let parameters = chosen.parameters();
    let parameters = parameters.iter().map(|(name, value)| format!("{name}={value}"));
    let schedule = format!("{} {}", chosen.name(), parameters.collect::<Vec<_>>().join(" "));
    let mut line = format!("{file}\t{m}\t{n}\t{k}\t{schedule}\t{grid}\t{threads}\t{shared}");
    for buffer in &kernel.buffers {
        let words: u64 = buffer.shape.iter().map(|extent| u64::from(value(extent))).product();
        write!(line, "\t{}:{}", buffer.name, words * u64::from(buffer.word.bytes()))?;
    }
    Ok(line + "\n")
}

/// The choice with the parameters that are named.
fn with(chosen: Chosen, named: &BTreeMap<&str, &str>) -> Result<Chosen> {
    let mut parameters: BTreeMap<String, u64> =
        chosen.parameters().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    for (name, value) in named {
        if !["scheme", "target", "schedule"].contains(name) {
            parameters.insert((*name).to_owned(), value.parse()?);
        }
    }
    let schedule = named.get("schedule").copied().unwrap_or(chosen.name());
    Ok(Chosen::read(schedule, &parameters)?)
}
