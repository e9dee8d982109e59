//! The declared type.

use proc_macro2::{Ident, Span, TokenStream};
use quantloom_dsl::Scheme;
use quantloom_dsl::lang::{Declaration, TokenKind};
use quote::{format_ident, quote, quote_spanned};

use crate::emit::rust::decoder;

/// The type of the declaration's name, and its implementation of `Declared`.
///
/// The implementation is in a block with full paths, so that its names and those of the user's file
/// do not interfere.
pub(super) fn op(root: &TokenStream, declaration: &Declaration, scheme: &Scheme) -> TokenStream {
    let (visibility, name) = (&declaration.visibility, &declaration.name);
    let docs = docs(declaration, scheme);
    let text = scheme.to_string();
    // The compiler reports errors about the type at its name.
    let place = name.as_ref().map_or_else(Span::call_site, Ident::span);
    let item = quote_spanned!(place=> struct #name;);
    // Every code type of the language has a decoder; a missing one is a compile error.
    let decoder =
        decoder(&scheme.weight.code, &format_ident!("Decoder"), root).unwrap_or_else(|error| {
            let message = error.to_string();
            quote_spanned!(place=> ::core::compile_error! { #message })
        });
    quote! {
        #docs
        #[derive(
            ::core::clone::Clone,
            ::core::marker::Copy,
            ::core::fmt::Debug,
            ::core::default::Default,
            ::core::cmp::PartialEq,
            ::core::cmp::Eq,
            ::core::hash::Hash,
        )]
        #visibility #item

        const _: () = {
            mod __decoder {
                use ::core::prelude::rust_2024::*;

                #decoder
            }

            impl #root::runtime::declared::Declared for #name {
                const TEXT: &'static ::core::primitive::str = #text;
                type Decoder = __decoder::Decoder;
                const DECODER: &'static __decoder::Decoder = &__decoder::Decoder;

                fn cell() -> &'static ::std::sync::OnceLock<
                    ::core::option::Option<#root::dsl::Scheme>,
                > {
                    static CELL: ::std::sync::OnceLock<
                        ::core::option::Option<#root::dsl::Scheme>,
                    > = ::std::sync::OnceLock::new();
                    &CELL
                }
            }
        };
    }
}

/// The author's doc lines, each at its place, then the declaration itself.
fn docs(declaration: &Declaration, scheme: &Scheme) -> TokenStream {
    let mut docs = TokenStream::new();
    for token in &declaration.tokens {
        let TokenKind::Doc(line) = &token.kind else { break };
        let (place, _) = declaration.place(token.span);
        let line = format!(" {line}");
        docs.extend(quote_spanned!(place=> #[doc = #line]));
    }
    if docs.is_empty() {
        let line = format!(" The scheme `{}`.", scheme.name);
        docs.extend(quote!(#[doc = #line]));
    }
    // Without the author's lines, which are already above.
    let bare = Scheme { summary: String::new(), ..scheme.clone() };
    let text = format!("\n```text\n{bare}```");
    quote!(#docs #[doc = #text])
}
