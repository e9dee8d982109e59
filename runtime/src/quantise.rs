//! `quantize`: float weights of a checkpoint into a scheme's own checkpoint layout.
//!
//! In: tensors, a scheme, an output path. Out: one file in which every selected layer is stored as
//! the scheme's own software stores it (or, if there is no such software, with the scheme's text as
//! its configuration); all other tensors are copied. At any time only one layer's codes and packed
//! tensors are in memory, and some rows of its weight as floats. The file is read back before it is
//! renamed to its final name: layers, schemes, shapes, every byte.

mod described;
mod read_back;
mod rows;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};

use quantloom_dsl::Scheme;
use quantloom_dsl::format::{FloatFormat, Number, Overflow};
use quantloom_dsl::layout::{BindError, Component, GroupSize, Shape};
use quantloom_dsl::reference::ReferenceError;
use rayon::prelude::*;

use crate::atomic_file::AtomicFile;
use crate::checkpoint::{
    CheckpointError, Description, Dtype, Entry, Tensor, Tensors, Writer, element_dtype, tensor_name,
};
use crate::tensor::{float_format, reals, reals_of};
use crate::unpacked::UnpackError;

pub use read_back::ReadBackError;

use rows::{Rows, quantise_rows};

/// Why a checkpoint could not be quantised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantiseError {
    /// Reading failed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Writing failed.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// A weight does not fit the scheme.
    #[error("the weight \"{name}\": {problem}")]
    Weight {
        /// The tensor.
        name: String,
        /// The reason.
        problem: Box<WeightProblem>,
    },
    /// The written file does not read back as expected.
    #[error("the file would not read back: {0}")]
    ReadBack(Box<ReadBackError>),
    /// There is nothing to quantise.
    #[error("there is no float weight to quantise: tensors named *.weight of two dimensions")]
    Nothing,
    /// No configuration says the scheme.
    #[error("the scheme cannot be described")]
    NoDescription,
}

