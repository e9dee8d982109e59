//! What makes a scheme's file a type: the expansion of `scheme!`, for the catalogue's own schemes.

/// `Name = "file", Family;`: a type for `schemes/file.scheme` whose codes the family decodes.
macro_rules! declared {
    ($($(#[$doc:meta])* $name:ident = $scheme:literal, $family:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name;

        impl Declared for $name {
            const TEXT: &'static str = include_str!(concat!("../schemes/", $scheme, ".scheme"));
            type Family = $family;
            const FAMILY: &'static $family = &$family;

            fn cell() -> &'static std::sync::OnceLock<Option<quantloom_dsl::Scheme>> {
                static CELL: std::sync::OnceLock<Option<quantloom_dsl::Scheme>> =
                    std::sync::OnceLock::new();
                &CELL
            }
        }
    )*};
}
