//! `quantloom inspect`

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use quantloom::runtime::checkpoint::{Dtype, Tensor, Tensors};
use serde_json::{Value, json};

use super::{Reading, eprint_line, label, print_json, print_line, shape, size, table};

mod experts;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    quantloom inspect model/\n  \
    quantloom inspect layer.safetensors --json\n  \
    quantloom inspect layer.safetensors --scheme my.scheme --layer q_proj --shape 4096x4096")]
pub(crate) struct Arguments {
    /// A .safetensors or .gguf file, or a model directory.
    path: PathBuf,
    /// The layer whose scheme --scheme gives, as its tensors are named; may be left out if only one
    /// has all tensors.
    #[arg(long, value_name = "NAME", requires = "scheme")]
    layer: Option<String>,
    /// One object a layer: name, family, scheme, scheme text, shape, bytes, tensors; and one a whole expert
    /// layer, with `experts`.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: Reading,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let checkpoint = arguments.reading.open(&arguments.path, arguments.layer.as_deref())?;
    let mut well = true;
    let mut rows = table(&["layer", "scheme", "shape", "stored", "bits/weight"]);
    let mut values: Vec<Value> = Vec::new();
    let mut faults = Vec::new();
    let layers = experts::rows(&checkpoint);
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
                // A row of the whole expert layer has it.
                if !layers.members.contains(name) {
                    rows.add_row(cells);
                }
                values.push(json!({
                    "layer": name,
                    "family": checkpoint.format().name(),
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
    for row in layers.rows {
        rows.add_row(row);
    }
    values.extend(layers.values);
    well &= layers.faults.is_empty();
    faults.extend(layers.faults);
    let looks = looks_quantised(checkpoint.tensors()).filter(|_| values.is_empty());
    if arguments.json {
        print_json(&values)?;
    } else if values.is_empty() {
        print_line(format_args!("{} holds no quantised layer", arguments.path.display()))?;
    } else {
        print_line(rows)?;
    }
    for note in checkpoint.notes().chain(layers.notes.iter().map(String::as_str)) {
        eprint_line(&format!("quantloom: note: {note}"));
    }
    if let Some((name, tensor)) = looks {
        well = false;
        eprint_line(&format!(
            "quantloom: nothing says how the tensor \"{name}\" ({tensor:?}) is quantised: --scheme \
             FILE.scheme gives a layer's scheme, `quantloom attach` writes it into the file"
        ));
    }
    for fault in faults {
        eprint_line(&format!("quantloom: {fault}"));
    }
    Ok(well)
}

/// A tensor that is hardly anything but a part of a quantised layer: a matrix of small numbers.
fn looks_quantised(tensors: &Tensors) -> Option<(&str, &Tensor)> {
    let named = tensors.names().filter_map(|name| Some((name, tensors.get(name)?)));
    let mut named = named.filter(|(name, _)| !name.starts_with("ref."));
    named.find(|(_, tensor)| {
        let narrow = tensor.dtype().bitsize() <= 8 && tensor.dtype() != Dtype::BOOL;
        let words = matches!(tensor.dtype(), Dtype::U32 | Dtype::I32);
        let matrix = tensor.shape().iter().filter(|size| **size > 1).count() >= 2;
        matrix && (narrow || words)
    })
}
