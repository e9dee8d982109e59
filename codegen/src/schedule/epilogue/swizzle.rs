//! The swizzle of sums in shared memory, against bank conflicts.

use crate::ir::{Builder, Operand};
use crate::schedule::mapping::MainLoop;

/// The swizzle of sums in shared memory: `[token][row]` in vectors of four rows, permuted within all
/// banks. Lanes that are served together then use different banks: adjacent rows of a token, or the same
/// four rows of neighbouring tokens (AMD), or one row of every second token (NVIDIA).
///
/// The word of a result is `(token * rows + row) ^ xor_mask(token)`: since sizes are powers of two, the
/// XOR of the words of each bit of token and row. Otherwise nothing is permuted.
#[derive(Clone, Copy)]
pub(super) struct SmemSwizzle {
    rows: u32,
    /// Tokens that fill all banks.
    full: u32,
    /// Adjacent tokens of a lane, among those.
    beside: u32,
    /// Words of all banks, if vectors are permuted; 0 if all tokens fit in the banks, or if tokens by
    /// rows are not a power of two.
    pub(super) banks: u32,
}

impl SmemSwizzle {
    pub(super) fn new(main: &MainLoop<'_>, rows: u32, tokens: u32) -> Self {
        let banks = main.problem.target().gpu.map_or(rows, |gpu| gpu.banks);
        let full = (banks / rows.max(1)).max(1);
        let permuted = tokens > full && (tokens * rows).is_power_of_two();
        let beside = (main.lanes().d.tokens.len() as u32).min(full);
        Self { rows, full, beside, banks: if permuted { banks } else { 0 } }
    }

    /// The XOR mask of a token's words.
    const fn xor_mask(self, token: u32) -> u32 {
        if self.banks == 0 { 0 } else { (token / self.full * self.beside * 4) & (self.banks - 1) }
    }

    /// The word of a result.
    pub(super) fn word(self, b: &mut Builder, [token, row]: [Operand; 2]) -> Operand {
        let at = b.mad(token, self.rows, row);
        if self.banks == 0 {
            return at;
        }
        let mask = b.div(token, self.full);
        let mask = b.mul(mask, self.beside * 4);
        let mask = b.and(mask, self.banks - 1);
        b.xor(at, mask)
    }

    /// The word of a result whose token and row have these bits in addition to those of the result at
    /// `word`, as a base and an offset.
    pub(super) fn further(
        self,
        b: &mut Builder,
        word: Operand,
        [token, row]: [u32; 2],
    ) -> (Operand, u32) {
        let further = token * self.rows + row;
        let within = (further ^ self.xor_mask(token)) & self.banks.saturating_sub(1);
        let more = further - (further & self.banks.saturating_sub(1));
        (if within == 0 { word } else { b.xor(word, within) }, more)
    }
}
