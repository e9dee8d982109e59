quantloom::scheme! {
    pub W4 {
        weight: codebook(-1, 0, 1),
        pack: u8 [k:4 | k, n],
        activation: bf16,
    }
}

fn main() {}
