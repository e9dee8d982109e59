quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        pack: u32 [k:8 | n],
        activation: bf16,
    }
}

fn main() {}
