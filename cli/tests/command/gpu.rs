//! The commands with GPU kernels, run by the simulator: output, files and errors.

use std::collections::BTreeMap;

use quantloom::codegen::jit::TileTable as _;
use quantloom::codegen::schedule::{Measured, measured_rows};
use quantloom::dsl::format::BF16;
use quantloom::prelude::*;
use quantloom::runtime::gpu::TuneOptions;
use quantloom::runtime::image_cache::ImageCache;
use quantloom::tiles::{self, DeviceTiles};
use quantloom_tests::file::split;
use quantloom_tests::{Random, bf16_tensor, golden_file, tensors_of, unscheduled_file, write_file};

use crate::ran::{Ran, quantloom, quantloom_with};

fn run(line: &str) -> Ran {
    quantloom(&line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn sim_prints_what_a_kernel_costs_and_compares() {
    for (line, kernels) in [
        ("ct_w4a16 --target sm_90a --shape 320x2880 --m 3", 2),
        ("ct_w4a16_asym --target sm_80 --shape 64x512 --m 16 --seed 4", 2),
        ("awq4 --target sm_89 --shape 72x648 --m 1 --seed 2", 1),
        ("ct_w4a16 --target sm_90a --shape 16x128 --m 17", 2),
        ("ct_mxint4 --target sm_90a --shape 48x256 --m 3", 2),
    ] {
        let ran = run(&format!("sim {line}")).done();
        assert!(ran.out.matches("kernel q4").count() >= kernels, "{}\n{}", ran.line, ran.out);
        for part in
            ["warp instructions: ", "bank conflicts", "32-byte sectors", "within their bounds"]
        {
            assert!(ran.out.contains(part), "{}: no `{part}` in\n{}", ran.line, ran.out);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let ran = run(&format!("sim {} --target sm_90a", unscheduled_file(folder.path())));
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.err.contains("is not scheduled: no schedule on sm_90a"), "{}", ran.err);
    let tuned = "sim ct_w4a16 --target sm_90a --shape 64x1024 --tile warps=2,splits=2";
    let ran = run(tuned).done();
    assert!(ran.out.contains("w2b") && ran.out.contains("blocks of 2 warps"), "{}", ran.out);
    let ran = run("sim ct_w4a16 --target sm_90a --shape 64x1024 --tile wraps=2");
    assert!(ran.err.contains("has no free choice `wraps`; it has"), "{}", ran.err);
    for (line, code, said) in [
        ("sim ct_w4a16 --target sm_90a --tile warps", 2, "NAME=VALUE"),
        (
            "sim ct_w4a16 --target sm_91",
            1,
            "only for sm_80, sm_89, sm_90a, sm_100a, sm_103a, sm_120",
        ),
        ("sim ct_w4a16", 2, "--target"),
        ("sim ct_w4a16 --target sm_90a --m 0", 2, "--m"),
        ("bench --backend sim:sm_90a", 1, "has no time"),
        ("bench --backend sim:sm_90a --plot x.svg", 1, "add `--backend cpu`"),
        ("bench --backend cpu --experts qwen3_30b --launches", 1, "add `--backend cuda`"),
        ("bench --launches", 2, "--experts <LAYER>"),
        ("bench --backend cpu --sustained", 1, "add `--backend cuda`"),
        ("bench --backend cpu --experts qwen3_30b --sustained", 1, "add `--backend cuda`"),
        ("bench --sustained --transforms", 2, "--transforms"),
    ] {
        let ran = run(line);
        assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{line}\n{}", ran.err);
        assert!(ran.err.contains(said), "{line}\n{}", ran.err);
    }
}

/// `--accuracy exact` is heard by what emits, compares and multiplies, whatever the scheme says.
#[test]
fn exact_weights_are_asked_for() {
    let emitted = |options: &str| {
        let line = format!("emit {options} --target sm_90a --shape 1024x1024 --m 64");
        run(&line).done().out
    };
    // The label of a tile that scales sums has an x.
    let exact = |text: &str| text.contains("q4g128_bf16__warp_group_m32g1r1s10b4k2xp");
    assert!(!exact(&emitted("ct_w4a16")) && exact(&emitted("ct_w4a16 --accuracy exact")));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.scheme");
    let text = quantloom::kernels::scheme("ct_w4a16").unwrap().to_string();
    std::fs::write(&path, text.replace("activation:", "accuracy: exact, activation:")).unwrap();
    let path = path.display();
    assert!(exact(&emitted(&path.to_string())));
    assert!(!exact(&emitted(&format!("{path} --accuracy fast"))));

    let line = "verify ct_w4a16 --backend sim:sm_90a --shape 64x256 --m 17 --seed 0";
    for options in ["", " --accuracy exact", " --experts 2x1 --gate silu --accuracy exact"] {
        let ran = run(&format!("{line}{options}")).done();
        assert!(ran.out.contains(", 0 failed"), "{}\n{}", ran.line, ran.out);
    }
}

/// The table has one line for products of either accuracy: `tune` says so before it looks for a GPU.
#[test]
fn the_table_has_no_lines_of_exact_products() {
    let folder = tempfile::tempdir().unwrap();
    let (own, table) = (folder.path().join("own.scheme"), folder.path().join("table.txt"));
    let text = quantloom::kernels::scheme("ct_w4a16").unwrap().to_string();
    std::fs::write(&own, text.replace("activation:", "accuracy: exact, activation:")).unwrap();
    std::fs::write(&table, "").unwrap();
    for option in [format!("--write {}", table.display()), "--keep".to_owned()] {
        let ran = run(&format!("tune --scheme {} --m 64 {option}", own.display()));
        let refused =
            ran.code != Some(0) && ran.err.contains("a table of tiles has no lines of exact");
        assert!(refused, "{}", ran.err);
    }
    assert_eq!(std::fs::read_to_string(&table).unwrap(), "");
}

/// Tiles that were measured on a device are read from the cache, by the name of the device; lines of another version are not.
#[test]
fn measured_tiles_are_in_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = ImageCache::in_directory(folder.path(), 0);
    let path = tiles::path_in(&cache, "NVIDIA H100 80GB HBM3").unwrap();
    assert_eq!(path, folder.path().join("tiles/nvidia_h100_80gb_hbm3.txt"));
    assert!(tiles::read_file(&path).is_empty());
    let own = &measured_rows()[0];
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let text = format!("# a note\nsm_90a q4 1 2 3 skinny weird=1\n{own}\n");
    std::fs::write(&path, text).unwrap();
    assert_eq!(tiles::read_file(&path), std::slice::from_ref(own));
    assert_eq!(tiles::path_in(&ImageCache::off(), "NVIDIA H100"), None);
}

/// What one program keeps, another reads, beside what a third kept meanwhile; a tile is replaced by a later one of its case.
#[test]
fn kept_tiles_are_those_of_later_programs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiles/gpu.txt");
    let [one, other, third] = [0, 1, 2].map(|row| measured_rows()[row].clone());
    let open = || DeviceTiles::new(Some(path.clone()), false);
    let (first, second) = (open(), open());
    first.keep(one.clone()).unwrap();
    second.keep(other.clone()).unwrap();
    assert_eq!(first.fastest(&one.case), Some(one.chosen));
    assert_eq!(first.fastest(&other.case), None);
    let later = open();
    assert_eq!(later.fastest(&one.case), Some(one.chosen));
    assert_eq!(later.fastest(&other.case), Some(other.chosen));
    assert_ne!(one.chosen, third.chosen);
    let replaced = Measured { case: one.case.clone(), chosen: third.chosen };
    later.keep(replaced.clone()).unwrap();
    assert_eq!(later.fastest(&one.case), Some(third.chosen));
    assert_eq!(tiles::read_file(&path), [replaced, other]);
    // Without a cache they last as long as the device; a file that cannot be written says so.
    let without = DeviceTiles::new(None, true);
    without.keep(one.clone()).unwrap();
    assert_eq!(without.fastest(&one.case), Some(one.chosen));
    assert!(without.tunes_at_first_use() && !first.tunes_at_first_use());
    let wrong = DeviceTiles::new(Some(path.join("below/a/file.txt")), false);
    let error = wrong.keep(one.clone()).unwrap_err().to_string();
    assert!(error.starts_with("cannot write ") && error.contains("file.txt"), "{error}");
    assert_eq!(wrong.fastest(&one.case), Some(one.chosen));
}

/// A device that times nothing says so.
#[test]
fn nothing_is_tuned_where_nothing_times() {
    let checkpoint = Checkpoint::open(golden_file("ct_w4a16")).unwrap();
    let (_, layer) = checkpoint.layers().next().unwrap();
    for name in ["cpu", "sim:sm_90a"] {
        let device = Device::named(name).unwrap();
        let layer = layer.as_ref().unwrap().prepare(&device).unwrap();
        let error = device.tune(&layer, BF16, &[1], &TuneOptions::default()).unwrap_err();
        let said = "times no calls, so that nothing can be tuned on it";
        assert!(error.to_string().contains(said), "{name}: {error}");
    }
}

#[test]
fn tune_measures_schemes_or_models() {
    for (line, said) in [
        ("tune", "name a MODEL, or a scheme by --scheme"),
        ("tune model --scheme ct_w4a16", "cannot be used with"),
        ("tune model --shape 64x64", "cannot be used with"),
        ("tune model --experts qwen3_30b", "cannot be used with"),
        ("tune --experts qwen3_30b", "name a MODEL, or a scheme by --scheme"),
        ("tune --experts qwen3_30b --scheme ct_w4a16 --shape 64x64", "cannot be used with"),
        ("tune --experts nonsense --scheme ct_w4a16", "layers with names are"),
        ("tune absent.safetensors", "absent.safetensors"),
    ] {
        let ran = run(line);
        assert!(ran.code != Some(0) && ran.err.contains(said), "{line}: {}", ran.err);
    }
    let floats = golden_file("moe_qwen3");
    let ran = run(&format!("tune {}", floats.display()));
    assert!(ran.err.contains("to measure; experts: its experts are not quantised"), "{}", ran.err);
    // Experts are measured as a layer, where there is a GPU.
    let experts = golden_file("moe_ct_nvfp4");
    for line in [
        format!("tune {}", experts.display()),
        "tune --experts qwen3_30b --scheme ct_w4a16".to_owned(),
    ] {
        let ran = run(&format!("{line} --backend cpu"));
        assert!(ran.err.contains("measures kernels of an NVIDIA GPU"), "{line}: {}", ran.err);
    }
}

#[test]
fn the_environment_overrides_free_choices() {
    let with = |value: &str, line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        quantloom_with(&[("QUANTLOOM_KERNEL", value)], &words)
    };
    let line = "sim ct_w4a16 --target sm_90a --shape 64x1024 --m 3";
    let overridden = |ran: &Ran| ran.out.contains("blocks of 2 warps");
    assert!(!overridden(&run(line).done()));
    assert!(overridden(&with("skinny(warps=2, splits=2); tile(rows=64)", line).done()));
    assert!(!overridden(&with("tile(warps=2)", line).done()), "of another schedule");
    for (value, said) in [
        ("skinny(warps", "\"skinny(warps\" is neither SCHEDULE(NAME=VALUE, ...)"),
        (
            "decode(warps=2)",
            "there is no schedule \"decode\", only tensor_memory, skinny, warp_group, tile, shader",
        ),
        ("skinny(warps=99)", "warps must be 1 to 32"),
        ("skinny(wraps=2)", "has no free choice `wraps`; it has"),
    ] {
        let ran = with(value, line);
        assert_eq!(ran.code, Some(1), "{value}\n{}", ran.err);
        assert!(ran.err.contains("the environment variable QUANTLOOM_KERNEL: "), "{}", ran.err);
        assert!(ran.err.contains(said), "{value}\n{}", ran.err);
    }
    let verify = "verify ct_w4a16 --backend sim:sm_90a --shape 41x200 --m 1 --seed 0";
    with("skinny(row_tiles=2)", verify).done();
}

