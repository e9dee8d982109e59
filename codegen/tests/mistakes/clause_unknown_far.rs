quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        colour: red,
        pack: u32 [k:8 | k, n],
        activation: bf16,
    }
}

fn main() {}
