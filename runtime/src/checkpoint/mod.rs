//! Checkpoints: the quantised layers and the scheme of each.
//!
//! In: a safetensors or GGUF file or a model directory that third-party software wrote. Out: a
//! [`Checkpoint`] whose [`Layer`]s have a [`quantloom_dsl::Scheme`], a shape and their stored
//! tensors, checked for consistency. Each format is one file, which turns the configuration into
//! scheme text; start with `gptq`, the shortest.

mod awq;
mod bitsandbytes;
mod clause;
mod compressed_tensors;
mod config;
mod ct_presets;
mod describe;
mod experts;
mod explicit_scheme;
mod files;
mod fp8;
mod gguf;
mod gpt_oss;
mod gptq;
pub mod keys;
mod layer;
mod modelopt;
pub mod models;
mod patterns;
mod quantloom;
mod quark;
pub(crate) mod reals;
pub(crate) mod storage;
mod surroundings;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use config::{CONFIG_FILES, Config, ConfigProblem};
pub use describe::{Description, Extras, describe};
pub(crate) use experts::of_expert;
pub use experts::{
    CheckpointExperts, CheckpointExpertsError, ExpertSizes, ExpertsProblem, FloatExperts,
    LAYER_TEXT_KEY, QuantisedExperts, Router, SharedExpert, StoredExperts,
};
pub use explicit_scheme::{ExplicitScheme, ExplicitSchemeError};
pub use files::{FileAccess, Tensor, Tensors};
pub use gguf::{Gguf, GgufList, GgufProblem, GgufTensorLimit, GgufType, GgufValue};
pub(crate) use gguf::{
    GgufEntry, default_keys, element_number, header as gguf_header,
    unwritable as unwritable_in_gguf,
};
pub use keys::RefusedKey;
pub use layer::{Layer, LayerError, LayerProblem, OtherTensor};
pub use patterns::PatternProblem;
pub use quantloom::attached;
pub use safetensors::Dtype;
pub use write::{Entry, Writer, element_dtype, header, tensor_name};

use config::{Fields, shortened};
use keys::Report;
use layer::{Recognised, Schemes};
use models::ModelConfig;

/// The formats that are read: by the name in their configuration's `quant_method`, unless a format says
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckpointFormat {
    /// compressed-tensors (llm-compressor).
    CompressedTensors,
    /// GPTQ (AutoGPTQ, GPTQModel).
    Gptq,
    /// AWQ (AutoAWQ).
    Awq,
    /// AMD Quark.
    Quark,
    /// NVIDIA ModelOpt.
    ModelOpt,
    /// FP8 of DeepSeek and transformers.
    Fp8,
    /// gpt-oss MXFP4 experts.
    GptOss,
    /// bitsandbytes.
    BitsAndBytes,
    /// HQQ: recognised and refused.
    Hqq,
    /// GGUF (llama.cpp), by the file's first bytes.
    Gguf,
    /// Written by `quantloom quantize`, with the scheme as the configuration.
    Quantloom,
}

impl CheckpointFormat {
    /// The name of the format's software.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CompressedTensors => "compressed-tensors",
            Self::Gptq => "GPTQ",
            Self::Awq => "AWQ",
            Self::Quark => "Quark",
            Self::ModelOpt => "ModelOpt",
            Self::Fp8 => "FP8",
            Self::GptOss => "gpt-oss",
            Self::BitsAndBytes => "bitsandbytes",
            Self::Hqq => "HQQ",
            Self::Gguf => "GGUF",
            Self::Quantloom => "Quantloom",
        }
    }
}

/// Why a checkpoint could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system reported an error.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// A directory or a device where a file was expected.
    #[error("{} is not a file", .0.display())]
    NotAFile(PathBuf),
    /// A directory without tensors.
    #[error("{} holds no .safetensors file", .0.display())]
    NoTensors(PathBuf),
    /// The file's header or size is invalid.
    #[error("{} is not a valid safetensors file: {error}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<safetensors::SafeTensorError>,
    },
    /// The file's GGUF header is invalid.
    #[error("{} is not a valid GGUF file: {problem}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: GgufProblem,
    },
    /// A header that would take too much memory: its tensors take some 15 times its bytes.
    #[error("{path}: a header of {bytes} bytes is too large; the limit is {most}", path = path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The bytes that the header claims.
        bytes: u64,
        /// The most bytes that are read.
        most: u64,
    },
    /// Two tensors with one name, in one header or in two shards.
    #[error("the tensor \"{0}\" occurs twice")]
    Twice(String),
    /// The configuration is unknown or contradicts itself.
    #[error("the quantisation configuration in {place}: {problem}")]
    Config {
        /// Its location: a file, or a key of its metadata.
        place: String,
        /// What is wrong, naming the field.
        problem: ConfigProblem,
    },
    /// Tensors look quantised, but there is no configuration.
    #[error(
        "the tensor \"{0}\" is of a quantised layer, but there is no quantization_config: neither in \
         the file's metadata nor in a config.json beside it"
    )]
    NoConfig(String),
    /// A pattern of the configuration cannot be used.
    #[error("the pattern `{pattern}`: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The reason.
        problem: PatternProblem,
    },
    /// A layer with a scheme of the caller's choice cannot be found.
    #[error(transparent)]
    ExplicitScheme(#[from] ExplicitSchemeError),
    /// A layer's tensors contradict its configuration.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// Which GPTQ version to assume; some files have the wrong label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GptqVersion {
    /// The stored zero point is the zero point minus 1.
    V1,
    /// The stored zero point is the zero point.
    V2,
}

