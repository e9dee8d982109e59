//! Files that third-party software wrote: the scheme, every weight, every product.

use std::collections::BTreeMap;

use quantloom_dsl::format::F32;
use quantloom_dsl::reference::{StaticInput, dequantise, matmul, quantise_activation, unpack};
use quantloom_dsl::{Activation, Scheme};
use quantloom_kernels::name_of;
use quantloom_runtime::checkpoint::{Checkpoint, Dtype, GptqVersion, Layer, Options, Tensors};
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::tensor::reals;
use quantloom_tests::{demo_file, golden, golden_file, packed, tensors_of, write_file};
use quantloom_tools::forward::{Input, as_called, forward};
use serde_json::{Value, json};

/// Files that are one layer, `layer`, of the catalogue's scheme of the same name.
const FILES: &str = "awq4 ct_fp8 ct_fp8_block ct_fp8_dynamic ct_mxfp4 ct_mxfp4a16 ct_mxfp4xfp8 \
    ct_mxfp6a16 ct_mxfp6a8 ct_mxfp8 ct_mxfp8a16 ct_mxint4 ct_nvfp4 ct_nvfp4a16 ct_w2a16 ct_w2a4 \
    ct_w2a8 ct_w3a16 ct_w3a16_aligned ct_w3a4 ct_w3a8 ct_w4a16 ct_w4a16_asym ct_w4a16_bias \
    ct_w4a4 ct_w4a8 ct_w4afp8 ct_w5a16 ct_w5a8 ct_w6a16 ct_w6a16_aligned ct_w6a8 ct_w7a16 \
    ct_w7a8 ct_w8a16 ct_w8a8 gpt_oss_mxfp4 gptq3 gptq3_v1 gptq4 gptq4_v1_actorder gptq8 \
    gptq8_v1_actorder modelopt_nvfp4 quark_w8a8_int8_channel quark_w8a8_int8_tensor \
    quark_w_mxfp4 quark_w_mxfp4_a_mxfp4 quark_w_mxfp6_e2m3 quark_w_mxfp6_e2m3_a_mxfp6_e2m3 \
    quark_w_mxfp6_e3m2 quark_w_mxfp6_e3m2_a_mxfp6_e3m2";

/// File, layer, and the scheme if its name differs from the file's.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    // The files do not say their version in their name; their configuration says 2.
    ("gptq3", "layer", "gptq3_v2"),
    ("gptq4", "layer", "gptq4_v2"),
    ("gptq8", "layer", "gptq8_v2"),
    // Two layers, whose biases and shards differ.
    ("gpt_oss_mxfp4", "experts.down_proj", "gpt_oss_mxfp4_down"),
    ("gpt_oss_mxfp4", "experts.gate_up_proj", "gpt_oss_mxfp4_gate_up"),
];

/// Every (file, layer, scheme).
fn layers() -> Vec<(&'static str, &'static str, &'static str)> {
    let rows = |file: &'static str| {
        let own: Vec<_> = EXCEPTIONS.iter().copied().filter(|row| row.0 == file).collect();
        if own.is_empty() { vec![(file, "layer", file)] } else { own }
    };
    FILES.split_whitespace().flat_map(rows).collect()
}

fn values(tensors: &Tensors, name: &str) -> Option<Vec<f64>> {
    reals(tensors.get(name)?)
}

/// Significand bits and smallest exponent of the type that a file's `ref.weight` was computed
/// in: compressed-tensors computes in the scale's type, bf16 where that is of 8 bits; the
/// plain programs (README.md of the folder) compute in f32.
fn computed_in(file: &str, tensors: &Tensors) -> (i32, i32) {
    let plain = ["ct_mxint4", "ct_w3a16_aligned", "ct_w6a16_aligned"].contains(&file);
    let scale = tensors.get("layer.weight_scale").map(|tensor| tensor.dtype());
    match scale.filter(|_| file.starts_with("ct_") && !plain) {
        None | Some(Dtype::F32) => (24, -126),
        Some(Dtype::F16) => (11, -14),
        Some(_) => (8, -126),
    }
}

