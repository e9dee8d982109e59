quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        scale: bf16 per 0x128,
        pack: u32 [k:8 | k, n],
        activation: bf16,
    }
}

fn main() {}
