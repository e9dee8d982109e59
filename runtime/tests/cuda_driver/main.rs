//! The CUDA backend against a driver without a GPU (`libcuda.rs`), which this test compiles.
//!
//! Which library a process loads is decided once, so each scenario is a process: this program
//! runs itself with the library's folder on the loader's path and looks at what it says, at how
//! it ended and at the driver's log of calls.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod scenarios;

/// Which library the loader finds first.
#[derive(Clone, Copy)]
enum Library {
    /// The one beside this file.
    Whole,
    /// The same without what came with CUDA 12.0.
    Old,
    /// Files of the right names that are no libraries, so that none is found.
    None,
}

/// A process and what it must say.
struct Case {
    scenario: &'static str,
    library: Library,
    environment: &'static [(&'static str, &'static str)],
    says: &'static [&'static str],
}

const fn case(
    scenario: &'static str,
    library: Library,
    environment: &'static [(&'static str, &'static str)],
    says: &'static [&'static str],
) -> Case {
    Case { scenario, library, environment, says }
}

const CASES: &[Case] = &[
    case("devices", Library::None, &[], &["libcuda not found"]),
    case("context", Library::None, &[], &["libcuda not found"]),
    case(
        "selftest",
        Library::None,
        &[],
        &[
            "good: true",
            "skipped vector add      libcuda not found",
            "skipped empty launch    libcuda not found",
        ],
    ),
    case(
        "devices",
        Library::Old,
        &[],
        &["the NVIDIA driver has no `cuTensorMapEncodeTiled`: it is older than CUDA 12.0"],
    ),
    case(
        "devices",
        Library::Whole,
        &[],
        &["Fake GPU, sm_90, 132 SM, 144384 MiB, driver for CUDA 13.0; sm_90a"],
    ),
    case(
        "devices",
        Library::Whole,
        &[("FAKE_FAIL", "cuInit=100")],
        &[
            "starting the NVIDIA driver: CUDA_ERROR_NO_DEVICE (100), no CUDA-capable device is detected",
        ],
    ),
    // A code that the bindings do not know, as a newer driver may give.
    case(
        "stream",
        Library::Whole,
        &[("FAKE_FAIL", "cuStreamCreate=123456")],
        &["creating a stream: an error that the driver does not name (123456)"],
    ),
    case("other device", Library::Whole, &[], &["there is no CUDA device 1: the driver shows 1"]),
    case(
        "selftest",
        Library::Whole,
        &[],
        &[
            "good: true",
            "ok      vector add",
            "ok      caller's stream",
            "ok      async copies",
            "ok      shared memory",
            "ok      graph replay",
            "ok      random data",
            "ok      cluster",
            "overlapping -48.5 us",
            "ok      tensor map",
            "ok      image cache",
            "error: nonsense",
            // The driver's clock: 1000 ns a launch, 500 if it overlaps, 24 launches a graph.
            "in a graph 1.00 us, overlapping 0.50 us",
        ],
    ),
    case("selftest", Library::Whole, &[("FAKE_LOCAL", "1")], &["vector_add has 8 local bytes"]),
    // The linker refuses, the module loader does not.
    case(
        "load",
        Library::Whole,
        &[("FAKE_FAIL", "cuLinkComplete=999"), ("QUANTLOOM_CACHE", "off")],
        &["vector_add: compiled, not kept"],
    ),
    // A cache that cannot be.
    case("load", Library::Whole, &[("QUANTLOOM_CACHE", "/dev/null")], &["vector_add: compiled\n"]),
    case("loader", Library::Whole, &[("QUANTLOOM_CACHE", "off")], &["texts: 1, kernels: 1"]),
    case("refused", Library::Whole, &[], &["there are no kernels for sm_90a here, only for sm_80"]),
    case(
        "launch",
        Library::Whole,
        &[("QUANTLOOM_CACHE", "off")],
        &["launching vector_add: buffer `c` has 396 bytes, the kernel touches 400"],
    ),
    case(
        "product",
        Library::Whole,
        &[("QUANTLOOM_CACHE", "off")],
        &[
            "product of 4-bit codes to bf16, decode(rows=2), sm_90a is chosen, by the model of costs, not measured; multiplied in bf16: y is right: true",
        ],
    ),
    case("product", Library::None, &[], &["libcuda not found"]),
    case(
        "other tensors",
        Library::Whole,
        &[("QUANTLOOM_CACHE", "off")],
        &[
            "the tensors were made for a weight of another scheme, shape or number of columns",
            "is no kernel of this weight's products",
        ],
    ),
    case("graph keeps", Library::Whole, &[], &["replayed: true"]),
    case(
        "graph keeps what joins",
        Library::Whole,
        &[],
        &["not run: [0, 0, 0, 0]", "replayed: [5, 5, 5, 5]", "alone: [6]"],
    ),
    case(
        "captured",
        Library::Whole,
        &[],
        &[
            "copying to a device: the stream is captured",
            "copying from a device: the stream is captured",
            "launching a graph: the stream is captured",
            "capturing a graph: the stream is captured",
            "replayed: [9, 9, 9, 9]",
        ],
    ),
    case(
        "streams",
        Library::Whole,
        &[],
        &[
            "read after write: [7, 7, 7, 7]",
            "write after read: [7, 7, 7, 7]",
            "graph after write: [3, 3, 3, 3]",
            "write after graph: [3, 3, 3, 3]",
            "read after drop: [6, 6, 6, 6]",
        ],
    ),
    case(
        "engine",
        Library::Whole,
        &[("QUANTLOOM_CACHE", "off")],
        &[
            "6 launches, workspace WorkspaceBytes { counters: 256, scratch: 256 }",
            "a product: buffer `x` has 383 bytes, the kernel touches 384",
            "a product: buffer `workspace` has 511 bytes, the kernel touches 512",
            "y is right: true",
            "counters are untouched: true, scratch is at the end: true",
            "replayed with other x: true",
        ],
    ),
    case(
        "not warm",
        Library::Whole,
        &[("QUANTLOOM_CACHE", "off")],
        &[
            "captured: false",
            "double, sm_90a is not loaded, and the stream is captured into a graph: warm the weight up before",
            "captured: true",
            "loaded after the capture: true",
            "in a capture, once loaded: true",
        ],
    ),
    case("unload", Library::Whole, &[], &["added: true"]),
];

