//! One recognised layer: scheme, shape and stored tensors, checked for consistency.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use quantloom_dsl::layout::{Component, Field, Fill, Layout, Shape};
use quantloom_dsl::{Scheme, parse};
use safetensors::Dtype;

use super::CheckpointFormat;
use super::config::shortened;
use super::files::{Tensor, Tensors};
use super::keys::{Kind, Table, Use};
use super::write::{element_dtype, tensor_name};
use crate::unpacked::{UnpackError, Unpacked};

/// What is wrong with one layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layer \"{layer}\": {what}")]
pub struct LayerError {
    /// The layer's name.
    pub layer: String,
    /// What is wrong, with what was expected.
    pub what: String,
}

impl LayerError {
    pub(super) fn new(layer: &str, what: impl Into<String>) -> Self {
        Self { layer: layer.to_owned(), what: shortened(what.into()) }
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
pub(super) struct Schemes(HashMap<Arc<str>, Result<Arc<Scheme>, String>>);

impl Schemes {
    /// The scheme of a text, or the text's first error.
    fn parsed(&mut self, text: &Arc<str>) -> Result<Arc<Scheme>, String> {
        let parsed = || match parse(text) {
            Ok(scheme) => Ok(Arc::new(scheme)),
            Err(faults) => Err(faults.faults().first().map_or_else(String::new, |fault| {
                format!("its configuration is not a valid scheme: {}", fault.message)
            })),
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
        let fault = |what: String| LayerError::new(name, what);
        let scheme = schemes.parsed(&recognised.scheme).map_err(fault)?;
        let shape = recognised.shape;
        let mut stores = BTreeMap::new();
        for store in &scheme.stores {
            let full = tensor_name(name, &store.name);
            let tensor = recognised
                .made
                .get(&store.name)
                .or_else(|| tensors.get(&full))
                .ok_or_else(|| fault(format!("the tensor \"{full}\" is missing")))?;
            let bound = scheme
                .bind(store, shape)
                .map_err(|error| fault(format!("the tensor \"{full}\": {error}")))?;
            let expected = bound.dims();
            let found: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
            let elements =
                |dims: &[u64]| dims.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim));
            let same = match recognised.flat {
                true => elements(expected) == elements(&found),
                false => squeezed(expected) == squeezed(&found),
            };
            if !same || tensor.bytes().len() as u64 != bound.bytes() {
                return Err(fault(format!(
                    "the tensor \"{full}\" is {found:?}, a weight of {} x {} x {} takes {expected:?}",
                    shape.experts, shape.n, shape.k
                )));
            }
            let dtype = element_dtype(&scheme, store);
            if !stores_as(dtype, tensor.dtype()) {
                return Err(fault(format!(
                    "the tensor \"{full}\" is of type {:?}, expected {dtype:?}",
                    tensor.dtype()
                )));
            }
            stores.insert(store.name.clone(), tensor.clone());
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
            let row = table.rows.iter().find(|row| row.kind == Kind::Tensor && row.path == [name]);
            let fault = |what: &str| {
                let full = tensor_name(&self.name, name);
                Err(LayerError::new(&self.name, format!("the tensor \"{full}\" {what}")))
            };
            match row.map(|row| (&row.what, row.note)) {
                Some((Use::Used | Use::Harmless | Use::Reported, _)) => {}
                Some((Use::Zeros, note)) => {
                    if tensor.bytes().iter().any(|byte| *byte != 0) {
                        return fault(&format!("is not all zeros, but {note}"));
                    }
                }
                Some((Use::Refused(_), note)) => {
                    return fault(&format!("is not supported: {note}"));
                }
                None => {
                    return fault(
                        "is not read with these settings, and may change the product; if it does \
                         not, take it out of the file",
                    );
                }
            }
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
        let fault = |error: UnpackError| LayerError::new(&self.name, error.to_string());
        for store in &self.scheme.stores {
            self.check_sign_pads(store.name.as_str(), &store.layout)?;
        }
        Unpacked::new(&self.scheme, self.shape, &|name| self.store(name)).map_err(fault)
    }

    /// A code in a wider slot must be sign-extended; other values are not codes.
    fn check_sign_pads(&self, store: &str, layout: &Layout) -> Result<(), LayerError> {
        let Layout::Word { word, fields, inner, .. } = layout else { return Ok(()) };
        let &[
            Field::Bits { component: Component::Code, range: None, .. },
            Field::Pad { fill: Fill::Sign, bits: pad },
        ] = fields.as_slice()
        else {
            return Ok(());
        };
        let bits = self.scheme.weight.code.bits();
        // A longer run ends in another word: that is no slot of one code.
        if word.bits != 8 || !inner.is_empty() || bits + u32::from(pad) != 8 {
            return Ok(());
        }
        let limit = 1i32 << (bits - 1);
        let bytes = self.stores.get(store).map_or(&[][..], Tensor::bytes);
        let wrong = bytes.iter().position(|byte| {
            let value = i32::from(*byte as i8);
            value < -limit || value >= limit
        });
        match wrong {
            None => Ok(()),
            Some(at) => Err(LayerError::new(
                &self.name,
                format!(
                    "the tensor \"{}\" holds {} at position {at}, which is not a {bits}-bit code",
                    tensor_name(&self.name, store),
                    bytes[at] as i8
                ),
            )),
        }
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
