//! Checkpoints and their layers.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use quantloom::dsl::format::Number;
use quantloom::dsl::layout::Shape;
use quantloom::dsl::{Accuracy, Activation, Scheme};
use quantloom::runtime::checkpoint;
use quantloom::runtime::checkpoint::{FileAccess, LayerFault, Options};
use quantloom::runtime::element::ValuesMut;

use crate::device::named;
use crate::element::{Element, Elements};
use crate::error::{of_checkpoint, raised};
use crate::prepared::Prepared;
use crate::tensor::Tensor;

/// Rows that are decoded at a time.
const AT_ONCE: usize = 1024;

/// Opens a .safetensors or .gguf file, or a model directory, and recognises its quantised layers.
///
/// Files are memory-mapped: while the checkpoint or one of its layers is in use, they must not be written or
/// truncated. With mapped=False they are read into memory first.
///
/// Raises OSError for a file that cannot be read, QuantloomError for one that is invalid or not supported.
#[pyfunction]
#[pyo3(signature = (path, *, mapped = true))]
pub(crate) fn open(py: Python<'_>, path: PathBuf, mapped: bool) -> PyResult<Checkpoint> {
    let access = if mapped { FileAccess::Mapped } else { FileAccess::Copied };
    let options = Options { access, ..Options::default() };
    let opened = py.detach(|| checkpoint::Checkpoint::open_with(path, options));
    opened.map(|checkpoint| Checkpoint { checkpoint }).map_err(|error| of_checkpoint(&error))
}

/// An opened checkpoint, made by `open`.
#[pyclass(frozen, module = "quantloom")]
pub(crate) struct Checkpoint {
    checkpoint: checkpoint::Checkpoint,
}

#[pymethods]
impl Checkpoint {
    /// The names of the quantised layers, sorted.
    fn layers(&self) -> Vec<&str> {
        self.checkpoint.layers().map(|(name, _)| name).collect()
    }

    /// A quantised layer by its name.
    ///
    /// Raises QuantloomError if there is none, with the names that exist, or if its tensors contradict its
    /// configuration.
    fn layer(&self, name: &str) -> PyResult<Layer> {
        match self.checkpoint.layer(name) {
            Ok(layer) => Ok(Layer { layer: layer.clone() }),
            Err(LayerFault::Broken(error)) => Err(of_checkpoint(&error)),
            Err(missing) => Err(raised(missing)),
        }
    }

    /// The software whose format it is: "GPTQ", "GGUF", ...
    #[getter]
    fn format(&self) -> &'static str {
        self.checkpoint.format().name()
    }

    /// Keys of the configuration that are unknown and were ignored, a sentence each.
    #[getter]
    fn notes(&self) -> Vec<&str> {
        self.checkpoint.notes().collect()
    }

    fn __repr__(&self) -> String {
        format!("<quantloom.Checkpoint: {}, {} layers>", self.format(), self.layers().len())
    }
}

/// A quantised layer: what its file stores. It stays usable without its checkpoint.
#[pyclass(frozen, module = "quantloom")]
pub(crate) struct Layer {
    layer: checkpoint::Layer,
}

#[pymethods]
impl Layer {
    /// Its name in the checkpoint.
    #[getter]
    fn name(&self) -> &str {
        self.layer.name()
    }

    /// Its scheme, as the declaration of Quantloom's language.
    #[getter]
    fn scheme(&self) -> String {
        self.layer.scheme().to_string()
    }

