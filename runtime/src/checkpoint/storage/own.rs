//! Our own files: every scheme as it is.

use serde_json::{Map, Value, json};

use super::{Configuration, Storage, StoredLayer, Variant, Wanted};
use crate::checkpoint::describe::Extras;

pub(super) const VARIANTS: &[Variant] = &[Variant { stores: "every scheme", storages, config }];

fn storages(wanted: &Wanted<'_>) -> Vec<Storage> {
    let (scheme, label) = (wanted.from.clone(), wanted.from.weight.to_string());
    let (settings, extras) = (Map::new(), Extras::None);
    vec![Storage { scheme, label, settings, extras, blocks: None, whole: (1, 1), middle: None }]
}

fn config(layers: &[StoredLayer<'_>], _: &[String]) -> Configuration {
    let layer = |layer: &StoredLayer<'_>| {
        let shape = [layer.shape.experts, layer.shape.n, layer.shape.k];
        let scheme = layer.storage.scheme.to_string();
        (layer.name.to_owned(), json!({ "shape": shape, "scheme": scheme }))
    };
    let layers: Map<String, Value> = layers.iter().map(layer).collect();
    Ok(json!({ "quant_method": "quantloom", "layers": layers }).as_object().cloned())
}
