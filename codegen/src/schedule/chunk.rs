//! Codes in memory: a tile of rows is a sequence of chunks, a chunk a sequence of planes, a plane the words
//! of one lane after another.

use super::problem::Problem;
use crate::ir::Width;

/// Per plane of codes: its first word in a chunk, and the words of one lane.
pub(super) fn planes(problem: &Problem) -> impl Iterator<Item = (u32, u32)> + Clone {
    let lanes = problem.plan.native.lanes;
    let mut first = 0;
    problem.plan.native.plane_words.iter().map(move |&words| {
        let plane = (first, words);
        first += words * lanes;
        plane
    })
}

/// Words of a chunk of a tile.
pub(super) fn chunk_words(problem: &Problem) -> u32 {
    problem.lane_words() * problem.plan.native.lanes
}

/// Words of a tile of rows.
pub(super) fn tile_words(problem: &Problem) -> u32 {
    problem.chunks() * chunk_words(problem)
}

/// The loads of a lane's words of a plane, of the largest common width: the first word and the number of
/// words of each.
pub(super) fn loads(words: u32) -> impl Iterator<Item = (u32, u32)> {
    let each = 1 << words.trailing_zeros().min(2);
    (0..words).step_by(each as usize).map(move |first| (first, each))
}

/// The width of an access to 1, 2 or 4 words.
pub(super) const fn width(words: u32) -> Width {
    match words {
        4 => Width::B128,
        2 => Width::B64,
        _ => Width::B32,
    }
}
