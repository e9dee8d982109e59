//! The `quantloom` command. Without a subcommand it does the main job on the checkpoint that
//! ships with it. Exit status: 0 done, 1 failed (one sentence on stderr), 2 wrong usage.

#![forbid(unsafe_code)]

mod atomic_write;
mod commands;
mod interrupt;
mod picture;
mod plot;
mod printed;
mod progress;
mod warnings;

use std::process::ExitCode;

use clap::Parser;

use commands::Command;

/// A compiler for quantised matrix products: inspect, decode, multiply and check checkpoints.
///
/// Without a command it takes the checkpoint that ships with it, recognises each layer's
/// scheme, repacks, multiplies, compares with the file's own results, and measures its speed.
#[derive(Parser)]
#[command(name = "quantloom", version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = prepared().and_then(|()| match arguments.command {
        Some(command) => command.run(),
        None => commands::demo::run(),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            commands::eprint_line(&format!("quantloom: {}", commands::with_causes(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Shows warnings, such as that of a kernel that keeps registers in local memory, and starts the threads that
/// everything computes on, before anything needs them.
fn prepared() -> anyhow::Result<()> {
    warnings::show();
    interrupt::clean_up_when_ended()?;
    rayon::ThreadPoolBuilder::new().build_global().map_err(|error| {
        anyhow::anyhow!(
            "cannot start the threads to compute on: {error}; the environment variable \
             RAYON_NUM_THREADS=1 asks for one instead of one a core"
        )
    })
}

/// The reader of our output went away (`quantloom schemes | head`): nothing is wrong.
fn closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
