//! Files that the command writes: their owner, what they replace, and what remains if the command
//! is interrupted; also the printing of names from files.

use std::collections::BTreeMap;
use std::path::Path;

use quantloom_tests::{Random, bf16_tensor, golden_file, write_file};

use crate::ran::{BINARY, Ran, quantloom};

fn run(arguments: &[&str]) -> Ran {
    quantloom(arguments)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// An existing file is replaced only on request, and an input never.
#[test]
fn nothing_is_replaced_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&folder.path().join(name));
    let declared =
        "S { weight: u4 - 8, scale: f16 per 1x32, pack: u8 [k:2 | k, n], activation: f16 }";
    std::fs::write(path("f.scheme"), declared).unwrap();
    std::fs::copy(golden_file("ct_w4a16"), path("q.safetensors")).unwrap();
    std::fs::hard_link(path("q.safetensors"), path("hard")).unwrap();
    std::fs::write(path("there"), "before").unwrap();
    let (scheme, file) = (path("f.scheme"), path("q.safetensors"));
    let (there, hard, new) = (path("there"), path("hard"), path("new"));
    for (line, said) in [
        (vec!["show", &scheme, "--svg", &scheme], "--svg"),
        (vec!["show", &scheme, "--svg", &scheme, "--force"], "is an input"),
        (vec!["show", &scheme, "--svg", &there], "--force replaces it"),
        (vec!["dequantize", &file, "--layer", "layer", "--out", &there], "--force replaces it"),
        (vec!["dequantize", &file, "--out", &hard, "--force"], "is an input"),
        (vec!["bench", "--json", &new, "--plot", &new], "--json and --plot name one file"),
        (vec!["bench", "--scheme", &scheme, "--plot", &scheme, "--force"], "is an input"),
        (vec!["bench", "--json", &there], "--force replaces it"),
        (vec!["attach", &file, "--scheme", &scheme, "--out", &scheme, "--force"], "is an input"),
    ] {
        let ran = run(&line);
        assert_eq!(ran.code, Some(1), "{}\n{}", ran.line, ran.err);
        assert!(
            ran.err.contains(said) && ran.err.lines().count() == 1,
            "{}\n{}",
            ran.line,
            ran.err
        );
    }
    assert_eq!(std::fs::read_to_string(&scheme).unwrap(), declared);
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "before");
    assert!(std::fs::read(&file).unwrap() == std::fs::read(golden_file("ct_w4a16")).unwrap());
    run(&["show", &scheme, "--svg", &there, "--force"]).done();
    assert!(std::fs::read_to_string(&there).unwrap().starts_with("<svg"));
    let out = path("kernels");
    let emit = ["emit", &scheme, "--target", "portable", "--out", &out];
    run(&emit).done();
    assert!(run(&emit).err.contains("--force replaces it"));
}

/// Shards that are links to files elsewhere, as a download cache keeps them.
#[cfg(unix)]
#[test]
fn a_shard_behind_a_link_is_an_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("model")).unwrap();
    std::fs::create_dir(path("blobs")).unwrap();
    std::fs::copy(golden_file("ct_w4a16"), path("blobs/0123")).unwrap();
    std::os::unix::fs::symlink("../blobs/0123", path("model/model.safetensors")).unwrap();
    for out in ["blobs/0123", "model/model.safetensors"] {
        let (model, out) = (text(&path("model")), text(&path(out)));
        let ran = run(&["dequantize", &model, "--layer", "layer", "--out", &out, "--force"]);
        assert_eq!(ran.code, Some(1), "{}", ran.line);
        assert!(ran.err.contains("is an input"), "{}", ran.err);
    }
    let (kept, original) =
        (std::fs::read(path("blobs/0123")), std::fs::read(golden_file("ct_w4a16")));
    assert!(kept.unwrap() == original.unwrap());
}

#[cfg(unix)]
#[test]
fn the_mode_follows_the_umask() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let file = text(&golden_file("ct_w4a16"));
    for (umask, mode) in [("077", 0o600), ("022", 0o644), ("002", 0o664)] {
        let out = |name: &str| folder.path().join(format!("{name}{umask}"));
        let lines = [
            (out("svg"), "show ct_w4a16 --svg".to_owned()),
            (out("weight"), format!("dequantize {file} --out")),
        ];
        for (out, line) in lines {
            let program = BINARY;
            let script = format!("umask {umask}; exec {program} {line} {}", out.display());
            let done = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert!(done.status.success(), "{script}\n{done:?}");
            let found = std::fs::metadata(&out).unwrap().permissions().mode() & 0o777;
            assert_eq!(found, mode, "{script}: {found:o}");
        }
    }
}

