//! A kernel and its interface: buffers, parameters, shared memory, launch.

use quantloom_dsl::{BufferRole, Dimension};

use super::{Body, Cache, Register, Swizzle, Word};
use crate::target::Target;

/// One kernel.
///
/// Its arguments, in order: the buffers as 64-bit addresses, the parameters as 32-bit unsigned
/// integers, the tensor maps as 128-byte descriptors.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// The entry point's name: letters, digits and `_`.
    pub name: String,
    /// What it computes, in one or more lines: a comment in the emitted source.
    pub summary: String,
    /// The target it runs on.
    pub target: &'static Target,
    /// Global memory, by slot.
    pub buffers: Vec<Buffer>,
    /// Scalars given at launch.
    pub parameters: Vec<Parameter>,
    /// Descriptors for tensor copies.
    pub tensors: Vec<TensorMap>,
    /// Shared memory.
    pub shared: Vec<SharedBlock>,
    /// Arrays of mbarriers, in shared memory.
    pub barriers: Vec<BarrierArray>,
    /// Columns of tensor memory that a block allocates, a power of two of at least 32; 0 if it has none.
    pub tmem_columns: u32,
    /// How it is launched.
    pub launch: LaunchConfig,
    /// The registers that the body uses.
    pub registers: Vec<Register>,
    /// What each thread does.
    pub body: Body,
}

/// Number of a buffer in [`Kernel::buffers`], which is its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// Number of a parameter in [`Kernel::parameters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(pub u32);

/// Number of a tensor map in [`Kernel::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// Number of a block in [`Kernel::shared`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharedId(pub u32);

/// Number of an array in [`Kernel::barriers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BarrierId(pub u32);

/// A buffer: an array of words in global memory that starts at a multiple of 16 bytes. No two
/// buffers of a launch overlap, unless both are only read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its name in the source.
    pub name: String,
    /// The unit of its indices.
    pub word: Word,
    /// What the kernel may do with it.
    pub access: Access,
    /// Its extents in words, slowest first; their product is its length.
    pub shape: Vec<Extent>,
    /// Its layout, as a comment; in the notation of docs/scheme-language.md where it is a layout.
    pub layout: String,
    /// What it is to a product, if the kernel is one of a product.
    pub role: Option<BufferRole>,
}

/// What a kernel may do with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read. No kernel that may still run when this one starts writes it (weights, scales).
    Constant,
    /// Read. The kernel launched before this one may write it (activations).
    ReadOnly,
    /// Each word is written exactly once in a launch, and never read.
    WriteOnce,
    /// Each word is written at most once in a launch, and never read. The others keep their contents.
    WriteSome,
    /// Read and written by several blocks, with atomics and fences. Its contents persist after the
    /// launch.
    Workspace,
}

/// A number that is known at generation or at launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// A constant.
    Constant(u32),
    /// A launch parameter.
    Parameter(ParameterId),
    /// A launch parameter divided by a constant, rounded up.
    CeilDiv(ParameterId, u32),
    /// A constant plus launch parameters, each times a constant.
    Affine {
        /// The constant.
        constant: u32,
        /// Each parameter and its factor.
        terms: [(ParameterId, u32); 2],
    },
    /// Multiprocessors of the device, of which a launch knows the number, rounded up to whole clusters: blocks of a grid that
    /// persist.
    Multiprocessors,
}

impl Extent {
    /// A launch parameter times a constant.
    pub const fn times(id: ParameterId, by: u32) -> Self {
        Self::Affine { constant: 0, terms: [(id, by), (id, 0)] }
    }

    /// Its value; `None` if a parameter is missing, the divisor is 0, the value exceeds 32 bits, or the device decides.
    pub fn value(self, parameters: &[u32]) -> Option<u32> {
        match self {
            Self::Constant(value) => Some(value),
            Self::Parameter(id) => parameters.get(id.0 as usize).copied(),
            Self::CeilDiv(id, by) => {
                (by != 0).then_some(())?;
                parameters.get(id.0 as usize).map(|value| value.div_ceil(by))
            }
            Self::Affine { constant, terms } => {
                terms.into_iter().try_fold(constant, |sum, (id, by)| {
                    let value = parameters.get(id.0 as usize)?;
                    sum.checked_add(value.checked_mul(by)?)
                })
            }
            Self::Multiprocessors => None,
        }
    }
}

