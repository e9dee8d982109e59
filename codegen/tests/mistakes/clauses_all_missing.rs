quantloom::scheme! {
    pub W4 {
    }
}

fn main() {}
