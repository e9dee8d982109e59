//! Activations into the workspace: widened or quantised, then packed in tiles.
//!
//! In: x [M, K] as the caller has it. Out: [`Tokens`]. The quantiser's codes are those of
//! [`quantloom_dsl::reference::quantise_activation`], bit for bit.

use quantloom_dsl::reference::{StaticInput, quantise_activation};
use quantloom_dsl::{Quantiser, Scheme};

use super::blocking::{Blocking, Tokens};
use super::native::{Native, Path};
use super::tokens::{Columns, piece_sums_f32, piece_sums_i32, place_codes, place_values};
use crate::buffer::{Cut, bytes_of};
use crate::element::Values;
use crate::op::ProductError;

/// What decides how x is read.
pub(super) struct Input<'a> {
    pub(super) scheme: &'a Scheme,
    pub(super) quantiser: Option<&'a Quantiser>,
    pub(super) given: &'a StaticInput,
    pub(super) columns: Columns<'a>,
    /// Unsigned stored code of the weight less this = integer.
    pub(super) offset: i32,
}

/// Bytes that [`PackedTokens::new`] cuts off.
pub(super) fn bytes(blocking: &Blocking, weight: &Native) -> usize {
    let (tokens, pieces) = (blocking.padded, blocking.padded * blocking.pieces);
    let columns = weight.columns();
    match blocking.path {
        Path::Dot => {
            bytes_of::<u32>(tokens * columns / 4)
                + bytes_of::<i32>(pieces)
                + bytes_of::<f32>(pieces)
                + 2 * bytes_of::<f32>(tokens)
        }
        Path::Fma => bytes_of::<f32>(tokens * columns) + bytes_of::<f32>(pieces),
    }
}

/// Room for the tokens in a workspace.
pub(super) enum PackedTokens<'a> {
    Codes {
        x: &'a mut [u32],
        starts: &'a mut [i32],
        sums: &'a mut [f32],
        scales: &'a mut [f32],
        zeros: &'a mut [f32],
    },
    Values {
        x: &'a mut [f32],
        sums: &'a mut [f32],
    },
}

impl<'a> PackedTokens<'a> {
    pub(super) fn new(cut: &mut Cut<'a>, blocking: &Blocking, weight: &Native) -> Self {
        let (tokens, pieces) = (blocking.padded, blocking.padded * blocking.pieces);
        let columns = weight.columns();
        match blocking.path {
            Path::Dot => Self::Codes {
                x: cut.take(tokens * columns / 4),
                starts: cut.take(pieces),
                sums: cut.take(pieces),
                scales: cut.take(tokens),
                zeros: cut.take(tokens),
            },
            Path::Fma => Self::Values { x: cut.take(tokens * columns), sums: cut.take(pieces) },
        }
    }

    pub(super) fn tokens(&self) -> Tokens<'_> {
        match self {
            Self::Codes { x, starts, sums, scales, zeros } => {
                Tokens::Codes { x, starts, sums, scales, zeros }
            }
            Self::Values { x, sums } => Tokens::Values { x, sums },
        }
    }

    /// Fills the room.
    pub(super) fn pack(
        &mut self,
        input: &Input<'_>,
        blocking: &Blocking,
        x: Values<'_>,
    ) -> Result<(), ProductError> {
        let k = input.columns.given;
        let mut values = vec![0.0; x.len()];
        x.widen(0, &mut values);
        let quantised = match input.quantiser {
            None => None,
            Some(quantiser) => {
                if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                    let (token, k) = (at / k, at % k);
                    let value = f64::from(values[at]);
                    return Err(ProductError::NotFinite { token, k, value });
                }
                let exact: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
                let own = x.format();
                let given = input.given;
                Some(quantise_activation(input.scheme, quantiser, &exact, k, own, given)?)
            }
        };
        let native = input.columns.native;
        match self {
            Self::Codes { x, starts, sums, scales, zeros } => {
                let Some(quantised) = quantised else { return Ok(()) };
                let mut row = vec![0i8; native];
                for tile in blocking.tiles() {
                    let x = &mut x[tile.first * native / 4..][..tile.size * native / 4];
                    let first = tile.first * blocking.pieces;
                    for m in 0..tile.size {
                        row.fill(0);
                        let token = tile.first + m;
                        if token < blocking.tokens {
                            let codes = &quantised.codes[token * k..(token + 1) * k];
                            let codes: Vec<i8> = codes.iter().map(|code| *code as i8).collect();
                            input.columns.gather(&codes, 0, &mut row);
                            scales[token] = quantised.scales[token * k] as f32;
                            zeros[token] = quantised.zeros[token * k] as f32;
                        }
                        place_codes(&row, m, tile.size, blocking.together, x);
                        for (piece, sum) in piece_sums_i32(&row, blocking.piece).enumerate() {
                            let at = first + piece * tile.size + m;
                            starts[at] = -input.offset * sum;
                            sums[at] = sum as f32;
                        }
                    }
                }
            }
            Self::Values { x, sums } => {
                if let Some(quantised) = quantised {
                    for (value, exact) in values.iter_mut().zip(quantised.values()) {
                        *value = exact as f32;
                    }
                }
                let mut row = vec![0.0f32; native];
                for tile in blocking.tiles() {
                    let x = &mut x[tile.first * native..][..tile.size * native];
                    let first = tile.first * blocking.pieces;
                    for m in 0..tile.size {
                        row.fill(0.0);
                        let token = tile.first + m;
                        if token < blocking.tokens {
                            let values = &values[token * k..(token + 1) * k];
                            input.columns.gather(values, 0.0, &mut row);
                        }
                        place_values(&row, m, tile.size, x);
                        for (piece, sum) in piece_sums_f32(&row, blocking.piece).enumerate() {
                            sums[first + piece * tile.size + m] = sum;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
