//! The box that a tensor copy moves: which bytes of the buffer, and where they lie in shared memory.

use super::fault::FaultKind;
use super::world::Setting;
use crate::ir::{Swizzle, TensorId};

/// A tensor map with the launch's numbers.
#[derive(Debug)]
pub(super) struct Tile {
    pub(super) buffer: u32,
    /// Bytes of an element.
    pub(super) word: u32,
    extents: Vec<i64>,
    strides: Vec<i64>,
    sides: Vec<u32>,
    swizzle: Swizzle,
}

impl Tile {
    pub(super) fn new(set: &Setting<'_>, map: TensorId) -> Self {
        let map = &set.kernel.tensors[map.0 as usize];
        let value = |extent: &crate::ir::Extent| {
            i64::from(extent.value(set.parameters).unwrap_or_default())
        };
        Self {
            buffer: map.buffer.0,
            word: set.kernel.buffers[map.buffer.0 as usize].word.bytes(),
            extents: map.extents.iter().map(value).collect(),
            strides: map.strides.iter().map(value).collect(),
            sides: map.tile.clone(),
            swizzle: map.swizzle,
        }
    }

    /// Bytes of the box.
    pub(super) fn bytes(&self) -> u64 {
        self.sides.iter().map(|&side| u64::from(side)).product::<u64>() * u64::from(self.word)
    }

    /// What the box's start in shared memory is a multiple of.
    pub(super) fn align(&self) -> u32 {
        match self.swizzle {
            Swizzle::None => 128,
            Swizzle::B32 => 8 * 32,
            Swizzle::B64 => 8 * 64,
            Swizzle::B128 => 8 * 128,
        }
    }

    /// Why no box begins at `corner`.
    pub(super) fn refuses(&self, corner: &[i64]) -> Option<FaultKind> {
        let bytes = corner.first()? * i64::from(self.word);
        (bytes % 16 != 0).then_some(FaultKind::BoxStart(bytes))
    }

    /// Each element of a box whose first element is at `corner`: its byte in shared memory, for a
    /// box that starts at `start`, and its byte in the buffer, if it is inside of the extents.
    pub(super) fn elements(
        &self,
        corner: &[i64],
        start: u64,
    ) -> impl Iterator<Item = (u64, Option<u64>)> + '_ {
        let corner = corner.to_vec();
        (0..self.bytes() / u64::from(self.word)).map(move |number| {
            let mut rest = number;
            let mut element = Some(0i64);
            for (dimension, &side) in self.sides.iter().enumerate() {
                let index = (rest % u64::from(side)) as i64 + corner[dimension];
                rest /= u64::from(side);
                let inside = (0..self.extents[dimension]).contains(&index);
                element = element
                    .filter(|_| inside)
                    .map(|element| element + index * self.strides[dimension]);
            }
            let plain = start + number * u64::from(self.word);
            let shared = u64::from(self.swizzle.apply(plain as u32));
            (shared, element.map(|element| element as u64 * u64::from(self.word)))
        })
    }
}
