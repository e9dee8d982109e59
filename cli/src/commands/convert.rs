//! `quantloom convert`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use quantloom::dsl::layout::Shape;
use quantloom::runtime::atomic_folder::AtomicFolder;
use quantloom::runtime::checkpoint::CheckpointFormat;
use quantloom::runtime::convert::{ConversionPlan, ConvertOptions, Output, PlannedLayer};

use super::sizes::bytes;
use super::{Reading, label, print_line, shape, size, table};
use crate::atomic_write::Replace;
use crate::progress::Progress;

#[derive(Args)]
#[command(after_help = "\
Every weight, bias and scale of x is kept to the last bit, or nothing is written: layers that the format \
cannot store so are listed with the reason. The output is read back and compared before it gets its name. \
Names of tensors stay as they are, and tensors that are not quantised are copied.

Examples:
  quantloom convert model-gptq/ --to compressed-tensors --dry-run
  quantloom convert model-gptq/ --to compressed-tensors --out model-ct/
  quantloom convert model-ct/ --to gguf --out model.gguf
  quantloom convert model.gguf --to quantloom --out model.safetensors
  quantloom convert model-w4a8/ --to gguf --weights-only --out model.gguf

docs/convert.md has the table of pairs.")]
pub(crate) struct Arguments {
    /// A .safetensors or .gguf file, or a model directory.
    path: PathBuf,
    /// The format to write.
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Format,
    /// What to write: a file, if the name ends in .safetensors or .gguf, else a model directory that is
    /// new or empty, with config.json, shards and the tokenizer's files.
    #[arg(long, value_name = "PATH", required_unless_present = "dry_run")]
    out: Option<PathBuf>,
    /// Say for each layer how it would be stored, or why it cannot be; write nothing.
    #[arg(long)]
    dry_run: bool,
    /// The most bytes of tensors in a file of a model directory: a number with B, KB, MB or GB.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = shard_bytes)]
    shard_size: u64,
    /// Keep the weights and leave out how x is quantised: for formats that do not say it. Products are
    /// then those of x as it is, and differ from the source's.
    #[arg(long)]
    weights_only: bool,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    replace: Replace,
}

/// The formats that are written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// llm-compressor's: vLLM, SGLang, transformers.
    CompressedTensors,
    /// AutoGPTQ, GPTQModel.
    Gptq,
    /// AutoAWQ, version gemm.
    Awq,
    /// AMD's.
    Quark,
    /// NVIDIA's.
    Modelopt,
    /// DeepSeek's and transformers' FP8.
    Fp8,
    /// llama.cpp's.
    Gguf,
    /// Ours: the scheme of each layer as its configuration.
    Quantloom,
}

impl Format {
    fn of_checkpoint(self) -> CheckpointFormat {
        match self {
            Self::CompressedTensors => CheckpointFormat::CompressedTensors,
            Self::Gptq => CheckpointFormat::Gptq,
            Self::Awq => CheckpointFormat::Awq,
            Self::Quark => CheckpointFormat::Quark,
            Self::Modelopt => CheckpointFormat::ModelOpt,
            Self::Fp8 => CheckpointFormat::Fp8,
            Self::Gguf => CheckpointFormat::Gguf,
            Self::Quantloom => CheckpointFormat::Quantloom,
        }
    }
}

/// The bytes of a shard, with a unit: a number alone is hardly one of bytes.
fn shard_bytes(text: &str) -> Result<u64, String> {
    if text.trim().parse::<u64>().is_ok() {
        return Err(format!("\"{text}\" has no unit: B, KB, MB or GB"));
    }
    match bytes(text)? {
        0 => Err(format!("\"{text}\" is not a size")),
        size => Ok(size),
    }
}

