//! A hash of a kernel's contents: equal kernels have equal hashes, on every machine and in every
//! run.

use std::fmt::{self, Write};

use super::Kernel;

/// A hash of a kernel's contents, 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(pub u128);

impl Kernel {
    /// FNV-1a (Fowler, Noll, Vo; draft-eastlake-fnv) of the kernel's IR as text. Not cryptographic:
    /// it protects against accidental collisions, not against forged ones.
    pub fn content_hash(&self) -> ContentHash {
        ContentHash::of(self)
    }
}

impl ContentHash {
    /// The hash of anything that can be printed.
    pub fn of(text: &dyn fmt::Display) -> Self {
        let mut hash = Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        // Writing into a hash cannot fail.
        let _ = write!(hash, "{text}");
        Self(hash.0)
    }
}

struct Fnv(u128);

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 ^= u128::from(byte);
            self.0 = self.0.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        Ok(())
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
