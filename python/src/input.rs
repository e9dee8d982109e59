//! x: an array of another library, by DLPack.

use std::ffi::c_void;
use std::slice::from_raw_parts;

use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType};
use dlpark::python::{ImportRequest, ImportedDlpack};
use dlpark::tensor::TensorRef;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use quantloom::runtime::element::{Values, bf16, f16};
use quantloom::runtime::op::ProductError;

use crate::element::Element;

/// x of a product: M rows of K elements in host memory, borrowed from its library.
pub(crate) struct Input {
    /// Keeps the memory; given back to its library when this is dropped.
    _tensor: ImportedDlpack,
    data: *const c_void,
    element: Element,
    tokens: usize,
    /// Elements from the begin of the first row to the end of the last one.
    len: usize,
    /// Elements from the begin of a row to that of the next.
    stride: usize,
}

impl Input {
    /// Takes x by its `__dlpack__`, or by a capsule that the caller has already.
    ///
    /// # Errors
    /// What is no DLPack exporter or is on a GPU; another type, shape or order of elements than a product
    /// takes; a capsule that was taken before; what the library says.
    pub(crate) fn of(x: &Bound<'_, PyAny>, k: u64) -> PyResult<Self> {
        if !x.hasattr("__dlpack__")? && !x.is_instance_of::<PyCapsule>() {
            let what = x.get_type().name()?;
            let why = format!(
                "x is of type {what}, which has no __dlpack__; a product takes arrays of numpy, JAX, torch \
                 and others that export DLPack"
            );
            return Err(PyTypeError::new_err(why));
        }
        let request = ImportRequest::new(x.as_borrowed())?;
        // A capsule says its device later.
        if let Ok(device) = request.device() {
            in_host_memory(device)?;
        }
        let tensor = request.import(None, None)?;
        let (data, element, tokens, stride) = rows(&tensor, k)?;
        // The last row may end before the stride does.
        let len = match tokens {
            0 => Some(0),
            tokens => (tokens - 1).checked_mul(stride).and_then(|all| all.checked_add(k as usize)),
        };
        let fits = |len: &usize| {
            len.checked_mul(element.bytes()).is_some_and(|all| all <= isize::MAX as usize)
        };
        let too_large = || PyValueError::new_err("x is larger than the memory of a machine");
        let len = len.filter(fits).ok_or_else(too_large)?;
        if len > 0 && data.is_null() {
            return Err(PyValueError::new_err("x has elements and no address"));
        }
        if len > 0 && !data.addr().is_multiple_of(element.bytes()) {
            let bytes = element.bytes();
            let why = format!(
                "x begins at an address that is not a multiple of its element's {bytes} bytes"
            );
            return Err(PyValueError::new_err(why));
        }
        Ok(Self { _tensor: tensor, data, element, tokens, len, stride })
    }

    /// The type of its elements.
    pub(crate) fn element(&self) -> Element {
        self.element
    }

    /// M.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The elements from the first row to the end of the last, and how many there are from the begin of a row
    /// to that of the next.
    pub(crate) fn values(&self) -> (Values<'_>, usize) {
        /// # Safety
        /// That of `from_raw_parts`, unless there are no elements.
        unsafe fn elements<'a, T>(data: *const c_void, len: usize) -> &'a [T] {
            if len == 0 {
                return &[];
            }
            // SAFETY: the caller's.
            unsafe { from_raw_parts(data.cast(), len) }
        }
        let (data, len) = (self.data, self.len);
        // SAFETY: `Input::of` has seen that the exporter says it has `len` elements of this type in host
        // memory from `data` on, that `data` is aligned and not null, and that they are no more than `isize::MAX` bytes. `_tensor` keeps
        // them as long as `self` lives, and nobody writes them meanwhile: `Prepared.matmul` asks for it.
        let values = unsafe {
            match self.element {
                Element::F32 => Values::F32(elements::<f32>(data, len)),
                Element::F16 => Values::F16(elements::<f16>(data, len)),
                Element::Bf16 => Values::Bf16(elements::<bf16>(data, len)),
            }
        };
        (values, self.stride)
    }
}

/// Address, type, M and stride of an array that is x of a product.
fn rows(tensor: &ImportedDlpack, k: u64) -> PyResult<(*const c_void, Element, usize, usize)> {
    let invalid = |error: &dyn std::fmt::Display| PyValueError::new_err(format!("x: {error}"));
    let x: TensorRef<'_> = tensor.validate().map_err(|error| invalid(&error))?;
    in_host_memory(x.device())?;
    let element = Element::of(x.dtype()).ok_or_else(|| {
        let found = name(x.dtype());
        let why = format!("x is in {found}; a product takes float32, float16 or bfloat16");
        PyTypeError::new_err(why)
    })?;
    let strides = x.strides_or_compact().map_err(|error| invalid(&error))?;
    let (&[tokens, columns], &[stride, step]) = (x.shape(), &*strides) else {
        let found = x.ndim();
        let why = format!("x has {found} dimensions; a product takes 2, [M, K]");
        return Err(PyValueError::new_err(why));
    };
    if columns as u64 != k {
        let wrong = ProductError::Columns { expected: k, found: columns as u64 };
        return Err(PyValueError::new_err(wrong.to_string()));
    }
    // Where a dimension has one element, or the array none, strides say nothing.
    let stride = if tokens <= 1 { columns } else { stride };
    let apart = step != 1 && columns > 1 && tokens > 0;
    if apart || stride < columns {
        let why = format!(
            "the elements of a row of x are not next to one another, or rows overlap: its strides are {stride} \
             and {step} elements. Make it contiguous first"
        );
        return Err(PyValueError::new_err(why));
    }
    let data = x.data_ptr().wrapping_byte_add(x.byte_offset() as usize);
    Ok((data, element, tokens as usize, stride as usize))
}

/// Refuses memory that the host does not read.
fn in_host_memory(device: DLDevice) -> PyResult<()> {
    if device.device_type == DLDeviceType::CPU {
        return Ok(());
    }
    let (kind, number) = device.into();
    let why = format!(
        "x is on device {number} of DLPack's kind {kind}; a product takes x in host memory"
    );
    Err(PyValueError::new_err(why))
}

/// A type of elements by its usual name.
fn name(dtype: DLDataType) -> String {
    let kind = match dtype.code {
        DLDataTypeCode::INT => "int",
        DLDataTypeCode::UINT => "uint",
        DLDataTypeCode::FLOAT => "float",
        DLDataTypeCode::BFLOAT => "bfloat",
        DLDataTypeCode::COMPLEX => "complex",
        DLDataTypeCode::BOOL => return "bool".to_owned(),
        code => return format!("DLPack's type {} of {} bits", code.0, dtype.bits),
    };
    let lanes = if dtype.lanes == 1 { String::new() } else { format!(" in {} lanes", dtype.lanes) };
    format!("{kind}{}{lanes}", dtype.bits)
}
