//! What a kernel is given: arguments against the kernel's signature, sizes against the hardware.
//!
//! [`Prepared`] is everything of a launch but the driver's call, and needs no device: it is where
//! each refusal comes from. Nothing is allocated on the way.

use std::any::Any;
use std::ffi::c_void;
use std::marker::PhantomData;

use super::tensor_map::TensorMap;
use crate::source::{Access, Count, LaunchRule, ParameterKind, ProblemSize, Scalar};

/// The allocation that memory is part of, of the type that its backend has: what a launch keeps, and
/// puts in order with other streams.
pub(crate) type Owner = dyn Any + Send + Sync;

/// Part of a device's memory that a kernel may read.
#[derive(Clone, Copy)]
pub struct DeviceSlice<'b> {
    address: u64,
    bytes: u64,
    owner: Option<&'b Owner>,
    buffer: PhantomData<&'b ()>,
}

/// Part of a device's memory that a kernel may write.
pub struct DeviceSliceMut<'b> {
    address: u64,
    bytes: u64,
    owner: Option<&'b Owner>,
    buffer: PhantomData<&'b mut ()>,
}

macro_rules! slices {
    ($($slice:ident)*) => { $(impl<'b> $slice<'b> {
        pub(crate) const fn new(address: u64, bytes: u64, owner: &'b Owner) -> Self {
            Self { address, bytes, owner: Some(owner), buffer: PhantomData }
        }

        /// Memory that another library allocated.
        ///
        /// # Safety
        /// `bytes` bytes from the address on are device memory of the context that the slice is
        /// used with, and stay so until the work that is queued with it is done: if a graph captures
        /// that work, until the last replay is. What other streams do with it is ordered by the caller.
        pub unsafe fn from_raw(address: u64, bytes: u64) -> Self {
            Self { address, bytes, owner: None, buffer: PhantomData }
        }

        /// The allocation that it is part of; `None` if another library made it.
        pub(crate) fn owner(&self) -> Option<&'b Owner> {
            self.owner
        }

        /// The device address.
        pub fn address(&self) -> u64 {
            self.address
        }

        /// Bytes from the address on.
        pub fn bytes(&self) -> u64 {
            self.bytes
        }
    })* };
}
slices! { DeviceSlice DeviceSliceMut }

/// An argument, of the kind that the kernel's rule says at its place.
pub enum Argument<'a> {
    /// Memory that the kernel reads.
    Read(DeviceSlice<'a>),
    /// Memory that the kernel writes, or reads and writes.
    Write(DeviceSliceMut<'a>),
    /// A number.
    U32(u32),
    /// A number.
    I32(i32),
    /// A number.
    U64(u64),
    /// A number.
    F32(f32),
    /// A tensor map, where the driver has any.
    Map(&'a TensorMap<'a>),
}

impl Argument<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Self::Read(_) => "a buffer to read",
            Self::Write(_) => "a buffer to write",
            Self::U32(_) => "a u32",
            Self::I32(_) => "an i32",
            Self::U64(_) => "a u64",
            Self::F32(_) => "an f32",
            Self::Map(_) => "a tensor map",
        }
    }
}

/// What a launch is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most threads of a block of this kernel.
    pub threads: u32,
    /// Most dynamic shared memory of a block of this kernel, in bytes.
    pub shared_bytes: u32,
    /// Most threads of the grid along x.
    pub grid_threads: u64,
    /// Most blocks of a cluster that every device of the backend has.
    pub cluster_blocks: u32,
}

/// Most blocks along x, y and z, on every device (CUDA programming guide, technical specifications;
/// HIP's own limits are not below them).
const GRID: [u64; 3] = [(1 << 31) - 1, 65535, 65535];
/// More parameters than any kernel of ours has.
pub(crate) const PARAMETERS: usize = 32;
const AXES: [char; 3] = ['x', 'y', 'z'];

