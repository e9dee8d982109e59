//! The header of a GGUF file: keys with values, then what each tensor is and where.
//!
//! In: a file's bytes. Out: [`Gguf`] and the place of each tensor, checked against the bytes that are
//! there. The numbers of a header bound loops that end with the file; nothing is allocated by them.
//!
//! Source: ggml, `docs/gguf.md`, and `gguf.cpp`, which is stricter in places (lists of lists, the
//! alignment); what it refuses is refused here.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use safetensors::Dtype;

use super::super::files::Bytes;
use super::problem::GgufProblem;
use super::shortened;
use super::types::{Content, GgmlType};
use super::value::{self, Cursor, GgufType, GgufValue};

/// The first bytes of a file. As the length of a safetensors header they are more than is read, so
/// that no file is both.
pub(in super::super) const MAGIC: &[u8; 4] = b"GGUF";

/// More keys than this are not read; files have some 50.
const MOST_KEYS: u64 = 1 << 16;
/// More tensors than this are not read; the largest models have some 2,000.
pub(super) const MOST_TENSORS: u64 = 1 << 17;
/// Longer keys and names are not read: the format's own limit for keys.
const MOST_NAME: u64 = (1 << 16) - 1;
/// The alignment of a file that says none.
pub(super) const ALIGNMENT: u64 = 32;

/// What a GGUF file says of itself: typed values by key, and the type of each tensor.
#[derive(Clone)]
pub struct Gguf {
    bytes: Arc<Bytes>,
    version: u32,
    /// Type and place of each value.
    values: BTreeMap<String, (GgufType, usize)>,
    pub(super) tensors: BTreeMap<String, TensorInfo>,
}

/// What the header says of a tensor.
#[derive(Clone, Debug)]
pub(super) struct TensorInfo {
    /// The number of its ggml type.
    pub(super) number: u32,
    /// The type; `None` if the number is unknown.
    pub(super) kind: Option<&'static GgmlType>,
    /// Dimensions, slowest first.
    pub(super) dims: Vec<u64>,
    /// Bytes from the start of the data.
    offset: u64,
}

/// A tensor of which the file has bytes.
pub(in super::super) struct Placed {
    pub(in super::super) name: String,
    /// Where it is in the file.
    pub(in super::super) bytes: Range<usize>,
    pub(in super::super) dtype: Dtype,
    /// Slowest first. Of blocks the last two are the blocks of a row and the bytes of a block.
    pub(in super::super) shape: Vec<usize>,
}

impl Gguf {
    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The value of a key, such as `general.architecture`. `None` if there is no such key, or if the
    /// file was changed after it had been opened.
    pub fn value(&self, key: &str) -> Option<GgufValue<'_>> {
        let (kind, at) = self.values.get(key)?;
        value::read(*kind, &mut Cursor::new(&self.bytes, *at), key).ok()
    }

    /// The keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// The name of a tensor's ggml type, such as `Q4_0`. `None` if there is no such tensor, or if
    /// its type is unknown.
    pub fn tensor_type(&self, name: &str) -> Option<&'static str> {
        Some(self.tensors.get(name)?.kind?.name)
    }

    /// The keys in the order of the file, each with its type and its value's bytes.
    pub(crate) fn encoded(&self) -> Vec<(&str, GgufType, &[u8])> {
        let mut all: Vec<_> =
            self.values.iter().map(|(key, (kind, at))| (key.as_str(), *kind, *at)).collect();
        all.sort_by_key(|(_, _, at)| *at);
        let bytes = |(key, kind, at): (&'_ str, GgufType, usize)| {
            let mut cursor = Cursor::new(&self.bytes, at);
            // Values were read when the file was opened.
            value::read(kind, &mut cursor, key).ok()?;
            self.bytes.get(at..cursor.at() as usize).map(|bytes| (at, kind, bytes))
        };
        let whole = all.into_iter().filter_map(|(key, kind, at)| {
            let (_, kind, bytes) = bytes((key, kind, at))?;
            Some((key, kind, bytes))
        });
        whole.collect()
    }

    /// The alignment of the tensors' bytes.
    pub(crate) fn aligned_to(&self) -> u64 {
        self.alignment().unwrap_or(ALIGNMENT)
    }

    /// The names of the tensors, in the order of their bytes in the file.
    pub(crate) fn in_order(&self) -> Vec<&str> {
        let mut names: Vec<(&str, u64)> =
            self.tensors.iter().map(|(name, info)| (name.as_str(), info.offset)).collect();
        names.sort_by_key(|(_, offset)| *offset);
        names.into_iter().map(|(name, _)| name).collect()
    }

    /// Reads a header; the bytes begin with [`MAGIC`].
    pub(in super::super) fn read(bytes: &Arc<Bytes>) -> Result<(Self, Vec<Placed>), GgufProblem> {
        let mut cursor = Cursor::new(bytes, MAGIC.len());
        let version = cursor.u32()?;
        match version {
            2 | 3 => {}
            _ if matches!(version.swap_bytes(), 1..=3) => return Err(GgufProblem::BigEndian),
            _ => return Err(GgufProblem::Version(version)),
        }
        let tensors = limited("tensors", cursor.u64()?, MOST_TENSORS)?;
        let keys = limited("keys", cursor.u64()?, MOST_KEYS)?;
        let values = values(&mut cursor, keys)?;
        let mut gguf = Self { bytes: bytes.clone(), version, values, tensors: BTreeMap::new() };
        let alignment = gguf.alignment()?;
        let mut infos = Vec::new();
        for _ in 0..tensors {
            infos.push(info(&mut cursor, alignment)?);
        }
        let start = cursor.at().checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        let mut placed = Vec::new();
        for (name, offset, info) in infos {
            placed.extend(place(&name, start.checked_add(offset), &info, bytes.len())?);
            match gguf.tensors.entry(name) {
                Entry::Vacant(place) => place.insert(info),
                Entry::Occupied(taken) => {
                    return Err(GgufProblem::TensorTwice(shortened(taken.key())));
                }
            };
        }
        apart(&placed)?;
        Ok((gguf, placed))
    }

    fn alignment(&self) -> Result<u64, GgufProblem> {
        match self.value("general.alignment") {
            None => Ok(ALIGNMENT),
            Some(GgufValue::Unsigned(bytes)) if bytes.is_power_of_two() && bytes < 1 << 32 => {
                Ok(bytes)
            }
            Some(GgufValue::Unsigned(bytes)) => Err(GgufProblem::Alignment(bytes.to_string())),
            Some(_) => Err(GgufProblem::Alignment("no unsigned number".to_owned())),
        }
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (keys, tensors) = (self.values.len(), self.tensors.len());
        write!(f, "GGUF {} of {keys} keys and {tensors} tensors", self.version)
    }
}

