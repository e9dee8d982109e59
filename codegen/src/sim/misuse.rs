//! How a launch can fail to fit its kernel, and how barriers and tensor memory can be used against their rules.

/// A launch that does not fit the kernel, or that its target cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchMismatch {
    /// Another number of parameters or buffers than the kernel declares.
    #[error("{declared} {what} are declared, {given} given")]
    Count {
        /// `parameters` or `buffers`.
        what: &'static str,
        /// Their number in the kernel.
        declared: usize,
        /// Their number in the launch.
        given: usize,
    },
    /// The parameters do not give the shape of this buffer, or it is beyond 64 bits.
    #[error("the shape of `{0}` is not known")]
    UnknownShape(String),
    /// A buffer of another size.
    #[error("buffer `{buffer}` has {declared} bytes, {given} given")]
    BufferBytes {
        /// The buffer.
        buffer: String,
        /// Bytes that the kernel declares.
        declared: u64,
        /// Bytes of the launch.
        given: usize,
    },
    /// A constant buffer with words that nothing has written.
    #[error("constant buffer `{0}` holds poison")]
    Poison(String),
    /// The target is no GPU.
    #[error("{0} is no GPU")]
    NotAGpu(&'static str),
    /// The parameters do not give the grid's size.
    #[error("the size of the grid is not known")]
    UnknownGrid,
    /// A grid without blocks.
    #[error("the grid is empty")]
    EmptyGrid,
    /// A grid of more blocks than are numbered.
    #[error("the grid has 2^32 blocks or more")]
    LargeGrid,
    /// A grid of partial clusters.
    #[error("{blocks} blocks in x are not a multiple of the cluster of {cluster}")]
    PartialCluster {
        /// Blocks of the grid in x.
        blocks: u32,
        /// Blocks of a cluster.
        cluster: u32,
    },
    /// Threads that are not whole warps.
    #[error("{threads} threads are not a multiple of the warp of {warp}")]
    PartialWarp {
        /// Threads of a block.
        threads: u32,
        /// Threads of a warp.
        warp: u32,
    },
    /// More shared memory than a block can have.
    #[error("{bytes} bytes of shared memory, at most {most}")]
    SharedBytes {
        /// Shared memory of the kernel.
        bytes: u32,
        /// Shared memory that a block can have.
        most: u32,
    },
}

/// What a program does with a barrier against its rules; a sentence about the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BarrierMisuse {
    /// Warps disagree on the threads that meet at the barrier.
    #[error("is used with {here} threads here and with {elsewhere} elsewhere")]
    OtherThreads {
        /// Threads at this statement.
        here: usize,
        /// Threads at the statement of a warp that has arrived.
        elsewhere: usize,
    },
    /// An index beyond the array of mbarriers.
    #[error("the array has {0} mbarriers")]
    Index(u32),
    /// An mbarrier before its initialisation.
    #[error("is not initialised by MbarrierInit")]
    Uninitialised,
    /// An mbarrier whose initialisation the lane need not see.
    #[error("is initialised, but without a barrier between MbarrierInit and this use")]
    UnorderedInit,
    /// An mbarrier whose initialisation the copy engine need not see.
    #[error("is initialised without an MbarrierFence")]
    UnfencedInit,
    /// An initialisation for no arrivals.
    #[error("is initialised with 0 arrivals")]
    NoArrivals,
    /// A second initialisation.
    #[error("is initialised twice")]
    InitialisedTwice,
    /// An arrival after the last one of a phase.
    #[error("gets more arrivals in a phase than MbarrierInit declares")]
    ExcessArrivals,
    /// A parity that no phase has.
    #[error("is waited on with parity {0}, not 0 or 1")]
    Parity(u32),
}

/// What a program does with tensor memory against its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TmemMisuse {
    /// An operation without an allocation, or after its end.
    #[error("is used where no columns are allocated")]
    NotAllocated,
    /// A second allocation.
    #[error("is allocated twice")]
    AllocatedTwice,
    /// The block ends with its columns.
    #[error("is not freed at the block's end")]
    NotFreed,
    /// Another warp frees the columns than the one that allocated them.
    #[error("is freed by another warp than warp {0}, which allocated it")]
    OtherWarp(u32),
    /// An address that was not allocated is freed.
    #[error("is freed at {0:#x}, which no allocation has written")]
    Address(u32),
    /// Columns outside of the allocation.
    #[error("columns {first} to {end} are outside of the {all} from column {begin} on")]
    Columns {
        /// The first column of the access.
        first: u32,
        /// The column after its last.
        end: u32,
        /// The first column of the allocation.
        begin: u32,
        /// Columns of the allocation.
        all: u32,
    },
    /// An address with a lane at which the operation does not start.
    #[error("is accessed from lane {lane} on; the operation starts at lane {own}")]
    Lanes {
        /// The lane of the address.
        lane: u32,
        /// The lane at which this warp's loads and stores, or all products, start.
        own: u32,
    },
    /// An operation of one thread that several execute.
    #[error("is used by {0} threads at once, and this operation is one thread's")]
    Threads(u32),
    /// Scales that are not the same in all quarters of the lanes.
    #[error("holds different scales of row {row} in the quarters of its lanes, column {column}")]
    ScaleCopies {
        /// The row of A, or column of B.
        row: u32,
        /// The column of tensor memory.
        column: u32,
    },
}
