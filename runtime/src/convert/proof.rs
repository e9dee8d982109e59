//! Proof that values are kept: what was written is read by its format's own reader and compared.

use std::fmt::Display;
use std::sync::Arc;

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::{Component, Shape};
use serde_json::{Map, Value};

use super::output::{LayerTensors, file_in_memory};
use super::{ConversionPlan, ConvertError, Misread};
use crate::checkpoint::storage::Storage;
use crate::checkpoint::{Checkpoint, CheckpointFormat, LayerError, LayerFault, Options};
use crate::unpacked::Unpacked;

/// How an output differs from what it should be.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// A layer cannot be read.
    #[error(transparent)]
    Unreadable(#[from] LayerFault),
    /// It is read as another format.
    #[error("it is read as {0}")]
    Format(&'static str),
    /// It has other layers.
    #[error("it is read as {found} layers, not {expected}")]
    Layers {
        /// Those that are read.
        found: usize,
        /// Those that were written.
        expected: usize,
    },
    /// A layer is read as another scheme or of another shape.
    #[error("the layer \"{layer}\" is read as another {what}")]
    Layer {
        /// The layer.
        layer: String,
        /// Scheme or shape.
        what: &'static str,
    },
    /// A value of a layer is another one.
    #[error("the layer \"{layer}\" has another {what}")]
    Value {
        /// The layer.
        layer: String,
        /// Which value.
        what: String,
    },
    /// A copied tensor is another one.
    #[error("the tensor \"{0}\" is not the same")]
    Tensor(String),
}

/// Reads one layer, in a file of its own, as the scheme and shape by which it is stored.
pub(super) fn probe(
    format: CheckpointFormat,
    storage: &Storage,
    shape: Shape,
    tensors: &LayerTensors,
    config: Option<Map<String, Value>>,
) -> Result<(), Misread> {
    let unread = |error: &dyn Display| Misread::Unread(error.to_string());
    let file = file_in_memory(format, tensors, config).map_err(|error| unread(&error))?;
    let checkpoint = Checkpoint::from_bytes(file, Options::default());
    let checkpoint = checkpoint.map_err(|error| unread(&error))?;
    let layer = checkpoint.layer(&tensors.layer).map_err(|fault| unread(&fault))?;
    if let Some(clause) = clause_that_differs(layer.scheme(), &storage.scheme) {
        return Err(Misread::Clause(clause));
    }
    if layer.shape() != shape {
        return Err(Misread::Shape(layer.shape()));
    }
    Ok(())
}

/// The first clause in which two schemes differ.
fn clause_that_differs(a: &Scheme, b: &Scheme) -> Option<&'static str> {
    let clauses = [
        ("weight", a.weight == b.weight),
        ("zero", a.zero == b.zero),
        ("shift", a.shifts == b.shifts),
        ("scale", a.scales == b.scales),
        ("index", a.index == b.index),
        ("activation", a.activations == b.activations),
        ("prescale", a.prescale == b.prescale),
        ("bias", a.bias == b.bias),
        ("arithmetic", a.arithmetic == b.arithmetic),
        ("pack", a.same_meaning(b)),
    ];
    clauses.into_iter().find(|(_, same)| !same).map(|(clause, _)| clause)
}

/// Values that are decoded at once.
const CHUNK: u64 = 1 << 22;

/// Compares an output with its source.
pub(super) fn compare(
    plan: &ConversionPlan<'_>,
    written: &Checkpoint,
    progress: &dyn Fn(u64),
) -> Result<(), ConvertError> {
    if written.format() != plan.format && !plan.layers.is_empty() {
        return Err(ProofError::Format(written.format().name()).into());
    }
    let (found, expected) = (written.layers().count(), plan.layers.len());
    if found != expected {
        return Err(ProofError::Layers { found, expected }.into());
    }
    for planned in &plan.layers {
        let Ok(storage) = &planned.outcome else { continue };
        let layer = written.layer(&planned.name).map_err(ProofError::Unreadable)?;
        let differs = |what| ProofError::Layer { layer: planned.name.clone(), what };
        if !layer.scheme().same_meaning(&storage.scheme) {
            return Err(differs("scheme").into());
        }
        if Some(layer.shape()) != planned.shape {
            return Err(differs("shape").into());
        }
        let source = planned.values(plan.checkpoint, plan.options)?;
        let unreadable = |error: LayerError| LayerFault::Broken(Arc::new(error.into()));
        let ours = layer.unpack().map_err(unreadable).map_err(ProofError::Unreadable)?;
        if let Some(what) = difference(&source, &ours) {
            return Err(ProofError::Value { layer: planned.name.clone(), what }.into());
        }
        progress(layer.shape().elements().unwrap_or(0));
    }
    for name in &plan.copied {
        let (source, ours) = (plan.checkpoint.tensors().get(name), written.tensors().get(name));
        let (Some(source), Some(ours)) = (source, ours) else {
            return Err(ProofError::Tensor(name.clone()).into());
        };
        let same = source.dtype() == ours.dtype()
            // A number without dimensions is a row of one in GGUF.
            && (source.shape() == ours.shape() || source.shape().is_empty() && ours.shape() == [1])
            && source.bytes() == ours.bytes();
        if !same {
            return Err(ProofError::Tensor(name.clone()).into());
        }
    }
    Ok(())
}

/// The first value that differs, in words.
fn difference(source: &Unpacked, ours: &Unpacked) -> Option<String> {
    let shape = source.shape();
    let rows = shape.experts * shape.n;
    let step = (CHUNK / shape.k.max(1)).max(1);
    for first in (0..rows).step_by(step as usize) {
        let range = first..(first + step).min(rows);
        let (theirs, ours) = (source.decode_rows(range.clone()), ours.decode_rows(range));
        let differs =
            |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
        if let Some(at) = theirs.iter().zip(&ours).position(differs) {
            let (row, column) = (first + at as u64 / shape.k, at as u64 % shape.k);
            return Some(format!(
                "weight in row {row}, column {column}: {:?}, not {:?}",
                ours[at], theirs[at]
            ));
        }
    }
    let input = (source.static_input(), ours.static_input());
    if source.values(Component::Bias) != ours.values(Component::Bias) {
        return Some("bias".to_owned());
    }
    if input.0 != input.1 {
        return Some("static scale of x".to_owned());
    }
    (source.index() != ours.index()).then(|| "order of columns".to_owned())
}
