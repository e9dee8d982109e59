//! Why no schedule supports a problem: the part of the scheme, the shape, or the rule of a free choice.

use quantloom_dsl::format::Number;
use quantloom_dsl::layout::BindError;
use quantloom_dsl::{BufferRole, Diagnostics};

use crate::plan::{DequantPlan, OperandType, PlanError};

/// Why no schedule of this version supports a problem.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Unscheduled {
    /// There is no plan.
    #[error(transparent)]
    NoPlan(#[from] PlanError),
    /// A part of the scheme that no schedule supports.
    #[error("no schedule on {target} handles {part}")]
    Scheme {
        /// The target.
        target: &'static str,
        /// The part.
        part: UnscheduledPart,
    },
    /// A shape that no schedule supports.
    #[error("{what} = {value}: {rule}")]
    Shape {
        /// N, K, M.
        what: &'static str,
        /// Its value.
        value: u32,
        /// What is expected.
        rule: &'static str,
    },
    /// No schedule multiplies on the target.
    #[error("no schedule has products of {0}")]
    NoSchedule(&'static str),
    /// A key names a schedule that does not exist.
    #[error("there is no schedule {name}, only {}", known.join(", "))]
    UnknownSchedule {
        /// The name.
        name: String,
        /// The schedules.
        known: Vec<&'static str>,
    },
    /// A key lacks a free choice of its schedule, or has a number that is too large.
    #[error("schedule {schedule} needs the parameter {name}")]
    MissingChoice {
        /// The schedule.
        schedule: &'static str,
        /// The free choice.
        name: &'static str,
    },
    /// The schedule has matrix instructions and the product has none, or vice versa.
    #[error("the schedule {schedule} has no products of {target}")]
    OtherProducts {
        /// The schedule.
        schedule: &'static str,
        /// The target.
        target: &'static str,
    },
    /// No free choices of the schedule fit the target.
    #[error("no block of a {schedule} product fits {target}")]
    NothingFits {
        /// The schedule.
        schedule: &'static str,
        /// The target.
        target: &'static str,
    },
    /// Free choices that break a rule of their schedule.
    #[error("{choices}: {rule}")]
    Choices {
        /// The choices, as `Debug` prints them.
        choices: String,
        /// The rule.
        rule: ChoiceRule,
    },
    /// The sum of a token's experts by a schedule whose blocks do not add them.
    #[error("blocks of the schedule {0} do not add the experts of a token")]
    Combined(&'static str),
    /// The operand of another product by a schedule whose blocks write y alone, or have no whole groups of its columns.
    #[error("blocks of the schedule {0} do not write the operand of another product in place of y")]
    WritesOperand(&'static str),
    /// Programmatic dependent launch on a target without that feature.
    #[error("programmatic dependent launch is not supported on {0}")]
    DependentLaunch(&'static str),
}

/// A part of a scheme, or of its product, that no schedule of a target supports.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UnscheduledPart {
    /// A scheme of stacked experts as one weight.
    #[error("experts")]
    Experts,
    /// Results of which blocks make no operand of another product.
    #[error(
        "an operand of results that are not h in 16 bits by sorted pairs, or that depends on more than groups of their columns"
    )]
    OperandOfResults,
    /// Products in a type.
    #[error("products in {0}")]
    Products(OperandType),
    /// Codes that are dequantised by a sequence with steps that the target does not have.
    #[error("codes decoded by {0}")]
    Dequantisation(Box<DequantPlan>),
    /// y in a type.
    #[error("results in {0}, only in f32, f16 and bf16")]
    Results(Number),
    /// Segments of so many columns.
    #[error("segments of {0} columns")]
    Segments(u32),
    /// Groups of several sizes, in columns.
    #[error("groups of {0:?} columns")]
    Groups(Vec<u32>),
    /// Groups that k-tiles neither divide nor are divided by.
    #[error("groups of {group} columns in k-tiles of {k_tile}")]
    GroupsInKTiles {
        /// Columns of a group.
        group: u32,
        /// Columns of a k-tile.
        k_tile: u32,
    },
    /// K-tiles that do not fill the banks of shared memory.
    #[error("k-tiles of {0} columns in the tile schedule")]
    KTiles(u32),
    /// An expert layer by products of tensor memory.
    #[error("expert layers in tensor memory")]
    StackInTensorMemory,
    /// A matrix instruction that takes x from shared memory.
    #[error("an instruction that takes x from shared memory")]
    SharedOperand,
    /// x in a type.
    #[error("activations in {0}")]
    Activations(Number),
    /// x, as it arrives or as codes, that the product's operand does not hold.
    #[error("{x} activations as operands in {operand}")]
    OperandType {
        /// The type of x or of its codes.
        x: Number,
        /// The type of the operand.
        operand: OperandType,
    },
    /// Static scales that change along x.
    #[error("static scales of a part of x")]
    StaticScales,
    /// Scales of x in integers that f32 does not hold.
    #[error("{0} scales of activations")]
    InputScales(Number),
    /// Zero points of x that are no integers, or of codes that are none.
    #[error("{zero} zero points of {code} activations")]
    InputZeros {
        /// The type of zero points.
        zero: Number,
        /// The type of codes.
        code: Number,
    },
    /// Zero points of x without scales.
    #[error("zero points without scales")]
    ZerosAlone,
    /// Scales of x, as the instruction reads them, that are not one level of e8m0.
    #[error("scales of activations as codes, other than one level of e8m0")]
    ScaleCodes,
    /// Scales of x whose products with codes are no numbers of the operand, or that a kernel of its own chooses.
    #[error("elements of activations that are codes times their finest scale")]
    ScaledElements,
    /// More arrays than a kernel of the target takes.
    #[error("{count} arrays in a kernel, which takes {most} at most")]
    Arrays {
        /// The kernel's arrays.
        count: usize,
        /// The most that the target binds.
        most: u32,
    },
    /// What warp groups do not multiply.
    #[error("{0} by warp groups")]
    WarpGroups(WarpGroupLimit),
    /// A transform between stored tensors and a buffer that products read.
    #[error("{limit} in a transform of `{buffer}`")]
    Transform {
        /// The buffer.
        buffer: BufferRole,
        /// What no transform does.
        limit: TransformLimit,
    },
}

/// What the schedule of warp groups does not multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WarpGroupLimit {
    /// Any product: the target has no instructions of warp groups.
    #[error("products")]
    Target,
    /// Products whose fragments `ldmatrix` does not give.
    #[error("products in this type")]
    Type,
    /// Integer sums that are converted before the end of a row.
    #[error("integer sums of so many columns")]
    LongSums,
    /// Stacks of experts whose pairs are not sorted, or which read x in different ways while x has scales along K or columns in
    /// the order of fragments.
    #[error("experts whose pairs are not sorted, or which read bytes of x in different ways")]
    Experts,
    /// Codes that are not 16 bytes a lane, and not in planes that are joined.
    #[error("codes that are not 16 bytes a lane")]
    Planes,
    /// Codes whose bits cross words, in groups shorter than a chunk of codes.
    #[error("codes whose bits cross words, in groups shorter than a chunk")]
    PlacedBits,
    /// Groups shorter than a chunk of codes.
    #[error("groups shorter than a chunk of codes")]
    ShortGroups,
    /// Zero points that are a term of the sum of x.
    #[error("zero-point corrections")]
    Corrections,
    /// Group parameters of fewer bytes than a tensor copy moves, or of blocks of rows that are shorter than a k-tile or
    /// apply to weights.
    #[error("group parameters of blocks of rows")]
    RowBlocks,
    /// Scales of groups of x that are no whole k-tiles, or beside shorter groups of w.
    #[error("scales of groups of x")]
    InputGroups,
    /// y in f32 of a gate.
    #[error("y in f32 of a gate")]
    Output,
    /// N for which a row of y of an expert layer is not a multiple of 16 bytes.
    #[error("rows of y of an expert layer that are not a multiple of 16 bytes")]
    OutputRows,
}

