//! Which top-level module of a crate uses which, read from its sources: a test holds the table of those
//! that are allowed, so that a new one is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Of each module, those that it may use, in order: a module uses only modules before itself.
pub type Allowed<'a> = &'a [(&'a str, &'a [&'a str])];

/// Compares the sources of a crate with the table.
///
/// # Panics
/// If a module uses another one than the table says, or the table has a cycle.
pub fn check(sources: &Path, allowed: Allowed<'_>) {
    let mut above = BTreeSet::new();
    for (module, uses) in allowed {
        let below: Vec<_> = uses.iter().filter(|used| !above.contains(*used)).collect();
        assert!(below.is_empty(), "{module} uses {below:?}");
        above.insert(*module);
    }
    let row = |(module, uses): &(&str, &[&str])| {
        ((*module).to_owned(), uses.iter().map(|used| (*used).to_owned()).collect())
    };
    let allowed: BTreeMap<String, BTreeSet<String>> = allowed.iter().map(row).collect();
    assert_eq!(
        arrows(sources),
        allowed,
        "left: the sources of {}, right: the table",
        sources.display()
    );
}

/// Of each top-level module of a crate, the others that its files name by `crate::`.
fn arrows(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut arrows = BTreeMap::<String, BTreeSet<String>>::new();
    for entry in entries(root) {
        let module = entry.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if module == "lib" || module == "bin" {
            continue;
        }
        let uses = arrows.entry(module.clone()).or_default();
        each_file(&entry, &mut |text| uses.extend(used(text)));
        uses.remove(&module);
    }
    let modules: BTreeSet<String> = arrows.keys().cloned().collect();
    // What a text for another crate names is none of them.
    arrows.values_mut().for_each(|uses| uses.retain(|used| modules.contains(used)));
    arrows
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let read =
        fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    read.unwrap_or_else(|error: std::io::Error| panic!("{}: {error}", folder.display()))
}

/// Reads the files of a folder, or the one file; tests in files of their own are left out.
fn each_file(path: &Path, read: &mut dyn FnMut(&str)) {
    if path.file_stem().is_some_and(|stem| stem == "tests") {
        return;
    }
    if path.is_dir() {
        entries(path).iter().for_each(|entry| each_file(entry, read));
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        let text = fs::read_to_string(path);
        read(&text.unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    }
}

/// The modules that follow `crate::` in a file, outside of comments and of its tests.
pub fn used(text: &str) -> BTreeSet<String> {
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