/// What a launch has at the place of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A buffer of at least so many bytes at a multiple of `align`.
    Buffer { access: Access, bytes: u64, align: u32 },
    /// A size of the problem, computed.
    Size(u32),
    /// A number that the caller passes.
    Scalar(Scalar),
    /// A tensor map.
    Map,
}

impl Expected {
    fn kind(self) -> &'static str {
        match self {
            Self::Buffer { access: Access::Read, .. } => "a buffer to read",
            Self::Buffer { .. } => "a buffer to write",
            Self::Size(_) => "a size",
            Self::Scalar(Scalar::U32) => "a u32",
            Self::Scalar(Scalar::I32) => "an i32",
            Self::Scalar(Scalar::U64) => "a u64",
            Self::Scalar(Scalar::F32) => "an f32",
            Self::Map => "a tensor map",
        }
    }
}

/// The sizes of a launch, checked: all of a launch but its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of a cluster along x, y and z.
    pub cluster: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    expected: [Expected; PARAMETERS],
    count: usize,
}

/// A launch whose sizes and arguments have been checked.
pub struct Prepared<'a> {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of a cluster along x, y and z.
    pub cluster: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    values: [Value<'a>; PARAMETERS],
    count: usize,
}

/// What a parameter's pointer points to.
enum Value<'a> {
    /// The number's bytes, lowest first.
    Number([u8; 8]),
    Map(&'a TensorMap<'a>),
}

fn count(
    rule: &Count,
    problem: &ProblemSize,
    what: &dyn Fn() -> String,
) -> Result<u64, LaunchFault> {
    let fault = || LaunchFault::Rule { what: what(), rule: rule.to_string() };
    rule.of(problem).ok_or_else(fault)
}

fn limited(found: u64, limit: u64, what: &dyn Fn() -> String) -> Result<u32, LaunchFault> {
    match u32::try_from(found) {
        Ok(value) if found <= limit => Ok(value),
        _ => Err(LaunchFault::Limit { what: what(), found, limit }),
    }
}

impl Sizes {
    /// The sizes of a launch for a problem.
    ///
    /// # Errors
    /// See [`LaunchFault`].
    pub fn new(
        rule: &LaunchRule,
        problem: &ProblemSize,
        limits: Limits,
    ) -> Result<Self, LaunchFault> {
        let mut grid = [0; 3];
        for axis in 0..3 {
            let what = || format!("the number of blocks along {}", AXES[axis]);
            let blocks = count(&rule.grid[axis], problem, &what)?;
            grid[axis] = limited(blocks, GRID[axis], &what)?;
            let (blocks, cluster) = (grid[axis], rule.cluster[axis]);
            if blocks == 0 {
                return Err(LaunchFault::Empty("the number of blocks"));
            }
            if cluster == 0 {
                return Err(LaunchFault::Empty("the number of blocks of a cluster"));
            }
            if blocks % cluster != 0 {
                return Err(LaunchFault::Cluster { axis: AXES[axis], blocks, cluster });
            }
        }
        let cluster = rule.cluster.iter().map(|blocks| u64::from(*blocks)).product();
        let most = u64::from(limits.cluster_blocks);
        limited(cluster, most, &|| "the number of blocks of a cluster".to_owned())?;
        if rule.threads == 0 {
            return Err(LaunchFault::Empty("the number of threads"));
        }
        let what = || "the number of threads of a block".to_owned();
        let threads = limited(u64::from(rule.threads), u64::from(limits.threads), &what)?;
        let (found, limit) = (u64::from(grid[0]) * u64::from(threads), limits.grid_threads);
        if found > limit {
            let what = "the number of threads along x".to_owned();
            return Err(LaunchFault::Limit { what, found, limit });
        }
        let what = || "the bytes of shared memory of a block".to_owned();
        let shared = count(&rule.shared_bytes, problem, &what)?;
        let shared_bytes = limited(shared, u64::from(limits.shared_bytes), &what)?;
        let parameters = rule.parameters.len();
        limited(parameters as u64, PARAMETERS as u64, &|| "the number of parameters".to_owned())?;
        let mut expected = [Expected::Map; PARAMETERS];
        for (expected, parameter) in expected.iter_mut().zip(&rule.parameters) {
            let name = &parameter.name;
            *expected = match &parameter.kind {
                ParameterKind::Buffer { access, bytes, align, .. } => {
                    let what = || format!("the bytes of buffer `{name}`");
                    let bytes = count(bytes, problem, &what)?;
                    Expected::Buffer { access: *access, bytes, align: *align }
                }
                ParameterKind::Size(rule) => {
                    let what = || format!("parameter `{name}`");
                    let size = count(rule, problem, &what)?;
                    Expected::Size(limited(size, u64::from(u32::MAX), &what)?)
                }
                ParameterKind::Scalar(scalar) => Expected::Scalar(*scalar),
                ParameterKind::TensorMap(_) => Expected::Map,
            };
        }
        Ok(Self { grid, threads, cluster: rule.cluster, shared_bytes, expected, count: parameters })
    }

