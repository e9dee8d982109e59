//! GGUF files that llama.cpp's own package wrote and decoded: every weight to the bit, every product.

use quantloom::codegen::jit::Simulator;
use quantloom_dsl::layout::Shape;
use quantloom_runtime::checkpoint::{
    Checkpoint, CheckpointFormat, FileAccess, GgufType, GgufValue, Options,
};
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_runtime::tensor::reals;
use quantloom_tests::{Random, golden, golden_gguf};
use quantloom_tools::check::{Subject, Verdict, check};

/// Files that are one layer, `layer`, of 5 x 512, and the type of its tensor.
const FILES: &[(&str, &str)] = &[
    ("iq4_nl", "IQ4_NL"),
    ("iq4_xs", "IQ4_XS"),
    ("mxfp4", "MXFP4"),
    ("nvfp4", "NVFP4"),
    ("nvfp4_scaled", "NVFP4"),
    ("q1_0", "Q1_0"),
    ("q2_k", "Q2_K"),
    ("q3_k", "Q3_K"),
    ("q4_0", "Q4_0"),
    ("q4_0_bias", "Q4_0"),
    ("q4_1", "Q4_1"),
    ("q4_k", "Q4_K"),
    ("q5_0", "Q5_0"),
    ("q5_1", "Q5_1"),
    ("q5_k", "Q5_K"),
    ("q6_k", "Q6_K"),
    ("q8_0", "Q8_0"),
    ("tq2_0", "TQ2_0"),
];

#[test]
fn every_file_is_listed() {
    let files = std::fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path());
    let ours = files.filter(|path| path.extension().is_some_and(|ending| ending == "gguf"));
    // And that of experts.
    assert_eq!(ours.count(), FILES.len() + 1);
}

/// The package rounds each operation to f32: `d * sc`, `d * q` and `d * sc * q` of 11 and at most 13 bits are
/// exact, and so is `dmin * m`, so that it too rounds once, in the last operation.
#[test]
fn every_weight_is_the_files_own() {
    let mut compared = 0;
    for (name, kind) in FILES {
        let checkpoint = Checkpoint::open(golden_gguf(name)).unwrap();
        assert_eq!(checkpoint.format(), CheckpointFormat::Gguf);
        let tensors = checkpoint.tensors();
        assert_eq!(tensors.gguf().unwrap().tensor_type("layer.weight"), Some(*kind));
        let layer = checkpoint.layer("layer").unwrap();
        assert_eq!(layer.shape(), Shape::matrix(5, 512));
        let ours = layer.unpack().unwrap().decode_rows(0..5);
        let theirs = reals(tensors.get("ref.weight").unwrap()).unwrap();
        assert_eq!(ours.len(), theirs.len());
        for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let place = format!("{name}: w[{}, {}]", at / 512, at % 512);
            let same = ours.to_bits() == (*theirs as f32).to_bits();
            // Of zeros the sign may differ.
            assert!(same || *ours == 0.0 && *theirs == 0.0, "{place} is {ours}, not {theirs}");
        }
        compared += 1;
    }
    assert_eq!(compared, 18);
}

#[test]
fn weights_and_products_pass_the_check() {
    for (name, _) in FILES {
        let checkpoint = Checkpoint::open(golden_gguf(name)).unwrap();
        let findings = check(&checkpoint, &CpuDevice::best());
        let of = |subject| findings.iter().find(|finding| finding.subject == subject).unwrap();
        assert_eq!(findings.len(), 2, "{name}: {findings:?}");
        for subject in [Subject::Weight, Subject::Product] {
            assert_eq!(of(subject).verdict, Verdict::Pass, "{name}: {findings:?}");
        }
    }
}

/// Each file on one target, and each target: the rows of a product are folded there as on CPUs.
#[test]
fn products_on_simulated_gpus_pass_the_check() {
    for (number, (name, _)) in FILES.iter().enumerate() {
        let target = ["sm_90a", "gfx942", "wgsl"][number % 3];
        let checkpoint = Checkpoint::open(golden_gguf(name)).unwrap();
        let device = GpuDevice::new(Simulator::new(target).unwrap());
        let findings = check(&checkpoint, &device);
        let product = findings.iter().find(|finding| finding.subject == Subject::Product).unwrap();
        assert_eq!(product.verdict, Verdict::Pass, "{name} on {target}: {findings:?}");
    }
}

