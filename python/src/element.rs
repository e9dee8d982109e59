//! The types of x and y, and memory for elements.

use std::mem::size_of;
use std::slice::from_raw_parts_mut;

use dlpark::ffi::DLDataType;
use half::{bf16, f16};
use pyo3::PyResult;
use pyo3::exceptions::PyValueError;
use quantloom::dsl::format::{BF16, F16, F32, FloatFormat};
use quantloom::runtime::element::ValuesMut;

/// The types of x and y.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    Bf16,
}

impl Element {
    const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// The type of an array's elements, if a product takes it.
    pub(crate) fn of(dtype: DLDataType) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.dtype() == dtype)
    }

    /// The type of this name.
    pub(crate) fn named(name: &str) -> PyResult<Self> {
        Self::ALL.into_iter().find(|element| element.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            PyValueError::new_err(format!("x is one of {names}, not {name:?}"))
        })
    }

    /// As a scheme has it.
    pub(crate) const fn format(self) -> FloatFormat {
        match self {
            Self::F32 => F32,
            Self::F16 => F16,
            Self::Bf16 => BF16,
        }
    }

    /// As DLPack has it.
    pub(crate) const fn dtype(self) -> DLDataType {
        match self {
            Self::F32 => DLDataType::F32,
            Self::F16 => DLDataType::F16,
            Self::Bf16 => DLDataType::BF16,
        }
    }

    /// As numpy and JAX call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::F16 => size_of::<f16>(),
            Self::Bf16 => size_of::<bf16>(),
        }
    }
}

/// Memory for elements, at an address that JAX takes without a copy: a multiple of 64.
pub(crate) struct Elements {
    blocks: Vec<Block>,
    element: Element,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Block([u8; 64]);

impl Elements {
    /// So many zeros; `None` if there is no memory for them.
    pub(crate) fn zeros(element: Element, len: usize) -> Option<Self> {
        let blocks = len.checked_mul(element.bytes())?.div_ceil(size_of::<Block>());
        let mut memory = Vec::new();
        memory.try_reserve_exact(blocks).ok()?;
        memory.resize(blocks, Block([0; 64]));
        Some(Self { blocks: memory, element, len })
    }

    pub(crate) fn element(&self) -> Element {
        self.element
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of the first one, through which elements may be written.
    pub(crate) fn address(&mut self) -> *mut u8 {
        self.blocks.as_mut_ptr().cast()
    }

    pub(crate) fn values_mut(&mut self) -> ValuesMut<'_> {
        let (address, len) = (self.address(), self.len);
        // SAFETY: the blocks have room for `len` elements of the type (`zeros`), aligned for more than a float
        // and initialised; any bits are a float. The reference borrows `self`.
        unsafe {
            match self.element {
                Element::F32 => ValuesMut::F32(from_raw_parts_mut(address.cast(), len)),
                Element::F16 => ValuesMut::F16(from_raw_parts_mut(address.cast(), len)),
                Element::Bf16 => ValuesMut::Bf16(from_raw_parts_mut(address.cast(), len)),
            }
        }
    }
}
