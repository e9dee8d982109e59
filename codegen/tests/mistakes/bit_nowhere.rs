quantloom::scheme! {
    pub W4 {
        weight: u6,
        pack: u8 [code[0..4], k:2 | k, n],
        activation: bf16,
    }
}

fn main() {}