/// Half the distance between neighbouring values of a type, at a value of it.
fn half_ulp((bits, lowest): (i32, i32), value: f64) -> f64 {
    let mut exponent = lowest;
    while value.abs() >= f64::from(exponent + 1).exp2() {
        exponent += 1;
    }
    f64::from(exponent - bits).exp2()
}

#[test]
fn every_file_is_listed() {
    let kinds = ["ct_", "gptq", "awq4", "quark_", "modelopt_nvfp4", "gpt_oss_mxfp4"];
    let mut found: Vec<String> = std::fs::read_dir(golden())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .filter(|name| kinds.iter().any(|kind| name.starts_with(kind)))
        .collect();
    found.sort();
    assert_eq!(found, FILES.split_whitespace().collect::<Vec<_>>());
    assert_eq!((found.len(), layers().len()), (52, 53));
}

/// The runtime's weight equals the reference's up to one f32 rounding, and both equal the file's up
/// to one rounding of the type that its software computed in.
#[test]
fn every_weight_is_the_files_own() {
    let mut compared = 0;
    for (file, name, scheme) in layers() {
        let checkpoint = Checkpoint::open(golden_file(file)).unwrap();
        let layer = checkpoint.layer(name).unwrap();
        assert_eq!(name_of(layer.scheme()), Some(scheme), "{file}:\n{}", layer.scheme());
        let shape = layer.shape();
        let plain = unpack(layer.scheme(), shape, &packed(layer)).unwrap();
        let exact = dequantise(layer.scheme(), &plain).unwrap();
        let ours = layer.unpack().unwrap().decode_rows(0..shape.experts * shape.n);
        // Software rounds the product of two scale levels before it multiplies the code.
        let roundings = layer.scheme().scales.len() as f64;

        let tensors = checkpoint.tensors();
        let part = name.rsplit('.').next().unwrap();
        let (stored, transposed) = match values(tensors, "ref.weight") {
            Some(stored) => (stored, false),
            None => (values(tensors, &format!("ref.{part}")).expect(file), true),
        };
        assert_eq!((ours.len(), stored.len()), (exact.len(), exact.len()), "{file}");
        let kind = computed_in(file, tensors);
        for (at, (ours, exact)) in ours.iter().zip(&exact).enumerate() {
            let (n, k) = (shape.n as usize, shape.k as usize);
            let (expert, row, column) = (at / k / n, at / k % n, at % k);
            let place = format!("{file}: {name}: w[{expert}, {row}, {column}]");
            let off = (f64::from(*ours) - exact).abs();
            assert!(off <= half_ulp((24, -126), *exact), "{place} is {ours}, not {exact}");
            let theirs =
                if transposed { stored[(expert * k + column) * n + row] } else { stored[at] };
            // One rounding to f32 in between may move a tie of the 16-bit type.
            let slack = 1.0 + f64::from(kind.0 - 24).exp2() * f64::from(u8::from(kind.0 < 24));
            let bound = half_ulp(kind, theirs) * if kind.0 < 24 { slack } else { roundings };
            assert!((exact - theirs).abs() <= bound, "{place} is {exact}, the file has {theirs}");
        }
        compared += 1;
    }
    assert_eq!(compared, 53);
}

/// The product of a layer as its software calls it.
fn product(layer: &Layer, x: &Input) -> Vec<f32> {
    let scheme = as_called(layer.scheme(), layer.format(), x.shape.len());
    forward(&CpuDevice::best(), &scheme, layer, &layer.unpack().unwrap(), 0, x).unwrap()
}

