//! Quantloom: a compiler for quantised matrix products.
//!
//! In: a quantisation scheme, declared in ten lines or read off a checkpoint. Out: its layout
//! transforms, its scalar reference, its products. This crate is the face: it re-exports the
//! scheme language ([`dsl`]), the plans (`codegen`, with the feature `jit`), the runtime ([`runtime`]) and the
//! catalogue ([`kernels`]), and gives all devices one type ([`Device`]). The `quantloom` command is the
//! package `quantloom-cli`.
//!
//! ```
//! use quantloom::prelude::*;
//!
//! let scheme = parse(
//!     "W4A16G128 {
//!         weight:     u4 - 8,
//!         scale:      bf16 per 1x128,
//!         pack:       u32 [k:8 | k, n],
//!         activation: bf16 | f16,
//!     }",
//! )?;
//! assert_eq!(scheme.bits_per_weight(), 4.125);
//! # Ok::<(), quantloom::dsl::Diagnostics>(())
//! ```

// Forbidden but in `jit`, which vouches for the compiler.
#![deny(unsafe_code)]

#[cfg(feature = "jit")]
pub use quantloom_codegen as codegen;
pub use quantloom_dsl as dsl;
pub use quantloom_kernels as kernels;
pub use quantloom_runtime as runtime;

pub mod device;
#[cfg(feature = "jit")]
pub mod jit;
#[cfg(feature = "cuda")]
pub mod tiles;

pub use device::Device;

/// Declares a scheme as a type: the product op of the scheme, with its layout transforms.
///
/// The language is that of `.scheme` files, `docs/scheme-language.md`. A mistake is an error of
/// the compiler at the token that is wrong.
///
/// ```
/// use quantloom::prelude::*;
///
/// quantloom::scheme! {
///     /// int4 weights in groups of 128.
///     pub W4A16G128 {
///         weight:     u4 - 8,
///         scale:      bf16 per 1x128,
///         pack:       u32 [k:8 | k, n],
///         activation: bf16 | f16,
///     }
/// }
///
/// assert_eq!(W4A16G128::scheme().map(Scheme::bits_per_weight), Some(4.125));
/// ```
#[cfg(feature = "macros")]
#[macro_export]
macro_rules! scheme {
    ($($declaration:tt)*) => {
        $crate::__private::scheme_impl! { ($crate::__private) $($declaration)* }
    };
}

/// What [`scheme!`] expands to looks here.
#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod __private {
    pub use quantloom_dsl as dsl;
    pub use quantloom_macros::scheme_impl;
    pub use quantloom_runtime as runtime;
}

/// What most users need.
pub mod prelude {
    pub use quantloom_dsl::layout::Shape;
    pub use quantloom_dsl::{Accuracy, Scheme, parse};
    pub use quantloom_runtime::checkpoint::{Checkpoint, Layer, Tensor};
    pub use quantloom_runtime::declared::{Declared, Packed, Weight};
    pub use quantloom_runtime::element::{bf16, f16};
    pub use quantloom_runtime::experts::{
        ExpertCall, ExpertLayer, ExpertOp, ExpertOptions, Routed,
    };
    pub use quantloom_runtime::op::Workspace;
    pub use quantloom_runtime::prepared::PreparedLayer;
    pub use quantloom_runtime::unpacked::Unpacked;

    pub use crate::Device;
}

/// The README's examples, compiled. One is for NVIDIA GPUs.
#[cfg(all(doctest, feature = "cuda", feature = "macros"))]
#[doc = include_str!("../README.md")]
struct Readme;
