//! Codes in memory: a tile of rows is chunks one after another, a chunk planes one after another, a
//! plane the words of the lanes side by side.

use super::problem::Problem;
use crate::ir::Width;

/// Of each plane of codes, its first word in a chunk and the words that a lane has of it.
pub(super) fn planes(problem: &Problem) -> impl Iterator<Item = (u32, u32)> {
    let bits = problem.plan.dequant.weight.code.bits();
    let (of_lane, of_chunk) = (problem.lane_words(), chunk_words(problem));
    let mut first = 0;
    problem.plan.dequant.planes.iter().map(move |&(low, high)| {
        let width = u32::from(high - low);
        let plane = (first, of_lane * width / bits);
        first += of_chunk * width / bits;
        plane
    })
}

/// Words of a chunk of a tile.
pub(super) fn chunk_words(problem: &Problem) -> u32 {
    problem.lane_words() * problem.target().gpu.map_or(32, |gpu| gpu.warp)
}

/// Words of a tile of rows.
pub(super) fn tile_words(problem: &Problem) -> u32 {
    problem.chunks() * chunk_words(problem)
}

/// The access of so many words: 1, 2 or 4.
pub(super) const fn width(words: u32) -> Width {
    match words {
        4 => Width::B128,
        2 => Width::B64,
        _ => Width::B32,
    }
}