/// How to read a checkpoint if its files are ambiguous.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Overrides `checkpoint_format` of a GPTQ file.
    pub gptq_version: Option<GptqVersion>,
    /// Whether the all-ones stored zero point of a GPTQ version 1 file means 0 instead of 2^bits.
    pub gptq_zero_wraps: bool,
    /// Whether files are memory-mapped, or read into memory.
    pub access: FileAccess,
}

/// An opened checkpoint.
pub struct Checkpoint {
    /// What was opened.
    path: Option<PathBuf>,
    tensors: Tensors,
    config: Option<Config>,
    model: Option<ModelConfig>,
    format: CheckpointFormat,
    notes: Vec<String>,
    /// Sorted by name.
    layers: Vec<(String, RecognisedLayer)>,
}

/// A layer, or why there is none.
type RecognisedLayer = Result<Layer, Arc<CheckpointError>>;

impl Checkpoint {
    /// Opens a `.safetensors` or `.gguf` file or a model directory and recognises its layers.
    ///
    /// The files are memory-mapped ([`FileAccess::Mapped`]): until the checkpoint and its tensors are
    /// dropped, they must not be truncated, which would end the process by SIGBUS, or written. If
    /// they may be, use [`Checkpoint::open_with`] to read them into memory ([`Options::access`]).
    ///
    /// # Errors
    /// Files that cannot be read or are invalid; an unsupported configuration. A layer that cannot
    /// be recognised is an error of that layer only: see [`Checkpoint::layers`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Self::open_with(path, Options::default())
    }

    /// [`Checkpoint::open`] with options.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let tensors = Tensors::open_as(path, options.access)?;
        Self::new(tensors, Some(path), options)
    }

    /// A checkpoint of one safetensors or GGUF file in memory.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_bytes(bytes: Vec<u8>, options: Options) -> Result<Self, CheckpointError> {
        let tensors = Tensors::from_bytes(bytes)?;
        Self::new(tensors, None, options)
    }

    fn new(
        tensors: Tensors,
        path: Option<&Path>,
        options: Options,
    ) -> Result<Self, CheckpointError> {
        let opened = path.map(Path::to_owned);
        // A GGUF file says all of itself; what is beside it is another checkpoint's.
        let path = path.filter(|_| tensors.gguf().is_none());
        let config = config::find(path, &tensors)?;
        let (format, report, mut found) = recognise(&tensors, config.as_ref(), options)?;
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let table = keys::table(format);
        let mut schemes = Schemes::default();
        let layers: Vec<_> = found
            .into_iter()
            .map(|(name, recognised)| {
                let lost = |(tensor, shard)| {
                    let what = format!(
                        "the shard `{shard}` has no tensor \"{tensor}\", which the index names there"
                    );
                    LayerError::inconsistent(&name, what).into()
                };
                let recognised = tensors.lost_of(&name).map_or(recognised, |of| Err(lost(of)));
                let layer = recognised.and_then(|recognised| {
                    let layer = Layer::assemble(&name, format, recognised, &mut schemes, &tensors)?;
                    if let Some(table) = &table {
                        layer.check_other_tensors(table, &tensors)?;
                    }
                    Ok(layer)
                });
                (name, layer.map_err(Arc::new))
            })
            .collect();
        let mut notes: Vec<String> = report.notes().map(str::to_owned).collect();
        if let Some(first) = tensors.lost().next() {
            let (first, count) = (shortened(first.to_owned()), tensors.lost().len());
            notes.push(format!(
                "the index names {count} tensors that no shard has, such as \"{first}\""
            ));
        }
        let model = model(&tensors, path, format, &layers)?;
        Ok(Self { path: opened, tensors, config, model, format, notes, layers })
    }

    /// Unknown keys of the configuration, which were ignored, and what an index of shards names in vain, one sentence each.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(String::as_str)
    }

    /// The format of the files.
    pub fn format(&self) -> CheckpointFormat {
        self.format
    }

    /// The configuration, if there is one.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// Every tensor.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// The quantised layers by name; an inconsistent layer is [`LayerFault::Broken`].
    pub fn layers(&self) -> impl Iterator<Item = (&str, Result<&Layer, LayerFault>)> {
        self.layers.iter().map(|(name, found)| {
            let layer = found.as_ref().map_err(|error| LayerFault::Broken(error.clone()));
            (name.as_str(), layer)
        })
    }

    /// One quantised layer.
    ///
    /// # Errors
    /// [`LayerFault`]: the names of the layers that exist, or the error of this layer.
    pub fn layer(&self, name: &str) -> Result<&Layer, LayerFault> {
        match self.recognised(name) {
            Some(found) => found.as_ref().map_err(|error| LayerFault::Broken(error.clone())),
            None => {
                let known = self.layers.iter().map(|(name, _)| name.clone()).collect();
                Err(LayerFault::Missing { name: name.to_owned(), known })
            }
        }
    }
}

