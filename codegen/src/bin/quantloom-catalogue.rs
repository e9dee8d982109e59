//! `quantloom-catalogue`: writes the generated files of `quantloom-kernels`, or lists the stale
//! ones.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Parser};
use quantloom_codegen::catalogue::{CatalogueError, REGENERATE, files, schemes, stale, write};

/// Generates files of the catalogue crate from its schemes/*.scheme.
///
/// The generated files are src/decoders (the decoders of the code types, a file each), src/ops.rs
/// (the schemes as types) and MANIFEST (every kernel: name, hash, sequences). They are checked in,
/// so that crates which depend on quantloom-kernels do not build the generator. After a change of a
/// scheme, a plan or an emitter, run this command with --write and commit the changed files;
/// --check is for continuous integration. The output is deterministic.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
#[command(group(ArgGroup::new("mode").required(true)))]
struct Arguments {
    /// Compare only; exit status 1 if a file is stale.
    #[arg(long, group = "mode")]
    check: bool,
    /// Write the stale files, each atomically.
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
    // A closed stderr is not an error.
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
    let text = format!("stale:\n{}regenerate them with\n  {REGENERATE}\n", listed(&stale));
    Ok((ExitCode::FAILURE, text))
}
