//! GGUF: llama.cpp's files. One file has the model's facts and all tensors; each tensor has a type of
//! its own, which says what its blocks are.
//!
//! In: the header of a file ([`Gguf`]). Out: the layers, each a matrix of blocks. The quantised
//! tensor `blk.0.ffn_down.weight` is the layer `blk.0.ffn_down`; with three dimensions it is a stack
//! of experts. Beside it may be `bias`, and `scale`, a factor of the whole matrix (llama.cpp
//! multiplies the product by it). Start with `types`, the table from ggml's types to schemes.
//!
//! What a model does around its layers (rows of q and k in llama.cpp's order, say) is the engine's.

mod header;
mod problem;
#[cfg(test)]
mod tests;
mod types;
mod value;
mod write;

use quantloom_dsl::layout::Shape;

use super::clause::float_name;
use super::files::Tensors;
use super::layer::{LayerError, LayerProblem, Recognised};
use super::write::tensor_name;
use super::{CheckpointError, Found};

pub use header::Gguf;
pub(super) use header::{MAGIC, Placed};
pub use problem::GgufProblem;
pub use value::{GgufList, GgufType, GgufValue};
pub use write::GgufTensorLimit;
pub(crate) use write::{GgufEntry, default_keys, element_number, header, unwritable};

use header::TensorInfo;
use types::{Content, GgmlType, TYPES};

/// The version of blocks that the table says; ggml changed blocks before this one.
const QUANTIZATION_VERSION: u64 = 2;

/// A type of tensors that are blocks of quantised weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockType {
    kind: &'static GgmlType,
    numbers: &'static str,
    record: &'static str,
}

impl BlockType {
    /// Every such type that is read.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        TYPES.iter().filter_map(Self::of)
    }

    fn of(kind: &'static GgmlType) -> Option<Self> {
        match kind.content {
            Content::Blocks { numbers, record } => Some(Self { kind, numbers, record }),
            Content::Elements(_) | Content::Refused(_) => None,
        }
    }

    /// The name in ggml.
    pub(crate) fn name(self) -> &'static str {
        self.kind.name
    }

    /// The number in files.
    pub(crate) fn number(self) -> u32 {
        self.kind.number
    }

    /// Columns of a block.
    pub(crate) fn columns(self) -> u64 {
        self.kind.block
    }

    /// Bits of a block over its columns.
    pub(crate) fn bits_per_weight(self) -> f64 {
        self.kind.bytes as f64 * 8.0 / self.kind.block as f64
    }

    /// Levels of scales within a block.
    pub(crate) fn scale_levels(self) -> usize {
        self.numbers.matches("scale:").count()
    }
}

/// The parts of a layer's scheme.
pub(crate) struct LayerText {
    /// The type of the tensor `weight`.
    pub(crate) kind: BlockType,
    /// Whether it has three dimensions.
    pub(crate) stacked: bool,
    /// The type of the tensor `scale`, if there is one.
    pub(crate) scale: Option<&'static str>,
    /// The type of the tensor `bias`, if there is one.
    pub(crate) bias: Option<&'static str>,
}

impl LayerText {
    /// The scheme.
    pub(crate) fn scheme(&self) -> String {
        let (axes, one_each, each_row, experts) = match self.stacked {
            false => ("k, n", "per tensor [g]", "[n]", ""),
            true => ("k, n, e", "per tensor [e]", "[n, e]", "experts: single,"),
        };
        let clause = |clause: &str, number: Option<&str>, layout: &str| {
            let text = |number| format!("{clause}: {number} {layout} as \"{clause}\",");
            number.map_or_else(String::new, text)
        };
        let scale = clause("scale", self.scale, one_each);
        let bias = clause("bias", self.bias, each_row);
        let BlockType { kind, numbers, record } = self.kind;
        let name = kind.name;
        format!(
            "Gguf{name} {{ {numbers}, {scale} pack: for [{axes}] {{ {record} }},
               activation: bf16 | f16 | f32, {bias} {experts} }}"
        )
    }
}

/// The start of a text of the file, for a message.
fn shortened(text: &str) -> String {
    super::config::shortened(text.to_owned())
}

/// The quantised tensors as layers.
pub(super) fn layers(gguf: &Gguf, tensors: &Tensors) -> Found {
    let quantised = gguf.tensors.iter().filter(|(_, info)| {
        !info.kind.is_some_and(|kind| matches!(kind.content, Content::Elements(_)))
    });
    quantised
        .map(|(name, info)| {
            let layer = name.strip_suffix(".weight").unwrap_or(name);
            let recognised = recognise(gguf, tensors, layer, layer != name, info);
            (layer.to_owned(), recognised.map_err(CheckpointError::from))
        })
        .collect()
}

/// The scheme and the shape of a quantised tensor; `named` if its name ends in `.weight`.
fn recognise(
    gguf: &Gguf,
    tensors: &Tensors,
    layer: &str,
    named: bool,
    info: &TensorInfo,
) -> Result<Recognised, LayerError> {
    let unsupported = |what: String| Err(LayerError::unsupported(layer, what));
    let Some(kind) = info.kind else {
        return Err(LayerError::of(layer, LayerProblem::UnknownGgmlType(info.number)));
    };
    let blocks = match (BlockType::of(kind), &kind.content) {
        (Some(blocks), _) => blocks,
        (None, Content::Refused(why)) => {
            return Err(LayerError::of(layer, LayerProblem::GgmlType { name: kind.name, why }));
        }
        (None, _) => return unsupported(format!("{} is not quantised", kind.name)),
    };
    match gguf.value("general.quantization_version") {
        None | Some(GgufValue::Unsigned(QUANTIZATION_VERSION)) => {}
        Some(other) => {
            return unsupported(format!(
                "`general.quantization_version` is {other:?}; {QUANTIZATION_VERSION} is read"
            ));
        }
    }
    if !named {
        return unsupported(format!(
            "a tensor of {} whose name does not end in `.weight`",
            kind.name
        ));
    }
    let (shape, stacked) = match info.dims[..] {
        [n, k] => (Shape::matrix(n, k), false),
        [experts, n, k] => (Shape { experts, n, k }, true),
        _ => {
            return unsupported(format!(
                "a tensor of {} dimensions is not a matrix",
                info.dims.len()
            ));
        }
    };
    let number = |store: &str| match tensors.get(&tensor_name(layer, store)) {
        None => Ok(None),
        Some(tensor) => float_name(layer, store, tensor.dtype()).map(Some),
    };
    let (scale, bias) = (number("scale")?, number("bias")?);
    let text = LayerText { kind: blocks, stacked, scale, bias };
    let scheme = text.scheme();
    Ok(Recognised::new(scheme, shape))
}
