//! `scheme!` in use: in every place where Rust has types, from every crate that offers it, and
//! with the same value as the text.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

use quantloom::prelude::*;
use quantloom_dsl::lang::{Declaration, parse_tokens};

/// Declares a scheme and compares it with its own text.
macro_rules! same_as_text {
    ($($name:ident { $($clauses:tt)* })*) => {$(
        quantloom::scheme! { $name { $($clauses)* } }
        let text = concat!(stringify!($name), "{", stringify!($($clauses)*), "}");
        let written = parse(text).unwrap_or_else(|faults| panic!("{faults}"));
        assert_eq!($name::scheme(), Some(&written));
        assert_eq!(parse($name::TEXT).as_ref(), Ok(&written));
    )*};
}

#[test]
fn the_macro_and_the_text_give_the_same_value() {
    same_as_text! {
        Gptq4ActOrder {
            weight: u4,
            zero: u4 + 1 i32 [n:8 | n, g] as "qzeros",
            scale: f16 per 1x128 [n, g] as "scales",
            index: i32 as "g_idx",
            pack: i32 [k:8 | n, k] as "qweight",
            activation: f16 | bf16,
        }
        Wraps {
            weight: u4,
            zero: u4 + 1 wraps per 1x64,
            scale: f16 per 1x32 from range / 15,
            pack: u32 [n/2:4, ~n:2 | n, k],
            activation: f16,
        }
        NvFp4 {
            weight: e2m1,
            scale: e4m3 per 1x16,
            scale: divide f32 per tensor from amax / 2688 [g] as "weight_global_scale",
            pack: u8 [k:2 | k, n] as "weight_packed",
            activation: e2m1 {
                scale: e4m3 per 1x16,
                scale: divide f32 per tensor from amax / 2688 static as "input_global_scale"
            } | bf16,
        }
        MxFp6 {
            weight: e2m3,
            scale: e8m0 per 1x32 from pow2 above 1.9375,
            pack: u8 [k:4 | w, k, n],
            activation: bf16,
            arithmetic: own
        }
        Fp8Block {
            weight: e4m3,
            scale: f32 per 128x128 from amax / 4.48e2 as "weight_scale_inv",
            pack: [k, n],
            activation: e4m3 { scale: f32 per 1x128 },
            output: bf16,
            targets: portable,
        }
        Planes {
            weight: u6 - 32,
            scale: f16 per 1x64,
            pack: u8 [code[0..4], k:2 | k/2:8 ^ n:8, k, n] as "low",
            pack: u32 msf [code[4..6], k:* | w, n] as "high",
            activation: i8 { zero: i8, scale: f32 per token, ties: away },
            bias: f32,
        }
        Records {
            weight: codebook(-1, -0.5, 0, 1e-3, 2.5e0, 3, 4, 8,),
            shift: f16 per 1x32,
            scale: bf16 per 1x32,
            pack: for [k, n] { scale, shift, u8 [code, pad 5 = 1 | k:32] },
            activation: f32,
        }
        Experts {
            weight: i4,
            scale: f16 per channel [n, e],
            pack: i8 [code, pad 4 = sign | k, n/top:2, n, e],
            activation: i8 { scale: own per token },
            accumulate: i32,
            experts: concatenated,
        }
    }
}

/// Every scheme of the catalogue, through the tokens that a macro would get: as written, and as
/// the tokens print themselves, with their own spacing.
#[test]
fn the_catalogue_reads_alike_through_both_doors() {
    for entry in quantloom_kernels::ENTRIES {
        let stream: proc_macro2::TokenStream = entry.text.parse().unwrap();
        let mut faults = Vec::new();
        let declaration = Declaration::read(stream.clone(), &mut faults);
        let scheme = parse_tokens(&declaration.tokens, declaration.end(), &mut faults);
        assert_eq!(faults, [], "{}", entry.name);
        let written = parse(entry.text).unwrap();
        assert_eq!(scheme.as_ref(), Some(&written), "{}", entry.name);

        let undocumented: proc_macro2::TokenStream = stream.into_iter().skip(2).collect();
        let respaced = parse(&undocumented.to_string()).unwrap();
        assert_eq!(Scheme { summary: written.summary.clone(), ..respaced }, written);
    }
}

mod places {
    //! Modules, visibilities, functions, other macros.

    quantloom::scheme! {
        /// Seen in this crate.
        pub(crate) InModule { weight: i8, pack: [k, n], activation: f32 }
    }

    pub(crate) mod deeper {
        quantloom::scheme! {
            /// Seen two modules up.
            pub(in super::super) TwoUp { weight: i8, pack: [k, n], activation: f32 }
        }
    }

    macro_rules! both {
        ($(#[$doc:meta])* $visibility:vis $name:ident: $code:ident, $group:literal) => {
            quantloom::scheme! {
                $(#[$doc])*
                $visibility $name {
                    weight: $code,
                    scale: f32 per $group,
                    pack: [k, n],
                    activation: f32,
                }
            }
        };
    }
    both! {
        /// Of another macro.
        pub(crate) Public: i8, 1x32
    }
    both!(Private: e4m3, 128x128);

    pub(crate) fn private() -> Option<&'static super::Scheme> {
        Private::scheme()
    }

    pub(crate) fn in_function<T: Default>(_: T) -> Option<&'static super::Scheme> {
        quantloom::scheme! { Local { weight: u8, pack: [k, n], activation: f32 } }
        Local::scheme()
    }
}

use quantloom::runtime::op::Declared;

#[test]
fn a_scheme_stands_where_a_type_stands() {
    let named = |scheme: Option<&'static Scheme>| scheme.map(|scheme| scheme.name.as_str());
    assert_eq!(named(places::InModule::scheme()), Some("InModule"));
    assert_eq!(named(places::deeper::TwoUp::scheme()), Some("TwoUp"));
    assert_eq!(named(places::Public::scheme()), Some("Public"));
    assert_eq!(named(places::private()), Some("Private"));
    assert_eq!(named(places::in_function(0)), Some("Local"));
    assert_eq!(places::Public::scheme().unwrap().summary, "Of another macro.");
}

quantloom::scheme! {
    /// First line: "quoted", \back\slash, größer, 7.5 \u{41}.
    ///
    ///   indented
    pub Documented { weight: i8, pack: [k, n], activation: f32 }
}

#[test]
fn doc_comments_are_the_summary() {
    let summary = "First line: \"quoted\", \\back\\slash, größer, 7.5 \\u{41}.\n\n  indented";
    assert_eq!(Documented::scheme().unwrap().summary, summary);
    assert_eq!(format!("{:?}", Documented), "Documented");
}

quantloom_kernels::scheme! {
    /// Without the facade: from the catalogue's crate and the macro's.
    pub BesideTheCatalogue { weight: i8, pack: [k, n], activation: f32 }
}

#[test]
fn the_catalogues_crate_declares_too() {
    assert_eq!(BesideTheCatalogue::scheme().unwrap().name, "BesideTheCatalogue");
}
