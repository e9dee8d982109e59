//! AWQ, version `gemm`: integers of 4 bits, with zero points or without.

use serde_json::{Map, Value, json};

use super::{Configuration, SettingConflict, Storage, StoredLayer, Variant, Wanted};
use crate::checkpoint::awq::scheme_text;

const STORES: &str = "integers of 4 bits with a float scale per row or group of columns";

/// Most software expects zero points.
pub(super) const VARIANTS: &[Variant] = &[
    Variant { stores: STORES, storages: |wanted| storages(wanted, true), config },
    Variant { stores: STORES, storages: |wanted| storages(wanted, false), config },
];

fn storages(wanted: &Wanted<'_>, zeros: bool) -> Vec<Storage> {
    if !wanted.is_integer() || wanted.bits() > 4 {
        return Vec::new();
    }
    let storage = |scale: String| {
        let text = scheme_text(zeros, &scale, &wanted.row_group(), &wanted.bias());
        let storage = wanted.storage(&text, format!("4 bits, {scale}"), None)?;
        let settings = json!({ "bits": 4, "group_size": wanted.group_size(), "zero_point": zeros });
        let group = u64::try_from(wanted.group_size()).unwrap_or(1);
        Some(Storage { whole: (8, group), ..storage.with(settings) })
    };
    wanted.floats().into_iter().filter_map(storage).collect()
}

fn config(layers: &[StoredLayer<'_>], others: &[String]) -> Configuration {
    let Some(first) = layers.first() else { return Ok(None) };
    let settings = &first.storage.settings;
    if let Some(at) = layers.iter().position(|layer| layer.storage.settings != *settings) {
        let group = |settings: &Map<String, Value>| settings.get("group_size")?.as_i64();
        let [of_first, of_layer] =
            [settings, &layers[at].storage.settings].map(|of| group(of).unwrap_or_default());
        let first = first.name.to_owned();
        return Err((at, SettingConflict::AwqGroupSize { first, of_first, of_layer }));
    }
    let mut config = Map::new();
    config.insert("quant_method".to_owned(), "awq".into());
    config.extend(settings.clone());
    config.insert("version".to_owned(), "gemm".into());
    if !others.is_empty() {
        config.insert("modules_to_not_convert".to_owned(), others.into());
    }
    Ok(Some(config))
}
