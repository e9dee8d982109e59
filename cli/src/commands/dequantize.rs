//! `quantloom dequantize`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use quantloom::runtime::checkpoint::{Dtype, Entry, Writer};
use quantloom::runtime::tensor::f32_bytes;

use super::{Reading, print_line, shape, size};
use crate::atomic_write::Replace;
use crate::progress::Progress;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    quantloom dequantize model/ --layer model.layers.0.mlp.down_proj --out weight.safetensors\n  \
    quantloom dequantize layer.safetensors --scheme my.scheme --shape 4096x4096 --out w.safetensors")]
pub(crate) struct Arguments {
    /// A .safetensors or .gguf file, or a model directory.
    path: PathBuf,
    /// The layer, as `inspect` names it; may be left out if there is only one.
    #[arg(long, value_name = "NAME")]
    layer: Option<String>,
    /// The file to write: the tensor `weight`, f32 [N, K] (experts [E, N, K]). Where columns of x have factors (`prescale`), the
    /// weights are multiplied by these, in f32: y = x w^T of x as it is given.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    replace: Replace,
}

/// Decoded values held at a time.
const CHUNK: u64 = 1 << 22;

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let scheme = Path::new(arguments.reading.scheme().unwrap_or_default());
    arguments.replace.check(&[("--out", &arguments.out)], &[&arguments.path, scheme])?;
    let name = arguments.layer.as_deref();
    let checkpoint = arguments.reading.open(&arguments.path, name)?;
    let layer = arguments.reading.layer(&checkpoint, name)?;
    let of = layer.shape();
    let rows = of.experts * of.n;
    let progress = Progress::new("decoding", rows);
    let unpacked = layer.unpack()?;
    let factors: Vec<f32> = unpacked.input(0).prescale.iter().map(|of| *of as f32).collect();
    let dims = if of.experts == 1 && layer.scheme().experts.is_none() {
        vec![of.n, of.k]
    } else {
        vec![of.experts, of.n, of.k]
    };
    let bytes = rows * of.k * 4;
    let entry = Entry { name: "weight".to_owned(), dtype: Dtype::F32, shape: dims, bytes };
    let cannot = || format!("cannot write {}", arguments.out.display());
    let mut writer =
        Writer::create(&arguments.out, vec![entry], &BTreeMap::new()).with_context(cannot)?;
    let step = (CHUNK / of.k).max(1);
    for first in (0..rows).step_by(step as usize) {
        let last = (first + step).min(rows);
        let mut values = unpacked.decode_rows(first..last);
        // Of x as it is given: its columns' factors are the weight's.
        for (value, factor) in values.iter_mut().zip(factors.iter().cycle()) {
            *value *= factor;
        }
        writer.write(&f32_bytes(&values)).with_context(cannot)?;
        progress.advance(last - first);
    }
    writer.finish().with_context(cannot)?;
    drop(progress);
    let out = arguments.out.display();
    print_line(format_args!("wrote {out}: weight, f32, {}, {}", shape(of), size(bytes)))?;
    Ok(true)
}
