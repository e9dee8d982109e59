//! NVIDIA's assembler: from `PTXAS`, from the path, or from its Python package.

use std::path::PathBuf;
use std::process::Command;

/// The assembler's report on a source.
pub struct Assembled {
    pub ok: bool,
    /// All it printed.
    pub report: String,
}

impl Assembled {
    /// The number before a word of the report, 0 if it is not there.
    pub fn number_before(&self, what: &str) -> u32 {
        let place = self.report.find(what);
        let before = place.map(|at| &self.report[..at]);
        let word = before.and_then(|text| text.split_whitespace().last());
        word.and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// No spill, no local memory, no line that says that performance is lost (C75..).
    pub fn is_clean(&self) -> bool {
        let spilled = self.number_before("bytes spill") + self.number_before("bytes stack frame");
        self.ok && spilled == 0 && !self.report.contains("C75")
    }
}

fn runs(path: &PathBuf) -> bool {
    Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The assembler, if there is one.
pub fn find() -> Option<PathBuf> {
    let named = std::env::var_os("PTXAS").map(PathBuf::from);
    let found = named.into_iter().chain([PathBuf::from("ptxas")]).find(runs);
    found.or_else(|| {
        let code =
            "import nvidia, os; print(os.path.join(list(nvidia.__path__)[0], 'cu13/bin/ptxas'))";
        let output = Command::new("python3").args(["-c", code]).output().ok()?;
        let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        Some(path).filter(runs)
    })
}

/// Whether the assembler's version is of this release.
pub fn is_version(ptxas: &PathBuf, release: &str) -> bool {
    let output = Command::new(ptxas).arg("--version").output();
    output.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout).contains(&format!("release {release},"))
    })
}

/// Assembles a source for a target.
pub fn assemble(ptxas: &PathBuf, text: &str, target: &str) -> Assembled {
    let folder = tempfile::tempdir().unwrap();
    let (source, object) = (folder.path().join("k.ptx"), folder.path().join("k.cubin"));
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new(ptxas);
    command.arg("-v").arg(format!("-arch={target}")).arg(&source).arg("-o").arg(&object);
    let output = command.output().unwrap();
    let report = [output.stdout, output.stderr].concat();
    Assembled { ok: output.status.success(), report: String::from_utf8_lossy(&report).into_owned() }
}
