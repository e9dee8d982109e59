//! From the matrices of a layer to stacks.
//!
//! In: a description, a source of matrices, options. Out: [`CpuExperts`]. Each matrix is asked for once
//! and dropped when it is packed.

use std::sync::Arc;

use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::reference::StaticInput;
use quantloom_dsl::{INPUT_DTYPES, Quantiser, Scheme};

use super::super::decoder::{Decoder, LutDecoder};
use super::super::device::CpuDevice;
use super::super::quantiser::RowQuantiser;
use super::super::weight::CpuWeight;
use super::op::CpuExperts;
use super::stack::Stack;
use crate::buffer::{AlignedBuffer, SharedLines};
use crate::experts::{
    ExpertError, ExpertOptions, ExpertProduct, ExpertSource, ExpertsNotScheduled, InputScales,
    QuantiserRule, check_bias, take_largest,
};
use crate::op::ProductError;

impl CpuExperts {
    /// Packs the matrices of a layer for a device.
    ///
    /// # Errors
    /// [`ExpertError::Layer`]; those of the source; [`ExpertError::Length`] for a map or a bias of
    /// another length than E; [`ExpertError::Shape`] and [`ExpertError::Scheme`] for a matrix that is
    /// not the layer's; [`ExpertError::NotScheduled`] for an activation whose scales are over some
    /// neighbouring rows.
    pub fn new(
        device: CpuDevice,
        layer: &ExpertLayer,
        weights: &dyn ExpertSource,
        options: &ExpertOptions,
    ) -> Result<Self, ExpertError> {
        layer.check()?;
        check_bias(layer, options.score_bias.as_deref().unwrap_or_default())?;
        let local = match &options.map {
            None => layer.experts as usize,
            Some(map) if map.places().len() == layer.experts as usize => map.local(),
            Some(map) => {
                let (expected, found) = (u64::from(layer.experts), map.places().len() as u64);
                return Err(ExpertError::Length { what: "the expert map", expected, found });
            }
        };
        let stack = |product: ExpertProduct| {
            let scheme = weights.scheme(product);
            check_quantisers(scheme, product)?;
            let decoder = match device.decoder(&scheme.weight.code) {
                Some(decoder) => Decoder::Known(decoder),
                None => {
                    tracing::warn!(
                        scheme = scheme.name,
                        code = %scheme.weight,
                        "no decoder is generated for these codes: products look each of them up in \
                         a table, which is slow"
                    );
                    Decoder::Table(LutDecoder::new(&scheme.weight.code))
                }
            };
            let shards = match product {
                ExpertProduct::GateUp => layer.gate.shards(),
                ExpertProduct::Down => 1,
            };
            let mut matrices = Vec::with_capacity(local * shards);
            let mut memory = CodeMemory::new(local * shards);
            for at in 0..local * shards {
                let (expert, shard) = ((at / shards) as u32, (at % shards) as u32);
                let matrix = ExpertMatrix { layer, product, expert, shard };
                let mut matrix = matrix.pack(device, &decoder, scheme, weights)?;
                memory.take(&mut matrix);
                matrices.push(matrix);
            }
            memory.give(&mut matrices);
            if options.input_scales == InputScales::Largest
                && let Some(quantiser) = scheme.quantiser()
            {
                let inputs = matrices.iter_mut().filter_map(CpuWeight::input_mut);
                take_largest(quantiser, &mut inputs.collect::<Vec<_>>());
            }
            Ok::<_, ExpertError>(Stack::new(scheme, shards, matrices))
        };
        let stacks = [stack(ExpertProduct::GateUp)?, stack(ExpertProduct::Down)?];
        Ok(Self::of(*layer, device, local, stacks, options))
    }
}

/// The codes of all matrices of a product in one memory, which is in large pages: the codes of one
/// expert are often shorter than such a page.
struct CodeMemory {
    matrices: usize,
    memory: AlignedBuffer,
    /// First lines of the matrices that were taken, and the end of the last one.
    bounds: Vec<usize>,
}

impl CodeMemory {
    fn new(matrices: usize) -> Self {
        Self { matrices, memory: AlignedBuffer::default(), bounds: vec![0] }
    }

    /// Moves the codes of the next matrix.
    fn take(&mut self, matrix: &mut CpuWeight) {
        let codes = matrix.native().code_lines();
        let first = self.bounds.last().copied().unwrap_or(0);
        let end = first + codes.len();
        if end * 64 > self.memory.len() {
            // Matrices of one scheme and shape are of one size, if their columns are in order.
            let left = self.matrices + 1 - self.bounds.len();
            let mut more = AlignedBuffer::zeroed((first + left * codes.len()) * 64);
            more.lines_mut()[..first].copy_from_slice(&self.memory.lines()[..first]);
            self.memory = more;
        }
        self.memory.lines_mut()[first..end].copy_from_slice(codes);
        self.bounds.push(end);
        matrix.native_mut().set_codes(SharedLines::default());
    }

    /// Gives each matrix its codes.
    fn give(self, matrices: &mut [CpuWeight]) {
        let memory = Arc::new(self.memory);
        for (matrix, bounds) in matrices.iter_mut().zip(self.bounds.windows(2)) {
            matrix.native_mut().set_codes(SharedLines::part(&memory, bounds[0]..bounds[1]));
        }
    }
}

/// Which matrix of an expert layer is packed.
struct ExpertMatrix<'a> {
    layer: &'a ExpertLayer,
    product: ExpertProduct,
    expert: u32,
    shard: u32,
}

impl ExpertMatrix<'_> {
    fn pack(
        &self,
        device: CpuDevice,
        decoder: &Decoder,
        scheme: &Scheme,
        weights: &dyn ExpertSource,
    ) -> Result<CpuWeight, ExpertError> {
        let Self { layer, product, expert, shard } = *self;
        let matrix = weights.matrix(product, expert, shard)?;
        let (n, k) = match product {
            ExpertProduct::GateUp => (layer.intermediate, layer.hidden),
            ExpertProduct::Down => (layer.hidden, layer.intermediate),
        };
        let shape = matrix.shape();
        if (shape.experts, shape.n, shape.k) != (1, n, k) {
            let (found_n, found_k) = (shape.experts * shape.n, shape.k);
            return Err(ExpertError::Shape { product, expert, shard, n, k, found_n, found_k });
        }
        CpuWeight::new(device, decoder.clone(), scheme, &matrix).map_err(|error| match error {
            ProductError::Scheme(clause) => ExpertError::Scheme { product, expert, shard, clause },
            error => error.into(),
        })
    }
}

/// Refuses a quantiser that is not computed expert by expert as the reference computes it.
fn check_quantisers(scheme: &Scheme, product: ExpertProduct) -> Result<(), ExpertError> {
    let refused = |rule| {
        let scheme = scheme.name.clone();
        Err(ExpertsNotScheduled::Quantiser { product, scheme, rule }.into())
    };
    for own in INPUT_DTYPES {
        let Some(quantiser) = scheme.activation_for(own).and_then(|choice| choice.quantiser())
        else {
            continue;
        };
        let some_rows = |quantiser: &Quantiser| {
            let some = |rows: GroupSize| matches!(rows, GroupSize::Each(2..));
            quantiser.scales.iter().any(|level| !level.stored && some(level.group.rows))
        };
        if some_rows(quantiser) {
            return refused(QuantiserRule::NeighbouringRows);
        }
        let given = StaticInput::default();
        let alone = RowQuantiser::new(scheme, quantiser, &given, own).is_none();
        if alone && quantiser.spans_tokens() {
            return refused(QuantiserRule::AllRowsInside);
        }
    }
    Ok(())
}
