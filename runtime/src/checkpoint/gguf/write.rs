//! Writing GGUF: the header, whose tensors are then written one after another, each padded to the
//! alignment.
//!
//! Source: ggml, `docs/gguf.md`, and `gguf.cpp`, whose limits are kept.

use std::collections::HashSet;
use std::io;

use safetensors::Dtype;

use super::header::{ALIGNMENT, MAGIC, MOST_TENSORS};
use super::types::{Content, TYPES};
use super::value::GgufType;
use super::{Gguf, QUANTIZATION_VERSION};

/// The version that is written.
const VERSION: u32 = 3;
/// ggml refuses longer names of tensors.
const MOST_NAME: usize = 63;

/// A tensor that will be written.
#[derive(Clone, Debug)]
pub(crate) struct GgufEntry {
    pub(crate) name: String,
    /// The number of its ggml type.
    pub(crate) number: u32,
    /// Dimensions in elements, slowest first.
    pub(crate) dims: Vec<u64>,
    pub(crate) bytes: u64,
}

/// The number of the ggml type whose tensors are elements of a type; `None` if there is none.
pub(crate) fn element_number(dtype: Dtype) -> Option<u32> {
    let row = TYPES.iter().find(|row| matches!(row.content, Content::Elements(of) if of == dtype));
    row.map(|row| row.number)
}

/// Why a GGUF file cannot have a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufTensorLimit {
    /// A name of so many bytes.
    #[error("its name has {0} bytes; {MOST_NAME} are read by llama.cpp")]
    Name(usize),
    /// So many dimensions.
    #[error("it has {0} dimensions; GGUF has 4 at most")]
    Dimensions(usize),
    /// A dimension of 0.
    #[error("it is empty; GGUF's tensors are not")]
    Empty,
}

/// Why a file cannot have a tensor of this name and these dimensions.
pub(crate) fn unwritable(name: &str, dims: &[u64]) -> Option<GgufTensorLimit> {
    if name.len() > MOST_NAME {
        return Some(GgufTensorLimit::Name(name.len()));
    }
    if dims.len() > 4 {
        return Some(GgufTensorLimit::Dimensions(dims.len()));
    }
    dims.contains(&0).then_some(GgufTensorLimit::Empty)
}

/// A key, the type of its value, the value's bytes.
pub(crate) type EncodedKey = (String, GgufType, Vec<u8>);

/// The keys of a file that is made of another kind of file.
pub(crate) fn default_keys(architecture: &str) -> Vec<EncodedKey> {
    let mut text = (architecture.len() as u64).to_le_bytes().to_vec();
    text.extend_from_slice(architecture.as_bytes());
    let version = (QUANTIZATION_VERSION as u32).to_le_bytes().to_vec();
    vec![
        ("general.architecture".to_owned(), GgufType::Text, text),
        ("general.quantization_version".to_owned(), GgufType::U32, version),
    ]
}

impl Gguf {
    /// The keys for another file with the same facts.
    pub(crate) fn keys_to_write(&self) -> Vec<EncodedKey> {
        let owned =
            |(key, kind, bytes): (&str, GgufType, &[u8])| (key.to_owned(), kind, bytes.to_vec());
        self.encoded().into_iter().map(owned).collect()
    }
}

/// The header of a file, up to the first tensor's bytes, and the alignment of the tensors.
///
/// # Errors
/// `InvalidInput`: more tensors than are read; two tensors of one name; a tensor that [`unwritable`] refuses.
pub(crate) fn header(
    keys: &[EncodedKey],
    alignment: Option<u64>,
    entries: &[GgufEntry],
) -> io::Result<(Vec<u8>, u64)> {
    if entries.len() as u64 > MOST_TENSORS {
        let what = format!("{} tensors; {MOST_TENSORS} are read of a GGUF file", entries.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let alignment = alignment.unwrap_or(ALIGNMENT);
    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend((entries.len() as u64).to_le_bytes());
    header.extend((keys.len() as u64).to_le_bytes());
    let text = |header: &mut Vec<u8>, text: &str| {
        header.extend((text.len() as u64).to_le_bytes());
        header.extend_from_slice(text.as_bytes());
    };
    for (key, kind, value) in keys {
        text(&mut header, key);
        header.extend(kind.number().to_le_bytes());
        header.extend_from_slice(value);
    }
    let (mut offset, mut names) = (0u64, HashSet::new());
    for entry in entries {
        let fault = |what: String| {
            let what = format!("the tensor {:?}: {what}", entry.name);
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        if let Some(why) = unwritable(&entry.name, &entry.dims) {
            return Err(fault(why.to_string()));
        }
        if !names.insert(&entry.name) {
            return Err(fault("it occurs twice".to_owned()));
        }
        text(&mut header, &entry.name);
        // A number without dimensions is a row of one.
        let dims = if entry.dims.is_empty() { &[1][..] } else { &entry.dims };
        header.extend((dims.len() as u32).to_le_bytes());
        header.extend(dims.iter().rev().flat_map(|size| size.to_le_bytes()));
        header.extend(entry.number.to_le_bytes());
        header.extend(offset.to_le_bytes());
        let end =
            offset.checked_add(entry.bytes).and_then(|end| end.checked_next_multiple_of(alignment));
        offset = end.ok_or_else(|| fault("the file would be too large".to_owned()))?;
    }
    let length = (header.len() as u64).next_multiple_of(alignment);
    header.resize(length as usize, 0);
    Ok((header, alignment))
}
