//! Tensor maps: what the copy engine of `sm_90` (TMA) must know of a tensor in global memory.
//!
//! In: memory and a [`TensorShape`]. Out: a [`TensorMap`], 128 opaque bytes that a kernel takes
//! by value. The rules of the shape are checked here, with names, since the driver's own answer
//! to all of them is `CUDA_ERROR_INVALID_VALUE`.

use std::ffi::c_void;

use super::api::DriverApi;
use super::arguments::{DeviceSlice, LaunchFault};
use super::context::{Context, Current};
use super::error::DriverError;
use crate::source::{Count, ProblemSize, Swizzle, TensorRule, TensorWord};

/// The longest row of a box in bytes; without a swizzle the 256 elements alone limit it.
const fn span(swizzle: Swizzle) -> Option<u64> {
    match swizzle {
        Swizzle::None => None,
        Swizzle::B32 => Some(32),
        Swizzle::B64 => Some(64),
        Swizzle::B128 => Some(128),
    }
}

/// A tensor in global memory and the box of it that one copy moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Element.
    pub word: TensorWord,
    /// Elements along each dimension, the fastest first.
    pub dims: Vec<u64>,
    /// Bytes from one index to the next along each dimension but the fastest.
    pub strides: Vec<u64>,
    /// Elements of the box along each dimension. What lies beyond the tensor is filled with 0.
    pub box_dims: Vec<u32>,
    /// The permutation in shared memory.
    pub swizzle: Swizzle,
}

/// What a tensor map cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapFault {
    /// Too many dimensions or none, or lists of different lengths.
    #[error(
        "{dims} dimensions (1 to 5) need as many box sizes and one stride less, \
             {box_dims} and {strides} given"
    )]
    Rank {
        /// Dimensions.
        dims: usize,
        /// Box sizes.
        box_dims: usize,
        /// Strides.
        strides: usize,
    },
    /// A dimension that is empty or too long.
    #[error("dimension {dim} has {size} elements, 1 to 2^32 are possible")]
    Dim {
        /// The dimension, 0 the fastest.
        dim: usize,
        /// Its elements.
        size: u64,
    },
    /// A stride that the engine does not take.
    #[error(
        "the stride of dimension {dim} is {stride} bytes, multiples of 16 below 2^40 are possible"
    )]
    Stride {
        /// The dimension, from 1.
        dim: usize,
        /// Its stride.
        stride: u64,
    },
    /// A box that the engine does not take.
    #[error("the box has {size} elements along dimension {dim}, 1 to 256 are possible")]
    Box {
        /// The dimension.
        dim: usize,
        /// Elements of the box along it.
        size: u32,
    },
    /// A row of the box that is not a multiple of 16 bytes or longer than the swizzle.
    #[error("a row of the box has {bytes} bytes, multiples of 16 {}are possible",
            span.map_or(String::new(), |span| format!("up to {span} ")))]
    Row {
        /// Its bytes.
        bytes: u64,
        /// Bytes of the swizzle.
        span: Option<u64>,
    },
    /// An address that the engine does not take.
    #[error("the address {0:#x} is not a multiple of 16")]
    Address(u64),
    /// Memory that ends before the tensor does.
    #[error("the tensor takes {needed} bytes, the memory has {found}")]
    Memory {
        /// Bytes of the tensor.
        needed: u64,
        /// Bytes that there are.
        found: u64,
    },
}

impl TensorShape {
    /// The shape that a kernel's rule says for a problem.
    ///
    /// # Errors
    /// A count that is not a number for the problem.
    pub fn of(rule: &TensorRule, problem: &ProblemSize) -> Result<Self, LaunchFault> {
        let number = |count: &Count, bytes: u64| {
            let number = count.of(problem).and_then(|count| count.checked_mul(bytes));
            number.ok_or_else(|| LaunchFault::Rule {
                what: format!("a size of the tensor in buffer `{}`", rule.buffer),
                rule: count.to_string(),
            })
        };
        Ok(Self {
            word: rule.word,
            dims: rule.dims.iter().map(|dim| number(dim, 1)).collect::<Result<_, _>>()?,
            strides: rule
                .strides
                .iter()
                .map(|stride| number(stride, rule.word.bytes()))
                .collect::<Result<_, _>>()?,
            box_dims: rule.tile.clone(),
            swizzle: rule.swizzle,
        })
    }

