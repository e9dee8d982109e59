//! Where a model's configuration is.

use std::path::Path;

use serde_json::{Map, Value};

use super::super::CheckpointError;
use super::super::config::{Config, parse_json, read_json};
use super::super::files::Tensors;
use super::{ModelFamily, SharedExperts};

/// A model's configuration, and the family that it names.
#[derive(Clone, Debug)]
pub(in super::super) struct ModelConfig {
    pub(super) config: Config,
    /// Its `model_type`; empty if it has none.
    pub(in super::super) model_type: String,
}

impl ModelConfig {
    /// The family, if `model_type` is known.
    pub(in super::super) fn family(&self) -> Option<&'static ModelFamily> {
        ModelFamily::of_type(&self.model_type)
    }

    /// The name of the shared expert, below the module of the experts, if the configuration says that there is one.
    pub(in super::super) fn shared_expert(&self) -> Option<&'static str> {
        let family = self.family()?;
        let there = match family.shared {
            SharedExperts::Never => false,
            SharedExperts::Always => true,
            SharedExperts::Above0(key) => {
                self.config.value.get(key).and_then(Value::as_f64).is_some_and(|count| count > 0.0)
            }
        };
        family.names.shared.filter(|_| there)
    }
}

/// The metadata key `config`, else `config.json` beside the file. Files of gpt-oss experts may have
/// neither: their metadata is the configuration then (`unnamed` is the `model_type` of such a file).
pub(in super::super) fn find(
    path: Option<&Path>,
    tensors: &Tensors,
    unnamed: Option<&str>,
) -> Result<Option<ModelConfig>, CheckpointError> {
    if let Some(text) = tensors.metadata("config") {
        let place = "the metadata key `config`";
        return Ok(of_value(parse_json(text, place)?, place.to_owned()));
    }
    let directory = path.and_then(|path| if path.is_dir() { Some(path) } else { path.parent() });
    if let Some(file) = directory.map(|directory| directory.join("config.json"))
        && file.is_file()
    {
        return Ok(of_value(read_json(&file)?, file.display().to_string()));
    }
    let Some(model_type) = unnamed else { return Ok(None) };
    let number = |text: &str| serde_json::from_str::<Value>(text).ok().filter(Value::is_number);
    let entries = tensors.all_metadata().iter();
    let numbers = entries.filter_map(|(key, text)| Some((key.clone(), number(text)?)));
    let config = Config { place: "the file's metadata".to_owned(), value: numbers.collect() };
    Ok(Some(ModelConfig { config, model_type: model_type.to_owned() }))
}

/// The language model's part: models with several parts have it in `text_config`.
fn of_value(value: Value, place: String) -> Option<ModelConfig> {
    let Value::Object(mut object) = value else { return None };
    let word = |object: &Map<String, Value>| {
        object.get("model_type").and_then(Value::as_str).map(str::to_owned)
    };
    let outer = word(&object);
    if let Some(Value::Object(inner)) = object.remove("text_config") {
        object = inner;
    }
    let model_type = word(&object).or(outer).unwrap_or_default();
    // It is held elsewhere, and may be large.
    object.remove("quantization_config");
    Some(ModelConfig { config: Config { place, value: object }, model_type })
}