/// Why a weight cannot be stored as a scheme says.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightProblem {
    /// The tensor is not in the checkpoint.
    #[error("it is missing")]
    Missing,
    /// A value is infinite or NaN.
    #[error("value {at} is {value}")]
    NotFinite {
        /// Its number, in the order of the tensor.
        at: usize,
        /// The value.
        value: f64,
    },
    /// The scheme stores a bias, and that of the checkpoint is not one float a row.
    #[error("its bias is {found:?} of {dtype:?}, expected {rows} floats")]
    Bias {
        /// Dimensions of the bias.
        found: Vec<usize>,
        /// Its type.
        dtype: Dtype,
        /// Rows of the weight, of all experts.
        rows: u64,
    },
    /// A layout of the scheme does not fit the shape.
    #[error(transparent)]
    Layout(#[from] BindError),
    /// A layout of the scheme would store mostly padding.
    #[error("its layout takes {bytes} bytes for {weights} weights")]
    Padding {
        /// Bytes of the stored tensor.
        bytes: u64,
        /// N * K of all experts.
        weights: u64,
    },
    /// The type of the group index has too few numbers.
    #[error("its {groups} groups of columns cannot be numbered in {number}, the type of the index")]
    Index {
        /// Groups along K.
        groups: u64,
        /// The type of the index.
        number: Number,
    },
    /// Two tensors of the written file would have this name.
    #[error("a tensor of this name would be written twice")]
    Twice,
    /// The quantiser refuses the weight.
    #[error(transparent)]
    Quantiser(#[from] ReferenceError),
    /// The codes cannot be packed.
    #[error(transparent)]
    Pack(#[from] UnpackError),
}

impl WeightProblem {
    /// The same with the tensor's name.
    fn of(self, name: impl Into<String>) -> QuantiseError {
        QuantiseError::Weight { name: name.into(), problem: Box::new(self) }
    }
}

/// A float weight to quantise.
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

/// The result for a layer.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The layer.
    pub layer: String,
    /// Its shape.
    pub shape: Shape,
    /// Bytes before and after.
    pub bytes: (u64, u64),
    /// Signal to quantisation noise, `10 log10(sum w^2 / sum (w - w~)^2)`, in dB; infinite if the
    /// weights are unchanged, for example zeros.
    pub sqnr: f64,
}

/// The float matrices of a checkpoint that a scheme can store: two dimensions, or three for a
/// scheme with experts. `ref.*` tensors are reference results, not weights.
pub fn candidates(tensors: &Tensors, scheme: &Scheme) -> Vec<Candidate> {
    let candidate = |name: &str| {
        let tensor = tensors.get(name).filter(|_| !name.starts_with("ref."))?;
        let own = float_format(tensor.dtype())?;
        let layer = match name.strip_suffix(".weight") {
            Some(layer) => layer,
            None if name == "weight" => "",
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

/// Quantises `chosen` and copies the rest; calls `progress` with the number of further weights that
/// are done.
///
/// # Errors
/// See [`QuantiseError`]. No file is left at `out` after an error.
pub fn quantise_checkpoint(
    tensors: &Tensors,
    scheme: &Scheme,
    chosen: &[Candidate],
    out: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Outcome>, QuantiseError> {
    if chosen.is_empty() {
        return Err(QuantiseError::Nothing);
    }
    let layers: Vec<(String, Shape)> =
        chosen.iter().map(|candidate| (candidate.layer.clone(), candidate.shape)).collect();
    for (layer, shape) in &layers {
        layer_entries(scheme, layer, *shape)?;
    }
    let mut fault = QuantiseError::NoDescription;
    for description in described::usable(scheme, &layers)? {
        let written = write(tensors, scheme, chosen, &description, out, progress)?;
        match read_back::outcomes(tensors, scheme, chosen, &written) {
            Ok(outcomes) => {
                let write = |error| QuantiseError::Write { path: out.to_owned(), error };
                written.file.keep().map_err(write)?;
                return Ok(outcomes);
            }
            // The next description may fit; the last one is the scheme's own text.
            Err(error) => fault = QuantiseError::ReadBack(Box::new(error)),
        }
    }
    Err(fault)
}

/// A complete file before its rename.
struct Written {
    file: AtomicFile,
    entries: Vec<Entry>,
    /// Digest of the bytes of each quantised entry, by name.
    made: Vec<(String, u64)>,
    /// Names of the copied entries.
    copied: Vec<String>,
}

/// A digest to compare what was read with what was written.
fn digest(bytes: &[u8]) -> u64 {
    let mut digest = DefaultHasher::new();
    digest.write(bytes);
    digest.finish()
}

/// Writes the whole file with a description.
fn write(
    tensors: &Tensors,
    scheme: &Scheme,
    chosen: &[Candidate],
    description: &Description,
    out: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Written, QuantiseError> {
    let fault = |error| QuantiseError::Write { path: out.to_owned(), error };
    let consumed: HashSet<String> = chosen
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
        .filter(|name| !consumed.contains(*name))
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
    let mut names = HashSet::new();
    if let Some(entry) = entries.iter().find(|entry| !names.insert(entry.name.as_str())) {
        return Err(WeightProblem::Twice.of(&entry.name));
    }
    let mut writer =
        Writer::create(out, entries.clone(), &description.metadata()).map_err(fault)?;
    let mut made = Vec::new();
    for candidate in chosen {
        for (name, bytes) in quantise_layer(tensors, scheme, candidate, description, progress)? {
            writer.write(&bytes).map_err(fault)?;
            made.push((name, digest(&bytes)));
        }
    }
    for (_, tensor) in &copied {
        writer.write(tensor.bytes()).map_err(fault)?;
    }
    let copied = copied.into_iter().map(|(name, _)| name.to_owned()).collect();
    Ok(Written { file: writer.whole().map_err(fault)?, entries, made, copied })
}

fn bias_name(scheme: &Scheme, layer: &str) -> String {
    let store = scheme.stores_of(Component::Bias).next();
    tensor_name(layer, store.map_or("bias", |store| store.name.as_str()))
}

fn layer_entries(scheme: &Scheme, layer: &str, shape: Shape) -> Result<Vec<Entry>, QuantiseError> {
    let weights = shape.elements().unwrap_or(0);
    check_index(scheme, layer, shape)?;
    let entry = |store: &quantloom_dsl::Store| {
        let name = tensor_name(layer, &store.name);
        match scheme.bind(store, shape) {
            Err(error) => Err(WeightProblem::from(error).of(name)),
            // A layout may pad its codes, but not to several times their size.
            Ok(bound) if bound.bytes() > (1 << 20) + 64 * weights => {
                Err(WeightProblem::Padding { bytes: bound.bytes(), weights }.of(name))
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

/// Checks that the type of the group index can number every group.
fn check_index(scheme: &Scheme, layer: &str, shape: Shape) -> Result<(), QuantiseError> {
    let Some(number) = scheme.index else { return Ok(()) };
    let groups = scheme.scales.iter().map(|scale| scale.group);
    let groups = groups.chain(scheme.zero.map(|zero| zero.group));
    let groups =
        groups.chain(scheme.shifts.iter().map(|shift| shift.group)).map(|group| group.cols);
    let groups = groups.filter(|cols| matches!(cols, GroupSize::Each(_)));
    let groups = groups.map(|cols| cols.elements(shape.k)).max().unwrap_or(1);
    let last = (groups - 1) as f64;
    if number.decode(number.encode(last, Overflow::Saturate)) == last {
        return Ok(());
    }
    Err(WeightProblem::Index { groups, number }.of(tensor_name(layer, "weight")))
}

/// The layer's tensors by their full names, in the order of [`layer_entries`] and the extras.
fn quantise_layer(
    tensors: &Tensors,
    scheme: &Scheme,
    candidate: &Candidate,
    description: &Description,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<(String, Vec<u8>)>, QuantiseError> {
    let fault = |problem: WeightProblem| problem.of(&candidate.tensor);
    let tensor = tensors.get(&candidate.tensor).ok_or_else(|| fault(WeightProblem::Missing))?;
    let shape = candidate.shape;
    check_finite(tensor).map_err(fault)?;
    let rows = shape.experts * shape.n;
    let read = |tensor: &Tensor| {
        let values = reals(tensor).filter(|values| values.len() as u64 == rows);
        let (found, dtype) = (tensor.shape().to_vec(), tensor.dtype());
        values.ok_or_else(|| fault(WeightProblem::Bias { found, dtype, rows }))
    };
    let bias = scheme.bias.and_then(|_| tensors.get(&bias_name(scheme, &candidate.layer)));
    let bias = bias.map(read).transpose()?;
    let values = |rows: std::ops::Range<u64>| some_rows(tensor, shape, rows);
    let weight = Rows { shape, own: candidate.own, values: &values, bias: bias.as_deref() };
    let slots = quantise_rows(scheme, &weight, progress).map_err(|error| fault(error.into()))?;
    let mut packed = slots.pack(scheme).map_err(|error| fault(error.into()))?;
    let stored = scheme.stores.iter().map(|store| {
        let bytes = packed.remove(&store.name).unwrap_or_default();
        (tensor_name(&candidate.layer, &store.name), bytes)
    });
    let mut made: Vec<(String, Vec<u8>)> = stored.collect();
    let extras = description.extras.of(scheme, &candidate.layer, shape);
    made.extend(extras.into_iter().map(|(entry, bytes)| (entry.name, bytes)));
    Ok(made)
}

/// Some rows of a float tensor, whose rows are those of the stacked weight [E * N, K].
fn some_rows(tensor: &Tensor, shape: Shape, rows: std::ops::Range<u64>) -> Vec<f64> {
    let row = shape.k as usize * tensor.dtype().bitsize() / 8;
    let bytes = &tensor.bytes()[rows.start as usize * row..rows.end as usize * row];
    reals_of(tensor.dtype(), bytes).unwrap_or_default()
}

/// Values that are checked at once.
const CHUNK: usize = 1 << 16;

fn check_finite(tensor: &Tensor) -> Result<(), WeightProblem> {
    let chunk = CHUNK * tensor.dtype().bitsize() / 8;
    let wrong = |(part, bytes): (usize, &[u8])| {
        let values = reals_of(tensor.dtype(), bytes).unwrap_or_default();
        let at = values.iter().position(|value| !value.is_finite())?;
        Some((part * CHUNK + at, values[at]))
    };
    match tensor.bytes().par_chunks(chunk).enumerate().find_map_first(wrong) {
        Some((at, value)) => Err(WeightProblem::NotFinite { at, value }),
        None => Ok(()),
    }
}
