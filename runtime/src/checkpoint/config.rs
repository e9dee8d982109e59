//! The quantisation configuration of a checkpoint, and access to fields of its JSON with errors
//! that name the field.

use std::path::Path;

use serde_json::{Map, Value};

use super::CheckpointError;
use super::files::Tensors;
use super::keys::RefusedKey;

/// A configuration and its location.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file or metadata key.
    pub place: String,
    /// The `quantization_config` object.
    pub value: Map<String, Value>,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigProblem {
    /// The JSON text has more bytes than are read.
    #[error("{bytes} bytes of JSON are too many; the limit is {MOST_BYTES}")]
    TooLong {
        /// Its bytes.
        bytes: u64,
    },
    /// The JSON text would take more memory than is given to it.
    #[error(
        "{values} values and {objects} objects in one JSON text are too many; {MOST_VALUES} and \
         {MOST_OBJECTS} are read"
    )]
    TooMany {
        /// Its values.
        values: usize,
        /// Its objects, which are values too.
        objects: usize,
    },
    /// The text is no JSON.
    #[error("it is not valid JSON: {error}")]
    Json {
        /// Where, and why.
        error: serde_json::Error,
    },
    /// A key is not there.
    #[error("`{0}` is missing")]
    Missing(String),
    /// The value of a key is of another JSON type.
    #[error("`{key}` is {found}, expected {expected}")]
    Type {
        /// The key.
        key: String,
        /// The value, shortened, or what kind of value.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The configuration is of software whose files are not read.
    #[error(
        "unknown quant_method `{0}`; supported are compressed-tensors, gptq, awq, quark, modelopt, fp8, \
         mxfp4, bitsandbytes, quantloom"
    )]
    Format(String),
    /// The configuration is of software whose files are known and not read: why.
    #[error("{0}")]
    UnreadFormat(&'static str),
    /// A key is refused, since the product may be another one by it.
    #[error(transparent)]
    Refused(RefusedKey),
    /// A setting is not supported, or contradicts another one.
    #[error("{what}")]
    Setting {
        /// The key.
        key: String,
        /// Its value, and why it is not read: for a person, since a program knows values only by their keys.
        what: String,
    },
    /// An index of shards is incomplete: what is missing.
    #[error("{0}")]
    Index(&'static str),
    /// The name of a shard in an index is no name of a file in the index's directory.
    #[error("the shard `{0}` is not a file of this directory")]
    Shard(String),
}

impl ConfigProblem {
    /// A key whose value is of another type.
    fn of_type(key: &str, value: &Value, expected: &'static str) -> Self {
        let found = match value {
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
            value => shortened(value.to_string()),
        };
        Self::Type { key: key.to_owned(), found, expected }
    }

    /// The same with the location of the configuration.
    pub(super) fn at(self, place: impl Into<String>) -> CheckpointError {
        CheckpointError::Config { place: place.into(), problem: self }
    }
}

/// Larger JSON texts are not read: the index of the largest models has 10 MB.
const MOST_BYTES: u64 = 64 << 20;
/// The most values and objects of a JSON text; in memory a value takes some 70 bytes besides its
/// text, an object several hundred.
const MOST_VALUES: usize = 2_000_000;
const MOST_OBJECTS: usize = 250_000;

/// Parses a JSON text, with a bound on its size in memory. A text of 40 MB can take 1.5 GB as
/// values.
///
/// # Errors
/// [`CheckpointError::Config`]: the text is too large, or is not JSON.
pub(super) fn parse_json(text: &str, place: &str) -> Result<Value, CheckpointError> {
    let bytes = text.len() as u64;
    if bytes > MOST_BYTES {
        return Err(ConfigProblem::TooLong { bytes }.at(place));
    }
    // Separators in strings are counted too; they are few.
    let (mut values, mut objects) = (1, 0);
    for byte in text.bytes() {
        values += usize::from(matches!(byte, b',' | b'[' | b'{'));
        objects += usize::from(byte == b'{');
    }
    if values > MOST_VALUES || objects > MOST_OBJECTS {
        return Err(ConfigProblem::TooMany { values, objects }.at(place));
    }
    serde_json::from_str(text).map_err(|error| ConfigProblem::Json { error }.at(place))
}

pub(super) fn read_json(path: &Path) -> Result<Value, CheckpointError> {
    let io = |error| CheckpointError::Io { path: path.to_owned(), error };
    let bytes = std::fs::metadata(path).map_err(io)?.len();
    if bytes > MOST_BYTES {
        return Err(ConfigProblem::TooLong { bytes }.at(path.display().to_string()));
    }
    let text = std::fs::read_to_string(path).map_err(io)?;
    parse_json(text.trim_start_matches('\u{feff}'), &path.display().to_string())
}

/// A message, truncated if it quotes too much of a file, since many layers may repeat it.
pub(super) fn shortened(mut message: String) -> String {
    const MOST: usize = 1000;
    if message.len() > MOST {
        message.truncate(message.floor_char_boundary(MOST));
        message.push_str("...");
        message.shrink_to_fit();
    }
    message
}

/// The files beside the tensors that may have the configuration, in the order of the search. That of AutoGPTQ or AutoAWQ is
/// one of the last two (`get_config_filenames` of vLLM's `GPTQConfig` and `AWQConfig`, of which the second one reads either).
pub const CONFIG_FILES: [&str; 4] =
    ["config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json"];

/// Searches the files' metadata, then the [`CONFIG_FILES`] of the same directory.
pub(super) fn find(
    path: Option<&Path>,
    tensors: &Tensors,
) -> Result<Option<Config>, CheckpointError> {
    for key in ["quantization_config", "config"] {
        let Some(text) = tensors.metadata(key) else { continue };
        let place = format!("the metadata key `{key}`");
        let value = parse_json(text, &place)?;
        if let Some(config) = quantization(value, key == "quantization_config") {
            return Ok(Some(Config { place, value: config }));
        }
    }
    let directory = path.and_then(|path| if path.is_dir() { Some(path) } else { path.parent() });
    for name in CONFIG_FILES {
        let Some(file) = directory.map(|directory| directory.join(name)) else { continue };
        if !file.is_file() {
            continue;
        }
        let itself = name.starts_with("quant");
        if let Some(mut config) = quantization(read_json(&file)?, itself) {
            // Early versions do not name the method.
            if itself && !config.contains_key("quant_method") {
                let has = |key: &&str| config.contains_key(*key);
                let of_awq = ["w_bit", "q_group_size", "zero_point"].iter().any(has);
                let method = match (of_awq, has(&"bits")) {
                    (true, _) => "awq",
                    (false, true) => "gptq",
                    // It is another program's.
                    (false, false) => continue,
                };
                config.insert("quant_method".to_owned(), Value::from(method));
            }
            return Ok(Some(Config { place: file.display().to_string(), value: config }));
        }
    }
    Ok(None)
}

/// The quantisation object of a model's configuration, or the value itself.
fn quantization(value: Value, itself: bool) -> Option<Map<String, Value>> {
    let Value::Object(mut object) = value else { return None };
    for key in ["quantization_config", "compression_config", "quantization"] {
        if let Some(Value::Object(mut inner)) = object.remove(key) {
            if key == "quantization" {
                // ModelOpt's own file names its producer next to the object.
                inner.entry("quant_method").or_insert_with(|| Value::from("modelopt"));
            }
            return Some(inner);
        }
    }
    // Models with several parts keep the language model's configuration in a nested object.
    match object.remove("text_config") {
        Some(text @ Value::Object(_)) if !itself => quantization(text, false),
        _ => itself.then_some(object),
    }
}

/// Reads fields of one object; every error names the field.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) object: &'a Map<String, Value>,
    pub(super) place: &'a str,
}