#[test]
fn verify_tells_a_pass_from_what_is_not_scheduled() {
    let folder = tempfile::tempdir().unwrap();
    let unscheduled = unscheduled_file(folder.path());
    let verify = |schemes: &str| {
        run(&format!("verify {schemes} --backend sim:sm_90a --shape 41x200 --m 1,3 --seed 0"))
    };
    let ran = verify(&format!("ct_w4a16 {unscheduled}")).done();
    assert!(ran.out.contains("1 passed, 0 failed, 1 not scheduled"), "{}", ran.out);
    assert!(ran.out.contains("not scheduled: no schedule on sm_90a"), "{}", ran.out);
    assert!(ran.out.contains("sm_90a, "), "{}", ran.out);
    let ran = verify(&unscheduled);
    assert_eq!(ran.code, Some(1), "nothing compared is no success: {}", ran.out);
}

#[test]
fn check_does_not_count_what_it_did_not_compare() {
    let files = ["ct_w4a16", "ct_w4a16_asym", "gptq4_v1_actorder", "ct_fp8"];
    let mut arguments = vec!["check".into(), "--backend".into(), "sim:sm_89".into()];
    arguments.extend(files.map(|file| golden_file(file).into_os_string()));
    // An expert whose gate takes x with half the scale of up; the reference has one scale.
    let folder = tempfile::tempdir().unwrap();
    let experts = folder.path().join("experts.safetensors");
    let mut bytes = std::fs::read(golden_file("moe_quark_int8")).unwrap();
    let (header, body) = split(&bytes);
    let scale = &header["model.layers.0.mlp.experts.0.gate_proj.input_scale"];
    let place = scale["data_offsets"][0].as_u64().unwrap() as usize;
    let (start, value) = (bytes.len() - body.len() + place, &body[place..place + 4]);
    let half = f32::from_le_bytes(value.try_into().unwrap()) / 2.0;
    bytes[start..start + 4].copy_from_slice(&half.to_le_bytes());
    std::fs::write(&experts, bytes).unwrap();
    arguments.push(experts.into_os_string());
    let ran = quantloom(&arguments);
    assert!(ran.out.contains("9 passed, 0 failed, 1 not checked"), "{}", ran.out);
    assert!(ran.out.contains("gate and up take x with different static scales"), "{}", ran.out);
    assert_eq!(ran.code, Some(1), "what is not checked is no success: {}", ran.err);
    assert!(ran.err.contains("1 not checked; --allow-unchecked accepts that"), "{}", ran.err);
    arguments.push("--allow-unchecked".into());
    assert_eq!(quantloom(&arguments).done().err, "");
}

