//! Stacks of experts as a matrix for each expert, for formats whose layers are matrices.
//!
//! In: the layers of a checkpoint. Out: [`Part`]s, what is converted: a layer as it is, or one matrix of a stack under
//! the name by which readers know it, `PREFIX.experts.EXPERT.MATRIX`. Names of stacks that are not in [`STACKS`] have no
//! such names, and are refused.

use crate::checkpoint::{Checkpoint, CheckpointFormat, Layer};
use crate::unpacked::{UnpackError, Unpacked, shard_of_stack, shards};

use super::{ConvertOptions, Unconvertible, scheme_of};

/// Where the values of a converted layer are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// In the layer of the same name.
    Layer,
    /// In a stack: its name, the expert, the shard.
    Stack(String, u64, u64),
}

impl Source {
    /// The values, of the layer that has them.
    pub(super) fn unpack(
        &self,
        layer: &Layer,
        options: ConvertOptions,
    ) -> Result<Unpacked, UnpackError> {
        let (scheme, stored) = (scheme_of(layer, options), |store: &str| layer.store(store));
        match self {
            Self::Layer => Unpacked::new(&scheme, layer.shape(), &stored),
            Self::Stack(_, expert, shard) => {
                shard_of_stack(&scheme, layer.shape(), &stored, (*expert, *shard))
            }
        }
    }

    /// Bytes of the layer's tensors that are this one's.
    pub(super) fn bytes(&self, layer: &Layer) -> u64 {
        let matrices = layer.shape().experts * shards(layer.scheme());
        match self {
            Self::Layer => layer.bytes(),
            Self::Stack(..) => layer.bytes() / matrices.max(1),
        }
    }
}

/// What is converted: its name, and its values or why there are none.
pub(super) struct Part<'c> {
    pub(super) name: String,
    pub(super) layer: Result<(&'c Layer, Source), Unconvertible>,
}

/// A stack by the last part of its name.
struct StackNames {
    stack: &'static str,
    /// The module of the experts, where the stack is beside it and not in it.
    module: Option<&'static str>,
    /// The matrices of an expert: the shards of a first product, or one.
    matrices: &'static [&'static str],
}

/// Those of llama.cpp; those of transformers; those of vLLM.
const STACKS: [StackNames; 7] = [
    StackNames { stack: "ffn_gate_exps", module: Some("experts"), matrices: &["gate_proj"] },
    StackNames { stack: "ffn_up_exps", module: Some("experts"), matrices: &["up_proj"] },
    StackNames { stack: "ffn_down_exps", module: Some("experts"), matrices: &["down_proj"] },
    StackNames { stack: "gate_up_proj", module: None, matrices: &["gate_proj", "up_proj"] },
    StackNames { stack: "down_proj", module: None, matrices: &["down_proj"] },
    StackNames { stack: "w13", module: None, matrices: &["w1", "w3"] },
    StackNames { stack: "w2", module: None, matrices: &["w2"] },
];

/// Whether layers of a format may be stacks.
fn has_stacks(format: CheckpointFormat) -> bool {
    matches!(format, CheckpointFormat::Gguf | CheckpointFormat::Quantloom)
}

/// The layers of a checkpoint, by name; stacks as their matrices where the format has none.
pub(super) fn parts(checkpoint: &Checkpoint, format: CheckpointFormat) -> Vec<Part<'_>> {
    let mut found = Vec::new();
    for (name, layer) in checkpoint.layers() {
        let one = |layer| Part { name: name.to_owned(), layer };
        match layer {
            Err(fault) => found.push(one(Err(Unconvertible::Layer(fault)))),
            // Its state is in several tensors, of which the reader makes those of a scheme.
            Ok(layer) if layer.format() == CheckpointFormat::BitsAndBytes => {
                found.push(one(Err(Unconvertible::From(layer.format().name()))));
            }
            Ok(layer) if layer.scheme().experts.is_none() || has_stacks(format) => {
                found.push(one(Ok((layer, Source::Layer))));
            }
            Ok(layer) => match names(name, shards(layer.scheme())) {
                Some((prefix, matrices)) => {
                    let experts = 0..layer.shape().experts;
                    found.extend(experts.flat_map(|expert| {
                        (0..).zip(matrices).map({
                            let prefix = prefix.clone();
                            move |(shard, matrix)| Part {
                                name: format!("{prefix}.{expert}.{matrix}"),
                                layer: Ok((layer, Source::Stack(name.to_owned(), expert, shard))),
                            }
                        })
                    }));
                }
                None => found.push(one(Err(Unconvertible::Stack))),
            },
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

/// The prefix of the names of a stack's experts, and those of its matrices, of which there are so many an expert.
fn names(stack: &str, shards: u64) -> Option<(String, &'static [&'static str])> {
    let (parent, last) = stack.rsplit_once('.')?;
    let known = STACKS.iter().find(|known| known.stack == last)?;
    let prefix = match known.module {
        Some(module) => format!("{parent}.{module}"),
        None => parent.to_owned(),
    };
    let of_experts = prefix == "experts" || prefix.ends_with(".experts");
    let all = known.matrices.len() as u64 == shards;
    (of_experts && all).then_some((prefix, known.matrices))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_matrices() {
        let of = |stack, shards| names(stack, shards).map(|(prefix, of)| (prefix, of.to_vec()));
        let llama = ("blk.7.experts".to_owned(), vec!["up_proj"]);
        assert_eq!(of("blk.7.ffn_up_exps", 1), Some(llama));
        let gate_up = ("a.mlp.experts".to_owned(), vec!["gate_proj", "up_proj"]);
        assert_eq!(of("a.mlp.experts.gate_up_proj", 2), Some(gate_up));
        assert_eq!(of("experts.w2", 1), Some(("experts".to_owned(), vec!["w2"])));
        // Gate and up without a word on their rows; a dense layer's name; another stack's.
        assert_eq!(of("a.experts.gate_up_proj", 1), None);
        assert_eq!(of("a.mlp.down_proj", 1), None);
        assert_eq!(of("a.experts.weights", 1), None);
        assert_eq!(of("ffn_up_exps", 1), None);
    }
}
