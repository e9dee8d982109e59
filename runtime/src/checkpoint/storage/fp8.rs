//! FP8 of DeepSeek and transformers: e4m3 with scales per block or per tensor, and x in e4m3.

use quantloom_dsl::layout::GroupSize;
use serde_json::Value;

use super::{Configuration, SettingConflict, Storage, StoredLayer, Variant, Wanted};
use crate::checkpoint::describe::fp8 as described;

pub(super) const VARIANTS: &[Variant] = &[Variant {
    stores: "e4m3 with float scales per block or per tensor, and x in e4m3",
    storages,
    config,
}];

fn storages(wanted: &Wanted<'_>) -> Vec<Storage> {
    if !wanted.has_codes("e4m3") {
        return Vec::new();
    }
    let group = wanted.group();
    let (group, places, name) = match (group.rows, group.cols) {
        (GroupSize::All, GroupSize::All) => ("tensor".to_owned(), "[g]", "weight_scale"),
        (GroupSize::Each(rows), GroupSize::Each(cols)) => {
            (format!("{rows}x{cols}"), "", "weight_scale_inv")
        }
        _ => return Vec::new(),
    };
    let bias = wanted.bias();
    let storage = |scale: String| {
        let text = format!(
            "Fp8 {{ weight: e4m3, scale: {scale} per {group} {places} as \"{name}\", pack: [k, n],
               activation: bf16 | f16, {bias} }}"
        );
        let storage = wanted.storage(&text, format!("e4m3, {scale}"), Some(""))?;
        let settings = described(&storage.scheme)?;
        Some(storage.with(Value::Object(settings)))
    };
    wanted.floats().into_iter().filter_map(storage).collect()
}

fn config(layers: &[StoredLayer<'_>], others: &[String]) -> Configuration {
    let Some(first) = layers.first() else { return Ok(None) };
    let differs = |layer: &StoredLayer<'_>| layer.storage.settings != first.storage.settings;
    if let Some(at) = layers.iter().position(differs) {
        return Err((at, SettingConflict::Fp8 { first: first.name.to_owned() }));
    }
    let mut config = first.storage.settings.clone();
    if !others.is_empty() {
        config.insert("modules_to_not_convert".to_owned(), others.into());
    }
    Ok(Some(config))
}
