//! A hash of a generated text: equal texts have equal hashes, on every machine and in every run.

use std::fmt;

/// FNV-1a (Fowler, Noll, Vo; draft-eastlake-fnv) of a text, 128 bits. Not cryptographic: the hash protects against accidental
/// collisions, not against forged ones.
pub(super) struct TextHash(u128);

impl TextHash {
    pub(super) fn of(text: &str) -> Self {
        let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
        let prime = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        Self(text.bytes().fold(start, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(prime)))
    }
}

impl fmt::Display for TextHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
