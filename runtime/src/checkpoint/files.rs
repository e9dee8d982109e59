//! The files of a checkpoint: one, or a directory of shards; memory-mapped or read into memory.
//!
//! In: a path. Out: [`Tensors`], the type, shape and bytes of every tensor by name. The
//! `safetensors` crate validates headers (sizes, offsets, overlap, length of the file), `gguf` those
//! of GGUF files, which their first bytes tell; nothing is copied, and no allocation depends on an
//! unchecked header.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Formatter;
use std::fs::File;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use super::CheckpointError;
use super::config::{ConfigProblem, read_json, shortened};
use super::gguf::{self, Gguf, GgufProblem};

/// Larger headers are not read. The largest models have some 100,000 tensors, of about 100 bytes of
/// header each, in many files.
pub(super) const MOST_HEADER_BYTES: u64 = 32 << 20;

/// How files are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileAccess {
    /// The files are memory-mapped: nothing is copied, and only the pages that are used are read.
    /// If another process truncates a file or the disk fails, the process ends by a signal
    /// (SIGBUS); if another process writes to a file, tensors change that were checked already.
    #[default]
    Mapped,
    /// The files are read completely before anything else, and may change or be removed afterwards.
    /// Takes as much memory as the files have bytes.
    Copied,
}

/// A file's bytes: mapped, or already in memory.
pub(super) enum Bytes {
    Map(Mmap),
    Memory(Vec<u8>),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Map(map) => map,
            Self::Memory(bytes) => bytes,
        }
    }
}

/// One tensor of a file.
#[derive(Clone)]
pub struct Tensor {
    map: Arc<Bytes>,
    start: usize,
    end: usize,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl Tensor {
    /// A tensor that is not in a file: `bytes` are its elements, row-major, little-endian.
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self { map: Arc::new(Bytes::Memory(bytes)), start: 0, end, dtype, shape }
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Dimensions, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The raw little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.start..self.end]
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}{:?}", self.dtype, self.shape)
    }
}

/// The tensors of a checkpoint by name, and the metadata of its files.
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    tensors: BTreeMap<String, Tensor>,
    metadata: BTreeMap<String, String>,
    gguf: Option<Gguf>,
    /// Tensors that an index names and no shard has, with the shards where they should be.
    lost: BTreeMap<String, String>,
}

