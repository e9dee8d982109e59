//! What makes a scheme's file a type: the expansion of `scheme!`, for the catalogue's own schemes.

/// `Name = "file", Decoder;`: a type for `schemes/file.scheme` with the decoder of its codes.
macro_rules! declared {
    ($($(#[$doc:meta])* $name:ident = $scheme:literal, $decoder:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name;

        impl Declared for $name {
            const TEXT: &'static str = include_str!(concat!("../schemes/", $scheme, ".scheme"));
            type Decoder = $decoder;
            const DECODER: &'static $decoder = &$decoder;

            fn cell() -> &'static std::sync::OnceLock<Option<quantloom_dsl::Scheme>> {
                static CELL: std::sync::OnceLock<Option<quantloom_dsl::Scheme>> =
                    std::sync::OnceLock::new();
                &CELL
            }
        }
    )*};
}
