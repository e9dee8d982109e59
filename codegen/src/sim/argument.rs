//! Arguments of a launch: parameters, and the contents of the buffers.

use super::misuse::LaunchMismatch;
use crate::ir::{Access, Buffer, Kernel};

/// Arguments of a launch, in the order of the kernel's declarations.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// The parameters.
    pub parameters: Vec<u32>,
    /// The buffers. After a run, write-once buffers and workspaces hold what the kernel wrote.
    pub buffers: Vec<Contents>,
}

/// The bytes of a buffer, some of which may be poison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether each byte has a value; all bytes do if the list is empty.
    known: Vec<bool>,
}

impl Contents {
    /// Bytes without poison.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes, known: Vec::new() }
    }

    /// The words of a buffer of [`Word::U32`](crate::ir::Word::U32).
    pub fn from_words(words: &[u32]) -> Self {
        Self::from_bytes(words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// `bytes` bytes of poison: for outputs, and for workspaces that no launch has written.
    pub fn poison(bytes: usize) -> Self {
        Self { bytes: vec![0xcd; bytes], known: vec![false; bytes] }
    }

    /// The words of the bytes.
    pub fn words(&self) -> Vec<u32> {
        let words = self.bytes.chunks_exact(4);
        words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
    }

    pub(super) fn known(&self, start: usize, bytes: usize) -> bool {
        self.known.is_empty() || self.known[start..start + bytes].iter().all(|&known| known)
    }

    /// Writes bytes, which then are not poison.
    pub fn set(&mut self, start: usize, data: &[u8]) {
        self.bytes[start..start + data.len()].copy_from_slice(data);
        if !self.known.is_empty() {
            self.known[start..start + data.len()].fill(true);
        }
    }

    /// The poison bytes: the first, and their number.
    pub(super) fn missing(&self) -> Option<(usize, usize)> {
        let first = self.known.iter().position(|&known| !known)?;
        Some((first, self.known.iter().filter(|&&known| !known).count()))
    }
}

impl Arguments {
    /// Checks the arguments against the kernel's declarations.
    pub(super) fn check(&self, kernel: &Kernel) -> Result<(), LaunchMismatch> {
        let counts = [
            ("parameters", kernel.parameters.len(), self.parameters.len()),
            ("buffers", kernel.buffers.len(), self.buffers.len()),
        ];
        for (what, declared, given) in counts {
            if declared != given {
                return Err(LaunchMismatch::Count { what, declared, given });
            }
        }
        for (buffer, contents) in kernel.buffers.iter().zip(&self.buffers) {
            let declared = words(buffer, &self.parameters)
                .and_then(|words| words.checked_mul(u64::from(buffer.word.bytes())))
                .ok_or_else(|| LaunchMismatch::UnknownShape(buffer.name.clone()))?;
            if declared != contents.bytes.len() as u64 {
                let (buffer, given) = (buffer.name.clone(), contents.bytes.len());
                return Err(LaunchMismatch::BufferBytes { buffer, declared, given });
            }
            if buffer.access == Access::Constant && contents.missing().is_some() {
                return Err(LaunchMismatch::Poison(buffer.name.clone()));
            }
        }
        Ok(())
    }
}

/// The length of a buffer in words.
pub(super) fn words(buffer: &Buffer, parameters: &[u32]) -> Option<u64> {
    buffer
        .shape
        .iter()
        .try_fold(1u64, |product, extent| product.checked_mul(u64::from(extent.value(parameters)?)))
}
