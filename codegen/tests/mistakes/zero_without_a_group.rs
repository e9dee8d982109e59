quantloom::scheme! {
    pub W4 {
        weight: u4,
        zero: u4,
        pack: u32 [k:8 | k, n],
        activation: bf16,
    }
}

fn main() {}
