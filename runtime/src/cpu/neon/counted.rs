//! The inner loops by name, for `.ci/arm count` to find them in the disassembly.
//!
//! Each function is one instance as the product runs it, compiled for its set.

use std::hint::black_box;

use super::tile;
use crate::cpu::tile::{DotBlock, DotTokens, Sums};

macro_rules! counted {
    ($($name:ident $features:literal $tile:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[target_feature(enable = $features)]
            fn $name(block: DotBlock<'_, 1>, tokens: DotTokens<'_, 4>, sums: &mut Sums<4, 1>) {
                $tile(block, tokens, sums);
            }
        )*

        /// The linker keeps what is used.
        fn keep() {
            $(black_box($name as unsafe fn(DotBlock<'_, 1>, DotTokens<'_, 4>, &mut Sums<4, 1>));)*
            black_box(counted_fmla as fn(&[[[f32; 16]; 1]], &[[f32; 4]], &mut Sums<4, 1>));
        }
    };
}

counted! {
    counted_smull_narrow "neon" tile::smull_tile::<4, 1, true>;
    counted_smull_wide "neon" tile::smull_tile::<4, 1, false>;
    counted_sdot_narrow "neon,dotprod" tile::sdot_tile::<4, 1, true>;
    counted_sdot_wide "neon,dotprod" tile::sdot_tile::<4, 1, false>;
    counted_usmmla "neon,dotprod,i8mm" tile::usmmla_tile::<4, 1>;
}

#[unsafe(no_mangle)]
fn counted_fmla(weights: &[[[f32; 16]; 1]], x: &[[f32; 4]], sums: &mut Sums<4, 1>) {
    tile::fma_tile(weights, x, sums);
}

#[test]
fn the_counted_loops_are_there() {
    keep();
}
