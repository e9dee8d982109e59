//! One file a subcommand; each `run` returns whether all is well.

mod attach;
mod backend;
mod bench;
mod check;
mod convert;
pub(crate) mod demo;
mod dequantize;
mod devices;
mod emit;
mod inspect;
mod named_layers;
mod quantize;
mod random_experts;
mod run;
mod schemes;
mod show;
mod sim;
mod sizes;
mod tables;
mod tune;
mod verify;
mod verify_experts;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use quantloom::dsl::{Accuracy, Code, Scheme, parse};
use quantloom::runtime::checkpoint::{
    Checkpoint, CheckpointError, CheckpointExperts, ExplicitScheme, FileAccess, GptqVersion, Layer,
    Options,
};

pub(crate) use tables::{table, text_table};

use crate::printed::{printable, printable_json};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Every backend: present or not, and why not.
    Devices(devices::Arguments),
    /// The catalogue of schemes: name, bits per weight, targets, meaning.
    Schemes(schemes::Arguments),
    /// A scheme, what is derived from it, and a picture of its packing.
    Show(show::Arguments),
    /// The generated code of a scheme's kernels.
    Emit(emit::Arguments),
    /// The quantised layers of a file or a model directory, and each one's scheme.
    Inspect(inspect::Arguments),
    /// Decodes a layer's weight to f32.
    Dequantize(dequantize::Arguments),
    /// Quantises the float weights of a checkpoint into a scheme's own checkpoint layout.
    Quantize(quantize::Arguments),
    /// Writes a quantised checkpoint in another format, every weight kept to the last bit.
    Convert(convert::Arguments),
    /// Writes a layer's scheme into a checkpoint, so that every command knows it from then on.
    Attach(attach::Arguments),
    /// Multiplies an activation with a layer: y = x w^T + bias.
    Run(Box<run::Arguments>),
    /// Compares decoded weights and products with the ref.* tensors of the files.
    Check(check::Arguments),
    /// How fast products are, compared with how fast this machine reads and multiplies.
    Bench(bench::Arguments),
    /// The fastest tile of a GPU's kernels for a product, a shape and M, by measuring them all.
    Tune(tune::Arguments),
    /// Multiplies random layers on real backends, and compares each element with the reference.
    Verify(verify::Arguments),
    /// The kernels of a GPU on the simulator: what they cost, and y against the reference.
    Sim(sim::Arguments),
}

impl Command {
    pub(crate) fn run(self) -> Result<bool> {
        match self {
            Self::Devices(arguments) => devices::run(&arguments),
            Self::Schemes(arguments) => schemes::run(&arguments),
            Self::Show(arguments) => show::run(&arguments),
            Self::Emit(arguments) => emit::run(&arguments),
            Self::Inspect(arguments) => inspect::run(&arguments),
            Self::Dequantize(arguments) => dequantize::run(&arguments),
            Self::Quantize(arguments) => quantize::run(&arguments),
            Self::Convert(arguments) => convert::run(&arguments),
            Self::Attach(arguments) => attach::run(&arguments),
            Self::Run(arguments) => run::run(&arguments),
            Self::Check(arguments) => check::run(&arguments),
            Self::Bench(arguments) => bench::run(&arguments),
            Self::Tune(arguments) => tune::run(&arguments),
            Self::Verify(arguments) => verify::run(&arguments),
            Self::Sim(arguments) => sim::run(&arguments),
        }
    }
}

/// How to read a checkpoint where its files leave a choice.
#[derive(Args)]
pub(crate) struct Reading {
    /// The scheme of a layer that no configuration tells of: a catalogue name or a .scheme file. The
    /// layer's tensors are named as the scheme says.
    #[arg(long, value_name = "SCHEME")]
    scheme: Option<String>,
    /// The shape of that layer, where its tensors leave a choice.
    #[arg(long, value_name = "NxK", value_parser = sizes::shape, requires = "scheme")]
    shape: Option<(u64, u64)>,
    /// Read a GPTQ file's zero points as this version stores them, whatever the file says:
    /// v1 stores the zero point less one.
    #[arg(long, value_enum)]
    gptq_version: Option<Version>,
    /// In a GPTQ v1 file, read a stored zero point of all ones as 0 instead of 2^bits.
    #[arg(long)]
    gptq_zero_wraps: bool,
    /// Read files into memory instead of mapping them: for files that may be shortened or written
    /// meanwhile, which ends a program that maps them (SIGBUS), and for file systems that fail so. It
    /// takes as much memory as the files have bytes.
    #[arg(long)]
    no_map: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Version {
    V1,
    V2,
}

impl Reading {
    /// The scheme that the command line gives, if any.
    pub(crate) fn scheme(&self) -> Option<&str> {
        self.scheme.as_deref()
    }

