//! Launching: arguments against the kernel's signature, sizes against the hardware, then one
//! driver call.
//!
//! [`Prepared`] is everything but that call, and needs no device: it is where each refusal comes
//! from. Nothing is allocated on the way.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUlaunchAttributeID as Id};

use super::buffer::{DeviceSlice, DeviceSliceMut};
use super::error::{CudaError, LaunchFault};
use super::module::Kernel;
use super::stream::Stream;
use super::tensor_map::TensorMap;
use crate::source::{Access, Count, LaunchRule, ParameterKind, Problem, Scalar};

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
    /// A tensor map.
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

fn kind(kind: &ParameterKind) -> &'static str {
    match kind {
        ParameterKind::Buffer { access: Access::Read, .. } => "a buffer to read",
        ParameterKind::Buffer { .. } => "a buffer to write",
        ParameterKind::Size(_) => "a size",
        ParameterKind::Scalar(Scalar::U32) => "a u32",
        ParameterKind::Scalar(Scalar::I32) => "an i32",
        ParameterKind::Scalar(Scalar::U64) => "a u64",
        ParameterKind::Scalar(Scalar::F32) => "an f32",
        ParameterKind::TensorMap(_) => "a tensor map",
    }
}

/// What a launch is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most threads of a block of this kernel.
    pub threads: u32,
    /// Most dynamic shared memory of a block of this kernel, in bytes.
    pub shared_bytes: u32,
}

/// Most blocks along x, y and z (CUDA programming guide, technical specifications).
const GRID: [u64; 3] = [(1 << 31) - 1, 65535, 65535];
/// Most blocks of a cluster that every device with clusters has.
const CLUSTER: u64 = 8;
/// More parameters than any kernel of ours has.
const PARAMETERS: usize = 32;
const AXES: [char; 3] = ['x', 'y', 'z'];

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
#[derive(Clone, Copy)]
enum Value<'a> {
    /// The number's bytes, lowest first.
    Number([u8; 8]),
    Map(&'a TensorMap<'a>),
}

fn count(rule: &Count, problem: &Problem, what: &dyn Fn() -> String) -> Result<u64, LaunchFault> {
    let fault = || LaunchFault::Rule { what: what(), rule: rule.to_string() };
    rule.of(problem).ok_or_else(fault)
}

fn limited(found: u64, limit: u64, what: &dyn Fn() -> String) -> Result<u32, LaunchFault> {
    match u32::try_from(found) {
        Ok(value) if found <= limit => Ok(value),
        _ => Err(LaunchFault::Limit { what: what(), found, limit }),
    }
}

impl<'a> Prepared<'a> {
    /// Checks a launch.
    ///
    /// # Errors
    /// See [`LaunchFault`].
    pub fn new(
        rule: &LaunchRule,
        problem: &Problem,
        limits: Limits,
        arguments: &'a [Argument<'a>],
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
        limited(cluster, CLUSTER, &|| "the number of blocks of a cluster".to_owned())?;
        if rule.threads == 0 {
            return Err(LaunchFault::Empty("the number of threads"));
        }
        let what = || "the number of threads of a block".to_owned();
        let threads = limited(u64::from(rule.threads), u64::from(limits.threads), &what)?;
        let what = || "the bytes of shared memory of a block".to_owned();
        let shared = count(&rule.shared_bytes, problem, &what)?;
        let shared_bytes = limited(shared, u64::from(limits.shared_bytes), &what)?;
        let (values, count) = values(rule, problem, arguments)?;
        Ok(Self { grid, threads, cluster: rule.cluster, shared_bytes, values, count })
    }

    /// The bytes of a numeric parameter as the driver reads them, lowest first; `None` for a
    /// tensor map or beyond the last one.
    pub fn number(&self, at: usize) -> Option<u64> {
        match self.values[..self.count].get(at)? {
            Value::Number(bytes) => Some(u64::from_le_bytes(*bytes)),
            Value::Map(_) => None,
        }
    }
}

