//! Neighbouring elements of rows in f32, f16 or bf16: loaded as f32, stored with one rounding.

use quantloom_dsl::format::{BF16, F16, FloatFormat};

use crate::ir::{
    Access, Address, Binary, BufferId, Builder, Cache, Extent, Half, Mask, Operand, Side, Type,
    Width, Word,
};
use quantloom_dsl::BufferRole;

/// The most threads of a block of these kernels: what every target has.
pub(super) const THREADS: u32 = 256;

/// A type of elements, and how many neighbours a thread takes.
#[derive(Clone, Copy)]
pub(in crate::schedule) struct Elements {
    /// f32 if `None`.
    half: Option<Half>,
    /// 1, 2, 4 or 8: 16 bytes at most.
    pub(super) unit: u32,
}

impl Elements {
    /// Elements of several types in rows of so many columns, with as many neighbours of each: 16 bytes of the widest.
    pub(super) fn alike<const N: usize>(formats: [FloatFormat; N], columns: u32) -> [Self; N] {
        let widest = formats.iter().map(|format| format.bits()).max().unwrap_or(32);
        let most = (128 / widest).trailing_zeros();
        let unit = 1 << columns.trailing_zeros().min(most);
        formats.map(|format| Self { unit, ..Self::of(format, columns) })
    }

    /// Elements of rows of so many columns: as many neighbours as every row has whole groups of, up to four.
    pub(in crate::schedule) fn of(format: FloatFormat, columns: u32) -> Self {
        let half = match format {
            F16 => Some(Half::F16),
            BF16 => Some(Half::Bf16),
            _ => None,
        };
        Self { half, unit: 1 << columns.trailing_zeros().min(2) }
    }

    /// A buffer of such elements.
    pub(in crate::schedule) fn buffer(
        self,
        b: &mut Builder,
        role: BufferRole,
        access: Access,
        shape: &[Extent],
        layout: &str,
    ) -> BufferId {
        let word = if self.half.is_some() { Word::U16 } else { Word::U32 };
        let number = match self.half {
            None => "f32",
            Some(Half::F16) => "f16",
            Some(Half::Bf16) => "bf16",
        };
        b.buffer_of(role, word, access, shape, &format!("{number} {layout}"))
    }

    const fn width(self) -> Width {
        match (self.half.is_some(), self.unit) {
            (true, 1) => Width::B16,
            (true, 2) | (false, 1) => Width::B32,
            (true, 4) | (false, 2) => Width::B64,
            (true | false, _) => Width::B128,
        }
    }

    /// Neighbours as f32; 0 where the condition is false.
    pub(in crate::schedule) fn load(
        self,
        b: &mut Builder,
        from: Address,
        condition: Option<Operand>,
    ) -> Vec<Operand> {
        let Some(half) = self.half else {
            let mask = condition.map(|condition| Mask { condition, fill: 0.0f32.into() });
            let loaded = b.load_as(Type::F32, from, self.width(), mask, Cache::Default);
            return loaded.into_iter().map(Operand::from).collect();
        };
        let mask = condition.map(Mask::or_zero);
        let words = b.load_as(Type::U32, from, self.width(), mask, Cache::Default);
        let sides = [Side::Low, Side::High].into_iter().take(self.unit.min(2) as usize);
        let both = words.into_iter().flat_map(|word| sides.clone().map(move |side| (word, side)));
        both.map(|(word, side)| b.half_to_f32(half, side, word)).collect()
    }

    /// Stores neighbours, each rounded once, where the condition is true.
    pub(super) fn store(
        self,
        b: &mut Builder,
        to: Address,
        values: &[Operand],
        condition: Option<Operand>,
    ) {
        let words: Vec<Operand> = match self.half {
            None => values.to_vec(),
            Some(half) => {
                let pack = |pair: &[Operand]| {
                    let high = pair.get(1).copied().unwrap_or(pair[0]);
                    b.binary(Binary::Pack(half), pair[0], high)
                };
                values.chunks(2).map(pack).collect()
            }
        };
        b.store(to, &words, self.width(), condition);
    }
}

/// Threads of a block that shares a row of so many groups of neighbours, and blocks of the row.
pub(super) fn partition(warp: u32, groups: u32) -> (u32, u32) {
    let threads = groups.next_multiple_of(warp).min(THREADS);
    (threads, groups.div_ceil(threads))
}
