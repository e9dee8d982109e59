//! A layer whose matrices are given: y of the reference, and how far a device's may be from it.

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::reference::{ReferenceError, StaticInput};
use quantloom_runtime::experts::{ExpertError, ExpertOp, ExpertProduct, ExpertSource};

use super::expected::{Element, Expecting, LayerMagnitudes, Rounding, routed};
use super::matrices::{LayerMatrices, Matrix};

/// A layer whose matrices are given, all experts.
pub struct GivenLayer<'a> {
    layer: &'a ExpertLayer,
    schemes: [&'a Scheme; 2],
    matrices: LayerMatrices,
    /// The static parameters, by product: [expert][shard].
    inputs: [Vec<Vec<StaticInput>>; 2],
}

/// The experts of a call: ids [M, k] and router weights [M, k].
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// Ids; below 0: no expert.
    pub ids: &'a [i32],
    /// Router weights.
    pub weights: &'a [f32],
}

impl<'a> GivenLayer<'a> {
    /// The layer that an op has prepared of a source, without an expert map. Schemes are those of the op.
    ///
    /// # Errors
    /// What the source says of a matrix, and the reference of its numbers.
    pub fn new(op: &'a dyn ExpertOp, source: &dyn ExpertSource) -> Result<Self, ExpertError> {
        let (layer, schemes) = (op.layer(), op.schemes());
        let mut inputs = [Vec::new(), Vec::new()];
        let mut matrix = |product: ExpertProduct, at: usize, expert: u32, shard: u32| {
            let unpacked = source.matrix(product, expert, shard)?;
            let of_expert: &mut Vec<Vec<StaticInput>> = &mut inputs[at];
            of_expert.resize(of_expert.len().max(expert as usize + 1), Vec::new());
            of_expert[expert as usize].push(unpacked.input(0));
            Ok::<_, ExpertError>(Matrix::new(schemes[at], unpacked.plain())?)
        };
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for expert in 0..layer.experts {
            let shards = 0..layer.gate.shards() as u32;
            let shards = shards.map(|shard| matrix(ExpertProduct::GateUp, 0, expert, shard));
            gate_up.push(shards.collect::<Result<Vec<_>, _>>()?);
            down.push(matrix(ExpertProduct::Down, 1, expert, 0)?);
        }
        Ok(Self { layer, schemes, matrices: LayerMatrices { gate_up, down }, inputs })
    }

    /// y [M, H] of x [M, H] in a type, before y is rounded to that type, and the largest error of the op. `shared` is
    /// the result [M, H] of experts that every token meets, which is added; empty without one.
    ///
    /// # Errors
    /// What the reference says of x or h.
    pub fn expected(
        &self,
        op: &dyn ExpertOp,
        (x, own): (&[f64], FloatFormat),
        choice: Choice<'_>,
        shared: &[f64],
    ) -> Result<Vec<Element>, ReferenceError> {
        let tokens = x.len() / (self.layer.hidden as usize).max(1);
        let (a, pairs) = routed(self.layer, (None, own), x, (choice.ids, choice.weights));
        let magnitudes = LayerMagnitudes::new(self.schemes, &self.matrices)?;
        let expecting = Expecting {
            schemes: self.schemes,
            layer: self.layer,
            matrices: &self.matrices,
            magnitudes: &magnitudes,
            own,
            rounding: Rounding::of(op, (own, own), tokens),
            inputs: self.inputs.clone(),
        };
        expecting.y(&a, &pairs, shared)
    }
}
