quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        pack: u8 [code, code | k, n],
        activation: bf16,
    }
}

fn main() {}
