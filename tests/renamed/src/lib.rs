//! A user of Quantloom that renames it to `loom`, forbids unsafe code and shadows Rust's prelude:
//! the expansion of `scheme!` must not depend on any of these names.

#![forbid(unsafe_code)]
#![deny(warnings)]

loom::scheme! {
    /// int4 weights in groups of 128.
    pub W4A16G128 {
        weight:     u4 - 8,
        scale:      bf16 per 1x128,
        pack:       u32 [k:8 | k, n],
        activation: bf16 | f16,
    }
}

/// Names that an expansion might resolve wrongly.
pub mod shadowed {
    #![no_implicit_prelude]
    #![allow(non_camel_case_types, dead_code, missing_docs)]

    mod core {}
    mod std {}
    mod quantloom {}
    mod runtime {}
    struct Option;
    struct Result;
    struct String;
    type u8 = ();
    type usize = ();
    type str = ();
    trait Clone {}
    trait CodeDecoder {}

    ::loom::scheme! {
        /// MXFP4.
        pub Scheme {
            weight:     e2m1,
            scale:      e8m0 per 1x32,
            pack:       u8 [k:2 | k, n],
            activation: bf16,
        }
    }
}

#[cfg(test)]
mod tests {
    use loom::prelude::*;

    #[test]
    fn both_are_what_they_say() {
        assert_eq!(super::W4A16G128::scheme().unwrap().name, "W4A16G128");
        assert_eq!(super::shadowed::Scheme::scheme().unwrap().summary, "MXFP4.");
    }
}
