//! One recognised layer: scheme, shape and stored tensors, checked for consistency.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::{BindError, Shape};
use quantloom_dsl::{Accuracy, Diagnostics, Scheme, parse};
use safetensors::Dtype;

use super::CheckpointFormat;
use super::config::shortened;
use super::files::{Tensor, Tensors};
use super::keys::{RefusedKey, RowSubject, Table, Use};
use super::write::{element_dtype, tensor_name};
use crate::backend::Backend;
use crate::op::ProductError;
use crate::prepared::PreparedLayer;
use crate::unpacked::{UnpackError, Unpacked};
use crate::weight_data::WeightData;

/// What is wrong with one layer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("layer \"{layer}\": {problem}")]
#[non_exhaustive]
pub struct LayerError {
    /// The layer's name.
    pub layer: String,
    /// What is wrong.
    pub problem: Box<LayerProblem>,
}

/// What may be wrong with a layer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerProblem {
    /// A tensor is not there.
    #[error("the tensor \"{0}\" is missing")]
    MissingTensor(String),
    /// The scheme's layout of a tensor does not fit the layer's shape.
    #[error("the tensor \"{tensor}\": {error}")]
    Layout {
        /// The tensor.
        tensor: String,
        /// What does not fit.
        error: BindError,
    },
    /// A tensor has other dimensions than the layer's shape asks for.
    #[error(
        "the tensor \"{tensor}\" is {found:?}, a weight of {} x {} x {} takes {expected:?}",
        shape.experts, shape.n, shape.k
    )]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        found: Vec<u64>,
        /// Those that the scheme's layout has.
        expected: Vec<u64>,
        /// The layer's shape.
        shape: Shape,
    },
    /// A tensor's elements are of another type.
    #[error("the tensor \"{tensor}\" is of type {found:?}, expected {expected:?}")]
    ElementType {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: Dtype,
        /// The type that the scheme stores.
        expected: Dtype,
    },
    /// A tensor is of a type that no scheme of the format stores.
    #[error("`{tensor}` is of type {found:?}, expected {expected}")]
    TensorType {
        /// The tensor, without the layer's name.
        tensor: String,
        /// Its type.
        found: Dtype,
        /// The types that the format has.
        expected: &'static str,
    },
    /// A tensor has other dimensions than the format.
    #[error("`{tensor}` is {found:?}, expected {expected}")]
    TensorShape {
        /// The tensor, without the layer's name.
        tensor: String,
        /// Its dimensions.
        found: Vec<usize>,
        /// Those that the format has.
        expected: &'static str,
    },
    /// A tensor of the layer that its scheme does not take, and that may change the product.
    #[error("the tensor \"{tensor}\" {why}")]
    OtherTensor {
        /// The tensor.
        tensor: String,
        /// Why the layer is not read without it.
        why: OtherTensor,
    },
    /// The configuration excludes the layer from quantisation, and the layer stores quantised tensors.
    #[error("`{key}` names the layer, but the layer stores quantised tensors")]
    Excluded {
        /// The key that excludes the layer.
        key: &'static str,
    },
    /// The configuration has no settings for the layer: where they would be.
    #[error("{0}")]
    Unlisted(&'static str),
    /// A key of the layer's settings is refused, since the product may be another one by it.
    #[error(transparent)]
    Refused(RefusedKey),
    /// The number of the type of a GGUF file's tensor is not known.
    #[error("ggml's type {0} is not known")]
    UnknownGgmlType(u32),
    /// There is no scheme for the type of a GGUF file's tensor.
    #[error("{name} is not supported: {why}")]
    GgmlType {
        /// The type's name.
        name: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// What the configuration says of the layer is no valid scheme; displays the first mistake.
    #[error("its configuration is not a valid scheme: {}", first(.0))]
    Scheme(Arc<Diagnostics>),
    /// The configuration is valid, and this version has no reader for it: what, for a person. To a program all of these
    /// are one case: another format or another version may store or read the layer.
    #[error("{0}")]
    Unsupported(String),
    /// What the configuration says of the layer is incomplete, or contradicts itself or the tensors: what,
    /// for a person. To a program all of these are one case: the file is broken.
    #[error("{0}")]
    Inconsistent(String),
    /// The stored tensors cannot be unpacked.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// A device cannot prepare the layer.
    #[error(transparent)]
    Product(#[from] ProductError),
}

/// Why a layer is not read without a tensor that its scheme does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OtherTensor {
    /// It could be left out if it were all zeros: why.
    #[error("is not all zeros, but {0}")]
    NotZeros(&'static str),
    /// It is known to change the product: how.
    #[error("is not supported: {0}")]
    Refused(&'static str),
    /// Its meaning is not known.
    #[error(
        "is not read with these settings, and may change the product; if it does not, take it out of the \
         file"
    )]
    Unknown,
}

/// The message of the first mistake, shortened.
fn first(faults: &Diagnostics) -> String {
    let first = faults.faults().first();
    shortened(first.map_or_else(String::new, |fault| fault.message.clone()))
}

impl LayerError {
    /// A configuration without a reader.
    pub(super) fn unsupported(layer: &str, what: impl Into<String>) -> Self {
        Self::of(layer, LayerProblem::Unsupported(shortened(what.into())))
    }

    /// A configuration that contradicts itself or the tensors.
    pub(super) fn inconsistent(layer: &str, what: impl Into<String>) -> Self {
        Self::of(layer, LayerProblem::Inconsistent(shortened(what.into())))
    }

    /// A tensor whose elements are of a type that the format does not have.
    pub(super) fn of_type(layer: &str, tensor: &str, found: Dtype, expected: &'static str) -> Self {
        Self::of(layer, LayerProblem::TensorType { tensor: tensor.to_owned(), found, expected })
    }

    /// A tensor of dimensions that the format does not have.
    pub(super) fn of_shape(
        layer: &str,
        tensor: &str,
        found: &[usize],
        expected: &'static str,
    ) -> Self {
        let (tensor, found) = (tensor.to_owned(), found.to_vec());
        Self::of(layer, LayerProblem::TensorShape { tensor, found, expected })
    }

    /// A layer that a key excludes from quantisation.
    pub(super) fn excluded(layer: &str, key: &'static str) -> Self {
        Self::of(layer, LayerProblem::Excluded { key })
    }

    pub(super) fn of(layer: &str, problem: impl Into<LayerProblem>) -> Self {
        Self { layer: layer.to_owned(), problem: Box::new(problem.into()) }
    }

    pub(super) fn missing(layer: &str, tensor: String) -> Self {
        Self::of(layer, LayerProblem::MissingTensor(tensor))
    }
}

/// What a format's reader returns for a layer: the scheme as text, and the shape.
pub(super) struct Recognised {
    pub(super) scheme: Arc<str>,
    pub(super) shape: Shape,
    /// Tensors that are not in the file as the scheme stores them, by store name: they are computed
    /// from the file's tensors.
    pub(super) made: BTreeMap<String, Tensor>,
    /// Whether the file stores tensors as flat lists of elements, without their dimensions.
    pub(super) flat: bool,
}

impl Recognised {
    /// A layer whose tensors the file stores as the scheme says.
    pub(super) fn new(scheme: impl Into<Arc<str>>, shape: Shape) -> Self {
        Self { scheme: scheme.into(), shape, made: BTreeMap::new(), flat: false }
    }
}

/// Schemes by their text: the layers of one configuration share them.
#[derive(Default)]
pub(super) struct Schemes(HashMap<Arc<str>, Result<Arc<Scheme>, LayerProblem>>);

impl Schemes {
    /// The scheme of a text, or the text's first error.
    fn parsed(&mut self, text: &Arc<str>) -> Result<Arc<Scheme>, LayerProblem> {
        let parsed = || match parse(text) {
            Ok(scheme) => Ok(Arc::new(scheme)),
            Err(faults) => Err(LayerProblem::Scheme(Arc::new(faults))),
        };
        self.0.entry(text.clone()).or_insert_with(parsed).clone()
    }
}

/// A quantised layer of a checkpoint.
#[derive(Clone, Debug)]
pub struct Layer {
    name: String,
    format: CheckpointFormat,
    scheme: Arc<Scheme>,
    shape: Shape,
    stores: BTreeMap<String, Tensor>,
}

impl Layer {
    pub(super) fn assemble(
        name: &str,
        format: CheckpointFormat,
        recognised: Recognised,
        schemes: &mut Schemes,
        tensors: &Tensors,
    ) -> Result<Self, LayerError> {
        let Recognised { scheme, shape, made, flat } = recognised;
        let scheme = schemes.parsed(&scheme).map_err(|problem| LayerError::of(name, problem))?;
        let stored = |store: &str| {
            made.get(store).or_else(|| tensors.get(&tensor_name(name, store))).cloned()
        };
        Self::checked(name, format, scheme, shape, flat, &stored)
    }

    /// A layer whose tensors the program has from elsewhere than a checkpoint: `stored` gives the tensor
    /// of a store of the scheme by its name. They are compared with the scheme and the shape.
    ///
    /// # Errors
    /// A tensor that is missing or of another type or size; a shape that the scheme's layouts do not
    /// fit.
    pub fn from_tensors(
        name: &str,
        scheme: &Scheme,
        shape: Shape,
        stored: impl Fn(&str) -> Option<Tensor>,
    ) -> Result<Self, LayerError> {
        let scheme = Arc::new(scheme.clone());
        Self::checked(name, CheckpointFormat::Quantloom, scheme, shape, false, &stored)
    }

    /// [`Layer::from_tensors`] of bytes alone, as [`pack`](crate::pack::pack) makes them: their type and
    /// dimensions are those that the scheme's layouts have.
    ///
    /// # Errors
    /// As there.
    pub fn from_bytes(
        name: &str,
        scheme: &Scheme,
        shape: Shape,
        stored: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<Self, LayerError> {
        Self::from_tensors(name, scheme, shape, |store| {
            let bytes = stored(store)?;
            let store = scheme.stores.iter().find(|known| known.name == store)?;
            let bound = scheme.bind(store, shape);
            let dims = bound.iter().flat_map(|bound| bound.dims()).map(|size| *size as usize);
            Some(Tensor::new(element_dtype(scheme, store), dims.collect(), bytes))
        })
    }

    /// A layer with all tensors of its scheme; `flat` ones are rows of elements without dimensions.
    fn checked(
        name: &str,
        format: CheckpointFormat,
        scheme: Arc<Scheme>,
        shape: Shape,
        flat: bool,
        stored: &dyn Fn(&str) -> Option<Tensor>,
    ) -> Result<Self, LayerError> {
        let mut stores = BTreeMap::new();
        for store in &scheme.stores {
            let full = || tensor_name(name, &store.name);
            let tensor = stored(&store.name).ok_or_else(|| LayerError::missing(name, full()))?;
            let bound = scheme.bind(store, shape).map_err(|error| {
                LayerError::of(name, LayerProblem::Layout { tensor: full(), error })
            })?;
            let expected = bound.dims();
            let found: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
            let elements =
                |dims: &[u64]| dims.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim));
            let same = match flat {
                true => elements(expected) == elements(&found),
                false => squeezed(expected) == squeezed(&found),
            };
            if !same || tensor.bytes().len() as u64 != bound.bytes() {
                let (tensor, expected) = (full(), expected.to_vec());
                let problem = LayerProblem::Dimensions { tensor, found, expected, shape };
                return Err(LayerError::of(name, problem));
            }
            let (expected, found) = (element_dtype(&scheme, store), tensor.dtype());
            if !stores_as(expected, found) {
                let problem = LayerProblem::ElementType { tensor: full(), found, expected };
                return Err(LayerError::of(name, problem));
            }
            stores.insert(store.name.clone(), tensor);
        }
        Ok(Self { name: name.to_owned(), format, scheme, shape, stores })
    }

    /// Checks that tensors of the layer that its scheme does not use cannot change the product.
    pub(super) fn check_other_tensors(
        &self,
        table: &Table,
        tensors: &Tensors,
    ) -> Result<(), LayerError> {
        for (name, tensor) in tensors.of_layer(&self.name) {
            // A layer without a name contains all tensors, and sublayers are not part of it.
            if name.contains('.') || self.stores.contains_key(name) {
                continue;
            }
            let row = table
                .rows
                .iter()
                .find(|row| row.subject == RowSubject::Tensor && row.path == [name]);
            let why = match row.map(|row| (&row.what, row.note)) {
                Some((Use::Used | Use::Harmless | Use::Reported, _)) => continue,
                Some((Use::Zeros, _)) if tensor.bytes().iter().all(|byte| *byte == 0) => continue,
                Some((Use::Zeros, note)) => OtherTensor::NotZeros(note),
                Some((Use::Refused(_), note)) => OtherTensor::Refused(note),
                None => OtherTensor::Unknown,
            };
            let tensor = tensor_name(&self.name, name);
            return Err(LayerError::of(&self.name, LayerProblem::OtherTensor { tensor, why }));
        }
        Ok(())
    }

    /// Name in the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The software that wrote it.
    pub fn format(&self) -> CheckpointFormat {
        self.format
    }

    /// Its scheme.
    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The bytes of its stored tensors by store name.
    pub fn stores(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.stores.iter().map(|(name, tensor)| (name.as_str(), tensor.bytes()))
    }

    /// The bytes of a stored tensor by its store's name; `None` if the scheme has no such store.
    pub fn store(&self, name: &str) -> Option<&[u8]> {
        self.stores.get(name).map(Tensor::bytes)
    }

    /// Bytes of all its stored tensors.
    pub fn bytes(&self) -> u64 {
        self.stores().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Unpacks the codes into plain codes and decodes scales, zero points and shifts.
    ///
    /// # Errors
    /// Codes that do not fit their type, NaN scales, a group index beyond the groups.
    pub fn unpack(&self) -> Result<Unpacked, LayerError> {
        let unpacked = Unpacked::new(&self.scheme, self.shape, &|name| self.store(name));
        unpacked.map_err(|error| LayerError::of(&self.name, error))
    }

    /// What a device prepares.
    pub fn data(&self) -> WeightData<'_> {
        WeightData::stored(&self.scheme, self.shape, |name| self.store(name))
    }

    /// The same layer with x in one float type alone, if its scheme lists that: x in other types is converted to it. A device
    /// holds codes once for each order in which products with different types of x read them: on NVIDIA's GPUs MXFP4 and NVFP4 twice with
    /// x in bf16 and f16, on Hopper int4 in groups of 32 too. With one type they are there once.
    #[must_use]
    pub fn with_input(&self, own: FloatFormat) -> Self {
        Self { scheme: Arc::new(self.scheme.with_input(own)), ..self.clone() }
    }

    /// The same layer with products of this accuracy. By [`Accuracy::Fast`] kernels for Hopper may round each weight once when they
    /// multiply it with its scale; [`PreparedLayer::explain`] says so.
    #[must_use]
    pub fn with_accuracy(&self, accuracy: Accuracy) -> Self {
        Self { scheme: Arc::new(self.scheme.with_accuracy(accuracy)), ..self.clone() }
    }

    /// Brings the weight into the layout that the kernels of a device read. A device that takes stored
    /// tensors as they are does not look at their values: a scale that is NaN makes results NaN.
    ///
    /// # Errors
    /// What [`Layer::unpack`] finds, where the host unpacks; [`LayerProblem::Product`] for what the
    /// device says.
    pub fn prepare(&self, device: &(impl Backend + ?Sized)) -> Result<PreparedLayer, LayerError> {
        self.prepare_data(&self.data(), device)
    }

    /// The same with what belongs to the layer besides.
    pub(crate) fn prepare_data(
        &self,
        data: &WeightData<'_>,
        device: &(impl Backend + ?Sized),
    ) -> Result<PreparedLayer, LayerError> {
        data.prepare(device).map_err(|error| match error {
            ProductError::Pack(error) => LayerError::of(&self.name, *error),
            error => LayerError::of(&self.name, error),
        })
    }
}

/// Dimensions without those of size 1: writers differ in the shape of a vector.
pub(super) fn squeezed(dims: &[u64]) -> Vec<u64> {
    dims.iter().copied().filter(|size| *size != 1).collect()
}

/// Whether a file's element type can store what the scheme declares.
fn stores_as(expected: Dtype, found: Dtype) -> bool {
    let raw = |dtype: Dtype| match dtype {
        Dtype::F8_E8M0 | Dtype::U8 | Dtype::I8 => Some(8),
        Dtype::U16 | Dtype::I16 => Some(16),
        Dtype::U32 | Dtype::I32 => Some(32),
        Dtype::U64 | Dtype::I64 => Some(64),
        _ => None,
    };
    expected == found || raw(expected).is_some() && raw(expected) == raw(found)
}
