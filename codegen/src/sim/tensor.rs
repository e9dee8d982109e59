//! The box that a tensor copy moves: its bytes in the buffer and in shared memory.

use super::fault::FaultKind;
use super::state::LaunchContext;
use crate::ir::{Swizzle, TensorId};

/// A tensor map with the values of the launch's parameters.
#[derive(Debug)]
pub(super) struct TensorBox {
    pub(super) buffer: u32,
    /// Bytes of an element.
    pub(super) word: u32,
    extents: Vec<i64>,
    strides: Vec<i64>,
    sides: Vec<u32>,
    swizzle: Swizzle,
}

impl TensorBox {
    pub(super) fn new(context: &LaunchContext<'_>, map: TensorId) -> Self {
        let map = &context.kernel.tensors[map.0 as usize];
        let value = |extent: &crate::ir::Extent| {
            i64::from(extent.value(context.parameters).unwrap_or_default())
        };
        Self {
            buffer: map.buffer.0,
            word: context.kernel.buffers[map.buffer.0 as usize].word.bytes(),
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

    /// Required alignment of the box's start in shared memory, in bytes.
    pub(super) fn align(&self) -> u32 {
        match self.swizzle {
            Swizzle::None => 128,
            Swizzle::B32 => 8 * 32,
            Swizzle::B64 => 8 * 64,
            Swizzle::B128 => 8 * 128,
        }
    }

    /// The fault of a box that begins at `corner`, if it is one.
    pub(super) fn refuses(&self, corner: &[i64]) -> Option<FaultKind> {
        let bytes = corner.first()? * i64::from(self.word);
        (bytes % 16 != 0).then_some(FaultKind::BoxStart(bytes))
    }

    /// Each element of a box whose first element is at `corner`: its byte in shared memory, for a
    /// box that starts at `start`; and its byte in the buffer, if the element is in bounds.
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