    /// A checkpoint; `layer` is the one whose scheme the command line gives, if it gives one.
    pub(crate) fn open(&self, path: &Path, layer: Option<&str>) -> Result<Checkpoint> {
        let version = self.gptq_version.map(|version| match version {
            Version::V1 => GptqVersion::V1,
            Version::V2 => GptqVersion::V2,
        });
        let access = if self.no_map { FileAccess::Copied } else { FileAccess::Mapped };
        let options =
            Options { gptq_version: version, gptq_zero_wraps: self.gptq_zero_wraps, access };
        let Some(given) = &self.scheme else {
            return Checkpoint::open_with(path, options).map_err(|error| match error {
                CheckpointError::NoConfig(_) => {
                    anyhow!("{error}; --scheme FILE.scheme gives a layer's scheme")
                }
                error => error.into(),
            });
        };
        let (layer, shape) = (layer.map(str::to_owned), self.shape);
        Ok(Checkpoint::open_with_scheme(
            path,
            options,
            &ExplicitScheme { scheme: scheme(given)?, layer, shape },
        )?)
    }

    /// The layer of this name, or the only one.
    pub(crate) fn layer<'c>(
        &self,
        checkpoint: &'c Checkpoint,
        name: Option<&str>,
    ) -> Result<&'c Layer> {
        if let Some(name) = name {
            return Ok(checkpoint.layer(name)?);
        }
        let names: Vec<&str> = checkpoint.layers().map(|(name, _)| name).collect();
        match names.as_slice() {
            [only] => Ok(checkpoint.layer(only)?),
            [] => bail!("there is no quantised layer; --scheme gives one its scheme"),
            [first, ..] => {
                bail!("there are {} layers: --layer names one, such as \"{first}\"", names.len())
            }
        }
    }
}

/// What the command line says of a scheme's products.
#[derive(Args, Clone, Copy)]
pub(crate) struct ProductOptions {
    /// What matters more where a GPU's product is either faster or more exact, whatever the scheme says. `fast`: on Hopper
    /// scales of groups may multiply weights, which rounds each once to the type of the instruction's operands, as other
    /// software does. `exact`: they multiply sums, and no weight is rounded.
    #[arg(long, value_enum)]
    accuracy: Option<AccuracyName>,
}

#[derive(Clone, Copy, ValueEnum)]
enum AccuracyName {
    Fast,
    Exact,
}

impl AccuracyName {
    fn accuracy(self) -> Accuracy {
        match self {
            Self::Fast => Accuracy::Fast,
            Self::Exact => Accuracy::Exact,
        }
    }
}

impl ProductOptions {
    /// The accuracy, as the command line says it.
    pub(crate) fn accuracy(self) -> Option<&'static str> {
        self.accuracy.map(|name| name.accuracy().name())
    }

    /// The scheme with these products.
    pub(crate) fn of(self, scheme: Scheme) -> Scheme {
        match self.accuracy {
            None => scheme,
            Some(name) => scheme.with_accuracy(name.accuracy()),
        }
    }

    /// The expert layer with these products.
    pub(crate) fn of_experts(self, experts: CheckpointExperts<'_>) -> CheckpointExperts<'_> {
        match self.accuracy {
            None => experts,
            Some(name) => experts.with_accuracy(name.accuracy()),
        }
    }

    /// The scheme of a catalogue name, or of the path of a `.scheme` file, with these products.
    pub(crate) fn scheme(self, argument: &str) -> Result<Scheme> {
        Ok(self.of(scheme(argument)?))
    }
}

/// A catalogue name, or the path of a `.scheme` file.
pub(crate) fn scheme(argument: &str) -> Result<Scheme> {
    if let Some(scheme) = quantloom::kernels::scheme(argument) {
        return Ok(scheme.clone());
    }
    let path = PathBuf::from(argument);
    let named = path.extension().is_some_and(|extension| extension == "scheme");
    if !named && !path.is_file() {
        let near = nearest_scheme(argument);
        bail!(
            "there is no scheme \"{argument}\"{}; `quantloom schemes` lists the catalogue, and a \
             file's name ends in .scheme",
            near.map_or(String::new(), |near| format!(" (did you mean {near}?)"))
        );
    }
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    // Some editors begin a file with a byte order mark.
    let scheme = parse(text.trim_start_matches('\u{feff}'))
        .map_err(|faults| anyhow::anyhow!("{} is not a valid scheme\n{faults}", path.display()))?;
    let refused = quantloom::codegen::support::refused_targets(&scheme);
    if let Some(refusal) = refused.first() {
        bail!("{}: its `targets` clause: {refusal}", path.display());
    }
    Ok(scheme)
}

