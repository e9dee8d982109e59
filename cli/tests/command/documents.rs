//! The documents agree with the program: generated tables, pictures, examples.

use std::path::{Path, PathBuf};

use crate::ran::quantloom;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_page_of_schemes_is_fresh() {
    let table = quantloom(&["schemes", "--markdown"]).done().out;
    assert!(
        read("docs/schemes.md").contains(table.trim_end()),
        "docs/schemes.md is out of date: put the output of `quantloom schemes --markdown` there"
    );
}

/// A case of the comparison with other libraries is a label and a scheme of the catalogue.
#[test]
fn schemes_are_compared_that_exist() {
    let text = read("benches/peers/cases.py");
    let (_, cases) = text.split_once("CASES = (").unwrap();
    let schemes: Vec<&str> =
        cases.split(" Case(").skip(1).map(|case| case.split('"').nth(3).unwrap()).collect();
    assert_eq!(schemes.len(), 10, "{schemes:?}");
    for name in schemes {
        assert!(quantloom::kernels::scheme(name).is_some(), "{name}");
    }
}

#[test]
fn the_pictures_are_fresh() {
    let folder = tempfile::tempdir().unwrap();
    let mut pictures = 0;
    for file in std::fs::read_dir(root().join("docs/pictures")).unwrap() {
        let file = file.unwrap().path();
        let scheme = file.file_stem().unwrap().to_string_lossy().into_owned();
        let fresh = folder.path().join("fresh.svg");
        quantloom(&["show", &scheme, "--svg", &fresh.to_string_lossy(), "--force"]).done();
        let (old, new) = (std::fs::read(&file).unwrap(), std::fs::read(&fresh).unwrap());
        assert!(
            old == new,
            "again: quantloom show {scheme} --svg docs/pictures/{scheme}.svg --force"
        );
        pictures += 1;
    }
    assert!(pictures >= 2);
}

/// Every scheme on a page parses, and is in its printed form.
#[test]
fn examples_are_schemes_in_their_printed_form() {
    let mut examples = 0;
    for page in ["docs/introduction.md", "docs/add-a-scheme.md"] {
        let text = read(page);
        for block in text.split("```scheme\n").skip(1) {
            let block = block.split("```").next().unwrap();
            let scheme = quantloom::dsl::parse(block).unwrap_or_else(|f| panic!("{page}:\n{f}"));
            assert_eq!(scheme.to_string(), block, "{page}");
            examples += 1;
        }
    }
    assert_eq!(examples, 2);
}

/// The page of expert layers has the example's text, and what the commands print there.
#[test]
fn the_page_of_expert_layers_is_fresh() {
    let page = read("docs/expert-layers.md");
    let example = read("examples/expert_layer.rs");
    let program = &example[example.find("use std::error").unwrap()..];
    assert!(page.contains(program), "the program is not that of examples/expert_layer.rs");
    let file = quantloom_tests::golden_file("moe_ct_w4a16").to_string_lossy().into_owned();
    for command in ["inspect", "check"] {
        let printed = quantloom(&[command, &file]).done().out;
        let line = format!("$ quantloom {command} tests/golden/moe_ct_w4a16.safetensors\n");
        let expected = page.split(&line).nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        // Errors depend on the instruction set, and widths of columns on them.
        let words = |text: &str| {
            let words =
                text.split_whitespace().filter(|word| !word.contains("e-") && !word.contains("e0"));
            words.filter(|word| !word.starts_with('─')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words(expected), words(&printed), "{command}");
    }
}

/// The emitted text depends only on the input.
#[test]
fn the_same_input_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let demo = quantloom_tests::demo_file().to_string_lossy().into_owned();
    let layer = "model.layers.0.self_attn.o_proj";
    for out in ["a", "b"] {
        quantloom(&["dequantize", &demo, "--layer", layer, "--out", &path(out)]).done();
        let scheme = "ct_w4a16";
        let float = path(&format!("{out}.float"));
        std::fs::copy(path(out), &float).unwrap();
        quantloom(&["quantize", &float, "--scheme", scheme, "--out", &path(&format!("{out}.q"))])
            .done();
    }
    for suffix in ["", ".q"] {
        let bytes = |name: &str| std::fs::read(path(&format!("{name}{suffix}"))).unwrap();
        assert!(bytes("a") == bytes("b"), "two runs differ: {suffix}");
    }
}
