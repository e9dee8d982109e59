//! `quantloom devices`

use anyhow::Result;
use quantloom::codegen::target::TARGETS;

use super::{say, table};

/// A backend of the command line and the targets that it runs.
const BACKENDS: &[(&str, &[&str])] = &[
    ("portable", &["portable"]),
    ("cpu", &["x86", "neon"]),
    ("cuda", &["sm_80", "sm_89", "sm_90a"]),
    ("hip", &["gfx942", "gfx950"]),
    ("wgpu", &["wgsl"]),
];

pub(super) fn run() -> Result<bool> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut rows = table(&["backend", "state", "why"]);
    for (backend, targets) in BACKENDS {
        let has = |name: &&&str| TARGETS.iter().any(|t| t.name == **name && t.has_kernels);
        if targets.iter().any(|target| has(&target)) {
            let what = format!("{} on {threads} threads", std::env::consts::ARCH);
            rows.add_row([*backend, "present", &what]);
        } else {
            let why = format!("this version generates no kernels for {}", targets.join(", "));
            rows.add_row([*backend, "absent", &why]);
        }
    }
    say(rows)?;
    Ok(true)
}