/// A 32-bit scalar given at launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the source.
    pub name: String,
    /// What it means, with its unit.
    pub meaning: String,
    /// What it counts, if it is a size of a product.
    pub dimension: Option<Dimension>,
}

/// A view of a buffer for tensor copies: a box of up to five dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Its name in the source.
    pub name: String,
    /// The memory it describes; its word is the tensor's element.
    pub buffer: BufferId,
    /// Extents in elements, fastest first.
    pub extents: Vec<Extent>,
    /// Distance between neighbours along each dimension in elements; the first is 1.
    pub strides: Vec<Extent>,
    /// The box that one copy moves, in elements, fastest first. Elements outside of the extents
    /// are read as 0 and not written.
    pub tile: Vec<u32>,
    /// The box's order in shared memory: fastest dimension first, without gaps, then swizzled.
    pub swizzle: Swizzle,
    /// How loads use the caches.
    pub cache: Cache,
}

/// The name of the shared block in which codes are looked up: which of its words lanes read is a
/// matter of the data, so that its bank conflicts are counted apart.
pub const LOOKUP_TABLE: &str = "table";

/// A block of shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBlock {
    /// Its name in the source.
    pub name: String,
    /// The unit of its indices.
    pub word: Word,
    /// Its length in words.
    pub len: u32,
    /// Alignment of its start in bytes, a power of two of at least 16.
    pub align: u32,
    /// Its layout, as a comment.
    pub layout: String,
    /// Another block whose memory it shares, from the start. That block must be no longer in use,
    /// and at least as long.
    pub aliases: Option<SharedId>,
}

impl SharedBlock {
    /// Its size in bytes.
    pub const fn bytes(&self) -> u32 {
        self.len * self.word.bytes()
    }
}

/// An array of mbarriers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierArray {
    /// Its name in the source.
    pub name: String,
    /// Number of mbarriers.
    pub len: u32,
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: [Extent; 3],
    /// Threads of a block, a multiple of the warp.
    pub threads: u32,
    /// Blocks that must be resident on an SM (CU) at the same time; limits the registers.
    pub min_blocks: u32,
    /// Blocks of a cluster, along x; 1 = none.
    pub cluster: u32,
    /// Programmatic dependent launch: the kernel may start before the one before it ends.
    pub programmatic: bool,
}

/// The layout of shared memory, in bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMap {
    /// Start of each array of mbarriers (8 bytes each).
    pub barriers: Vec<u32>,
    /// Start of each block.
    pub blocks: Vec<u32>,
    /// Total size.
    pub bytes: u32,
}

impl Kernel {
    /// The layout of shared memory: mbarriers first, then the blocks in order.
    pub fn shared_map(&self) -> SharedMap {
        let mut bytes = 0u32;
        let mut barriers = Vec::new();
        for array in &self.barriers {
            barriers.push(bytes);
            bytes = bytes.saturating_add(array.len.saturating_mul(8));
        }
        let mut blocks: Vec<u32> = Vec::new();
        for block in &self.shared {
            match block.aliases.and_then(|under| blocks.get(under.0 as usize)) {
                Some(&start) => blocks.push(start),
                None => {
                    bytes = bytes.checked_next_multiple_of(block.align.max(1)).unwrap_or(u32::MAX);
                    blocks.push(bytes);
                    bytes = bytes.saturating_add(block.len.saturating_mul(block.word.bytes()));
                }
            }
        }
        SharedMap { barriers, blocks, bytes }
    }

    /// Warps of a block.
    pub fn warps(&self) -> u32 {
        let warp = self.target.gpu.map_or(1, |gpu| gpu.warp);
        self.launch.threads / warp.max(1)
    }
}
