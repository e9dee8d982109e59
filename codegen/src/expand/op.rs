//! The declared type.

use proc_macro2::{Ident, Span, TokenStream};
use quantloom_dsl::Scheme;
use quantloom_dsl::lang::{Declaration, TokenKind};
use quote::{quote, quote_spanned};

/// The type of the declaration's name, and what makes it a declared scheme.
pub(super) fn op(root: &TokenStream, declaration: &Declaration, scheme: &Scheme) -> TokenStream {
    let (visibility, name) = (&declaration.visibility, &declaration.name);
    let docs = docs(declaration, scheme);
    let text = scheme.to_string();
    // What the compiler says about the type, it says at its name.
    let place = name.as_ref().map_or_else(Span::call_site, Ident::span);
    let item = quote_spanned!(place=> struct #name;);
    quote! {
        #docs
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #visibility #item

        impl #name {
            /// The declaration, as it is printed.
            pub const TEXT: &'static str = #text;

            /// The scheme.
            pub fn scheme() -> &'static #root::dsl::Scheme {
                static SCHEME: ::std::sync::LazyLock<#root::dsl::Scheme> =
                    ::std::sync::LazyLock::new(|| #root::dsl::parse(#name::TEXT).expect("checked"));
                &SCHEME
            }
        }
    }
}

/// The author's lines, each at its place, then the declaration itself.
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
    // The author's lines stand above already.
    let bare = Scheme { summary: String::new(), ..scheme.clone() };
    let text = format!("\n```text\n{bare}```");
    quote!(#docs #[doc = #text])
}
