//! The rules that a launch, a declaration, a number or roles can break, each a value of its own.

/// A launch that no block or SM (CU) of the target can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// More buffers than the target binds.
    #[error("{count} buffers; a kernel of {target} has at most {limit}")]
    Buffers {
        /// Buffers of the kernel.
        count: usize,
        /// The target.
        target: &'static str,
        /// Buffers that a kernel can have there.
        limit: u32,
    },
    /// Threads that are not whole warps.
    #[error("{threads} threads are not a multiple of the warp of {warp}")]
    PartialWarp {
        /// Threads of a block.
        threads: u32,
        /// Threads of a warp.
        warp: u32,
    },
    /// More threads than a block can have.
    #[error("{threads} threads; a block has at most {limit}")]
    Threads {
        /// Threads of a block.
        threads: u32,
        /// Threads that a block can have.
        limit: u32,
    },
    /// No resident block, or more of them than an SM (CU) has threads for.
    #[error("{blocks} resident blocks of {threads} threads; an SM (CU) has {limit} threads")]
    ResidentThreads {
        /// Blocks that are to be resident together.
        blocks: u32,
        /// Threads of each.
        threads: u32,
        /// Threads of an SM (CU).
        limit: u32,
    },
    /// More resident blocks than an SM (CU) has shared memory for.
    #[error(
        "{blocks} resident blocks of {bytes} bytes of shared memory; an SM (CU) has {limit} bytes"
    )]
    ResidentShared {
        /// Blocks that are to be resident together.
        blocks: u32,
        /// Shared memory of each, with what the target reserves.
        bytes: u32,
        /// Shared memory of an SM (CU), in bytes.
        limit: u32,
    },
    /// A cluster that not every device can launch.
    #[error("a cluster of {0} blocks; only 1 to 8 are portable")]
    Cluster(u32),
}

/// An inconsistent declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeclarationError {
    /// A register array without elements.
    #[error("a register array of length 0")]
    EmptyRegisters,
    /// A buffer without dimensions.
    #[error("a buffer without a shape")]
    NoShape,
    /// A tensor map of a buffer that is not declared.
    #[error("its buffer is not declared")]
    NoBuffer,
    /// A tensor map whose extents, strides and tile do not have the same number of dimensions, or not 1 to 5.
    #[error("extents, strides and tile must have the same one to five dimensions")]
    Dimensions,
    /// A tensor map whose fastest dimension has gaps.
    #[error("its first stride must be 1")]
    FirstStride,
    /// A dimension of a tensor map's tile that copies do not have.
    #[error("a tile's dimension is 1 to 256")]
    TileSize,
    /// A tensor map of a buffer that is not constant, or of the read-only path, with a cache other than the default.
    #[error(
        "only copies from a constant buffer have a cache of their own, that of what is read once"
    )]
    CacheOfMap,
    /// A shared block without elements.
    #[error("its length is 0")]
    Empty,
    /// The alignment of a shared block.
    #[error("its alignment is not a power of two of at least 16")]
    Alignment,
    /// A shared block that aliases itself or a later one.
    #[error("it aliases a block that is declared later")]
    AliasesLater,
    /// A shared block that does not fit into the one that it aliases.
    #[error("it is longer than the block that it aliases")]
    LongerThanAliased,
    /// A shared block that needs more alignment than the one that it aliases has.
    #[error("its alignment is larger than that of the block that it aliases")]
    AlignedMoreThanAliased,
}

