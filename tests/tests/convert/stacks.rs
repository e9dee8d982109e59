//! Stacks of experts, which formats whose layers are matrices have as a matrix for each expert.

use std::collections::BTreeMap;
use std::path::Path;

use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::parse;
use quantloom_dsl::reference::{PlainCodes, pack};
use quantloom_runtime::checkpoint::{Checkpoint, CheckpointFormat, Layer, attached};
use quantloom_runtime::convert::{ConversionPlan, ConvertOptions, Output};
use quantloom_tests::{golden_file, write_file};

use super::{convert, out, path_of, weights};
use CheckpointFormat::{Awq, CompressedTensors, Fp8, Gguf, Gptq, ModelOpt, Quark};

/// Every expert's matrices, as reals with their biases.
fn experts(path: &Path, layer: &str) -> Vec<String> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let layer = checkpoint.expert_layer(layer).unwrap();
    let of = |expert| format!("{:?}", layer.expert_weights(expert).unwrap());
    (0..layer.sizes().experts).map(of).collect()
}

/// gpt-oss: rows of gate and up alternate, each matrix has a bias.
#[test]
fn alternating_rows_become_gate_and_up() {
    let folder = tempfile::tempdir().unwrap();
    let from = golden_file("gpt_oss_mxfp4");
    let expected = experts(&from, "experts");
    assert!(expected[0] != expected[1]);
    for (format, way) in [(CompressedTensors, "MXFP4"), (Quark, "MX fp4"), (ModelOpt, "NVFP4")] {
        let to = out(folder.path(), "to", format);
        assert_eq!(convert(&from, &to, format, ConvertOptions::default()).as_deref(), Ok(way));
        let read = Checkpoint::open(&to).unwrap();
        assert_eq!(read.format(), format);
        let names: Vec<&str> = read.layers().map(|(name, _)| name).collect();
        let of = |expert: u32| {
            ["down_proj", "gate_proj", "up_proj"].map(|matrix| format!("experts.{expert}.{matrix}"))
        };
        assert_eq!(names, (0..4).flat_map(of).collect::<Vec<_>>());
        assert!(experts(&to, "experts") == expected, "{format:?}");
        // The router is copied.
        assert!(read.tensors().get("router.bias").is_some());
        std::fs::remove_file(&to).unwrap();
    }
}

/// A file with stacks of GGUF's Q4_0 by the names of llama.cpp, in our own format.
fn of_llama_cpp(path: &Path, name: &str) {
    let text = "GgufQ4_0 { weight: u4 - 8, scale: f16 per 1x32,
        pack: for [k, n, e] { scale, u8 [k/16:2 | k:16] }, activation: bf16 | f16 | f32, experts: single }";
    let scheme = parse(text).unwrap();
    let (mut tensors, mut layers) = (BTreeMap::new(), Vec::new());
    for (seed, (matrix, n, k)) in (1..).zip([("gate", 96, 64), ("up", 96, 64), ("down", 64, 96)]) {
        let shape = Shape { experts: 3, n, k };
        let count = (3 * n * k) as u32;
        // Other ones for each expert.
        let codes = (0..count).map(|at| (at + seed).wrapping_mul(2_654_435_769) >> 28).collect();
        // Powers of two, and numbers between.
        let scales = (0..count / 32).map(|at| 0x2800 + (at * 97 + seed) % 0x800).collect();
        let components = [(Component::Code, codes), (Component::Scale(0), scales)];
        let plain = PlainCodes { shape, components: components.into() };
        let stored = pack(&scheme, &plain).unwrap();
        let of = |store: &str| stored.get(store).cloned();
        let layer = Layer::from_bytes("a", &scheme, shape, of).unwrap();
        let layer_name = name.replace('*', matrix);
        for (store, bytes) in layer.stores() {
            let dims = scheme.stores.iter().find(|known| known.name == store).unwrap();
            let dims = scheme.bind(dims, shape).unwrap().dims().to_vec();
            let dims = dims.into_iter().map(|size| size as usize).collect();
            let made = (safetensors::Dtype::U8, dims, bytes.to_vec());
            tensors.insert(format!("{layer_name}.{store}"), made);
        }
        layers.push((layer_name, shape));
    }
    let attaching: Vec<_> =
        layers.iter().map(|(name, shape)| (name.as_str(), &scheme, *shape)).collect();
    write_file(path, &tensors, Some(&attached(&attaching)));
}

