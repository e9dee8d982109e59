//! `quantloom attach`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use quantloom::runtime::checkpoint::{Checkpoint, CheckpointFormat, Entry, Writer, attached};

use super::{Reading, label, print_line, shape};
use crate::atomic_write::Replace;

/// Writes a layer's scheme into a checkpoint, so that every command knows it from then on.
#[derive(Args)]
#[command(
    after_help = "The layer's tensors are named as the scheme names them, with the layer's name \
    in front: `model.q_proj.weight_packed`. A scheme names another tensor with `as \"NAME\"`. What is \
    written is a copy with the scheme's text in its metadata; more layers are attached one after the \
    other.\n\n\
    Examples:\n  \
    quantloom attach layer.safetensors --scheme my.scheme --shape 4096x4096 --out told.safetensors\n  \
    quantloom attach model/ --scheme my.scheme --layer model.q_proj --out told.safetensors\n  \
    quantloom inspect told.safetensors"
)]
pub(crate) struct Arguments {
    /// A .safetensors file or a model directory.
    path: PathBuf,
    /// The layer, as its tensors are named; may be left out if only one has all tensors.
    #[arg(long, value_name = "NAME")]
    layer: Option<String>,
    /// The file to write: all tensors, with the scheme.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    replace: Replace,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let Some(given) = arguments.reading.scheme() else {
        bail!("--scheme gives the scheme to attach");
    };
    let inputs = [arguments.path.as_path(), Path::new(given)];
    arguments.replace.check(&[("--out", &arguments.out)], &inputs)?;
    let checkpoint = arguments.reading.open(&arguments.path, arguments.layer.as_deref())?;
    if checkpoint.format() != CheckpointFormat::Quantloom {
        bail!(
            "{} has a configuration of {}; a file has one configuration",
            arguments.path.display(),
            checkpoint.format().name()
        );
    }
    let mut layers = Vec::new();
    for (name, layer) in checkpoint.layers() {
        let layer = layer?;
        layers.push((name, layer.scheme(), layer.shape()));
    }
    let tensors = checkpoint.tensors();
    let entry = |name: &str| {
        let tensor = tensors.get(name)?;
        let shape = tensor.shape().iter().map(|size| *size as u64).collect();
        let (name, bytes) = (name.to_owned(), tensor.bytes().len() as u64);
        Some(Entry { name, dtype: tensor.dtype(), shape, bytes })
    };
    let entries: Vec<Entry> = tensors.names().filter_map(entry).collect();
    let mut metadata: BTreeMap<String, String> = tensors.all_metadata().clone();
    metadata.insert("quantization_config".to_owned(), attached(&layers));
    let cannot = || format!("cannot write {}", arguments.out.display());
    let mut writer = Writer::create(&arguments.out, entries, &metadata).with_context(cannot)?;
    for tensor in tensors.names().filter_map(|name| tensors.get(name)) {
        writer.write(tensor.bytes()).with_context(cannot)?;
    }
    let file = writer.whole().with_context(cannot)?;
    let read = Checkpoint::open(file.path()).context("nothing was written")?;
    for (name, _, _) in &layers {
        let layer =
            read.layer(name).map_err(|fault| anyhow::anyhow!("nothing was written: {fault}"))?;
        print_line(format_args!("{name}: {}, {}", label(layer.scheme()), shape(layer.shape())))?;
    }
    file.keep().with_context(cannot)?;
    print_line(format_args!("wrote {}", arguments.out.display()))?;
    Ok(true)
}