/// What marks a place in the log of calls.
const MARK: &str = "cuDriverGetVersion";

/// What is made and what undoes it.
const PAIRS: &[(&str, &str)] = &[
    ("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"),
    ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
    ("cuStreamCreate", "cuStreamDestroy_v2"),
    ("cuStreamBeginCapture_v2", "cuStreamEndCapture"),
    ("cuStreamEndCapture", "cuGraphDestroy"),
    ("cuGraphInstantiateWithFlags", "cuGraphExecDestroy"),
    ("cuEventCreate", "cuEventDestroy_v2"),
    ("cuMemAlloc_v2", "cuMemFree_v2"),
    ("cuMemAllocHost_v2", "cuMemFreeHost"),
    ("cuLinkCreate_v2", "cuLinkDestroy"),
    ("cuModuleLoadData", "cuModuleUnload"),
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
    faults.extend(bench.calls_of_an_engine());
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
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda_driver");
        let _ = std::fs::remove_dir_all(&folder);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda_driver/libcuda.rs");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        for (name, flags) in [("whole", None), ("old", Some("before_12"))] {
            let out = folder.join(name).join("libcuda.so.1");
            std::fs::create_dir_all(folder.join(name)).unwrap();
            let mut command = Command::new(&rustc);
            command.args(["--edition", "2024", "--crate-type", "cdylib", "-O", "-o"]);
            command.arg(&out).arg(&source);
            command.args(flags.iter().flat_map(|flag| ["--cfg", flag]));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        std::fs::create_dir_all(folder.join("none")).unwrap();
        for name in ["libcuda.so.1", "libcuda.so"] {
            std::fs::write(folder.join("none").join(name), "no library").unwrap();
        }
        Self { folder }
    }

    fn run(&self, scenario: &str, library: Library, environment: &[(&str, &str)]) -> Ran {
        let log = self.folder.join("log");
        let _ = std::fs::remove_file(&log);
        let library = match library {
            Library::Whole => "whole",
            Library::Old => "old",
            Library::None => "none",
        };
        let output = Command::new(std::env::current_exe().unwrap())
            .env("QUANTLOOM_SCENARIO", scenario)
            .env("LD_LIBRARY_PATH", self.folder.join(library))
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
                "QUANTLOOM_SCENARIO={scenario:?} {library} {environment:?}\n{out}{errors}"
            ),
            out,
            panicked: errors.contains("panicked"),
            done: output.status.success(),
            log: log.lines().map(call).collect(),
        }
    }

    fn check(&self, case: &Case) -> Vec<String> {
        let ran = self.run(case.scenario, case.library, case.environment);
        let mut faults = ran.faults(None);
        for said in case.says {
            if !ran.out.contains(said) {
                faults.push(format!("not said: {said}\n{}", ran.what));
            }
        }
        faults
    }

    /// One process compiles and keeps, the next loads what was kept; an image that the driver
    /// does not load, and a damaged one, are compiled and replaced.
    fn kept_images(&self) -> Vec<String> {
        let cache = self.folder.join("cache");
        let images = cache.join("images");
        let mut faults = Vec::new();
        let cache = cache.to_str().unwrap();
        let mut load = |environment: &[(&str, &str)], expected: &str| {
            let mut all = vec![("QUANTLOOM_CACHE", cache)];
            all.extend(environment);
            let ran = self.run("load", Library::Whole, &all);
            faults.extend(ran.faults(None));
            if !ran.out.contains(expected) {
                faults.push(format!("not said: {expected}\n{}", ran.what));
            }
        };
        load(&[], "vector_add: compiled\n");
        load(&[], "vector_add: kept image\n");
        load(&[("FAKE_FOREIGN", "1")], "vector_add: compiled\n");
        load(&[], "vector_add: kept image\n");
        let entry = std::fs::read_dir(&images).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&entry).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&entry, bytes).unwrap();
        load(&[], "vector_add: compiled\n");
        load(&[], "vector_add: kept image\n");
        faults
    }

    /// A launch of a plan, where the context is current already, asks the driver for nothing but its
    /// launches; the scenario asks for the driver's version before and after.
    fn calls_of_an_engine(&self) -> Vec<String> {
        let ran = self.run("engine", Library::Whole, &[("QUANTLOOM_CACHE", "off")]);
        let names: Vec<&str> = ran.log.iter().map(|(name, _)| name.as_str()).collect();
        let marks: Vec<_> = (0..names.len()).filter(|at| names[*at] == MARK).collect();
        let [.., first, last] = marks[..] else {
            return vec![format!("the scenario does not ask for the version\n{}", ran.what)];
        };
        let mut expected = vec!["cuCtxGetCurrent"];
        expected.resize(7, "cuLaunchKernelEx");
        match names[first + 1..last] == expected {
            true => Vec::new(),
            false => vec![format!("an engine's launch calls {:?}", &names[first + 1..last])],
        }
    }

    /// Each function that the self-test calls fails in turn: nothing panics, nothing is left
    /// behind, and where the failure matters it is told with the driver's words.
    fn every_failure(&self) -> Vec<String> {
        let whole = self.run("selftest", Library::Whole, &[]);
        let called: BTreeSet<_> = whole.log.iter().map(|(name, _)| name.as_str()).collect();
        let table = include_str!("../../src/cuda/driver.rs");
        let table = table.split("functions! {\n").nth(1).unwrap().split("\n}\n").next().unwrap();
        let rows = table.lines().filter_map(|line| line.strip_prefix("    cu"));
        let rows: BTreeSet<_> =
            rows.map(|row| format!("cu{}", row.split('(').next().unwrap())).collect();
        let mut faults = Vec::new();
        for name in &rows {
            if !called.contains(name.as_str()) {
                faults.push(format!("the self-test never calls {name}"));
            }
        }
        let undoes: BTreeSet<_> = PAIRS.iter().map(|pair| pair.1).collect();
        for name in called {
            let failing = format!("{name}=999");
            let ran = self.run("selftest", Library::Whole, &[("FAKE_FAIL", &failing)]);
            faults.extend(ran.faults(Some(name)));
            let told = "CUDA_ERROR_UNKNOWN (999), unknown error";
            // A kernel that cannot be waited for stays loaded, which the log says.
            let stays = name == "cuCtxSynchronize";
            let quiet = stays || undoes.contains(name) && name != "cuStreamEndCapture";
            // Without these two there are no words for an error, which still is one.
            let wordless = name.starts_with("cuGetError");
            if !quiet && !wordless && !ran.out.contains(told) {
                faults.push(format!("{name} failed and nobody was told\n{}", ran.what));
            }
        }
        faults
    }
}

impl Ran {
    /// A panic, an early end, or objects that were made and not undone; `failing` is the function
    /// that was made to fail.
    fn faults(&self, failing: Option<&str>) -> Vec<String> {
        let mut faults = Vec::new();
        if self.panicked || !self.done {
            faults.push(format!("panicked or failed: {}", self.what));
        }
        let mut made = BTreeMap::<&str, u32>::new();
        let mut undone = BTreeMap::<&str, u32>::new();
        for (name, result) in &self.log {
            *undone.entry(name).or_default() += 1;
            if *result == 0 {
                *made.entry(name).or_default() += 1;
            }
        }
        for (make, undo) in PAIRS {
            let count = |of: &BTreeMap<&str, u32>, name: &str| of.get(name).copied().unwrap_or(0);
            let (made, undone) = (count(&made, make), count(&undone, undo));
            // Without a context nothing can be undone.
            let entered = !matches!(failing, Some("cuCtxPushCurrent_v2" | "cuCtxGetCurrent"));
            let stays = *undo == "cuModuleUnload" && failing == Some("cuCtxSynchronize");
            if made != undone && entered && !stays {
                faults.push(format!("{make} {made} times, {undo} {undone}: {}", self.what));
            }
        }
        faults
    }
}
