//! Where the expert layers of a checkpoint are, by the names of its layers and tensors.

use std::collections::BTreeSet;

use super::super::models::{ExpertNames, FAMILIES};
use super::super::{Checkpoint, tensor_name};

/// The names of stacks of all experts' matrices: the first product, and the second. The last row is what
/// vLLM calls its tensors, gate above up.
pub(super) const STACKS: [(&str, &str); 3] =
    [("gate_up_proj", "down_proj"), ("w13", "w2"), ("w13_weight", "w2_weight")];

/// The prefix, expert and matrix of a name `PREFIX.EXPERT.MATRIX`, with `experts` as the last part of the
/// prefix.
pub(crate) fn of_expert(name: &str) -> Option<(&str, u32, &str)> {
    let (rest, matrix) = name.rsplit_once('.')?;
    let (prefix, number) = rest.rsplit_once('.')?;
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = digits && (number == "0" || !number.starts_with('0'));
    let expert = number.parse().ok().filter(|_| canonical && is_prefix(prefix))?;
    Some((prefix, expert, matrix))
}

fn is_prefix(prefix: &str) -> bool {
    prefix == "experts" || prefix.ends_with(".experts")
}

/// The prefix and matrix of a stack of all experts, `PREFIX.MATRIX`.
fn of_stack(name: &str) -> Option<(&str, &str)> {
    let (prefix, matrix) = name.rsplit_once('.')?;
    let known = STACKS.iter().any(|(first, second)| [*first, *second].contains(&matrix));
    Some((prefix, matrix)).filter(|_| known && is_prefix(prefix))
}

/// The names of the expert layers of a checkpoint, sorted.
pub(super) fn expert_layers(checkpoint: &Checkpoint) -> BTreeSet<String> {
    let prefix = |name: &str| {
        let separate = of_expert(name).filter(|(_, _, matrix)| is_matrix(matrix));
        let separate = separate.map(|(prefix, ..)| prefix);
        separate.or_else(|| of_stack(name).map(|(prefix, _)| prefix)).map(str::to_owned)
    };
    let quantised = checkpoint.layers.iter().filter_map(|(name, _)| prefix(name));
    let float = checkpoint.tensors.names().filter(|name| !name.starts_with("ref."));
    let float = float.filter_map(|name| {
        let stack = of_stack(name).map(|(prefix, _)| prefix.to_owned());
        stack.or_else(|| prefix(name.strip_suffix(".weight")?))
    });
    quantised.chain(float).collect()
}

/// Whether a family calls a matrix of an expert so.
fn is_matrix(matrix: &str) -> bool {
    FAMILIES.iter().any(|family| matrices(&family.names).any(|known| known == matrix))
}

/// The names of an expert's matrices: the shards, then the second product.
pub(super) fn matrices(names: &ExpertNames) -> impl Iterator<Item = &'static str> {
    names.shards.iter().copied().chain([names.down])
}

/// The names of an expert's matrices: the model's, if there is one of them; else those of another
/// family, of which all are there or the most.
pub(super) fn naming<'n>(
    own: Option<&'n ExpertNames>,
    has: impl Fn(&str) -> bool,
) -> Option<&'n ExpertNames>
where
    'static: 'n,
{
    let found = |names: &ExpertNames| matrices(names).filter(|matrix| has(matrix)).count();
    if let Some(own) = own.filter(|own| found(own) > 0) {
        return Some(own);
    }
    let all = |names: &ExpertNames| matrices(names).all(&has);
    let others = FAMILIES.iter().map(|family| &family.names);
    others.max_by_key(|names| (all(names), found(names))).filter(|names| found(names) > 0)
}

/// The name of a tensor next to the experts: in the module of which `PREFIX.experts` is a part.
pub(super) fn beside(prefix: &str, name: &str) -> String {
    tensor_name(prefix.rsplit_once('.').map_or("", |(parent, _)| parent), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_experts() {
        let of = of_expert;
        assert_eq!(of("a.mlp.experts.12.w1"), Some(("a.mlp.experts", 12, "w1")));
        assert_eq!(of("experts.0.up_proj"), Some(("experts", 0, "up_proj")));
        for other in
            ["a.experts.01.w1", "a.experts.-1.w1", "a.experts.+1.w1", "layers.0.w1", "experts.w1"]
        {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(of("experts.99999999999.w1"), None);
        assert_eq!(of_stack("experts.gate_up_proj"), Some(("experts", "gate_up_proj")));
        assert_eq!(of_stack("a.experts.w13_weight"), Some(("a.experts", "w13_weight")));
        assert_eq!(of_stack("mlp.gate_up_proj"), None);
        assert_eq!(beside("a.mlp.experts", "gate.weight"), "a.mlp.gate.weight");
        assert_eq!(beside("experts", "gate.weight"), "gate.weight");
    }

    #[test]
    fn the_naming_with_the_most_matrices() {
        let of = |has: &[&str]| naming(None, |matrix| has.contains(&matrix)).map(|n| n.shards);
        assert_eq!(of(&["gate_proj", "up_proj", "down_proj"]), Some(&["gate_proj", "up_proj"][..]));
        assert_eq!(of(&["w1", "w2", "w3"]), Some(&["w1", "w3"][..]));
        assert_eq!(of(&["up_proj", "down_proj"]), Some(&["up_proj"][..]));
        assert_eq!(of(&["q_proj"]), None);
    }
}