    /// The rules of `cuTensorMapEncodeTiled` (CUDA driver API, "Tensor map object management")
    /// for tensors without interleave, at an address, in so many bytes of memory.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self, address: u64, bytes: u64) -> Result<(), TensorMapFault> {
        let (dims, box_dims, strides) = (self.dims.len(), self.box_dims.len(), self.strides.len());
        if !(1..=5).contains(&dims) || box_dims != dims || strides + 1 != dims {
            return Err(TensorMapFault::Rank { dims, box_dims, strides });
        }
        for (dim, size) in self.dims.iter().copied().enumerate() {
            if !(1..=1 << 32).contains(&size) {
                return Err(TensorMapFault::Dim { dim, size });
            }
        }
        for (dim, stride) in (1..).zip(self.strides.iter().copied()) {
            if !stride.is_multiple_of(16) || stride >= 1 << 40 {
                return Err(TensorMapFault::Stride { dim, stride });
            }
        }
        for (dim, size) in self.box_dims.iter().copied().enumerate() {
            if !(1..=256).contains(&size) {
                return Err(TensorMapFault::Box { dim, size });
            }
        }
        let row = u64::from(self.box_dims[0]) * self.word.bytes();
        let span = span(self.swizzle);
        if !row.is_multiple_of(16) || span.is_some_and(|span| row > span) {
            return Err(TensorMapFault::Row { bytes: row, span });
        }
        if !address.is_multiple_of(16) {
            return Err(TensorMapFault::Address(address));
        }
        // At most 5 terms below 2^72: no overflow in 128 bits.
        let last = self.dims[1..].iter().zip(&self.strides);
        let last: u128 =
            last.map(|(size, stride)| u128::from(size - 1) * u128::from(*stride)).sum();
        let needed = last + u128::from(self.dims[0] * self.word.bytes());
        if needed > u128::from(bytes) {
            let needed = u64::try_from(needed).unwrap_or(u64::MAX);
            return Err(TensorMapFault::Memory { needed, found: bytes });
        }
        Ok(())
    }
}

/// The bytes of a tensor map, as a driver encodes them.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct RawTensorMap([u64; 16]);

impl RawTensorMap {
    pub(crate) const EMPTY: Self = Self([0; 16]);

    /// The map of a tensor at an address, in so many bytes of memory.
    pub(crate) fn encoded<D: DriverApi>(
        current: &Current<'_, D>,
        address: u64,
        bytes: u64,
        shape: &TensorShape,
    ) -> Result<Self, DriverError> {
        shape.check(address, bytes)?;
        let mut raw = Self::EMPTY;
        current.call(
            || "encoding a tensor map".to_owned(),
            |driver| driver.encode(&mut raw, address, shape),
        )?;
        Ok(raw)
    }
}

/// An encoded tensor map of memory that is borrowed as long as the map is there.
pub struct TensorMap<'b> {
    raw: RawTensorMap,
    /// `None` if the launch that takes the map has the memory as an argument of its own.
    memory: Option<DeviceSlice<'b>>,
}

impl<'b> TensorMap<'b> {
    /// Encodes a map.
    ///
    /// # Errors
    /// A rule of the shape that is broken, or what the driver answered: HIP has none.
    pub fn new<D: DriverApi>(
        context: &Context<D>,
        memory: DeviceSlice<'b>,
        shape: &TensorShape,
    ) -> Result<Self, DriverError> {
        let (address, bytes) = (memory.address(), memory.bytes());
        let raw = RawTensorMap::encoded(&context.enter()?, address, bytes, shape)?;
        Ok(Self { raw, memory: Some(memory) })
    }

    /// Encodes a map of so many bytes of memory that the same launch has as an argument, to read or to write:
    /// that argument keeps the memory and orders its uses.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn of_argument<D: DriverApi>(
        context: &Context<D>,
        (address, bytes): (u64, u64),
        shape: &TensorShape,
    ) -> Result<Self, DriverError> {
        let raw = RawTensorMap::encoded(&context.enter()?, address, bytes, shape)?;
        Ok(Self { raw, memory: None })
    }

    /// The memory, unless another argument of the launch has it.
    pub(crate) fn memory(&self) -> Option<&DeviceSlice<'b>> {
        self.memory.as_ref()
    }

    /// Where a launch reads it.
    pub(crate) fn raw(&self) -> *mut c_void {
        (&raw const self.raw).cast_mut().cast()
    }
}
