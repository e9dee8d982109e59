//! `quantloom emit` and the plans of `quantloom show`.

use quantloom_tests::unscheduled_file;

use crate::ran::{quantloom, quantloom_with};

/// One file per kernel, complete and reproducible; the printed kernels are those in the files.
#[test]
fn a_file_per_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let texts = ["a", "b"].map(|name| {
        let out = folder.path().join(name).join("deeper");
        let arguments =
            ["emit", "ct_w4a16_asym", "--target", "x86", "--out", &out.to_string_lossy()];
        let said = quantloom(&arguments).done().out;
        let mut names: Vec<String> = std::fs::read_dir(&out)
            .unwrap()
            .map(|file| file.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["q4zg128_bf16__n16k32__x86.rs", "q4zg128_f16__n16k32__x86.rs"]);
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
        std::fs::read_to_string(out.join(&names[0])).unwrap()
    });
    assert_eq!(texts[0], texts[1]);
    let printed = quantloom(&["emit", "ct_w4a16_asym", "--target", "x86"]).done().out;
    assert_eq!(printed, texts[0]);
    assert!(printed.contains("Again: `quantloom emit ct_w4a16_asym --target x86`."), "{printed}");
    assert!(printed.contains("impl CodeDecoder for U4"), "{printed}");
}

/// A user's scheme, with a code type for which the catalogue has no decoder.
#[test]
fn a_scheme_file_is_emitted_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.scheme");
    let text = "own { weight: codebook(-1, -0.25, 0.5, 3), scale: f16 per 1x64, \
                pack: u8 [k:4 | k, n], activation: f32 }";
    std::fs::write(&path, text).unwrap();
    let path = path.to_string_lossy();
    let printed = quantloom(&["emit", &path, "--target", "portable"]).done().out;
    assert!(
        printed.contains("struct Codebook4") && printed.contains("-0.25, 0.5, 3.0"),
        "{printed}"
    );
    let shown = quantloom(&["show", &path]).done().out;
    assert!(shown.contains("planes_to_bytes -> table_f32"), "{shown}");
}

/// A rule that free choices break is said once.
#[test]
fn a_broken_rule_is_said_once() {
    let layer = "4 experts of 256 x 512, top 2, softmax renormalised, silu";
    let choices = [("QUANTLOOM_KERNEL", "use warp_group; warp_group(groups=5)")];
    let line = ["emit", "ct_w4a16", "--target", "sm_90a", "--experts", layer, "--m", "64"];
    let ran = quantloom_with(&choices, &line);
    assert_eq!(ran.code, Some(1), "{}\n{}", ran.line, ran.err);
    assert_eq!(ran.err.matches("groups must be 1 to 4").count(), 1, "{}", ran.err);
}

#[test]
fn what_cannot_be_emitted_is_said_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    for (target, said) in [
        ("msl", "there are no kernels for msl here, only for sm_80"),
        ("x68", "did you mean `x86`?"),
        ("gfx90a", "for gfx90a in this version: its int8 matrix instructions have half the K"),
        ("gfx1030", "for gfx1030 in this version: it has no matrix instructions"),
        (
            "gfx1102",
            "for gfx1102 in this version: of RDNA3, kernels are made for gfx1100 and gfx1151",
        ),
        ("gfx943", "there is no target `gfx943`; did you mean `gfx942`?"),
        // What the name begins, not sm_80, which is a letter nearer.
        ("sm90", "there is no target `sm90`; did you mean `sm_90a`?"),
        ("gfx95", "there is no target `gfx95`; did you mean `gfx950`?"),
        ("sve2", "stable Rust has no functions for its registers"),
        ("toaster", "there is no target `toaster` (the targets are portable, x86, neon, sm_80"),
    ] {
        let out = folder.path().join("none");
        let arguments = ["emit", "ct_w4a16", "--target", target, "--out", &out.to_string_lossy()];
        let ran = quantloom(&arguments);
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{}", ran.line);
        assert!(ran.err.contains(said) && ran.err.lines().count() == 1, "{}", ran.err);
        assert!(!out.exists());
    }
    let simulated = quantloom(&["verify", "ct_w4a16", "--backend", "sim:gfx90a"]);
    assert!(
        simulated.code == Some(1) && simulated.err.contains("have half the K"),
        "{}",
        simulated.err
    );
    let arguments = ["emit", "ct_w4a16", "--target", "x86", "--out", &file.to_string_lossy()];
    assert_eq!(quantloom(&arguments).code, Some(1));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    assert_eq!(quantloom(&["emit", "ct_w4a16"]).code, Some(2));
}

/// One kernel per type of x, named after its shape, with its target in the source.
#[test]
fn a_product_for_a_gpu_is_a_whole_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_string_lossy().into_owned();
    let shape = ["--shape", "512x1024", "--m", "3"];
    let targets = [
        ("sm_80", "sm80.ptx", ".target sm_80\n", ".visible .entry {name}("),
        ("sm_90a", "sm90a.ptx", ".target sm_90a\n", ".visible .entry {name}("),
        ("gfx942", "gfx942.hip", "amdgpu_waves_per_eu(", "void {name}("),
        ("gfx1201", "gfx1201.hip", "amdgpu_waves_per_eu(", "void {name}("),
    ];
    for (target, ending, of_target, entry) in targets {
        let arguments = ["emit", "awq4", "--target", target, "--out", &out];
        let said = quantloom(&[&arguments[..], &shape[..]].concat()).done().out;
        let mut files: Vec<std::path::PathBuf> = std::fs::read_dir(&out)
            .unwrap()
            .map(|file| file.unwrap().path())
            .filter(|path| path.to_string_lossy().ends_with(&format!("_n512k1024__{ending}")))
            .collect();
        files.sort();
        assert_eq!(files.len(), said.lines().count(), "{said}");
        assert!(!files.is_empty(), "{said}");
        for file in files {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(name.starts_with("q4zg128"), "{name}");
            for said in [of_target, &entry.replace("{name}", &name)] {
                assert!(text.contains(said), "`{said}` is not in {name}:\n{text}");
            }
        }
    }
    let ran = quantloom(&["emit", &unscheduled_file(folder.path()), "--target", "sm_90a"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{}", ran.line);
    assert!(
        ran.err.contains("no schedule on sm_90a handles u32 scales of activations"),
        "{}",
        ran.err
    );
}

/// Every scheme of the catalogue has a plan on each vector machine.
#[test]
fn plans_are_shown() {
    let shown = quantloom(&["show", "ct_w4a8"]).done().out;
    for said in ["dot_u8s8, u8 x i8", "u32 [k/4:2, k:4 | n:16, k/8:4, k, n]"] {
        assert_eq!(shown.matches(said).count(), 3, "{said}: {shown}");
    }
    assert!(shown.contains("each code XOR 0x8"), "{shown}");
    assert!(shown.contains("refused: msl has no kernels of its own"), "{shown}");
}