/// Where the output goes.
fn output(arguments: &Arguments) -> Result<Option<Output>> {
    let Some(path) = arguments.out.clone().filter(|_| !arguments.dry_run) else { return Ok(None) };
    let ends = |ending: &str| path.extension().is_some_and(|found| found == ending);
    let gguf = arguments.to == Format::Gguf;
    if gguf != ends("gguf") && (gguf || ends("gguf")) {
        let name = if gguf {
            "GGUF is one file: its name ends in .gguf"
        } else {
            "a .gguf file is of --to gguf"
        };
        bail!("--out {}: {name}", path.display());
    }
    if ends("gguf") || ends("safetensors") {
        return Ok(Some(Output::File(path)));
    }
    if std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("--out {} is a directory with files; name one that is new or empty", path.display());
    }
    if path.is_file() {
        bail!("--out {} is a file; a file's name ends in .safetensors or .gguf", path.display());
    }
    AtomicFolder::check(&path).with_context(|| format!("--out {}", path.display()))?;
    Ok(Some(Output::Folder { path, shard_bytes: arguments.shard_size }))
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let output = output(arguments)?;
    if let Some(path) = arguments.out.as_ref().filter(|_| output.is_some()) {
        let scheme = Path::new(arguments.reading.scheme().unwrap_or_default());
        arguments.replace.check(&[("--out", path)], &[&arguments.path, scheme])?;
    }
    let checkpoint = arguments.reading.open(&arguments.path, None)?;
    let weights: u64 =
        checkpoint.layers().filter_map(|(_, layer)| layer.ok()?.shape().elements()).sum();
    if checkpoint.layers().next().is_none() {
        bail!(
            "{} has no quantised layer to convert; `quantloom quantize` makes some",
            arguments.path.display()
        );
    }
    let options = ConvertOptions { weights_only: arguments.weights_only };
    let progress = Progress::new("looking", weights);
    let plan =
        ConversionPlan::new(&checkpoint, arguments.to.of_checkpoint(), options, &|weights| {
            progress.advance(weights);
        });
    drop(progress);
    let from = checkpoint.format().name();
    let to = plan.format().name();
    if arguments.dry_run {
        print_line(each_layer(&plan))?;
    } else if plan.refusals() == 0 {
        print_line(summary(&plan))?;
    }
    refusals(&plan)?;
    if plan.refusals() > 0 {
        let (copied, layers) = (plan.copied().1.len(), plan.layers().len());
        bail!(
            "{from} to {to}: {} of {layers} layers and {copied} other tensors cannot be converted \
             exactly; nothing was written",
            plan.refusals() - copied
        );
    }
    notes(&plan, checkpoint.tensors().gguf().map(|gguf| gguf.keys().count()))?;
    let (Some(output), Some(path)) = (output, &arguments.out) else {
        return Ok(true);
    };
    let progress = Progress::new("converting", 2 * weights);
    let written = plan.write(&output, &|weights| progress.advance(weights));
    drop(progress);
    written.context("nothing was written")?;
    print_line(format_args!(
        "wrote {}: {} layers from {from} to {to}, every weight compared with the source's",
        path.display(),
        plan.layers().len()
    ))?;
    Ok(true)
}

/// Stored bits of a weight, in the layer and in the output.
fn bits(layer: &PlannedLayer) -> String {
    match (&layer.from, layer.to()) {
        (Some(from), Some(to)) => {
            format!("{:.2} -> {:.2}", from.bits_per_weight(), to.bits_per_weight())
        }
        _ => String::new(),
    }
}

/// How each layer is stored.
fn each_layer(plan: &ConversionPlan<'_>) -> impl std::fmt::Display {
    let mut rows = table(&["layer", "shape", "from", plan.format().name(), "bits a weight"]);
    for layer in plan.layers() {
        rows.add_row([
            layer.name.clone(),
            layer.shape.map_or_else(String::new, shape),
            layer.from.as_ref().map_or_else(String::new, label),
            layer.target().unwrap_or("refused").to_owned(),
            bits(layer),
        ]);
    }
    rows
}

/// How many layers are stored in which way.
fn summary(plan: &ConversionPlan<'_>) -> impl std::fmt::Display {
    let mut ways: BTreeMap<[String; 3], (u64, u64, u64)> = BTreeMap::new();
    for layer in plan.layers() {
        let from = layer.from.as_ref().map_or_else(String::new, label);
        let way = [from, layer.target().unwrap_or("refused").to_owned(), bits(layer)];
        let of = ways.entry(way).or_default();
        of.0 += 1;
        of.1 += layer.shape.and_then(Shape::elements).unwrap_or(0);
        of.2 += layer.bytes;
    }
    let mut rows =
        table(&["from", plan.format().name(), "bits a weight", "layers", "weights", "bytes"]);
    for ([from, to, bits], (layers, weights, bytes)) in ways {
        rows.add_row([from, to, bits, layers.to_string(), weights.to_string(), size(bytes)]);
    }
    rows
}

/// What cannot be converted, and why; layers with one reason together.
fn refusals(plan: &ConversionPlan<'_>) -> Result<()> {
    let layers = plan.layers().iter().filter_map(|layer| {
        let refusal = layer.target().err()?;
        Some((layer.name.as_str(), refusal))
    });
    let tensors = plan.copied().1.iter().map(|(name, refusal)| (name.as_str(), refusal));
    for (name, refusal) in layers.chain(tensors) {
        print_line(format_args!("refused: {name}: {refusal}"))?;
    }
    Ok(())
}

/// What the output does not have.
fn notes(plan: &ConversionPlan<'_>, keys: Option<usize>) -> Result<()> {
    for (name, layers) in plan.left_out() {
        print_line(format_args!("note: the tensor {name} of {layers} layers is left out"))?;
    }
    if let (Some(keys), false) = (keys, plan.format() == CheckpointFormat::Gguf) {
        print_line(format_args!(
            "note: the {keys} keys of the GGUF file (model, tokenizer) have no place there"
        ))?;
    }
    Ok(())
}
