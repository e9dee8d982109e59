//! Where a device gets the matrices of an expert layer: one at a time, so that the host needs memory
//! for one.

use quantloom_dsl::Scheme;
pub use quantloom_dsl::experts::ExpertProduct;

use super::error::ExpertError;
use crate::unpacked::Unpacked;

/// The matrices of a layer.
pub trait ExpertSource {
    /// The scheme of a product's matrices, with `experts: single`.
    fn scheme(&self, product: ExpertProduct) -> &Scheme;

    /// One matrix: of expert 0 to L - 1, shard 0 (gate) or 1 (up). [`ExpertProduct::Down`] has shard 0
    /// alone. Its own scales, zero points, bias and static parameters of the input come with it.
    ///
    /// # Errors
    /// What the stored tensors have wrong.
    fn matrix(
        &self,
        product: ExpertProduct,
        expert: u32,
        shard: u32,
    ) -> Result<Unpacked, ExpertError>;
}

/// The matrices of a layer in memory.
#[derive(Clone, Debug)]
pub struct ExpertMatrices {
    schemes: [Scheme; 2],
    /// `[expert][shard]`.
    gate_up: Vec<Vec<Unpacked>>,
    /// `[expert]`.
    down: Vec<Unpacked>,
}

impl ExpertMatrices {
    /// The shards of the first product and the second matrix, `[expert][shard]` and `[expert]`, each
    /// of one expert. `None` if there is no expert or no shard.
    pub fn new(gate_up: Vec<Vec<Unpacked>>, down: Vec<Unpacked>) -> Option<Self> {
        let first = gate_up.first()?.first()?.scheme().clone();
        let schemes = [first, down.first()?.scheme().clone()];
        Some(Self { schemes, gate_up, down })
    }
}

impl ExpertSource for ExpertMatrices {
    fn scheme(&self, product: ExpertProduct) -> &Scheme {
        match product {
            ExpertProduct::GateUp => &self.schemes[0],
            ExpertProduct::Down => &self.schemes[1],
        }
    }

    fn matrix(
        &self,
        product: ExpertProduct,
        expert: u32,
        shard: u32,
    ) -> Result<Unpacked, ExpertError> {
        let at = expert as usize;
        let matrix = match product {
            ExpertProduct::GateUp => {
                self.gate_up.get(at).and_then(|shards| shards.get(shard as usize))
            }
            ExpertProduct::Down => self.down.get(at).filter(|_| shard == 0),
        };
        let missing = ExpertError::Length {
            what: "the source of experts",
            expected: u64::from(expert) + 1,
            found: self.down.len() as u64,
        };
        matrix.cloned().ok_or(missing)
    }
}
