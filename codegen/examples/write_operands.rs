//! Writes the kernels that make a product's operand of x as PTX, to be measured.
//!
//! ```text
//! cargo run --release -p quantloom-codegen --example write_operands -- FOLDER
//! cargo run --release -p quantloom-codegen --example write_operands -- FOLDER M K ACTIVATION OPERAND
//! ```
//!
//! ACTIVATION is a clause as in a scheme, `i8 { scale: own per token }`, with x in bf16 and scales in
//! its arithmetic; OPERAND is i8, e4m3, bf16 or f16. The first form writes some of each. A line a
//! kernel goes to FOLDER/operands.tsv: file, M, K, activation, operand, grid, threads, bytes of shared
//! memory, and the bytes of each buffer in the order of arguments; m follows them.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use quantloom_codegen::emit::ptx;
use quantloom_codegen::ir::{Extent, verify};
use quantloom_codegen::plan::OperandType;
use quantloom_codegen::schedule::activation::{ActivationProblem, activation};
use quantloom_codegen::target::target;
use quantloom_dsl::format::NUMBER_BF16;
use quantloom_dsl::parse;

const SOME: &[(&str, &str)] = &[
    ("bf16", "bf16"),
    ("i8 { scale: own per token }", "i8"),
    ("i8 { zero: i8, scale: f32 per token, ties: away }", "bf16"),
    ("i8 { scale: f32 per tensor from amax / 127 static }", "i8"),
    ("i8 { scale: f32 per tensor from amax / 127 }", "i8"),
    ("e4m3 { scale: own per token }", "e4m3"),
    ("e4m3 { scale: f32 per 1x128 }", "e4m3"),
    ("e4m3 { scale: f32 per 1x128 }", "bf16"),
    ("e4m3 { scale: e8m0 per 1x32 from pow2 above 1.75 }", "bf16"),
    ("e2m1 { scale: e8m0 per 1x32 from pow2 above 1.75 }", "bf16"),
    ("e2m1 { scale: e4m3 per 1x16, scale: f32 per tensor from amax / 2688 static }", "bf16"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: write_operands FOLDER [M K ACTIVATION OPERAND]";
    let (folder, rest) = arguments.split_first().ok_or(usage)?;
    let folder = Path::new(folder);
    fs::create_dir_all(folder)?;
    let mut table = String::new();
    match rest {
        [] => {
            for (m, k) in [(1, 8192), (16, 8192), (256, 8192), (4096, 8192), (4096, 28_672)] {
                for (activation, operand) in SOME {
                    table += &write(folder, (m, k), activation, operand)?;
                }
            }
        }
        [m, k, activation, operand] => {
            table += &write(folder, (m.parse()?, k.parse()?), activation, operand)?;
        }
        _ => return Err(usage.into()),
    }
    fs::write(folder.join("operands.tsv"), table)?;
    Ok(())
}

/// Writes the kernels of an operand; returns their lines of the table.
fn write(
    folder: &Path,
    (m, k): (u32, u32),
    clause: &str,
    operand: &str,
) -> Result<String, Box<dyn Error>> {
    let text = format!(
        "x {{ weight: i8, scale: f32 per channel, pack: u8 [code | k, n], activation: {clause}, \
         arithmetic: own }}"
    );
    let scheme = parse(&text).map_err(|faults| format!("{faults}"))?;
    let known = [OperandType::I8, OperandType::E4m3, OperandType::Bf16, OperandType::F16];
    let operand = known.into_iter().find(|known| known.to_string() == operand);
    let operand = operand.ok_or("the operand is i8, e4m3, bf16 or f16")?;
    let target = target("sm_90a").ok_or("there is no target sm_90a")?;
    let shape = (k, k.next_multiple_of(64));
    let activation_of = &scheme.activations[0];
    let problem =
        ActivationProblem::new(&scheme, activation_of, NUMBER_BF16, operand, target, shape, false)?;
    let mut lines = String::new();
    for kernel in activation(&problem, true) {
        let kernel = verify(kernel).map_err(|refusals| refusals.to_string())?;
        // Names do not say how scales are chosen.
        let clause_name: String = clause.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        let file = format!("{clause_name}__{}.ptx", kernel.name);
        fs::write(folder.join(&file), ptx::emit(&kernel)?)?;
        let value = |extent: &Extent| extent.value(&[m]).unwrap_or(0);
        let grid = kernel.launch.grid.map(|extent| value(&extent).to_string()).join("x");
        let (threads, shared) = (kernel.launch.threads, kernel.shared_map().bytes);
        write!(lines, "{file}\t{m}\t{k}\t{clause}\t{operand}\t{grid}\t{threads}\t{shared}")?;
        for buffer in &kernel.buffers {
            let words: u64 = buffer.shape.iter().map(|extent| u64::from(value(extent))).product();
            write!(lines, "\t{}:{}", buffer.name, words * u64::from(buffer.word.bytes()))?;
        }
        lines.push('\n');
    }
    Ok(lines)
}
