//! Tiles that are worth measuring for a problem: all that fit, from few to many rows, warps, blocks
//! and parts of K.

use super::choose::{Chosen, choose_by_model};
use super::decode::DecodeTile;
use super::problem::Problem;
use super::shader::ShaderTile;
use super::tile::TileShape;

/// Tokens from which tiles are tried, up to the most that a decode product takes.
const TILES_FROM: u32 = 9;

/// What is worth measuring for so many tokens: first what the model chooses, then the rest.
pub fn candidates(problem: &Problem, tokens: u32) -> Vec<Chosen> {
    if problem.product.is_none() {
        let lanes = ShaderTile::candidates(problem, tokens).into_iter().map(Chosen::Shader);
        return lanes.filter(|chosen| chosen.takes(problem, tokens)).collect();
    }
    let decode = DecodeTile::candidates(problem, tokens).into_iter().map(Chosen::Decode);
    let tiles = (tokens >= TILES_FROM).then(|| TileShape::candidates(problem, tokens));
    let tiles = tiles.into_iter().flatten().map(Chosen::Tile);
    let model = choose_by_model(problem, tokens).ok();
    let others = decode.chain(tiles).filter(|chosen| Some(*chosen) != model);
    model.into_iter().chain(others.filter(|chosen| chosen.takes(problem, tokens))).collect()
}
