quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        pack: u8 [code[2..5], pad 5 | k, n],
        activation: bf16,
    }
}

fn main() {}
