//! Quark: FP8, int8 and int4, and floats of 4 and 6 bits with e8m0 scales.

use quantloom_dsl::layout::GroupSize;
use serde_json::{Map, Value, json};

use super::{Configuration, Storage, StoredLayer, Variant, Wanted};
use crate::checkpoint::describe::{Extras, quark as described};
use crate::checkpoint::quark::ELEMENTS;

pub(super) const VARIANTS: &[Variant] = &[Variant {
    stores: "FP8 and int8 per row or tensor, int4 in groups, and OCP MX floats of 4, 6 and 8 bits",
    storages,
    config,
}];

fn storages(wanted: &Wanted<'_>) -> Vec<Storage> {
    let bias = wanted.bias();
    let mut found = Vec::new();
    for element in ELEMENTS {
        let integer = element.code.starts_with(['i', 'u']);
        if !(wanted.has_codes(element.code) || integer && wanted.is_integer()) {
            continue;
        }
        if element.unit == (8, 1) {
            found.extend(
                wanted.floats().iter().filter_map(|scale| four_bits(wanted, element.code, scale)),
            );
            continue;
        }
        let mut scales = Vec::new();
        match wanted.group().cols {
            GroupSize::Each(cols) if !element.above.is_empty() => {
                let clause = format!("scale: e8m0 per 1x{cols} from pow2 above {}", element.above);
                scales.push((format!("MX {}", element.name), clause));
            }
            GroupSize::Each(_) => {}
            GroupSize::All => {
                for scale in wanted.floats() {
                    let clause = match wanted.group().rows {
                        GroupSize::All => format!("scale: {scale} per tensor [g]"),
                        GroupSize::Each(_) => format!("scale: {scale} per channel [n]"),
                    };
                    scales.push((format!("{}, {scale}", element.name), clause));
                }
            }
        }
        for (label, scale) in scales {
            let text = format!(
                "Quark {{ weight: {}, {scale}, pack: {}, activation: bf16 | f16, {bias} }}",
                element.code, element.pack
            );
            let Some(storage) = wanted.storage(&text, label, Some("input_scale_2")) else {
                continue;
            };
            let Some(config) = described(&storage.scheme) else { continue };
            let settings = config.get("global_quant_config").cloned().unwrap_or_default();
            let int8 = element.code == "i8";
            let extras = if int8 { Extras::ZeroZeroPoints } else { Extras::None };
            found.push(Storage { extras, ..storage.with(settings) });
        }
    }
    found
}

/// Integers of 4 bits, eight rows in a word, with a scale per group of columns.
fn four_bits(wanted: &Wanted<'_>, code: &str, scale: &str) -> Option<Storage> {
    let GroupSize::Each(cols) = wanted.group().cols else { return None };
    let symmetric = code == "i4";
    let zero = if symmetric {
        String::new()
    } else {
        format!("zero: {code} i32 [n:8 | n, g] as \"weight_zero_point\",")
    };
    let text = format!(
        "Quark {{ weight: {code}, {zero} scale: {scale} per 1x{cols} [n, g], pack: i32 [n:8 | n, k],
           activation: bf16 | f16, {} }}",
        wanted.bias()
    );
    let dtype = if symmetric { "int4" } else { "uint4" };
    let settings = json!({
        "weight": {
            "dtype": dtype, "qscheme": "per_group", "group_size": cols, "ch_axis": -1,
            "is_dynamic": false, "symmetric": symmetric,
        },
        "input_tensors": null, "output_tensors": null, "bias": null,
    });
    Some(wanted.storage(&text, format!("{dtype}, {scale}"), None)?.with(settings))
}

/// The settings of the first layer for all, and those of others by name.
fn config(layers: &[StoredLayer<'_>], others: &[String]) -> Configuration {
    let Some(first) = layers.first() else { return Ok(None) };
    let special = layers.iter().filter(|layer| layer.storage.settings != first.storage.settings);
    let special: Map<String, Value> = special
        .map(|layer| (layer.name.to_owned(), Value::Object(layer.storage.settings.clone())))
        .collect();
    let config = json!({
        "quant_method": "quark",
        "global_quant_config": first.storage.settings,
        "layer_quant_config": special,
        // vLLM asks for the length of both.
        "layer_type_quant_config": {},
        "exclude": others,
        "export": { "pack_method": "order", "kv_cache_group": [] },
    });
    Ok(config.as_object().cloned())
}
