//! `quantloom inspect`

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::{Reading, label, say, say_error, shape, size, table};

#[derive(Args)]
pub(crate) struct Arguments {
    /// A .safetensors file or a model directory.
    path: PathBuf,
    /// One object a layer: name, family, scheme, scheme text, shape, bytes, tensors.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: Reading,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let checkpoint = arguments.reading.open(&arguments.path)?;
    let mut well = true;
    let mut rows = table(&["layer", "scheme", "shape", "stored", "bits/weight"]);
    let mut values: Vec<Value> = Vec::new();
    let mut faults = Vec::new();
    for (name, layer) in checkpoint.layers() {
        match layer {
            Ok(layer) => {
                let of = layer.shape();
                let weights = of.elements().unwrap_or(u64::MAX) as f64;
                let bits = layer.bytes() as f64 * 8.0 / weights;
                let cells = [
                    name.to_owned(),
                    label(layer.scheme()),
                    shape(of),
                    size(layer.bytes()),
                    format!("{bits:.3}"),
                ];
                rows.add_row(cells);
                values.push(json!({
                    "layer": name,
                    "family": checkpoint.family().name(),
                    "scheme": quantloom::kernels::name_of(layer.scheme()),
                    "text": layer.scheme().to_string(),
                    "shape": { "experts": of.experts, "n": of.n, "k": of.k },
                    "bytes": layer.bytes(),
                    "bits_per_weight": bits,
                    "tensors": layer.stores().map(|(store, _)| store).collect::<Vec<_>>(),
                }));
            }
            Err(error) => {
                well = false;
                rows.add_row([name, "not recognised: see below", "", "", ""]);
                values.push(json!({ "layer": name, "error": error.to_string() }));
                faults.push(error.to_string());
            }
        }
    }
    if arguments.json {
        say(serde_json::to_string_pretty(&values)?)?;
    } else if values.is_empty() {
        say(format_args!("{} holds no quantised layer", arguments.path.display()))?;
    } else {
        say(rows)?;
    }
    for note in checkpoint.notes() {
        say_error(&format!("quantloom: note: {note}"));
    }
    for fault in faults {
        say_error(&format!("quantloom: {fault}"));
    }
    Ok(well)
}
