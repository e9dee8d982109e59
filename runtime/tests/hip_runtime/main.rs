//! The HIP backend against a runtime without a GPU (`libhip.rs`), which this test compiles.
//!
//! Which libraries a process loads is decided once, so each scenario is a process: this program
//! runs itself with the libraries' folder on the loader's path and looks at what it says, at how it
//! ended and at the libraries' log of calls.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod scenarios;

/// A folder of libraries: what the loader finds first.
struct Folder {
    name: &'static str,
    /// Files, and the flags that they are compiled with; a file without flags is no library.
    files: &'static [(&'static str, &'static [&'static str])],
}

const WHOLE: &str = "whole";

/// Files that are no libraries keep the loader from those of the machine.
const FOLDERS: &[Folder] = &[
    Folder {
        name: WHOLE,
        files: &[("libamdhip64.so.7", &["runtime"]), ("libhiprtc.so.7", &["compiler"])],
    },
    // ROCm 6 has the compiler's functions in the runtime's library too.
    Folder {
        name: "together",
        files: &[
            ("libamdhip64.so.7", &[]),
            ("libamdhip64.so.6", &["runtime", "compiler"]),
            ("libhiprtc.so.7", &[]),
            ("libhiprtc.so.6", &[]),
            ("libhiprtc.so", &[]),
        ],
    },
    Folder {
        name: "old",
        files: &[("libamdhip64.so.7", &["runtime", "before_6"]), ("libhiprtc.so.7", &["compiler"])],
    },
    Folder {
        name: "no compiler",
        files: &[
            ("libamdhip64.so.7", &["runtime"]),
            ("libhiprtc.so.7", &[]),
            ("libhiprtc.so.6", &[]),
            ("libhiprtc.so", &[]),
        ],
    },
    Folder {
        name: "none",
        files: &[
            ("libamdhip64.so.7", &[]),
            ("libamdhip64.so.6", &[]),
            ("libamdhip64.so", &[]),
            ("libhiprtc.so.7", &[]),
            ("libhiprtc.so.6", &[]),
            ("libhiprtc.so", &[]),
        ],
    },
];

/// A process and what it must say.
struct Case {
    scenario: &'static str,
    folder: &'static str,
    environment: &'static [(&'static str, &'static str)],
    says: &'static [&'static str],
}

const fn case(
    scenario: &'static str,
    folder: &'static str,
    environment: &'static [(&'static str, &'static str)],
    says: &'static [&'static str],
) -> Case {
    Case { scenario, folder, environment, says }
}

const OFF: (&str, &str) = ("QUANTLOOM_CACHE", "off");

const CASES: &[Case] = &[
    case("devices", "none", &[], &["libamdhip64 not found"]),
    case("product", "none", &[], &["libamdhip64 not found"]),
    case("devices", "no compiler", &[], &["libhiprtc not found"]),
    case(
        "devices",
        "old",
        &[],
        &["libamdhip64 has no `hipGetDevicePropertiesR0600`: it is older than ROCm 6.0"],
    ),
    case(
        "devices",
        WHOLE,
        &[],
        &[
            "Fake Instinct, gfx942, 304 CU, 196608 MiB, HIP 7.0; gfx942",
            "Fake Instinct, gfx1100, 304 CU, 196608 MiB, HIP 7.0; no target",
            "hiprtc 9.0",
        ],
    ),
    case(
        "devices",
        WHOLE,
        &[("FAKE_FAIL", "hipInit=100")],
        &["starting the HIP runtime: hipErrorNoDevice (100), no ROCm-capable device is detected"],
    ),
    // A code that has no words, as a newer runtime may give.
    case(
        "current",
        WHOLE,
        &[("FAKE_FAIL", "hipStreamCreateWithFlags=123456")],
        &["creating a stream: an error that the runtime does not name (123456)"],
    ),
    case("other device", WHOLE, &[], &["there is no HIP device 2: the runtime shows 2"]),
    case(
        "unsupported",
        WHOLE,
        &[],
        &["Fake Instinct is gfx1100; kernels are made for gfx942 and gfx950"],
    ),
    case(
        "current",
        WHOLE,
        &[],
        &["copying from a device: the objects belong to different devices"],
    ),
    case(
        "memory",
        WHOLE,
        &[],
        &[
            "copied: true",
            "filled: [7, 7, 7]",
            "empty: []",
            "allocating 2199023255552 bytes on HIP device 0: hipErrorOutOfMemory (2), out of memory",
        ],
    ),
    case(
        "compile",
        WHOLE,
        &[],
        &[
            "compiling vector_add: hiprtc on the text: hiprtc (6), HIPRTC_ERROR_COMPILATION",
            "\n  kernel.hip:5:1: error: unknown type name 'nonsense'",
        ],
    ),
    case("load", "together", &[OFF], &["vector_add: compiled\n"]),
    // A cache that cannot be.
    case("load", WHOLE, &[("QUANTLOOM_CACHE", "/dev/null")], &["vector_add: compiled\n"]),
    case("loader", WHOLE, &[OFF], &["texts: 1, kernels: 1"]),
    case(
        "wrong target",
        WHOLE,
        &[OFF],
        &[
            "product of 4-bit codes to bf16, decode(rows=2), gfx950 is not for the device, which is gfx942",
        ],
    ),
    case("refused", WHOLE, &[], &["there are no kernels for gfx942 here, only for sm_80"]),
    case(
        "launch",
        WHOLE,
        &[OFF],
        &[
            "launching vector_add: buffer `c` has 396 bytes, the kernel touches 400",
            "launching vector_add: 3 arguments expected, 2 given",
            "launching vector_add: the number of threads along x is 4294967296, at most 4294967295",
        ],
    ),
    case(
        "streams",
        WHOLE,
        &[],
        &[
            "read after write: true",
            "read after launch: true",
            "launching a kernel: the objects belong to different devices",
        ],
    ),
    case("unload", WHOLE, &[], &["added: true"]),
    case(
        "product",
        WHOLE,
        &[OFF],
        &[
            "product of 4-bit codes to bf16, decode(rows=2), gfx942 is chosen, by the model of costs, not measured; multiplied in bf16: y is right: true",
        ],
    ),
];

