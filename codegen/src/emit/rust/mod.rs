//! The Rust emitter: the decoder of a code type (its `CodeDecoder`), safe code over the runtime's
//! `Vector`.
//!
//! In: a code type. Out: `struct NAME` and its `CodeDecoder`: from the bit planes of a chunk to codes,
//! and from codes to `f32` values. The steps are those of the plan's sequences for CPUs
//! ([`crate::plan::DequantPlan`]), which are proved for all codes; this module only prints them.
//! Two callers: `scheme!` adds the items to the user's crate ([`decoder()`]); [`page`] generates the
//! files of the catalogue.

mod decoder;
mod expression;
#[cfg(feature = "pages")]
pub mod page;

pub use decoder::{decoder, decoder_name};

/// Why a code type has no Rust decoder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RustEmitError {
    /// No sequence decodes these codes to f32.
    #[error("no sequence decodes {0} to f32 on CPUs")]
    NoSequence(String),
    /// A sequence has a step that CPUs do not support.
    #[error("{template} has a step that CPU vectors do not support: {step}")]
    Step {
        /// The template.
        template: &'static str,
        /// The step.
        step: String,
    },
}
