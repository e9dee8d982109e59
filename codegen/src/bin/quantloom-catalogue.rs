//! `quantloom-catalogue`: makes the generated files of `quantloom-kernels`, or says which of them
//! are stale.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Parser};
use quantloom_codegen::catalogue::{AGAIN, CatalogueError, files, schemes, stale, write};

/// Makes the generated files of the catalogue crate out of its schemes/*.scheme.
///
/// Generated are src/families (the decoders of the code types, a file each), src/ops.rs (the
/// schemes as types) and MANIFEST (every kernel: name, hash, sequences). They are checked in, so
/// that a crate which depends on quantloom-kernels builds no generator. After a change of a
/// scheme, of a plan or of an emitter, run it with --write and commit what changed; --check is
/// for continuous integration. The same schemes always give the same bytes.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
#[command(group(ArgGroup::new("mode").required(true)))]
struct Arguments {
    /// Compare, change nothing; exit status 1 if a file is stale.
    #[arg(long, group = "mode")]
    check: bool,
    /// Write what is stale: each file whole or not at all.
    #[arg(long, group = "mode")]
    write: bool,
    /// The folder of quantloom-kernels.
    #[arg(long, default_value = "kernels-generated")]
    folder: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (code, text) = match run(&arguments) {
        Ok(outcome) => outcome,
        Err(error) => (ExitCode::FAILURE, format!("quantloom-catalogue: {error}\n")),
    };
    // Nobody may be listening.
    let _ = std::io::stderr().write_all(text.as_bytes());
    code
}

fn run(arguments: &Arguments) -> Result<(ExitCode, String), CatalogueError> {
    let files = files(&schemes(&arguments.folder)?)?;
    let listed = |paths: &[String]| {
        paths
            .iter()
            .map(|path| format!("  {}\n", arguments.folder.join(path).display()))
            .collect::<String>()
    };
    if arguments.write {
        let written = write(&arguments.folder, &files)?;
        let text =
            format!("{} files, {} written\n{}", files.len(), written.len(), listed(&written));
        return Ok((ExitCode::SUCCESS, text));
    }
    let stale = stale(&arguments.folder, &files)?;
    if stale.is_empty() {
        return Ok((ExitCode::SUCCESS, format!("{} files are fresh\n", files.len())));
    }
    let text = format!("stale:\n{}refresh them with\n  {AGAIN}\n", listed(&stale));
    Ok((ExitCode::FAILURE, text))
}
