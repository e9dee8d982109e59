quantloom::scheme! {
    pub W4 {
        weight: i8,
        pack: [k, n],
        activation: bf16,
        accumulate: i32,
    }
}

fn main() {}
