quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        pack: u8 [code @0, code @2, k:2 | k, n],
        activation: bf16,
    }
}

fn main() {}
