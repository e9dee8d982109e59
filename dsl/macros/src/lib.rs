//! The procedural macro behind `scheme!`, since Rust wants procedural macros in a crate of their
//! own.
//!
//! In: `(path to the crates that the expansion names) declaration`. Out: the declared op. The work
//! is done by `quantloom_codegen::expand`, which is tested without a macro. Users write
//! `quantloom::scheme!` or `quantloom_kernels::scheme!`, which add the path.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;

/// Expands `(path) declaration`; called by the `scheme!` of a facade.
#[proc_macro]
pub fn scheme_impl(input: TokenStream) -> TokenStream {
    quantloom_codegen::expand::scheme(input.into()).into()
}
