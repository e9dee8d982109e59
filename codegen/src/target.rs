//! The targets by name: one row each, with the facts that schedules, verifier and emitters use.

mod class;
mod conversion;
mod feature;
mod half;
mod matrix;
pub mod tmem;

use std::fmt;

pub use class::Class;
pub use conversion::ConvertedCode;
pub use feature::{AVAILABILITY, Availability, Chips, Feature, PtxVersion};
pub use half::Half;
pub use matrix::{
    Element, MATRIX_OPS, MatrixOp, MatrixScope, ScaleCode, ScaleLanes, Scaling, matrix_op,
};
pub use tmem::{TMEM_COLUMNS, TMEM_LANES, TMEM_WARP_LANES};

/// A kind of device, or instruction set, on which products run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name in a scheme's `targets` clause and on the command line.
    pub name: &'static str,
    /// What it is.
    pub summary: &'static str,
    /// Its class, for plans.
    pub class: Class,
    /// How far its kernels are tested.
    pub support_level: SupportLevel,
    /// The target whose kernel sources are translated for it, if it has no emitter.
    pub translated_from: Option<&'static str>,
    /// Hardware limits and features, if it is a GPU with an emitter.
    pub gpu: Option<&'static Gpu>,
}

/// How far the kernels of a target are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SupportLevel {
    /// This version has no kernels for the target.
    Unsupported,
    /// Kernels give correct results on the simulator, and the vendor's compiler accepts their
    /// source.
    Simulated,
    /// Kernels give correct results on the hardware.
    Hardware,
}

/// Hardware limits and features of a GPU.
///
/// Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; AMD
/// CDNA3, CDNA4, RDNA3 and RDNA4 instruction set architecture documents, "LDS" (local data share), and
/// LLVM's "User Guide for AMDGPU Backend", "Processors".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The instruction set.
    pub chip: Chip,
    /// Lanes of a warp (wavefront).
    pub warp: u32,
    /// The lanes between which shuffles work.
    pub shuffle_group: ShuffleGroup,
    /// Warps of a warp group, if the target has warp groups.
    pub warp_group: Option<u32>,
    /// Maximal threads of a block.
    pub block_threads: u32,
    /// Maximal resident threads of an SM (CU; on RDNA a workgroup processor, two CUs).
    pub sm_threads: u32,
    /// 32-bit registers of an SM (CU).
    pub registers: u32,
    /// Maximal registers of a thread.
    pub thread_registers: u32,
    /// Maximal bytes of shared memory of a block.
    pub block_shared: u32,
    /// Bytes of shared memory of an SM (CU).
    pub sm_shared: u32,
    /// Bytes of shared memory that the system reserves for each block.
    pub reserved_shared: u32,
    /// Banks of shared memory, 4 bytes wide.
    pub banks: u32,
    /// The order in which shared memory serves 16-byte reads: a permutation of the eight groups of
    /// four neighbours in 32 lanes.
    pub wide_read_order: [u8; 8],
    /// Maximal buffers of a kernel; `None` if there is no limit.
    pub buffers: Option<u32>,
    /// The PTX version that introduced the chip; `None` if the target is not compiled from PTX.
    pub ptx: Option<PtxVersion>,
}