/// What no transform between stored tensors and a buffer of products does.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransformLimit {
    /// Sorted columns whose group parameters have groups of several sizes.
    #[error("groups of several sizes, sorted")]
    SortedGroups,
    /// No stored tensor has the component.
    #[error("a component that no tensor stores")]
    NotStored,
    /// Back to the stored order of sorted columns.
    #[error("the way back from sorted columns")]
    BackFromSorted,
    /// Back to a component that no tensor stores, or several.
    #[error("the way back to none or several stores")]
    BackToStores,
    /// Back to a tensor that stores other components too.
    #[error("the way back to a store that holds more")]
    BackToShared,
    /// Back from numbers that were computed of several stored ones.
    #[error("the way back from computed numbers")]
    BackFromComputed,
    /// A packing that does not bind to the shape.
    #[error("the packing ({0})")]
    Packing(Box<BindError>),
    /// A native layout that does not parse: a fault of the schedules.
    #[error("the native layout ({0})")]
    NativeText(Box<Diagnostics>),
    /// A native layout that does not bind to the shape.
    #[error("the native layout ({0})")]
    Native(Box<BindError>),
    /// Places that are no sum of affine runs, or of too many.
    #[error("swizzled places, or too many of them")]
    Swizzled,
    /// Digits of a place that count down.
    #[error("digits that count down")]
    Descending,
    /// The product reads no such buffer.
    #[error("products without it")]
    NotRead,
    /// Numbers that no operation converts to f32.
    #[error("numbers without a way to f32")]
    NoFormula,
    /// Codes that a table maps.
    #[error("a table of codes")]
    CodeTable,
    /// Zero points that are stored as floats.
    #[error("zero points that are stored as floats")]
    FloatZeros,
    /// Zero points of products that sum integers.
    #[error("zero points of integer products")]
    IntegerProducts,
    /// A component without a type of its own.
    #[error("numbers without a type")]
    NoType,
    /// Signed codes of which only a part of the sign's bits is stored.
    #[error("signs of codes that are cut")]
    CutSigns,
    /// A conversion.
    #[error("{from} to {to}")]
    Conversion {
        /// The type that is read.
        from: Number,
        /// The type that is written.
        to: Number,
    },
    /// Words of a buffer whose elements differ in their places.
    #[error("words that are not all alike")]
    UnevenWords,
    /// Buffers beyond indices of 32 bits.
    #[error("2^32 words and more")]
    Words,
    /// Codes of which any bit may be in any of many words.
    #[error("codes any of whose bits may be in many words")]
    SpreadCodes,
    /// Indices beyond 32 bits.
    #[error("numbers of 2^32 and more")]
    Indices,
}

