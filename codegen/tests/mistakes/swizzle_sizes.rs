quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        pack: u8 [k:2 | k/2:8 ^ n:4, k, n],
        activation: bf16,
    }
}

fn main() {}
