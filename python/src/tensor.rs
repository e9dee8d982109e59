//! y, and decoded weights: memory of ours that other libraries take by DLPack.

use std::ffi::c_void;
use std::sync::Arc;

use dlpark::ffi::{DLDevice, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::metadata::Dynamic;
use dlpark::python::{DlpackExporter, ExportRequest, export_dlpack};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::element::Elements;

/// An array of a product or a decoded weight, row-major, in host memory.
///
/// Take it into a library by that library's from_dlpack, which copies nothing: numpy.from_dlpack(y),
/// jax.dlpack.from_dlpack(y), torch.from_dlpack(y). All of them share its memory, which lives as long as one of
/// them.
#[pyclass(frozen, module = "quantloom")]
pub(crate) struct Tensor {
    memory: Arc<Memory>,
    dimensions: Vec<i64>,
}

/// Elements that consumers read and write by their address.
struct Memory {
    address: *mut c_void,
    /// Owns the elements; nothing looks at them through it.
    elements: Elements,
}

// SAFETY: the elements are floats in memory that `elements` owns, which may be freed on any thread; no method of
// ours reads or writes them.
unsafe impl Send for Memory {}
// SAFETY: as above: a shared `Memory` gives out an address, and no element.
unsafe impl Sync for Memory {}

impl Tensor {
    /// Takes the elements of an array of these dimensions.
    ///
    /// # Panics
    /// If their number is not the product of the dimensions.
    pub(crate) fn new(mut elements: Elements, dimensions: Vec<u64>) -> Self {
        assert_eq!(elements.len() as u64, dimensions.iter().product::<u64>());
        let address = elements.address().cast();
        // Each is no larger than the number of elements, which are in memory, or there are none of these.
        let dimensions = dimensions.into_iter().map(|size| size as i64).collect();
        Self { memory: Arc::new(Memory { address, elements }), dimensions }
    }

    /// A header of its own for the same memory.
    fn header<M: ManagedTensorBase>(&self) -> PyResult<Managed<M>> {
        let header = Dynamic::compact(&self.dimensions[..]).initialize_as(self.memory.clone());
        let mut header = header.map_err(|error| PyBufferError::new_err(error.to_string()))?;
        header.set_data(self.memory.address).set_device(DLDevice::CPU);
        header.set_dtype(self.memory.elements.element().dtype());
        // SAFETY: `address` is that of as many elements of this type as the dimensions say, row-major
        // (`Tensor::new` compares). The header owns a share of the memory, which may be written: no reference
        // to an element exists on our side.
        Ok(unsafe { header.finish() })
    }
}

impl DlpackExporter for Tensor {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn flags(&self) -> DlpackFlags {
        DlpackFlags::empty()
    }

    /// Nothing is on its way: a product has ended when there is a tensor.
    fn prepare_export(&self, _py: Python<'_>, _request: &ExportRequest<'_>) -> PyResult<()> {
        Ok(())
    }

    fn export_legacy(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensor>> {
        self.header()
    }

    fn export_versioned(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        self.header()
    }
}

#[pymethods]
impl Tensor {
    /// Its dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.dimensions)
    }

    /// The type of its elements: "float32", "float16" or "bfloat16".
    #[getter]
    fn dtype(&self) -> &'static str {
        self.memory.elements.element().name()
    }

    /// A DLPack capsule of its memory, which one consumer may take. Called by from_dlpack.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        export_dlpack(self, py, ExportRequest::parse(stream, max_version, dl_device, copy)?)
    }

    /// The host, as DLPack numbers devices: (1, 0).
    fn __dlpack_device__(&self) -> (u32, i32) {
        DLDevice::CPU.into()
    }

    fn __repr__(&self) -> String {
        format!("<quantloom.Tensor: {} {:?}>", self.dtype(), self.dimensions)
    }
}