    /// What the launch has at the place of each parameter.
    pub(crate) fn expected(&self) -> &[Expected] {
        &self.expected[..self.count]
    }
}

impl<'a> Prepared<'a> {
    /// Checks a launch.
    ///
    /// # Errors
    /// See [`LaunchFault`].
    pub fn new(
        rule: &LaunchRule,
        problem: &ProblemSize,
        limits: Limits,
        arguments: &'a [Argument<'a>],
    ) -> Result<Self, LaunchFault> {
        Self::of(&Sizes::new(rule, problem, limits)?, rule, arguments)
    }

    /// Checks the arguments of a launch whose sizes are known. The rule is that of the sizes.
    ///
    /// # Errors
    /// See [`LaunchFault`].
    pub fn of(
        sizes: &Sizes,
        rule: &LaunchRule,
        arguments: &'a [Argument<'a>],
    ) -> Result<Self, LaunchFault> {
        let passed = |expected: &&Expected| !matches!(expected, Expected::Size(_));
        let expected = sizes.expected().iter().filter(passed).count();
        if expected != arguments.len() {
            return Err(LaunchFault::Count { expected, found: arguments.len() });
        }
        let mut values = [const { Value::Number([0; 8]) }; PARAMETERS];
        let mut arguments = arguments.iter();
        let parameters = sizes.expected().iter().zip(&rule.parameters);
        for (value, (expected, parameter)) in values.iter_mut().zip(parameters) {
            if let Expected::Size(size) = expected {
                *value = Value::Number(u64::from(*size).to_le_bytes());
                continue;
            }
            let Some(argument) = arguments.next() else { break };
            *value = checked(*expected, &parameter.name, argument)?;
        }
        let Sizes { grid, threads, cluster, shared_bytes, count, .. } = *sizes;
        Ok(Self { grid, threads, cluster, shared_bytes, values, count })
    }

    /// The bytes of a numeric parameter as the driver reads them, lowest first; `None` for a
    /// tensor map or beyond the last one.
    pub fn number(&self, at: usize) -> Option<u64> {
        match self.values[..self.count].get(at)? {
            Value::Number(bytes) => Some(u64::from_le_bytes(*bytes)),
            Value::Map(_) => None,
        }
    }

    /// What the driver is given: a pointer to each value. The pointers are good as long as the value is
    /// borrowed.
    pub(crate) fn pointers(&mut self) -> [*mut c_void; PARAMETERS] {
        let mut pointers = [std::ptr::null_mut::<c_void>(); PARAMETERS];
        for (pointer, value) in pointers.iter_mut().zip(&mut self.values) {
            *pointer = match value {
                Value::Number(bytes) => bytes.as_mut_ptr().cast(),
                Value::Map(map) => map.raw(),
            };
        }
        pointers
    }
}

