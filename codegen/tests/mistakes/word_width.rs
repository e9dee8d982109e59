quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        pack: u12 [k:3 | k, n],
        activation: bf16,
    }
}

fn main() {}
