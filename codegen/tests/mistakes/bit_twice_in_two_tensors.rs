quantloom::scheme! {
    pub W4 {
        weight: u6,
        pack: u8 [code[0..4], k:2 | k, n] as "low",
        pack: u8 [code[3..6], pad 1, k:2 | k, n] as "high",
        activation: bf16,
    }
}

fn main() {}
