quantloom::scheme! {
    pub W4 {
        weight: i8,
        pack: [k, n],
        activation: i8,
    }
}

fn main() {}
