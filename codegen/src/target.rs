//! The targets by name: one row each, with the facts that schedules, verifier and emitters ask.

mod class;
mod feature;

use std::fmt;

pub use class::Class;
pub use feature::{AVAILABILITY, Availability, Chips, Feature, PtxVersion};

/// A place where products run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name in a scheme's `targets` clause and on the command line.
    pub name: &'static str,
    /// What it is.
    pub summary: &'static str,
    /// What plans know of it.
    pub class: Class,
    /// How far its kernels are proved.
    pub proof: Proof,
    /// The target whose texts are translated for it, if it has none of its own.
    pub translates: Option<&'static str>,
    /// What a kernel can count on, if it is a GPU with an instruction set of its own.
    pub gpu: Option<&'static Gpu>,
}

/// How far the kernels of a target are proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proof {
    /// There are none in this version.
    Absent,
    /// They are right on the simulator, and the vendor's compiler takes their text.
    Simulated,
    /// They are right on the hardware.
    Run,
}

/// What a kernel can count on.
///
/// Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; AMD
/// CDNA3 and CDNA4 instruction set architecture documents, "LDS".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The instruction set.
    pub chip: Chip,
    /// Lanes of a warp (wavefront).
    pub warp: u32,
    /// Which threads exchange registers.
    pub exchange: Exchange,
    /// Warps of a warp group, where there are any.
    pub warp_group: Option<u32>,
    /// Threads of a block at most.
    pub block_threads: u32,
    /// Threads of a multiprocessor (compute unit) at most.
    pub processor_threads: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers: u32,
    /// Bytes of shared memory that a block can have at most.
    pub block_shared: u32,
    /// Bytes of shared memory of a multiprocessor.
    pub processor_shared: u32,
    /// Bytes of it that the system keeps for each block.
    pub reserved_shared: u32,
    /// Banks of shared memory, 4 bytes wide.
    pub banks: u32,
    /// In which order lanes are served that read 16 bytes each from it: of the fours of 32 neighbours.
    pub reads: [u8; 8],
    /// Buffers of a kernel at most, where that is limited.
    pub buffers: Option<u32>,
    /// The PTX version that introduced it; `None` if it is not reached through PTX.
    pub ptx: Option<PtxVersion>,
}

