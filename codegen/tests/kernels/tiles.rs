//! Small tiles, to vary.

use quantloom_codegen::schedule::RareFlag;
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::tile::TileShape;
use quantloom_codegen::schedule::warp_group::WarpGroupTile;

/// Of a skinny product.
pub const SKINNY: SkinnyTile = SkinnyTile {
    tokens: 1,
    row_tiles: 1,
    warps: 4,
    min_blocks: 1,
    splits: 1,
    interleaved: false,
    programmatic: false,
    makes_operand: RareFlag(false),
    groups_pairs: RareFlag(false),
};

/// Of a product in tiles.
pub const TILE: TileShape = TileShape {
    tokens: 16,
    rows: 32,
    warps: 2,
    min_blocks: 1,
    stages: 3,
    splits: 1,
    programmatic: false,
};

/// Of a product on warp groups.
pub const WARP_GROUP: WarpGroupTile = WarpGroupTile {
    tokens: 32,
    groups: 2,
    row_tiles: 1,
    stages: 2,
    parts: 1,
    batch: 4,
    splits: 1,
    multicast: 1,
    persistent: false,
    unswapped: false,
    exact: false,
    programmatic: true,
};
