//! `quantloom devices`

use anyhow::Result;
use clap::Args;
use quantloom::Device;
use quantloom_tools::cuda::selftest;

use super::{print_line, table};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Try everything that the GPU backends rest on, on this device of each, and print a line
    /// each; exit 1 if something is wrong.
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, default_missing_value = "0")]
    test: Option<u32>,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    match arguments.test {
        Some(device) => test(device),
        None => list(),
    }
}

/// One line a check, as soon as it is done.
fn test(device: u32) -> Result<bool> {
    let mut printed = Ok(());
    let good = selftest::run(device, &mut |check| {
        if printed.is_ok() {
            printed = print_line(format_args!("cuda  {check}"));
        }
    });
    printed.map(|()| good)
}

fn list() -> Result<bool> {
    let mut rows = table(&["backend", "state", "what"]);
    for listed in Device::list() {
        let why = listed.why();
        let state = if why.is_none() { "present" } else { "absent" };
        rows.add_row([&listed.name, state, why.as_ref().unwrap_or(&listed.description)]);
    }
    print_line(rows)?;
    print_line(format_args!("auto is {}.", Device::best().name()))?;
    Ok(true)
}
