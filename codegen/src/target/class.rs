//! Classes of targets, by which plans choose.

/// A class of targets that share instructions, and therefore costs, products and native layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// SIMD vectors of 32-bit lanes, without 16-bit arithmetic: CPUs.
    Lanes,
    /// NVIDIA, compute capability 8.0.
    Ampere,
    /// NVIDIA, compute capability 8.9.
    Ada,
    /// NVIDIA, compute capability 9.0.
    Hopper,
    /// NVIDIA, compute capabilities 10.0 and 10.3, with the instructions of these chips alone.
    TensorMemory,
    /// NVIDIA, compute capabilities 12.0 and 12.1, with the instructions of these chips alone.
    Blackwell,
    /// AMD gfx942.
    Cdna3,
    /// AMD gfx950.
    Cdna4,
    /// AMD gfx1100, gfx1151.
    Rdna3,
    /// AMD gfx1200, gfx1201.
    Rdna4,
    /// GPUs through a portable shading language.
    Shader,
}