/// The value of an argument, if it is what the kernel relies on.
fn checked<'a>(
    expected: Expected,
    name: &str,
    argument: &'a Argument<'a>,
) -> Result<Value<'a>, LaunchFault> {
    if expected.kind() != argument.kind() {
        let (expected, found) = (expected.kind(), argument.kind());
        return Err(LaunchFault::Kind { parameter: name.to_owned(), expected, found });
    }
    let number = match argument {
        Argument::Read(slice) => buffer(expected, name, slice.address(), slice.bytes())?,
        Argument::Write(slice) => buffer(expected, name, slice.address(), slice.bytes())?,
        Argument::U32(number) => u64::from(*number),
        Argument::I32(number) => u64::from(number.cast_unsigned()),
        Argument::U64(number) => *number,
        Argument::F32(number) => u64::from(number.to_bits()),
        Argument::Map(map) => return Ok(Value::Map(map)),
    };
    Ok(Value::Number(number.to_le_bytes()))
}

/// The address, if the memory there is what the kernel relies on.
fn buffer(expected: Expected, name: &str, address: u64, found: u64) -> Result<u64, LaunchFault> {
    let Expected::Buffer { bytes: expected, align, .. } = expected else { return Ok(address) };
    if found < expected {
        return Err(LaunchFault::Size { parameter: name.to_owned(), expected, found });
    }
    aligned(name, address, align)?;
    Ok(address)
}

/// Refuses an address that a kernel's loads do not take.
pub(crate) fn aligned(name: &str, address: u64, align: u32) -> Result<(), LaunchFault> {
    match address.is_multiple_of(u64::from(align.max(1))) {
        true => Ok(()),
        false => Err(LaunchFault::Align { parameter: name.to_owned(), address, align }),
    }
}

/// Why a launch does not fit its kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchFault {
    /// Too few or too many arguments.
    #[error("{expected} arguments expected, {found} given")]
    Count {
        /// Parameters that a caller passes.
        expected: usize,
        /// Arguments passed.
        found: usize,
    },
    /// An argument of another kind.
    #[error("parameter `{parameter}` is {expected}, {found} given")]
    Kind {
        /// The parameter.
        parameter: String,
        /// What it is.
        expected: &'static str,
        /// What was passed.
        found: &'static str,
    },
    /// A buffer that is too small.
    #[error("buffer `{parameter}` has {found} bytes, the kernel touches {expected}")]
    Size {
        /// The parameter.
        parameter: String,
        /// Bytes that the kernel may touch.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// Rows of x that overlap.
    #[error("rows of x are {stride} elements apart, and have {columns}")]
    Stride {
        /// Elements from one row to the next.
        stride: u64,
        /// K.
        columns: u64,
    },
    /// A buffer at an address that the kernel's loads do not take.
    #[error("buffer `{parameter}` is at {address:#x}, the kernel needs a multiple of {align}")]
    Align {
        /// The parameter.
        parameter: String,
        /// Its address.
        address: u64,
        /// The alignment in bytes.
        align: u32,
    },
    /// A number that does not fit where the hardware wants it.
    #[error("{what} is {found}, at most {limit}")]
    Limit {
        /// The number.
        what: String,
        /// Its value.
        found: u64,
        /// The largest that there is.
        limit: u64,
    },
    /// A rule that gives no number for this problem.
    #[error("{what} = {rule} is no 64-bit number for this problem")]
    Rule {
        /// What the rule is of.
        what: String,
        /// The rule.
        rule: String,
    },
    /// A grid that is not whole clusters.
    #[error("{blocks} blocks along {axis} are not whole clusters of {cluster}")]
    Cluster {
        /// x, y or z.
        axis: char,
        /// Blocks.
        blocks: u32,
        /// Blocks of a cluster.
        cluster: u32,
    },
    /// An empty grid, block or cluster.
    #[error("{0} is 0")]
    Empty(&'static str),
}
