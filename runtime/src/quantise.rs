//! `quantize`: float weights of a checkpoint into a scheme's own checkpoint layout.
//!
//! In: tensors, a scheme, an output path. Out: one file in which every chosen layer is stored
//! as the scheme's own software stores it (or, where no software does, with the scheme's text
//! as its configuration), everything else copied. One layer is in memory at a time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quantloom_dsl::Scheme;
use quantloom_dsl::format::{F32, FloatFormat};
use quantloom_dsl::layout::{Grain, Shape};
use quantloom_dsl::reference::ReferenceError;

use crate::checkpoint::{
    Checkpoint, CheckpointError, Description, Entry, Options, Tensor, Tensors, Writer, describe,
    element_dtype, tensor_name,
};
use crate::pack::{pack, quantise_rows};
use crate::tensor::{float_format, reals};
use crate::unpacked::{UnpackError, Unpacked};

/// Why a checkpoint could not be quantised.
#[derive(Debug, thiserror::Error)]
pub enum QuantiseError {
    /// Reading failed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Writing failed.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A layer does not fit the scheme.
    #[error("the weight \"{name}\": {what}")]
    Layer {
        /// The tensor.
        name: String,
        /// Why not.
        what: String,
    },
    /// Nothing to do.
    #[error("{0}")]
    Nothing(String),
}

/// A float weight that will be quantised.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The layer's name: the tensor's without `.weight`.
    pub layer: String,
    /// The tensor's name.
    pub tensor: String,
    /// Its shape.
    pub shape: Shape,
    own: FloatFormat,
}

/// What became of a layer.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The layer.
    pub layer: String,
    /// Its shape.
    pub shape: Shape,
    /// Bytes before and after.
    pub bytes: (u64, u64),
    /// Signal to quantisation noise, `10 log10(sum w^2 / sum (w - w~)^2)`, in dB.
    pub sqnr: f64,
}

/// The float matrices of a checkpoint that a scheme can store: two dimensions, or three for a
/// scheme with experts. `ref.*` tensors are results to compare with, and are not weights.
pub fn candidates(tensors: &Tensors, scheme: &Scheme) -> Vec<Candidate> {
    let candidate = |name: &str| {
        let tensor = tensors.get(name).filter(|_| !name.starts_with("ref."))?;
        let own = float_format(tensor.dtype())?;
        let layer = match name.strip_suffix("weight") {
            Some(layer) => layer.strip_suffix('.').unwrap_or(layer),
            None if scheme.experts.is_some() => name,
            None => return None,
        };
        let shape = match (tensor.shape(), scheme.experts) {
            (&[n, k], None) => Shape::matrix(n as u64, k as u64),
            (&[e, n, k], Some(_)) => Shape { experts: e as u64, n: n as u64, k: k as u64 },
            _ => return None,
        };
        let empty = shape.elements().is_none_or(|elements| elements == 0);
        let layer = layer.to_owned();
        (!empty).then_some(Candidate { layer, tensor: name.to_owned(), shape, own })
    };
    tensors.names().filter_map(candidate).collect()
}

