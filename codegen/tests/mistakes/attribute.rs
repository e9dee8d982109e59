quantloom::scheme! {
    /// A doc comment is the one attribute.
    #[derive(Hash)]
    pub W4 {
        weight: u4 - 8,
        pack: u32 [k:8 | k, n],
        activation: bf16,
    }
}

fn main() {}