/// A number that an operation or a declaration does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// A division of an extent by 0.
    #[error("an extent is divided by 0")]
    ExtentByZero,
    /// A loop that does not advance.
    #[error("a loop's step is 0")]
    LoopStep,
    /// An axis beyond x, y and z.
    #[error("grid axis {0} does not exist")]
    GridAxis(u8),
    /// A memory order of a store for a load.
    #[error("a load cannot release")]
    ReleasingLoad,
    /// The number of a named barrier is not 1 to 15.
    #[error("named barrier {0} does not exist")]
    NamedBarrier(u32),
    /// Threads of a named barrier that are not whole warps of the block.
    #[error("a named barrier of {0} threads; must be a multiple of the warp")]
    BarrierThreads(u32),
    /// The width of an asynchronous copy.
    #[error("an asynchronous copy must be 4, 8 or 16 bytes")]
    CopyWidth,
    /// Arrivals that an mbarrier cannot count.
    #[error("an mbarrier of {0} arrivals is not supported")]
    Arrivals(u32),
    /// The size of a bulk copy.
    #[error("a bulk copy of {0} bytes; must be a multiple of 16")]
    BulkBytes(u32),
    /// The number of matrices that one `ldmatrix` or `stmatrix` moves.
    #[error("{0} matrices; must be 1, 2 or 4")]
    Matrices(usize),
    /// An atomic operation on elements of other widths.
    #[error("atomic operations need an array of 32-bit words")]
    AtomicWord,
    /// Scales that do not begin at a byte of a register that the instruction can select.
    #[error("{scales} scales from byte {byte} of a register on; must be 0 to 3, and a multiple")]
    ScaleByte {
        /// Scales that a lane supplies.
        scales: u32,
        /// The byte of the first one.
        byte: u32,
    },
    /// The number of registers of a warp's load or store of tensor memory.
    #[error("{0} registers of tensor memory; must be a power of two from 1 to 128")]
    TmemRegisters(usize),
    /// An instruction of another scope than the operation's: of tensor memory, or not.
    #[error("{0} is an instruction of another kind of operation")]
    InstructionScope(&'static str),
    /// An N that a product of tensor memory does not have.
    #[error("{product} has no N of {n}")]
    ProductColumns {
        /// The product.
        product: &'static str,
        /// N.
        n: u32,
    },
    /// A conversion of codes beyond the end of the word.
    #[error("pair {pair} of a word of {pairs} pairs of codes")]
    PairOfCodes {
        /// The pair.
        pair: u8,
        /// Pairs of codes in a word.
        pairs: u32,
    },
    /// A matrix operation of a warp group that does not add to its own result.
    #[error("in warp-group scope c must be d")]
    Accumulator,
}

/// Roles that are not the last statement of the kernel, that do not cover its warps, or whose registers the
/// target cannot set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoleError {
    /// A statement follows, or another one contains them.
    #[error("they are not the last statement of the kernel")]
    NotLast,
    /// A gap or an overlap between roles, or a role without warps.
    #[error("`{role}` starts at warp {start}, not {expected}")]
    Start {
        /// The role.
        role: String,
        /// Its first warp.
        start: u32,
        /// The warp after the role before.
        expected: u32,
    },
    /// Warps without a role, or roles beyond the block's warps.
    #[error("they cover warps 0 to {covered} of {warps}")]
    Covered {
        /// The warp after the last role.
        covered: u32,
        /// Warps of the block.
        warps: u32,
    },
    /// A role without a number of registers, where others have one.
    #[error("`{0}` does not set its number of registers")]
    NoRegisters(String),
    /// A number of registers that the instruction does not take.
    #[error("`{role}` has {registers} registers; must be a multiple of 8 from 24 to 256")]
    Registers {
        /// The role.
        role: String,
        /// Registers of a thread.
        registers: u32,
    },
    /// A number of registers for a part of a warp group.
    #[error("`{0}` sets its number of registers, and is not made of whole warp groups")]
    PartialWarpGroup(String),
}

/// A rule of tensor memory that a kernel breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TmemError {
    /// An operation in a kernel that declares no columns.
    #[error("the kernel declares no columns")]
    Undeclared,
    /// A number of columns that cannot be allocated.
    #[error("{0} columns; must be a power of two from 32 to 512")]
    Columns(u32),
    /// More resident blocks, or blocks of a cluster, than the columns of a multiprocessor are enough for.
    #[error("{blocks} resident blocks of {columns} columns; a multiprocessor has 512")]
    ResidentColumns {
        /// Blocks that are to be resident together.
        blocks: u32,
        /// Columns of each.
        columns: u32,
    },
    /// A kernel that allocates or frees its columns several times, or not at all.
    #[error("the kernel {what} its columns {times} times, not once")]
    NotOnce {
        /// `allocates` or `frees`.
        what: &'static str,
        /// How often.
        times: usize,
    },
    /// An allocation, or its end, that a loop may repeat.
    #[error("columns are allocated or freed in a loop")]
    InLoop,
    /// An allocation in the program of some warps, which the programs of others are not after.
    #[error("columns are allocated in a role")]
    InRole,
    /// An operation before the allocation.
    #[error("tensor memory is used before its allocation")]
    BeforeAllocation,
    /// A dependent grid that may start before this one has its columns: each could wait for the other.
    #[error("a dependent grid is launched before the allocation")]
    LaunchBeforeAllocation,
    /// An address that lanes of a warp have to give alike.
    #[error("the address `{0}` of tensor memory may differ between the lanes of a warp")]
    VaryingAddress(String),
}
