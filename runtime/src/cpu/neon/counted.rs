//! The inner loops under fixed names, for `.ci/arm count` to find them in the disassembly.
//!
//! Each function is one instance that products use, compiled for its instruction set.

use super::{bf16, tile};
use crate::cpu::tile::{DotBlock, DotTokens, TileSums};

/// The linker keeps what a static that is used names.
macro_rules! kept {
    ($($name:ident: $type:ty;)*) => {$(
        const _: () = {
            #[used]
            static KEPT: $type = $name;
        };
    )*};
}

macro_rules! counted {
    ($($name:ident $features:literal $tile:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[target_feature(enable = $features)]
            fn $name(block: DotBlock<'_, 1>, tokens: DotTokens<'_, 4>, sums: &mut TileSums<4, 1>) {
                $tile(block, tokens, sums);
            }
        )*

        kept! { $($name: unsafe fn(DotBlock<'_, 1>, DotTokens<'_, 4>, &mut TileSums<4, 1>);)* }
    };
}

counted! {
    counted_smull_narrow "neon" tile::smull_tile::<4, 1, true, false>;
    counted_smull_wide "neon" tile::smull_tile::<4, 1, false, false>;
    counted_sdot_narrow "neon,dotprod" tile::sdot_tile::<4, 1, true, false>;
    counted_sdot_narrow_grouped "neon,dotprod" tile::sdot_tile::<4, 1, true, true>;
    counted_sdot_wide "neon,dotprod" tile::sdot_tile::<4, 1, false, false>;
    counted_usmmla "neon,dotprod,i8mm" tile::usmmla_tile::<4, 1, false>;
    counted_usmmla_grouped "neon,dotprod,i8mm" tile::usmmla_tile::<4, 1, true>;
}

/// Parts of a weight, pairs of a weight's and an x's parts, and parts of an x beside codes: the loops of bf16 parts.
macro_rules! counted_parts {
    (
        [$($cut:ident $parts:literal)*]
        [$($name:ident $of_weight:literal $of_x:literal)*]
        [$($scaled:ident $beside_codes:literal $corrected:literal)*]
    ) => {
        $(
            #[unsafe(no_mangle)]
            fn $cut(weights: &[[f32; 16]], out: &mut [[u8; 64]]) {
                bf16::cut_into::<$parts>(weights, out);
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe fn $name(weights: &[[u8; 64]], x: &[u16], sums: &mut [[f32; 16]; 4]) {
                // SAFETY: the caller's contract is the same.
                unsafe { bf16::tile::<$of_weight, $of_x>(weights, x, sums) }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe fn $scaled(
                codes: &[[u8; 64]],
                x: &[u16],
                scales: bf16::TileScales<'_>,
                sums: &mut [[f32; 16]; 4],
            ) {
                // SAFETY: the caller's contract is the same.
                unsafe { bf16::scaled_tile::<$beside_codes, $corrected>(codes, x, scales, sums) }
            }
        )*
        kept! {
            $($scaled: unsafe fn(&[[u8; 64]], &[u16], bf16::TileScales<'_>, &mut [[f32; 16]; 4]);)*
        }
        kept! { $($cut: fn(&[[f32; 16]], &mut [[u8; 64]]);)* }
        kept! { $($name: unsafe fn(&[[u8; 64]], &[u16], &mut [[f32; 16]; 4]);)* }
    };
}

counted_parts! {
    [counted_cut_1 1  counted_cut_2 2  counted_cut_3 3]
    [
        counted_bfmmla_1x1 1 1
        counted_bfmmla_2x1 2 1
        counted_bfmmla_3x1 3 1
        counted_bfmmla_1x2 1 2
        counted_bfmmla_1x3 1 3
    ]
    [
        counted_bfmmla_1x1_scaled 1 false
        counted_bfmmla_1x2_scaled 2 false
        counted_bfmmla_1x3_scaled 3 false
        counted_bfmmla_1x1_corrected 1 true
    ]
}

#[unsafe(no_mangle)]
fn counted_fmla(weights: &[[[f32; 16]; 1]], x: &[[f32; 4]], sums: &mut TileSums<4, 1>) {
    tile::fma_tile(weights, x, sums);
}

type FmaTile = fn(&[[[f32; 16]; 1]], &[[f32; 4]], &mut TileSums<4, 1>);

kept! { counted_fmla: FmaTile; }
