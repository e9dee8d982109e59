//! The table of types.

use quantloom_dsl::parse;

use super::types::{Content, TYPES};

#[test]
fn numbers_and_names_are_unique() {
    for (at, row) in TYPES.iter().enumerate() {
        let same = TYPES[..at].iter().find(|one| one.number >= row.number || one.name == row.name);
        assert!(same.is_none(), "{}", row.name);
    }
}

/// A scheme stores as many bits of a weight as the type's blocks have: no byte of a block is
/// forgotten, and none is read twice.
#[test]
fn schemes_are_as_large_as_blocks() {
    let mut schemes = 0;
    for row in TYPES {
        let Content::Blocks { numbers, record } = row.content else { continue };
        let text = format!("s {{ {numbers}, pack: for [k, n] {{ {record} }}, activation: bf16 }}");
        let scheme = parse(&text).unwrap_or_else(|faults| panic!("{}\n{faults}", row.name));
        let bits = row.bytes as f64 * 8.0 / row.block as f64;
        assert_eq!(scheme.bits_per_weight(), bits, "{}", row.name);
        schemes += 1;
    }
    assert_eq!(schemes, 16);
}
