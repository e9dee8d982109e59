//! GPTQModel: the keys that it writes besides those of GPTQ.

use serde_json::{Value, json};

use super::{open, refused, stored};

#[test]
fn gptqmodel_writes_the_version_as_format() {
    let (n, k) = (8, 32);
    let tensors = [
        stored("qweight", "I32", &[k / 8, n], vec![0; n * k / 2]),
        stored("qzeros", "I32", &[1, n / 8], vec![0; n / 2]),
        stored("scales", "F16", &[1, n], vec![0; 2 * n]),
    ];
    let config = |more: Value| {
        let mut config = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true,
            "desc_act": false, "lm_head": false, "pack_dtype": "int32", "method": "gptq",
            "meta": {"quantizer": ["gptqmodel:7.7.0"], "damp_percent": 0.05}});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let plus = |more: Value| {
        let file = open(&config(more), &tensors).unwrap();
        assert_eq!(file.notes().count(), 0);
        file.layer("l").map_err(|e| e.to_string()).unwrap().scheme().to_string().contains("u4 + 1")
    };
    assert!(plus(json!({})) && plus(json!({"format": "gptq"})));
    assert!(!plus(json!({"format": "gptq_v2"})) && !plus(json!({"checkpoint_format": "gptq_v2"})));
    refused(
        &config(json!({"format": "gptq", "checkpoint_format": "gptq_v2"})),
        &tensors,
        &["format"],
    );
    refused(&config(json!({"rotation": "hadamard"})), &tensors, &["rotation"]);
    refused(&config(json!({"activation": {"mode": "w4a8"}})), &tensors, &["activation"]);
    refused(&config(json!({"adapter": {"rank": 8}})), &tensors, &["adapter"]);
    let file = open(&config(json!({"flavour": "mint"})), &tensors).unwrap();
    let notes: Vec<&str> = file.notes().collect();
    assert!(notes.len() == 1 && notes[0].contains("`flavour`"), "{notes:?}");
}