impl Checkpoint {
    /// A layer by its name.
    fn recognised(&self, name: &str) -> Option<&RecognisedLayer> {
        let at = self.layers.partition_point(|(layer, _)| layer.as_str() < name);
        self.layers.get(at).filter(|(layer, _)| layer == name).map(|(_, found)| found)
    }

    /// The layers whose names begin with a prefix and a dot.
    fn recognised_below(&self, prefix: &str) -> &[(String, RecognisedLayer)] {
        let start = tensor_name(prefix, "");
        let first = self.layers.partition_point(|(layer, _)| *layer < start);
        let rest = &self.layers[first..];
        &rest[..rest.partition_point(|(layer, _)| layer.starts_with(&start))]
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.layers.iter().map(|(name, _)| name.as_str()).collect();
        let mut fields = f.debug_struct("Checkpoint");
        fields.field("format", &self.format).field("layers", &names).finish_non_exhaustive()
    }
}

/// The model's configuration. That of gpt-oss experts without one is the file's metadata.
fn model(
    tensors: &Tensors,
    path: Option<&Path>,
    format: CheckpointFormat,
    layers: &[(String, RecognisedLayer)],
) -> Result<Option<ModelConfig>, CheckpointError> {
    let unnamed = (format == CheckpointFormat::GptOss && !layers.is_empty()).then_some("gpt_oss");
    models::find(path, tensors, unnamed)
}

/// Why a layer is not available.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerFault {
    /// The layer does not exist.
    #[error("there is no quantised layer \"{name}\"; there are: {}", first_names(known))]
    Missing {
        /// The requested name.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// The layer is inconsistent.
    #[error(transparent)]
    Broken(Arc<CheckpointError>),
}

/// The first eight names, and how many there are.
fn first_names(known: &[String]) -> String {
    match known.len() {
        0 => "none".to_owned(),
        1..=8 => known.join(", "),
        more => format!("{}, ... ({more} in all)", known[..8].join(", ")),
    }
}

type Found = Vec<(String, Result<Recognised, CheckpointError>)>;

/// The input of every format's reader.
struct LayerSource<'a> {
    tensors: &'a Tensors,
    fields: Fields<'a>,
    keys: &'a Report,
    options: Options,
}

