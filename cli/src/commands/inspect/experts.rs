//! Expert layers in `quantloom inspect`: a row for all experts together.

use std::collections::BTreeSet;

use quantloom::dsl::Scheme;
use quantloom::runtime::checkpoint::{Checkpoint, CheckpointExperts, ExpertSizes, ExpertsProblem};
use serde_json::{Value, json};

use super::super::{labels, size, without_shared};

/// What is shown of the quantised expert layers of a checkpoint.
#[derive(Default)]
pub(super) struct Shown<'c> {
    pub(super) rows: Vec<[String; 5]>,
    pub(super) values: Vec<Value>,
    /// The layers that the rows stand for.
    pub(super) members: BTreeSet<&'c str>,
    pub(super) notes: Vec<String>,
    pub(super) faults: Vec<String>,
}

pub(super) fn rows(checkpoint: &Checkpoint) -> Shown<'_> {
    let mut shown = Shown::default();
    for (name, found) in checkpoint.expert_layers() {
        let experts = match found {
            Ok(experts) => experts,
            // The matrix has a fault of its own.
            Err(error) if matches!(*error.problem, ExpertsProblem::Broken(_)) => continue,
            Err(error) => {
                let cells = [name.as_str(), "not recognised: see below", "", "", ""];
                shown.rows.push(cells.map(str::to_owned));
                shown.values.push(json!({ "layer": name, "error": error.to_string() }));
                shown.faults.push(error.to_string());
                continue;
            }
        };
        let Some(schemes) = experts.stored_schemes() else { continue };
        if let Err(error) = experts.layer() {
            shown.notes.push(error.to_string());
        }
        if let Some(shared) = experts.missing_shared() {
            shown.notes.push(format!("\"{name}\": {}", without_shared(shared)));
        }
        let bits = bits_per_weight(&experts);
        shown.rows.push([
            name.clone(),
            labels(schemes),
            sizes_of(&experts),
            size(experts.bytes()),
            format!("{bits:.3}"),
        ]);
        shown.values.push(value(&name, checkpoint, &experts, schemes, bits));
        shown.members.extend(experts.members());
    }
    shown
}

fn bits_per_weight(experts: &CheckpointExperts<'_>) -> f64 {
    let ExpertSizes { experts: count, hidden, intermediate, shards } = experts.sizes();
    let weights = f64::from(count) * hidden as f64 * intermediate as f64 * (shards + 1) as f64;
    experts.bytes() as f64 * 8.0 / weights
}

/// `128 experts, top 8, silu; gate_up 2 x 768 x 2048, down 2048 x 768`.
fn sizes_of(experts: &CheckpointExperts<'_>) -> String {
    let ExpertSizes { experts: count, hidden, intermediate, shards } = experts.sizes();
    let described = match experts.layer() {
        Ok(layer) => format!("top {}, {}", layer.top_k, layer.gate),
        Err(_) => "routing not known".to_owned(),
    };
    let shared = if experts.shared().is_some() { ", and a shared one" } else { "" };
    let shards = if shards == 1 { String::new() } else { format!("{shards} x ") };
    format!(
        "{count} experts{shared}, {described}; gate_up {shards}{intermediate} x {hidden}, down {hidden} x \
         {intermediate}"
    )
}

fn value(
    name: &str,
    checkpoint: &Checkpoint,
    experts: &CheckpointExperts<'_>,
    [gate_up, down]: [&Scheme; 2],
    bits: f64,
) -> Value {
    let sizes = experts.sizes();
    let layer = experts.layer().ok();
    let scheme = |scheme: &Scheme| json!({ "scheme": quantloom::kernels::name_of(scheme), "text": scheme.to_string() });
    json!({
        "layer": name,
        "family": checkpoint.format().name(),
        "bytes": experts.bytes(),
        "bits_per_weight": bits,
        "experts": {
            "text": layer.map(ToString::to_string),
            "experts": sizes.experts,
            "top_k": layer.map(|layer| layer.top_k),
            "hidden": sizes.hidden,
            "intermediate": sizes.intermediate,
            "shards": sizes.shards,
            "gate_up": scheme(gate_up),
            "down": scheme(down),
            "router": experts.router().is_ok(),
            "score_bias": experts.score_bias().is_some(),
            "shared": experts.shared().map(|shared| shared.layer().name()),
            "missing_shared": experts.missing_shared(),
        },
    })
}
