quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        scale: f16 per 1x3,
        pack: for [k, n] { scale, [k:3] },
        activation: bf16,
    }
}

fn main() {}
