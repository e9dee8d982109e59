//! Matrices of normal numbers of an expert layer: what measurements and printed kernels need of one.

use anyhow::Result;
use quantloom::dsl::experts::{ExpertLayer, ExpertProduct};
use quantloom::dsl::format::{FloatFormat, Number};
use quantloom::dsl::layout::Shape;
use quantloom::dsl::{Activation, Scheme};
use quantloom::runtime::experts::{ExpertError, ExpertOptions, ExpertSource};
use quantloom::runtime::unpacked::Unpacked;

use super::bench::{normal_weight, own_type};

/// The options of a layer with all experts here, and with a score bias of 0 where its routing has one.
pub(crate) fn options(layer: &ExpertLayer) -> ExpertOptions {
    let mut options = ExpertOptions::default();
    options.score_bias = layer.routing.bias.then(|| vec![0.0; layer.experts as usize]);
    options
}

/// Matrices of a layer, the same few for all experts: each expert has a place of its own in a
/// prepared layer.
pub(crate) struct RandomExperts {
    pub(crate) scheme: Scheme,
    /// The type of x.
    pub(crate) own: FloatFormat,
    /// The shards of the first product, and that of the second.
    pub(crate) matrices: [Vec<Unpacked>; 2],
}

impl RandomExperts {
    /// Those of a scheme, for x of one type.
    pub(crate) fn new(scheme: &Scheme, layer: &ExpertLayer) -> Result<Self> {
        let own = own_type(scheme);
        let mut dense = Scheme { experts: None, ..scheme.clone() };
        // With one type of x, so that the weight is there once.
        dense.activations.retain(|activation| {
            *activation == Activation::Float(Number::Float(own)) || scheme.activations.len() == 1
        });
        let shards = |count: u64, (n, k)| -> Result<Vec<Unpacked>> {
            let shape = Shape::matrix(n, k);
            let matrix = |shard| {
                let packed = normal_weight(&dense, shape, shard)?;
                let stored = |name: &str| packed.get(name).map(Vec::as_slice);
                Ok(Unpacked::new(&dense, shape, &stored)?)
            };
            (0..count).map(matrix).collect()
        };
        let (hidden, intermediate) = (layer.hidden, layer.intermediate);
        let of_gate = layer.gate.shards() as u64;
        let matrices =
            [shards(of_gate, (intermediate, hidden))?, shards(1, (hidden, intermediate))?];
        Ok(Self { scheme: dense, own, matrices })
    }

    /// The bytes of an expert, from those of its matrices.
    pub(crate) fn expert_bytes(&self, layer: &ExpertLayer, bytes: [u64; 2]) -> u64 {
        bytes[0] * layer.gate.shards() as u64 + bytes[1]
    }
}

impl ExpertSource for RandomExperts {
    fn scheme(&self, _: ExpertProduct) -> &Scheme {
        &self.scheme
    }

    fn matrix(&self, product: ExpertProduct, _: u32, shard: u32) -> Result<Unpacked, ExpertError> {
        let [gate_up, down] = &self.matrices;
        Ok(match product {
            ExpertProduct::GateUp => gate_up[shard as usize].clone(),
            ExpertProduct::Down => down[0].clone(),
        })
    }
}
