//! Stacks of experts as a matrix for each expert, for formats whose layers are matrices; and back for GGUF.
//!
//! In: the layers of a checkpoint. Out: [`Part`]s, what is converted: a layer as it is, or one matrix of a stack under
//! the name by which readers know it, `PREFIX.experts.EXPERT.MATRIX`. Names of stacks that are not in [`STACKS`] have no
//! such names, and are refused. Matrices by the names that llama.cpp's stacks are given here become such stacks again.

use std::collections::BTreeMap;

use crate::checkpoint::{Checkpoint, CheckpointFormat, Layer, of_expert};
use crate::unpacked::{UnpackError, Unpacked, shard_of_stack, shards};

use super::{ConvertOptions, Unconvertible, scheme_of};

/// Where the values of a converted layer are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// In the layer of the same name.
    Layer,
    /// In a stack: its name, the expert, the shard.
    Stack(String, u64, u64),
    /// In the layers of all experts, in their order.
    Experts(Vec<String>),
}

impl Source {
    /// The names of the layers that have the values; `own` is that of the converted layer.
    pub(super) fn layers<'s>(&'s self, own: &'s str) -> Vec<&'s str> {
        match self {
            Self::Layer => vec![own],
            Self::Stack(name, ..) => vec![name],
            Self::Experts(names) => names.iter().map(String::as_str).collect(),
        }
    }

    /// The values, of the layers that have them.
    pub(super) fn unpack(
        &self,
        layers: &[&Layer],
        options: ConvertOptions,
    ) -> Result<Unpacked, UnpackError> {
        let missing = UnpackError::NoShard { expert: 0, shard: 0 };
        let layer = *layers.first().ok_or_else(|| missing.clone())?;
        let whole = |layer: &Layer| {
            let stored = |store: &str| layer.store(store);
            Unpacked::new(&scheme_of(layer, options), layer.shape(), &stored)
        };
        match self {
            Self::Layer => whole(layer),
            Self::Stack(_, expert, shard) => {
                let (scheme, stored) =
                    (scheme_of(layer, options), |store: &str| layer.store(store));
                shard_of_stack(&scheme, layer.shape(), &stored, (*expert, *shard))
            }
            Self::Experts(_) => {
                let experts = layers.iter().map(|layer| whole(layer)).collect::<Result<_, _>>()?;
                Unpacked::stacked(experts).ok_or(missing)
            }
        }
    }

    /// Bytes of the layers' tensors that are this one's.
    pub(super) fn bytes(&self, layers: &[&Layer]) -> u64 {
        let all: u64 = layers.iter().map(|layer| layer.bytes()).sum();
        match (self, layers.first()) {
            (Self::Stack(..), Some(stack)) => {
                all / (stack.shape().experts * shards(stack.scheme())).max(1)
            }
            _ => all,
        }
    }
}

