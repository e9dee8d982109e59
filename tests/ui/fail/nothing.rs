quantloom::scheme! {}

fn main() {}
