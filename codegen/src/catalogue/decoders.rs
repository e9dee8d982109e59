//! One file per code type, and the list of all decoders.

use std::fmt::Write as _;

use quantloom_dsl::Code;
use quantloom_dsl::format::Number;

use super::{CatalogueError, GeneratedFile, REGENERATE};
use crate::emit::rust::decoder_name;
use crate::emit::rust::page::{decoder_page, type_name};

/// The folder of the decoders.
pub(super) const FOLDER: &str = "src/decoders";

/// Code types with a decoder. Each decoder costs compile time of the crate for every instruction set,
/// so there are decoders only for the code types of checkpoints and of the catalogue. A signed
/// integer uses the unsigned decoder; codebooks and other floats are decoded by a table.
const CODES: &[&str] = &[
    "u2", "u3", "u4", "u5", "u6", "u7", "u8", "e2m1", "e2m3", "e3m2", "e3m4", "e4m3", "e4m3fnuz",
    "e5m2",
];

fn codes() -> impl Iterator<Item = Code> {
    CODES.iter().filter_map(|name| Number::from_name(name)).map(Code::Number)
}

/// The module and the type of the decoder of a code type.
pub(super) fn serving(code: &Code) -> Option<(String, String)> {
    let name = decoder_name(code);
    codes().any(|known| decoder_name(&known) == name).then(|| (name, type_name(code)))
}

pub(super) fn files() -> Result<Vec<GeneratedFile>, CatalogueError> {
    let mut files = Vec::new();
    let (mut modules, mut list) = (String::new(), String::new());
    for code in codes() {
        let (module, name) = (decoder_name(&code), type_name(&code));
        let text = decoder_page(&code, REGENERATE)?;
        files.push(GeneratedFile { path: format!("{FOLDER}/{module}.rs"), text });
        let _ = writeln!(modules, "pub mod {module};");
        let _ = writeln!(list, "    &{module}::{name},");
    }
    let text = format!(
        "//! The decoders of the catalogue's code types: a file each.\n//!\n//! In: the planes of \
         a chunk of codes. Out: codes, and values. [`DECODERS`] is for schemes that are\n//! known \
         only at run time; a declared scheme names its own. [`u4`] is a good one to read first.\n\
         //!\n//! Generated; do not edit.\n//! Again: `{REGENERATE}`.\n\n{modules}\nuse \
         quantloom_runtime::cpu::decoder::Decoders;\n\n/// Every decoder of this crate: \
         `CpuDevice::best().with_decoders(DECODERS)`.\npub static DECODERS: Decoders = \
         &[\n{list}];\n"
    );
    files.push(GeneratedFile { path: format!("{FOLDER}/mod.rs"), text });
    Ok(files)
}