impl Tensors {
    /// Maps one file, or every safetensors shard of a directory. The files must not be written while
    /// they are mapped ([`FileAccess::Mapped`]); if they may be, use [`Tensors::open_as`].
    ///
    /// # Errors
    /// A path that cannot be read, a file that is not valid safetensors or GGUF, a tensor that two
    /// shards hold.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        Self::open_as(path, FileAccess::Mapped)
    }

    /// [`Tensors::open`], memory-mapped or read into memory.
    ///
    /// # Errors
    /// As [`Tensors::open`].
    pub fn open_as(path: &Path, access: FileAccess) -> Result<Self, CheckpointError> {
        let mut tensors = Self::default();
        let Shards { files, index } = shards(path)?;
        for file in files {
            tensors.take(&file, access)?;
        }
        tensors.lost = index.map(|index| index.lost(&tensors)).unwrap_or_default();
        Ok(tensors)
    }

    /// A tensor by its full name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Every name, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensors of a layer: the last parts of their names, sorted.
    pub(super) fn of_layer<'t>(
        &'t self,
        layer: &str,
    ) -> impl Iterator<Item = (&'t str, &'t Tensor)> {
        let start = if layer.is_empty() { String::new() } else { format!("{layer}.") };
        let range = self.tensors.range(start.clone()..);
        range.map_while(move |(name, tensor)| Some((name.strip_prefix(&start)?, tensor)))
    }

    /// A tensor of a layer that an index names and no shard has, and the shard where it should be.
    pub(super) fn lost_of(&self, layer: &str) -> Option<(&str, &str)> {
        let start = if layer.is_empty() { String::new() } else { format!("{layer}.") };
        let (name, shard) = self.lost.range(start.clone()..).next()?;
        name.starts_with(&start).then_some((name, shard))
    }

    /// Tensors that an index names and no shard has.
    pub(super) fn lost(&self) -> impl ExactSizeIterator<Item = &str> {
        self.lost.keys().map(String::as_str)
    }

    /// The tensors whose names begin with a prefix and a dot, by their full names.
    pub(super) fn below<'t>(&'t self, prefix: &str) -> impl Iterator<Item = (&'t str, &'t Tensor)> {
        let start = if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
        let range = self.tensors.range(start.clone()..);
        let named = range.map(|(name, tensor)| (name.as_str(), tensor));
        named.take_while(move |(name, _)| name.starts_with(&start))
    }

    /// The value of a metadata key.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// All metadata of the files, by key.
    pub fn all_metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// What a GGUF file says of itself; `None` for safetensors files.
    pub fn gguf(&self) -> Option<&Gguf> {
        self.gguf.as_ref()
    }

    fn take(&mut self, path: &Path, access: FileAccess) -> Result<(), CheckpointError> {
        let io = |error| CheckpointError::Io { path: path.to_owned(), error };
        // Checked before the file is opened: opening a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(CheckpointError::NotAFile(path.to_owned()));
        }
        if access == FileAccess::Copied {
            let bytes = std::fs::read(path).map_err(io)?;
            return self.add(path, Bytes::Memory(bytes));
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is read-only and lives as long as every `Tensor` of it. As with every
        // mapped file, reads fault if another process truncates the file; the documentation says
        // so. Quantloom and the software that it reads from do not write checkpoints in place, and
        // `FileAccess::Copied` serves files that change.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        self.add(path, Bytes::Map(map))
    }

    /// The tensors of a file in memory.
    ///
    /// # Errors
    /// [`CheckpointError::Safetensors`] or [`CheckpointError::Gguf`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, CheckpointError> {
        let mut tensors = Self::default();
        tensors.add(Path::new("the file in memory"), Bytes::Memory(bytes))?;
        Ok(tensors)
    }

    fn add(&mut self, path: &Path, bytes: Bytes) -> Result<(), CheckpointError> {
        let map = Arc::new(bytes);
        if map.starts_with(gguf::MAGIC) || self.gguf.is_some() {
            return self.add_gguf(path, &map);
        }
        let invalid =
            |error| CheckpointError::Safetensors { path: path.to_owned(), error: Box::new(error) };
        let claimed = map.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        // A file that is shorter than its header is no safetensors file, which is the truer reason.
        if claimed > MOST_HEADER_BYTES && claimed < map.len() as u64 {
            let path = path.to_owned();
            return Err(CheckpointError::Header { path, bytes: claimed, most: MOST_HEADER_BYTES });
        }
        let (length, header) = SafeTensors::read_metadata(&map).map_err(invalid)?;
        if let Some(name) = twice(&map[8..8 + length]) {
            return Err(CheckpointError::Twice(name));
        }
        if let Some(entries) = header.metadata() {
            self.metadata.extend(entries.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
        // Parsed once: a second parse would hold every name and shape of a large file twice.
        let data = 8 + length;
        for name in header.offset_keys() {
            let Some(tensor) = header.info(&name) else { continue };
            let (start, end) = tensor.data_offsets;
            let tensor = Tensor {
                map: map.clone(),
                start: data + start,
                end: data + end,
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
            };
            self.insert(name, tensor)?;
        }
        Ok(())
    }

    /// The tensors of a GGUF file, which is a whole checkpoint.
    fn add_gguf(&mut self, path: &Path, map: &Arc<Bytes>) -> Result<(), CheckpointError> {
        let fault = |problem| CheckpointError::Gguf { path: path.to_owned(), problem };
        if !self.tensors.is_empty() || self.gguf.is_some() {
            return Err(fault(GgufProblem::AmongOthers));
        }
        let (gguf, placed) = Gguf::read(map).map_err(fault)?;
        for gguf::Placed { name, bytes, dtype, shape } in placed {
            let (start, end) = (bytes.start, bytes.end);
            self.insert(name, Tensor { map: map.clone(), start, end, dtype, shape })?;
        }
        self.gguf = Some(gguf);
        Ok(())
    }

    fn insert(&mut self, name: String, tensor: Tensor) -> Result<(), CheckpointError> {
        match self.tensors.entry(name) {
            Entry::Vacant(place) => place.insert(tensor),
            Entry::Occupied(taken) => return Err(CheckpointError::Twice(taken.key().clone())),
        };
        Ok(())
    }
}

/// The first key that a JSON object has more than once; otherwise the last value would win
/// silently.
fn twice(header: &[u8]) -> Option<String> {
    struct Names;
    impl<'de> Visitor<'de> for Names {
        type Value = Option<String>;

        fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let (mut seen, mut twice) = (HashSet::new(), None);
            while let Some((name, _)) = map.next_entry::<String, IgnoredAny>()? {
                if let Some(name) = seen.replace(name) {
                    twice = twice.or(Some(name));
                }
            }
            Ok(twice)
        }
    }
    // The text has been checked to be valid JSON.
    serde_json::Deserializer::from_slice(header).deserialize_map(Names).unwrap_or(None)
}

