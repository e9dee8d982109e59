//! Functions of three bits as the shortest expressions with and, or, exclusive or and not.
//!
//! In: a table of [`Ternary::Lop3`](crate::ir::Ternary::Lop3). Out: an expression in C++. One
//! search finds all 256, by length: it combines shorter expressions with one more operation.

use std::sync::LazyLock;

/// The tables of the operands.
const OPERANDS: [u8; 3] = [0xf0, 0xcc, 0xaa];

/// How a table is derived from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Derivation {
    /// No bit.
    Zeros,
    /// Every bit.
    Ones,
    /// One of the operands.
    Operand(usize),
    /// The complement of a table.
    Not(u8),
    /// Two tables combined by `&`, `|` or `^`.
    Both(char, u8, u8),
}

/// For each table: the number of operations of its shortest expression, and the last operation.
static SHORTEST: LazyLock<Vec<(u32, Derivation)>> = LazyLock::new(search);

fn search() -> Vec<(u32, Derivation)> {
    let mut best: Vec<Option<(u32, Derivation)>> = vec![None; 256];
    best[0x00] = Some((0, Derivation::Zeros));
    best[0xff] = Some((0, Derivation::Ones));
    for (at, table) in OPERANDS.into_iter().enumerate() {
        best[usize::from(table)] = Some((0, Derivation::Operand(at)));
    }
    let mut length = 0;
    while best.contains(&None) {
        length += 1;
        let known: Vec<(u8, u32)> = (0..=u8::MAX)
            .filter_map(|table| best[usize::from(table)].map(|(length, _)| (table, length)))
            .collect();
        let mut found = |table: u8, made: Derivation| {
            best[usize::from(table)].get_or_insert((length, made));
        };
        for &(a, of_a) in &known {
            if of_a + 1 == length {
                found(!a, Derivation::Not(a));
            }
            for &(b, of_b) in known.iter().filter(|(b, of_b)| *b > a && of_a + of_b + 1 == length) {
                debug_assert!(of_b < length);
                found(a & b, Derivation::Both('&', a, b));
                found(a | b, Derivation::Both('|', a, b));
                found(a ^ b, Derivation::Both('^', a, b));
            }
        }
    }
    best.into_iter().flatten().collect()
}

/// The expression of a table; the operands are names or constants.
pub(super) fn expression(table: u8, operands: [&str; 3]) -> String {
    match SHORTEST[usize::from(table)].1 {
        Derivation::Zeros => "0u".to_owned(),
        Derivation::Ones => "~0u".to_owned(),
        Derivation::Operand(at) => operands[at].to_owned(),
        Derivation::Not(of) => format!("~{}", inner(of, operands)),
        Derivation::Both(op, a, b) => format!("{} {op} {}", inner(a, operands), inner(b, operands)),
    }
}

/// In parentheses, unless it is a name or starts with `~`.
fn inner(table: u8, operands: [&str; 3]) -> String {
    let text = expression(table, operands);
    match SHORTEST[usize::from(table)].1 {
        Derivation::Both(..) => format!("({text})"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates an expression of the operands `a`, `b`, `c` to its table, by a parser of its own.
    fn read(text: &str) -> u8 {
        let mut rest = text.as_bytes();
        let value = binary(&mut rest);
        assert!(rest.is_empty(), "{text}");
        value
    }

    fn binary(rest: &mut &[u8]) -> u8 {
        let left = unary(rest);
        let [b' ', op, b' ', tail @ ..] = *rest else { return left };
        *rest = tail;
        let right = unary(rest);
        match op {
            b'&' => left & right,
            b'|' => left | right,
            b'^' => left ^ right,
            _ => panic!("{op}"),
        }
    }

    fn unary(rest: &mut &[u8]) -> u8 {
        let (first, tail) = rest.split_first().unwrap();
        *rest = tail;
        match first {
            b'~' => !unary(rest),
            b'(' => {
                let value = binary(rest);
                assert_eq!(rest[0], b')');
                *rest = &rest[1..];
                value
            }
            b'0' => {
                assert_eq!(rest[0], b'u');
                *rest = &rest[1..];
                0
            }
            name => OPERANDS[usize::from(name - b'a')],
        }
    }

    #[test]
    fn every_table_has_its_expression() {
        for table in 0..=u8::MAX {
            let text = expression(table, ["a", "b", "c"]);
            assert_eq!(read(&text), table, "{text}");
        }
    }

    /// Known short expressions are found, and no table needs more than five operations.
    #[test]
    fn expressions_are_short() {
        for (table, length) in [(0xea, 2), (0x6a, 2), (0x96, 2), (0xca, 3), (0xe8, 4), (0x80, 2)] {
            let text = expression(table, ["a", "b", "c"]);
            assert_eq!(SHORTEST[usize::from(table)].0, length, "{table:#x}: {text}");
        }
        assert_eq!(SHORTEST.iter().map(|(length, _)| *length).max(), Some(5));
    }
}
