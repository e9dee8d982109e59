//! Writing safetensors: the header first, then one tensor after another, so that at most one layer
//! is in memory. The file is temporary until it is complete, then renamed to the target.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use quantloom_dsl::format::{BF16, E4M3, E4M3FNUZ, F16, F32, Number, Variant};
use quantloom_dsl::layout::{Field, Layout};
use quantloom_dsl::{Scheme, Store};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::files::MOST_HEADER_BYTES;
use crate::atomic_file::AtomicFile;

/// The full name of a layer's tensor: joined by a dot, or without one if the name starts with `_`.
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
        Number::Int(8) => Dtype::I8,
        Number::Int(16) => Dtype::I16,
        Number::Int(32) => Dtype::I32,
        // A type without a safetensors name is written by its width; a type that is not whole bytes
        // is written as bytes.
        number => match number.bits() {
            16 => Dtype::U16,
            32 => Dtype::U32,
            _ => Dtype::U8,
        },
    }
}

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// A safetensors header, its length included.
///
/// # Errors
/// `InvalidInput` if an entry's dimensions are not its bytes, or if two entries have one name,
/// or if the header is larger than what is read, since readers would reject the file.
pub fn header(entries: &[Entry], metadata: &BTreeMap<String, String>) -> std::io::Result<Vec<u8>> {
    let mut header = Map::new();
    header.insert(METADATA.to_owned(), json!(metadata));
    let mut offset: u64 = 0;
    for Entry { name, dtype, shape, bytes } in entries {
        let elements = shape.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bitsize() as u64));
        if bits.is_none() || bits != bytes.checked_mul(8) {
            return Err(invalid(format!(
                "the tensor {name:?} would be {shape:?} of type {dtype:?}, which is not {bytes} bytes"
            )));
        }
        let end = offset.checked_add(*bytes);
        let end = end.ok_or_else(|| invalid("the file would be too large".to_owned()))?;
        let value = json!({ "dtype": dtype, "shape": shape, "data_offsets": [offset, end] });
        if header.insert(name.clone(), value).is_some() {
            let what = if name == METADATA { "is reserved by the format" } else { "occurs twice" };
            return Err(invalid(format!("the tensor {name:?} {what}")));
        }
        offset = end;
    }
    if metadata.is_empty() {
        header.shift_remove(METADATA);
    }
    let text = Value::Object(header).to_string();
    if text.len() as u64 > MOST_HEADER_BYTES - 8 {
        return Err(invalid(format!(
            "the header would have {} bytes, and {MOST_HEADER_BYTES} are read: write a folder of several files",
            text.len()
        )));
    }
    let mut all = (text.len().next_multiple_of(8) as u64).to_le_bytes().to_vec();
    all.extend_from_slice(text.as_bytes());
    all.resize(all.len().next_multiple_of(8), b' ');
    Ok(all)
}

/// The name that safetensors reserves for the metadata.
const METADATA: &str = "__metadata__";

/// Writes a file whose entries are known in advance.
pub struct Writer {
    file: BufWriter<AtomicFile>,
    left: std::vec::IntoIter<Entry>,
    /// The current entry, and the number of its bytes that are missing.
    current: Option<(String, u64)>,
    /// Bytes between tensors make each begin at a multiple of this, counted from the header's end.
    alignment: u64,
    /// Bytes after the header.
    written: u64,
}

impl Writer {
    /// Writes the header into a temporary file in the directory of `path`.
    ///
    /// # Errors
    /// Those of [`header`], and I/O errors.
    pub fn create(
        path: &Path,
        entries: Vec<Entry>,
        metadata: &BTreeMap<String, String>,
    ) -> std::io::Result<Self> {
        Self::after(path, &header(&entries, metadata)?, entries, 1)
    }

    /// The same after a header of another kind of file; each entry is padded to the alignment.
    pub(crate) fn after(
        path: &Path,
        header: &[u8],
        entries: Vec<Entry>,
        alignment: u64,
    ) -> std::io::Result<Self> {
        let mut file = BufWriter::new(AtomicFile::create(path)?);
        file.write_all(header)?;
        Ok(Self { file, left: entries.into_iter(), current: None, alignment, written: 0 })
    }

    /// Zeros up to the next multiple of the alignment.
    fn pad(&mut self) -> std::io::Result<()> {
        while !self.written.is_multiple_of(self.alignment) {
            let missing = self.alignment - self.written % self.alignment;
            let zeros = [0; 64];
            let count = missing.min(zeros.len() as u64);
            self.file.write_all(&zeros[..count as usize])?;
            self.written += count;
        }
        Ok(())
    }

    /// Writes the next bytes of the current entry; after its last byte the next entry is current.
    ///
    /// # Errors
    /// `InvalidInput` if the bytes exceed the entry; I/O errors.
    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.current.as_ref().is_none_or(|(_, missing)| *missing == 0) {
            self.pad()?;
            // Empty tensors need no bytes.
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
        self.written += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Renames the temporary file to the target.
    ///
    /// # Errors
    /// `InvalidInput` if an entry is incomplete; I/O errors.
    pub fn finish(self) -> std::io::Result<()> {
        self.whole()?.keep()
    }

    /// The complete temporary file, which may be read before it is renamed.
    ///
    /// # Errors
    /// As [`Writer::finish`].
    pub fn whole(mut self) -> std::io::Result<AtomicFile> {
        let partial = self.current.take().filter(|(_, missing)| *missing > 0).map(|(name, _)| name);
        if let Some(name) = partial.or(self.left.find(|entry| entry.bytes > 0).map(|e| e.name)) {
            return Err(invalid(format!("the tensor {name} is incomplete")));
        }
        self.pad()?;
        self.file.flush()?;
        self.file.into_inner().map_err(|error| error.into_error())
    }
}

fn invalid(what: String) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, what)
}