/// What is converted: its name, and its values or why there are none.
pub(super) struct Part<'c> {
    pub(super) name: String,
    pub(super) layers: Result<(Vec<&'c Layer>, Source), Unconvertible>,
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

/// The layers of a checkpoint, by name; stacks as their matrices where the format has none, and matrices as stacks in
/// GGUF.
pub(super) fn parts(
    checkpoint: &Checkpoint,
    format: CheckpointFormat,
    options: ConvertOptions,
) -> Vec<Part<'_>> {
    let mut found = Vec::new();
    for (name, layer) in checkpoint.layers() {
        let one = |layers| Part { name: name.to_owned(), layers };
        match layer {
            Err(fault) => found.push(one(Err(Unconvertible::Layer(fault)))),
            // Its state is in several tensors, of which the reader makes those of a scheme.
            Ok(layer) if layer.format() == CheckpointFormat::BitsAndBytes => {
                found.push(one(Err(Unconvertible::From(layer.format().name()))));
            }
            Ok(layer) if layer.scheme().experts.is_none() || has_stacks(format) => {
                found.push(one(Ok((vec![layer], Source::Layer))));
            }
            Ok(layer) => match names(name, shards(layer.scheme())) {
                Some((prefix, matrices)) => {
                    let experts = 0..layer.shape().experts;
                    found.extend(experts.flat_map(|expert| {
                        (0..).zip(matrices).map({
                            let prefix = prefix.clone();
                            move |(shard, matrix)| Part {
                                name: format!("{prefix}.{expert}.{matrix}"),
                                layers: Ok((
                                    vec![layer],
                                    Source::Stack(name.to_owned(), expert, shard),
                                )),
                            }
                        })
                    }));
                }
                None => found.push(one(Err(Unconvertible::Stack))),
            },
        }
    }
    if format == CheckpointFormat::Gguf {
        found = joined(found, options);
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

/// Matrices by the names of [`STACKS`] of llama.cpp as its stacks: where all experts from 0 on are there, of one scheme
/// and shape, and nothing is said of x. Others stay as they are.
fn joined(parts: Vec<Part<'_>>, options: ConvertOptions) -> Vec<Part<'_>> {
    // By the name of the stack: the expert and the position of each matrix.
    let mut stacks: BTreeMap<String, BTreeMap<u32, usize>> = BTreeMap::new();
    for (at, part) in parts.iter().enumerate() {
        let Ok(([_], Source::Layer)) = part.layers.as_ref().map(|(of, from)| (&of[..], from))
        else {
            continue;
        };
        if let Some((stack, expert)) = of_expert(&part.name).and_then(stack_of) {
            stacks.entry(stack).or_default().insert(expert, at);
        }
    }
    let layer = |at: usize| parts[at].layers.as_ref().ok().and_then(|(layers, _)| layers.first());
    let (mut found, mut taken) = (Vec::new(), vec![false; parts.len()]);
    for (name, experts) in stacks {
        let complete = experts.keys().copied().eq(0..experts.len() as u32);
        let layers: Vec<&Layer> = experts.values().filter_map(|at| layer(*at)).copied().collect();
        let Some(first) = layers.first().filter(|_| complete) else { continue };
        let scheme = scheme_of(first, options);
        let alike = |layer: &&Layer| {
            layer.shape() == first.shape() && scheme_of(layer, options).same_meaning(&scheme)
        };
        // A stack has no room for what is said of x.
        if !layers.iter().all(alike) || scheme.quantiser().is_some() || scheme.prescale.is_some() {
            continue;
        }
        experts.values().for_each(|at| taken[*at] = true);
        let names = layers.iter().map(|layer| layer.name().to_owned()).collect();
        found.push(Part { name, layers: Ok((layers, Source::Experts(names))) });
    }
    let others = parts.into_iter().zip(taken).filter(|(_, taken)| !taken).map(|(part, _)| part);
    found.extend(others);
    found
}

/// The name of the stack of llama.cpp that a matrix of an expert is a part of, and the expert.
fn stack_of((prefix, expert, matrix): (&str, u32, &str)) -> Option<(String, u32)> {
    let known = STACKS.iter().find(|known| known.module.is_some() && known.matrices == [matrix])?;
    let parent = prefix.strip_suffix(known.module?)?.strip_suffix('.')?;
    let block = parent.strip_prefix("blk.")?;
    let numbered = !block.is_empty() && block.bytes().all(|byte| byte.is_ascii_digit());
    numbered.then(|| (format!("{parent}.{}", known.stack), expert))
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

    #[test]
    fn names_of_stacks() {
        let of = |name| of_expert(name).and_then(stack_of);
        assert_eq!(of("blk.7.experts.12.up_proj"), Some(("blk.7.ffn_up_exps".to_owned(), 12)));
        for other in [
            "blk.7.experts.12.w1",
            "blk.experts.0.up_proj",
            "blk.x.experts.0.up_proj",
            "model.layers.7.mlp.experts.0.up_proj",
            "blk.7.ffn.experts.0.up_proj",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