/// What is made and what undoes it.
const PAIRS: &[(&str, &str)] = &[
    ("hipStreamCreateWithFlags", "hipStreamDestroy"),
    ("hipMalloc", "hipFree"),
    ("hipModuleLoadData", "hipModuleUnload"),
    ("hiprtcCreateProgram", "hiprtcDestroyProgram"),
];

fn main() -> ExitCode {
    if let Ok(scenario) = std::env::var("QUANTLOOM_SCENARIO") {
        scenarios::run(&scenario);
        return ExitCode::SUCCESS;
    }
    if !cfg!(target_os = "linux") {
        println!("skipped: the loader's path is set as on Linux");
        return ExitCode::SUCCESS;
    }
    let bench = Bench::new();
    let mut faults = Vec::new();
    for case in CASES {
        faults.extend(bench.check(case));
    }
    faults.extend(bench.kept_images());
    faults.extend(bench.every_failure());
    for fault in &faults {
        eprintln!("{fault}\n");
    }
    println!("{} cases, {} faults", CASES.len(), faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The compiled libraries and a folder for logs.
struct Bench {
    folder: PathBuf,
}

/// What a process left.
struct Ran {
    what: String,
    out: String,
    panicked: bool,
    done: bool,
    log: Vec<(String, i32)>,
}

impl Bench {
    fn new() -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("hip_runtime");
        let _ = std::fs::remove_dir_all(&folder);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hip_runtime/libhip.rs");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        for libraries in FOLDERS {
            let folder = folder.join(libraries.name);
            std::fs::create_dir_all(&folder).unwrap();
            for (file, flags) in libraries.files {
                let out = folder.join(file);
                if flags.is_empty() {
                    std::fs::write(out, "no library").unwrap();
                    continue;
                }
                let mut command = Command::new(&rustc);
                command.args(["--edition", "2024", "--crate-type", "cdylib", "-O", "-o"]);
                command.arg(&out).arg(&source);
                command.args(flags.iter().flat_map(|flag| ["--cfg", flag]));
                let output = command.output().unwrap();
                let words = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{words}");
            }
        }
        Self { folder }
    }

    fn run(&self, scenario: &str, folder: &str, environment: &[(&str, &str)]) -> Ran {
        let log = self.folder.join("log");
        let _ = std::fs::remove_file(&log);
        let output = Command::new(std::env::current_exe().unwrap())
            .env("QUANTLOOM_SCENARIO", scenario)
            .env("LD_LIBRARY_PATH", self.folder.join(folder))
            .env("FAKE_LOG", &log)
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        let log = std::fs::read_to_string(log).unwrap_or_default();
        let call = |line: &str| {
            let (name, result) = line.split_once('=').unwrap();
            (name.to_owned(), result.parse().unwrap())
        };
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        Ran {
            what: format!(
                "QUANTLOOM_SCENARIO={scenario:?} {folder} {environment:?}\n{out}{errors}"
            ),
            out,
            panicked: errors.contains("panicked"),
            done: output.status.success(),
            log: log.lines().map(call).collect(),
        }
    }

    fn check(&self, case: &Case) -> Vec<String> {
        let ran = self.run(case.scenario, case.folder, case.environment);
        let mut faults = ran.faults();
        for said in case.says {
            if !ran.out.contains(said) {
                faults.push(format!("not said: {said}\n{}", ran.what));
            }
        }
        faults
    }

    /// One process compiles and keeps, the next loads what was kept and asks no compiler; an image
    /// that the device does not load, and a damaged one, are compiled and replaced.
    fn kept_images(&self) -> Vec<String> {
        let cache = self.folder.join("cache");
        let images = cache.join("images");
        let mut faults = Vec::new();
        let cache = cache.to_str().unwrap();
        let mut load = |environment: &[(&str, &str)], kept: bool| {
            let mut all = vec![("QUANTLOOM_CACHE", cache)];
            all.extend(environment);
            let ran = self.run("load", WHOLE, &all);
            faults.extend(ran.faults());
            let expected = if kept { "vector_add: kept image\n" } else { "vector_add: compiled\n" };
            let compiled = ran.log.iter().any(|(name, _)| name == "hiprtcCompileProgram");
            if !ran.out.contains(expected) || compiled == kept {
                faults.push(format!("expected: {expected}\n{}", ran.what));
            }
        };
        load(&[], false);
        load(&[], true);
        load(&[("FAKE_FOREIGN", "1")], false);
        load(&[], true);
        let entry = std::fs::read_dir(&images).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&entry).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&entry, bytes).unwrap();
        load(&[], false);
        load(&[], true);
        faults
    }

    /// Each function fails in turn: nothing panics, nothing is left behind, and where the failure
    /// matters it is told with the library's words.
    fn every_failure(&self) -> Vec<String> {
        let whole = self.run("tour", WHOLE, &[OFF]);
        let called: BTreeSet<_> = whole.log.iter().map(|(name, _)| name.as_str()).collect();
        let table = include_str!("../../src/hip/library.rs");
        let rows = table.lines().filter_map(|line| line.strip_prefix("    hip"));
        let rows: BTreeSet<_> = rows
            .map(|row| format!("hip{}", row.split('(').next().unwrap()))
            .filter(|name| !name.contains("GetError"))
            .collect();
        let mut faults = whole.faults();
        for name in &rows {
            if !called.contains(name.as_str()) {
                faults.push(format!("the tour never calls {name}"));
            }
        }
        let undoes: BTreeSet<_> = PAIRS.iter().map(|pair| pair.1).collect();
        for name in called {
            let failing = format!("{name}=999");
            let ran = self.run("tour", WHOLE, &[OFF, ("FAKE_FAIL", &failing)]);
            let stays = |fault: &String| {
                name == "hipDeviceSynchronize" && fault.starts_with("hipModuleLoadData")
            };
            faults.extend(ran.faults().into_iter().filter(|fault| !stays(fault)));
            // Without a log there is still hiprtc's error.
            // A kernel that cannot be waited for stays loaded, which the log says.
            let quiet = undoes.contains(name)
                || name.starts_with("hiprtcGetProgramLog")
                || name == "hipDeviceSynchronize";
            if !quiet && !ran.out.contains(" (999), unknown error") {
                faults.push(format!("{name} failed and nobody was told\n{}", ran.what));
            }
        }
        faults
    }
}

impl Ran {
    /// A panic, an early end, or objects that were made and not undone.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.panicked || !self.done {
            faults.push(format!("panicked or failed: {}", self.what));
        }
        let (mut made, mut undone) = (BTreeMap::<&str, u32>::new(), BTreeMap::<&str, u32>::new());
        for (name, result) in &self.log {
            *undone.entry(name).or_default() += 1;
            if *result == 0 {
                *made.entry(name).or_default() += 1;
            }
        }
        let count = |of: &BTreeMap<&str, u32>, name: &str| of.get(name).copied().unwrap_or(0);
        for (make, undo) in PAIRS {
            let (made, undone) = (count(&made, make), count(&undone, undo));
            if made != undone {
                faults.push(format!("{make} {made} times, {undo} {undone}: {}", self.what));
            }
        }
        // Each way to another device has its way back.
        if count(&made, "hipSetDevice") % 2 != 0 {
            faults.push(format!("another device stays current: {}", self.what));
        }
        faults
    }
}
