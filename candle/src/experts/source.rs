//! Tensors of candle as the matrices of an expert layer.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor};
use quantloom::dsl::Scheme;
use quantloom::dsl::layout::Shape;
use quantloom::runtime::checkpoint::Layer;
use quantloom::runtime::experts::{
    ExpertError, ExpertLayer, ExpertOptions, ExpertProduct, ExpertSource,
};
use quantloom::runtime::unpacked::Unpacked;

use crate::stored;

/// A stored tensor of a matrix of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertTensor<'a> {
    /// The expert of the model, 0 to E - 1.
    pub expert: u32,
    /// The product.
    pub product: ExpertProduct,
    /// The shard of the first product: 0 is gate, or the only one, 1 is up.
    pub shard: u32,
    /// The name of the tensor in the scheme: `weight_packed`, `weight_scale`.
    pub store: &'a str,
}

impl ExpertTensor<'_> {
    /// The name of its matrix: one of the shards', or that of the second product.
    pub fn matrix<'n>(&self, shards: [&'n str; 2], down: &'n str) -> &'n str {
        match self.product {
            ExpertProduct::GateUp => shards[usize::from(self.shard > 0)],
            ExpertProduct::Down => down,
        }
    }
}

/// Asks for a stored tensor, in the type in which candle has its bits.
type Tensors<'a> = &'a dyn Fn(&ExpertTensor<'_>, DType) -> Result<Tensor>;

/// The matrices of a description whose stored tensors candle has.
pub(super) struct TensorExperts<'a> {
    layer: &'a ExpertLayer,
    schemes: [&'a Scheme; 2],
    /// `[L]`: the experts of the model that are here; all without a map.
    experts: Option<Vec<u32>>,
    tensor: Tensors<'a>,
}

impl<'a> TensorExperts<'a> {
    pub(super) fn new(
        layer: &'a ExpertLayer,
        schemes: [&'a Scheme; 2],
        options: &ExpertOptions,
        tensor: Tensors<'a>,
    ) -> Self {
        let experts = options.map.as_ref().map(|map| {
            let here = |place: usize| {
                let mut places = map.places().iter();
                let found = places.position(|found| usize::try_from(*found) == Ok(place));
                // An empty place is asked for as an expert that the model does not have.
                found.and_then(|expert| u32::try_from(expert).ok()).unwrap_or(u32::MAX)
            };
            (0..map.local()).map(here).collect()
        });
        Self { layer, schemes, experts, tensor }
    }

    fn unpacked(&self, at: &ExpertTensor<'_>) -> Result<Unpacked> {
        let (hidden, intermediate) = (self.layer.hidden, self.layer.intermediate);
        let (n, k) = match at.product {
            ExpertProduct::GateUp => (intermediate, hidden),
            ExpertProduct::Down => (hidden, intermediate),
        };
        let scheme = self.scheme(at.product);
        let tensor = |store: &str, dtype| (self.tensor)(&ExpertTensor { store, ..*at }, dtype);
        let stores = stored::stores(scheme, tensor)?;
        let layer = Layer::from_tensors(&scheme.name, scheme, Shape::matrix(n, k), |name| {
            stores.iter().find(|(store, _)| store == name).map(|(_, tensor)| tensor.clone())
        });
        let unpacked = layer.map_err(candle_core::Error::wrap)?.unpack();
        unpacked.map_err(candle_core::Error::wrap)
    }
}

impl ExpertSource for TensorExperts<'_> {
    fn scheme(&self, product: ExpertProduct) -> &Scheme {
        match product {
            ExpertProduct::GateUp => self.schemes[0],
            ExpertProduct::Down => self.schemes[1],
        }
    }

    fn matrix(
        &self,
        product: ExpertProduct,
        expert: u32,
        shard: u32,
    ) -> std::result::Result<Unpacked, ExpertError> {
        let place = expert as usize;
        let expert = match &self.experts {
            Some(experts) => experts.get(place).copied().unwrap_or(u32::MAX),
            None => expert,
        };
        let at = ExpertTensor { expert, product, shard, store: "" };
        self.unpacked(&at).map_err(|error| ExpertError::Source(Arc::new(error)))
    }
}