/// Which threads of a block exchange registers: neighbours by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// How many neighbours do, a power of two: all lanes of a warp, some, or each none but its own.
    pub lanes: u32,
    /// What the threads of a block are a multiple of, so that none of the neighbours is missing.
    pub threads: u32,
}

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chip {
    /// NVIDIA, `sm_<number>`.
    Sm {
        /// 10 times the compute capability.
        number: u32,
        /// The `a` variant: instructions of this chip alone.
        own: bool,
    },
    /// AMD, by its name.
    Gfx(&'static str),
    /// Any GPU that takes WGSL.
    Wgsl,
}

/// By their numbers.
const IN_ORDER: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

const SM_80: Gpu = Gpu {
    chip: Chip::Sm { number: 80, own: false },
    warp: 32,
    exchange: Exchange { lanes: 32, threads: 32 },
    warp_group: None,
    block_threads: 1024,
    processor_threads: 2048,
    registers: 65_536,
    block_shared: 163 << 10,
    processor_shared: 164 << 10,
    reserved_shared: 1 << 10,
    banks: 32,
    reads: IN_ORDER,
    buffers: None,
    ptx: Some(PtxVersion(7, 0)),
};
const SM_89: Gpu = Gpu {
    chip: Chip::Sm { number: 89, own: false },
    processor_threads: 1536,
    block_shared: 99 << 10,
    processor_shared: 100 << 10,
    ptx: Some(PtxVersion(7, 8)),
    ..SM_80
};
const SM_120: Gpu =
    Gpu { chip: Chip::Sm { number: 120, own: false }, ptx: Some(PtxVersion(8, 7)), ..SM_89 };
const SM_90A: Gpu = Gpu {
    chip: Chip::Sm { number: 90, own: true },
    warp_group: Some(4),
    block_shared: 227 << 10,
    processor_shared: 228 << 10,
    ptx: Some(PtxVersion(8, 0)),
    ..SM_80
};
const GFX942: Gpu = Gpu {
    chip: Chip::Gfx("gfx942"),
    warp: 64,
    exchange: Exchange { lanes: 64, threads: 64 },
    warp_group: None,
    block_threads: 1024,
    processor_threads: 2048,
    registers: 131_072,
    block_shared: 64 << 10,
    processor_shared: 64 << 10,
    reserved_shared: 0,
    banks: 32,
    // Composable Kernel's documentation, "LDS bank conflicts".
    reads: [0, 5, 1, 4, 2, 7, 3, 6],
    buffers: None,
    ptx: None,
};
const GFX950: Gpu = Gpu {
    chip: Chip::Gfx("gfx950"),
    block_shared: 160 << 10,
    processor_shared: 160 << 10,
    banks: 64,
    // Not published.
    reads: IN_ORDER,
    ..GFX942
};

/// What every WebGPU device has: its default limits (WebGPU, "Limits"). There are no lanes that run
/// together: a warp is a name for 16 neighbouring threads, of which nothing is promised, and every
/// operation of warps is refused. Registers and banks are nobody's promise either: rows for the
/// simulator's counts.
const WGSL: Gpu = Gpu {
    chip: Chip::Wgsl,
    warp: 16,
    exchange: Exchange { lanes: 1, threads: 1 },
    warp_group: None,
    block_threads: 256,
    processor_threads: 256,
    registers: 65_536,
    block_shared: 16 << 10,
    processor_shared: 16 << 10,
    reserved_shared: 0,
    banks: 32,
    reads: IN_ORDER,
    buffers: Some(8),
    ptx: None,
};

/// What a WebGPU device has besides where the subgroups of all kernels have one size: at least 4 lanes,
/// at most 128, and a kernel does not know more of it. A block of a multiple of 128 threads is whole
/// subgroups, whatever the size.
const WGSL_SUBGROUPS: Gpu = Gpu { exchange: Exchange { lanes: 4, threads: 128 }, ..WGSL };

const fn planned(name: &'static str, summary: &'static str, class: Class) -> Target {
    Target { name, summary, class, proof: Proof::Absent, translates: None, gpu: None }
}

const fn cpu(name: &'static str, summary: &'static str) -> Target {
    Target { proof: Proof::Run, ..planned(name, summary, Class::Lanes) }
}

const fn gpu(name: &'static str, summary: &'static str, class: Class, gpu: &'static Gpu) -> Target {
    Target { gpu: Some(gpu), proof: Proof::Simulated, ..planned(name, summary, class) }
}

/// A language into which runtimes translate WGSL by themselves.
const fn translated(name: &'static str, summary: &'static str) -> Target {
    Target { translates: Some("wgsl"), ..planned(name, summary, Class::Shader) }
}

/// Every target.
pub const TARGETS: &[Target] = &[
    cpu("portable", "plain Rust on any machine"),
    cpu("x86", "AVX2, AVX-512 with VNNI"),
    cpu("neon", "Arm NEON, with dotprod, with i8mm"),
    gpu("sm_80", "NVIDIA Ampere", Class::Ampere, &SM_80),
    gpu("sm_89", "NVIDIA Ada", Class::Ada, &SM_89),
    Target { proof: Proof::Run, ..gpu("sm_90a", "NVIDIA Hopper", Class::Hopper, &SM_90A) },
    gpu("sm_120", "NVIDIA Blackwell, GeForce and RTX PRO", Class::Ada, &SM_120),
    gpu("gfx942", "AMD CDNA3", Class::Cdna3, &GFX942),
    gpu("gfx950", "AMD CDNA4", Class::Cdna4, &GFX950),
    Target { proof: Proof::Run, ..gpu("wgsl", "any GPU through WGSL", Class::Shader, &WGSL) },
    Target {
        proof: Proof::Run,
        ..gpu(
            "wgsl_subgroups",
            "any GPU through WGSL, with subgroups of one size",
            Class::Shader,
            &WGSL_SUBGROUPS,
        )
    },
    translated("spirv", "any GPU through SPIR-V"),
    translated("msl", "Apple GPUs through Metal"),
];

/// GPUs that are no targets in this version: what their names begin with, and why.
///
/// Sources: AMD's instruction set architecture documents of CDNA2 (its matrix instructions beside those of
/// CDNA3), RDNA1 to RDNA4 (waves, and WMMA from RDNA3 on).
const LATER: &[(&str, &str)] = &[
    ("gfx90a", "its matrix instructions take int8 by half the columns of gfx942's, and no FP8"),
    ("gfx10", "its waves have 32 lanes, and it has no matrix instructions"),
    ("gfx11", "its waves have 32 lanes, and its matrix instructions are others (WMMA)"),
    ("gfx12", "its waves have 32 lanes, and its matrix instructions are others (WMMA)"),
];

/// Why a GPU that exists is no target in this version, if that is known.
pub fn later(name: &str) -> Option<&'static str> {
    LATER.iter().find(|(family, _)| name.starts_with(family)).map(|(_, why)| *why)
}

/// The names of all targets, for a message.
pub fn names() -> String {
    TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ")
}

/// The target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Gpu {
    /// Whether so many neighbouring lanes exchange registers in a block of so many threads.
    pub const fn exchanges(&self, lanes: u32, threads: u32) -> bool {
        let Exchange { lanes: most, threads: whole } = self.exchange;
        lanes <= 1 || lanes <= most && threads.is_multiple_of(whole)
    }
}

impl Target {
    /// Whether this version has kernels for it.
    pub fn has_kernels(&self) -> bool {
        self.proof > Proof::Absent
    }

    /// Whether the target has an instruction.
    pub fn has(&self, feature: Feature) -> bool {
        self.gpu.is_some_and(|gpu| feature.rows(gpu.chip).next().is_some())
    }

    /// The lowest PTX version in which the target has an instruction; `None` if it never has, or
    /// is not reached through PTX.
    pub fn ptx(&self, feature: Feature) -> Option<PtxVersion> {
        let gpu = self.gpu?;
        let lowest = feature.rows(gpu.chip).filter_map(|row| row.ptx).min()?;
        Some(lowest.max(gpu.ptx?))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
