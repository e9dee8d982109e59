//! The kernels of the self-test: hand-written PTX, one file each, and how each is launched.

use std::borrow::Cow;

use quantloom_runtime::source::{
    Access, Count, KernelText, LaunchRule, Parameter, Scalar, Swizzle, TensorRule, TensorWord,
};

use crate::cuda::{random, read_roofline};

/// One thread a word, in blocks of 256.
fn a_thread_a_word(parameters: Vec<Parameter>) -> LaunchRule {
    LaunchRule::plain(Count::N.ceil_div(256), 256, parameters)
}

fn words(name: &str, access: Access) -> Parameter {
    Parameter::buffer(name, access, Count::N * 4)
}

fn text(entry: &'static str, text: &'static str, rule: LaunchRule) -> KernelText<'static> {
    KernelText { entry: entry.into(), text: text.into(), rule: Cow::Owned(rule) }
}

/// c = a + b, N words.
pub(super) fn vector_add() -> KernelText<'static> {
    let rule = a_thread_a_word(vec![
        words("a", Access::Read),
        words("b", Access::Read),
        words("c", Access::Write),
        Parameter::size("n", Count::N),
    ]);
    text("vector_add", include_str!("../ptx/vector_add.ptx"), rule)
}

/// y = x from its other end, N words through the shared memory of one block.
pub(super) fn shared_mirror() -> KernelText<'static> {
    let rule = LaunchRule {
        shared_bytes: Count::N * 4,
        ..LaunchRule::plain(
            1,
            256,
            vec![
                words("x", Access::Read),
                words("y", Access::Write),
                Parameter::size("words", Count::N),
            ],
        )
    };
    text("shared_mirror", include_str!("../ptx/shared_mirror.ptx"), rule)
}

/// What the next of four blocks left in its shared memory, N blocks.
pub(super) fn cluster_ring() -> KernelText<'static> {
    let rule = LaunchRule {
        cluster: [4, 1, 1],
        shared_bytes: Count::Fixed(16),
        ..LaunchRule::plain(Count::N, 32, vec![words("y", Access::Write)])
    };
    text("cluster_ring", include_str!("../ptx/cluster_ring.ptx"), rule)
}

fn overlapping() -> LaunchRule {
    let rule = a_thread_a_word(vec![
        words("x", Access::Read),
        words("y", Access::Write),
        Parameter::buffer("times", Access::ReadWrite, 16),
        Parameter::size("n", Count::N),
    ]);
    LaunchRule { overlaps: true, ..rule }
}

/// y = x + 1, 50 us late, N words.
pub(super) fn overlap_first() -> KernelText<'static> {
    text("overlap_first", include_str!("../ptx/overlap_first.ptx"), overlapping())
}

/// y = 2 x after the kernel before, N words.
pub(super) fn overlap_second() -> KernelText<'static> {
    text("overlap_second", include_str!("../ptx/overlap_second.ptx"), overlapping())
}

/// N words of 16 bits in rows of K, the rows 104 words apart, in boxes of 64 x 8.
fn box_rule() -> TensorRule {
    TensorRule {
        buffer: "x".to_owned(),
        word: TensorWord::U16,
        dims: vec![Count::K, Count::N],
        strides: vec![Count::Fixed(104)],
        tile: vec![64, 8],
        swizzle: Swizzle::B128,
    }
}

/// One box of 64 x 8 words of 16 bits as it comes to shared memory, and whether it came.
pub(super) fn tma_box() -> KernelText<'static> {
    let rule = LaunchRule {
        // The box, and the barrier behind it.
        shared_bytes: Count::Fixed(1024 + 8),
        ..LaunchRule::plain(
            1,
            256,
            vec![
                Parameter::buffer("x", Access::Read, Count::N * 208),
                Parameter::buffer("y", Access::Write, 1024 + 4),
                Parameter::scalar("column", Scalar::U32),
                Parameter::scalar("row", Scalar::U32),
                Parameter::tensor_map("map", box_rule()),
            ],
        )
    };
    text("tma_box", include_str!("../ptx/tma_box.ptx"), rule)
}

/// Nothing.
pub(super) fn empty() -> KernelText<'static> {
    let rule = LaunchRule { overlaps: true, ..LaunchRule::plain(1, 32, Vec::new()) };
    text("empty", include_str!("../ptx/empty.ptx"), rule)
}

/// Every hand-written text of this crate, for tests with an assembler.
pub fn all() -> Vec<KernelText<'static>> {
    vec![
        vector_add(),
        shared_mirror(),
        cluster_ring(),
        overlap_first(),
        overlap_second(),
        tma_box(),
        empty(),
        random::fill_text(),
        read_roofline::read_once(512, 2, false),
        read_roofline::read_once(512, 2, true),
    ]
}
