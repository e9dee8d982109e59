//! ModelOpt: the algorithms that its reader knows.

use serde_json::{Map, Value, json};

use super::{Configuration, Storage, StoredLayer, Variant, Wanted};
use crate::checkpoint::modelopt::{ALGORITHMS, Algorithm, LayerText, WeightScales};

pub(super) const VARIANTS: &[Variant] = &[Variant {
    stores: "FP8, int8 per channel, signed int4 in groups, NVFP4, and MXFP8, of weights without zero points",
    storages,
    config,
}];

fn storages(wanted: &Wanted<'_>) -> Vec<Storage> {
    let fits = |algorithm: &&Algorithm| {
        let codes = algorithm.codes.code;
        let float = wanted.has_codes(codes);
        let integer = wanted.is_integer() && codes.starts_with('i');
        (float || integer) && algorithm.x.takes(wanted.quantises_input())
    };
    let mut found = Vec::new();
    for algorithm in ALGORITHMS.iter().filter(fits) {
        let floats = match algorithm.scales {
            WeightScales::Two | WeightScales::Power(_) => vec!["f32".to_owned()],
            _ => wanted.floats(),
        };
        let group = match algorithm.scales {
            WeightScales::Two => Some(16),
            WeightScales::Power(_) => Some(32),
            _ => u32::try_from(wanted.group_size()).ok(),
        };
        for scale in floats {
            let prescale = wanted.from.prescale.map(|number| number.to_string());
            let text = LayerText {
                algorithm,
                scale: &scale,
                group,
                prescale: prescale.as_deref(),
                activation: "bf16 | f16",
                bias: &wanted.bias(),
            };
            let label = match algorithm.scales {
                WeightScales::Two | WeightScales::Power(_) => algorithm.name.to_owned(),
                _ => format!("{}, {scale}", algorithm.name),
            };
            let Some(storage) = wanted.storage(&text.scheme(), label, Some("input_scale")) else {
                continue;
            };
            let mut settings = json!({ "quant_algo": algorithm.name });
            if let Some(group) = group {
                settings["group_size"] = group.into();
            }
            let whole = algorithm.codes.step;
            found.push(Storage { whole, ..storage.with(settings) });
        }
    }
    found
}

/// One algorithm, or the layers by name.
fn config(layers: &[StoredLayer<'_>], others: &[String]) -> Configuration {
    let Some(first) = layers.first() else { return Ok(None) };
    let mut config = Map::new();
    config.insert("quant_method".to_owned(), "modelopt".into());
    if layers.iter().all(|layer| layer.storage.settings == first.storage.settings) {
        config.extend(first.storage.settings.clone());
    } else {
        let of = |layer: &StoredLayer<'_>| {
            (layer.name.to_owned(), Value::Object(layer.storage.settings.clone()))
        };
        config.insert("quant_algo".to_owned(), "MIXED_PRECISION".into());
        let layers: Map<String, Value> = layers.iter().map(of).collect();
        config.insert("quantized_layers".to_owned(), Value::Object(layers));
    }
    // ModelOpt's name, and the one that vLLM reads in a configuration without `quantization`.
    for name in ["exclude_modules", "ignore"] {
        config.insert(name.to_owned(), others.into());
    }
    Ok(Some(config))
}
