//! Which descriptions of a scheme read back: tests each description with small files in memory.

use std::collections::BTreeSet;

use quantloom_dsl::format::F32;
use quantloom_dsl::layout::{GroupSize, Shape};
use quantloom_dsl::reference::quantise;
use quantloom_dsl::{Experts, Scheme};

use super::{QuantiseError, WeightProblem, layer_entries};
use crate::checkpoint::{Checkpoint, Description, Options, describe, header};
use crate::pack::pack;

/// The descriptions with which small files of this scheme, with the same partial words and groups
/// as the layers, read back as this scheme and shape; the last one, the scheme's own text, always
/// does.
pub(super) fn usable(
    scheme: &Scheme,
    layers: &[(String, Shape)],
) -> Result<Vec<Description>, QuantiseError> {
    let columns = scheme.scales.iter().filter_map(|scale| match scale.group.cols {
        GroupSize::Each(cols) => Some(u64::from(cols)),
        GroupSize::All => None,
    });
    let whole = 2 * columns.max().unwrap_or(128).clamp(128, 4096).next_multiple_of(64);
    // Words and bytes have at most 64 codes, so the remainder modulo 64 is enough.
    let probe = |(_, shape): &(String, Shape)| (64 + shape.n % 64, whole + shape.k % 64);
    let probes: BTreeSet<(u64, u64)> = layers.iter().map(probe).collect();
    let mut usable = Vec::new();
    let mut candidates = describe(scheme, layers);
    let last = candidates.pop();
    'candidates: for candidate in candidates {
        for (n, k) in &probes {
            if !reads_back(scheme, &candidate, *n, *k)? {
                continue 'candidates;
            }
        }
        usable.push(candidate);
    }
    usable.extend(last);
    Ok(usable)
}

fn reads_back(
    scheme: &Scheme,
    description: &Description,
    n: u64,
    k: u64,
) -> Result<bool, QuantiseError> {
    let shape = Shape { experts: if scheme.experts.is_some() { 2 } else { 1 }, n, k };
    // Any weights will do: only tensors and configuration are compared.
    let value = |at: u64| f64::from((((at * 2_654_435_761) >> 7) % 2001) as f32 / 1000.0 - 1.0);
    let w: Vec<f64> = (0..shape.elements().unwrap_or(0)).map(value).collect();
    let single = scheme.experts == Some(Experts::Single);
    let layer = if single { "layer" } else { "layer.gate_up_proj" };
    let fault = |problem: WeightProblem| problem.of(layer);
    let plain = quantise(scheme, shape, &w, F32, None).map_err(|error| fault(error.into()))?;
    let packed = pack(scheme, &plain).map_err(|error| fault(error.into()))?;
    let extras = description.extras.of(scheme, layer, shape);
    let Ok(mut entries) = layer_entries(scheme, layer, shape) else { return Ok(false) };
    entries.extend(extras.iter().map(|(entry, _)| entry.clone()));
    let Ok(mut file) = header(&entries, &description.metadata()) else { return Ok(false) };
    for store in &scheme.stores {
        file.extend_from_slice(packed.get(&store.name).map_or(&[][..], Vec::as_slice));
    }
    for (_, bytes) in &extras {
        file.extend_from_slice(bytes);
    }
    let Ok(checkpoint) = Checkpoint::from_bytes(file, Options::default()) else { return Ok(false) };
    let same = checkpoint
        .layer(layer)
        .is_ok_and(|read| read.scheme().same_meaning(scheme) && read.shape() == shape);
    Ok(same)
}