fn relative_norm(ours: &[f32], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let square = |value: f64| value * value;
    let off: f64 = ours.iter().zip(theirs).map(|(a, b)| square(f64::from(*a) - b)).sum();
    (off / theirs.iter().map(|value| square(*value)).sum::<f64>()).sqrt()
}

/// The reference's product and, for each element, the sum of the magnitudes that it adds.
fn by_reference(layer: &Layer, scheme: &Scheme, x: &Input) -> Vec<(f64, f64)> {
    let plain = unpack(scheme, layer.shape(), &packed(layer)).unwrap();
    let (k, n) = (layer.shape().k as usize, layer.shape().n as usize);
    let x = match scheme.activations.first() {
        Some(Activation::Quantised(quantiser)) => {
            let given = StaticInput::of(scheme, &plain, 0);
            quantise_activation(scheme, quantiser, &x.values, k, x.own, &given).unwrap().values()
        }
        _ => x.values.clone(),
    };
    let w = dequantise(scheme, &plain).unwrap();
    let y = matmul(scheme, &plain, 0, &x).unwrap();
    let size = |at: usize| {
        let (row, token) = (at % n, at / n);
        let pairs = x[token * k..][..k].iter().zip(&w[row * k..][..k]);
        pairs.map(|(x, w)| (x * w).abs()).sum::<f64>()
    };
    y.iter().enumerate().map(|(at, y)| (*y, size(at) + y.abs())).collect()
}

/// 0.6%, however few bits the activation has: its codes are the file's own. What remains are
/// three bf16 roundings (weight, activation, result) of 2^-8 / sqrt(3) and less each.
#[test]
fn every_product_is_the_files_own() {
    let mut compared = 0;
    for (file, name, _) in layers() {
        let checkpoint = Checkpoint::open(golden_file(file)).unwrap();
        let layer = checkpoint.layer(name).unwrap();
        let tensors = checkpoint.tensors();
        let (Some(x), Some(y)) = (tensors.get("ref.x"), values(tensors, "ref.y")) else { continue };
        if file == "gpt_oss_mxfp4" {
            continue; // its ref.y is that of the router and both products
        }
        let x = Input::of(x, layer.scheme()).unwrap();
        let ours = product(layer, &x);
        let error = relative_norm(&ours, &y);
        assert!(error <= 0.006, "{file}: {:.3}%\nagain: quantloom check {file}", error * 100.0);
        // Against the reference: 16 partial sums of K / 16 products, and the roundings of both
        // factors, of the 16 sums' own sum, and of the bias.
        let scheme = as_called(layer.scheme(), layer.format(), x.shape.len());
        let bound = (layer.shape().k as f64 / 16.0 + 12.0) * (-24f64).exp2();
        for (at, (ours, (exact, size))) in
            ours.iter().zip(by_reference(layer, &scheme, &x)).enumerate()
        {
            let off = (f64::from(*ours) - exact).abs();
            assert!(off <= bound * size, "{file}: y[{at}] is {ours}, not {exact}");
        }
        compared += 1;
    }
    assert_eq!(compared, 32);
}