/// The neighbouring lanes between which shuffles work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShuffleGroup {
    /// Number of lanes, a power of two: a warp, a part of one, or 1 (no shuffles).
    pub lanes: u32,
    /// Shuffles work only in blocks whose number of threads is a multiple of this.
    pub block_multiple: u32,
}

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chip {
    /// NVIDIA, `sm_<number>`.
    Sm {
        /// 10 times the compute capability.
        number: u32,
        /// The architecture-specific `a` variant: instructions that only this chip has.
        arch_specific: bool,
    },
    /// AMD, by its name.
    Gfx(&'static str),
    /// Any GPU, through WGSL.
    Wgsl,
}

/// In the order of the lanes.
const IN_ORDER: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

const SM_80: Gpu = Gpu {
    chip: Chip::Sm { number: 80, arch_specific: false },
    warp: 32,
    shuffle_group: ShuffleGroup { lanes: 32, block_multiple: 32 },
    warp_group: None,
    block_threads: 1024,
    sm_threads: 2048,
    registers: 65_536,
    thread_registers: 255,
    block_shared: 163 << 10,
    sm_shared: 164 << 10,
    reserved_shared: 1 << 10,
    banks: 32,
    wide_read_order: IN_ORDER,
    buffers: None,
    ptx: Some(PtxVersion(7, 0)),
};
const SM_89: Gpu = Gpu {
    chip: Chip::Sm { number: 89, arch_specific: false },
    sm_threads: 1536,
    block_shared: 99 << 10,
    sm_shared: 100 << 10,
    ptx: Some(PtxVersion(7, 8)),
    ..SM_80
};
const SM_120: Gpu = Gpu {
    chip: Chip::Sm { number: 120, arch_specific: false },
    ptx: Some(PtxVersion(8, 7)),
    ..SM_89
};
const SM_120A: Gpu = Gpu { chip: Chip::Sm { number: 120, arch_specific: true }, ..SM_120 };
const SM_121A: Gpu = Gpu {
    chip: Chip::Sm { number: 121, arch_specific: true },
    ptx: Some(PtxVersion(8, 8)),
    ..SM_120
};
const SM_90A: Gpu = Gpu {
    chip: Chip::Sm { number: 90, arch_specific: true },
    warp_group: Some(4),
    block_shared: 227 << 10,
    sm_shared: 228 << 10,
    ptx: Some(PtxVersion(8, 0)),
    ..SM_80
};
const SM_100A: Gpu = Gpu {
    chip: Chip::Sm { number: 100, arch_specific: true },
    ptx: Some(PtxVersion(8, 6)),
    ..SM_90A
};
const SM_103A: Gpu = Gpu {
    chip: Chip::Sm { number: 103, arch_specific: true },
    ptx: Some(PtxVersion(8, 8)),
    ..SM_100A
};
const GFX942: Gpu = Gpu {
    chip: Chip::Gfx("gfx942"),
    warp: 64,
    shuffle_group: ShuffleGroup { lanes: 64, block_multiple: 64 },
    warp_group: None,
    block_threads: 1024,
    sm_threads: 2048,
    registers: 131_072,
    thread_registers: 512,
    block_shared: 64 << 10,
    sm_shared: 64 << 10,
    reserved_shared: 0,
    banks: 32,
    // Composable Kernel's documentation, "LDS bank conflicts".
    wide_read_order: [0, 5, 1, 4, 2, 7, 3, 6],
    buffers: None,
    ptx: None,
};
const GFX950: Gpu = Gpu {
    chip: Chip::Gfx("gfx950"),
    block_shared: 160 << 10,
    sm_shared: 160 << 10,
    banks: 64,
    // Not published.
    wide_read_order: IN_ORDER,
    ..GFX942
};

/// A workgroup processor, to whose four SIMD units of 1536 registers and 16 waves each the waves of a block are
/// distributed. Its shared memory has 64 banks in two halves, and which half a block gets is not said: what is
/// without conflicts in 32 banks is in 64.
const GFX1100: Gpu = Gpu {
    chip: Chip::Gfx("gfx1100"),
    warp: 32,
    shuffle_group: ShuffleGroup { lanes: 32, block_multiple: 32 },
    warp_group: None,
    block_threads: 1024,
    sm_threads: 2048,
    registers: 196_608,
    thread_registers: 256,
    block_shared: 64 << 10,
    sm_shared: 128 << 10,
    reserved_shared: 0,
    banks: 32,
    // Not published.
    wide_read_order: IN_ORDER,
    buffers: None,
    ptx: None,
};
const GFX1151: Gpu = Gpu { chip: Chip::Gfx("gfx1151"), ..GFX1100 };
const GFX1200: Gpu = Gpu { chip: Chip::Gfx("gfx1200"), ..GFX1100 };
const GFX1201: Gpu = Gpu { chip: Chip::Gfx("gfx1201"), ..GFX1100 };

/// The default limits of WebGPU (WebGPU, "Limits"), which every device has. WGSL has no warps: a
/// warp here is 16 neighbouring threads without any guarantee, and every warp operation is refused.
/// WGSL does not specify registers and banks either: these numbers are for the simulator's counts.
const WGSL: Gpu = Gpu {
    chip: Chip::Wgsl,
    warp: 16,
    shuffle_group: ShuffleGroup { lanes: 1, block_multiple: 1 },
    warp_group: None,
    block_threads: 256,
    sm_threads: 256,
    registers: 65_536,
    thread_registers: 255,
    block_shared: 16 << 10,
    sm_shared: 16 << 10,
    reserved_shared: 0,
    banks: 32,
    wide_read_order: IN_ORDER,
    buffers: Some(8),
    ptx: None,
};

/// A WebGPU device whose subgroups all have one size, 4 to 128 lanes, which a kernel does not know.
/// A block of a multiple of 128 threads consists of whole subgroups of any such size.
const WGSL_SUBGROUPS: Gpu =
    Gpu { shuffle_group: ShuffleGroup { lanes: 4, block_multiple: 128 }, ..WGSL };

const fn planned(name: &'static str, summary: &'static str, class: Class) -> Target {
    Target {
        name,
        summary,
        class,
        support_level: SupportLevel::Unsupported,
        translated_from: None,
        gpu: None,
    }
}

const fn cpu(name: &'static str, summary: &'static str) -> Target {
    Target { support_level: SupportLevel::Hardware, ..planned(name, summary, Class::Lanes) }
}

const fn gpu(name: &'static str, summary: &'static str, class: Class, gpu: &'static Gpu) -> Target {
    Target {
        gpu: Some(gpu),
        support_level: SupportLevel::Simulated,
        ..planned(name, summary, class)
    }
}

/// A language into which runtimes translate WGSL.
const fn translated(name: &'static str, summary: &'static str) -> Target {
    Target { translated_from: Some("wgsl"), ..planned(name, summary, Class::Shader) }
}

/// Every target.
pub const TARGETS: &[Target] = &[
    cpu("portable", "plain Rust on any machine"),
    cpu("x86", "AVX2, AVX-512 with VNNI"),
    cpu("neon", "Arm NEON, with dotprod, with i8mm"),
    gpu("sm_80", "NVIDIA Ampere", Class::Ampere, &SM_80),
    gpu("sm_89", "NVIDIA Ada", Class::Ada, &SM_89),
    Target {
        support_level: SupportLevel::Hardware,
        ..gpu("sm_90a", "NVIDIA Hopper", Class::Hopper, &SM_90A)
    },
    gpu("sm_100a", "NVIDIA Blackwell, data centre", Class::TensorMemory, &SM_100A),
    gpu("sm_103a", "NVIDIA Blackwell Ultra, data centre", Class::TensorMemory, &SM_103A),
    gpu("sm_120", "NVIDIA Blackwell, GeForce and RTX PRO", Class::Ada, &SM_120),
    gpu(
        "sm_120a",
        "NVIDIA Blackwell, GeForce and RTX PRO, with products of block scales",
        Class::Blackwell,
        &SM_120A,
    ),
    gpu("sm_121a", "NVIDIA GB10, with products of block scales", Class::Blackwell, &SM_121A),
    gpu("gfx942", "AMD CDNA3", Class::Cdna3, &GFX942),
    gpu("gfx950", "AMD CDNA4", Class::Cdna4, &GFX950),
    gpu("gfx1100", "AMD RDNA3", Class::Rdna3, &GFX1100),
    gpu("gfx1151", "AMD RDNA3.5", Class::Rdna3, &GFX1151),
    gpu("gfx1200", "AMD RDNA4", Class::Rdna4, &GFX1200),
    gpu("gfx1201", "AMD RDNA4", Class::Rdna4, &GFX1201),
    Target {
        support_level: SupportLevel::Hardware,
        ..gpu("wgsl", "any GPU through WGSL", Class::Shader, &WGSL)
    },
    Target {
        support_level: SupportLevel::Hardware,
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

/// GPUs that are not targets of this version: the prefix of their names, and the reason.
///
/// Sources: AMD's instruction set architecture documents of CDNA2 (matrix instructions, compared
/// with those of CDNA3), RDNA1 and RDNA2 (no matrix instructions), RDNA3 and RDNA4; LLVM's "User Guide for
/// AMDGPU Backend", "Processors".
const UNSUPPORTED_GPUS: &[(&str, &str)] = &[
    ("gfx90a", "its int8 matrix instructions have half the K of gfx942's, and it has none for FP8"),
    ("gfx10", "it has no matrix instructions"),
    ("gfx1250", "its WMMA instructions have another K than gfx1201's"),
    ("gfx11", "of RDNA3, kernels are made for gfx1100 and gfx1151"),
    ("gfx12", "of RDNA4, kernels are made for gfx1200 and gfx1201"),
];

/// Why an existing GPU is not a target of this version; `None` if the name is not known.
pub fn unsupported_reason(name: &str) -> Option<&'static str> {
    UNSUPPORTED_GPUS.iter().find(|(family, _)| name.starts_with(family)).map(|(_, why)| *why)
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
    /// Whether shuffles work between `lanes` neighbouring lanes in a block of `threads` threads.
    pub const fn can_shuffle(&self, lanes: u32, threads: u32) -> bool {
        let ShuffleGroup { lanes: most, block_multiple } = self.shuffle_group;
        lanes <= 1 || lanes <= most && threads.is_multiple_of(block_multiple)
    }
}

impl Target {
    /// Whether this version has kernels for it.
    pub fn has_kernels(&self) -> bool {
        self.support_level > SupportLevel::Unsupported
    }

    /// Whether the target has an instruction.
    pub fn has(&self, feature: Feature) -> bool {
        self.gpu.is_some_and(|gpu| feature.rows(gpu.chip).next().is_some())
    }

    /// Whether the target has matrix instructions that scale their operands.
    pub fn scales_operands(&self) -> bool {
        MATRIX_OPS.iter().any(|row| row.scaling.is_some() && self.has(row.needs))
    }

    /// The lowest PTX version in which the target has an instruction; `None` if the target lacks
    /// the instruction or is not compiled from PTX.
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
