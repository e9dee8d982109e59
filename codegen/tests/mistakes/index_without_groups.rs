quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        scale: f16 per channel,
        index: i32,
        pack: u32 [k:8 | k, n],
        activation: bf16,
    }
}

fn main() {}
