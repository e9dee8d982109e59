//! The targets by name: one row each.

use std::fmt;

/// A place where products run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name in a scheme's `targets` clause and on the command line.
    pub name: &'static str,
    /// What it is.
    pub summary: &'static str,
    /// Whether this version has kernels for it.
    pub has_kernels: bool,
}

const fn planned(name: &'static str, summary: &'static str) -> Target {
    Target { name, summary, has_kernels: false }
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "portable", summary: "plain Rust on any machine", has_kernels: true },
    planned("x86", "AVX2, AVX-512 with VNNI and BF16"),
    planned("neon", "Arm NEON, dotprod, i8mm, bf16"),
    planned("sm_80", "NVIDIA Ampere"),
    planned("sm_89", "NVIDIA Ada"),
    planned("sm_90a", "NVIDIA Hopper"),
    planned("gfx942", "AMD CDNA3"),
    planned("gfx950", "AMD CDNA4"),
    planned("wgsl", "any GPU through WGSL"),
    planned("spirv", "any GPU through SPIR-V"),
    planned("msl", "Apple GPUs through Metal"),
];

/// The target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
