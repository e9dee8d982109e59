//! Instruction sets: their names, whether this machine has them, and the functions that run code
//! compiled for them: one for all sets, and one for those with dot products of bf16 numbers.
//!
//! In: a `Vectorised`, generic over [`Vector`]. Out: its result with the vectors of an [`Isa`]. `enter`
//! is called once per task of a thread, never inside a hot loop.

use std::fmt;

#[cfg(target_arch = "aarch64")]
use super::neon::{self, Neon};
use super::vector::{Bf16Vector, Portable, Tiling, Vector};

/// An instruction set that products are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust for the compiler's default target.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, DQ, VBMI and VNNI.
    Avx512,
    /// [`Isa::Avx512`] with AVX512_BF16.
    Avx512Bf16,
    /// [`Isa::Avx512Bf16`] with the 8-bit products of AMX, on Linux.
    Avx512Amx,
    /// AArch64 NEON.
    Neon,
    /// NEON with the dot product instructions.
    NeonDot,
    /// [`Isa::NeonDot`] with the 8-bit matrix products.
    NeonI8mm,
    /// [`Isa::NeonI8mm`] with the bf16 products.
    NeonBf16,
}

impl Isa {
    /// Every instruction set, from the most general to the most special of each architecture.
    pub const ALL: [Self; 9] = [
        Self::Portable,
        Self::Avx2,
        Self::Avx512,
        Self::Avx512Bf16,
        Self::Avx512Amx,
        Self::Neon,
        Self::NeonDot,
        Self::NeonI8mm,
        Self::NeonBf16,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512_bf16",
            Self::Avx512Amx => "avx512_amx",
            Self::Neon => "neon",
            Self::NeonDot => "neon_dot",
            Self::NeonI8mm => "neon_i8mm",
            Self::NeonBf16 => "neon_bf16",
        }
    }

    /// The instruction set of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// Why this version has no kernels for an instruction set that CPUs have; `None` if no such set is called so
    /// (docs/targets.md).
    pub fn no_kernels(name: &str) -> Option<&'static str> {
        match name {
            "sve" | "sve2" => Some(
                "stable Rust has no functions for its registers; Neon's kernels run on the CPUs that have it",
            ),
            "sme" | "sme2" => Some(
                "stable Rust has no functions for its tiles; Neon's kernels run on the CPUs that have it",
            ),
            _ => None,
        }
    }

    /// Checks that this version has kernels for the instruction set and that this machine can run
    /// them.
    ///
    /// # Errors
    /// The missing feature.
    pub fn check(self) -> Result<(), UnsupportedIsa> {
        let unsupported = |missing| Err(UnsupportedIsa { isa: self, missing });
        match self {
            Self::Portable => Ok(()),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Avx512 | Self::Avx512Bf16 | Self::Avx512Amx => {
                match missing_x86(self) {
                    None => Ok(()),
                    Some(feature) => unsupported(MissingFeature::Feature(feature)),
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 | Self::Avx512Bf16 | Self::Avx512Amx => {
                unsupported(MissingFeature::Architecture("x86_64"))
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon | Self::NeonDot | Self::NeonI8mm | Self::NeonBf16 => {
                match missing_arm(self) {
                    None => Ok(()),
                    Some(feature) => unsupported(MissingFeature::Feature(feature)),
                }
            }
            #[cfg(not(target_arch = "aarch64"))]
            Self::Neon | Self::NeonDot | Self::NeonI8mm | Self::NeonBf16 => {
                unsupported(MissingFeature::Architecture("aarch64"))
            }
        }
    }

    /// The instruction sets that this machine runs, best first.
    pub fn present() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().rev().filter(|isa| isa.check().is_ok())
    }

    /// The best instruction set that this machine runs.
    pub fn best() -> Self {
        Self::present().next().unwrap_or(Self::Portable)
    }

    /// The sizes of the register tiles.
    pub(crate) fn tiling(self) -> Tiling {
        struct Ask;
        impl Vectorised for Ask {
            type Out = Tiling;
            #[inline(always)]
            fn run<V: Vector>(self) -> Tiling {
                V::TILING
            }
        }
        enter(self, Ask)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a machine lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingFeature {
    /// The machine has another architecture.
    Architecture(&'static str),
    /// The CPU (or the operating system) lacks a feature.
    Feature(&'static str),
}

impl fmt::Display for MissingFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Architecture(name) => {
                write!(f, "it needs {name}, this machine is {}", std::env::consts::ARCH)
            }
            Self::Feature(name) => write!(f, "this CPU has no {name}"),
        }
    }
}

/// Why an instruction set cannot run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the instruction set {isa} is not present: {missing}")]
#[non_exhaustive]
pub struct UnsupportedIsa {
    /// The instruction set.
    pub isa: Isa,
    /// What is missing.
    pub missing: MissingFeature,
}

/// Code that is written once and compiled for each instruction set.
///
/// `run` and every function that it calls with a `V` must be `#[inline(always)]`; otherwise they
/// are compiled without the instruction set: correct, but slow. Use no closures around vector
/// operations.
pub(crate) trait Vectorised {
    /// The result.
    type Out;
    /// Runs the code.
    fn run<V: Vector>(self) -> Self::Out;
}

/// Runs a kernel with the vectors of an instruction set.
///
/// An instruction set that this machine lacks runs as [`Isa::Portable`]: the result is the same.
pub(crate) fn enter<K: Vectorised>(isa: Isa, kernel: K) -> K::Out {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Avx512Amx if present(isa) => {
            // SAFETY: `present` has found every feature that the function enables.
            unsafe { enter_avx512(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if present(isa) => {
            // SAFETY: `present` has found every feature that the function enables.
            unsafe { enter_avx2(kernel) }
        }
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm | Isa::NeonBf16 if present(isa) => {
            // SAFETY: `present` has found every feature that the function enables.
            unsafe { enter_neon_i8mm(kernel) }
        }
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot if present(isa) => {
            // SAFETY: `present` has found every feature that the function enables.
            unsafe { enter_neon_dot(kernel) }
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => kernel.run::<Neon<neon::Base>>(),
        _ => kernel.run::<Portable>(),
    }
}

/// Code that is compiled for instruction sets with dot products of bf16 numbers; see [`Vectorised`].
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) trait Bf16Vectorised {
    /// Runs the code.
    fn run<V: Bf16Vector>(self);
}

/// Runs a kernel with the vectors of an instruction set that has dot products of bf16 numbers.
///
/// # Panics
/// If the instruction set is another one, or absent.
pub(crate) fn enter_bf16<K: Bf16Vectorised>(isa: Isa, kernel: K) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if present(isa) => {
            // SAFETY: `present` has found every feature that the function enables.
            unsafe { enter_avx512_bf16(kernel) }
        }
        _ => {
            drop(kernel);
            unreachable!("{isa} has no dot products of bf16 numbers")
        }
    }
}

/// [`Isa::check`]; the standard library caches the CPU's features.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn present(isa: Isa) -> bool {
    isa.check().is_ok()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx2,fma,f16c,bmi1,bmi2"
)]
fn enter_avx512<K: Vectorised>(kernel: K) -> K::Out {
    kernel.run::<super::avx512::Avx512<false>>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx512bf16,avx2,fma,f16c,bmi1,bmi2"
)]
fn enter_avx512_bf16<K: Bf16Vectorised>(kernel: K) {
    kernel.run::<super::avx512::Avx512<true>>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2")]
fn enter_avx2<K: Vectorised>(kernel: K) -> K::Out {
    kernel.run::<super::avx2::Avx2>()
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod,i8mm")]
fn enter_neon_i8mm<K: Vectorised>(kernel: K) -> K::Out {
    kernel.run::<Neon<neon::I8mm>>()
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
fn enter_neon_dot<K: Vectorised>(kernel: K) -> K::Out {
    kernel.run::<Neon<neon::Dot>>()
}

/// The first missing feature of the instruction set.
#[cfg(target_arch = "x86_64")]
fn missing_x86(isa: Isa) -> Option<&'static str> {
    macro_rules! first_missing {
        ($($feature:tt)*) => {
            [$(($feature, is_x86_feature_detected!($feature))),*]
                .into_iter()
                .find(|(_, there)| !there)
                .map(|(feature, _)| feature)
        };
    }
    let avx2 = || first_missing!("avx2" "fma" "f16c" "bmi1" "bmi2");
    let avx512 =
        || first_missing!("avx512f" "avx512bw" "avx512vl" "avx512dq" "avx512vbmi" "avx512vnni");
    let bf16 = || first_missing!("avx512bf16");
    let amx = || (!super::amx::present()).then_some("amx-int8");
    match isa {
        Isa::Avx2 => avx2(),
        Isa::Avx512 => avx2().or_else(avx512),
        Isa::Avx512Bf16 => avx2().or_else(avx512).or_else(bf16),
        Isa::Avx512Amx => avx2().or_else(avx512).or_else(bf16).or_else(amx),
        _ => None,
    }
}

/// The first missing feature of the instruction set.
#[cfg(target_arch = "aarch64")]
fn missing_arm(isa: Isa) -> Option<&'static str> {
    use std::arch::is_aarch64_feature_detected as detected;
    let features = [
        (Isa::Neon, "neon", detected!("neon")),
        (Isa::NeonDot, "dotprod", detected!("dotprod")),
        (Isa::NeonI8mm, "i8mm", detected!("i8mm")),
        (Isa::NeonBf16, "bf16", detected!("bf16")),
    ];
    // Each instruction set includes those before it.
    let needed = features.into_iter().filter(|(set, ..)| *set <= isa);
    needed.map(|(_, feature, there)| (feature, there)).find(|(_, there)| !there).map(|(f, _)| f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_foreign_sets_are_refused() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        let foreign = if cfg!(target_arch = "x86_64") { Isa::Neon } else { Isa::Avx2 };
        let why = foreign.check().unwrap_err().to_string();
        assert!(why.contains(foreign.name()) && why.contains(std::env::consts::ARCH), "{why}");
        assert_eq!(Isa::present().last(), Some(Isa::Portable));
    }
}