    /// The dimensions of the weight: (N, K), or (E, N, K) of E stacked experts.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.dimensions())
    }

    /// Bytes of all its stored tensors.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.layer.bytes()
    }

    /// The kernel that multiplies so many rows of x on a device and why, with the reasons against others. It
    /// prepares the layer for that: call `Prepared.explain` where there is one.
    #[pyo3(signature = (tokens = 1, *, device = "cpu", x = None, accuracy = None))]
    fn explain(
        &self,
        py: Python<'_>,
        tokens: usize,
        device: &str,
        x: Option<&str>,
        accuracy: Option<&str>,
    ) -> PyResult<String> {
        Ok(self.prepare(py, device, x, accuracy)?.explain(tokens))
    }

    /// The weight in float32, [N, K] or [E, N, K]. Decoding is exact and rounds once.
    ///
    /// Raises QuantloomError for codes that their type does not have, and scales that are NaN.
    fn dequantise(&self, py: Python<'_>) -> PyResult<Tensor> {
        let shape = self.layer.shape();
        let (rows, k) = (shape.experts * shape.n, shape.k as usize);
        let decoded = py.detach(|| {
            let unpacked = self.layer.unpack().map_err(raised)?;
            let room = usize::try_from(rows).ok().and_then(|rows| rows.checked_mul(k));
            let memory = room.and_then(|room| Elements::zeros(Element::F32, room));
            let mut memory = memory.ok_or_else(|| raised("there is no memory for the weight"))?;
            if let ValuesMut::F32(values) = memory.values_mut() {
                // Many rows at a time, which threads share.
                for (first, part) in (0..rows).step_by(AT_ONCE).zip(values.chunks_mut(AT_ONCE * k))
                {
                    let end = rows.min(first + AT_ONCE as u64);
                    part.copy_from_slice(&unpacked.decode_rows(first..end));
                }
            }
            PyResult::Ok(memory)
        });
        Ok(Tensor::new(decoded?, self.dimensions()))
    }

    /// Brings the weight into the layout that the kernels of a device read, once. The file may be closed or
    /// removed afterwards. `devices` lists the devices. Other threads of Python run meanwhile.
    ///
    /// With x="bfloat16" (or another type that the scheme lists), x of other types is multiplied as that one, and a GPU
    /// whose products read codes in another order for each type of x holds them once. accuracy="exact" keeps Hopper's
    /// products from rounding weights, where they are faster with one rounding each ("fast").
    ///
    /// Raises QuantloomError if there is no such device, or no kernel on it for this layer, ValueError for a type that the
    /// scheme does not list and for another accuracy.
    #[pyo3(signature = (device = "cpu", *, x = None, accuracy = None))]
    fn prepare(
        &self,
        py: Python<'_>,
        device: &str,
        x: Option<&str>,
        accuracy: Option<&str>,
    ) -> PyResult<Prepared> {
        let mut layer = self.layer.clone();
        if let Some(name) = x {
            let own = Element::named(name)?.format();
            let listed = Activation::Float(Number::Float(own));
            if !layer.scheme().activations.contains(&listed) {
                let scheme = &layer.scheme().name;
                let what = format!("the scheme {scheme} does not list x in {name}");
                return Err(PyValueError::new_err(what));
            }
            layer = layer.with_input(own);
        }
        if let Some(name) = accuracy {
            layer = layer.with_accuracy(accuracy_named(name)?);
        }
        py.detach(|| {
            let device = named(device)?;
            let layer = layer.prepare(&device).map_err(raised)?;
            Ok(Prepared::new(layer, device.name()))
        })
    }

    fn __repr__(&self) -> String {
        let (name, scheme) = (self.layer.name(), &self.layer.scheme().name);
        format!("<quantloom.Layer: {name}, {scheme}, {:?}>", self.dimensions())
    }
}

impl Layer {
    fn dimensions(&self) -> Vec<u64> {
        dimensions(self.layer.scheme(), self.layer.shape())
    }
}

/// The accuracy of a name, as the declaration of a scheme has it.
fn accuracy_named(name: &str) -> PyResult<Accuracy> {
    Accuracy::ALL.into_iter().find(|accuracy| accuracy.name() == name).ok_or_else(|| {
        PyValueError::new_err(format!("accuracy is \"fast\" or \"exact\", not {name:?}"))
    })
}

/// The dimensions of a weight of a scheme.
pub(crate) fn dimensions(scheme: &Scheme, shape: Shape) -> Vec<u64> {
    let Shape { experts, n, k, .. } = shape;
    if scheme.experts.is_some() { vec![experts, n, k] } else { vec![n, k] }
}
