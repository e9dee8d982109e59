quantloom::scheme! {
    pub W4 {
        weight: e2m1,
        pack: u8 [k:2 | k, n],
        activation: i8 { scale: own per token },
        accumulate: i32,
    }
}

fn main() {}
