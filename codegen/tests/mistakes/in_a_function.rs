fn main() {
    quantloom::scheme! {
        W4 {
            weight: u4 - 8,
            pack: u32 [k:8 | k],
            activation: bf16,
        }
    }
    let _ = W4;
}
