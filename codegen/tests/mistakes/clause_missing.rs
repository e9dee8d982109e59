quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        scale: bf16 per 1x128,
        activation: bf16,
    }
}

fn main() {}