/// compressed-tensors uses one activation scale for all of a two-dimensional x, and one per token
/// of a three-dimensional x.
#[test]
fn token_scales_are_taken_as_the_rank_says() {
    let files =
        ["ct_fp8_dynamic", "ct_w2a4", "ct_w3a8", "ct_w4a4", "ct_w4a8", "ct_w4afp8", "ct_w8a8"];
    for file in files {
        let checkpoint = Checkpoint::open(golden_file(file)).unwrap();
        let layer = checkpoint.layer("layer").unwrap();
        let x = Input::of(checkpoint.tensors().get("ref.x").unwrap(), layer.scheme()).unwrap();
        let [tokens, k] = x.shape[..] else { panic!("{file}: x has two dimensions") };
        let stacked = Input { shape: vec![1, tokens, k], ..x.clone() };
        let (whole, each) = (product(layer, &x), product(layer, &stacked));
        let row = |at: usize| {
            let values = x.values[at * k as usize..][..k as usize].to_vec();
            product(layer, &Input { values, shape: vec![1, k], own: x.own })
        };
        let rows: Vec<f32> = (0..tokens as usize).flat_map(row).collect();
        // One token and several are summed in other orders, which moves f32 sums of K products by
        // some K / 16 roundings; another scale of x moves codes, by parts in 2^8 and more.
        let norm =
            |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
        let difference = norm(&mut each.iter().zip(&rows).map(|(a, b)| a - b));
        assert!(
            each.len() == rows.len() && difference <= 1e-5 * norm(&mut rows.iter().copied()),
            "{file}: a row alone has the scale that it has among others"
        );
        assert_ne!(each, whole, "{file}: rows of other magnitudes have other scales");
    }
    let demo = Checkpoint::open(demo_file()).unwrap();
    let mut compared = 0;
    for (name, layer) in demo.layers() {
        let reference = |what: &str| demo.tensors().get(&format!("ref.{name}.{what}"));
        let Some(y) = reference("y_token") else { continue };
        let layer = layer.unwrap();
        let x = Input::of(reference("x").unwrap(), layer.scheme()).unwrap();
        let stacked = Input { shape: [&[1], &x.shape[..]].concat(), ..x };
        let error = relative_norm(&product(layer, &stacked), &reals(y).unwrap());
        assert!(error <= 0.006, "{name}: {:.3}%", error * 100.0);
        compared += 1;
    }
    assert_eq!(compared, 3);
}

/// A version 1 file that is read as version 2 (or vice versa) differs by one scale.
#[test]
fn the_gptq_version_can_be_overridden() {
    for (file, own, other) in [
        ("gptq3_v1", GptqVersion::V1, GptqVersion::V2),
        ("gptq4_v1_actorder", GptqVersion::V1, GptqVersion::V2),
        ("gptq8_v1_actorder", GptqVersion::V1, GptqVersion::V2),
        ("gptq4", GptqVersion::V2, GptqVersion::V1),
    ] {
        let read = |version: Option<GptqVersion>| {
            let options = Options { gptq_version: version, ..Options::default() };
            let checkpoint = Checkpoint::open_with(golden_file(file), options).unwrap();
            let layer = checkpoint.layer("layer").unwrap();
            let name = name_of(layer.scheme()).unwrap();
            let rows = layer.unpack().unwrap().decode_rows(0..layer.shape().n);
            let tensors = checkpoint.tensors();
            let scales = values(tensors, "layer.scales").unwrap();
            let index: Vec<usize> = match tensors.get("layer.g_idx") {
                None => (0..layer.shape().k as usize).map(|k| k / 128).collect(),
                Some(index) => {
                    index.bytes().chunks_exact(4).map(|word| usize::from(word[0])).collect()
                }
            };
            (name, rows, scales, index, layer.shape())
        };
        let (named, right, scales, index, shape) = read(None);
        assert_eq!(read(Some(own)).0, named, "{file}");
        let (renamed, wrong, ..) = read(Some(other));
        assert_ne!(renamed, named);
        let sign = if own == GptqVersion::V1 { 1.0 } else { -1.0 };
        for (at, (wrong, right)) in wrong.iter().zip(&right).enumerate() {
            let (n, k) = (at / shape.k as usize, at % shape.k as usize);
            let scale = scales[index[k] * shape.n as usize + n] * sign;
            // f16 scales times whole numbers: the difference is exact.
            assert_eq!(f64::from(*wrong) - f64::from(*right), scale, "{file}: w[{n}, {k}]");
        }
    }
    let wraps = Options { gptq_zero_wraps: true, ..Options::default() };
    let checkpoint = Checkpoint::open_with(golden_file("gptq3_v1"), wraps).unwrap();
    assert!(checkpoint.layer("layer").unwrap().scheme().to_string().contains("wraps"));
}

