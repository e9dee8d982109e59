//! Which top-level module of this crate uses which: an arrow that the table does not have is a
//! failure, and so is one of the table that nothing uses any more.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Of each top-level module, those that it may use. They are in order: a module uses only modules
/// above itself, so that there is no cycle.
const ALLOWED: &[(&str, &[&str])] = &[
    ("target", &[]),
    ("plan", &["target"]),
    ("ir", &["target"]),
    ("sim", &["ir", "target"]),
    ("emit", &["ir", "plan", "target"]),
    ("schedule", &["ir", "plan", "target"]),
    ("support", &["plan", "schedule", "target"]),
    ("expand", &["emit", "plan", "target"]),
    ("catalogue", &["emit", "ir", "plan", "target"]),
    ("jit", &["emit", "ir", "plan", "schedule", "sim", "target"]),
];

#[test]
fn modules_use_only_modules_above_them() {
    let allowed: BTreeMap<String, BTreeSet<String>> = ALLOWED
        .iter()
        .map(|(module, uses)| {
            ((*module).to_owned(), uses.iter().map(|used| (*used).to_owned()).collect())
        })
        .collect();
    assert_eq!(arrows(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")), allowed);
}

#[test]
fn the_table_has_no_cycle() {
    let mut above = BTreeSet::new();
    for (module, uses) in ALLOWED {
        let below: Vec<_> = uses.iter().filter(|used| !above.contains(*used)).collect();
        assert!(below.is_empty(), "{module} uses {below:?}");
        above.insert(*module);
    }
}

#[test]
fn paths_are_read() {
    let text = "use crate::{ir::{Op, Reg}, plan, target::*};\n\
                // crate::comment\n\
                /// [`crate::link`]\n\
                fn f() -> crate::emit::Text { let x = crate::sim::run; x } // crate::end\n\
                #[cfg(test)]\n\
                mod tests { use crate::jit::Jit; }\n";
    let expected = ["emit", "ir", "plan", "sim", "target"].map(str::to_owned);
    assert_eq!(used(text), BTreeSet::from(expected));
}

/// Of each top-level module of a crate, the others that its files name by `crate::`.
fn arrows(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut arrows = BTreeMap::<String, BTreeSet<String>>::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_string_lossy().into_owned();
        if module == "lib" || module == "bin" {
            continue;
        }
        let uses = arrows.entry(module.clone()).or_default();
        each_file(&path, &mut |text| uses.extend(used(text)));
        uses.remove(&module);
    }
    let modules: BTreeSet<String> = arrows.keys().cloned().collect();
    // What a text for another crate names is none of them.
    arrows.values_mut().for_each(|uses| uses.retain(|used| modules.contains(used)));
    arrows
}

/// Reads the files of a folder, or the one file; tests in files of their own are left out.
fn each_file(path: &Path, read: &mut dyn FnMut(&str)) {
    if path.file_stem().is_some_and(|stem| stem == "tests") {
        return;
    }
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap();
        entries.for_each(|entry| each_file(&entry.unwrap().path(), read));
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        read(&fs::read_to_string(path).unwrap());
    }
}

/// The modules that follow `crate::` in a file, outside of comments and of its tests.
fn used(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    let code = lines.collect::<Vec<_>>().join("\n");
    let paths = code.split("crate::").skip(1);
    paths
        .flat_map(|path| {
            if let Some(list) = path.strip_prefix('{') { firsts(list) } else { vec![name(path)] }
        })
        .collect()
}

/// The first name of each path of a list `a::{b, c}, d}`.
fn firsts(list: &str) -> Vec<String> {
    let (mut depth, mut start, mut found) = (0u32, 0, Vec::new());
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                found.push(name(list[start..at].trim_start()));
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

/// The name at the beginning of a path.
fn name(path: &str) -> String {
    path.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}
