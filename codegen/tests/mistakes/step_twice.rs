quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        pack: u8 [code[0..3] @0, code @1, code[0..1] @0, k:2 | k, n],
        activation: bf16,
    }
}

fn main() {}
