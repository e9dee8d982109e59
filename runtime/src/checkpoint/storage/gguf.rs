//! GGUF: one of ggml's types a tensor.

use serde_json::{Map, Value};

use super::{Apart, Storage, StoredLayer, Variant, Wanted};
use crate::checkpoint::gguf::{BlockType, LayerText};

pub(super) const VARIANTS: &[Variant] = &[Variant {
    stores: "matrices of whole blocks of ggml's types, and nothing of x",
    storages,
    config,
}];

/// Every type of blocks that rows consist of, those with the fewest bytes first; of these the first
/// in the table.
fn storages(wanted: &Wanted<'_>) -> Vec<Storage> {
    let mut types: Vec<BlockType> = BlockType::all().collect();
    types.sort_by(|a, b| a.bits_per_weight().total_cmp(&b.bits_per_weight()));
    let storage = |kind: BlockType| {
        let scaled = wanted.from.scales.len() > kind.scale_levels();
        // llama.cpp adds biases in f32.
        let bias = wanted.from.bias.map(|_| "f32");
        let scale = scaled.then_some("f32");
        let text = LayerText { kind, stacked: wanted.is_single_stack(), scale, bias };
        let storage = wanted.storage(&text.scheme(), kind.name(), "")?;
        Some(Storage { blocks: Some(kind), ..storage })
    };
    let whole = types.into_iter().filter(|kind| wanted.shape.k.is_multiple_of(kind.columns()));
    whole.filter_map(storage).collect()
}

fn config(_: &[StoredLayer<'_>], _: &[String]) -> Result<Option<Map<String, Value>>, Apart> {
    Ok(None)
}
