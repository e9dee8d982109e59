//! The scheme language of Quantloom: quantisation schemes and their meaning.
//!
//! In: the text of a scheme ([`parse`]), or the fields of a [`Scheme`] from a checkpoint's
//! configuration. Out: a checked [`Scheme`] value, its number formats ([`mod@format`]), the layout
//! algebra that gives the address of each bit ([`layout`]), the layers of experts whose weights
//! schemes describe ([`experts`]), and the scalar reference that defines their meaning
//! ([`mod@reference`]). This crate knows the names of targets, but no target and no
//! file format.
//!
//! Start at [`Scheme`]; docs/scheme-language.md is the reference of the language.

#![forbid(unsafe_code)]

mod activation_choice;
mod builder;
mod correction;
pub mod experts;
pub mod format;
mod integers;
pub mod lang;
mod launch;
pub mod layout;
pub mod reference;
mod rules;
mod scheme;

pub use activation_choice::{ActivationChoice, ActivationChoiceError, INPUT_DTYPES};
pub use builder::SchemeBuilder;
pub use correction::ZeroPointCorrection;
pub use integers::{SignedBytes, TableIntegers};
pub use lang::{Diagnostic, Diagnostics, Span, parse, parse_fragment, parse_layout};
pub use launch::{BufferRole, Dimension, Storage};
pub use scheme::*;
