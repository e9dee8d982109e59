//! Expert layers by the names of models, for the command line.

use quantloom::dsl::experts::ExpertLayer;

/// Models and their layers, from the models' own configurations: docs/expert-layers.md has a longer list.
pub(crate) const NAMED: [(&str, &str); 7] = [
    ("mixtral_8x7b", "8 experts of 4096 x 14336, top 2, softmax renormalised, silu"),
    ("qwen3_30b", "128 experts of 2048 x 768, top 8, softmax renormalised, silu"),
    (
        "gpt_oss_20b",
        "32 experts of 2880 x 2880, top 4, softmax renormalised, swigluoai alpha 1.702 limit 7",
    ),
    (
        "gpt_oss_120b",
        "128 experts of 2880 x 2880, top 4, softmax renormalised, swigluoai alpha 1.702 limit 7",
    ),
    (
        "deepseek_v3",
        "256 experts of 7168 x 2048, top 8, sigmoid with bias in 4 of 8 groups renormalised \
         times 2.5, silu",
    ),
    (
        "kimi_k2",
        "384 experts of 7168 x 2048, top 8, sigmoid with bias renormalised times 2.827, silu",
    ),
    ("llama4_scout", "16 experts of 5120 x 8192, top 1, sigmoid, silu, weight on input"),
];

/// The layer of a model, or of a text.
pub(crate) fn named_layer(argument: &str) -> Result<ExpertLayer, String> {
    let named = NAMED.iter().find(|(name, _)| *name == argument);
    let text = named.map_or(argument, |(_, text)| text);
    text.parse().map_err(|error| {
        let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        format!("{error}; layers with names are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_layer() {
        for (name, text) in NAMED {
            let layer = named_layer(name).unwrap();
            assert_eq!(layer.to_string(), text, "{name}");
            assert_eq!(named_layer(text), Ok(layer));
        }
        let error = named_layer("qwen4").unwrap_err();
        assert!(error.contains("qwen3_30b") && error.contains("llama4_scout"), "{error}");
    }
}
