//! Classes of instructions, under which the simulator counts them.

/// The class of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InstructionClass {
    /// Arithmetic and logic on integers.
    Integer,
    /// f32 arithmetic.
    Float,
    /// Arithmetic on pairs of 16-bit floats.
    Packed,
    /// Conversions.
    Convert,
    /// Comparisons, selections, predicates.
    Predicate,
    /// Copies of registers, special values.
    Move,
    /// Loads from global memory.
    GlobalLoad,
    /// Stores to global memory.
    GlobalStore,
    /// Loads from shared memory, matrix loads included.
    SharedLoad,
    /// Stores to shared memory, matrix stores included.
    SharedStore,
    /// Atomic operations and fences.
    Atomic,
    /// Asynchronous copies, their commits and waits.
    AsyncCopy,
    /// Barriers of all kinds.
    Barrier,
    /// Shuffles, votes, transposes.
    Exchange,
    /// Matrix products.
    Matrix,
    /// Branches and loop ends.
    Control,
}

impl InstructionClass {
    /// All classes, in the order of a report.
    pub const ALL: [Self; 16] = [
        Self::Integer,
        Self::Float,
        Self::Packed,
        Self::Convert,
        Self::Predicate,
        Self::Move,
        Self::GlobalLoad,
        Self::GlobalStore,
        Self::SharedLoad,
        Self::SharedStore,
        Self::Atomic,
        Self::AsyncCopy,
        Self::Barrier,
        Self::Exchange,
        Self::Matrix,
        Self::Control,
    ];

    /// The name in a report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Float => "f32",
            Self::Packed => "packed 16-bit",
            Self::Convert => "convert",
            Self::Predicate => "compare, select",
            Self::Move => "move",
            Self::GlobalLoad => "global load",
            Self::GlobalStore => "global store",
            Self::SharedLoad => "shared load",
            Self::SharedStore => "shared store",
            Self::Atomic => "atomic, fence",
            Self::AsyncCopy => "async copy",
            Self::Barrier => "barrier",
            Self::Exchange => "shuffle, vote",
            Self::Matrix => "matrix",
            Self::Control => "control",
        }
    }
}