/// The files of a checkpoint, and the index that names them, if there is one.
struct Shards {
    files: Vec<PathBuf>,
    index: Option<Index>,
}

/// An index of shards: the shard of each tensor.
struct Index(BTreeMap<String, String>);

impl Index {
    /// What no shard has. An index of other tensors, such as that of the model before it was quantised, says nothing
    /// about these.
    fn lost(mut self, tensors: &Tensors) -> BTreeMap<String, String> {
        if !tensors.names().all(|name| self.0.contains_key(name)) {
            return BTreeMap::new();
        }
        self.0.retain(|name, _| tensors.get(name).is_none());
        self.0
    }
}

/// The files of a checkpoint: the path itself, the shards that an index names, or every
/// `.safetensors` file of the directory.
fn shards(path: &Path) -> Result<Shards, CheckpointError> {
    let io = |error| CheckpointError::Io { path: path.to_owned(), error };
    if !std::fs::metadata(path).map_err(io)?.is_dir() {
        return Ok(Shards { files: vec![path.to_owned()], index: None });
    }
    let index = path.join("model.safetensors.index.json");
    if index.is_file() {
        return indexed(path, &index);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|extension| extension == "safetensors") {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(CheckpointError::NoTensors(path.to_owned()));
    }
    Ok(Shards { files, index: None })
}

fn indexed(directory: &Path, index: &Path) -> Result<Shards, CheckpointError> {
    let value = read_json(index)?;
    let place = index.display().to_string();
    let fault = |problem: ConfigProblem| problem.at(place.as_str());
    let map = value.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| fault(ConfigProblem::Index("it has no `weight_map` object")))?;
    let mut shards = BTreeMap::new();
    for (tensor, name) in map {
        let no_text = || fault(ConfigProblem::Index("a shard's name is not a string"));
        let name = name.as_str().ok_or_else(no_text)?;
        let mut parts = Path::new(name).components();
        let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        if !plain {
            return Err(fault(ConfigProblem::Shard(shortened(name.to_owned()))));
        }
        shards.insert(tensor.clone(), name.to_owned());
    }
    let files: BTreeSet<PathBuf> = shards.values().map(|name| directory.join(name)).collect();
    if files.is_empty() {
        return Err(fault(ConfigProblem::Index("its `weight_map` is empty")));
    }
    Ok(Shards { files: files.into_iter().collect(), index: Some(Index(shards)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_a_limit() {
        let file = |bytes: u64| {
            let header = format!("{{{}}}", " ".repeat(bytes as usize - 2));
            Tensors::from_bytes([&bytes.to_le_bytes(), header.as_bytes()].concat())
        };
        assert!(file(MOST_HEADER_BYTES).is_ok());
        let error = file(MOST_HEADER_BYTES + 8).unwrap_err();
        assert!(matches!(error, CheckpointError::Header { bytes, most, .. } if bytes == most + 8));
    }
}
