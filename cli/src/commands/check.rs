//! `quantloom check`

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use quantloom::runtime::backend::Backend;
use quantloom::runtime::checkpoint::{Checkpoint, CheckpointExperts};
use quantloom::runtime::experts::ExpertOptions;
use quantloom_tools::check::{Finding, Subject, Verdict, check, expert_tokens, tokens};
use quantloom_tools::forward::experts::PreparedExperts;

use super::{Reading, eprint_line, label, labels, print_line, table, with_causes};
use crate::progress::Progress;

#[derive(Args)]
#[command(
    after_help = "For a layer P the file holds `ref.P.weight`, the decoded weight [N, K]; or \
    `ref.P.x` and `ref.P.y`, an activation and its product; or all three. `P.` is left out if there is \
    one layer. x in f32 whose numbers are all numbers of the 16-bit type of the first scale (bf16 if that is none) is of \
    that type, in which models compute. Stacked experts have `ref.X` [E, K, N], X the last part of the layer's name. Of a whole \
    expert layer, `ref.P.x` and `ref.P.y` [M, H], and `ref.P.router_0`, `_1` and `_2`: the router's logits, \
    weights and ids.\n\n\
    Examples:\n  \
    quantloom check layer.safetensors\n  \
    quantloom check layer.safetensors --scheme my.scheme --shape 4096x4096\n  \
    quantloom check model/ --backend sim:sm_90a --allow-unchecked"
)]
pub(crate) struct Arguments {
    /// Safetensors files (or model directories) that carry ref.* tensors.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// What multiplies: `auto` (the fastest device), or a device by its name, as `quantloom devices` lists
    /// them. `cpu` by default, so that the verdict on a file is the same with and without a GPU, which has
    /// no kernels for some schemes.
    #[arg(long, default_value = "cpu")]
    backend: String,
    /// The layer whose scheme --scheme gives, as its tensors are named; may be left out if only one
    /// has all tensors.
    #[arg(long, value_name = "NAME", requires = "scheme")]
    layer: Option<String>,
    /// Exit with status 0 although something could not be checked, such as a product that the backend
    /// has no kernel for. Without it, that is a failure.
    #[arg(long)]
    allow_unchecked: bool,
    /// Also print, of each product, which kernel multiplies, and why not another; of each expert layer its
    /// launches.
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    reading: Reading,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let device = super::backend::device(&arguments.backend)?;
    let mut rows = table(&["file", "layer", "scheme", "compared", "error", "bound", "verdict"]);
    let mut faults = Vec::new();
    let mut notes = Vec::new();
    let mut explained = Vec::new();
    let (mut compared, mut skipped) = (0, 0);
    let progress = Progress::new("checking", arguments.paths.len() as u64);
    for path in &arguments.paths {
        let file = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let before = compared + skipped + faults.len();
        match arguments.reading.open(path, arguments.layer.as_deref()) {
            Err(error) => faults.push(format!("{}: {}", path.display(), with_causes(&error))),
            Ok(checkpoint) => {
                for finding in check(&checkpoint, device.backend()) {
                    let layer = checkpoint.layer(&finding.layer).ok();
                    if arguments.explain && finding.subject == Subject::Product {
                        let lines = explain(&checkpoint, &finding.layer, device.backend())
                            .unwrap_or_else(|error| with_causes(&error));
                        explained.push(format!("{file}: {}: {lines}", finding.layer));
                    }
                    let scheme = match layer {
                        Some(layer) => label(layer.scheme()),
                        None => of_experts(&checkpoint, &finding.layer),
                    };
                    rows.add_row(row(&file, &scheme, &finding));
                    match &finding.verdict {
                        Verdict::Pass => compared += 1,
                        Verdict::NotChecked(why) => {
                            skipped += 1;
                            notes.push(format!("{file}: {} is not checked: {why}", finding.layer));
                        }
                        Verdict::Fail(what) => {
                            faults.push(format!("{}: {}: {what}", path.display(), finding.layer));
                        }
                    }
                }
                if compared + skipped + faults.len() == before {
                    faults.push(format!(
                        "{}: it holds nothing to compare with: no quantised layer that has ref.* \
                         tensors",
                        path.display()
                    ));
                }
            }
        }
        progress.advance(1);
    }
    drop(progress);
    for lines in explained {
        eprint_line(&lines);
    }
    if !rows.is_empty() {
        print_line(rows)?;
    }
    for note in notes {
        print_line(note)?;
    }
    print_line(format_args!("{compared} passed, {} failed, {skipped} not checked", faults.len()))?;
    for fault in &faults {
        eprint_line(&format!("quantloom: {fault}"));
    }
    let unchecked = skipped > 0 && !arguments.allow_unchecked;
    if unchecked && faults.is_empty() {
        eprint_line(&format!("quantloom: {skipped} not checked; --allow-unchecked accepts that"));
    }
    // A comparison of nothing is no success.
    Ok(faults.is_empty() && compared > 0 && !unchecked)
}

/// The kernels that multiply the reference of a layer, or of an expert layer, and why not others.
fn explain(checkpoint: &Checkpoint, name: &str, backend: &dyn Backend) -> Result<String> {
    if let Ok(layer) = checkpoint.layer(name) {
        return Ok(layer.prepare(backend)?.explain(tokens(checkpoint, layer)));
    }
    let experts = checkpoint.expert_layer(name)?;
    let prepared = PreparedExperts::new(&experts, backend, &ExpertOptions::default(), false)?;
    Ok(prepared.op().explain(expert_tokens(checkpoint, &experts)))
}

/// The schemes of an expert layer, if there is one of this name that is quantised.
fn of_experts(checkpoint: &Checkpoint, name: &str) -> String {
    let experts = checkpoint.expert_layer(name).ok();
    let schemes = experts.as_ref().and_then(CheckpointExperts::stored_schemes);
    schemes.map_or_else(String::new, labels)
}

fn row(file: &str, scheme: &str, finding: &Finding) -> [String; 7] {
    let subject = match finding.subject {
        Subject::Weight => "weight",
        Subject::Product => "product",
        Subject::Layer => "layer",
        Subject::Routing => "routing",
        Subject::Reference => "reference",
        Subject::Nothing => "nothing",
    };
    let shown = |value: Option<f64>| match (value, finding.subject) {
        (None, _) => String::new(),
        (Some(value), Subject::Routing | Subject::Reference) => format!("{value:.1e}"),
        (Some(value), Subject::Product) if value < 1e-4 => format!("{value:.1e}"),
        (Some(value), Subject::Product) => format!("{:.2}%", value * 100.0),
        (Some(value), _) => format!("{value:.2} {}", finding.unit),
    };
    let verdict = match &finding.verdict {
        Verdict::Pass => "ok".to_owned(),
        Verdict::Fail(_) => "FAILED".to_owned(),
        Verdict::NotChecked(_) => "not checked".to_owned(),
    };
    [
        file.to_owned(),
        finding.layer.clone(),
        scheme.to_owned(),
        subject.to_owned(),
        shown(finding.error),
        shown(finding.bound),
        verdict,
    ]
}