impl<'a> Fields<'a> {
    /// A setting that is not supported, in words.
    pub(super) fn fault(&self, key: &str, what: impl Into<String>) -> CheckpointError {
        ConfigProblem::Setting { key: key.to_owned(), what: shortened(what.into()) }.at(self.place)
    }

    fn of_type(&self, key: &str, value: &Value, expected: &'static str) -> CheckpointError {
        ConfigProblem::of_type(key, value, expected).at(self.place)
    }

    /// The value of a key; JSON null counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.of_type(key, other, "a string")),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.of_type(key, other, "true or false")),
        }
    }

    pub(super) fn integer(&self, key: &str) -> Result<Option<i64>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => {
                value.as_i64().map(Some).ok_or_else(|| self.of_type(key, value, "an integer"))
            }
        }
    }

    /// A number, integer or not.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => {
                value.as_f64().map(Some).ok_or_else(|| self.of_type(key, value, "a number"))
            }
        }
    }

    pub(super) fn needed<T>(&self, key: &str, value: Option<T>) -> Result<T, CheckpointError> {
        value.ok_or_else(|| ConfigProblem::Missing(key.to_owned()).at(self.place))
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<Fields<'a>>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Fields { object, place: self.place })),
            Some(other) => Err(self.of_type(key, other, "an object")),
        }
    }

    pub(super) fn list(&self, key: &str) -> Result<Vec<&'a str>, CheckpointError> {
        let strings = "a list of strings";
        let string = |item: &'a Value| {
            item.as_str().ok_or_else(|| self.of_type(&format!("{key}[]"), item, "a string"))
        };
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => items.iter().map(string).collect(),
            Some(other) => Err(self.of_type(key, other, strings)),
        }
    }

    /// A group size: `None` for -1 (a whole row).
    pub(super) fn group_size(&self, key: &str) -> Result<Option<u32>, CheckpointError> {
        match self.integer(key)? {
            None | Some(-1) => Ok(None),
            Some(size) => u32::try_from(size)
                .ok()
                .filter(|size| (1..=1 << 24).contains(size))
                .map(Some)
                .ok_or_else(|| {
                    self.fault(key, format!("`{key}` is {size}, which is not a group size"))
                }),
        }
    }
}