/// An interrupted command leaves no file, and ends by the signal.
#[cfg(unix)]
#[test]
fn an_interrupted_command_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};
    let (inputs, outputs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = inputs.path().join("float");
    let zeros = bf16_tensor(&[2048, 4096], &vec![0; 2048 * 4096]);
    write_file(&from, &BTreeMap::from([("l.weight".to_owned(), zeros)]), None);
    let ignored = ignored_signals();
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        if ignored >> (number - 1) & 1 == 1 {
            continue;
        }
        let mut child = Command::new(BINARY)
            .args(["quantize".as_ref(), from.as_os_str(), "--scheme".as_ref(), "ct_w4a16".as_ref()])
            .args(["--out".as_ref(), outputs.path().join("q").as_os_str()])
            .env("RAYON_NUM_THREADS", "1")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The file exists before the first row is quantised, which takes a while.
        while std::fs::read_dir(outputs.path()).unwrap().count() == 0 {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it wrote");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let signal = [format!("-{name}"), child.id().to_string()];
        assert!(Command::new("kill").args(signal).status().unwrap().success());
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(number), "{name}: {status}");
        let left = std::fs::read_dir(outputs.path()).unwrap().count();
        assert_eq!(left, 0, "{name} leaves files");
    }
}

/// Signals that this test and its children inherited as ignored (`nohup`, a shell's `&`).
#[cfg(unix)]
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap())
}

/// If threads cannot be started, the command prints an error.
#[cfg(target_os = "linux")]
#[test]
fn too_many_threads_are_refused() {
    let program = BINARY;
    // Large stacks: what is left when there is no room for another one is enough for what a new thread allocates.
    let limits = "ulimit -v 900000; RUST_MIN_STACK=67108864 RAYON_NUM_THREADS=3000";
    let script = format!("{limits} exec {program} schemes");
    let done = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.starts_with("quantloom: cannot start the threads"), "{said}");
    assert!(said.contains("RAYON_NUM_THREADS=1") && said.lines().count() == 1, "{said}");
}

/// A warning of the libraries is said once, however many weights it is of.
#[test]
fn a_warning_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let scheme = folder.path().join("levels.scheme");
    let clauses =
        "weight: codebook(-100, -3, 7, 90), scale: f16 per 1x32, pack: [n, k], activation: bf16";
    std::fs::write(&scheme, format!("levels {{ {clauses} }}")).unwrap();
    let ran =
        run(&["verify", &text(&scheme), "--backend", "cpu", "--shape", "48x96", "--m", "1,3"]);
    let said = ran.err;
    assert_eq!(said.matches("quantloom: warning: no decoder is generated").count(), 1, "{said}");
}

/// Names from a file are escaped on a terminal.
#[test]
fn names_do_not_command_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&folder.path().join(name));
    let name = "a\u{1b}]0;title\u{7}\u{9b}31m\u{202e}b\nc";
    let weight = bf16_tensor(&[8, 128], &Random(1).bf16(1024, 0.1));
    let tensors = BTreeMap::from([(format!("{name}.weight"), weight)]);
    write_file(folder.path().join("float").as_path(), &tensors, None);
    let (float, q) = (path("float"), path("q"));
    let quantised = run(&["quantize", &float, "--scheme", "ct_w4a16", "--out", &q]).done();
    let inspected = run(&["inspect", &q]).done();
    let json = run(&["inspect", &q, "--json"]).done();
    assert_eq!(json.json()[0]["layer"], name);
    let missing = run(&["dequantize", &q, "--layer", "none", "--out", &path("w")]);
    assert_eq!(missing.code, Some(1));
    let checked = run(&["check", &q]);
    for text in
        [&quantised.out, &inspected.out, &json.out, &missing.err, &checked.out, &checked.err]
    {
        let harmless = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
        assert!(text.chars().all(harmless), "{text:?}");
    }
    assert!(
        inspected.out.contains(r"a\u{1b}]0;title\u{7}\u{9b}31m\u{202e}b\u{a}c"),
        "{}",
        inspected.out
    );
    assert!(missing.err.contains(r"\u{1b}"), "{}", missing.err);
}

/// A codebook of many values does not make a table of thousands of columns.
#[test]
fn tables_stay_narrow() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&folder.path().join(name));
    let values: Vec<String> =
        (0..256).map(|at| format!("{}", f64::from(at) / 64.0 - 2.0)).collect();
    let scheme = format!(
        "book {{ weight: codebook({}), scale: bf16 per 1x32, pack: [k, n], activation: bf16 }}",
        values.join(", ")
    );
    std::fs::write(path("book.scheme"), scheme).unwrap();
    let weight = bf16_tensor(&[8, 128], &Random(1).bf16(1024, 0.1));
    write_file(folder.path().join("f").as_path(), &[("l.weight".to_owned(), weight)].into(), None);
    let (scheme, q) = (path("book.scheme"), path("q"));
    run(&["quantize", &path("f"), "--scheme", &scheme, "--out", &q]).done();
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let inspected = run(&["inspect", &q]).done().out;
    assert!(widest(&inspected) <= 140 && inspected.contains("codebook of 256"), "{inspected}");
    let verified =
        run(&["verify", &scheme, "--shape", "16x64", "--m", "1", "--seed", "0"]).done().out;
    assert!(widest(&verified) <= 200, "{verified}");
    for shown in [scheme.as_str(), "ct_w4a16", "gpt_oss_mxfp4_gate_up"] {
        let shown = run(&["show", shown]).done().out;
        // The scheme itself is printed as it is declared; the tables come after it.
        let tables = shown.split_once("bits per weight").unwrap().1;
        let lines: Vec<&str> = tables.lines().filter(|line| !line.starts_with("note:")).collect();
        let tables = lines.join("\n");
        assert!(widest(&tables) <= 100, "{tables}");
    }
}
