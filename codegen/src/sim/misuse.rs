//! How a launch can fail to fit its kernel, and how a barrier can be used against its rules.

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
