mod schemes {
    quantloom::scheme! {
        W4 {
            weight: u4 - 8,
            pack: u32 [k:8 | k, n],
            activation: bf16,
        }
    }
}

fn main() {
    let _ = schemes::W4;
}
