//! The fragments of the matrix instructions against the formulas of their documents
//! (PTX ISA, matrix fragments for `mma`), and the same notation as a layout of memory.

use quantloom_dsl::layout::{Component, Element, Granularity, GroupSize, Index, Point, Shape};
use quantloom_dsl::{parse_fragment, parse_layout};

struct Operand {
    name: &'static str,
    notation: &'static str,
    /// Rows, columns, then values of (position in the register, register, lane).
    sizes: ([u32; 2], [u32; 3]),
    /// Row and column at a position of a register of group g = lane / 4, thread t = lane % 4.
    formula: fn(position: u32, register: u32, g: u32, t: u32) -> (u32, u32),
}

const OPERANDS: &[Operand] = &[
    Operand {
        // a0 (g, 2t..), a1 (g+8, 2t..), a2 (g, 2t+8..), a3 (g+8, 2t+8..)
        name: "m16n8k16, 16 bit, A",
        notation: "[k:2 ; n/8:2, k/8:2 ; k/2:4, n:8]",
        sizes: ([16, 16], [2, 4, 32]),
        formula: |i, a, g, t| match a {
            0 => (g, 2 * t + i),
            1 => (g + 8, 2 * t + i),
            2 => (g, 2 * t + 8 + i),
            _ => (g + 8, 2 * t + 8 + i),
        },
    },
    Operand {
        name: "m16n8k32, 8 bit, A",
        notation: "[k:4 ; n/8:2, k/16:2 ; k/4:4, n:8]",
        sizes: ([16, 32], [4, 4, 32]),
        formula: |i, a, g, t| match a {
            0 => (g, 4 * t + i),
            1 => (g + 8, 4 * t + i),
            2 => (g, 4 * t + 16 + i),
            _ => (g + 8, 4 * t + 16 + i),
        },
    },
    Operand {
        // The accumulator: row g columns 2t, 2t+1; then row g+8. Columns are k here.
        name: "m16n8, D",
        notation: "[k:2 ; n/8:2 ; k/2:4, n:8]",
        sizes: ([16, 8], [2, 2, 32]),
        formula: |i, d, g, t| (g + 8 * d, 2 * t + i),
    },
    Operand {
        // Register j is nibble j (low half) and nibble j + 4 (high half) of a lane's word.
        name: "m16n8k16, 16 bit, A, from one word of nibbles",
        notation: "[n/8:2, k/8:2, k:2 ;  ; k/2:4, n:8]",
        sizes: ([16, 16], [8, 1, 32]),
        formula: |nibble, _, g, t| {
            let (row, column) = [(0, 0), (8, 0), (0, 8), (8, 8)][nibble as usize % 4];
            (g + row, 2 * t + column + nibble / 4)
        },
    },
    Operand {
        name: "the same, counting down",
        notation: "[~k:2 ; n/8:2, ~k/8:2 ; k/2:4, ~n:8]",
        sizes: ([16, 16], [2, 4, 32]),
        formula: |i, a, g, t| (7 - g + 8 * (a % 2), 2 * t + 8 * (1 - a / 2) + 1 - i),
    },
];

#[test]
fn fragments_are_where_the_formulas_say() {
    for Operand { name, notation, sizes, formula } in OPERANDS {
        let fragment = parse_fragment(notation).unwrap();
        let ([rows, columns], [positions, registers, lanes]) = *sizes;
        assert_eq!(fragment.extents(), (rows, columns), "{name}");
        assert_eq!(fragment.sizes(), [positions, registers, lanes], "{name}");
        assert_eq!(fragment.to_string(), *notation);
        let mut seen = vec![false; (rows * columns) as usize];
        for lane in 0..lanes {
            for (register, position) in
                (0..registers).flat_map(|r| (0..positions).map(move |p| (r, p)))
            {
                let (n, k) = formula(position, register, lane / 4, lane % 4);
                let place = [position, register, lane];
                assert_eq!(fragment.point(&place), Point { n, k }, "{name} at {place:?}");
                assert_eq!(fragment.place(Point { n, k }), place, "{name}, row {n}, column {k}");
                let again = std::mem::replace(&mut seen[(n * columns + k) as usize], true);
                assert!(!again, "{name}: row {n}, column {k} twice");
            }
        }
        assert!(seen.iter().all(|seen| *seen), "{name} does not hold every point");
    }
}

/// A weight stored as a lane loads it: one u32 a lane, its nibbles the whole A fragment.
#[test]
fn a_layout_can_follow_a_fragment() {
    let layout = "u32 [n/8:2, k/8:2, k:2 | k/2:4, n:8, k, n]";
    let layout = parse_layout(layout, Component::Code).unwrap();
    let fragment = parse_fragment("[n/8:2, k/8:2, k:2 ; k/2:4, n:8]").unwrap();
    let granularity = Granularity { bits: 4, rows: GroupSize::Each(1), cols: GroupSize::Each(1) };
    let (n, k) = (40, 50);
    let bound = layout.bind(Shape::matrix(n, k), &|_| Some(granularity)).unwrap();
    for (n, column) in (0..n).flat_map(|n| (0..k).map(move |column| (n, column))) {
        let point = Point { n: n as u32 % 16, k: column as u32 % 16 };
        let place = fragment.place(point);
        let tile = n / 16 * k.div_ceil(16) + column / 16;
        let expected = (tile * 32 + u64::from(place[1])) * 32 + u64::from(place[0]) * 4;
        let index = Index { e: 0, n, k: column };
        let address = bound.address(Element { component: Component::Code, index, bit: 0 });
        assert_eq!(address, Some(expected), "row {n}, column {column}");
    }
}

#[test]
fn lists_that_are_no_fragment_are_refused() {
    for (text, message) in [
        ("[k:2 ; n]", "`n`: a fragment's digits are plain digits of n and k with a size"),
        ("[k:2 ; e:2]", "`e:2`: a fragment's digits"),
        ("[k:2 ^ n:2 ; n:2]", "`k:2 ^ n:2`: a fragment's digits"),
        ("[k:2, k/4:2]", "the digits of k do not form a chain: expected stride 2, found 4"),
        ("[n:4, n/2:2]", "the digits of n do not form a chain: expected stride 4, found 2"),
        ("[k:0]", "`k:0`: a fragment's digits"),
        ("[k:65536, k/65536:65536]", "the digits of k do not form a chain"),
        ("[k:2", "expected"),
    ] {
        let faults = parse_fragment(text).unwrap_err();
        let found = &faults.faults()[0].message;
        assert!(found.starts_with(message), "{text}: {found}");
    }
}
