//! The layout of a stage in shared memory.

/// Words of the parts of a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageParts {
    /// x of all tokens of the block.
    pub(super) x: u32,
    /// Tiles of rows of the block, of all warps.
    pub(super) row_tiles: u32,
    /// Codes of a tile of rows.
    pub(super) tile_codes: u32,
    /// Group parameters of w, of all warps.
    pub(super) params: u32,
    /// Scales of x that change along K.
    pub(super) x_scales: u32,
}

/// The first word of each part of a stage: x at 0, then codes, group parameters, scales of x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StageLayout {
    /// Codes, tile by tile of rows.
    pub(super) codes: u32,
    /// Words of the codes of a tile of rows.
    pub(super) tile_codes: u32,
    /// Group parameters of w, warp by warp.
    pub(super) params: u32,
    /// Scales of x.
    pub(super) x_scales: u32,
    /// Words of the stage.
    pub(super) words: u32,
}

impl StageLayout {
    /// One part after another.
    pub(super) const fn new(parts: StageParts) -> Self {
        let StageParts { x, row_tiles, tile_codes, .. } = parts;
        let codes = x;
        let params = codes + row_tiles * tile_codes;
        let x_scales = params + parts.params;
        Self { codes, tile_codes, params, x_scales, words: x_scales + parts.x_scales }
    }
}

#[cfg(test)]
mod tests {
    use super::{StageLayout, StageParts};

    /// Each part begins where the one before it ends.
    #[test]
    fn parts_follow_one_another() {
        let parts = StageParts { x: 1024, row_tiles: 8, tile_codes: 256, params: 64, x_scales: 36 };
        let layout = StageLayout::new(parts);
        let expected =
            StageLayout { codes: 1024, tile_codes: 256, params: 3072, x_scales: 3136, words: 3172 };
        assert_eq!(layout, expected);
    }
}
