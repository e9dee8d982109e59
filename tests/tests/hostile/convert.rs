//! Files with flipped bits are converted or refused.

use quantloom_runtime::checkpoint::{Checkpoint, CheckpointFormat, Options};
use quantloom_runtime::convert::{ConversionPlan, ConvertOptions, Output};
use quantloom_tests::{Random, golden_file, golden_gguf};

#[test]
fn conversions_of_flipped_bits() {
    let folder = tempfile::tempdir().unwrap();
    let formats = [
        CheckpointFormat::CompressedTensors,
        CheckpointFormat::Gptq,
        CheckpointFormat::Awq,
        CheckpointFormat::Quark,
        CheckpointFormat::ModelOpt,
        CheckpointFormat::Fp8,
        CheckpointFormat::Gguf,
        CheckpointFormat::Quantloom,
    ];
    let safetensors =
        ["gptq4_v1_actorder", "awq4", "ct_w4a16_asym", "ct_nvfp4", "quark_w8a8_int8_channel"];
    let files =
        safetensors.map(golden_file).into_iter().chain(["q4_k", "nvfp4_scaled"].map(golden_gguf));
    let mut random = Random(3);
    let (mut written, mut refused) = (0, 0);
    for file in files {
        let whole = std::fs::read(&file).unwrap();
        for round in 0..SHARE {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(4) {
                // Headers and numbers alike.
                let end = if round % 2 == 0 { 2048.min(bytes.len()) } else { bytes.len() };
                let at = random.below(end as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            let Ok(checkpoint) = Checkpoint::from_bytes(bytes, Options::default()) else {
                continue;
            };
            let options = ConvertOptions { weights_only: random.below(2) == 0 };
            let format = formats[random.below(formats.len() as u64) as usize];
            let plan = ConversionPlan::new(&checkpoint, format, options, &|_| {});
            let path = folder.path().join("out");
            match plan.write(&Output::File(path.clone()), &|_| {}) {
                Ok(()) => {
                    written += 1;
                    std::fs::remove_file(&path).unwrap();
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().is_empty());
                    assert!(!path.exists());
                }
            }
        }
    }
    assert!(written > 5 && refused > 20, "{written} written, {refused} refused");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Files of each kind.
const SHARE: u64 = 40;
