quantloom::scheme! {
    pub W4 {
        weight: u4 - 8,
        pack: for [k, n] { u8 [k:2], zero },
        activation: bf16,
    }
}

fn main() {}
