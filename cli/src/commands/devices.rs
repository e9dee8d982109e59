//! `quantloom devices`

use std::fmt::Display;

use anyhow::Result;
use clap::Args;
use quantloom::codegen::target::TARGETS;
use quantloom::runtime::cpu::isa::Isa;
use quantloom::runtime::{cuda, hip};
use quantloom_tools::cuda::selftest;

use super::{print_line, table};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Try everything that the GPU backends rest on, on this device of each, and print a line
    /// each; exit 1 if something is wrong.
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, default_missing_value = "0")]
    test: Option<u32>,
}

/// A backend of the command line and the targets that it runs.
const BACKENDS: &[(&str, &[&str])] = &[
    ("portable", &["portable"]),
    ("cpu", &["x86", "neon"]),
    ("cuda", &["sm_80", "sm_89", "sm_90a", "sm_120"]),
    ("hip", &["gfx942", "gfx950"]),
    ("wgpu", &["wgsl", "wgsl_subgroups"]),
];

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
    let mut rows = table(&["backend", "state", "why"]);
    for (backend, targets) in BACKENDS {
        let has = |name: &&str| TARGETS.iter().any(|t| t.name == *name && t.has_kernels());
        let kernels = targets.iter().any(has);
        let none = || format!("this version generates no kernels for {}", targets.join(", "));
        for (present, what) in hardware(backend) {
            match (present, kernels) {
                (true, true) => rows.add_row([*backend, "present", &what]),
                (true, false) => rows.add_row([*backend, "absent", &format!("{what}; {}", none())]),
                (false, _) => rows.add_row([*backend, "absent", &what]),
            };
        }
    }
    print_line(rows)?;
    Ok(true)
}

/// The devices of a backend, or why there is none.
fn hardware(backend: &str) -> Vec<(bool, String)> {
    match backend {
        "portable" => vec![(true, processor())],
        "cpu" => {
            let sets = Isa::ALL.into_iter().filter(|isa| *isa != Isa::Portable);
            let sets: Vec<_> =
                sets.rev().filter(|isa| isa.check().is_ok()).map(Isa::name).collect();
            match sets.as_slice() {
                [] => vec![(false, format!("{}: no instruction set has kernels", processor()))],
                sets => vec![(true, format!("{}: {}", processor(), sets.join(", ")))],
            }
        }
        "cuda" => found(cuda::devices()),
        "hip" => found(hip::devices()),
        "wgpu" => portable_gpus(),
        _ => vec![(false, "this version does not look for it".to_owned())],
    }
}

/// A driver's devices.
fn found<D: Display, E: Display>(devices: Result<Vec<D>, E>) -> Vec<(bool, String)> {
    match devices {
        Ok(devices) if devices.is_empty() => vec![(false, "no device".to_owned())],
        Ok(devices) => devices.iter().map(|device| (true, device.to_string())).collect(),
        Err(error) => vec![(false, error.to_string())],
    }
}

/// The devices that Vulkan, Metal or Direct3D 12 show.
#[cfg(feature = "wgpu")]
fn portable_gpus() -> Vec<(bool, String)> {
    let found = quantloom::runtime::wgpu::devices();
    if found.is_empty() {
        let none = quantloom::runtime::wgpu::WgpuError::NoAdapter;
        return vec![(false, none.to_string())];
    }
    found.iter().map(|device| (true, device.to_string())).collect()
}

#[cfg(not(feature = "wgpu"))]
fn portable_gpus() -> Vec<(bool, String)> {
    vec![(false, "built without the feature `wgpu`".to_owned())]
}

/// The processor and its threads.
fn processor() -> String {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} on {threads} threads", std::env::consts::ARCH)
}
