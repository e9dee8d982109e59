//! Addresses as expressions: an argument or the shared memory, plus the index times the word's
//! bytes, plus a constant.

use super::Writer;
use crate::ir::{Address, Operand, Space};

impl Writer<'_> {
    /// A byte address.
    pub(super) fn address(&mut self, address: Address) -> String {
        let (base, bytes, start, short) = match address.space {
            Space::Global(id) => {
                let buffer = &self.kernel.buffers[id.0 as usize];
                let words = buffer.shape.iter().map(|extent| extent.value(&[]).map(u64::from));
                let words = words.product::<Option<u64>>();
                let bytes = buffer.word.bytes();
                // In a buffer of less than 4 GiB, 32 bits hold the offset from its start.
                let short = words.is_some_and(|words| words * u64::from(bytes) <= 1 << 32);
                (format!("arg_{}", buffer.name), bytes, 0, short)
            }
            Space::Shared(id) => {
                let start = self.kernel.shared_map().blocks[id.0 as usize];
                let bytes = self.kernel.shared[id.0 as usize].word.bytes();
                ("shared_memory".to_owned(), bytes, start, true)
            }
        };
        let mut constant = u64::from(start) + u64::from(address.offset) * u64::from(bytes);
        let mut text = base;
        match address.index {
            Operand::U32(index) => constant += u64::from(index) * u64::from(bytes),
            index => {
                let index = self.value(index);
                text += &match (bytes, short) {
                    (1, _) => format!(" + {index}"),
                    (_, true) => format!(" + {index} * {bytes}u"),
                    (_, false) => format!(" + {index} * {bytes}ull"),
                };
            }
        }
        if constant > 0 {
            text += &format!(" + {constant}");
        }
        text
    }
}
