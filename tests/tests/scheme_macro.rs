//! `scheme!` in use: in every position where Rust allows types, from every crate that exports it,
//! and with the same value as the text.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

use quantloom::prelude::*;
use quantloom_dsl::format::F32;
use quantloom_dsl::lang::{Declaration, parse_tokens};
use quantloom_dsl::layout::Component;
use quantloom_dsl::reference;

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

/// Every scheme of the catalogue, as the tokens that a macro gets: as written, and as the tokens
/// print themselves, with their own spacing.
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

        // `#` and `[doc = ..]` for each line.
        let docs = 2 * entry.text.lines().filter(|line| line.starts_with("///")).count();
        let undocumented: proc_macro2::TokenStream = stream.into_iter().skip(docs).collect();
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
        /// Inside of another macro.
        pub(crate) Public: i8, 1x32
    }
    both!(Private: e4m3, 128x128);

    use quantloom::prelude::Declared;

    pub(crate) fn private() -> Option<&'static super::Scheme> {
        Private::scheme()
    }

    pub(crate) fn in_function<T: Default>(_: T) -> Option<&'static super::Scheme> {
        quantloom::scheme! { Local { weight: u8, pack: [k, n], activation: f32 } }
        Local::scheme()
    }
}

#[test]
fn a_scheme_stands_where_a_type_stands() {
    let named = |scheme: Option<&'static Scheme>| scheme.map(|scheme| scheme.name.as_str());
    assert_eq!(named(places::InModule::scheme()), Some("InModule"));
    assert_eq!(named(places::deeper::TwoUp::scheme()), Some("TwoUp"));
    assert_eq!(named(places::Public::scheme()), Some("Public"));
    assert_eq!(named(places::private()), Some("Private"));
    assert_eq!(named(places::in_function(0)), Some("Local"));
    assert_eq!(places::Public::scheme().unwrap().summary, "Inside of another macro.");
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

/// A scheme of each kind of code, with every code in every position of a chunk: its generated
/// decoder multiplies as the reference.
fn multiplies<S: Declared>() {
    let scheme = S::scheme().unwrap();
    // Ragged in both directions: 2 panels of 16 rows, 3 chunks of 32 columns.
    let shape = Shape { experts: 1, n: 19, k: 87 };
    let (n, k, tokens) = (shape.n as usize, shape.k as usize, 3);
    let weights = vec![1.0; n * k];
    let mut plain = reference::quantise(scheme, shape, &weights, F32, None).unwrap();
    let codes = 1u32 << scheme.weight.code.bits();
    for (at, code) in plain.components.get_mut(&Component::Code).unwrap().iter_mut().enumerate() {
        let candidates = (0..codes).map(|step| (at as u32 * 7 + step) % codes);
        let finite = |code: &u32| scheme.weight.decode(*code).is_finite();
        *code = candidates.into_iter().find(finite).unwrap();
    }
    let stores = reference::pack(scheme, &plain).unwrap();
    let layer = Layer::from_bytes("layer", scheme, shape, |name| stores.get(name).cloned());
    let layer = S::load(&layer.unwrap()).unwrap();
    let x: Vec<f32> = (0..tokens * k).map(|at| (at * 37 % 101) as f32 - 50.0).collect();
    let real = reference::dequantise(scheme, &plain).unwrap();
    for device in [Device::portable(), Device::cpu()] {
        let weight = layer.prepare(&device).unwrap();
        let y = weight.matmul(&x).unwrap();
        for (at, y) in y.iter().enumerate() {
            let (x, row) = (&x[at / n * k..][..k], &real[at % n * k..][..k]);
            let terms = || x.iter().zip(row).map(|(x, w)| f64::from(*x) * w);
            // Each of the K products and sums rounds once, by at most 2^-24 of its magnitude; each
            // weight is rounded twice.
            let bound = terms().map(f64::abs).sum::<f64>() * (k as f64 + 3.0) * 2f64.powi(-24);
            let expected: f64 = terms().sum();
            let error = (f64::from(*y) - expected).abs();
            let (name, token, row) = (&scheme.name, at / n, at % n);
            assert!(
                error <= bound,
                "{name}, {}: y[{token}, {row}] = {y}, {expected}",
                device.name()
            );
        }
    }
}

#[test]
fn what_is_generated_multiplies_as_the_reference() {
    macro_rules! code {
        ($name:ident, $($code:tt)*) => {{
            quantloom::scheme! {
                $name { weight: $($code)*, scale: f32 per 1x32, pack: [k, n], activation: f32 }
            }
            multiplies::<$name>();
        }};
    }
    code!(U3, u3 - 4);
    code!(I4, i4);
    code!(U7, u7);
    code!(E2m1, e2m1);
    code!(E3m2, e3m2);
    code!(E4m3, e4m3);
    code!(Book, codebook(-1, -0.75, -0.5, -0.25, 0, 0.1, 0.7, 3));
}

/// The example of the README, on a file of third-party software.
#[test]
fn a_checkpoints_layer_is_loaded_prepared_and_multiplied() {
    quantloom::scheme! {
        /// compressed-tensors W4A16.
        W4A16 {
            weight: u4 - 8,
            scale: bf16 per 1x128,
            pack: i32 [k:* | w, n] as "weight_packed",
            activation: bf16 | f16,
            arithmetic: own,
        }
    }
    quantloom::scheme! {
        Exact {
            weight: u4 - 8,
            scale: bf16 per 1x128,
            pack: i32 [k:* | w, n] as "weight_packed",
            activation: bf16 | f16,
            arithmetic: own,
            accuracy: exact,
        }
    }
    quantloom::scheme! {
        Other { weight: u4 - 8, scale: bf16 per 1x64, pack: [k, n], activation: bf16 | f16 }
    }
    // The README's: compressed-tensors' own arithmetic, and how it chose scales, are of its quantiser.
    quantloom::scheme! {
        Readme {
            weight: u4 - 8,
            scale: bf16 per 1x128 from amax / 7,
            pack: u32 [k:8 | k, n],
            activation: bf16 | f16,
        }
    }
    let checkpoint = Checkpoint::open(quantloom_tests::golden_file("ct_w4a16")).unwrap();
    let layer = checkpoint.layers().find_map(|(_, layer)| layer.ok()).unwrap();
    let weight = W4A16::load(layer).unwrap().prepare(&Device::cpu()).unwrap();
    let x = vec![1.0f32; layer.shape().k as usize];
    let y = weight.matmul(&x).unwrap();
    let portable = layer.prepare(&Device::portable()).unwrap().matmul(&x).unwrap();
    assert_eq!(y.len(), portable.len());
    for (y, portable) in y.iter().zip(&portable) {
        assert!((y - portable).abs() <= 1e-4 * portable.abs().max(1.0), "{y} {portable}");
    }
    // The accuracy is the declaration's wish or the caller's, and no property of the file.
    let exact = layer.with_accuracy(Accuracy::Exact);
    let accuracies = [
        W4A16::load(layer).unwrap().layer().scheme().accuracy,
        W4A16::load(&exact).unwrap().layer().scheme().accuracy,
        Exact::load(layer).unwrap().layer().scheme().accuracy,
    ];
    assert_eq!(accuracies, [Accuracy::Fast, Accuracy::Exact, Accuracy::Exact]);
    assert!(exact.scheme().same_meaning(layer.scheme()));
    assert!(!exact.scheme().same_compute(layer.scheme()));
    let refusal = Other::load(layer).unwrap_err().to_string();
    assert!(refusal.contains("is of another scheme than declared: `scale` differs"), "{refusal}");
    let y_of_readme =
        Readme::load(layer).unwrap().prepare(&Device::cpu()).unwrap().matmul(&x).unwrap();
    assert_eq!(y_of_readme, y);
    // The arithmetic decides codes of x where x is quantised.
    quantloom::scheme! {
        OtherArithmetic {
            weight: i8,
            scale: bf16 per channel,
            pack: [k, n],
            activation: i8 { scale: own per token },
        }
    }
    let checkpoint = Checkpoint::open(quantloom_tests::golden_file("ct_w8a8")).unwrap();
    let layer = checkpoint.layers().find_map(|(_, layer)| layer.ok()).unwrap();
    let refusal = OtherArithmetic::load(layer).unwrap_err().to_string();
    assert!(refusal.contains("`arithmetic` differs"), "{refusal}");
}
