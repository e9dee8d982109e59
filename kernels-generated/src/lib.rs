//! The standard catalogue: the schemes that vLLM's quantised methods and compressed-tensors'
//! presets name, each a `.scheme` file of this crate.
//!
//! In: a name. Out: a [`Scheme`], or the type of that scheme in [`ops`], which loads, prepares and
//! multiplies. The files are the source (`docs/scheme-language.md` says how to read them);
//! [`decoders`] (the decoders of their code types), [`ops`] and MANIFEST are generated from them
//! by `quantloom-catalogue` and checked in, so that nothing is generated where this crate is used.

#![forbid(unsafe_code)]

#[macro_use]
mod declare;
// The printer's lines, not those of rustfmt: the same text on every version of it.
#[rustfmt::skip]
pub mod decoders;
#[rustfmt::skip]
pub mod ops;

use std::sync::OnceLock;

pub use decoders::DECODERS;
use quantloom_dsl::{Scheme, parse};
/// Checkpoints, devices and products: what a crate needs that depends on this one alone.
pub use quantloom_runtime as runtime;

/// Declares a scheme of one's own beside the catalogue's, for a crate without the facade
/// `quantloom`: it depends on this crate and on `quantloom-macros`, under that name. This crate
/// itself depends on no macro.
///
/// What it declares is what `quantloom::scheme!` declares.
#[macro_export]
macro_rules! scheme {
    ($($declaration:tt)*) => {
        ::quantloom_macros::scheme_impl! { ($crate::__private) $($declaration)* }
    };
}

/// What [`scheme!`] expands to looks here.
#[doc(hidden)]
pub mod __private {
    pub use quantloom_dsl as dsl;
    pub use quantloom_runtime as runtime;
}

/// One catalogue file.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// File name without extension, which is the scheme's name.
    pub name: &'static str,
    /// The file.
    pub text: &'static str,
}

macro_rules! entries {
    ($($name:literal),* $(,)?) => {
        &[$(Entry { name: $name, text: include_str!(concat!("../schemes/", $name, ".scheme")) }),*]
    };
}

/// Every file of `schemes/`, sorted by name.
pub const ENTRIES: &[Entry] = entries![
    "arm_w4a8_channel",
    "arm_w4a8_g32",
    "awq4",
    "ct_fp8",
    "ct_fp8_block",
    "ct_fp8_dynamic",
    "ct_mxfp4",
    "ct_mxfp4a16",
    "ct_mxfp4xfp8",
    "ct_mxfp6a16",
    "ct_mxfp6a8",
    "ct_mxfp8",
    "ct_mxfp8a16",
    "ct_mxint4",
    "ct_nvfp4",
    "ct_nvfp4a16",
    "ct_w2a16",
    "ct_w2a4",
    "ct_w2a8",
    "ct_w3a16",
    "ct_w3a16_aligned",
    "ct_w3a4",
    "ct_w3a8",
    "ct_w4a16",
    "ct_w4a16_asym",
    "ct_w4a16_bias",
    "ct_w4a4",
    "ct_w4a8",
    "ct_w4afp8",
    "ct_w5a16",
    "ct_w5a16_aligned",
    "ct_w5a8",
    "ct_w6a16",
    "ct_w6a16_aligned",
    "ct_w6a8",
    "ct_w7a16",
    "ct_w7a16_aligned",
    "ct_w7a8",
    "ct_w8a16",
    "ct_w8a8",
    "e3m4_g64",
    "fp8_block",
    "fp8_fnuz_block",
    "fp8_fnuz_channel",
    "gpt_oss_mxfp4_down",
    "gpt_oss_mxfp4_gate_up",
    "gptq3_v1",
    "gptq3_v1_actorder",
    "gptq3_v2",
    "gptq3_v2_actorder",
    "gptq4_v1",
    "gptq4_v1_actorder",
    "gptq4_v2",
    "gptq4_v2_actorder",
    "gptq8_v1",
    "gptq8_v1_actorder",
    "gptq8_v2",
    "gptq8_v2_actorder",
    "modelopt_fp8",
    "modelopt_nvfp4",
    "modelopt_nvfp4a16",
    "quark_w8a8_int8_channel",
    "quark_w8a8_int8_channel_static",
    "quark_w8a8_int8_tensor",
    "quark_w8a8_int8_tensor_static",
    "quark_w_mxfp4",
    "quark_w_mxfp4_a_fp8",
    "quark_w_mxfp4_a_mxfp4",
    "quark_w_mxfp4_a_mxfp6_e2m3",
    "quark_w_mxfp4_a_mxfp6_e3m2",
    "quark_w_mxfp6_e2m3",
    "quark_w_mxfp6_e2m3_a_fp8",
    "quark_w_mxfp6_e2m3_a_mxfp4",
    "quark_w_mxfp6_e2m3_a_mxfp6_e2m3",
    "quark_w_mxfp6_e2m3_a_mxfp6_e3m2",
    "quark_w_mxfp6_e3m2",
    "quark_w_mxfp6_e3m2_a_fp8",
    "quark_w_mxfp6_e3m2_a_mxfp4",
    "quark_w_mxfp6_e3m2_a_mxfp6_e2m3",
    "quark_w_mxfp6_e3m2_a_mxfp6_e3m2",
];

/// Every scheme of the catalogue, sorted by name.
pub fn catalogue() -> &'static [Scheme] {
    static SCHEMES: OnceLock<Vec<Scheme>> = OnceLock::new();
    // A file that does not parse is left out here and fails this crate's tests.
    SCHEMES.get_or_init(|| ENTRIES.iter().filter_map(|entry| parse(entry.text).ok()).collect())
}

/// The catalogue's scheme of a name.
pub fn scheme(name: &str) -> Option<&'static Scheme> {
    catalogue().iter().find(|scheme| scheme.name == name)
}

/// The catalogue's name of a scheme, if it has one: all but name and summary is the same.
pub fn name_of(scheme: &Scheme) -> Option<&'static str> {
    catalogue().iter().find(|entry| entry.same_meaning(scheme)).map(|entry| entry.name.as_str())
}
