//! Tensor maps up to the driver's call.

use quantloom_runtime::cuda::TensorShape;
use quantloom_runtime::source::{Count, ProblemSize, Swizzle, TensorRule, TensorWord};

/// 40 rows of 100 bf16, 208 bytes apart.
fn shape() -> TensorShape {
    TensorShape {
        word: TensorWord::U16,
        dims: vec![100, 40],
        strides: vec![208],
        box_dims: vec![64, 8],
        swizzle: Swizzle::B128,
    }
}

/// The last row needs no pad.
const BYTES: u64 = 39 * 208 + 200;

type Change = fn(&mut TensorShape);

#[test]
fn the_rules_of_the_engine() {
    let cases: &[(Change, u64, u64, Option<&str>)] = &[
        (|_| {}, 0x100, BYTES, None),
        (|_| {}, 0x100, BYTES - 1, Some("the tensor takes 8312 bytes, the memory has 8311")),
        (|_| {}, 0x108, BYTES, Some("the address 0x108 is not a multiple of 16")),
        (
            |s| s.strides = vec![216],
            0x100,
            1 << 20,
            Some("the stride of dimension 1 is 216 bytes, multiples of 16 below 2^40 are possible"),
        ),
        (
            |s| s.strides = vec![1 << 40],
            0x100,
            u64::MAX,
            Some(
                "the stride of dimension 1 is 1099511627776 bytes, multiples of 16 below 2^40 are possible",
            ),
        ),
        (
            |s| s.box_dims = vec![64, 257],
            0x100,
            BYTES,
            Some("the box has 257 elements along dimension 1, 1 to 256 are possible"),
        ),
        (
            |s| s.box_dims = vec![0, 8],
            0x100,
            BYTES,
            Some("the box has 0 elements along dimension 0, 1 to 256 are possible"),
        ),
        (
            |s| s.box_dims = vec![72, 8],
            0x100,
            BYTES,
            Some("a row of the box has 144 bytes, multiples of 16 up to 128 are possible"),
        ),
        (
            |s| (s.box_dims, s.swizzle) = (vec![60, 8], Swizzle::None),
            0x100,
            BYTES,
            Some("a row of the box has 120 bytes, multiples of 16 are possible"),
        ),
        (|s| (s.box_dims, s.swizzle) = (vec![72, 8], Swizzle::None), 0x100, BYTES, None),
        (
            |s| (s.box_dims, s.swizzle) = (vec![64, 8], Swizzle::B64),
            0x100,
            BYTES,
            Some("a row of the box has 128 bytes, multiples of 16 up to 64 are possible"),
        ),
        (|s| (s.box_dims, s.swizzle) = (vec![16, 8], Swizzle::B32), 0x100, BYTES, None),
        (
            |s| s.dims = vec![0, 40],
            0x100,
            BYTES,
            Some("dimension 0 has 0 elements, 1 to 2^32 are possible"),
        ),
        (
            |s| s.dims = vec![100, (1 << 32) + 1],
            0x100,
            u64::MAX,
            Some("dimension 1 has 4294967297 elements, 1 to 2^32 are possible"),
        ),
        (
            |s| s.strides.clear(),
            0x100,
            BYTES,
            Some("2 dimensions (1 to 5) need as many box sizes and one stride less, 2 and 0 given"),
        ),
        (
            |s| s.box_dims.push(1),
            0x100,
            BYTES,
            Some("2 dimensions (1 to 5) need as many box sizes and one stride less, 3 and 1 given"),
        ),
        (
            |s| (s.dims, s.box_dims, s.strides) = (vec![8; 6], vec![8; 6], vec![16; 5]),
            0x100,
            BYTES,
            Some("6 dimensions (1 to 5) need as many box sizes and one stride less, 6 and 5 given"),
        ),
        // As large as can be: no overflow, only too little memory.
        (
            |s| {
                (s.dims, s.box_dims) = (vec![1 << 32; 5], vec![8; 5]);
                s.strides = vec![(1 << 40) - 16; 4];
            },
            0x100,
            u64::MAX,
            Some(
                "the tensor takes 18446744073709551615 bytes, the memory has 18446744073709551615",
            ),
        ),
    ];
    for (at, (change, address, bytes, expected)) in cases.iter().enumerate() {
        let mut shape = shape();
        change(&mut shape);
        let found = shape.check(*address, *bytes).err().map(|fault| fault.to_string());
        assert_eq!(found.as_deref(), *expected, "case {at}: {shape:?}");
    }
}

#[test]
fn a_rule_gives_a_shape_in_bytes() {
    let rule = TensorRule {
        buffer: "x".to_owned(),
        word: TensorWord::U16,
        dims: vec![Count::K, Count::M],
        strides: vec![Count::K + 4],
        tile: vec![64, 8],
        swizzle: Swizzle::B128,
    };
    let problem = ProblemSize::new(40, 1, 100, 1);
    assert_eq!(TensorShape::of(&rule, &problem), Ok(shape()));
    let rule = TensorRule { strides: vec![Count::K.ceil_div(0)], ..rule };
    let expected =
        "a size of the tensor in buffer `x` = ceil(K / 0) is no 64-bit number for this problem";
    assert_eq!(TensorShape::of(&rule, &problem).unwrap_err().to_string(), expected);
}
