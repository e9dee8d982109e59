quantloom::scheme! {
    pub W4 {
        weight: e2m1 - 1,
        pack: u8 [k:2 | k, n],
        activation: bf16,
    }
}

fn main() {}
