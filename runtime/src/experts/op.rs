//! The operation: y of a whole expert layer, as an engine calls it.

use std::any::Any;

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::{F32, FloatFormat};

use super::error::ExpertError;
use crate::accumulation::{Decoded, Sums};
use crate::buffer::Workspace;
use crate::element::{Values, ValuesMut};

/// Which experts the tokens of a call meet.
#[derive(Clone, Copy, Debug)]
pub enum Routed<'a> {
    /// The router's logits [M, E]; the layer's routing chooses.
    Logits(&'a [f32]),
    /// The caller chose.
    Chosen {
        /// [M, k] in the order of choice; below 0: no expert.
        ids: &'a [i32],
        /// The router weights [M, k].
        weights: &'a [f32],
    },
    /// Rows are sorted by expert already: x and y are [L, most, H], of which each expert has its first
    /// `counts[expert]` rows. There are no router weights; rows beyond a count are neither read nor
    /// written.
    Batched {
        /// `[L]`: rows of each expert, at most `most`.
        counts: &'a [u32],
        /// Rows of x of an expert.
        most: usize,
    },
}

/// What a call gives besides y.
#[derive(Clone, Copy, Debug)]
pub struct ExpertCall<'a> {
    /// [M, H] in `f32`, f16 or bf16.
    pub x: Values<'a>,
    /// Which experts the tokens meet.
    pub routed: Routed<'a>,
    /// The result [M, H] of experts that every token meets, which is added.
    pub shared: Option<Values<'a>>,
}

/// A prepared expert layer, object-safe. It can be asked for its own type (`Any`).
///
/// Threads are those of the rayon pool in which a call is made; a layer may be called from several
/// threads at once, each with a [`Workspace`] of its own.
pub trait ExpertOp: Any + Send + Sync {
    /// The layer.
    fn layer(&self) -> &ExpertLayer;

    /// The schemes of the matrices of the first and of the second product, without `experts`.
    fn schemes(&self) -> [&Scheme; 2];

    /// The kernels of a call with M tokens, in the order of their launches.
    fn kernels(&self, tokens: usize) -> Vec<String>;

    /// The same with reasons, and each way that was rejected with the reason.
    fn explain(&self, tokens: usize) -> String;

    /// How the two products add with M tokens of x in a type.
    fn sums(&self, x: FloatFormat, tokens: usize) -> [Sums; 2];

    /// What the two products decode codes to, with M tokens of x in a type. See
    /// [`Accumulation::decoded`](crate::accumulation::Accumulation::decoded).
    fn decoded(&self, _x: FloatFormat, _tokens: usize) -> [Decoded; 2] {
        [Decoded::default(); 2]
    }

    /// The types to which x and h are rounded before the two products multiply them, for x of a type: their
    /// own, or a narrower float type where the scheme does not list their own or the device has no products
    /// of it. See [`Accumulation::rounds_x`](crate::accumulation::Accumulation::rounds_x).
    fn rounds_x(&self, x: FloatFormat) -> [FloatFormat; 2] {
        [x; 2]
    }

    /// The type to which the parts of a token's experts are rounded before they are added to y of a type, for M
    /// tokens of x of a type: f32, or that of y
    /// ([`ExpertOptions::most_f32_parts`](super::ExpertOptions::most_f32_parts)).
    fn rounds_parts(&self, _x: FloatFormat, _y: FloatFormat, _tokens: usize) -> FloatFormat {
        F32
    }

    /// Bytes of workspace for M tokens: of M alone, whatever experts they meet.
    fn workspace_size(&self, tokens: usize) -> usize;

    /// The experts [M, k] of logits [M, E] and their weights. Where fewer than k are left, the last
    /// ids are -1 with weight 0.
    ///
    /// # Errors
    /// [`ExpertError::Length`], [`ExpertError::NotFinite`].
    fn route(
        &self,
        logits: &[f32],
        ids: &mut [i32],
        weights: &mut [f32],
    ) -> Result<(), ExpertError>;

    /// y [M, H] of a call. With an error, y is untouched or partly written, and never read.
    ///
    /// # Errors
    /// See [`ExpertError`].
    fn forward_into(
        &self,
        call: &ExpertCall<'_>,
        y: ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ExpertError>;
}

impl dyn ExpertOp {
    /// The layer as what a device made it: `gpu::GpuExpertLayer` of an executor. `None` if another device did.
    pub fn downcast_ref<T: ExpertOp>(&self) -> Option<&T> {
        let op: &dyn Any = self;
        op.downcast_ref()
    }

    /// y [M, H] of a call, in a vector of `f32`.
    ///
    /// # Errors
    /// See [`ExpertError`].
    pub fn forward(&self, call: &ExpertCall<'_>) -> Result<Vec<f32>, ExpertError> {
        let mut y = vec![0.0f32; call.x.len()];
        self.forward_into(call, ValuesMut::F32(&mut y), &mut Workspace::default())?;
        Ok(y)
    }
}
