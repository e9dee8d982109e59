//! Writing safetensors: the header first, then one tensor after the other, so that no more
//! than one layer is in memory; a temporary file beside the target, renamed at the end.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use quantloom_dsl::format::{BF16, E4M3, E4M3FNUZ, F16, F32, Number, Variant};
use quantloom_dsl::layout::{Field, Layout};
use quantloom_dsl::{Scheme, Store};
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;

/// The full name of a layer's tensor: joined by a dot, or as it is if it starts with `_`.
pub fn tensor_name(layer: &str, store: &str) -> String {
    if layer.is_empty() || store.starts_with('_') {
        format!("{layer}{store}")
    } else {
        format!("{layer}.{store}")
    }
}

/// The safetensors type of a store: its word type, its number type, or bytes.
pub fn element_dtype(scheme: &Scheme, store: &Store) -> Dtype {
    match &store.layout {
        Layout::Word { word, .. } => match (word.bits, word.signed) {
            (8, true) => Dtype::I8,
            (16, false) => Dtype::U16,
            (16, true) => Dtype::I16,
            (32, false) => Dtype::U32,
            (32, true) => Dtype::I32,
            (64, false) => Dtype::U64,
            (64, true) => Dtype::I64,
            _ => Dtype::U8,
        },
        Layout::For { body, .. } => match **body {
            Layout::Field(Field::Bits { component, range: None, .. }) => {
                scheme.number(component).map_or(Dtype::U8, number_dtype)
            }
            _ => Dtype::U8,
        },
        _ => Dtype::U8,
    }
}

fn number_dtype(number: Number) -> Dtype {
    match number {
        Number::Float(F32) => Dtype::F32,
        Number::Float(F16) => Dtype::F16,
        Number::Float(BF16) => Dtype::BF16,
        Number::Float(E4M3) => Dtype::F8_E4M3,
        Number::Float(E4M3FNUZ) => Dtype::F8_E4M3FNUZ,
        Number::Float(format)
            if (format.exponent_bits, format.variant) == (5, Variant::Ieee)
                && format.bits() == 8 =>
        {
            Dtype::F8_E5M2
        }
        Number::Uint(16) => Dtype::U16,
        Number::Uint(32) => Dtype::U32,
        Number::Int(8) => Dtype::I8,
        Number::Int(16) => Dtype::I16,
        Number::Int(32) => Dtype::I32,
        _ => Dtype::U8,
    }
}

/// A tensor that will be written.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Full name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, slowest first.
    pub shape: Vec<u64>,
    /// Size in bytes.
    pub bytes: u64,
}

/// Writes a file whose entries are known beforehand.
pub struct Writer {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
    left: std::vec::IntoIter<Entry>,
    /// The entry that is being written, and its bytes that are missing.
    current: Option<(String, u64)>,
}

impl Writer {
    /// Writes the header into a temporary file beside `path`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn create(
        path: &Path,
        entries: Vec<Entry>,
        metadata: &BTreeMap<String, String>,
    ) -> std::io::Result<Self> {
        // Renaming would put a file in the place of a device, a pipe or a link.
        let path = match std::fs::metadata(path) {
            Ok(there) if !there.is_file() => {
                return Err(invalid("what is there is not an ordinary file".to_owned()));
            }
            Ok(_) => std::fs::canonicalize(path)?,
            Err(_) => path.to_owned(),
        };
        let mut header = Map::new();
        if !metadata.is_empty() {
            header.insert("__metadata__".to_owned(), json!(metadata));
        }
        let mut offset = 0;
        for entry in &entries {
            let end = offset + entry.bytes;
            let value = json!({
                "dtype": entry.dtype,
                "shape": entry.shape,
                "data_offsets": [offset, end],
            });
            header.insert(entry.name.clone(), value);
            offset = end;
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut file = BufWriter::new(NamedTempFile::new_in(directory)?);
        file.write_all(&(text.len() as u64).to_le_bytes())?;
        file.write_all(&text)?;
        Ok(Self { path, file, left: entries.into_iter(), current: None })
    }

    /// Writes the next bytes of the current entry; an entry that is full gives way to the next.
    ///
    /// # Errors
    /// `InvalidInput` if the bytes go beyond the entry; what the system says.
    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.current.as_ref().is_none_or(|(_, missing)| *missing == 0) {
            // Empty tensors have nothing to wait for.
            let next = self.left.find(|entry| entry.bytes > 0);
            self.current = next.map(|entry| (entry.name, entry.bytes));
        }
        match &mut self.current {
            Some((_, missing)) if *missing >= bytes.len() as u64 => *missing -= bytes.len() as u64,
            Some((name, missing)) => {
                return Err(invalid(format!(
                    "{name}: {} bytes, {missing} are missing",
                    bytes.len()
                )));
            }
            None => return Err(invalid("no entry is left".to_owned())),
        }
        self.file.write_all(bytes)
    }

    /// Renames the temporary file to the target.
    ///
    /// # Errors
    /// `InvalidInput` if an entry was not written whole; what the system says.
    pub fn finish(mut self) -> std::io::Result<()> {
        let partial = self.current.filter(|(_, missing)| *missing > 0).map(|(name, _)| name);
        if let Some(name) = partial.or(self.left.find(|entry| entry.bytes > 0).map(|e| e.name)) {
            return Err(invalid(format!("the tensor {name} was not written whole")));
        }
        self.file.flush()?;
        let file = self.file.into_inner().map_err(|error| error.into_error())?;
        // Temporary files are private; a checkpoint is an ordinary file.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
        }
        file.persist(&self.path).map(|_| ()).map_err(|error| error.error)
    }
}

fn invalid(what: String) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, what)
}
