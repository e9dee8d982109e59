quantloom::scheme! {
    pub {
        weight: u4 - 8,
    }
}

fn main() {}
