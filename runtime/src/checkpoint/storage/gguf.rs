//! GGUF: one of ggml's types a tensor.

use super::{Configuration, Storage, StoredLayer, Variant, Wanted};
use crate::checkpoint::gguf::{BlockType, LayerText};

pub(super) const VARIANTS: &[Variant] =
    &[Variant { stores: "matrices of blocks of ggml's types", storages, config }];

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
        let text = LayerText { kind, stacked: wanted.from.experts.is_some(), scale, bias };
        let storage = wanted.storage(&text.scheme(), kind.name(), None)?;
        Some(Storage { blocks: Some(kind), whole: (1, kind.columns()), ..storage })
    };
    types.into_iter().filter_map(storage).collect()
}

fn config(_: &[StoredLayer<'_>], _: &[String]) -> Configuration {
    Ok(None)
}
