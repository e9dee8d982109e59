//! ggml's side: a program that times its products on request (`ggml/bench.cpp`), built by `ggml/build.sh`.
//!
//! In: a type of weights, a shape, a number of tokens. Out: the median time of a call.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use quantloom::dsl::experts::ExpertLayer;

/// A type of ggml's weights and the order in which they are stored.
#[derive(Clone, Copy)]
pub struct GgmlWeights {
    /// ggml's name of the type.
    pub weights: &'static str,
    /// Whether they are interleaved for ggml's repacked kernels, which is llama.cpp's default.
    pub repack: bool,
}

impl GgmlWeights {
    pub const fn repack(weights: &'static str) -> Self {
        Self { weights, repack: true }
    }

    pub const fn plain(weights: &'static str) -> Self {
        Self { weights, repack: false }
    }

    fn order(self) -> &'static str {
        if self.repack { "repack" } else { "plain" }
    }
}

impl std::fmt::Display for GgmlWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.weights, self.order())
    }
}

/// The running program.
pub struct Ggml {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Ggml {
    /// Starts a program that is built already, or builds it; with a number of threads. `None`, with the
    /// reason printed, if this machine cannot build it.
    pub fn start(program: Option<PathBuf>, threads: usize) -> Result<Option<Self>, Box<dyn Error>> {
        let Some(program) = program.map_or_else(build, |program| Ok(Some(program)))? else {
            return Ok(None);
        };
        let mut child = Command::new(program)
            .args(["--threads", &threads.to_string()])
            // A core for each thread: better for ggml on a machine that others use, too.
            .env("OMP_PROC_BIND", "close")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().ok_or("ggml has no output")?);
        Ok(Some(Self { child, requests, answers }))
    }

    /// Median seconds of a product of M tokens; calls for about `time`.
    pub fn matmul(
        &mut self,
        kind: GgmlWeights,
        (n, k): (usize, usize),
        m: usize,
        time: Duration,
    ) -> Result<f64, Box<dyn Error>> {
        self.median("mul_mat", kind, &format!("{n} {k} {m} {}", time.as_millis()))
    }

    /// Median seconds of the three products of an expert layer (`mul_mat_id`) for M tokens; calls for about
    /// `time`.
    pub fn experts(
        &mut self,
        kind: GgmlWeights,
        layer: &ExpertLayer,
        m: usize,
        time: Duration,
    ) -> Result<f64, Box<dyn Error>> {
        let ExpertLayer { experts, top_k, hidden, intermediate, .. } = layer;
        let time = time.as_millis();
        self.median("moe", kind, &format!("{experts} {top_k} {hidden} {intermediate} {m} {time}"))
    }

    /// The answer to a request: median seconds.
    fn median(
        &mut self,
        what: &str,
        kind: GgmlWeights,
        sizes: &str,
    ) -> Result<f64, Box<dyn Error>> {
        let (weights, order) = (kind.weights, kind.order());
        let requests = self.requests.as_mut().ok_or("ggml has no input")?;
        writeln!(requests, "{what} {weights} {order} {sizes}")?;
        requests.flush()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let median = answer.split("\"median\": ").nth(1).and_then(|rest| rest.split(',').next());
        Ok(median.ok_or_else(|| format!("ggml does not multiply {kind}"))?.parse()?)
    }
}

/// Builds ggml where that has not been done: the path of the program.
fn build() -> Result<Option<PathBuf>, Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.join("target/ggml");
    eprintln!("building ggml in {} (a minute, once)", folder.display());
    let built = Command::new("bash").arg(here.join("ggml/build.sh")).arg(&folder).status()?;
    match built.code() {
        Some(0) => Ok(Some(folder.join("build/ggml_bench"))),
        // A tool is missing, and the script has said which one.
        Some(3) => Ok(None),
        _ => Err("ggml was not built".into()),
    }
}

impl Drop for Ggml {
    fn drop(&mut self) {
        // The program ends with its input.
        self.requests = None;
        let _ = self.child.wait();
    }
}
