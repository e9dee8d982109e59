//! Reads a written file back and compares it with what it should be.

use std::collections::HashSet;

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::Component;
use rayon::prelude::*;

use super::{CHUNK, Candidate, Outcome, Written, digest, some_rows};
use crate::checkpoint::{Checkpoint, Layer, Tensors};
use crate::float_mode::standard;

/// The result for each layer, if the file is as expected; else the difference.
pub(super) fn outcomes(
    tensors: &Tensors,
    scheme: &Scheme,
    chosen: &[Candidate],
    written: &Written,
) -> Result<Vec<Outcome>, String> {
    let checkpoint = Checkpoint::open(written.file.path()).map_err(|error| error.to_string())?;
    tensors_are_alike(tensors, checkpoint.tensors(), written)?;
    let names: HashSet<&str> = chosen.iter().map(|candidate| candidate.layer.as_str()).collect();
    if let Some((other, _)) = checkpoint.layers().find(|(name, _)| !names.contains(name)) {
        return Err(format!("\"{other}\" would be taken for a quantised layer"));
    }
    let outcome = |candidate: &Candidate| {
        let layer = checkpoint.layer(&candidate.layer).map_err(|fault| fault.to_string())?;
        if !same_scheme(layer.scheme(), scheme) {
            return Err(format!(
                "the layer \"{}\" would be read as another scheme:\n{}",
                candidate.layer,
                layer.scheme()
            ));
        }
        if layer.shape() != candidate.shape {
            return Err(format!("the layer \"{}\" would be {:?}", candidate.layer, layer.shape()));
        }
        measured(tensors, scheme, candidate, layer)
    };
    chosen.iter().map(outcome).collect()
}

fn tensors_are_alike(from: &Tensors, read: &Tensors, written: &Written) -> Result<(), String> {
    for entry in &written.entries {
        let tensor = read.get(&entry.name);
        let tensor = tensor.ok_or_else(|| format!("the tensor \"{}\" is missing", entry.name))?;
        let shape: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
        if (tensor.dtype(), &shape) != (entry.dtype, &entry.shape) {
            return Err(format!("the tensor \"{}\" is {tensor:?}", entry.name));
        }
    }
    if read.names().count() != written.entries.len() {
        return Err("it has tensors that were not written".to_owned());
    }
    let bytes = |tensors: &'_ Tensors, name: &str| tensors.get(name).map(|t| digest(t.bytes()));
    let made = written.made.iter().find(|(name, sum)| bytes(read, name) != Some(*sum));
    let copied = || {
        written.copied.iter().find(|name| {
            read.get(name).map(|tensor| tensor.bytes()) != from.get(name).map(|t| t.bytes())
        })
    };
    match made.map(|(name, _)| name).or_else(copied) {
        Some(name) => {
            Err(format!("the tensor \"{name}\" differs from the bytes that were written"))
        }
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
) -> Result<Outcome, String> {
    let shape = candidate.shape;
    let unpacked = layer.unpack().map_err(|error| error.to_string())?;
    let original = tensors.get(&candidate.tensor).ok_or("the weight is not there")?;
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
