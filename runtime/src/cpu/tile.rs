//! Register tiles: tokens by panels, on operands that are already decoded.
//!
//! In: a block of decoded panels, the packed tokens of a tile. Out: their products, added to
//! `sums`. These two loops, in which a product of many tokens spends its time, are independent of
//! code types. An instruction set with matrix instructions (`smmla`) overrides the tile functions
//! of [`Vector`], whose defaults call these loops.

use super::vector::Vector;

/// Unrolls a body for each index below a constant of at most 12. The compiler splits arrays into
/// registers before it unrolls loops, and would keep the sums of a tile in memory. The conditions
/// are `const` blocks, so that unused copies are never compiled.
macro_rules! each {
    ($index:ident in [$($value:literal)*] $body:block) => {
        $({
            let $index: usize = $value;
            $body
        })*
    };
    ($index:ident in $count:ident $body:block) => {
        each!(@ $index $count $body 0 1 2 3 4 5 6 7 8 9 10 11)
    };
    (@ $index:ident $count:ident $body:block $($value:literal)*) => {
        $(if const { $value < $count } {
            let $index: usize = $value;
            $body
        })*
    };
}
pub(super) use each;

/// The sum of the independent chains of a token, of which there are 1, 2 or 4, by an addition of vectors. A macro, as the
/// addition is of integers or of `f32`, and a closure would not be compiled for the instruction set.
macro_rules! sum_of_chains {
    ($parts:expr, $chains:ident, $add:ident) => {{
        let parts = $parts;
        let mut sum = parts[0];
        if const { $chains > 1 } {
            sum = sum.$add(parts[1]);
        }
        if const { $chains > 2 } {
            sum = sum.$add(parts[2].$add(parts[3]));
        }
        sum
    }};
}
pub(super) use sum_of_chains;

/// Sums of a tile: 16 rows of each panel for each token.
pub type TileSums<const M: usize, const P: usize> = [[[f32; 16]; P]; M];

/// A block of decoded codes: P panels, whole segments of their columns.
#[derive(Clone, Copy, Debug)]
pub struct DotBlock<'a, const P: usize> {
    /// `[step of 4 columns][panel]`, each chunk of 8 steps in the order of [`Vector::arrange`].
    pub codes: &'a [[[u8; 64]; P]],
    /// Steps of a segment; the last segment may be shorter.
    pub segment: usize,
    /// `[segment][panel]`: scales of its rows.
    pub scales: &'a [[[f32; 16]; P]],
}

/// The tokens of a tile of integer products.
#[derive(Clone, Copy, Debug)]
pub struct DotTokens<'a, const M: usize> {
    /// `[step of 4 columns][token]`, four signed bytes each.
    pub x: &'a [[u32; M]],
    /// `[segment][token]`: the initial value of a sum.
    pub starts: &'a [[i32; M]],
    /// `[segment][token]`: scales of x, if it has one for each segment.
    pub scales: Option<&'a [[f32; M]]>,
}

/// `sums += scale * (start + codes . x)` over the segments of a block; a scale of x multiplies the
/// term in parentheses, if it has one for each segment.
#[inline(always)]
pub fn dot_tile<V: Vector, const M: usize, const P: usize, const NARROW: bool>(
    block: DotBlock<'_, P>,
    tokens: DotTokens<'_, M>,
    sums: &mut TileSums<M, P>,
) {
    match tokens.scales {
        None => dot_segments::<V, M, P, NARROW, false>(block, tokens, &[], sums),
        Some(scales) => dot_segments::<V, M, P, NARROW, true>(block, tokens, scales, sums),
    }
}

/// The M x P integer sums of a segment are in registers; so are the `f32` sums if the instruction
/// set has enough registers ([`Tiling::dot_held`](super::vector::Tiling)), else they are in L1.
#[inline(always)]
fn dot_segments<
    V: Vector,
    const M: usize,
    const P: usize,
    const NARROW: bool,
    const GROUPED: bool,
>(
    block: DotBlock<'_, P>,
    tokens: DotTokens<'_, M>,
    x_scales: &[[f32; M]],
    sums: &mut TileSums<M, P>,
) {
    let mut held = [[V::splat(0); P]; M];
    if const { V::TILING.dot_held } {
        each!(m in M {
            each!(p in P {
                held[m][p] = V::load_f32(&sums[m][p]);
            });
        });
    }
    let codes = block.codes.chunks(block.segment);
    let segments = codes.zip(tokens.x.chunks(block.segment)).zip(tokens.starts).zip(block.scales);
    for (at, (((codes, x), starts), scales)) in segments.enumerate() {
        let mut parts = [[V::splat(0); P]; M];
        each!(m in M {
            each!(p in P {
                parts[m][p] = V::splat(starts[m] as u32);
            });
        });
        for (codes, x) in codes.iter().zip(x) {
            let mut operand = [V::splat(0); P];
            each!(p in P {
                operand[p] = V::load(&codes[p]);
            });
            each!(m in M {
                let token = V::splat(x[m]);
                each!(p in P {
                    parts[m][p] = if NARROW {
                        parts[m][p].dot_narrow(operand[p], token)
                    } else {
                        parts[m][p].dot(operand[p], token)
                    };
                });
            });
        }
        let mut values = [[V::splat(0); P]; M];
        if GROUPED {
            let of_x = &x_scales[at];
            each!(m in M {
                let of_x = V::splat(of_x[m].to_bits());
                each!(p in P {
                    values[m][p] = parts[m][p].to_f32().mul_f32(of_x);
                });
            });
        } else {
            each!(m in M {
                each!(p in P {
                    values[m][p] = parts[m][p].to_f32();
                });
            });
        }
        if const { V::TILING.dot_held } {
            each!(p in P {
                let scale = V::load_f32(&scales[p]);
                each!(m in M {
                    held[m][p] = values[m][p].fma_f32(scale, held[m][p]);
                });
            });
        } else {
            // Hidden from the optimiser, which would keep the sums of a tile in registers between
            // segments, spill them, and so copy each sum to the stack and back.
            let sums = std::hint::black_box(&mut *sums);
            each!(p in P {
                let scale = V::load_f32(&scales[p]);
                each!(m in M {
                    let sum = V::load_f32(&sums[m][p]);
                    values[m][p].fma_f32(scale, sum).store_f32(&mut sums[m][p]);
                });
            });
        }
    }
    if const { V::TILING.dot_held } {
        each!(m in M {
            each!(p in P {
                held[m][p].store_f32(&mut sums[m][p]);
            });
        });
    }
}

/// `sums += weights . x` over the columns of a block.
///
/// The M x P sums of a block are in registers.
#[inline(always)]
pub fn fma_tile<V: Vector, const M: usize, const P: usize>(
    weights: &[[[f32; 16]; P]],
    x: &[[f32; M]],
    sums: &mut TileSums<M, P>,
) {
    let mut parts = [[V::splat(0); P]; M];
    for (weights, x) in weights.iter().zip(x) {
        let mut operand = [V::splat(0); P];
        each!(p in P {
            operand[p] = V::load_f32(&weights[p]);
        });
        each!(m in M {
            let token = V::splat(x[m].to_bits());
            each!(p in P {
                parts[m][p] = operand[p].fma_f32(token, parts[m][p]);
            });
        });
    }
    each!(m in M {
        each!(p in P {
            let sum = V::load_f32(&sums[m][p]);
            sum.add_f32(parts[m][p]).store_f32(&mut sums[m][p]);
        });
    });
}
