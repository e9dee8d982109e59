//! A whole expert layer of a checkpoint on a device: the experts that tokens choose, and the one that
//! every token meets.

use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::{F32, FloatFormat, Number};
use quantloom_dsl::reference::ReferenceError;
use quantloom_dsl::reference::experts::{Choices, ExpertWeights, LayerReference, ProductInput};
use quantloom_dsl::{Activation, Scheme};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::checkpoint::{
    CheckpointExperts, CheckpointExpertsError, SharedExpert, StoredExperts,
};
use quantloom_runtime::element::{Values, ValuesMut, bf16, f16};
use quantloom_runtime::experts::{
    ExpertCall, ExpertError, ExpertOp, ExpertOptions, Routed, WithProducts,
};
use quantloom_runtime::float_mode::standard;
use quantloom_runtime::op::Workspace;

use super::{Input, narrowed};

/// An expert layer of a checkpoint that a device has prepared.
pub struct PreparedExperts<'c> {
    op: Box<dyn ExpertOp>,
    shared: Option<PreparedShared<'c>>,
}

/// The expert that every token meets.
struct PreparedShared<'c> {
    expert: SharedExpert<'c>,
    weights: SharedWeights,
}

enum SharedWeights {
    /// On the device.
    Op(Box<dyn ExpertOp>),
    /// Not quantised: the host computes with them.
    Float(Vec<ExpertWeights>),
}

impl<'c> PreparedExperts<'c> {
    /// Prepares the experts and the shared one. With `exact` x in f32 is taken as it is, although the
    /// schemes do not list f32.
    ///
    /// # Errors
    /// See [`CheckpointExperts::prepare_with`].
    pub fn new(
        experts: &CheckpointExperts<'c>,
        backend: &dyn Backend,
        options: &ExpertOptions,
        exact: bool,
    ) -> Result<Self, CheckpointExpertsError> {
        let op = prepare(experts, backend, options, exact)?;
        let shared = experts.shared().map(|expert| {
            let layer = expert.layer();
            let weights = match layer.weights() {
                StoredExperts::Quantised(_) => {
                    let options = ExpertOptions::default();
                    SharedWeights::Op(prepare(layer, backend, &options, exact)?)
                }
                StoredExperts::Float(_) => SharedWeights::Float(vec![layer.expert_weights(0)?]),
            };
            Ok(PreparedShared { expert: expert.clone(), weights })
        });
        Ok(Self { op, shared: shared.transpose()? })
    }

    /// The experts that tokens choose.
    pub fn op(&self) -> &dyn ExpertOp {
        &*self.op
    }

    /// The expert that every token meets; `None` if there is none, or if it is not quantised.
    pub fn shared_op(&self) -> Option<&dyn ExpertOp> {
        match &self.shared.as_ref()?.weights {
            SharedWeights::Op(op) => Some(&**op),
            SharedWeights::Float(_) => None,
        }
    }

    /// y [M, H] of x [M, H] in the type of x, widened: with the shared expert's result, if there is one.
    ///
    /// # Errors
    /// See [`ExpertError`].
    pub fn forward(&self, x: &Input, routed: Routed<'_>) -> Result<Vec<f32>, ExpertError> {
        let narrow = narrowed(x);
        let shared = match &self.shared {
            Some(shared) => Some(shared.forward(x, (&narrow).into())?),
            None => None,
        };
        let shared = shared.as_deref().map(Values::F32);
        standard(|| in_own_type(&*self.op, &ExpertCall { x: (&narrow).into(), routed, shared }))
    }
}

