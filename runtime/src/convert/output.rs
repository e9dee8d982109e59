//! What is written: one file, or a folder with shards; whole or absent.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::slice;

use quantloom_dsl::layout::{Component, Shape};
use serde_json::{Map, Value, json};

use super::{
    ConversionPlan, Inexact, Misread, ProofError, TensorLimit, Unconvertible, proof, recode,
};
use crate::atomic_file::AtomicFile;
use crate::atomic_folder::AtomicFolder;
use crate::checkpoint::storage::Storage;
use crate::checkpoint::{
    CONFIG_FILES, Checkpoint, CheckpointError, CheckpointFormat, Entry, GgufEntry, LayerFault,
    Writer, default_keys, element_dtype, element_number, gguf_header, header, tensor_name,
    unwritable_in_gguf,
};
use crate::pack::Slots;
use crate::unpacked::UnpackError;

/// Where an output goes.
#[derive(Clone, Debug)]
pub enum Output {
    /// One file: GGUF, or safetensors with the configuration in its metadata.
    File(PathBuf),
    /// A model directory: shards, their index, `config.json`, and the source directory's other small
    /// files.
    Folder {
        /// The directory, which does not exist yet or is empty.
        path: PathBuf,
        /// The most bytes of tensors in a shard; a larger tensor has a shard of its own.
        shard_bytes: u64,
    },
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// Some layers or tensors cannot be converted.
    #[error("{0} layers or tensors cannot be converted")]
    Refused(usize),
    /// A layer cannot be read.
    #[error(transparent)]
    Layer(#[from] LayerFault),
    /// The values of a layer cannot be read.
    #[error("layer \"{layer}\": {error}")]
    Unpack {
        /// The layer.
        layer: String,
        /// Why.
        error: Box<UnpackError>,
    },
    /// A layer that the plan refuses.
    #[error(transparent)]
    Unconvertible(#[from] Unconvertible),
    /// A layer whose values are no longer those that were planned for.
    #[error(transparent)]
    Inexact(#[from] Inexact),
    /// A file of the source beside its tensors cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The codes cannot be packed.
    #[error("the layer \"{layer}\": {error}")]
    Pack {
        /// The layer.
        layer: String,
        /// Why.
        error: Box<UnpackError>,
    },
    /// Two tensors would have one name.
    #[error("two tensors would be named \"{0}\"")]
    Twice(String),
    /// Writing failed.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// GGUF is one file.
    #[error("GGUF is one file, and {} is to be a folder; name a file that ends in .gguf", .0.display())]
    Folder(PathBuf),
    /// The output does not read back as it should.
    #[error("the output would not read back: {0}")]
    Proof(#[from] ProofError),
}

/// The tensors of a converted layer.
pub(super) struct LayerTensors {
    pub(super) layer: String,
    /// GGUF's number of the type of the tensor `weight`.
    number: Option<u32>,
    shape: Shape,
    /// Each with its bytes, and whether it has the codes.
    tensors: Vec<(Entry, Vec<u8>, bool)>,
}

impl LayerTensors {
    pub(super) fn new(
        layer: &str,
        shape: Shape,
        storage: &Storage,
        slots: &Slots,
    ) -> Result<Self, UnpackError> {
        let mut packed = slots.pack(&storage.scheme)?;
        let mut tensors = Vec::new();
        for (entry, codes, store) in entries(layer, shape, storage)? {
            let bytes = store.and_then(|store| packed.remove(&store)).unwrap_or_default();
            tensors.push((entry, bytes, codes));
        }
        let extras = storage.extras.of(&storage.scheme, layer, shape);
        for (slot, (_, bytes)) in tensors.iter_mut().skip(storage.scheme.stores.len()).zip(extras) {
            slot.1 = bytes;
        }
        let number = storage.blocks.map(|blocks| blocks.number());
        Ok(Self { layer: layer.to_owned(), number, shape, tensors })
    }
}

/// The entries of a layer: those of its stores, then the extras; whether each has the codes, and the store.
fn entries(
    layer: &str,
    shape: Shape,
    storage: &Storage,
) -> Result<Vec<(Entry, bool, Option<String>)>, UnpackError> {
    let scheme = &storage.scheme;
    let entry = |store: &quantloom_dsl::Store| {
        let fault = |error| UnpackError::Bind { store: store.name.clone(), error };
        let bound = scheme.bind(store, shape).map_err(fault)?;
        let entry = Entry {
            name: tensor_name(layer, &store.name),
            dtype: element_dtype(scheme, store),
            shape: bound.dims().to_vec(),
            bytes: bound.bytes(),
        };
        Ok((entry, store.layout.holds(Component::Code), Some(store.name.clone())))
    };
    let mut all: Vec<_> = scheme.stores.iter().map(entry).collect::<Result<_, UnpackError>>()?;
    let extras = storage.extras.of(scheme, layer, shape);
    all.extend(extras.into_iter().map(|(entry, _)| (entry, false, None)));
    Ok(all)
}

/// An entry as GGUF has it.
fn gguf_entry(entry: &Entry, blocks: Option<(u32, Shape)>) -> GgufEntry {
    let (number, dims) = match blocks {
        Some((number, Shape { experts: 1, n, k })) => (number, vec![n, k]),
        Some((number, Shape { experts, n, k })) => (number, vec![experts, n, k]),
        None => (element_number(entry.dtype).unwrap_or(u32::MAX), entry.shape.clone()),
    };
    GgufEntry { name: entry.name.clone(), number, dims, bytes: entry.bytes }
}

/// Why a format cannot have one of a layer's tensors, for its name or its dimensions.
pub(super) fn unwritable(
    format: CheckpointFormat,
    layer: &str,
    shape: Shape,
    storage: &Storage,
) -> Option<Misread> {
    if format != CheckpointFormat::Gguf {
        return None;
    }
    let entries = entries(layer, shape, storage).ok()?;
    entries.iter().find_map(|(entry, codes, _)| {
        let blocks = storage.blocks.filter(|_| *codes).map(|blocks| (blocks.number(), shape));
        let GgufEntry { name, dims, .. } = gguf_entry(entry, blocks);
        let limit = unwritable_in_gguf(&name, &dims)?;
        Some(Misread::Tensor { name, limit })
    })
}

/// A file that has one layer alone.
pub(super) fn file_in_memory(
    format: CheckpointFormat,
    layer: &LayerTensors,
    config: Option<Map<String, Value>>,
) -> std::io::Result<Vec<u8>> {
    let entries: Vec<Entry> = layer.tensors.iter().map(|(entry, ..)| entry.clone()).collect();
    let (mut file, alignment) = match format {
        CheckpointFormat::Gguf => {
            let entry = |(entry, _, codes): &(Entry, Vec<u8>, bool)| {
                gguf_entry(
                    entry,
                    layer.number.filter(|_| *codes).map(|number| (number, layer.shape)),
                )
            };
            let entries: Vec<GgufEntry> = layer.tensors.iter().map(entry).collect();
            gguf_header(&default_keys("unknown"), None, &entries)?
        }
        _ => (header(&entries, &metadata(&BTreeMap::new(), config.as_ref()))?, 1),
    };
    for (_, bytes, _) in &layer.tensors {
        file.extend_from_slice(bytes);
        if alignment > 1 {
            file.resize(file.len().next_multiple_of(alignment as usize), 0);
        }
    }
    Ok(file)
}

/// The metadata of a safetensors file: the source's, with the configuration in place of the source's own.
fn metadata(
    source: &BTreeMap<String, String>,
    config: Option<&Map<String, Value>>,
) -> BTreeMap<String, String> {
    let mut all = source.clone();
    all.remove("quantization_config");
    // A model's configuration may have that of the quantisation in it.
    if let Some(Value::Object(mut model)) =
        all.get("config").and_then(|text| serde_json::from_str(text).ok())
        && without_quantisation(&mut model)
    {
        all.insert("config".to_owned(), Value::Object(model).to_string());
    }
    all.insert("format".to_owned(), "pt".to_owned());
    if let Some(config) = config {
        all.insert("quantization_config".to_owned(), Value::Object(config.clone()).to_string());
    }
    all
}

/// Removes the quantisation's configuration from that of a model; whether there was one.
fn without_quantisation(model: &mut Map<String, Value>) -> bool {
    let mut found = false;
    for key in ["quantization_config", "compression_config", "quantization"] {
        found |= model.remove(key).is_some();
    }
    if let Some(Value::Object(text)) = model.get_mut("text_config") {
        found |= without_quantisation(text);
    }
    found
}

/// A tensor of the output.
struct Planned {
    entry: Entry,
    content: Content,
    gguf: GgufEntry,
}

/// The layer whose tensors are being written: one is in memory at a time. A layer whose tensors are apart is
/// packed again.
#[derive(Default)]
struct Packed {
    layer: Option<usize>,
    /// By their full names, those that are not written yet.
    tensors: HashMap<String, Vec<u8>>,
    /// Layers that were packed before.
    seen: HashSet<usize>,
}

enum Content {
    /// Of the layer at this position.
    Layer(usize),
    /// That of the source.
    Copied,
}

impl ConversionPlan<'_> {
    /// Writes the output and reads it back. `progress` is called with the number of further weights that
    /// are written, and again as they are compared.
    ///
    /// # Errors
    /// See [`ConvertError`]; nothing is left at the output's path then.
    pub fn write(&self, output: &Output, progress: &dyn Fn(u64)) -> Result<(), ConvertError> {
        if self.refusals() > 0 {
            return Err(ConvertError::Refused(self.refusals()));
        }
        let planned = self.planned()?;
        match output {
            Output::File(path) => self.write_file(path, &planned, progress),
            Output::Folder { path, .. } if self.format == CheckpointFormat::Gguf => {
                Err(ConvertError::Folder(path.clone()))
            }
            Output::Folder { path, shard_bytes } => {
                self.write_folder(path, *shard_bytes, &planned, progress)
            }
        }
    }

    /// What the output's header cannot have, found without the bytes of tensors: a tensor's name, or `the output`,
    /// and why.
    pub(super) fn not_in_a_header(&self) -> Option<(String, Unconvertible)> {
        let refusal =
            |name: &str, what: TensorLimit| Some((name.to_owned(), Unconvertible::Tensor(what)));
        let unwritten = |what: String| refusal("the output", TensorLimit::Header(what));
        let mut planned = match self.planned() {
            Ok(planned) => planned,
            Err(ConvertError::Twice(name)) => {
                return refusal(&name, TensorLimit::Twice);
            }
            Err(error) => return unwritten(error.to_string()),
        };
        let known: HashSet<&String> = self.refused.iter().map(|(name, _)| name).collect();
        planned.retain(|planned| !known.contains(&planned.entry.name));
        let checked = if self.format == CheckpointFormat::Gguf {
            self.gguf_header(&planned).map(drop)
        } else {
            // Each alone: how many are in one file is not known yet.
            let alone =
                |planned: &Planned| header(slice::from_ref(&planned.entry), &BTreeMap::new());
            planned.iter().try_for_each(|planned| alone(planned).map(drop))
        };
        checked.err().and_then(|error| unwritten(error.to_string()))
    }

    /// The header of a GGUF file, and the alignment of its tensors.
    fn gguf_header(&self, planned: &[Planned]) -> std::io::Result<(Vec<u8>, u64)> {
        let (keys, alignment) = match self.checkpoint.tensors().gguf() {
            Some(gguf) => (gguf.keys_to_write(), Some(gguf.aligned_to())),
            None => {
                let architecture = self.architecture().map_err(std::io::Error::other)?;
                (default_keys(&architecture), None)
            }
        };
        let tensors: Vec<GgufEntry> = planned.iter().map(|planned| planned.gguf.clone()).collect();
        gguf_header(&keys, alignment, &tensors)
    }

    /// Every tensor, in the order of the source's file where that is a GGUF file, else by name.
    fn planned(&self) -> Result<Vec<Planned>, ConvertError> {
        let mut all = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let (Ok(storage), Some(shape)) = (&layer.outcome, layer.shape) else { continue };
            let pack =
                |error| ConvertError::Pack { layer: layer.name.clone(), error: Box::new(error) };
            for (entry, codes, _) in entries(&layer.name, shape, storage).map_err(pack)? {
                let number =
                    storage.blocks.filter(|_| codes).map(|blocks| (blocks.number(), shape));
                let gguf = gguf_entry(&entry, number);
                all.push(Planned { entry, content: Content::Layer(at), gguf });
            }
        }
        for name in &self.copied {
            let Some(tensor) = self.checkpoint.tensors().get(name) else { continue };
            let entry = Entry {
                name: name.clone(),
                dtype: tensor.dtype(),
                shape: tensor.shape().iter().map(|size| *size as u64).collect(),
                bytes: tensor.bytes().len() as u64,
            };
            let gguf = gguf_entry(&entry, None);
            all.push(Planned { entry, content: Content::Copied, gguf });
        }
        let mut names = HashSet::new();
        if let Some(twice) = all.iter().find(|planned| !names.insert(&planned.entry.name)) {
            return Err(ConvertError::Twice(twice.entry.name.clone()));
        }
        let order: HashMap<&str, usize> = match self.checkpoint.tensors().gguf() {
            Some(gguf) => gguf.in_order().into_iter().zip(0..).collect(),
            None => HashMap::new(),
        };
        let position = |name: &str| order.get(name).copied().unwrap_or(usize::MAX);
        // Tensors of a layer are together, where its first one is in the source; GGUF files of GGUF files keep
        // their order.
        let together = self.format != CheckpointFormat::Gguf;
        let mut firsts = vec![usize::MAX; self.layers.len()];
        for planned in &all {
            if let Content::Layer(at) = planned.content {
                firsts[at] = firsts[at].min(position(&planned.entry.name));
            }
        }
        all.sort_by_cached_key(|planned| {
            let name = &planned.entry.name;
            let own = position(name);
            let (first, group) = match planned.content {
                Content::Layer(at) if together => (firsts[at], self.layers[at].name.clone()),
                Content::Layer(at) => (own, self.layers[at].name.clone()),
                Content::Copied => (own, name.clone()),
            };
            (first, group, own, name.clone())
        });
        Ok(all)
    }

    fn write_file(
        &self,
        path: &Path,
        planned: &[Planned],
        progress: &dyn Fn(u64),
    ) -> Result<(), ConvertError> {
        let fault = |error| ConvertError::Write { path: path.to_owned(), error };
        let entries: Vec<Entry> = planned.iter().map(|planned| planned.entry.clone()).collect();
        let writer = if self.format == CheckpointFormat::Gguf {
            let (header, alignment) = self.gguf_header(planned).map_err(fault)?;
            Writer::after(path, &header, entries, alignment)
        } else {
            let source = self.checkpoint.tensors().all_metadata();
            Writer::create(path, entries, &metadata(source, self.config.as_ref()))
        };
        let mut writer = writer.map_err(fault)?;
        self.write_tensors(&mut writer, planned, path, &mut Packed::default(), progress)?;
        let file = writer.whole().map_err(fault)?;
        proof::compare(self, &Checkpoint::open(file.path())?, progress)?;
        file.keep().map_err(fault)
    }

    fn write_folder(
        &self,
        path: &Path,
        shard_bytes: u64,
        planned: &[Planned],
        progress: &dyn Fn(u64),
    ) -> Result<(), ConvertError> {
        let fault = |error| ConvertError::Write { path: path.to_owned(), error };
        let folder = AtomicFolder::create(path).map_err(fault)?;
        let shards = shards(planned, shard_bytes);
        let mut map = Map::new();
        let mut packed = Packed::default();
        for (at, shard) in shards.iter().enumerate() {
            let name = match shards.len() {
                1 => "model.safetensors".to_owned(),
                all => format!("model-{:05}-of-{all:05}.safetensors", at + 1),
            };
            let entries: Vec<Entry> = shard.iter().map(|planned| planned.entry.clone()).collect();
            for entry in &entries {
                map.insert(entry.name.clone(), name.clone().into());
            }
            let source = self.checkpoint.tensors().all_metadata();
            let file = folder.path().join(name);
            let writer = Writer::create(&file, entries, &metadata(source, None));
            let mut writer = writer.map_err(fault)?;
            self.write_tensors(&mut writer, shard, path, &mut packed, progress)?;
            writer.finish().map_err(fault)?;
        }
        if shards.len() > 1 {
            let total: u64 = planned.iter().map(|planned| planned.entry.bytes).sum();
            let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
            write_json(&folder.path().join("model.safetensors.index.json"), &index)
                .map_err(fault)?;
        }
        let mut model = self.model_config()?;
        without_quantisation(&mut model);
        if let Some(config) = &self.config {
            model.insert("quantization_config".to_owned(), Value::Object(config.clone()));
        }
        write_json(&folder.path().join("config.json"), &Value::Object(model)).map_err(fault)?;
        self.copy_small_files(folder.path()).map_err(fault)?;
        proof::compare(self, &Checkpoint::open(folder.path())?, progress)?;
        folder.keep().map_err(fault)
    }

    /// Writes tensors; `packed` is the layer of the last one.
    fn write_tensors(
        &self,
        writer: &mut Writer,
        planned: &[Planned],
        path: &Path,
        packed: &mut Packed,
        progress: &dyn Fn(u64),
    ) -> Result<(), ConvertError> {
        let fault = |error| ConvertError::Write { path: path.to_owned(), error };
        for Planned { entry, content, .. } in planned {
            let Content::Layer(at) = content else {
                let tensor = self.checkpoint.tensors().get(&entry.name);
                writer.write(tensor.map_or(&[][..], |tensor| tensor.bytes())).map_err(fault)?;
                continue;
            };
            if packed.layer != Some(*at) {
                // The last layer's memory is free before this one is packed.
                packed.tensors.clear();
                packed.tensors = self.packed(*at)?;
                packed.layer = Some(*at);
                if packed.seen.insert(*at) {
                    let shape = self.layers[*at].shape;
                    progress(shape.and_then(|shape| shape.elements()).unwrap_or(0));
                }
            }
            let bytes = packed.tensors.remove(&entry.name).unwrap_or_default();
            writer.write(&bytes).map_err(fault)?;
        }
        Ok(())
    }

    /// The tensors of a layer by their full names.
    fn packed(&self, at: usize) -> Result<HashMap<String, Vec<u8>>, ConvertError> {
        let planned = &self.layers[at];
        let storage = planned.outcome.as_ref().map_err(Clone::clone)?;
        let unpacked = planned.values(self.checkpoint, self.options)?;
        let slots = recode::recode(&unpacked, &storage.scheme, storage.whole)?;
        let tensors = LayerTensors::new(&planned.name, unpacked.shape(), storage, &slots);
        let pack =
            |error| ConvertError::Pack { layer: planned.name.clone(), error: Box::new(error) };
        let tensors = tensors.map_err(pack)?.tensors.into_iter();
        Ok(tensors.map(|(entry, bytes, _)| (entry.name, bytes)).collect())
    }

    /// The model's `config.json`; empty if there is none.
    fn model_config(&self) -> Result<Map<String, Value>, ConvertError> {
        Ok(self.checkpoint.model_json()?.unwrap_or_default())
    }

    /// `model_type`, which llama.cpp calls the architecture for many models; `unknown` if nothing says it.
    fn architecture(&self) -> Result<String, ConvertError> {
        let model = self.model_config()?;
        let name = model.get("model_type").and_then(Value::as_str);
        Ok(name.unwrap_or("unknown").to_owned())
    }

    /// Copies the tokenizer, other texts and the model's own code of the source's folder.
    fn copy_small_files(&self, folder: &Path) -> std::io::Result<()> {
        let Some(source) = self.checkpoint.folder() else { return Ok(()) };
        for entry in std::fs::read_dir(source)? {
            let path = entry?.path();
            let (Some(name), Some(kind)) = (path.file_name(), path.extension()) else { continue };
            let small =
                ["json", "txt", "model", "jinja", "tiktoken", "py"].iter().any(|end| kind == *end);
            let ours = folder.join(name).exists()
                || name.to_string_lossy().ends_with(".index.json")
                || CONFIG_FILES.iter().any(|known| name == *known);
            if small && !ours && path.is_file() {
                std::fs::copy(&path, folder.join(name))?;
            }
        }
        Ok(())
    }
}

/// Consecutive tensors with at most so many bytes, one at least.
fn shards(planned: &[Planned], most: u64) -> Vec<&[Planned]> {
    let mut shards = Vec::new();
    let (mut start, mut bytes) = (0, 0u64);
    for (at, tensor) in planned.iter().enumerate() {
        if at > start && bytes.saturating_add(tensor.entry.bytes) > most {
            shards.push(&planned[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += tensor.entry.bytes;
    }
    shards.push(&planned[start..]);
    shards
}

fn write_json(path: &Path, value: &Value) -> std::io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(serde_json::to_string_pretty(value)?.as_bytes())?;
    file.write_all(b"\n")?;
    file.keep()
}
