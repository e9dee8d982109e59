//! GPTQ: integers of 2, 3, 4 and 8 bits with zero points.

use serde_json::{Map, Value, json};

use super::{Configuration, Storage, StoredLayer, Variant, Wanted};
use crate::checkpoint::describe::Extras;
use crate::checkpoint::gptq::{LayerText, WIDTHS};

const STORES: &str = "integers of 2, 3, 4 and 8 bits with a zero point and a float scale per row or group of columns";

/// AutoGPTQ's own condition.
const WHOLE: (u64, u64) = (32, 32);

/// Version 1 is what most software reads; it has no zero point of 0.
pub(super) const VARIANTS: &[Variant] = &[
    Variant {
        stores: STORES,
        storages: |wanted| storages(wanted, 1),
        config: |l, n| config(l, n, "gptq"),
    },
    Variant {
        stores: STORES,
        storages: |wanted| storages(wanted, 0),
        config: |l, n| config(l, n, "gptq_v2"),
    },
];

fn storages(wanted: &Wanted<'_>, plus: u32) -> Vec<Storage> {
    if !wanted.is_integer() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for bits in WIDTHS.into_iter().filter(|bits| *bits >= i64::from(wanted.bits())) {
        for scale in wanted.floats() {
            let text = LayerText {
                bits,
                plus: if plus == 1 { " + 1" } else { "" },
                wraps: "",
                scale: &scale,
                group: &wanted.row_group(),
                index: wanted.from.index.is_some(),
                bias: &wanted.bias(),
            };
            let Some(text) = text.scheme() else { continue };
            let Some(storage) = wanted.storage(&text, format!("{bits} bits, {scale}"), None) else {
                continue;
            };
            let order = wanted.from.index.is_some();
            let extras = if order { Extras::None } else { Extras::TrivialIndex };
            let settings = json!({
                "bits": bits, "group_size": wanted.group_size(), "desc_act": order, "sym": false,
            });
            let middle = u8::try_from((1 << (bits - 1)) - plus).ok();
            let middle = middle.map(|middle| ("sym", middle));
            found.push(Storage { extras, whole: WHOLE, middle, ..storage.with(settings) });
        }
    }
    found
}

/// The settings of most layers, and rules for the others.
fn config(layers: &[StoredLayer<'_>], others: &[String], version: &str) -> Configuration {
    let Some(first) = layers.first() else { return Ok(None) };
    // Software may take the middle for each zero point then: only if it is so in all layers.
    let symmetric = layers.iter().all(|layer| layer.storage.settings["sym"] == true);
    let settings = |layer: &StoredLayer<'_>| {
        let mut settings = layer.storage.settings.clone();
        settings.insert("sym".to_owned(), symmetric.into());
        settings
    };
    let all = settings(first);
    let mut config = Map::new();
    config.insert("quant_method".to_owned(), "gptq".into());
    config.extend(all.clone());
    config.insert("checkpoint_format".to_owned(), version.into());
    let mut dynamic = Map::new();
    for layer in layers {
        let own = settings(layer);
        if own != all {
            let key = format!("+:^{}$", fancy_regex::escape(layer.name));
            dynamic.insert(key, Value::Object(own));
        }
    }
    for name in others {
        dynamic.insert(format!("-:^{}$", fancy_regex::escape(name)), json!({}));
    }
    for (name, rule) in of_fused(&dynamic) {
        dynamic.insert(name, rule);
    }
    // vLLM asks for it before it looks for the tensors.
    if layers.iter().any(|layer| layer.name.rsplit('.').next() == Some("lm_head")) {
        config.insert("lm_head".to_owned(), true.into());
    }
    if !dynamic.is_empty() {
        config.insert("dynamic".to_owned(), Value::Object(dynamic));
    }
    Ok(Some(config))
}

/// Layers that vLLM multiplies as one, which it looks up by another name.
const FUSED: [(&str, &[&str]); 2] =
    [("qkv_proj", &["q_proj", "k_proj", "v_proj"]), ("gate_up_proj", &["gate_proj", "up_proj"])];

/// The rules of fused layers all of whose parts have one rule.
fn of_fused(dynamic: &Map<String, Value>) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (fused, parts) in FUSED {
        for (key, rule) in dynamic {
            let Some(start) = key.strip_suffix(&format!("{}$", parts[0])) else { continue };
            if !(start.ends_with('.') || start.ends_with('^')) {
                continue;
            }
            if parts.iter().all(|part| dynamic.get(&format!("{start}{part}$")) == Some(rule)) {
                found.push((format!("{start}{fused}$"), rule.clone()));
            }
        }
    }
    found
}