impl PreparedShared<'_> {
    /// The expert's result [M, H], times its weights.
    fn forward(&self, x: &Input, narrow: Values<'_>) -> Result<Vec<f32>, ExpertError> {
        let wide: Vec<f32> = x.values.iter().map(|value| *value as f32).collect();
        let weights = self.expert.weights(&wide);
        let ids = vec![0; weights.len()];
        match &self.weights {
            SharedWeights::Op(op) => {
                let routed = Routed::Chosen { ids: &ids, weights: &weights };
                standard(|| op.forward(&ExpertCall { x: narrow, routed, shared: None }))
            }
            SharedWeights::Float(experts) => {
                let Ok(layer) = self.expert.layer().layer() else { return Ok(Vec::new()) };
                let weights = weights.into_iter().map(f64::from).collect();
                let y = float_sums(layer, experts, x, &Choices { ids, weights })?;
                Ok(y.into_iter().map(|value| value as f32).collect())
            }
        }
    }
}

/// y [M, H], not rounded, of experts that are not quantised.
///
/// # Errors
/// See [`LayerReference::forward`].
pub fn float_sums(
    layer: &ExpertLayer,
    weights: &[ExpertWeights],
    x: &Input,
    choices: &Choices,
) -> Result<Vec<f64>, ReferenceError> {
    let exact = ProductInput::Exact;
    sums(
        &LayerReference {
            layer,
            weights,
            map: None,
            gate_up_input: exact,
            down_input: exact,
            dtype: x.own,
        },
        x,
        choices,
    )
}

/// y [M, H] of a layer before it is rounded, so that more can be added.
///
/// # Errors
/// See [`LayerReference::forward`].
pub fn sums(
    reference: &LayerReference<'_>,
    x: &Input,
    choices: &Choices,
) -> Result<Vec<f64>, ReferenceError> {
    let tokens = x.values.len() / reference.layer.hidden as usize;
    let pairs = reference.pairs(tokens, choices)?;
    let z = reference.gate_up(&x.values, &pairs)?;
    let h: Vec<f64> = reference.gate(&z).into_iter().map(|h| x.own.round(h)).collect();
    let parts = reference.down(&h, &pairs)?;
    Ok(reference.combine(&parts, &pairs, tokens, &[]))
}

/// y in the type of x, widened.
fn in_own_type(op: &dyn ExpertOp, call: &ExpertCall<'_>) -> Result<Vec<f32>, ExpertError> {
    let (count, mut workspace) = (call.x.len(), Workspace::default());
    match call.x {
        Values::F32(_) => op.forward(call),
        Values::Bf16(_) => {
            let mut y = vec![bf16::ZERO; count];
            op.forward_into(call, ValuesMut::Bf16(&mut y), &mut workspace)?;
            Ok(y.into_iter().map(bf16::to_f32).collect())
        }
        Values::F16(_) => {
            let mut y = vec![f16::ZERO; count];
            op.forward_into(call, ValuesMut::F16(&mut y), &mut workspace)?;
            Ok(y.into_iter().map(f16::to_f32).collect())
        }
    }
}

fn prepare(
    experts: &CheckpointExperts<'_>,
    backend: &dyn Backend,
    options: &ExpertOptions,
    exact: bool,
) -> Result<Box<dyn ExpertOp>, CheckpointExpertsError> {
    let StoredExperts::Quantised(source) = experts.weights() else {
        return experts.prepare_with(backend, options);
    };
    if !exact {
        return experts.prepare_with(backend, options);
    }
    let source = WithProducts::new(source, |scheme| with_f32(scheme.clone()));
    experts.prepare_source(&source, backend, options)
}

/// Whether x of a type is converted to another one: its schemes list floats, and not this one.
pub fn converts(schemes: [&Scheme; 2], own: FloatFormat) -> bool {
    let of = |scheme: &Scheme| scheme.activation_for(own).and_then(|choice| choice.converted());
    schemes.into_iter().any(|scheme| of(scheme).is_some())
}

/// The scheme with f32 as an alternative for x, unless x is quantised.
fn with_f32(mut scheme: Scheme) -> Scheme {
    if scheme.activation_for(F32).is_some_and(|choice| choice.converted().is_some()) {
        scheme.activations.push(Activation::Float(Number::Float(F32)));
    }
    scheme
}
