//! Rust from plans: the family of a code type, plain safe code over the runtime's `Vector`.
//!
//! In: a code type. Out: `struct NAME` and its `Family`: from the planes of a chunk to codes, and
//! from codes to `f32` values. The steps are those of the plan's sequences for vector machines
//! ([`crate::plan::DequantPlan`]), which are proved for all codes; here they only get a spelling.
//! Two callers: `scheme!` puts the items into the user's crate ([`family()`]); [`page`] makes the
//! files of the catalogue.

mod expression;
mod family;
#[cfg(feature = "pages")]
pub mod page;

pub use family::{family, family_name};

/// Why a plan has no Rust text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// No sequence makes f32 values of these codes.
    #[error("there is no sequence from {0} to f32 values on vector machines")]
    NoSequence(String),
    /// A sequence for another class of targets.
    #[error("{template} has a step that vectors of 32-bit lanes do not have: {step}")]
    Step {
        /// The template.
        template: &'static str,
        /// The step.
        step: String,
    },
}
