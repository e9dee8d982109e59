//! MANIFEST: one line per kernel of the catalogue.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quantloom_dsl::Scheme;

use super::hash::TextHash;
use super::{CatalogueError, GeneratedFile, REGENERATE};
use crate::emit::rust::page::decoder_page;
use crate::plan::{LANES_TILE, kernel_name, plan};
use crate::target::{Class, TARGETS};

pub(super) fn file(schemes: &[Scheme]) -> Result<GeneratedFile, CatalogueError> {
    let mut lines: BTreeMap<String, String> = BTreeMap::new();
    for scheme in schemes {
        let hash = TextHash::of(&decoder_page(&scheme.weight.code, REGENERATE)?);
        for target in TARGETS.iter().filter(|target| target.class == Class::Lanes) {
            for activation in &scheme.activations {
                let Ok(plan) = plan(scheme, activation, target) else { continue };
                let name = kernel_name(scheme, activation, LANES_TILE, target);
                lines.insert(name, format!("{hash}  {}", plan.dequant));
            }
        }
    }
    let width = lines.keys().map(String::len).max().unwrap_or(0);
    let mut text = format!(
        "# Every kernel of the catalogue: name, hash of its generated text, sequences.\n# Schemes \
         that differ only in their packing share a kernel.\n# Again: {REGENERATE}\n"
    );
    for (name, rest) in &lines {
        let _ = writeln!(text, "{name:width$}  {rest}");
    }
    Ok(GeneratedFile { path: "MANIFEST".to_owned(), text })
}