/// The name that is fewest typing mistakes away, or the shortest that contains the text.
fn nearest_scheme(name: &str) -> Option<&'static str> {
    let names = || quantloom::kernels::ENTRIES.iter().map(|entry| entry.name);
    let distance = |candidate: &str| strsim::damerau_levenshtein(name, candidate);
    let typed = names().min_by_key(|candidate| distance(candidate));
    let part = || names().filter(|candidate| name.len() >= 3 && candidate.contains(name));
    typed
        .filter(|near| distance(near) <= 2)
        .or_else(|| part().min_by_key(|candidate| candidate.len()))
}

/// The catalogue's name of a scheme, or a short description of it.
pub(crate) fn label(scheme: &Scheme) -> String {
    if let Some(name) = quantloom::kernels::name_of(scheme) {
        return name.to_owned();
    }
    // A layer may have a bias that its scheme in the catalogue does not speak of.
    let mut plain = scheme.clone();
    plain.bias = None;
    plain.stores.retain(|store| store.owner != quantloom::dsl::layout::Component::Bias);
    if let Some(name) = quantloom::kernels::name_of(&plain) {
        return format!("{name} + bias");
    }
    let group = scheme.scales.first().map_or(String::new(), |scale| {
        use quantloom::dsl::layout::GroupSize;
        match (scale.group.rows, scale.group.cols) {
            (GroupSize::All, _) => " per tensor".to_owned(),
            (_, GroupSize::All) => " per channel".to_owned(),
            (GroupSize::Each(1), GroupSize::Each(cols)) => format!(" g{cols}"),
            (GroupSize::Each(rows), GroupSize::Each(cols)) => format!(" {rows}x{cols}"),
        }
    });
    let activation = match scheme.quantiser() {
        Some(quantiser) => quantiser.code.to_string(),
        None => "16-bit".to_owned(),
    };
    let zero = if scheme.zero.is_some() { " with zero points" } else { "" };
    let order = if scheme.index.is_some() { ", act-order" } else { "" };
    let weight = match &scheme.weight.code {
        Code::Codebook(values) => format!("codebook of {}", values.len()),
        Code::Number(_) => scheme.weight.to_string(),
    };
    format!("{weight}{group}{zero}{order}, {activation} activations")
}

/// The labels of the schemes of an expert layer's two products.
pub(crate) fn labels([gate_up, down]: [&Scheme; 2]) -> String {
    match (label(gate_up), label(down)) {
        (gate_up, down) if gate_up == down => gate_up,
        (gate_up, down) => format!("gate_up {gate_up}, down {down}"),
    }
}

/// Why the result of an expert layer is not that of the model, which has a shared expert.
pub(crate) fn without_shared(name: &str) -> String {
    format!(
        "the model has a shared expert, and the files have no \"{name}\": y is the sum of the chosen \
         experts alone"
    )
}

/// Prints a line to stdout; a closed pipe is an error that `main` knows.
pub(crate) fn print_line(line: impl std::fmt::Display) -> Result<()> {
    writeln!(std::io::stdout(), "{}", printable(&line.to_string()))?;
    Ok(())
}

/// Prints values as a JSON array to stdout.
pub(crate) fn print_json(values: &[serde_json::Value]) -> Result<()> {
    let text = serde_json::to_string_pretty(values)?;
    writeln!(std::io::stdout(), "{}", printable_json(&text))?;
    Ok(())
}

/// Prints a line to stderr, if anybody listens.
pub(crate) fn eprint_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(line));
}

/// An error and what caused it, in one line; a cause that the text has already is not said again.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match &said[..] {
        "" => cause,
        known if known.contains(&cause) => said,
        known => format!("{known}: {cause}"),
    })
}

/// Bytes in a unit that a person reads.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// `N x K`, with the number of experts in front if there are several.
pub(crate) fn shape(shape: quantloom::dsl::layout::Shape) -> String {
    match shape.experts {
        1 => format!("{} x {}", shape.n, shape.k),
        experts => format!("{experts} x {} x {}", shape.n, shape.k),
    }
}
