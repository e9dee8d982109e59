//! Classes of targets: what plans know of a target.

/// Targets that share instructions, and with them costs, products and native layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// 32-bit lanes side by side, without 16-bit arithmetic.
    Lanes,
    /// NVIDIA, compute capability 8.0.
    Ampere,
    /// NVIDIA, compute capability 8.9.
    Ada,
    /// NVIDIA, compute capability 9.0.
    Hopper,
    /// AMD gfx942.
    Cdna3,
    /// AMD gfx950.
    Cdna4,
    /// GPUs through a portable shading language.
    Shader,
}
