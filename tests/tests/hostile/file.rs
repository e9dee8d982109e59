//! A safetensors file that tests take apart, change and reassemble, and the result of reading it.

use quantloom_runtime::checkpoint::{Checkpoint, Options};
use quantloom_tests::golden_file;
use serde_json::{Map, Value, json};

/// The parts of a safetensors file.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) metadata: Map<String, Value>,
    pub(crate) tensors: Vec<Stored>,
}

#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

impl File {
    /// A golden file without its references.
    pub(crate) fn golden(name: &str) -> Self {
        let bytes = std::fs::read(golden_file(name)).unwrap();
        let (header, body) = split(&bytes);
        let metadata = header.get("__metadata__").and_then(Value::as_object).cloned();
        let tensors =
            header.iter().filter(|(name, _)| *name != "__metadata__").map(|(name, of)| {
                let sizes = |key: &str| -> Vec<u64> {
                    of[key].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect()
                };
                let range = sizes("data_offsets");
                Stored {
                    name: name.clone(),
                    dtype: of["dtype"].as_str().unwrap().to_owned(),
                    shape: sizes("shape"),
                    bytes: body[range[0] as usize..range[1] as usize].to_vec(),
                }
            });
        let tensors = tensors.filter(|tensor| !tensor.name.starts_with("ref.")).collect();
        Self { metadata: metadata.unwrap_or_default(), tensors }
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Stored {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the file")
    }

    pub(crate) fn config(&mut self) -> Value {
        let text = self.metadata.get("quantization_config").and_then(Value::as_str);
        serde_json::from_str(text.expect("a configuration")).unwrap()
    }

    pub(crate) fn set_config(&mut self, text: String) {
        self.metadata.insert("quantization_config".to_owned(), Value::from(text));
    }

    /// Sets a value at a JSON pointer of the configuration.
    pub(crate) fn set(&mut self, pointer: &str, value: Value) {
        let mut config = self.config();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(parent).expect(pointer)[key] = value;
        self.set_config(config.to_string());
    }

    pub(crate) fn header(&self) -> Map<String, Value> {
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), Value::from(self.metadata.clone()));
        let mut start = 0;
        for Stored { name, dtype, shape, bytes } in &self.tensors {
            let end = start + bytes.len();
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
            header.insert(name.clone(), entry);
            start = end;
        }
        header
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.with_header(&Value::from(self.header()).to_string())
    }

    /// The file with another header.
    pub(crate) fn with_header(&self, header: &str) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(self.tensors.iter().flat_map(|tensor| &tensor.bytes));
        file
    }
}

/// Header and body.
pub(crate) fn split(bytes: &[u8]) -> (Map<String, Value>, &[u8]) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), &bytes[8 + length..])
}

/// Opens the file, finds the layer and unpacks it; the first error.
pub(crate) fn read(bytes: Vec<u8>, layer: &str) -> Result<(), String> {
    let checkpoint =
        Checkpoint::from_bytes(bytes, Options::default()).map_err(|error| error.to_string())?;
    let layer = checkpoint.layer(layer).map_err(|error| error.to_string())?;
    layer.unpack().map(|_| ()).map_err(|error| error.to_string())
}

/// The error of a file that must be rejected; it must contain one of the words.
#[track_caller]
pub(crate) fn refused(what: &str, bytes: Vec<u8>, layer: &str, words: &[&str]) {
    let error = read(bytes, layer).expect_err(what);
    assert!(words.iter().any(|word| error.contains(word)), "{what}: {error}");
    assert!(!error.contains('\n') && error.len() < 3000, "{what}: {error}");
}