/// Every tensor's dimensions and bytes.
fn tensors(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let read = Checkpoint::open(path).unwrap();
    let of = |name: &str| {
        let tensor = read.tensors().get(name).unwrap();
        (name.to_owned(), (tensor.shape().to_vec(), tensor.bytes().to_vec()))
    };
    read.tensors().names().map(of).collect()
}

/// llama.cpp's stacks become the experts of one layer.
#[test]
fn stacks_of_llama_cpp_become_matrices() {
    let folder = tempfile::tempdir().unwrap();
    let (own, gguf) = (folder.path().join("own.safetensors"), folder.path().join("from.gguf"));
    of_llama_cpp(&own, "blk.2.ffn_*_exps");
    assert_eq!(convert(&own, &gguf, Gguf, ConvertOptions::default()).as_deref(), Ok("Q4_0"));
    let source = Checkpoint::open(&gguf).unwrap();
    for (format, way) in
        [(CompressedTensors, "4 bits, f16"), (Gptq, "4 bits, f16"), (Quark, "int4, f16")]
    {
        let to = out(folder.path(), "to", format);
        assert_eq!(convert(&gguf, &to, format, ConvertOptions::default()).as_deref(), Ok(way));
        let read = Checkpoint::open(&to).unwrap();
        assert_eq!(read.layers().count(), 9);
        for (matrix, parts) in [("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj")] {
            let stack = weights(source.layer(&format!("blk.2.ffn_{matrix}_exps")).unwrap());
            for (expert, expected) in stack.chunks(stack.len() / 3).enumerate() {
                let name = format!("blk.2.experts.{expert}.{parts}");
                assert_eq!(weights(read.layer(&name).unwrap()), expected, "{name}");
            }
        }
        // The way back: the same stacks, since their names say where they were.
        let back = folder.path().join("back.gguf");
        assert_eq!(convert(&to, &back, Gguf, ConvertOptions::default()).as_deref(), Ok("Q4_0"));
        assert!(tensors(&back) == tensors(&gguf), "{format:?}");
        // Who reads expert layers finds it, with its sizes.
        let sizes = read.expert_layer("blk.2.experts").unwrap().sizes();
        assert_eq!((sizes.experts, sizes.hidden, sizes.intermediate, sizes.shards), (3, 64, 96, 2));
        std::fs::remove_file(&to).unwrap();
    }
    // Stacks stay stacks where there are some.
    let again = folder.path().join("again.gguf");
    convert(&gguf, &again, Gguf, ConvertOptions::default()).unwrap();
    assert!(std::fs::read(&again).unwrap() == std::fs::read(&gguf).unwrap());
}

