//! Every layer of docs/expert-layers.md: it parses and prints back to itself; errors are as they are
//! shown.

use std::path::Path;

use quantloom_dsl::experts::ExpertLayer;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/expert-layers.md");
    std::fs::read_to_string(path).expect("the page is part of the repository")
}

/// The texts of the fenced blocks of one kind.
fn blocks<'p>(page: &'p str, kind: &str) -> Vec<&'p str> {
    let fence = format!("```{kind}\n");
    let found = page.split(&fence).skip(1).map(|rest| rest.split("\n```").next());
    found.map(|block| block.expect("a block ends")).collect()
}

#[test]
fn layers_of_the_page_print_as_they_are_written() {
    let page = page();
    let of_models = page.lines().filter_map(|line| {
        let cell = line.strip_prefix("| ")?.strip_suffix("` |")?.split(" | `").nth(1)?;
        cell.contains(" experts of ").then_some(cell)
    });
    let texts: Vec<&str> = blocks(&page, "expert-layer").into_iter().chain(of_models).collect();
    assert_eq!(texts.len(), 15);
    for text in texts {
        let layer: ExpertLayer = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(layer.to_string(), text);
    }
}

#[test]
fn errors_of_the_page_are_as_shown() {
    let page = page();
    let blocks = blocks(&page, "expert-layer-error");
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let (text, message) = block.split_once("\n---\n").expect("a text and a message");
        assert_eq!(text.parse::<ExpertLayer>().unwrap_err().to_string(), message);
    }
}
