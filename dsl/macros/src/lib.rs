//! The shell of `scheme!`: Rust allows procedural macros only in a crate of their own.
//!
//! In: `(path of what the expansion uses) declaration`. Out: the declared op. All of it is
//! `quantloom_codegen::expand`, which is tested outside of a macro. Users write
//! `quantloom::scheme!` or `quantloom_kernels::scheme!`, which know the path.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;

/// Expands `(path) declaration`; called by the `scheme!` of a facade.
#[proc_macro]
pub fn scheme_impl(input: TokenStream) -> TokenStream {
    quantloom_codegen::expand::scheme(input.into()).into()
}
