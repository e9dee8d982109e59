//! Output files: whole or absent, never in the place of an input, and in the place of another file
//! only if that is asked for.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use quantloom::runtime::atomic_file::AtomicFile;
use quantloom::runtime::checkpoint::CONFIG_FILES;

/// Whether outputs may replace what is there.
#[derive(Args, Clone, Copy)]
pub(crate) struct Replace {
    /// Replace an output file that exists already; without it, nothing is written.
    #[arg(long)]
    force: bool,
}

impl Replace {
    /// Refuses outputs (with the options that name them) that are an input, or each other, by
    /// whatever path, and files that exist.
    pub(crate) fn check(self, outputs: &[(&str, &Path)], inputs: &[&Path]) -> Result<()> {
        for (position, (option, output)) in outputs.iter().enumerate() {
            keep_inputs(option, output, inputs)?;
            let twice = |other: &(&str, &Path)| same(other.1, output) || other.1 == *output;
            if let Some((other, _)) = outputs[..position].iter().find(|other| twice(other)) {
                bail!("{other} and {option} name one file, {}", output.display());
            }
            let there = std::fs::metadata(output).is_ok_and(|there| there.is_file());
            if there && !self.force {
                bail!("{option} {} exists already; --force replaces it", output.display());
            }
        }
        Ok(())
    }
}

/// Refuses an output that is an input, or of an input's folder.
fn keep_inputs(option: &str, output: &Path, inputs: &[&Path]) -> Result<()> {
    for input in inputs {
        let read = files(input);
        let within = match (output.canonicalize(), input.canonicalize()) {
            (Ok(output), Ok(input)) => output.starts_with(input),
            _ => false,
        };
        if within || read.iter().any(|file| same(file, output)) {
            bail!("{option} {} is an input; write to another file", output.display());
        }
    }
    Ok(())
}

/// The files that reading a path may read: itself and the configurations beside it, or all files of
/// a folder, which may be links to files elsewhere.
fn files(input: &Path) -> Vec<PathBuf> {
    if let Ok(folder) = std::fs::read_dir(input) {
        return folder.filter_map(|entry| Some(entry.ok()?.path())).collect();
    }
    let beside = CONFIG_FILES.map(|name| input.with_file_name(name));
    std::iter::once(input.to_owned()).chain(beside).collect()
}

/// Whether two paths lead to one file, links of both kinds followed.
fn same(one: &Path, other: &Path) -> bool {
    #[cfg(unix)]
    let of = |path: &Path| {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(path).map(|file| (file.dev(), file.ino()))
    };
    #[cfg(not(unix))]
    let of = |path: &Path| path.canonicalize();
    match (of(one), of(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Writes a text next to its target and renames it.
pub(crate) fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let write = || {
        let mut file = AtomicFile::create(path)?;
        file.write_all(text.as_bytes())?;
        file.keep()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// A text with a line end at its end, and a line that says so.
pub(crate) fn write_and_say(path: &Path, text: &str) -> Result<()> {
    write_atomically(path, text)?;
    crate::commands::print_line(format_args!("wrote {}", path.display()))
}
