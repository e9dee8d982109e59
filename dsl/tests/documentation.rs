//! Every fenced block of docs/scheme-language.md, held against the parser.
//!
//! `scheme`: parses, prints back to itself, and packs and unpacks at ragged shapes.
//! `scheme-error`: a text, a line `---`, and the exact message. `layout`, `fragment`: one
//! to a line, each prints back to itself; what two spaces set off is a remark.

use std::path::Path;

use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::reference::{PlainCodes, pack, unpack};
use quantloom_dsl::{Scheme, parse, parse_fragment, parse_layout};

/// A fenced block and the line that its text starts on.
struct Block {
    line: usize,
    text: String,
}

/// The blocks of one kind; a kind that the page does not have is a fault of this test.
fn blocks(kind: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scheme-language.md");
    let page = std::fs::read_to_string(path).expect("the page is part of the repository");
    let mut found = Vec::new();
    let mut lines = (1..).zip(page.lines());
    while let Some((number, line)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let body = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let text = body.collect::<Vec<_>>().join("\n");
        if language == kind {
            found.push(Block { line: number + 1, text });
        }
    }
    assert!(!found.is_empty(), "the page has no block of kind `{kind}`");
    found
}

/// The entries of line-by-line blocks, without their remarks.
fn entries(kind: &str) -> Vec<(usize, String)> {
    let of_block = |block: Block| {
        let entry = |line: &str| line.split("  ").next().unwrap_or_default().to_owned();
        let entries: Vec<String> = block.text.lines().map(entry).collect();
        (block.line..).zip(entries)
    };
    blocks(kind).into_iter().flat_map(of_block).collect()
}

fn schemes() -> Vec<(usize, Scheme)> {
    let read = |block: Block| match parse(&block.text) {
        Ok(scheme) => (block.line, scheme),
        Err(faults) => panic!("line {}:\n{faults}", block.line),
    };
    blocks("scheme").into_iter().map(read).collect()
}

/// Codes without a pattern, from a 64-bit linear congruence (Knuth's MMIX constants).
fn random_codes(scheme: &Scheme, shape: Shape, seed: u64) -> PlainCodes {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    let codes = |component: Component| {
        let granularity =
            scheme.granularity(component).expect("a listed component has a granularity");
        let (rows, cols) = granularity.elements(shape);
        let mask = u32::MAX >> (32 - granularity.bits);
        let codes = (0..shape.experts * rows * cols).map(|_| next() & mask).collect();
        (component, codes)
    };
    PlainCodes { shape, components: scheme.components().into_iter().map(codes).collect() }
}

#[test]
fn every_scheme_prints_back_to_itself() {
    for (line, scheme) in schemes() {
        let printed = scheme.to_string();
        match parse(&printed) {
            Ok(again) => assert_eq!(again, scheme, "line {line}: printed as\n{printed}"),
            Err(faults) => panic!("line {line}: printed as\n{printed}\n{faults}"),
        }
    }
}

#[test]
fn every_scheme_packs_and_unpacks_at_ragged_shapes() {
    for (line, scheme) in schemes() {
        let experts = if scheme.experts.is_some() { 3 } else { 1 };
        for (n, k) in [(1, 1), (19, 77), (131, 301)] {
            let shape = Shape { experts, n, k };
            let plain = random_codes(&scheme, shape, line as u64);
            let fault = |error| format!("line {line}, {}, {shape:?}: {error}", scheme.name);
            let packed = pack(&scheme, &plain).map_err(fault).unwrap();
            let unpacked = unpack(&scheme, shape, &packed).map_err(fault).unwrap();
            assert!(unpacked == plain, "line {line}, {}, {shape:?}: codes differ", scheme.name);
        }
    }
}

#[test]
fn every_error_reads_as_shown() {
    for Block { line, text } in blocks("scheme-error") {
        let (text, shown) = text.split_once("\n---\n").expect("text, `---`, message");
        match parse(text) {
            Ok(_) => panic!("line {line}: nothing is wrong with this text"),
            Err(faults) => assert_eq!(faults.to_string(), shown, "line {line}: it is\n{faults}\n"),
        }
    }
}

#[test]
fn every_layout_prints_back_to_itself() {
    for (line, text) in entries("layout") {
        match parse_layout(&text, Component::Code) {
            Ok(layout) => {
                assert_eq!(layout.display(Component::Code).to_string(), text, "line {line}");
            }
            Err(faults) => panic!("line {line}:\n{faults}"),
        }
    }
}

#[test]
fn every_fragment_prints_back_to_itself() {
    for (line, text) in entries("fragment") {
        match parse_fragment(&text) {
            Ok(fragment) => assert_eq!(fragment.to_string(), text, "line {line}"),
            Err(faults) => panic!("line {line}:\n{faults}"),
        }
    }
}
