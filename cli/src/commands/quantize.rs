//! `quantloom quantize`

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use quantloom::runtime::checkpoint::{Checkpoint, Tensors};
use quantloom::runtime::quantise::{Candidate, Outcome, candidates, quantise_checkpoint};

use super::{print_line, scheme, shape, size, table};
use crate::atomic_write::Replace;
use crate::progress::Progress;

#[derive(Args)]
pub(crate) struct Arguments {
    /// A .safetensors file or a model directory with float weights.
    path: PathBuf,
    /// A catalogue name or a .scheme file.
    #[arg(long)]
    scheme: String,
    /// The file to write, in the scheme's own checkpoint layout.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Quantise only layers whose name contains one of these.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Leave layers as they are whose name contains one of these. Layers named `gate` (routers
    /// of experts) are left too, unless --only names them.
    #[arg(long, value_name = "TEXT", default_values_t = ["lm_head", "embed", "norm", "router"].map(str::to_owned))]
    ignore: Vec<String>,
    #[command(flatten)]
    replace: Replace,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let scheme = scheme(&arguments.scheme)?;
    let inputs = [arguments.path.as_path(), Path::new(&arguments.scheme)];
    arguments.replace.check(&[("--out", &arguments.out)], &inputs)?;
    refuse_quantised(&arguments.path)?;
    let tensors = Tensors::open(&arguments.path)?;
    let contains = |layer: &str, texts: &[String]| texts.iter().any(|text| layer.contains(text));
    let wanted = |candidate: &Candidate| {
        let only = arguments.only.is_empty() || contains(&candidate.layer, &arguments.only);
        let router =
            arguments.only.is_empty() && candidate.layer.rsplit('.').next() == Some("gate");
        only && !router && !contains(&candidate.layer, &arguments.ignore)
    };
    let (chosen, left): (Vec<Candidate>, Vec<Candidate>) =
        candidates(&tensors, &scheme).into_iter().partition(wanted);
    if let (true, Some(left)) = (chosen.is_empty(), left.first()) {
        bail!(
            "--only and --ignore leave no layer of {} to quantise; {} would be one: `--only {}`",
            arguments.path.display(),
            left.layer,
            left.layer
        );
    }
    if chosen.is_empty() {
        let dimensions = if scheme.experts.is_some() { "three" } else { "two" };
        bail!(
            "{} holds no float weight to quantise: {dimensions}-dimensional tensors named *.weight \
             are looked for",
            arguments.path.display()
        );
    }
    let static_input = scheme.quantiser().is_some_and(|q| q.scales.iter().any(|s| s.stored));
    let weights: u64 = chosen.iter().filter_map(|candidate| candidate.shape.elements()).sum();
    let progress = Progress::new("quantising", weights);
    let outcomes = quantise_checkpoint(&tensors, &scheme, &chosen, &arguments.out, &|weights| {
        progress.advance(weights);
    });
    drop(progress);
    let outcomes = outcomes.context("nothing was written")?;
    let mut rows = table(&["layer", "shape", "before", "after", "SQNR"]);
    for outcome in &outcomes {
        rows.add_row([
            outcome.layer.clone(),
            shape(outcome.shape),
            size(outcome.bytes.0),
            size(outcome.bytes.1),
            match outcome.sqnr {
                f64::INFINITY => "exact".to_owned(),
                sqnr => format!("{sqnr:.2} dB"),
            },
        ]);
    }
    print_line(rows)?;
    for what in scheme.clipping() {
        print_line(format_args!("note: {what}"))?;
    }
    warn_of_loss(&outcomes)?;
    if static_input {
        print_line(
            "the activation's static scales are 1: weights alone do not tell them, calibrate them",
        )?;
    }
    print_line(format_args!("wrote {}", arguments.out.display()))?;
    Ok(true)
}

/// Below this many dB the error is half as large as the weights.
const LEAST_SQNR: f64 = 6.0;

/// Says which layers have lost their weights: all of them 0, or far from what they were.
fn warn_of_loss(outcomes: &[Outcome]) -> Result<()> {
    let lost: Vec<&Outcome> = outcomes.iter().filter(|o| o.sqnr < LEAST_SQNR).collect();
    let Some(worst) = lost.iter().min_by(|a, b| a.sqnr.total_cmp(&b.sqnr)) else { return Ok(()) };
    let layers = if lost.len() == 1 { "layer has" } else { "layers have" };
    print_line(format_args!(
        "warning: {} {layers} lost most of the weights (SQNR below {LEAST_SQNR} dB, {:.2} dB in {}): \
         the scheme's codes and scales do not hold such weights",
        lost.len(),
        worst.sqnr,
        worst.layer
    ))
}

/// A file has one quantisation configuration: a second one would make the first one's layers
/// unreadable.
fn refuse_quantised(path: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(path)?;
    let layers = checkpoint.layers().count();
    if checkpoint.config().is_some() || layers > 0 {
        bail!(
            "{} is quantised already ({}, {layers} layers); quantize starts from float weights, \
             `quantloom dequantize` gives those of a layer",
            path.display(),
            checkpoint.format().name()
        );
    }
    Ok(())
}