/// A stack of two experts, each with a scale and a bias.
#[test]
fn a_stack_of_experts() {
    let checkpoint = Checkpoint::open(golden_gguf("experts")).unwrap();
    let layer = checkpoint.layer("blk.0.ffn_down_exps").unwrap();
    assert_eq!(layer.shape(), Shape { experts: 2, n: 3, k: 512 });
    assert_eq!(
        layer.stores().map(|(name, _)| name).collect::<Vec<_>>(),
        ["bias", "scale", "weight"]
    );
    let ours = layer.unpack().unwrap().decode_rows(0..6);
    let theirs = reals(checkpoint.tensors().get("ref.weight").unwrap()).unwrap();
    assert!(ours.iter().map(|value| f64::from(*value)).eq(theirs));
}

/// The values of keys are read where they are, mapped or copied; the name of a file says nothing.
#[test]
fn values_of_keys() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::copy(golden_gguf("q4_0"), &path).unwrap();
    // The configuration of another checkpoint.
    let other = r#"{"quantization_config": {"quant_method": "gptq", "bits": 4}}"#;
    std::fs::write(folder.path().join("config.json"), other).unwrap();
    for access in [FileAccess::Mapped, FileAccess::Copied] {
        let options = Options { access, ..Options::default() };
        let checkpoint = Checkpoint::open_with(&path, options).unwrap();
        assert!(checkpoint.layer("layer").is_ok() && checkpoint.config().is_none());
        let gguf = checkpoint.tensors().gguf().unwrap();
        assert_eq!(gguf.version(), 3);
        let keys: Vec<_> = gguf.keys().collect();
        assert_eq!(keys, ["general.architecture", "general.quantization_version", "general.tags"]);
        assert_eq!(gguf.value("general.architecture"), Some(GgufValue::Text("llama")));
        assert_eq!(gguf.value("general.quantization_version"), Some(GgufValue::Unsigned(2)));
        assert_eq!(gguf.value("general.name"), None);
        let Some(GgufValue::List(tags)) = gguf.value("general.tags") else { panic!("a list") };
        assert_eq!((tags.element(), tags.len()), (GgufType::Text, 2));
        let tags: Vec<_> = tags.iter().collect();
        let last = "a text that is not ASCII: \u{3b1}";
        assert_eq!(tags, [GgufValue::Text("golden"), GgufValue::Text(last)]);
    }
}

/// No weight depends on another block's bytes.
#[test]
fn a_bit_of_a_block_changes_its_block_alone() {
    let mut random = Random(5);
    for (name, _) in FILES {
        let bytes = std::fs::read(golden_gguf(name)).unwrap();
        let decode = |bytes: Vec<u8>| {
            let checkpoint = Checkpoint::from_bytes(bytes, Options::default()).unwrap();
            let layer = checkpoint.layer("layer").unwrap();
            let block = checkpoint.tensors().get("layer.weight").unwrap().shape().to_vec();
            let stored = layer.store("weight").unwrap().to_vec();
            (layer.unpack().map(|unpacked| unpacked.decode_rows(0..5)).ok(), block, stored)
        };
        let (before, dims, stored) = decode(bytes.clone());
        let before = before.unwrap();
        let start = bytes.windows(stored.len()).position(|window| window == stored).unwrap();
        let columns = 512 / dims[1];
        for _ in 0..40 {
            let at = random.below(stored.len() as u64) as usize;
            let mut changed = bytes.clone();
            changed[start + at] ^= 1 << random.below(8);
            // A scale may have become NaN.
            let (Some(after), _, _) = decode(changed) else { continue };
            let first = at / dims[2] * columns;
            let differ = |at: usize| before[at].to_bits() != after[at].to_bits();
            assert!(
                (0..before.len()).all(|at| !differ(at) || (first..first + columns).contains(&at))
            );
        }
    }
}
