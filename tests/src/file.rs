//! A safetensors file that tests take apart, change and reassemble, and the result of reading it.

use serde_json::{Map, Value, json};

use crate::golden_file;

/// The parts of a safetensors file.
#[derive(Clone, Debug)]
pub struct File {
    /// The header's `__metadata__`.
    pub metadata: Map<String, Value>,
    /// Its tensors, in the order of their bytes.
    pub tensors: Vec<Stored>,
}

/// A tensor of such a file.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its name.
    pub name: String,
    /// Its type, as the header spells it.
    pub dtype: String,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl File {
    /// A golden file without its references.
    ///
    /// # Panics
    /// If the file cannot be read.
    pub fn golden(name: &str) -> Self {
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

    /// A tensor of the file.
    ///
    /// # Panics
    /// If the file has none of that name.
    pub fn tensor(&mut self, name: &str) -> &mut Stored {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the file")
    }

    /// The quantisation configuration.
    ///
    /// # Panics
    /// If the file has none that is JSON.
    pub fn config(&mut self) -> Value {
        let text = self.metadata.get("quantization_config").and_then(Value::as_str);
        serde_json::from_str(text.expect("a configuration")).unwrap()
    }

    /// Replaces the quantisation configuration.
    pub fn set_config(&mut self, text: String) {
        self.metadata.insert("quantization_config".to_owned(), Value::from(text));
    }

    /// Sets a value at a JSON pointer of the configuration.
    ///
    /// # Panics
    /// If the pointer's parent is not there.
    pub fn set(&mut self, pointer: &str, value: Value) {
        let mut config = self.config();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(parent).expect(pointer)[key] = value;
        self.set_config(config.to_string());
    }

    /// The header of the tensors, one behind the other.
    pub fn header(&self) -> Map<String, Value> {
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

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        self.with_header(&Value::from(self.header()).to_string())
    }

    /// The file with another header.
    pub fn with_header(&self, header: &str) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(self.tensors.iter().flat_map(|tensor| &tensor.bytes));
        file
    }
}

/// Header and body of a safetensors file.
///
/// # Panics
/// If the header is not JSON.
pub fn split(bytes: &[u8]) -> (Map<String, Value>, &[u8]) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), &bytes[8 + length..])
}

/// Overwrites bytes of a tensor from a place on.
///
/// # Panics
/// If the tensor has no such bytes.
pub fn put(file: &mut File, tensor: &str, at: usize, bytes: &[u8]) {
    file.tensor(tensor).bytes[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Replaces the shape that compressed-tensors stores beside packed codes.
///
/// # Panics
/// If the file has no `layer.weight_shape`.
pub fn sizes(file: &mut File, sizes: &[i64]) {
    let tensor = file.tensor("layer.weight_shape");
    tensor.shape = vec![sizes.len() as u64];
    tensor.bytes = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
}
