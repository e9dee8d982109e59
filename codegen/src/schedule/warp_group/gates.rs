//! The gates of an expert layer, of a lane's results of two tokens in two rows.
//!
//! A token block has its pairs before its empty slots, so that one that is not full has slots without a pair side by side: a warp
//! leaves out the gates of tokens of which none has a pair. The branch is also the end of what an assembler schedules together:
//! without one it computes the gates of many results at once, which needs more registers than there are.

use quantloom_dsl::experts::Gate;

use crate::ir::{Binary, Builder, Operand, Type, Uniformity};
use crate::schedule::experts::function::gate;

/// `h` of each of two tokens in two rows, from g and u likewise; 0 of a token that does not exist.
pub(super) fn values(
    b: &mut Builder,
    of: Gate,
    exists: [Operand; 2],
    results: [[[Operand; 2]; 2]; 2],
) -> [[Operand; 2]; 2] {
    let h = [0, 1].map(|_| b.array("h", Type::F32, 2, Uniformity::Varying));
    h.iter().flatten().for_each(|&h| b.set(h, 0.0f32));
    let one = b.binary(Binary::OrPred, exists[0], exists[1]);
    b.when(one, |b| {
        // A gate is a long chain of operations.
        b.interleaved(4, |b, number| {
            let (token, row) = (number / 2, number % 2);
            let [g, u] = results[token][row];
            let value = gate(b, of, g, u);
            let value = b.select(exists[token], value, 0.0f32);
            b.set(h[token][row], value);
        });
    });
    [0, 1].map(|token| [0, 1].map(|row| h[token][row].into()))
}
