//! Snapshots of a few kernels, for review of changes: the IR and the PTX or HIP of a skinny
//! product, and of operations that no schedule uses.

use crate::kernels::products::problem;
use crate::kernels::{memory, sm, warp_groups, warp_matrices};
use quantloom_codegen::emit::{hip, ptx};
use quantloom_codegen::ir::{Kernel, verify};
use quantloom_codegen::schedule::skinny::SkinnyTile;
use quantloom_codegen::schedule::{RareFlag, Schedule};

fn skinny(scheme: &str, target: &str, tile: SkinnyTile) -> Kernel {
    tile.build(&problem(scheme, 0, target, (256, 1024))).unwrap()
}

fn shown(name: &str, kernel: Kernel) {
    let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        insta::assert_snapshot!(format!("{name}.ir"), kernel.to_string());
        match ptx::emit(&kernel) {
            Ok(text) => insta::assert_snapshot!(format!("{name}.ptx"), text),
            Err(_) => insta::assert_snapshot!(format!("{name}.hip"), hip::emit(&kernel).unwrap()),
        }
    });
}

const TILE: SkinnyTile = SkinnyTile {
    tokens: 1,
    row_tiles: 1,
    warps: 4,
    min_blocks: 2,
    splits: 1,
    interleaved: false,
    programmatic: true,
    makes_operand: RareFlag(false),
    groups_pairs: RareFlag(false),
};

#[test]
fn kernel_sources_match_their_snapshots() {
    shown("skinny_sm_90a", skinny("sym", "sm_90a", TILE));
    let tile = SkinnyTile { tokens: 8, splits: 2, programmatic: false, ..TILE };
    shown("skinny_zeros_split_sm_80", skinny("asym", "sm_80", tile));
    shown("memory_sm_80", memory(sm("sm_80")));
    shown("warp_groups_sm_90a", warp_groups());
    shown("memory_gfx942", memory(sm("gfx942")));
    shown("warp_matrices_gfx942", warp_matrices(sm("gfx942")));
    shown("warp_matrices_gfx1100", warp_matrices(sm("gfx1100")));
    shown("warp_matrices_gfx1201", warp_matrices(sm("gfx1201")));
}
