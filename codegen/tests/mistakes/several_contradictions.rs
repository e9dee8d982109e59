quantloom::scheme! {
    pub W4 {
        weight: e2m1 - 1,
        zero: u4 per 1x32,
        scale: e8m0 per 1x32 from range / 15,
        pack: u8 [k:2 | k/4:2, k, n],
        activation: i8 { scale: f32 per token static },
        accumulate: i32,
        targets: gfx942 | sm_8O,
    }
}

fn main() {}
