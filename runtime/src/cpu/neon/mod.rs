//! Arm NEON: the instruction sets `neon`, `neon_dot`, `neon_i8mm` and `neon_bf16`.
//!
//! In: the interfaces of [`crate::cpu`]. Out: their implementation. [`vector`] holds 64 bytes in
//! four registers; [`tile`] has the inner loops of products of many tokens, [`bf16`] those of bf16
//! parts; [`instruction`] has the instructions without intrinsics in stable Rust. Start at
//! [`tile`].

/// NEON's intrinsics need the feature in the caller's own list, even if the target has it.
macro_rules! neon {
    ($call:expr) => {{
        // SAFETY: every aarch64 CPU that Rust's targets allow has NEON; registers only.
        #[allow(clippy::macro_metavars_in_unsafe)]
        unsafe {
            $call
        }
    }};
}

/// Repeats a statement for constants: an index of registers must be a constant.
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
