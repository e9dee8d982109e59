//! Random legal schemes against the reference, for a given time. Exit status: 0 no finding, 1 some
//! findings, 2 wrong usage.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use quantloom_dsl::parse;
use quantloom_random_schemes::campaign::{
    CampaignOptions, Event, Finding, Report, Said, drawn_text, run,
};
use quantloom_random_schemes::checks::{Case, Check, Subject, note_panics};

/// Draws legal schemes and checks them: printing, packing, quantising, products on the CPU and on
/// simulated GPUs. Shrinks failures and prints them with the command that reproduces them.
#[derive(Parser)]
struct Arguments {
    /// The seed of all draws; without it a fresh seed is used and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// No draw starts after this many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The most draws.
    #[arg(long, default_value_t = u64::MAX)]
    count: u64,
    /// The first draw.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Only this check: print, pack, quantize or products.
    #[arg(long)]
    only: Option<String>,
    /// Only products on this backend: portable, avx2, ..., sim:sm_90a.
    #[arg(long)]
    target: Option<String>,
    /// The most seconds of one draw; the program ends with status 1 at a draw that takes longer.
    #[arg(long, default_value_t = 180)]
    draw_seconds: u64,
    /// Stop after this many findings.
    #[arg(long, default_value_t = 10)]
    findings: usize,
    /// The folder for the schemes of findings.
    #[arg(long, default_value = "target/random-schemes")]
    out: PathBuf,
    /// Check this scheme instead of drawn ones.
    #[arg(long, value_name = "FILE", requires = "shape")]
    scheme: Option<PathBuf>,
    /// The shape of --scheme.
    #[arg(long, value_name = "NxK", value_parser = shape)]
    shape: Option<(u64, u64)>,
    /// The values of M of --scheme.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    m: Vec<usize>,
    /// The seed of the data of --scheme.
    #[arg(long, default_value_t = 0)]
    data: u64,
}

fn shape(text: &str) -> Result<(u64, u64), String> {
    let sides = text.split_once('x').and_then(|(n, k)| Some((n.parse().ok()?, k.parse().ok()?)));
    sides.filter(|(n, k)| *n > 0 && *k > 0).ok_or_else(|| format!("\"{text}\" is not NxK"))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match done(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "random-schemes: {error}");
            ExitCode::from(2)
        }
    }
}

fn done(arguments: &Arguments) -> Result<bool, String> {
    let options = CampaignOptions {
        seed: arguments.seed.unwrap_or_else(fresh),
        first: arguments.first,
        count: arguments.count,
        time: Duration::from_secs(arguments.seconds),
        findings: arguments.findings,
        shrinking: Duration::from_secs(10),
        draw: Duration::from_secs(arguments.draw_seconds),
        checks: checks(arguments)?,
    };
    note_panics();
    let subject = Subject::default();
    let report = match &arguments.scheme {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            let scheme = parse(&text).map_err(|faults| faults.to_string())?;
            let case = Case {
                scheme,
                shape: arguments.shape.unwrap_or((1, 1)),
                tokens: arguments.m.clone(),
                seed: arguments.data,
            };
            let mut report = Report::default();
            report.check(&subject, &options, (0, &case), &Said::default());
            report.findings.iter().for_each(|finding| show(finding, &arguments.out, options.seed));
            report
        }
        None => {
            print_line(&format!("seed {}", options.seed));
            run(&subject, &options, &|event| match event {
                Event::Finding(finding) => show(finding, &arguments.out, options.seed),
                Event::Endless { draw, report } => {
                    conclude(report);
                    show_endless(draw, options.seed, arguments.draw_seconds);
                    // The thread of the draw cannot be stopped.
                    std::process::exit(1);
                }
            })
        }
    };
    Ok(conclude(&report))
}

/// Prints the tables and the totals of a campaign. Whether nothing failed.
fn conclude(report: &Report) -> bool {
    print_line(&report.text());
    for broken in &report.broken {
        print_line(&format!("broken: {broken}"));
    }
    let (passed, failed) = report.totals();
    print_line(&format!("{passed} passed, {failed} failed"));
    failed == 0
}

fn show_endless(draw: u64, seed: u64, seconds: u64) {
    let (text, _) = drawn_text(seed, draw);
    print_line(&format!(
        "finding: draw {draw} takes longer than {seconds} s\n{text}\nagain: cargo run --release -p \
         quantloom-random-schemes -- --seed {seed} --first {draw} --count 1\n"
    ));
}

fn checks(arguments: &Arguments) -> Result<Vec<Check>, String> {
    let mut checks = Check::all();
    if let Some(only) = &arguments.only {
        let names = ["print", "pack", "quantize", "products"];
        if !names.contains(&only.as_str()) {
            return Err(format!("there is no check \"{only}\"; they are {}", names.join(", ")));
        }
        checks.retain(|check| match check {
            Check::Products(_) => only == "products",
            check => check.to_string() == *only,
        });
    }
    if let Some(target) = &arguments.target {
        let known: Vec<String> = checks.iter().map(Check::to_string).collect();
        let wanted = [target.clone(), format!("sim:{target}")];
        checks.retain(|check| matches!(check, Check::Products(name) if wanted.contains(name)));
        if checks.is_empty() {
            return Err(format!("there is no target \"{target}\" among {}", known.join(", ")));
        }
    }
    Ok(checks)
}

/// A seed that differs from run to run.
fn fresh() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64 % 1_000_000_007
}

fn print_line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn show(finding: &Finding, out: &Path, seed: u64) {
    let Finding { draw, check, also, case, fault } = finding;
    let file =
        out.join(format!("seed{seed}-draw{draw}-{}.scheme", check.to_string().replace(':', "-")));
    let written =
        std::fs::create_dir_all(out).and_then(|()| std::fs::write(&file, case.scheme.to_string()));
    if let Err(error) = written {
        print_line(&format!("cannot write {}: {error}", file.display()));
    }
    let (n, k) = case.shape;
    let tokens: Vec<String> = case.tokens.iter().map(usize::to_string).collect();
    let (file, tokens, data) = (file.display(), tokens.join(","), case.seed);
    let again = match check {
        Check::Products(backend) => format!(
            "quantloom verify {file} --backend {backend} --shape {n}x{k} --m {tokens} --seed {data}"
        ),
        check => format!(
            "cargo run --release -p quantloom-random-schemes -- --scheme {file} --only {check} \
             --shape {n}x{k} --m {tokens} --data {data}"
        ),
    };
    let also: Vec<String> = also.iter().map(Check::to_string).collect();
    let also = if also.is_empty() { String::new() } else { format!(" (also {})", also.join(", ")) };
    print_line(&format!(
        "finding: draw {draw}, {check}{also}: {:?}: {}\n{}again: {again}\n",
        fault.kind, fault.message, case.scheme
    ));
}