fn values<'a>(
    rule: &LaunchRule,
    problem: &Problem,
    arguments: &'a [Argument<'a>],
) -> Result<([Value<'a>; PARAMETERS], usize), LaunchFault> {
    let passed = |kind: &ParameterKind| !matches!(kind, ParameterKind::Size(_));
    let expected = rule.parameters.iter().filter(|parameter| passed(&parameter.kind)).count();
    if expected != arguments.len() {
        return Err(LaunchFault::Count { expected, found: arguments.len() });
    }
    let parameters = rule.parameters.len();
    limited(parameters as u64, PARAMETERS as u64, &|| "the number of parameters".to_owned())?;
    let mut values = [Value::Number([0; 8]); PARAMETERS];
    let mut arguments = arguments.iter();
    for (value, parameter) in values.iter_mut().zip(&rule.parameters) {
        if let ParameterKind::Size(rule) = &parameter.kind {
            let what = || format!("parameter `{}`", parameter.name);
            let size = limited(count(rule, problem, &what)?, u64::from(u32::MAX), &what)?;
            *value = Value::Number(u64::from(size).to_le_bytes());
            continue;
        }
        let Some(argument) = arguments.next() else { break };
        let wrong = || LaunchFault::Kind {
            parameter: parameter.name.clone(),
            expected: kind(&parameter.kind),
            found: argument.kind(),
        };
        if kind(&parameter.kind) != argument.kind() {
            return Err(wrong());
        }
        let number = match argument {
            Argument::Read(slice) => {
                buffer(&parameter.name, &parameter.kind, problem, slice.address(), slice.bytes())?
            }
            Argument::Write(slice) => {
                buffer(&parameter.name, &parameter.kind, problem, slice.address(), slice.bytes())?
            }
            Argument::U32(number) => u64::from(*number),
            Argument::I32(number) => u64::from(number.cast_unsigned()),
            Argument::U64(number) => *number,
            Argument::F32(number) => u64::from(number.to_bits()),
            Argument::Map(map) => {
                *value = Value::Map(map);
                continue;
            }
        };
        *value = Value::Number(number.to_le_bytes());
    }
    Ok((values, parameters))
}

/// The address, if what lies there is what the kernel relies on.
fn buffer(
    name: &str,
    kind: &ParameterKind,
    problem: &Problem,
    address: u64,
    found: u64,
) -> Result<u64, LaunchFault> {
    let ParameterKind::Buffer { bytes, align, .. } = kind else { return Ok(address) };
    let expected = count(bytes, problem, &|| format!("the bytes of buffer `{name}`"))?;
    let parameter = || name.to_owned();
    if found < expected {
        return Err(LaunchFault::Size { parameter: parameter(), expected, found });
    }
    if !address.is_multiple_of(u64::from((*align).max(1))) {
        return Err(LaunchFault::Align { parameter: parameter(), address, align: *align });
    }
    Ok(address)
}

impl Kernel {
    /// Queues the kernel on a stream for a problem.
    ///
    /// With `overlap`, a kernel whose rule says that it waits by itself may start before what is
    /// queued before it has ended (programmatic dependent launch).
    ///
    /// # Safety
    /// The kernel's text touches no more than its rule says, and what the arguments point to
    /// stays there until the kernel has run: if a graph captures the launch, until its last
    /// replay has.
    ///
    /// # Errors
    /// Arguments that do not fit the rule, sizes beyond the hardware, or what the driver answered.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        problem: &Problem,
        overlap: bool,
        arguments: &[Argument<'_>],
    ) -> Result<(), CudaError> {
        if !self.context().is(stream.context()) {
            return Err(CudaError::Mixed("launching a kernel"));
        }
        let limits =
            Limits { threads: self.facts().threads, shared_bytes: self.most_shared_bytes() };
        let mut prepared = Prepared::new(self.rule(), problem, limits, arguments)
            .map_err(|fault| CudaError::Launch { entry: self.entry().to_owned(), fault })?;
        let mut pointers = [std::ptr::null_mut::<c_void>(); PARAMETERS];
        for (pointer, value) in pointers.iter_mut().zip(&mut prepared.values) {
            *pointer = match value {
                Value::Number(bytes) => bytes.as_mut_ptr().cast(),
                Value::Map(map) => map.raw().cast_mut().cast(),
            };
        }
        let (mut attributes, count) = attributes(prepared.cluster, overlap && self.rule().overlaps);
        let config = sys::CUlaunchConfig {
            gridDimX: prepared.grid[0],
            gridDimY: prepared.grid[1],
            gridDimZ: prepared.grid[2],
            blockDimX: prepared.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: prepared.shared_bytes,
            hStream: stream.handle(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count,
        };
        let current = self.context().enter()?;
        self.allow_shared(&current, prepared.shared_bytes)?;
        current.call(
            || format!("launching {}", self.entry()),
            // SAFETY: one pointer a parameter of the rule, which the caller says is the text's;
            // each points to a value at least as wide as the parameter. The driver copies
            // values and attributes before it returns.
            |driver| unsafe {
                let none = std::ptr::null_mut();
                (driver.cuLaunchKernelEx)(&config, self.function(), pointers.as_mut_ptr(), none)
            },
        )
    }
}

/// The launch attributes that are set, and their number.
fn attributes(cluster: [u32; 3], overlap: bool) -> ([sys::CUlaunchAttribute; 2], u32) {
    let value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    let unset = sys::CUlaunchAttribute { id: Id::CU_LAUNCH_ATTRIBUTE_IGNORE, pad: [0; 4], value };
    let mut attributes = [unset; 2];
    let mut count = 0;
    if cluster != [1, 1, 1] {
        attributes[count].id = Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[count].value.clusterDim.x = cluster[0];
        attributes[count].value.clusterDim.y = cluster[1];
        attributes[count].value.clusterDim.z = cluster[2];
        count += 1;
    }
    if overlap {
        attributes[count].id = Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count].value.programmaticStreamSerializationAllowed = 1;
        count += 1;
    }
    (attributes, count as u32)
}
