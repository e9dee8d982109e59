//! The decoder of a code type, as plain safe Rust over the runtime's `Vector`.
//!
//! In: a code type. Out: `struct Decoder` and its `Family`. A code of b bits lies in planes of
//! 8, 4, 2 and 1 bits, low bits first; integers become numbers by conversion, any other code by
//! a table of its values.

use proc_macro2::{Literal, TokenStream};
use quantloom_dsl::Code;
use quantloom_dsl::format::Number;
use quote::quote;

/// Vectors of codes that a chunk of 16 rows by 32 columns gives.
const VECTORS: u32 = 8;

/// `struct Decoder`, and what it does.
pub(super) fn family(code: &Code) -> TokenStream {
    let name = match code {
        Code::Number(Number::Uint(bits) | Number::Int(bits)) => format!("u{bits}"),
        Code::Number(number) => number.to_string(),
        Code::Codebook(values) => format!("codebook{}", values.len()),
    };
    let bits = code.bits() as usize;
    let (serves, codes, values) = (serves(code), codes(code.bits()), values(code));
    quote! {
        #[derive(Clone, Copy, Debug)]
        pub struct Decoder;

        impl Family for Decoder {
            const NAME: &'static str = #name;
            const BITS: usize = #bits;

            fn serves(&self, code: &Code) -> bool {
                #serves
            }

            #[inline(always)]
            fn codes<V: Vector>(&self, planes: &[[u8; 64]]) -> [V; 8] {
                #codes
            }

            #[inline(always)]
            fn values<V: Vector>(&self, codes: V) -> [V; 4] {
                #values
            }
        }
    }
}

/// Signed integers are stored with their sign bit flipped, and so share the unsigned decoder.
fn serves(code: &Code) -> TokenStream {
    match code {
        Code::Number(Number::Uint(bits) | Number::Int(bits)) => {
            quote!(matches!(code, Code::Number(Number::Uint(#bits) | Number::Int(#bits))))
        }
        Code::Number(number) => {
            let name = number.to_string();
            quote!(
                matches!(code, Code::Number(number) if Number::from_name(#name) == Some(*number))
            )
        }
        Code::Codebook(values) => {
            quote!(matches!(code, Code::Codebook(values) if *values == [#(#values),*]))
        }
    }
}

/// Puts the planes of a chunk together: field i of the plane's vector v is vector
/// `v * fields + i` of codes.
fn codes(bits: u32) -> TokenStream {
    let vector = |q: u32| {
        let (mut first, mut low) = (0, 0);
        let mut planes = Vec::new();
        for width in [8, 4, 2, 1].into_iter().filter(|width| bits & width != 0) {
            let fields = 8 / width;
            let at = (first + q / fields) as usize;
            let shift = q % fields * width;
            let mut field = quote!(V::load(&planes[#at]));
            if shift > 0 {
                field = quote!(#field.shr::<#shift>());
            }
            if width < 8 {
                let mask = Literal::u32_unsuffixed(0x0101_0101 * ((1 << width) - 1));
                field = quote!(#field.and(V::splat(#mask)));
            }
            if low > 0 {
                field = quote!(#field.shl::<#low>());
            }
            planes.push(if planes.is_empty() { field } else { quote!(.or(#field)) });
            first += width;
            low += width;
        }
        quote!(#(#planes)*)
    };
    let vectors = (0..VECTORS).map(vector);
    quote!([#(#vectors),*])
}

/// Column j of the four columns of a lane is its byte j.
fn values(code: &Code) -> TokenStream {
    let bytes = quote! {
        let byte = V::splat(0xff);
        let columns = [
            codes.and(byte),
            codes.shr::<8>().and(byte),
            codes.shr::<16>().and(byte),
            codes.shr::<24>(),
        ];
    };
    if matches!(code, Code::Number(Number::Uint(_) | Number::Int(_))) {
        return quote!(#bytes columns.map(#[inline(always)] |column| column.to_f32()));
    }
    let size: u32 = if code.bits() <= 4 { 16 } else { 256 };
    let lookup = if size == 16 { quote!(table_f32) } else { quote!(gather_f32) };
    // What is no code stands for nothing.
    let entries = (0..size).map(|at| match at < 1 << code.bits() {
        true => code.decode(at) as f32,
        false => 0.0,
    });
    let entries = entries.map(|value| {
        let bits = value.to_bits();
        if value.is_finite() {
            let value = Literal::f32_suffixed(value);
            quote!(#value)
        } else {
            quote!(f32::from_bits(#bits))
        }
    });
    let size = size as usize;
    quote! {
        const TABLE: [f32; #size] = [#(#entries),*];
        #bytes
        columns.map(#[inline(always)] |column| column.#lookup(&TABLE))
    }
}
