quantloom::scheme! {
    pub W4 {
        weight: u3,
        pack: u32 [k:32 | n, k],
        activation: bf16,
    }
}

fn main() {}
