//! The arrays of a kernel, and the words of an access.

use super::Writer;
use crate::emit::walk::unsigned;
use crate::ir::{AccessKind, Address, Kernel, MemoryAccess, Op, Operand, Space, Width, each_op};

/// How an array is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrayKind {
    /// `u32`
    Words,
    /// `vec4<u32>`: every access moves 16 bytes.
    Fours,
    /// `atomic<u32>`: some access is atomic, or writes a part of a word.
    Atomic,
}

impl ArrayKind {
    pub(super) const fn element(self) -> &'static str {
        match self {
            Self::Words => "u32",
            Self::Fours => "vec4<u32>",
            Self::Atomic => "atomic<u32>",
        }
    }
}

/// How each buffer is declared.
pub(super) fn buffers(kernel: &Kernel) -> Vec<ArrayKind> {
    let of = |id: usize| {
        array(kernel, |space| matches!(space, Space::Global(at) if at.0 as usize == id))
    };
    (0..kernel.buffers.len()).map(of).collect()
}

/// How shared memory is declared: as one array, since its blocks may alias.
pub(super) fn shared(kernel: &Kernel) -> ArrayKind {
    array(kernel, |space| matches!(space, Space::Shared(_)))
}

fn array(kernel: &Kernel, is: impl Fn(Space) -> bool) -> ArrayKind {
    let (mut atomic, mut fours, mut any) = (false, true, false);
    each_op(&kernel.body, &mut |op| {
        for MemoryAccess { address, kind, bytes, .. } in op.memory_accesses() {
            if !is(address.space) || matches!(op, Op::Prefetch { .. }) {
                continue;
            }
            any = true;
            atomic |= kind == AccessKind::Atomic || kind == AccessKind::Write && bytes < 4;
            fours &= bytes == Width::B128.bytes();
        }
    });
    match (atomic, fours && any) {
        (true, _) => ArrayKind::Atomic,
        (false, true) => ArrayKind::Fours,
        (false, false) => ArrayKind::Words,
    }
}

/// The words of an access.
pub(super) struct WordRef {
    /// The array's name.
    pub(super) array: String,
    /// How it is declared.
    pub(super) kind: ArrayKind,
    /// The number of the first 32-bit word.
    pub(super) index: String,
    /// For accesses of 8 or 16 bits: the bit position in the word.
    pub(super) shift: Option<String>,
}

impl WordRef {
    /// The word `plus` words after the first.
    pub(super) fn element(&self, plus: u32) -> String {
        match plus {
            0 => format!("{}[{}]", self.array, self.index),
            plus => format!("{}[{} + {plus}u]", self.array, self.index),
        }
    }

    /// The vector of four words.
    pub(super) fn four(&self) -> String {
        format!("{}[({}) >> 2u]", self.array, self.index)
    }
}

impl Writer<'_> {
    /// The words of an access at an address.
    pub(super) fn word_ref(&self, address: Address, width: Width) -> WordRef {
        let kernel = self.kernel;
        let (array, kind, bytes, first) = match address.space {
            Space::Global(id) => {
                let buffer = &kernel.buffers[id.0 as usize];
                let name = format!("buffer_{}", buffer.name);
                (name, self.state.buffers[id.0 as usize], buffer.word.bytes(), 0)
            }
            Space::Shared(id) => {
                let block = &kernel.shared[id.0 as usize];
                let first = kernel.shared_map().blocks[id.0 as usize] / 4;
                ("shared_words".to_owned(), self.state.shared, block.word.bytes(), first)
            }
        };
        // Elements of the array in a 32-bit word, as a power of two.
        let per_word = (4 / bytes).trailing_zeros();
        let number = match (address.index, address.offset) {
            (Operand::Reg(reg), 0) => self.reg(reg),
            (Operand::Reg(reg), offset) => format!("{} + {offset}u", self.reg(reg)),
            (Operand::U32(index), offset) => unsigned(index.wrapping_add(offset)),
            (_, offset) => unsigned(offset),
        };
        let index = match (per_word, first) {
            (0, 0) => number.clone(),
            (0, first) => format!("{number} + {first}u"),
            (per_word, 0) => format!("(({number}) >> {per_word}u)"),
            (per_word, first) => format!("((({number}) >> {per_word}u) + {first}u)"),
        };
        let narrow = width.bytes() < 4 && per_word > 0;
        let shift =
            narrow.then(|| format!("((({number}) & {}u) * {}u)", (1 << per_word) - 1, 8 * bytes));
        WordRef { array, kind, index, shift }
    }
}
