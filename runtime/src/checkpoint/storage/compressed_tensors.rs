//! compressed-tensors: integers of 1 to 8 bits, packed or in bytes, and floats of 4, 6 and 8 bits.
//!
//! Its releases from 0.20 on refuse files with act-order (`actorder: group`), which the reader takes: none is
//! written.

use std::iter;

use serde_json::{Map, Value, json};

use super::{Configuration, Storage, StoredLayer, Variant, Wanted};
use crate::checkpoint::describe::{Extras, compressed_tensors as described};
use quantloom_dsl::layout::GroupSize;

pub(super) const VARIANTS: &[Variant] = &[Variant {
    stores: "integers of 1 to 8 bits with float scales, FP8, NVFP4, MXFP4, MXFP6 (e2m3) and MXFP8",
    storages,
    config,
}];

/// Types of float codes, with their packings; `scales` are clauses that say all, else there is one level of
/// float scales.
const FLOATS: [(&str, &str, &str, &str); 5] = [
    ("e4m3", "FP8", "[k, n]", ""),
    (
        "e2m1",
        "NVFP4",
        "u8 [k:2 | k, n] as \"weight_packed\"",
        "scale: e4m3 per 1x16, scale: divide f32 per tensor from amax / 2688 [g] as \"weight_global_scale\",",
    ),
    (
        "e2m1",
        "MXFP4",
        "u8 [k:2 | k, n] as \"weight_packed\"",
        "scale: e8m0 per 1x32 from pow2 above 1.75,",
    ),
    (
        "e2m3",
        "MXFP6",
        "u8 [k:4 | w, k, n] as \"weight_packed\"",
        "scale: e8m0 per 1x32 from pow2 above 1.9375,",
    ),
    ("e4m3", "MXFP8", "[k, n]", "scale: e8m0 per 1x32 from pow2 above 1.75,"),
];

fn storages(wanted: &Wanted<'_>) -> Vec<Storage> {
    let bias = wanted.bias();
    let storage = |weight: &str, zero: &str, scales: &str, pack: &str, label: String| {
        let text = format!(
            "CompressedTensors {{ weight: {weight}, {zero} {scales} pack: {pack},
               activation: bf16 | f16, {bias} arithmetic: own }}"
        );
        let storage = wanted.storage(&text, label, Some("input_global_scale"))?;
        let packed = storage.scheme.stores.iter().any(|store| store.name == "weight_packed");
        let shaped = packed && !storage.scheme.weight.code.is_float();
        let extras = if shaped { Extras::WeightShape } else { Extras::None };
        let settings = settings(&storage)?;
        Some(Storage { extras, ..storage.with(settings) })
    };
    let mut found: Vec<Storage> = Vec::new();
    for (code, label, pack, scales) in FLOATS.iter().filter(|row| wanted.has_codes(row.0)) {
        if !scales.is_empty() {
            found.extend(storage(code, "", scales, pack, (*label).to_owned()));
            continue;
        }
        for scale in wanted.floats() {
            let scales = scale_clause(wanted, &scale);
            found.extend(storage(code, "", &scales, pack, format!("{label}, {scale}")));
        }
    }
    found.sort_by(|a, b| a.scheme.bits_per_weight().total_cmp(&b.scheme.bits_per_weight()));
    if !wanted.is_integer() {
        return found;
    }
    for bits in wanted.bits()..=8 {
        for asymmetric in [false, true] {
            for scale in wanted.floats() {
                let scales = scale_clause(wanted, &scale);
                let zeros = if asymmetric { ", zero points" } else { "" };
                let label = format!("{bits} bits{zeros}, {scale}");
                let (weight, zero) = match asymmetric {
                    false => (format!("u{bits} - {}", 1 << (bits - 1)), String::new()),
                    true => (
                        format!("u{bits}"),
                        format!("zero: u{bits} i32 [n:* | g, w] as \"weight_zero_point\","),
                    ),
                };
                let pack = "i32 [k:* | w, n] as \"weight_packed\"";
                let packed = storage(&weight, &zero, &scales, pack, label.clone());
                let pack = match 8 - bits {
                    0 => "[k, n]".to_owned(),
                    pad => format!("i8 [code, pad {pad} = sign | k, n]"),
                };
                let zero = if asymmetric { "zero: i8," } else { "" };
                let label = format!("{label}, a byte each");
                let bytes = storage(&format!("i{bits}"), zero, &scales, &pack, label);
                // The software's own choice: bytes where x is quantised too.
                match wanted.quantises_input() {
                    true => found.extend(bytes.into_iter().chain(packed)),
                    false => found.extend(packed.into_iter().chain(bytes)),
                }
            }
        }
    }
    found
}

fn scale_clause(wanted: &Wanted<'_>, number: &str) -> String {
    let group = wanted.group();
    match (group.rows, group.cols) {
        (GroupSize::All, GroupSize::All) => format!("scale: {number} per tensor [g],"),
        (GroupSize::Each(rows), GroupSize::Each(cols)) => {
            format!("scale: {number} per {rows}x{cols},")
        }
        _ => format!("scale: {number} per {},", wanted.row_group()),
    }
}

/// The settings of a group of layers that are stored alike.
fn settings(storage: &Storage) -> Option<Value> {
    let config = described(&storage.scheme)?;
    let mut group = config.get("config_groups")?.get("group_0")?.as_object()?.clone();
    group.remove("targets");
    Some(Value::Object(group))
}

/// One group of layers for each setting. The only one targets a class, as the software writes it, and
/// embeddings, which are of another class, by name.
fn config(layers: &[StoredLayer<'_>], others: &[String]) -> Configuration {
    let mut groups: Vec<(&Map<String, Value>, Vec<&str>)> = Vec::new();
    for layer in layers {
        let settings = &layer.storage.settings;
        match groups.iter_mut().find(|(known, _)| *known == settings) {
            Some((_, names)) => names.push(layer.name),
            None => groups.push((settings, vec![layer.name])),
        }
    }
    let one = groups.len() == 1;
    let formats: Vec<&Value> = groups.iter().filter_map(|(of, _)| of.get("format")).collect();
    let format = match formats.first() {
        Some(first) if formats.iter().all(|format| format == first) => (*first).clone(),
        _ => "mixed-precision".into(),
    };
    let group = |(at, (settings, names)): (usize, (&Map<String, Value>, Vec<&str>))| {
        let mut group = settings.clone();
        let targets: Vec<&str> = match one {
            true => iter::once("Linear").chain(names.into_iter().filter(is_embedding)).collect(),
            false => names,
        };
        group.insert("targets".to_owned(), targets.into());
        (format!("group_{at}"), Value::Object(group))
    };
    let groups: Map<String, Value> = groups.into_iter().enumerate().map(group).collect();
    let config = json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": others,
    });
    Ok(config.as_object().cloned())
}

/// Whether a layer is an embedding by the names that models give to it: `embed_tokens`, `word_embeddings`,
/// `token_embd`, `wte`.
fn is_embedding(name: &&str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    ["embed", "embd"].iter().any(|part| last.contains(part)) || ["wte", "wpe"].contains(&last)
}
