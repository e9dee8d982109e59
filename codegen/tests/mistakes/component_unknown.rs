quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        pack: u8 [cod, k:2 | k, n],
        activation: bf16,
    }
}

fn main() {}
