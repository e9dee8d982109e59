//! The checked-in files of `kernels-generated` are the generator's output, which is deterministic;
//! and `quantloom-catalogue` reports stale files and the command that regenerates them.

use std::path::{Path, PathBuf};
use std::process::Command;

use quantloom_codegen::catalogue::{REGENERATE, files, schemes, stale, write};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels-generated")
}

#[test]
fn the_same_schemes_give_the_same_bytes() {
    let schemes = schemes(&folder()).unwrap();
    assert!(schemes.len() > 70);
    assert_eq!(files(&schemes).unwrap(), files(&schemes).unwrap());
}

#[test]
fn the_checked_in_files_are_fresh() {
    let files = files(&schemes(&folder()).unwrap()).unwrap();
    assert_eq!(stale(&folder(), &files).unwrap(), [""; 0], "again: {REGENERATE}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quantloom-catalogue"));
    let checked = command.arg("--check").arg("--folder").arg(folder()).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

/// Every scheme has its type, every decoder its line in the list and a file of one or two screens.
#[test]
fn files_are_short_and_complete() {
    let schemes = schemes(&folder()).unwrap();
    let files = files(&schemes).unwrap();
    let text = |path: &str| &files.iter().find(|file| file.path == path).unwrap().text;
    for scheme in &schemes {
        assert!(text("src/ops.rs").contains(&format!(" = {:?}, ", scheme.name)), "{}", scheme.name);
    }
    let pages = files.iter().filter(|file| file.path.starts_with("src/decoders/"));
    for page in pages {
        let (lines, name) = (page.text.lines().count(), &page.path);
        assert!(lines <= 100, "{name} has {lines} lines");
        if !name.ends_with("mod.rs") {
            let module = Path::new(name).file_stem().unwrap().to_string_lossy().into_owned();
            assert!(text("src/decoders/mod.rs").contains(&format!("&{module}::")), "{module}");
            assert!(page.text.contains("do not edit") && page.text.contains(REGENERATE), "{name}");
        }
    }
}

/// A copy of the folder, with one file changed, one missing and one extra.
#[test]
fn stale_files_are_listed_and_regenerated() {
    let copy = tempfile::tempdir().unwrap();
    let made = files(&schemes(&folder()).unwrap()).unwrap();
    assert_eq!(write(copy.path(), &made).unwrap().len(), made.len());
    let scheme = "schemes/ct_w4a16.scheme";
    std::fs::create_dir(copy.path().join("schemes")).unwrap();
    std::fs::copy(folder().join(scheme), copy.path().join(scheme)).unwrap();
    let run = |mode: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quantloom-catalogue"));
        let ran = command.arg(mode).arg("--folder").arg(copy.path()).output().unwrap();
        (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
    };
    // One scheme is left: the types and the manifest differ.
    let (code, text) = run("--write");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("src/ops.rs") && text.contains("MANIFEST"), "{text}");
    assert_eq!(run("--check").0, Some(0));
    let changed = copy.path().join("src/decoders/u4.rs");
    let page = std::fs::read_to_string(&changed).unwrap().replace("0x0f0f_0f0f", "0x0f0f_0f0e");
    std::fs::write(&changed, page).unwrap();
    std::fs::remove_file(copy.path().join("src/decoders/e2m1.rs")).unwrap();
    std::fs::write(copy.path().join("src/decoders/u9.rs"), "").unwrap();
    let (code, text) = run("--check");
    assert_eq!(code, Some(1));
    for said in ["u4.rs", "e2m1.rs", "u9.rs", REGENERATE] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(!text.contains("u3.rs"), "{text}");
    assert_eq!((run("--write").0, run("--check").0), (Some(0), Some(0)));
    assert_eq!(run("--nothing").0, Some(2));
}
