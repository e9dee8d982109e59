quantloom::scheme! {
    pub W4 {
        weight: e2m1,
        zero: u4 per 1x32,
        pack: u8 [k:2 | k, n],
        activation: bf16,
    }
}

fn main() {}
