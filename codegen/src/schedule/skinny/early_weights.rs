//! Weights on their way before earlier kernels have ended, where the expert decides which weights these are.
//!
//! An expert layer's ids are complete before its first product begins, but what promises that a kernel sees them is its own wait for the
//! kernel before. So a warp guesses its expert, loads the first weights of that one, waits, reads which expert it is, and loads again
//! where the guess was wrong. Nothing depends on the guess but time.

use super::SkinnyTile;
use super::weights::{InFlight, LaneWeights};
use crate::ir::{Builder, Operand, Unary};
use crate::schedule::buffers::ProductBuffers;
use crate::schedule::mapping::{KRange, MainLoop};
use crate::schedule::stack::{GuessedMatrix, Matrix};

/// The first weights of a guessed matrix.
pub(super) struct EarlyWeights<'p> {
    weights: LaneWeights<'p>,
    flight: InFlight,
    guess: GuessedMatrix,
    k_tiles: KRange,
    /// Whether the warp has one.
    exists: Operand,
}

/// Weights that may be on their way already.
pub(super) struct FirstWeights {
    /// The registers that they are loaded into.
    pub(super) flight: InFlight,
    /// Whether they have to be loaded again.
    pub(super) wrong: Operand,
    /// The warp's k-tiles.
    pub(super) k_tiles: KRange,
    /// Whether the warp has one.
    pub(super) exists: Operand,
}

impl<'p> EarlyWeights<'p> {
    /// Loads the first k-tile of a block's rows of the matrix, if the warp has one.
    pub(super) fn load(
        b: &mut Builder,
        product: (&'p MainLoop<'p>, SkinnyTile),
        (io, lane): (&ProductBuffers, Operand),
        (block, guess): (Operand, GuessedMatrix),
        k_tiles: KRange,
    ) -> Self {
        let weights = LaneWeights::place(b, product, (io, lane), (block, guess.matrix));
        b.comment("weights of the first k-tile, if the guess is right");
        let flight = weights.in_flight(b);
        let exists = b.less(k_tiles.start, k_tiles.end);
        let there = b.both(exists, guess.there);
        weights.load(b, &flight, k_tiles.start, there);
        Self { weights, flight, guess, k_tiles, exists }
    }

    /// The weights of the matrix that it is.
    pub(super) fn of(self, b: &mut Builder, matrix: Matrix) -> (LaneWeights<'p>, FirstWeights) {
        let Self { weights, flight, guess, k_tiles, exists } = self;
        b.comment("where the expert is not the guessed one, its weights are elsewhere");
        let further = matrix.after(b, guess.matrix);
        let right = b.equal(further, 0u32);
        let right = b.both(right, guess.there);
        let wrong = b.unary(Unary::NotPred, right);
        let first = FirstWeights { flight, wrong, k_tiles, exists };
        (weights.further(b, further), first)
    }
}