/// Experts with biases, with zero points, of another scheme, or not all of them: what is alike becomes a stack.
#[test]
fn matrices_become_stacks_where_they_are_alike() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from.safetensors"), folder.path().join("to.gguf"));
    // Of golden files with one layer each: the layer's tensors as those of experts.
    let made = |files: &[(&str, &str)]| {
        let (mut tensors, mut layers) = (BTreeMap::new(), Vec::new());
        for (file, name) in files {
            let checkpoint = Checkpoint::open(path_of(file)).unwrap();
            let layer = checkpoint.layer("layer").unwrap();
            layers.push((*name, layer.scheme().clone(), layer.shape()));
            for (tensor, made) in quantloom_tests::tensors_of(&golden_file(file)) {
                let stored = |store: &&str| layer.store(store).is_some();
                if let Some(tensor) = tensor.strip_prefix("layer.").filter(stored) {
                    tensors.insert(format!("{name}.{tensor}"), made);
                }
            }
        }
        let attaching: Vec<_> =
            layers.iter().map(|(name, of, shape)| (*name, of, *shape)).collect();
        write_file(&from, &tensors, Some(&attached(&attaching)));
    };
    let names = |path: &Path| -> Vec<(String, u64)> {
        let read = Checkpoint::open(path).unwrap();
        let of = |(name, layer): (&str, Result<&Layer, _>)| {
            (name.to_owned(), Result::ok(layer).unwrap().shape().experts)
        };
        read.layers().map(of).collect()
    };
    let biased = "ct_w4a16_bias";
    made(&[(biased, "blk.0.experts.0.up_proj"), (biased, "blk.0.experts.1.up_proj")]);
    convert(&from, &to, Gguf, ConvertOptions::default()).unwrap();
    assert_eq!(names(&to), [("blk.0.ffn_up_exps".to_owned(), 2)]);
    let (stack, one) =
        (Checkpoint::open(&to).unwrap(), Checkpoint::open(golden_file(biased)).unwrap());
    let (stack, one) = (stack.layer("blk.0.ffn_up_exps").unwrap(), one.layer("layer").unwrap());
    assert_eq!(weights(stack), weights(one).repeat(2));
    let bias = |layer: &Layer| layer.unpack().unwrap().bias().unwrap().to_vec();
    assert_eq!(bias(stack), bias(one).repeat(2));

    made(&[("awq4", "blk.0.experts.0.up_proj"), ("awq4", "blk.0.experts.1.up_proj")]);
    convert(&from, &to, Gguf, ConvertOptions::default()).unwrap();
    assert_eq!(names(&to), [("blk.0.ffn_up_exps".to_owned(), 2)]);
    let (stack, one) =
        (Checkpoint::open(&to).unwrap(), Checkpoint::open(golden_file("awq4")).unwrap());
    let stack = weights(stack.layer("blk.0.ffn_up_exps").unwrap());
    assert_eq!(stack, weights(one.layer("layer").unwrap()).repeat(2));

    // One with zero points and one without; the first is not there; names of no stack.
    for [first, second] in [
        [("awq4", "blk.0.experts.0.up_proj"), (biased, "blk.0.experts.1.up_proj")],
        [(biased, "blk.0.experts.1.up_proj"), (biased, "blk.0.experts.2.up_proj")],
        [(biased, "a.experts.0.up_proj"), (biased, "a.experts.1.up_proj")],
    ] {
        made(&[first, second]);
        convert(&from, &to, Gguf, ConvertOptions::default()).unwrap();
        assert_eq!(names(&to), [(first.1.to_owned(), 1), (second.1.to_owned(), 1)]);
    }
}

/// A format that does not hold the values says so of each matrix; a stack by another name is refused whole.
#[test]
fn what_is_refused_of_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to.safetensors");
    let own = folder.path().join("own.safetensors");
    let options = ConvertOptions::default();
    let why = convert(&golden_file("gpt_oss_mxfp4"), &to, Gptq, options).unwrap_err();
    assert_eq!(why.matches("GPTQ stores integers").count(), 12, "{why}");
    of_llama_cpp(&own, "blk.2.ffn_*_experts");
    for format in [CompressedTensors, Gptq, Awq, Quark, ModelOpt, Fp8] {
        let why = convert(&own, &to, format, options).unwrap_err();
        assert_eq!(why.matches("no names of its matrices are known").count(), 3, "{why}");
    }
    // Nothing is known of the rows of one matrix for gate and up.
    of_llama_cpp(&own, "a.experts.*_up_proj");
    let why = convert(&own, &to, CompressedTensors, options).unwrap_err();
    assert_eq!(why.matches("it is a stack of experts").count(), 3, "{why}");
}

/// Two stacks' matrices, or those of a stack and a matrix beside it, may have one name: nothing is written.
#[test]
fn names_do_not_collide() {
    let folder = tempfile::tempdir().unwrap();
    let (own, to) = (folder.path().join("own.safetensors"), folder.path().join("to.safetensors"));
    of_llama_cpp(&own, "experts.ffn_*_exps");
    let mut tensors = quantloom_tests::tensors_of(&own);
    let taken = "experts.experts.1.up_proj.weight_packed";
    tensors.insert(taken.to_owned(), quantloom_tests::f32_tensor(&[1], &[1.0]));
    let config = Checkpoint::open(&own).unwrap().config().unwrap().value.clone();
    write_file(&own, &tensors, Some(&serde_json::Value::Object(config).to_string()));
    let checkpoint = Checkpoint::open(&own).unwrap();
    let plan =
        ConversionPlan::new(&checkpoint, CompressedTensors, ConvertOptions::default(), &|_| {});
    assert!(plan.write(&Output::File(to.clone()), &|_| {}).is_err());
    let (_, refused) = plan.copied();
    assert_eq!(refused[0].0, taken);
    assert!(!to.exists());
}
