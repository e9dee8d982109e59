//! Layers on a device, and their products.

use std::cell::RefCell;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use quantloom::runtime::element::{Values, ValuesMut};
use quantloom::runtime::op::{ProductError, Workspace};
use quantloom::runtime::prepared::PreparedLayer;

use crate::checkpoint::dimensions;
use crate::element::Elements;
use crate::error::raised;
use crate::input::Input;
use crate::tensor::Tensor;

thread_local! {
    /// What a product needs besides x and y, kept for the next one.
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// A layer on a device, made by `Layer.prepare`.
#[pyclass(frozen, module = "quantloom")]
pub(crate) struct Prepared {
    layer: PreparedLayer,
    device: String,
}

impl Prepared {
    pub(crate) fn new(layer: PreparedLayer, device: &str) -> Self {
        Self { layer, device: device.to_owned() }
    }
}

#[pymethods]
impl Prepared {
    /// y = x w^T + bias: x is [M, K], y [M, N] in the type of x, both in host memory.
    ///
    /// x is an array of numpy, JAX, torch or any other library that exports DLPack, in float32, float16 or
    /// bfloat16. It is read where it is; only rows that are not next to one another are copied. Nobody may write
    /// to it during the call. Of a layer of stacked experts, `expert` says which one multiplies. Other
    /// threads of Python run meanwhile.
    ///
    /// Raises ValueError for a wrong shape, TypeError for a wrong type, QuantloomError for what the device says.
    #[pyo3(signature = (x, *, expert = None))]
    fn matmul(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        expert: Option<u64>,
    ) -> PyResult<Tensor> {
        let n = self.layer.shape().n;
        let x = Input::of(x, self.layer.shape().k)?;
        let (tokens, element) = (x.tokens(), x.element());
        let (values, stride) = x.values();
        let y = py.detach(|| {
            let none = ProductError::Memory { tokens: tokens as u64, n };
            let len = (tokens as u64).checked_mul(n).and_then(|len| usize::try_from(len).ok());
            let y = len.and_then(|len| Elements::zeros(element, len));
            let mut y = y.ok_or(none)?;
            self.product(values, stride, expert, y.values_mut())?;
            Ok(y)
        });
        let y = y.map_err(|error| match error {
            ProductError::Expert { .. } | ProductError::Stacked { .. } => {
                PyValueError::new_err(error.to_string())
            }
            error => raised(error),
        })?;
        Ok(Tensor::new(y, vec![tokens as u64, n]))
    }

    /// The kernel that multiplies so many rows of x and why, with the reasons against others.
    #[pyo3(signature = (tokens = 1))]
    pub(crate) fn explain(&self, tokens: usize) -> String {
        self.layer.explain(tokens)
    }

    /// The scheme, as the declaration of Quantloom's language.
    #[getter]
    fn scheme(&self) -> String {
        self.layer.scheme().to_string()
    }

    /// The dimensions of the weight: (N, K), or (E, N, K) of E stacked experts.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, dimensions(self.layer.scheme(), self.layer.shape()))
    }

    /// The name of the device.
    #[getter]
    fn device(&self) -> &str {
        &self.device
    }

    fn __repr__(&self) -> String {
        let scheme = self.layer.scheme();
        let dimensions = dimensions(scheme, self.layer.shape());
        format!("<quantloom.Prepared: {}, {dimensions:?} on {}>", scheme.name, self.device)
    }
}

impl Prepared {
    /// The product of rows that begin `stride` elements apart.
    fn product(
        &self,
        x: Values<'_>,
        stride: usize,
        expert: Option<u64>,
        y: ValuesMut<'_>,
    ) -> Result<(), ProductError> {
        let k = self.layer.shape().k;
        let dense;
        let mut x = x;
        if stride as u64 != k && !x.is_empty() {
            let apart = ProductError::Stride { k, stride, found: x.len() as u64 };
            dense = x.dense_rows(k as usize, stride).ok_or(apart)?;
            x = dense.values();
        }
        // Taken, not borrowed: while it waits for its threads, the pool may run another product on this one.
        let mut workspace = WORKSPACE.take();
        let done = match expert {
            None => self.layer.matmul_into(x, y, &mut workspace),
            Some(expert) => self.layer.op().matmul_into(expert, x, y, &mut workspace),
        };
        WORKSPACE.set(workspace);
        done
    }
}
