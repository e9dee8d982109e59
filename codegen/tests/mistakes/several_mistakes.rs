quantloom::scheme! {
    pub W4 {
        weight: u4,
        scael: f16 per 1x32,
        zero: u44,
        pack: u32 [k:4 | k, nn],
        activation: i8,
        accumulate: i16,
        targets: sm_8O | tpu,
        output: u8,
    }
}

fn main() {}
