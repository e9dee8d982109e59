quantloom::scheme! {
    pub W4 {
        weight: i8,
        pack: [k, n],
        activation: i8 { scale: f32 per token static },
    }
}

fn main() {}
