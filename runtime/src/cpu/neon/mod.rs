//! Arm NEON: what the sets `neon`, `neon_dot`, `neon_i8mm` and `neon_bf16` do in their own way.
//!
//! In: the interfaces of [`crate::cpu`]. Out: their implementation. [`vector`] holds 64 bytes in
//! four registers; [`tile`] has the loops in which products of many tokens spend their time,
//! [`bf16`] that of bf16 parts; [`instruction`] has what stable Rust has no intrinsics for. Start with
//! [`tile`].

/// NEON's intrinsics ask for the feature in the caller's own list, even where the target has it.
macro_rules! neon {
    ($call:expr) => {{
        // SAFETY: every aarch64 processor that Rust's targets allow has NEON; registers only.
        #[allow(clippy::macro_metavars_in_unsafe)]
        unsafe {
            $call
        }
    }};
}

/// Runs a statement for constants, one after another: an index of registers must be known.
macro_rules! for_each {
    ($name:ident in $($value:literal)* => $body:expr) => {
        $({ const $name: usize = $value; $body; })*
    };
}

pub(super) mod bf16;
#[cfg(test)]
mod counted;
mod instruction;
#[cfg(test)]
mod tests;
mod tile;
mod vector;

pub(crate) use vector::{Base, Dot, I8mm, Neon};