/// Quantises `chosen` and copies the rest; `progress` is told how many more weights are done.
///
/// # Errors
/// See [`QuantiseError`]. Nothing is left at `out` if it fails.
pub fn quantise_checkpoint(
    tensors: &Tensors,
    scheme: &Scheme,
    chosen: &[Candidate],
    out: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Outcome>, QuantiseError> {
    if chosen.is_empty() {
        let what = "there is no float weight to quantise: tensors named *.weight of two dimensions";
        return Err(QuantiseError::Nothing(what.to_owned()));
    }
    let layers: Vec<(String, Shape)> =
        chosen.iter().map(|candidate| (candidate.layer.clone(), candidate.shape)).collect();
    for (layer, shape) in &layers {
        layer_entries(scheme, layer, *shape)?;
    }
    let description = choose_description(scheme, &layers)?;
    let write = |error| QuantiseError::Write { path: out.to_owned(), error };
    let consumed: Vec<String> = chosen
        .iter()
        .flat_map(|candidate| {
            let bias = scheme.bias.map(|_| bias_name(scheme, &candidate.layer));
            [Some(candidate.tensor.clone()), bias].into_iter().flatten()
        })
        .collect();
    let mut entries = Vec::new();
    for candidate in chosen {
        entries.extend(layer_entries(scheme, &candidate.layer, candidate.shape)?);
        let extras = description.extras.of(scheme, &candidate.layer, candidate.shape);
        entries.extend(extras.into_iter().map(|(entry, _)| entry));
    }
    let copied: Vec<(&str, &Tensor)> = tensors
        .names()
        .filter(|name| !consumed.iter().any(|used| used == name))
        .filter_map(|name| Some((name, tensors.get(name)?)))
        .collect();
    for (name, tensor) in &copied {
        entries.push(Entry {
            name: (*name).to_owned(),
            dtype: tensor.dtype(),
            shape: tensor.shape().iter().map(|size| *size as u64).collect(),
            bytes: tensor.bytes().len() as u64,
        });
    }
    for (position, entry) in entries.iter().enumerate() {
        if entries[..position].iter().any(|other| other.name == entry.name) {
            let what = "a tensor of this name would be written twice".to_owned();
            return Err(QuantiseError::Layer { name: entry.name.clone(), what });
        }
    }
    let mut writer = Writer::create(out, entries, &description.metadata()).map_err(write)?;
    let mut outcomes = Vec::new();
    for candidate in chosen {
        let mut write = |bytes: &[u8]| writer.write(bytes).map_err(write);
        outcomes.push(quantise_layer(
            tensors,
            scheme,
            candidate,
            &description,
            &mut write,
            progress,
        )?);
    }
    for (_, tensor) in copied {
        if !tensor.bytes().is_empty() {
            writer.write(tensor.bytes()).map_err(write)?;
        }
    }
    writer.finish().map_err(write)?;
    Ok(outcomes)
}

fn bias_name(scheme: &Scheme, layer: &str) -> String {
    let store = scheme.stores_of(quantloom_dsl::layout::Component::Bias).next();
    tensor_name(layer, store.map_or("bias", |store| store.name.as_str()))
}

fn layer_entries(scheme: &Scheme, layer: &str, shape: Shape) -> Result<Vec<Entry>, QuantiseError> {
    let weights = shape.elements().unwrap_or(0);
    let entry = |store: &quantloom_dsl::Store| {
        let name = tensor_name(layer, &store.name);
        match scheme.bind(store, shape) {
            Err(error) => Err(QuantiseError::Layer { name, what: error.to_string() }),
            // A layout may pad what it stores, but not to a multiple of it.
            Ok(bound) if bound.bytes() > (1 << 20) + 64 * weights => {
                let bytes = bound.bytes();
                let what = format!("its layout takes {bytes} bytes for {weights} weights");
                Err(QuantiseError::Layer { name, what })
            }
            Ok(bound) => Ok(Entry {
                name,
                dtype: element_dtype(scheme, store),
                shape: bound.dims().to_vec(),
                bytes: bound.bytes(),
            }),
        }
    };
    scheme.stores.iter().map(entry).collect()
}

fn quantise_layer(
    tensors: &Tensors,
    scheme: &Scheme,
    candidate: &Candidate,
    description: &Description,
    write: &mut dyn FnMut(&[u8]) -> Result<(), QuantiseError>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Outcome, QuantiseError> {
    let fault = |what: String| QuantiseError::Layer { name: candidate.tensor.clone(), what };
    let tensor =
        tensors.get(&candidate.tensor).ok_or_else(|| fault("it is not there".to_owned()))?;
    let w = reals(tensor).ok_or_else(|| fault("it is not a float tensor".to_owned()))?;
    if let Some(at) = w.iter().position(|value| !value.is_finite()) {
        return Err(fault(format!("value {at} is {}", w[at])));
    }
    let bias = scheme.bias.and_then(|_| tensors.get(&bias_name(scheme, &candidate.layer)));
    let shape = candidate.shape;
    let rows = shape.experts * shape.n;
    let read = |tensor: &Tensor| {
        let values = reals(tensor).filter(|values| values.len() as u64 == rows);
        values.ok_or_else(|| fault(format!("its bias is {tensor:?}, expected {rows} floats")))
    };
    let bias = bias.map(read).transpose()?;
    let reference = |error: ReferenceError| fault(error.to_string());
    let unpack = |error: UnpackError| fault(error.to_string());
    let plain = quantise_rows(scheme, shape, &w, candidate.own, bias.as_deref(), progress)
        .map_err(reference)?;
    let packed = pack(scheme, &plain).map_err(unpack)?;
    let mut after = 0;
    for store in &scheme.stores {
        let bytes = packed.get(&store.name).map_or(&[][..], Vec::as_slice);
        after += bytes.len() as u64;
        write(bytes)?;
    }
    for (_, bytes) in description.extras.of(scheme, &candidate.layer, shape) {
        write(&bytes)?;
    }
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    let decoded = Unpacked::new(scheme, shape, &stored).map_err(unpack)?;
    let decoded = decoded.decode_rows(0..shape.experts * shape.n);
    let noise: f64 = w.iter().zip(&decoded).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum();
    let signal: f64 = w.iter().map(|value| value * value).sum();
    Ok(Outcome {
        layer: candidate.layer.clone(),
        shape,
        bytes: (tensor.bytes().len() as u64, after),
        sqnr: 10.0 * (signal / noise).log10(),
    })
}

/// The first description with which small files of this scheme, as ragged as the layers are,
/// read back as this scheme and shape.
fn choose_description(
    scheme: &Scheme,
    layers: &[(String, Shape)],
) -> Result<Description, QuantiseError> {
    let columns = scheme.scales.iter().filter_map(|scale| match scale.group.cols {
        Grain::Each(cols) => Some(u64::from(cols)),
        Grain::All => None,
    });
    let whole = 2 * columns.max().unwrap_or(128).clamp(128, 4096).next_multiple_of(64);
    // Words and bytes hold at most 64 codes: what is left over of that decides.
    let probe = |(_, shape): &(String, Shape)| (64 + shape.n % 64, whole + shape.k % 64);
    let probes: BTreeSet<(u64, u64)> = layers.iter().map(probe).collect();
    let mut candidates = describe(scheme, layers);
    let last = candidates.pop();
    'candidates: for candidate in candidates {
        for (n, k) in &probes {
            if !reads_back(scheme, &candidate, *n, *k)? {
                continue 'candidates;
            }
        }
        return Ok(candidate);
    }
    last.ok_or_else(|| QuantiseError::Nothing("the scheme cannot be described".to_owned()))
}

fn reads_back(
    scheme: &Scheme,
    description: &Description,
    n: u64,
    k: u64,
) -> Result<bool, QuantiseError> {
    let folder = tempfile::tempdir()
        .map_err(|error| QuantiseError::Write { path: std::env::temp_dir(), error })?;
    let path = folder.path().join("probe.safetensors");
    let write = |error| QuantiseError::Write { path: path.clone(), error };
    let shape = Shape { experts: if scheme.experts.is_some() { 2 } else { 1 }, n, k };
    // Any weights do: what is compared is what the tensors and the configuration say.
    let value = |at: u64| f64::from((((at * 2_654_435_761) >> 7) % 2001) as f32 / 1000.0 - 1.0);
    let w: Vec<f64> = (0..shape.elements().unwrap_or(0)).map(value).collect();
    let layer = "layer.gate_up_proj";
    let fault = |what: String| QuantiseError::Layer { name: layer.to_owned(), what };
    let layer =
        if scheme.experts == Some(quantloom_dsl::Experts::Single) { "layer" } else { layer };
    let plain =
        quantise_rows(scheme, shape, &w, F32, None, &|_| {}).map_err(|e| fault(e.to_string()))?;
    let packed = pack(scheme, &plain).map_err(|error| fault(error.to_string()))?;
    let extras = description.extras.of(scheme, layer, shape);
    let mut entries = layer_entries(scheme, layer, shape)?;
    entries.extend(extras.iter().map(|(entry, _)| entry.clone()));
    let mut writer = Writer::create(&path, entries, &description.metadata()).map_err(write)?;
    for store in &scheme.stores {
        writer.write(packed.get(&store.name).map_or(&[][..], Vec::as_slice)).map_err(write)?;
    }
    for (_, bytes) in &extras {
        writer.write(bytes).map_err(write)?;
    }
    writer.finish().map_err(write)?;
    let Ok(checkpoint) = Checkpoint::open_with(&path, Options::default()) else { return Ok(false) };
    let same = checkpoint
        .layer(layer)
        .is_ok_and(|read| read.scheme().same_meaning(scheme) && read.shape() == shape);
    Ok(same)
}
