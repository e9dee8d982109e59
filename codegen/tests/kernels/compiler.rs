//! The compiler of HIP sources: from `CLANG` or from the path, if it supports AMD GPUs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The result of a compilation: the compiler's output, and the numbers in the code object's notes.
#[derive(Debug, Default)]
pub struct Compiled {
    pub ok: bool,
    /// All it printed.
    pub report: String,
    /// Registers a lane, those for sums (`agpr`) included.
    pub vgprs: u32,
    /// Registers a lane that only matrix instructions and moves reach.
    pub agprs: u32,
    /// Registers a warp.
    pub sgprs: u32,
    /// Registers a lane or a warp that did not fit.
    pub spills: u32,
    /// Bytes of local memory a thread.
    pub scratch: u32,
    /// Bytes of shared memory.
    pub shared: u32,
}

impl Compiled {
    /// No spill, no local memory, no warning.
    pub fn is_clean(&self) -> bool {
        self.ok && self.spills == 0 && self.scratch == 0 && self.report.is_empty()
    }
}

fn knows_amd(path: &PathBuf) -> bool {
    let output = Command::new(path).arg("--print-targets").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("amdgcn"))
}

/// The compiler, if there is one.
pub fn find() -> Option<PathBuf> {
    let named = std::env::var_os("CLANG").map(PathBuf::from);
    let names = ["clang-22", "clang"].map(PathBuf::from);
    named.into_iter().chain(names).find(knows_amd)
}

fn device(clang: &Path, target: &str) -> Command {
    let mut command = Command::new(clang);
    command.args(["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output"]);
    command.args(["-nogpulib", "-nogpuinc", "-O3", &format!("--offload-arch={target}")]);
    // A kernel may leave parts of a wide load unused.
    command.args(["-Wall", "-Wno-unused-but-set-variable"]);
    command
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Compiles a source for a target, and reads the code object's notes on its kernel.
pub fn compile(clang: &Path, text: &str, target: &str) -> Compiled {
    let folder = tempfile::tempdir().unwrap();
    let (source, object) = (folder.path().join("k.hip"), folder.path().join("k.co"));
    std::fs::write(&source, text).unwrap();
    let output = device(clang, target).arg(&source).arg("-o").arg(&object).output().unwrap();
    let (ok, report) = (output.status.success(), words(&output));
    if !ok {
        return Compiled { report, ..Compiled::default() };
    }
    let reader = Command::new(clang).arg("-print-prog-name=llvm-readelf").output().unwrap();
    let reader = String::from_utf8(reader.stdout).unwrap();
    let notes = Command::new(reader.trim()).arg("--notes").arg(&object).output().unwrap();
    let notes = words(&notes);
    let number = |name: &str| {
        let line =
            notes.lines().find_map(|line| line.trim_start_matches(['-', ' ']).strip_prefix(name));
        let value = line.and_then(|line| line.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no {name} in\n{notes}")).trim().parse::<u32>().unwrap()
    };
    Compiled {
        ok,
        report,
        vgprs: number(".vgpr_count"),
        agprs: number(".agpr_count"),
        sgprs: number(".sgpr_count"),
        spills: number(".vgpr_spill_count") + number(".sgpr_spill_count"),
        scratch: number(".private_segment_fixed_size"),
        shared: number(".group_segment_fixed_size"),
    }
}

/// The instructions of a compiled source.
pub fn listing(clang: &Path, text: &str, target: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("k.hip");
    std::fs::write(&source, text).unwrap();
    let output = device(clang, target).arg("-S").arg(&source).args(["-o", "-"]).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Whether the compiler's version starts with `version`.
pub fn is_version(clang: &Path, version: &str) -> bool {
    let output = Command::new(clang).arg("-dumpversion").output();
    output.is_ok_and(|output| output.stdout.starts_with(version.as_bytes()))
}
