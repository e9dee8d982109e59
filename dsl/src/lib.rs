//! The scheme language of Quantloom: what a quantisation scheme is, and what it means.
//!
//! In: the text of a scheme ([`parse`]), or a checkpoint's configuration through the fields of
//! [`Scheme`]. Out: a checked [`Scheme`] value, its number formats ([`mod@format`]), the layout
//! algebra that says where each bit lies ([`layout`]), and the scalar reference that defines
//! its meaning ([`mod@reference`]). This crate knows no target and no file format; it knows the
//! names of targets.
//!
//! Start at [`Scheme`]; docs/scheme-language.md is the reference of the language.

#![forbid(unsafe_code)]

mod builder;
mod correction;
pub mod format;
pub mod lang;
pub mod layout;
pub mod reference;
mod rules;
mod scheme;
mod taken;

pub use builder::SchemeBuilder;
pub use correction::Correction;
pub use lang::{Diagnostic, Diagnostics, Span, parse, parse_fragment, parse_layout};
pub use scheme::*;
pub use taken::{NotTaken, TYPES_OF_X, Taken};
