//! What every op answers, on whatever device.

use quantloom_dsl::format::BF16;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::op::Op;
use quantloom_runtime::pack::pack;
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tools::conformance::draw;

/// Small weights whose products are of integers, of several bf16 parts, and of 16 bits.
///
/// # Panics
/// Never: the texts are right.
pub fn weights() -> Vec<(Scheme, Unpacked)> {
    let texts = [
        "a { weight: i8, scale: bf16 per channel, pack: [n, k], activation: i8 { scale: f32 per token } }",
        "b { weight: e2m1, scale: e8m0 per 1x32, pack: [k, n], activation: bf16 | f16 }",
        "c { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16 }",
    ];
    let shape = Shape::matrix(48, 256);
    let weight = |text: &str| {
        let scheme = parse(text).expect("a scheme");
        let packed = pack(&scheme, &draw::layer(&scheme, shape, 0)).expect("a layer that fits");
        let stored = |name: &str| packed.get(name).map(Vec::as_slice);
        let weight = Unpacked::new(&scheme, shape, &stored).expect("what was packed");
        (scheme, weight)
    };
    texts.into_iter().map(weight).collect()
}

/// Asks an op of K columns about powers of two of tokens, and one less, up to the last.
///
/// # Panics
/// If an answer is not what the number of tokens needs at least, or becomes smaller.
pub fn answers_for_any_tokens(op: &dyn Op, columns: u64) {
    let mut last = 0;
    for tokens in (0..=usize::BITS).map(|bits| 1usize.checked_shl(bits).unwrap_or(0)) {
        let tokens = tokens.wrapping_sub(1);
        let (kernel, size) = (op.kernel(tokens), op.workspace_size(tokens));
        assert!(!op.explain(tokens).is_empty());
        let _ = op.accumulation().sums(BF16, tokens);
        // What a token needs at least, if the workspace is the CPU's.
        let least = tokens.saturating_mul(columns as usize);
        assert!(size == 0 || size >= least, "{kernel}, M = {tokens}: {size}");
        assert!(size >= last || tokens < 1 << 16, "{kernel}, M = {tokens}: {size} < {last}");
        last = size;
    }
}