fn recognise(
    tensors: &Tensors,
    config: Option<&Config>,
    options: Options,
) -> Result<(CheckpointFormat, Report, Found), CheckpointError> {
    if let Some(gguf) = tensors.gguf() {
        return Ok((CheckpointFormat::Gguf, Report::default(), gguf::layers(gguf, tensors)));
    }
    let Some(config) = config else {
        // No configuration: only formats that the names of tensors identify.
        let found = gpt_oss::layers(tensors);
        let quantised = |name: &&str| {
            ["weight_packed", "qweight", "weight_scale", "weight_scale_inv"]
                .iter()
                .any(|known| name.rsplit('.').next() == Some(known))
        };
        return match tensors.names().find(quantised) {
            Some(name) if found.is_empty() => Err(CheckpointError::NoConfig(name.to_owned())),
            _ => Ok((CheckpointFormat::GptOss, Report::default(), found)),
        };
    };
    let fields = Fields { object: &config.value, place: &config.place };
    let format = format(fields)?;
    let report = Report::of(config, format);
    report.of_the_file(&config.place)?;
    let source = LayerSource { tensors, fields, keys: &report, options };
    let found = match format {
        CheckpointFormat::CompressedTensors => compressed_tensors::layers(&source)?,
        CheckpointFormat::Gptq => gptq::layers(&source)?,
        CheckpointFormat::Awq => awq::layers(&source)?,
        CheckpointFormat::Quark => quark::layers(&source)?,
        CheckpointFormat::ModelOpt => modelopt::layers(&source)?,
        CheckpointFormat::Fp8 => fp8::layers(&source)?,
        CheckpointFormat::GptOss => gpt_oss::layers(tensors),
        CheckpointFormat::BitsAndBytes => bitsandbytes::layers(&source)?,
        CheckpointFormat::Gguf => Vec::new(),
        CheckpointFormat::Hqq => return Err(ConfigProblem::UnreadFormat(HQQ).at(fields.place)),
        CheckpointFormat::Quantloom => quantloom::layers(&source)?,
    };
    Ok((format, report, found))
}

/// Why HQQ is not supported: the zero point and the scale are floats whose product is rounded to 16
/// bits, and columns are packed by parts of the flattened weight.
const HQQ: &str = "HQQ's files are not supported: codes are packed by halves of the flattened \
                   weight, which no layout says; quantise the layer with `zero: f16, scale: f16 per 1xG` instead";

/// The format that a configuration names.
fn format(fields: Fields<'_>) -> Result<CheckpointFormat, CheckpointError> {
    match fields.text("quant_method")? {
        Some("compressed-tensors") => Ok(CheckpointFormat::CompressedTensors),
        Some("gptq") => Ok(CheckpointFormat::Gptq),
        Some("awq") => Ok(CheckpointFormat::Awq),
        Some("quark") => Ok(CheckpointFormat::Quark),
        Some("modelopt" | "modelopt_fp4" | "modelopt_mixed") => Ok(CheckpointFormat::ModelOpt),
        Some("fp8") => Ok(CheckpointFormat::Fp8),
        Some("mxfp4") => Ok(CheckpointFormat::GptOss),
        Some("bitsandbytes") => Ok(CheckpointFormat::BitsAndBytes),
        Some("hqq") => Ok(CheckpointFormat::Hqq),
        Some("quantloom") => Ok(CheckpointFormat::Quantloom),
        Some(other) => Err(ConfigProblem::Format(shortened(other.to_owned())).at(fields.place)),
        // The first releases of compressed-tensors wrote no method.
        None if fields.get("config_groups").is_some() => Ok(CheckpointFormat::CompressedTensors),
        None => fields.needed("quant_method", None),
    }
}

impl LayerSource<'_> {
    /// The refusals of the tables for an object that describes a layer.
    fn refused(&self, layer: &str, path: &[&str]) -> Result<(), LayerError> {
        let refused = |key: &RefusedKey| LayerError::of(layer, LayerProblem::Refused(key.clone()));
        self.keys.below(path).map_or(Ok(()), |key| Err(refused(key)))
    }

    /// Layers that have a tensor of this name, by layer name.
    fn having(&self, suffix: &str) -> Vec<String> {
        having(self.tensors, suffix)
    }

    fn tensor(&self, layer: &str, name: &str) -> Option<&Tensor> {
        self.tensors.get(&tensor_name(layer, name))
    }

    fn needed(&self, layer: &str, name: &str) -> Result<&Tensor, LayerError> {
        let missing = || LayerError::missing(layer, tensor_name(layer, name));
        self.tensor(layer, name).ok_or_else(missing)
    }

    /// The sizes of a tensor with two dimensions that is not empty, and therefore smaller than its
    /// file: arithmetic on the sizes does not overflow.
    fn matrix(
        &self,
        layer: &str,
        name: &str,
        expected: &'static str,
    ) -> Result<[u64; 2], LayerError> {
        match self.needed(layer, name)?.shape() {
            &[rows, columns] if rows > 0 && columns > 0 => Ok([rows as u64, columns as u64]),
            other => Err(LayerError::of_shape(layer, name, other, expected)),
        }
    }
}

fn having(tensors: &Tensors, suffix: &str) -> Vec<String> {
    let layer = |name: &str| {
        if suffix.starts_with('_') {
            return name.strip_suffix(suffix).map(str::to_owned);
        }
        let rest = name.strip_suffix(suffix)?;
        if rest.is_empty() {
            Some(String::new())
        } else {
            rest.strip_suffix('.').map(str::to_owned)
        }
    };
    tensors.names().filter_map(layer).collect()
}