#[test]
fn run_writes_the_cpus_result_but_for_its_rounding() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let x = Random(11).bf16(3 * 256, 1.0);
    let tensors = BTreeMap::from([("x".to_owned(), bf16_tensor(&[3, 256], &x))]);
    write_file(folder.path().join("x").as_path(), &tensors, None);
    let layer = golden_file("ct_w4a16").to_string_lossy().into_owned();
    let y = |backend: &str, out: &str| {
        let (input, out) = (path("x") + ":x", path(out));
        let line = ["run", &layer, "--layer", "layer", "--input", &input, "--out", &out];
        let ran = quantloom(&[&line[..], &["--backend", backend, "--explain"]].concat()).done();
        assert!(ran.out.contains(&format!(", {backend}")), "{}", ran.out);
        let chosen = match backend {
            "portable" => "u4 decode, f32 fma is chosen",
            _ => "transformed on the device",
        };
        assert!(ran.err.contains(chosen), "{}", ran.err);
        let tensors = tensors_of(out.as_ref());
        let (_, shape, bytes) = &tensors["y"];
        assert_eq!(shape[0], 3);
        let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
        bytes.chunks(4).map(value).collect::<Vec<f32>>()
    };
    let (cpu, gpu) = (y("portable", "cpu"), y("sim:sm_90a", "gpu"));
    let largest = cpu.iter().fold(0.0f32, |largest, y| largest.max(y.abs()));
    assert!(largest > 0.0 && cpu.len() == gpu.len());
    for (cpu, gpu) in cpu.iter().zip(&gpu) {
        // One rounding to bf16, and sums in another order.
        let bound = cpu.abs() / 256.0 + largest * 1e-4;
        assert!((cpu - gpu).abs() <= bound, "{cpu} on the CPU, {gpu} on the simulator");
    }
    assert_ne!(cpu, gpu, "the GPU's result is rounded to bf16");
}
