//! Quantised experts as a source of matrices: a layer of the checkpoint for each matrix, or a stack for
//! each product. One matrix at a time is unpacked.

use std::sync::Arc;

use quantloom_dsl::reference::experts::{ExpertWeights, Matrix};
use quantloom_dsl::{Experts, Scheme};

use super::super::Layer;
use super::ExpertSizes;
use crate::experts::{ExpertError, ExpertProduct, ExpertSource};
use crate::unpacked::{UnpackError, Unpacked, shard_of_stack, straddling};

/// The quantised matrices of all experts.
#[derive(Clone, Debug)]
pub struct QuantisedExperts<'c> {
    schemes: Box<[Scheme; 2]>,
    stored: Stored<'c>,
}

#[derive(Clone, Debug)]
enum Stored<'c> {
    /// By expert: the shards of the first product, and the second.
    Separate { gate_up: Vec<Vec<&'c Layer>>, down: Vec<&'c Layer> },
    /// All experts together.
    Stacked { gate_up: &'c Layer, down: &'c Layer, sizes: ExpertSizes },
}

impl<'c> QuantisedExperts<'c> {
    /// At least one expert with at least one shard.
    pub(super) fn separate(gate_up: Vec<Vec<&'c Layer>>, down: Vec<&'c Layer>) -> Self {
        let schemes = [gate_up[0][0], down[0]].map(|layer| layer.scheme().clone());
        Self { schemes: Box::new(schemes), stored: Stored::Separate { gate_up, down } }
    }

    pub(super) fn stacked(
        gate_up: &'c Layer,
        down: &'c Layer,
        sizes: ExpertSizes,
    ) -> Result<Self, UnpackError> {
        if let Some(error) = straddling(gate_up.scheme(), gate_up.shape()) {
            return Err(error);
        }
        let alone = |layer: &Layer| Scheme { experts: None, ..layer.scheme().clone() };
        let schemes = [alone(gate_up), alone(down)];
        Ok(Self { schemes: Box::new(schemes), stored: Stored::Stacked { gate_up, down, sizes } })
    }

    /// The same matrices in products of other schemes, which have the same stored tensors.
    pub(super) fn with_products(self, changed: impl Fn(&Scheme) -> Scheme) -> Self {
        Self { schemes: Box::new(self.schemes.each_ref().map(changed)), ..self }
    }

    /// The schemes of the first and of the second product, without `experts`.
    pub fn schemes(&self) -> [&Scheme; 2] {
        self.schemes.each_ref()
    }

    /// The layers of the checkpoint that they are.
    pub fn layers(&self) -> impl Iterator<Item = &'c Layer> + '_ {
        let (separate, stacked) = match &self.stored {
            Stored::Separate { gate_up, down } => (Some((gate_up, down)), None),
            Stored::Stacked { gate_up, down, .. } => (None, Some([*gate_up, *down])),
        };
        let separate = separate
            .into_iter()
            .flat_map(|(gate_up, down)| gate_up.iter().flatten().chain(down).copied());
        separate.chain(stacked.into_iter().flatten())
    }

    /// How gate and up are stored together; `None` if each is a tensor of its own.
    pub fn shards(&self) -> Option<Experts> {
        match &self.stored {
            Stored::Separate { .. } => None,
            Stored::Stacked { gate_up, .. } => gate_up.scheme().experts,
        }
    }

    /// The matrices of an expert, rounded to `f32`.
    pub(super) fn reals(&self, expert: u32) -> Result<ExpertWeights, ExpertError> {
        let shards = match &self.stored {
            Stored::Separate { gate_up, .. } => gate_up.first().map_or(0, Vec::len),
            Stored::Stacked { sizes, .. } => sizes.shards,
        };
        let matrix = |product, shard| {
            let weight = self.matrix(product, expert, shard)?;
            let values = weight.decode_rows(0..weight.shape().n);
            Ok::<_, ExpertError>(Matrix {
                values: values.into_iter().map(f64::from).collect(),
                bias: weight.bias().unwrap_or_default().to_vec(),
            })
        };
        let gate_up = (0..shards as u32).map(|shard| matrix(ExpertProduct::GateUp, shard));
        let gate_up = gate_up.collect::<Result<_, _>>()?;
        Ok(ExpertWeights { gate_up, down: matrix(ExpertProduct::Down, 0)? })
    }
}

impl ExpertSource for QuantisedExperts<'_> {
    fn scheme(&self, product: ExpertProduct) -> &Scheme {
        product.of(&self.schemes)
    }

    fn matrix(
        &self,
        product: ExpertProduct,
        expert: u32,
        shard: u32,
    ) -> Result<Unpacked, ExpertError> {
        let none = UnpackError::NoShard { expert: expert.into(), shard: shard.into() };
        match &self.stored {
            Stored::Separate { gate_up, down } => {
                let at = expert as usize;
                let layer = match product {
                    ExpertProduct::GateUp => gate_up.get(at).and_then(|of| of.get(shard as usize)),
                    ExpertProduct::Down => down.get(at).filter(|_| shard == 0),
                };
                layer.ok_or(none)?.unpack().map_err(|error| ExpertError::Source(Arc::new(error)))
            }
            Stored::Stacked { gate_up, down, .. } => {
                let layer = match product {
                    ExpertProduct::GateUp => gate_up,
                    ExpertProduct::Down => down,
                };
                let stored = |name: &str| layer.store(name);
                let at = (expert.into(), shard.into());
                Ok(shard_of_stack(layer.scheme(), layer.shape(), &stored, at)?)
            }
        }
    }
}
