quantloom::scheme! {
    pub W4 {
        weight: u9,
        pack: [k, n],
        activation: bf16,
    }
}

fn main() {}