/// A rule for the free choices of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceRule {
    /// Of every schedule: tiles of a block and the matrices of a stack that it multiplies together.
    #[error("a block has tiles of all matrices that it multiplies together")]
    Together,
    /// Of skinny blocks that add the experts of a token.
    #[error(
        "blocks that add the experts of a token have tokens 1 or 2, whole rows of K and equally many warps for each expert"
    )]
    Combined,
    /// Of skinny blocks that make their operand of x.
    #[error(
        "blocks that make their operand of x have one token, an operand that one kernel would make of rows of x in their order, and at \
         most 4 vectors of x a thread; those that add the experts of a token have no scale of a whole row"
    )]
    MakesOperand,
    /// Of skinny blocks that find the pairs of an expert.
    #[error(
        "blocks that group pairs have whole rows of K and pairs that are not sorted, whose experts they do not add, on a GPU whose warps have \
         32 lanes that vote"
    )]
    GroupsPairs,
    /// Of every schedule that splits K.
    #[error("splits must be at least 1, and at most the number of k-tiles of K")]
    Splits,
    /// Tokens of a skinny product's block.
    #[error("tokens must be 1, 2, 4, 8 or 16")]
    SkinnyTokens,
    /// Tokens of a block on tensor memory.
    #[error("tokens must be 8, 16, 32, 64 or 128")]
    TmemTokens,
    /// Columns of a block on tensor memory.
    #[error("the sums and the scales of all stages must fit in 512 columns of tensor memory")]
    TmemColumns,
    /// Rows of a grid of blocks on tensor memory.
    #[error("N must be at most 65535 blocks of 128 rows")]
    TmemRows,
    /// Row tiles of a skinny product's block.
    #[error("row_tiles must be 1 to 8")]
    RowTiles,
    /// Warps of a skinny product's block.
    #[error("warps must be 1 to 32")]
    Warps,
    /// Blocks of a skinny product that an SM has.
    #[error("min_blocks must be 1 to 32")]
    BlocksOfSm,
    /// Tokens of a tile.
    #[error("tokens must be 16, 32, 64 or 128")]
    TileTokens,
    /// Rows of a tile's warp.
    #[error("a warp must have 16, 32 or 64 rows")]
    WarpRows,
    /// Blocks of a tile product that an SM has.
    #[error("min_blocks must be at least 1")]
    AnyBlock,
    /// Copies into shared memory.
    #[error("the tokens that the threads copy at a time must divide the tokens of a block")]
    Copies,
    /// Stages of the pipeline.
    #[error("stages must be 2 to 16")]
    Stages,
    /// The instruction of a block of warp groups.
    #[error("tokens must be a number of columns that a warp-group instruction has")]
    WarpGroupTokens,
    /// Tokens of a block of warp groups where x has scales along K.
    #[error("with scales of x along K tokens are a multiple of 32; 8 or 16 too of a single matrix")]
    TokenTiles,
    /// Warp groups of a block that multiply.
    #[error("groups must be 1 to 4")]
    WarpGroups,
    /// Rows of a warp group.
    #[error("row_tiles must be 1 or 2")]
    WarpGroupRows,
    /// Registers of a thread that multiplies.
    #[error("the sums of a thread must fit in its registers")]
    WarpGroupRegisters,
    /// Stages of a ring that a warp group fills.
    #[error("stages must be at least 2, at least 3 where words of the next one are prefetched")]
    RingStages,
    /// Batches of fragments of a stage.
    #[error("a stage must have two batches of fragments or more")]
    Batches,
    /// Stages of a k-tile.
    #[error(
        "a k-tile is two stages only if it has one group, and each half has whole chunks and lines of 128 bytes of x"
    )]
    Parts,
    /// A gate, with another number of tiles of rows a warp group than one of each matrix.
    #[error("a warp group has as many rows of gate as of up: two tiles")]
    GatedRows,
    /// Scales of sums of a warp group.
    #[error(
        "only scales of groups multiply sums, of one tile of rows a warp group, or two of an expert layer"
    )]
    ExactRows,
    /// Batches of a segment whose scale multiplies its sum.
    #[error("a segment whose scale multiplies its sum is whole batches")]
    ExactBatches,
    /// Scales of weights of a warp group.
    #[error(
        "scales multiply weights in their own type, bf16, or f16 in its range; others multiply sums"
    )]
    ScaledWeights,
    /// Blocks of a cluster.
    #[error(
        "two blocks of a cluster split K of two stages or more, and share out 16 tokens or a multiple"
    )]
    Cluster,
    /// Blocks of a cluster that share copies of x.
    #[error(
        "two blocks of a cluster share copies of x of 16 tokens or a multiple, each with all of K, in no expert layer"
    )]
    Multicast,
    /// Blocks that have one tile after another.
    #[error(
        "persistent=1 is for single matrices with splits=1; blocks of an expert layer persist without it"
    )]
    Persistent,
    /// The products of a warp group whose operands are not swapped.
    #[error(
        "unswapped=1 is for e4m3 on both sides, with scales of x along K, scales of w of blocks of 128 rows or a multiple, or none \
         along K, and y in 16 bits unless it is of an expert layer"
    )]
    Unswapped,
    /// The other choices of such a warp group.
    #[error("unswapped=1 is with exact=1, parts=1, batch=1 and splits=1")]
    UnswappedChoices,
    /// The tokens of such a warp group.
    #[error(
        "unswapped=1 has 64 tokens for each of row_tiles in each of groups, at most 256; in an expert layer with two groups also \
             those of one group, whose tiles are its own then"
    )]
    UnswappedTokens,
    /// A shader on a target that is not a GPU.
    #[error("a shader needs a GPU")]
    Gpu,
    /// All numbers of a shader's choice.
    #[error("choices are powers of two, at most the threads of a block")]
    PowersOfTwo,
    /// Threads of a shader's block, at most.
    #[error("a block has at most {0} threads")]
    Threads(u32),
    /// Sums of a shader's lane, at most.
    #[error("a lane has at most {0} sums")]
    Sums(u32),
    /// Shared memory of a shader's block in bytes, at most.
    #[error("the sums of a block have at most {0} bytes")]
    SharedSums(u32),
}
