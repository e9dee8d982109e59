//! A faulty scheme is a type all the same: what uses it is checked, and only real mistakes show.

mod schemes {
    quantloom::scheme! {
        pub W4 {
            weight: u44,
            pack: u32 [k:8 | k, n],
            activation: bf16,
        }
    }
}

use schemes::W4;

fn bits<T: Copy>(_: T) -> f64 {
    W4::scheme().bits_per_weight()
}

fn main() {
    let bits: u32 = bits(W4);
}
