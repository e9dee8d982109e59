quantloom::scheme! {
    pub W4 {
        weight: e4m3fnux,
        pack: [k, n],
        activation: bf16,
    }
}

fn main() {}
