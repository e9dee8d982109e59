//! What a checkpoint has beside its layers' schemes: tensors of layers that no scheme takes, the model's
//! configuration, its folder.

use std::path::Path;

use serde_json::{Map, Value};

use super::config::read_json;
use super::keys::{self, RowSubject};
use super::{Checkpoint, CheckpointError, Layer};

impl Checkpoint {
    /// The tensors of a layer that its format knows and its scheme does not have, such as the layer's
    /// shape: the last parts of their names.
    pub(crate) fn beside(&self, layer: &Layer) -> Vec<&str> {
        let table = keys::table(layer.format());
        let known = |name: &str| {
            let rows = table.iter().flat_map(|table| &table.rows);
            let mut tensors = rows.filter(|row| row.subject == RowSubject::Tensor);
            tensors.any(|row| row.path == [name])
        };
        let names = self.tensors.of_layer(layer.name()).map(|(name, _)| name);
        names.filter(|name| layer.store(name).is_none() && known(name)).collect()
    }

    /// The folder that was opened; `None` if it was a file.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.path.as_deref().filter(|path| path.is_dir())
    }

    /// The model's `config.json`, in the folder or beside the file; `None` for GGUF, which has its own facts.
    pub(crate) fn model_json(&self) -> Result<Option<Map<String, Value>>, CheckpointError> {
        let folder = self.folder().or_else(|| self.path.as_deref()?.parent());
        let file = folder.map(|folder| folder.join("config.json"));
        match file.filter(|file| file.is_file() && self.tensors.gguf().is_none()) {
            None => Ok(None),
            Some(file) => Ok(read_json(&file)?.as_object().cloned()),
        }
    }
}
