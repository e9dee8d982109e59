//! Reads a written file back and compares it with what it should be.

use std::collections::HashSet;

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::{Component, Shape};
use rayon::prelude::*;

use super::{CHUNK, Candidate, Outcome, Written, digest, some_rows};
use crate::checkpoint::{
    Checkpoint, CheckpointError, Dtype, Layer, LayerError, LayerFault, Tensors,
};
use crate::float_mode::standard;

/// How a written file differs from what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadBackError {
    /// The file cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A layer is not there, or inconsistent.
    #[error(transparent)]
    Layer(#[from] LayerFault),
    /// A tensor that is only copied looks like one of a quantised layer.
    #[error("\"{0}\" would be taken for a quantised layer")]
    OtherLayer(String),
    /// A layer has another scheme.
    #[error("the layer \"{layer}\" would be read as another scheme:\n{found}")]
    Scheme {
        /// The layer.
        layer: String,
        /// The scheme that it is read as.
        found: Box<Scheme>,
    },
    /// A layer has another shape.
    #[error("the layer \"{layer}\" would be {found:?}")]
    Shape {
        /// The layer.
        layer: String,
        /// The shape that it is read as.
        found: Shape,
    },
    /// A tensor is not there.
    #[error("the tensor \"{0}\" is missing")]
    Missing(String),
    /// A tensor has another type or other dimensions.
    #[error("the tensor \"{tensor}\" is {found:?} of {dtype:?}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        found: Vec<u64>,
        /// Its type.
        dtype: Dtype,
    },
    /// The file has more tensors.
    #[error("it has tensors that were not written")]
    OtherTensors,
    /// A tensor has other bytes.
    #[error("the tensor \"{0}\" differs from the bytes that were written")]
    Bytes(String),
    /// A layer's tensors cannot be decoded.
    #[error(transparent)]
    Decode(#[from] LayerError),
}

/// The result for each layer, if the file is as expected; else the difference.
pub(super) fn outcomes(
    tensors: &Tensors,
    scheme: &Scheme,
    chosen: &[Candidate],
    written: &Written,
) -> Result<Vec<Outcome>, ReadBackError> {
    let checkpoint = Checkpoint::open(written.file.path())?;
    tensors_are_alike(tensors, checkpoint.tensors(), written)?;
    let names: HashSet<&str> = chosen.iter().map(|candidate| candidate.layer.as_str()).collect();
    if let Some((other, _)) = checkpoint.layers().find(|(name, _)| !names.contains(name)) {
        return Err(ReadBackError::OtherLayer(other.to_owned()));
    }
    let outcome = |candidate: &Candidate| {
        let layer = checkpoint.layer(&candidate.layer)?;
        if !same_scheme(layer.scheme(), scheme) {
            let found = Box::new(layer.scheme().clone());
            return Err(ReadBackError::Scheme { layer: candidate.layer.clone(), found });
        }
        if layer.shape() != candidate.shape {
            let (layer, found) = (candidate.layer.clone(), layer.shape());
            return Err(ReadBackError::Shape { layer, found });
        }
        measured(tensors, scheme, candidate, layer)
    };
    chosen.iter().map(outcome).collect()
}

fn tensors_are_alike(
    from: &Tensors,
    read: &Tensors,
    written: &Written,
) -> Result<(), ReadBackError> {
    for entry in &written.entries {
        let tensor = read.get(&entry.name);
        let tensor = tensor.ok_or_else(|| ReadBackError::Missing(entry.name.clone()))?;
        let shape: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
        if (tensor.dtype(), &shape) != (entry.dtype, &entry.shape) {
            let (tensor, dtype) = (entry.name.clone(), tensor.dtype());
            return Err(ReadBackError::Tensor { tensor, found: shape, dtype });
        }
    }
    if read.names().count() != written.entries.len() {
        return Err(ReadBackError::OtherTensors);
    }
    let bytes = |tensors: &'_ Tensors, name: &str| tensors.get(name).map(|t| digest(t.bytes()));
    let made = written.made.iter().find(|(name, sum)| bytes(read, name) != Some(*sum));
    let copied = || {
        written.copied.iter().find(|name| {
            read.get(name).map(|tensor| tensor.bytes()) != from.get(name).map(|t| t.bytes())
        })
    };
    match made.map(|(name, _)| name).or_else(copied) {
        Some(name) => Err(ReadBackError::Bytes(name.clone())),
        None => Ok(()),
    }
}

/// Whether a layer is read as the scheme; a bias that the scheme does not declare is allowed.
fn same_scheme(read: &Scheme, scheme: &Scheme) -> bool {
    if scheme.bias.is_some() || read.bias.is_none() {
        return read.same_meaning(scheme);
    }
    let mut read = read.clone();
    read.bias = None;
    read.stores.retain(|store| store.owner != Component::Bias);
    read.same_meaning(scheme)
}

/// Size and accuracy of a layer that is decoded from the file.
fn measured(
    tensors: &Tensors,
    scheme: &Scheme,
    candidate: &Candidate,
    layer: &Layer,
) -> Result<Outcome, ReadBackError> {
    let shape = candidate.shape;
    let unpacked = layer.unpack()?;
    let original = tensors.get(&candidate.tensor);
    let original = original.ok_or_else(|| ReadBackError::Missing(candidate.tensor.clone()))?;
    let step = (CHUNK as u64 / shape.k).max(1);
    let rows = shape.experts * shape.n;
    let starts: Vec<u64> = (0..rows).step_by(step as usize).collect();
    let sums = |first: &u64| {
        let rows = *first..(first + step).min(rows);
        let w = some_rows(original, shape, rows.clone());
        let decoded = unpacked.decode_rows(rows);
        let noise: f64 = w.iter().zip(decoded).map(|(a, b)| (a - f64::from(b)).powi(2)).sum();
        (w.iter().map(|value| value * value).sum::<f64>(), noise)
    };
    // Added in order, so that equal inputs give equal results.
    let sums: Vec<(f64, f64)> = starts.par_iter().map(|first| standard(|| sums(first))).collect();
    let (signal, noise) = sums.iter().fold((0.0, 0.0), |(s, n), (a, b)| (s + a, n + b));
    let bytes = |store: &quantloom_dsl::Store| layer.store(&store.name).map_or(0, <[u8]>::len);
    let after = scheme.stores.iter().map(|store| bytes(store) as u64).sum();
    Ok(Outcome {
        layer: candidate.layer.clone(),
        shape,
        bytes: (original.bytes().len() as u64, after),
        sqnr: if noise == 0.0 { f64::INFINITY } else { 10.0 * (signal / noise).log10() },
    })
}
