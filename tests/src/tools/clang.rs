//! The compiler of HIP texts: `CLANG`, or on the path, if it knows AMD GPUs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{LazyLock, OnceLock};

use super::{kept, skip};

/// The compiler of this machine.
#[derive(Debug)]
pub struct Clang {
    path: PathBuf,
    /// What it says of itself.
    version: String,
    /// The reader of its code objects, once it was asked for.
    reader: OnceLock<PathBuf>,
}

/// What the compiler made of a text: its own words, and the numbers in the code object's notes.
#[derive(Debug, Default)]
pub struct Compiled {
    /// Whether it took the text.
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

fn started(path: PathBuf) -> Option<Clang> {
    let said = |argument: &str| {
        let output = Command::new(&path).arg(argument).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let knows_amd = said("--print-targets")?.contains("amdgcn");
    let version = said("--version")?;
    knows_amd.then(|| Clang { path, version, reader: OnceLock::new() })
}

static FOUND: LazyLock<Option<Clang>> = LazyLock::new(|| {
    let named = std::env::var_os("CLANG").map(PathBuf::from);
    let names = ["clang-22", "clang"].map(PathBuf::from);
    named.into_iter().chain(names).find_map(started)
});

/// The compiler; if there is none, the test says so.
///
/// # Panics
/// If there is none under CI.
pub fn find() -> Option<&'static Clang> {
    if FOUND.is_none() {
        skip("clang for AMD GPUs not found");
    }
    FOUND.as_ref()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Flags for a text that is compiled for a GPU.
fn device(chip: &str) -> Vec<String> {
    // A kernel need not use all of a wide load, nor, in its only k-tile, what finds the next.
    let flags = "-x hip --cuda-device-only --no-gpu-bundle-output -nogpulib -nogpuinc -O3 \
                 -Wall -Wno-unused-but-set-variable -Wno-unused-variable";
    let flags = flags.split(' ').map(str::to_owned);
    flags.chain([format!("--offload-arch={chip}")]).collect()
}

impl Clang {
    /// Whether the compiler's version begins so.
    pub fn is_version(&self, version: &str) -> bool {
        self.version.contains(&format!("version {version}"))
    }

    fn run(&self, flags: &[String], source: &Path, object: &Path) -> Result<String, String> {
        // Libraries are named after what needs them.
        let (libraries, flags): (Vec<_>, Vec<_>) =
            flags.iter().partition(|flag| flag.starts_with("-l"));
        let mut command = Command::new(&self.path);
        let output = command.args(flags).arg(source).args(libraries).arg("-o").arg(object).output();
        let output = output.expect("clang starts, as it did before");
        if output.status.success() { Ok(words(&output)) } else { Err(words(&output)) }
    }

    /// The notes of a code object.
    fn notes(&self, object: &Path) -> String {
        let reader = self.reader.get_or_init(|| {
            let named = Command::new(&self.path).arg("-print-prog-name=llvm-readelf").output();
            let named = words(&named.expect("clang starts, as it did before"));
            PathBuf::from(named.trim())
        });
        let notes = Command::new(reader).arg("--notes").arg(object).output();
        words(&notes.expect("llvm-readelf starts"))
    }

    /// Compiles a text for a chip, and reads what the code object says of its one kernel.
    ///
    /// # Panics
    /// If files cannot be written, or the notes are none.
    pub fn compile(&self, text: &str, chip: &str) -> Compiled {
        let flags = device(chip);
        let parts = ["clang, notes", &self.version, &flags.join(" "), text];
        let kept = kept::kept(&parts, |made| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (source, object) = (folder.path().join("k.hip"), folder.path().join("k.co"));
            std::fs::write(&source, text).expect("the text is written");
            let report = self.run(&flags, &source, &object)?;
            let both = format!("{}\0{report}", self.notes(&object));
            std::fs::write(made, both).map_err(|error| error.to_string())
        });
        let both = match kept.map(|path| std::fs::read_to_string(path).expect("kept notes")) {
            Ok(both) => both,
            Err(report) => return Compiled { report, ..Compiled::default() },
        };
        let (notes, report) = both.split_once('\0').expect("notes and a report");
        let number = |name: &str| {
            let mut lines = notes.lines().map(|line| line.trim_start_matches(['-', ' ']));
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(value.trim().parse::<u32>().expect("a number"))
        };
        let there = |name| number(name).unwrap_or_else(|| panic!("no {name} in\n{notes}"));
        Compiled {
            ok: true,
            report: report.to_owned(),
            vgprs: there(".vgpr_count"),
            // RDNA has none.
            agprs: number(".agpr_count").unwrap_or(0),
            sgprs: there(".sgpr_count"),
            spills: there(".vgpr_spill_count") + there(".sgpr_spill_count"),
            scratch: there(".private_segment_fixed_size"),
            shared: there(".group_segment_fixed_size"),
        }
    }

    /// The instructions that a text becomes on a chip.
    ///
    /// # Panics
    /// If the compiler does not take the text.
    pub fn listing(&self, text: &str, chip: &str) -> String {
        let flags: Vec<String> = device(chip).into_iter().chain(["-S".to_owned()]).collect();
        let path = self.made(&flags, "k.hip", &[text]);
        std::fs::read_to_string(path).expect("a kept listing")
    }

    /// A program of this machine: the C++ text, which may include the header `host.h`.
    ///
    /// # Panics
    /// If the compiler does not take the text.
    pub fn program(&self, flags: &[&str], text: &str, header: &str) -> PathBuf {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.made(&flags, "main.cpp", &[text, header])
    }

    /// What the compiler makes of a text and, perhaps, the header `host.h`.
    fn made(&self, flags: &[String], name: &str, texts: &[&str]) -> PathBuf {
        let joined = flags.join(" ");
        let parts: Vec<&str> =
            ["clang", &self.version, &joined].into_iter().chain(texts.iter().copied()).collect();
        let made = kept::kept(&parts, |made| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let names = [name, "host.h"].map(|name| folder.path().join(name));
            for (path, text) in names.iter().zip(texts) {
                std::fs::write(path, text).expect("the text is written");
            }
            self.run(flags, &names[0], made).map(|_| ())
        });
        made.unwrap_or_else(|report| panic!("{report}\n{}", texts[0]))
    }
}
