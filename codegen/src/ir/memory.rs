//! Words, addresses, masks and cache hints.

use super::{BufferId, Operand, SharedId};
use crate::target::Feature;

/// The word of a buffer or shared block: the unit of its indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// 1 byte.
    U8,
    /// 2 bytes.
    U16,
    /// 4 bytes.
    U32,
}

impl Word {
    /// Bytes of a word.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }
}

/// The width of one access; independent of the array's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// One byte in the low bits of one register; a load clears the others.
    B8,
    /// Two bytes in the low bits of one register; a load clears the others.
    B16,
    /// One register.
    B32,
    /// Two registers, the first from the lower address.
    B64,
    /// Four registers, the first from the lowest address.
    B128,
}

impl Width {
    /// Bytes of the access; also its alignment.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B8 => 1,
            Self::B16 => 2,
            Self::B32 => 4,
            Self::B64 => 8,
            Self::B128 => 16,
        }
    }

    /// Registers that hold it.
    pub const fn registers(self) -> usize {
        match self {
            Self::B8 | Self::B16 | Self::B32 => 1,
            Self::B64 => 2,
            Self::B128 => 4,
        }
    }
}

/// An array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// A buffer in global memory.
    Global(BufferId),
    /// A block of shared memory.
    Shared(SharedId),
}

/// A word of an array: number `index + offset`, added without wrapping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Address {
    /// The array.
    pub space: Space,
    /// In words of the array; [`Type::U32`](super::Type::U32).
    pub index: Operand,
    /// In words of the array.
    pub offset: u32,
}

/// A predicate of an access, and the result of a load where it is false.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mask {
    /// The access happens where this is true; where it is false, any address is allowed.
    pub condition: Operand,
    /// The value of every destination register where the condition is false, of its type.
    pub fill: Operand,
}

/// How a global load uses the caches. No effect on what is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cache {
    /// Cached as usual.
    Default,
    /// Through the read-only path; the buffer is [`Access::Constant`](super::Access::Constant).
    Constant,
    /// Read once: not allocated in L1 by a load, and of what a tensor copy reads the first to leave L2. The buffer is
    /// [`Access::Constant`](super::Access::Constant).
    Stream,
}

/// The memory order of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryOrder {
    /// Orders no other access.
    Relaxed,
    /// Later accesses of the thread happen after it.
    Acquire,
    /// Earlier accesses of the thread happen before it.
    Release,
    /// Acquire and release.
    AcquireRelease,
}

impl MemoryOrder {
    /// The feature that the target must have.
    pub(super) const fn needs(self) -> Feature {
        match self {
            Self::Relaxed => Feature::Base,
            Self::Acquire | Self::Release | Self::AcquireRelease => Feature::Ordered,
        }
    }
}

/// The threads for which an atomic operation or a fence orders accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The threads of the block.
    Block,
    /// The threads of the cluster.
    Cluster,
    /// Every thread of the device.
    Device,
}

/// A permutation of the 16-byte segments of shared memory: bits 4 and up of the byte address are
/// XORed with bits 7 and up. The tile starts at a multiple of 8 times the swizzle's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// No permutation.
    None,
    /// Bit 4 ^= bit 7.
    B32,
    /// Bits 4, 5 ^= bits 7, 8.
    B64,
    /// Bits 4, 5, 6 ^= bits 7, 8, 9.
    B128,
}

impl Swizzle {
    /// The address of a byte whose address without the swizzle is `byte`.
    pub const fn apply(self, byte: u32) -> u32 {
        let bits = match self {
            Self::None => 0,
            Self::B32 => 1,
            Self::B64 => 3,
            Self::B128 => 7,
        };
        byte ^ ((byte >> 7 & bits) << 4)
    }
}
