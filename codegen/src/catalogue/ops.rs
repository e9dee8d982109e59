//! The catalogue's schemes as types.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quantloom_dsl::Scheme;

use super::decoders::serving;
use super::{CatalogueError, GeneratedFile, REGENERATE};

/// `ct_w4a16` as a type: `CtW4a16`.
fn type_name(scheme: &str) -> String {
    let part = |part: &str| {
        let mut letters = part.chars();
        letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
    };
    scheme.split('_').map(part).collect::<Vec<String>>().concat()
}

pub(super) fn file(schemes: &[Scheme]) -> Result<GeneratedFile, CatalogueError> {
    let mut uses: BTreeMap<String, String> = BTreeMap::new();
    let mut types = String::new();
    for scheme in schemes {
        let no_decoder = || CatalogueError::NoDecoder {
            scheme: scheme.name.clone(),
            code: scheme.weight.to_string(),
        };
        let (module, decoder) = serving(&scheme.weight.code).ok_or_else(no_decoder)?;
        for line in scheme.summary.lines() {
            let _ = writeln!(types, "    /// {line}");
        }
        let name = &scheme.name;
        let _ = writeln!(types, "    {} = {name:?}, {decoder};\n", type_name(name));
        uses.insert(module, decoder);
    }
    let uses: String = uses.iter().fold(String::new(), |mut text, (module, decoder)| {
        let _ = writeln!(text, "use crate::decoders::{module}::{decoder};");
        text
    });
    let text = format!(
        "//! The catalogue's schemes as types, one each: what `scheme!` would declare from the \
         same text.\n//!\n//! In: a checkpoint's layer. Out: a prepared weight, \
         `CtW4a16::load(&layer)?.prepare(&device)?`.\n//!\n//! Generated; do not edit.\n//! Again: \
         `{REGENERATE}`.\n\nuse quantloom_runtime::declared::Declared;\n\n{uses}\ndeclared! {{\n{}}}\n",
        types.trim_end_matches('\n').to_owned() + "\n"
    );
    Ok(GeneratedFile { path: "src/ops.rs".to_owned(), text })
}
