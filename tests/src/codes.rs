//! Codes in a layout, bit by bit.

use quantloom_dsl::layout::{BoundLayout, Component, Element, Index, write_bits};

/// Rows of K codes of so many bits in a layout, by the definition of its addresses; planes of a code may be apart.
///
/// # Panics
/// If the layout has no such code.
pub fn placed(bound: &BoundLayout, (k, bits): (u64, u32), codes: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0; bound.bytes() as usize];
    for (number, code) in (0..).zip(codes) {
        let index = Index { e: 0, n: number / k, k: number % k };
        for bit in 0..bits {
            let element = Element { component: Component::Code, index, bit };
            let address = bound.address(element).expect("the layout has the code");
            write_bits(&mut bytes, address, 1, u64::from(code >> bit & 1));
        }
    }
    bytes
}