fn limited(what: &'static str, found: u64, most: u64) -> Result<u64, GgufProblem> {
    if found > most { Err(GgufProblem::TooMany { what, found, most }) } else { Ok(found) }
}

/// A key or the name of a tensor.
fn name<'a>(cursor: &mut Cursor<'a>) -> Result<&'a str, GgufProblem> {
    let length = Cursor::u64(&mut cursor.clone())?;
    limited("bytes of a name", length, MOST_NAME)?;
    cursor.text()
}

fn values(
    cursor: &mut Cursor<'_>,
    keys: u64,
) -> Result<BTreeMap<String, (GgufType, usize)>, GgufProblem> {
    let mut values = BTreeMap::new();
    for _ in 0..keys {
        let key = name(cursor)?;
        let kind = value::value_type(cursor, key)?;
        let at = cursor.at() as usize;
        value::read(kind, cursor, key)?;
        match values.entry(key.to_owned()) {
            Entry::Vacant(place) => place.insert((kind, at)),
            Entry::Occupied(_) => return Err(GgufProblem::KeyTwice(shortened(key))),
        };
    }
    Ok(values)
}

/// The name of a tensor, its bytes' distance from the start of the data, and what it is.
fn info(cursor: &mut Cursor<'_>, alignment: u64) -> Result<(String, u64, TensorInfo), GgufProblem> {
    let name = name(cursor)?;
    let rank = cursor.u32()?;
    let mut dims = Vec::new();
    for _ in 0..rank.min(4) {
        dims.push(cursor.u64()?);
    }
    let elements = dims.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
    if !(1..=4).contains(&rank) || elements.is_none_or(|elements| elements == 0) {
        return Err(GgufProblem::Dimensions { tensor: shortened(name), found: dims });
    }
    let number = cursor.u32()?;
    let offset = cursor.u64()?;
    if !offset.is_multiple_of(alignment) {
        return Err(GgufProblem::Unaligned { tensor: shortened(name), offset, alignment });
    }
    dims.reverse();
    let info = TensorInfo { number, kind: GgmlType::of(number), dims, offset };
    Ok((name.to_owned(), offset, info))
}

/// Where a tensor's bytes are; `None` if nobody knows how many there are.
fn place(
    name: &str,
    start: Option<u64>,
    info: &TensorInfo,
    file: usize,
) -> Result<Option<Placed>, GgufProblem> {
    let Some(kind) = info.kind else { return Ok(None) };
    let beyond = || GgufProblem::Beyond(shortened(name));
    let columns = info.dims.last().copied().unwrap_or(0);
    if !columns.is_multiple_of(kind.block) {
        let (tensor, block) = (shortened(name), kind.block);
        return Err(GgufProblem::Row { tensor, kind: kind.name, columns, block });
    }
    // Dimensions were multiplied without an overflow.
    let blocks = info.dims.iter().product::<u64>() / kind.block;
    let bytes = blocks.checked_mul(kind.bytes).ok_or_else(beyond)?;
    let start = start.ok_or_else(beyond)?;
    let end = start.checked_add(bytes).filter(|end| *end <= file as u64).ok_or_else(beyond)?;
    // All are at most the file's length.
    let mut shape: Vec<usize> = info.dims.iter().map(|size| *size as usize).collect();
    let dtype = match kind.content {
        Content::Elements(dtype) => dtype,
        Content::Blocks { .. } | Content::Refused(_) => {
            shape.pop();
            shape.extend([(columns / kind.block) as usize, kind.bytes as usize]);
            Dtype::U8
        }
    };
    let bytes = start as usize..end as usize;
    Ok(Some(Placed { name: name.to_owned(), bytes, dtype, shape }))
}

/// Checks that no two tensors share a byte.
fn apart(placed: &[Placed]) -> Result<(), GgufProblem> {
    let mut sorted: Vec<&Placed> = placed.iter().collect();
    sorted.sort_by_key(|tensor| tensor.bytes.start);
    match sorted.windows(2).find(|pair| pair[0].bytes.end > pair[1].bytes.start) {
        Some(pair) => Err(GgufProblem::Overlap(shortened(&pair[0].name), shortened(&pair[1].name))),
        None => Ok(()),
    }
}
