//! NVIDIA's assembler: `PTXAS`, on the path, or in a Python package of it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use super::{kept, skip};

/// The assembler of this machine.
#[derive(Debug)]
pub struct Ptxas {
    path: PathBuf,
    /// What it says of itself.
    version: String,
}

/// What the assembler says of a text.
#[derive(Debug)]
pub struct Assembled {
    /// Whether it took the text.
    pub ok: bool,
    /// All it printed.
    pub report: String,
}

impl Assembled {
    /// The number before a word of the report, 0 if the word is not there.
    pub fn number_before(&self, what: &str) -> u32 {
        let place = self.report.find(what);
        let before = place.map(|at| &self.report[..at]);
        let word = before.and_then(|text| text.split_whitespace().last());
        word.and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// No spill, no local memory, no warning, no line that says that performance is lost (C75..).
    pub fn is_clean(&self) -> bool {
        let spilled = self.number_before("bytes spill") + self.number_before("bytes stack frame");
        let warned = self.report.contains("C75") || self.report.contains("warning");
        self.ok && spilled == 0 && !warned
    }
}

fn started(path: PathBuf) -> Option<Ptxas> {
    let output = Command::new(&path).arg("--version").output().ok()?;
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(Ptxas { path, version })
}

static FOUND: LazyLock<Option<Ptxas>> = LazyLock::new(|| {
    let named = std::env::var_os("PTXAS").map(PathBuf::from);
    named.into_iter().chain([PathBuf::from("ptxas")]).find_map(started).or_else(|| {
        let code =
            "import nvidia, os; print(os.path.join(list(nvidia.__path__)[0], 'cu13/bin/ptxas'))";
        let output = Command::new("python3").args(["-c", code]).output().ok()?;
        started(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
    })
});

/// The assembler; if there is none, the test says so.
///
/// # Panics
/// If there is none under CI.
pub fn find() -> Option<&'static Ptxas> {
    if FOUND.is_none() {
        skip("ptxas not found");
    }
    FOUND.as_ref()
}

impl Ptxas {
    /// Whether the assembler is of a release.
    pub fn is_release(&self, release: &str) -> bool {
        self.version.contains(&format!("release {release},"))
    }

    /// Assembles a text for an architecture.
    ///
    /// # Panics
    /// If files cannot be written.
    pub fn assemble(&self, text: &str, architecture: &str) -> Assembled {
        let parts = ["ptxas -v", &self.version, architecture, text];
        let report = kept::kept(&parts, |made| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (source, object) = (folder.path().join("k.ptx"), folder.path().join("k.cubin"));
            std::fs::write(&source, text).expect("the text is written");
            let mut command = Command::new(&self.path);
            command.arg("-v").arg(format!("-arch={architecture}"));
            let output = command.arg(&source).arg("-o").arg(&object).output();
            let output = output.expect("ptxas starts, as it did before");
            let report = [output.stdout, output.stderr].concat();
            let report = String::from_utf8_lossy(&report).into_owned();
            if !output.status.success() {
                return Err(report);
            }
            std::fs::write(made, &report).map_err(|error| error.to_string())
        });
        match report.map(|path| std::fs::read_to_string(path).expect("a kept report")) {
            Ok(report) => Assembled { ok: true, report },
            Err(report) => Assembled { ok: false, report },
        }
    }
}
