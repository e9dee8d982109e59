//! The CUDA and the HIP backend against drivers without a GPU (`fake`), which this test compiles.
//!
//! Which library a process loads is decided once, so each scenario is a process: this program runs
//! itself with the libraries' folder on the loader's path and looks at what it says, at how it ended and
//! at the libraries' log of calls. `cases` has what each process does and must say.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use quantloom_runtime::{cuda, hip};

mod cases;
mod cuda_alone;
mod experts;
mod hip_alone;
mod scenarios;
mod sources;
mod tune;
mod tune_experts;

use cases::{Backend, CUDA, Case, HIP, OFF, WHOLE};

fn main() -> ExitCode {
    if let Ok(scenario) = std::env::var("QUANTLOOM_SCENARIO") {
        match scenario.split_once('/').unwrap() {
            ("cuda", scenario) => scenarios::run::<cuda::Driver>(scenario),
            (_, scenario) => scenarios::run::<hip::Libraries>(scenario),
        }
        return ExitCode::SUCCESS;
    }
    if !cfg!(target_os = "linux") {
        println!("skipped: the loader's path is set as on Linux");
        return ExitCode::SUCCESS;
    }
    let mut faults = Vec::new();
    for backend in [&CUDA, &HIP] {
        let bench = Bench::new(backend);
        let cases = backend.cases();
        faults.extend(cases.iter().flat_map(|case| bench.check(case)));
        faults.extend(bench.calls_of_an_engine());
        faults.extend(bench.kept_images());
        faults.extend(bench.every_failure());
        println!("{}: {} cases, {} faults so far", backend.name, cases.len(), faults.len());
    }
    for fault in &faults {
        eprintln!("{fault}\n");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The compiled libraries of a backend and a folder for logs.
struct Bench {
    backend: &'static Backend,
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
    fn new(backend: &'static Backend) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("drivers").join(backend.name);
        let _ = std::fs::remove_dir_all(&folder);
        for (name, files) in backend.folders {
            let folder = folder.join(name);
            std::fs::create_dir_all(&folder).unwrap();
            for (file, flags) in *files {
                let out = folder.join(file);
                if flags.is_empty() {
                    std::fs::write(out, "no library").unwrap();
                    continue;
                }
                quantloom_tests::driver::compile(backend.source, flags, &out);
            }
        }
        Self { backend, folder }
    }

    fn run(&self, scenario: &str, folder: &str, environment: &[(&str, &str)]) -> Ran {
        let log = self.folder.join("log");
        let _ = std::fs::remove_file(&log);
        let output = Command::new(std::env::current_exe().unwrap())
            .env("QUANTLOOM_SCENARIO", format!("{}/{scenario}", self.backend.name))
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
        let scenario = format!("{}/{scenario}", self.backend.name);
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
        let mut faults = ran.faults(self.backend, None);
        for said in &case.says {
            if !ran.out.contains(&**said) {
                faults.push(format!("not said: {said}\n{}", ran.what));
            }
        }
        faults
    }

    /// One process compiles and keeps, the next loads what was kept and asks no compiler; an image
    /// that the driver does not load, and a damaged one, are compiled and replaced.
    fn kept_images(&self) -> Vec<String> {
        let cache = self.folder.join("cache");
        let images = cache.join("images");
        let mut faults = Vec::new();
        let cache = cache.to_str().unwrap();
        let mut load = |environment: &[(&str, &str)], kept: bool| {
            let mut all = vec![("QUANTLOOM_CACHE", cache)];
            all.extend(environment);
            let ran = self.run("load", WHOLE, &all);
            faults.extend(ran.faults(self.backend, None));
            let expected = if kept { "vector_add: kept image\n" } else { "vector_add: compiled\n" };
            let compiled = ran.log.iter().any(|(name, _)| name == self.backend.compiles);
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

    /// A launch of a plan, where the context is current already, asks the driver for nothing but its
    /// launches; the scenario asks for the driver's version before and after.
    fn calls_of_an_engine(&self) -> Vec<String> {
        let ran = self.run("engine", WHOLE, &[OFF]);
        let [current, launch, mark] = self.backend.engine_calls;
        let names: Vec<&str> = ran.log.iter().map(|(name, _)| name.as_str()).collect();
        let marks: Vec<_> = (0..names.len()).filter(|at| names[*at] == mark).collect();
        let [.., first, last] = marks[..] else {
            return vec![format!("the scenario does not ask for the version\n{}", ran.what)];
        };
        let mut expected = vec![current];
        expected.resize(7, launch);
        match names[first + 1..last] == expected {
            true => Vec::new(),
            false => vec![format!("an engine's launch calls {:?}", &names[first + 1..last])],
        }
    }

    /// Each function fails in turn: nothing panics, nothing is left behind, and where the failure
    /// matters it is told with the driver's words.
    fn every_failure(&self) -> Vec<String> {
        let whole = self.run("tour", WHOLE, &[OFF]);
        let called: BTreeSet<_> = whole.log.iter().map(|(name, _)| name.as_str()).collect();
        let mut faults = whole.faults(self.backend, None);
        let rows = self.backend.functions();
        let wordless = |name: &str| name.contains("GetError");
        for name in rows.iter().filter(|name| !wordless(name)) {
            if !called.contains(name.as_str()) {
                faults.push(format!("the tour never calls {name}"));
            }
        }
        let undoes: BTreeSet<_> = self.backend.pairs.iter().map(|pair| pair.1).collect();
        for name in called {
            let failing = format!("{name}=999");
            let ran = self.run("tour", WHOLE, &[OFF, ("FAKE_FAIL", &failing)]);
            faults.extend(ran.faults(self.backend, Some(name)));
            // A kernel that cannot be waited for stays loaded, which the log says; without a log there
            // is still the compiler's error. Without words an error still is one.
            let quiet = undoes.contains(name) && !name.contains("EndCapture")
                || name == self.backend.waits
                || name.starts_with("hiprtcGetProgramLog")
                || wordless(name);
            if !quiet && !ran.out.contains(" (999), unknown error") {
                faults.push(format!("{name} failed and nobody was told\n{}", ran.what));
            }
        }
        faults
    }
}

impl Ran {
    /// A panic, an early end, or objects that were made and not undone; `failing` is the function
    /// that was made to fail.
    fn faults(&self, backend: &Backend, failing: Option<&str>) -> Vec<String> {
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
        // Without a context nothing can be undone.
        let entered = failing.is_none_or(|failing| !backend.enters.contains(&failing));
        for (make, undo) in backend.pairs {
            let (made, undone) = (count(&made, make), count(&undone, undo));
            let stays = undo.ends_with("ModuleUnload") && failing == Some(backend.waits);
            if made != undone && entered && !stays {
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