/// The type of x determines the arithmetic in which a dynamic scale is computed.
#[test]
fn the_activations_type_is_part_of_its_quantiser() {
    let checkpoint = Checkpoint::open(golden_file("ct_w8a8")).unwrap();
    let layer = checkpoint.layer("layer").unwrap();
    let x = Input::of(checkpoint.tensors().get("ref.x").unwrap(), layer.scheme()).unwrap();
    let other = Input { own: F32, ..x.clone() };
    assert_ne!(product(layer, &x), product(layer, &other));
    // f32 that merely carries bf16 values is the model's bf16.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let bytes = x.values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect();
    let shape = x.shape.iter().map(|size| *size as usize).collect();
    write_file(&path, &[("x".to_owned(), (Dtype::F32, shape, bytes))].into(), None);
    let file = Tensors::open(&path).unwrap();
    let carried = Input::of(file.get("x").unwrap(), layer.scheme()).unwrap();
    assert_eq!(product(layer, &x), product(layer, &carried));
}

/// Golden layers under other names in one file: (file, name).
fn combined(layers: &[(&str, &str)], config: &Value) -> Checkpoint {
    let mut tensors = BTreeMap::new();
    for (file, name) in layers {
        let own = tensors_of(&golden_file(file)).into_iter();
        let own = own.filter(|(tensor, _)| tensor.starts_with("layer."));
        tensors.extend(own.map(|(tensor, made)| (tensor.replacen("layer", name, 1), made)));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    write_file(file.path(), &tensors, Some(&config.to_string()));
    Checkpoint::open(file.path()).unwrap()
}

/// Each layer has a scheme, or an error (`!`) with the reason.
fn are(checkpoint: &Checkpoint, expected: &[(&str, &str)]) {
    assert_eq!(checkpoint.layers().count(), expected.len());
    for (name, scheme) in expected {
        match (checkpoint.layer(name), scheme.strip_prefix('!')) {
            (Ok(layer), None) => assert_eq!(name_of(layer.scheme()), Some(*scheme), "{name}"),
            (Err(fault), Some(said)) => {
                let fault = fault.to_string();
                assert!(fault.contains(name) && fault.contains(said), "{name}: {fault}");
            }
            (found, _) => panic!("{name}: {:?}, expected {scheme}", found.map(Layer::scheme)),
        }
    }
}

/// GPTQ's `dynamic`: the first expression that matches overrides; `-:` excludes.
#[test]
fn gptq_layers_have_rules_of_their_own() {
    let config = json!({ "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false,
        "checkpoint_format": "gptq_v2", "dynamic": {
            "-:.*\\.2\\.up": {}, "+:.*\\.up": { "bits": 8 }, ".*": {} } });
    let layers =
        [("gptq4", "m.0.down"), ("gptq8", "m.0.up"), ("gptq8", "m.1.up"), ("gptq8", "m.2.up")];
    let expected = [
        ("m.0.down", "gptq4_v2"),
        ("m.0.up", "gptq8_v2"),
        ("m.1.up", "gptq8_v2"),
        ("m.2.up", "!dynamic"),
    ];
    are(&combined(&layers, &config), &expected);
}

/// compressed-tensors' `config_groups`: by exact name before expression before class; what
/// `ignore` names is not quantised.
#[test]
fn groups_target_layers() {
    let demo = Checkpoint::open(demo_file()).unwrap();
    let expected = [
        ("model.layers.0.self_attn.q_proj", "ct_w4a16"),
        ("model.layers.0.self_attn.k_proj", "ct_w8a8"),
        ("model.layers.0.self_attn.v_proj", "ct_fp8_dynamic"),
        ("model.layers.0.self_attn.o_proj", "ct_nvfp4"),
        ("model.layers.0.mlp.gate_proj", "ct_mxfp4a16"),
        ("model.layers.0.mlp.up_proj", "ct_w4a16_asym"),
        ("model.layers.0.mlp.down_proj", "ct_w4a8"),
    ];
    are(&demo, &expected);
    let weights = |bits: u32| {
        json!({ "num_bits": bits, "type": "int", "symmetric": true, "strategy": "group",
            "group_size": 128 })
    };
    let config = |ignore: &str| {
        json!({ "quant_method": "compressed-tensors", "format": "pack-quantized",
            "ignore": [ignore], "config_groups": {
            "a": { "targets": ["Linear"], "weights": weights(4), "input_activations": null },
            "b": { "targets": ["re:.*up"], "weights": weights(8), "input_activations": null },
            "c": { "targets": ["m.1.up"], "weights": weights(4), "input_activations": null } } })
    };
    let layers = [("ct_w4a16", "m.0.down"), ("ct_w8a16", "m.0.up"), ("ct_w4a16", "m.1.up")];
    let expected = [("m.0.down", "ct_w4a16"), ("m.0.up", "ct_w8a16"), ("m.1.up", "ct_w4a16")];
    are(&combined(&layers, &config("lm_head")), &expected);
    let expected = [("m.0.down", "!ignore"), ("m.0.up", "!ignore"), ("m.1.up", "ct_w4a16")];
    are(&combined(&layers, &config("re:m\\.0\\..*")), &expected);
}

/// Groups target classes, which files do not name: embeddings are no `Linear`, and a group without weights is none of a
/// layer's, whatever the order of the groups (compressed-tensors 0.20, `utils/match.py`; `Embedding` may be quantised too).
#[test]
fn groups_target_classes() {
    let group = |class: &str, weights: Value| json!({ "targets": [class], "weights": weights, "input_activations": null });
    let weights = |bits: u32| {
        json!({ "num_bits": bits, "type": "int", "symmetric": true, "strategy": "group",
            "group_size": 128 })
    };
    let config = |groups: [(&str, Value); 3]| {
        let of = |(class, weights): (&str, Value)| (format!("of {class}"), group(class, weights));
        let groups: serde_json::Map<String, Value> = groups.map(of).into_iter().collect();
        json!({ "quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": groups })
    };
    let layers = [("ct_w8a16", "model.embed_tokens"), ("ct_w4a16", "m.0.down")];
    let expected = [("model.embed_tokens", "ct_w8a16"), ("m.0.down", "ct_w4a16")];
    // The keys of an object are sorted: `Embedding` and `AAttention` are before `Linear`.
    for attention in ["AAttention", "LlamaAttention"] {
        let groups = [("Embedding", weights(8)), (attention, Value::Null), ("Linear", weights(4))];
        are(&combined(&layers, &config(groups)), &expected);
    }
    // A head whose name is like that of an embedding is none.
    let groups = [("Embedding", weights(8)), ("AAttention", Value::Null), ("Linear", weights(4))];
    let heads = [("ct_w4a16", "m.embed_out"), ("ct_w4a16", "m.embed_proj")];
    let of_linear = [("m.embed_out", "ct_w4a16"), ("m.embed_proj", "ct_w4a16")];
    are(&combined(&heads, &config(groups)), &of_linear);
    // No group is of embeddings, and one of attention has weights.
    let groups = [("AAttention", weights(2)), ("FusedMoE", weights(8)), ("ZAttention", weights(2))];
    let layers = [("ct_w8a16", "model.embed_tokens"), ("ct_w8a16", "m.0.down")];
    let expected = [("model.embed_tokens", "ct_w8a16"), ("m.0.down", "ct_w8a16")];
    are(&combined(&layers, &config(groups)), &expected);
    let groups = [("Embedding", weights(8)), ("AAttention", weights(8)), ("Other", Value::Null)];
    let expected = [("model.embed_tokens", "ct_w8a16"), ("m.0.down", "!no group")];
    are(&combined(&layers, &config(groups)), &expected);
}
