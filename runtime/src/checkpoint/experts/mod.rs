//! Expert layers of a checkpoint: the matrices of all experts, the router and the description together.
//!
//! In: the dense layers and stacks that the formats recognised, and the model's configuration. Out:
//! [`CheckpointExperts`], checked: each expert has the same matrices, of the same schemes and sizes.
//! `names` finds the layers, `collect` their matrices; a device gets the matrices one at a time from
//! `quantised`. What is not quantised is in `float`, for comparison with the reference.

mod assemble;
mod collect;
mod compare;
mod error;
mod float;
mod local;
mod names;
mod quantised;
mod router;

use quantloom_dsl::experts::{ExpertLayer, Routing, Score};
use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::reference::experts::ExpertWeights;
use quantloom_dsl::{Accuracy, Scheme};

pub use error::{CheckpointExpertsError, ExpertsProblem};
pub use float::FloatExperts;
pub(crate) use names::of_expert;
pub use quantised::QuantisedExperts;
pub use router::{Router, SharedExpert};

use super::Checkpoint;
use crate::backend::Backend;
use crate::experts::{ExpertOp, ExpertOptions, ExpertProduct, ExpertSource};
use assemble::assemble;
use local::LocalExperts;

/// The metadata key whose value is the text of every expert layer of a file.
pub const LAYER_TEXT_KEY: &str = "expert_layer";

/// An expert layer of a checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointExperts<'c> {
    name: String,
    sizes: ExpertSizes,
    described: Result<ExpertLayer, CheckpointExpertsError>,
    weights: StoredExperts<'c>,
    router: Result<Router<'c>, ExpertsProblem>,
    score_bias: Option<Vec<f32>>,
    shared: Option<Box<SharedExpert<'c>>>,
    missing_shared: Option<String>,
}

/// The sizes of the stored matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertSizes {
    /// E.
    pub experts: u32,
    /// H.
    pub hidden: u64,
    /// I.
    pub intermediate: u64,
    /// s.
    pub shards: usize,
}

/// The matrices of an expert layer as they are stored.
#[derive(Clone, Debug)]
pub enum StoredExperts<'c> {
    /// By a scheme.
    Quantised(QuantisedExperts<'c>),
    /// As floats.
    Float(FloatExperts<'c>),
}

impl Checkpoint {
    /// The expert layers by name, `model.layers.0.mlp.experts`: quantised ones, and those of floats.
    pub fn expert_layers(
        &self,
    ) -> impl Iterator<Item = (String, Result<CheckpointExperts<'_>, CheckpointExpertsError>)> {
        names::expert_layers(self).into_iter().map(|name| {
            let found = assemble(self, &name, None);
            (name, found)
        })
    }

    /// One expert layer, as the model's configuration describes it, or the file's metadata under
    /// [`LAYER_TEXT_KEY`].
    ///
    /// # Errors
    /// [`ExpertsProblem`]: the names of those that exist, or what is wrong with this one.
    pub fn expert_layer(
        &self,
        name: &str,
    ) -> Result<CheckpointExperts<'_>, CheckpointExpertsError> {
        self.named_experts(name, None)
    }

    /// The same as the caller describes it, whatever the files say.
    ///
    /// # Errors
    /// As [`Checkpoint::expert_layer`].
    pub fn expert_layer_as(
        &self,
        name: &str,
        layer: &ExpertLayer,
    ) -> Result<CheckpointExperts<'_>, CheckpointExpertsError> {
        self.named_experts(name, Some(layer))
    }

    fn named_experts(
        &self,
        name: &str,
        layer: Option<&ExpertLayer>,
    ) -> Result<CheckpointExperts<'_>, CheckpointExpertsError> {
        let known = names::expert_layers(self);
        if !known.contains(name) {
            let known = known.into_iter().collect();
            return Err(CheckpointExpertsError::of(name, ExpertsProblem::NoLayer { known }));
        }
        assemble(self, name, layer)
    }
}

impl<'c> CheckpointExperts<'c> {
    /// Its name in the checkpoint, the prefix of the experts' names.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same layer with x and h in one float type alone, as [`Layer::with_input`](super::Layer::with_input) says. Experts of
    /// floats stay as they are.
    #[must_use]
    pub fn with_input(self, own: FloatFormat) -> Self {
        self.with_products(|scheme| scheme.with_input(own))
    }

    /// The same layer with products of this accuracy, as [`Layer::with_accuracy`](super::Layer::with_accuracy) says. Experts
    /// of floats stay as they are.
    #[must_use]
    pub fn with_accuracy(self, accuracy: Accuracy) -> Self {
        self.with_products(|scheme| scheme.with_accuracy(accuracy))
    }

    fn with_products(self, changed: impl Fn(&Scheme) -> Scheme) -> Self {
        let weights = match self.weights {
            StoredExperts::Quantised(experts) => {
                StoredExperts::Quantised(experts.with_products(changed))
            }
            floats @ StoredExperts::Float(_) => floats,
        };
        Self { weights, ..self }
    }

    /// The sizes of the stored matrices, which are those of the description if there is one.
    pub fn sizes(&self) -> ExpertSizes {
        self.sizes
    }

    /// The description.
    ///
    /// # Errors
    /// The files do not describe it, or the description is not valid: [`Checkpoint::expert_layer_as`]
    /// takes one from the caller.
    pub fn layer(&self) -> Result<&ExpertLayer, CheckpointExpertsError> {
        self.described.as_ref().map_err(Clone::clone)
    }

    /// The matrices as they are stored.
    pub fn weights(&self) -> &StoredExperts<'c> {
        &self.weights
    }

    /// The schemes of the first and of the second product, without `experts`; `None` if the weights are
    /// floats.
    pub fn schemes(&self) -> Option<[&Scheme; 2]> {
        match &self.weights {
            StoredExperts::Quantised(experts) => Some(experts.schemes()),
            StoredExperts::Float(_) => None,
        }
    }

    /// The same as they are stored: a stack says how its shards are stored.
    pub fn stored_schemes(&self) -> Option<[&'c Scheme; 2]> {
        match &self.weights {
            StoredExperts::Quantised(experts) => {
                Some([experts.layers().next()?.scheme(), experts.layers().last()?.scheme()])
            }
            StoredExperts::Float(_) => None,
        }
    }

    /// The names of the layers of the checkpoint that it consists of, if they are quantised.
    pub fn members(&self) -> impl Iterator<Item = &'c str> + '_ {
        let layers = match &self.weights {
            StoredExperts::Quantised(experts) => Some(experts.layers()),
            StoredExperts::Float(_) => None,
        };
        layers.into_iter().flatten().map(|layer| layer.name())
    }

    /// Bytes of the stored tensors of its matrices.
    pub fn bytes(&self) -> u64 {
        match &self.weights {
            StoredExperts::Quantised(experts) => experts.layers().map(|layer| layer.bytes()).sum(),
            StoredExperts::Float(experts) => experts.bytes(),
        }
    }

    /// The router, if the checkpoint has it.
    ///
    /// # Errors
    /// [`ExpertsProblem::NoRouter`], [`ExpertsProblem::QuantisedRouter`], [`ExpertsProblem::Router`]. Callers
    /// that choose experts themselves do not need a router.
    pub fn router(&self) -> Result<&Router<'c>, CheckpointExpertsError> {
        let problem =
            |problem: &ExpertsProblem| CheckpointExpertsError::of(&self.name, problem.clone());
        self.router.as_ref().map_err(problem)
    }

    /// The score bias `[E]`, if the checkpoint has it.
    pub fn score_bias(&self) -> Option<&[f32]> {
        self.score_bias.as_deref()
    }

    /// The expert that every token meets, if the checkpoint has one.
    pub fn shared(&self) -> Option<&SharedExpert<'c>> {
        self.shared.as_deref()
    }

    /// The name of the shared expert, if the model's configuration has one and the files do not: their layer is that of the
    /// chosen experts alone, as files of a single layer may be.
    pub fn missing_shared(&self) -> Option<&str> {
        self.missing_shared.as_deref()
    }

    /// The matrices of an expert as reals; those of quantised ones are rounded to `f32`.
    ///
    /// # Errors
    /// What the stored tensors have wrong.
    pub fn expert_weights(&self, expert: u32) -> Result<ExpertWeights, CheckpointExpertsError> {
        match &self.weights {
            StoredExperts::Quantised(experts) => {
                experts.reals(expert).map_err(|error| CheckpointExpertsError::of(&self.name, error))
            }
            StoredExperts::Float(experts) => Ok(experts.reals(expert)),
        }
    }

    /// Brings the layer into the layout that the kernels of a device read, with the checkpoint's score
    /// bias.
    ///
    /// # Errors
    /// [`ExpertsProblem::Float`], [`ExpertsProblem::NotDescribed`]; what the stored tensors have wrong;
    /// what the device says.
    pub fn prepare(
        &self,
        device: &(impl Backend + ?Sized),
    ) -> Result<Box<dyn ExpertOp>, CheckpointExpertsError> {
        self.prepare_with(device, &ExpertOptions::default())
    }

    /// The same with options; a score bias in them replaces the checkpoint's.
    ///
    /// # Errors
    /// As [`CheckpointExperts::prepare`].
    pub fn prepare_with(
        &self,
        device: &(impl Backend + ?Sized),
        options: &ExpertOptions,
    ) -> Result<Box<dyn ExpertOp>, CheckpointExpertsError> {
        match &self.weights {
            StoredExperts::Quantised(experts) => self.prepare_source(experts, device, options),
            StoredExperts::Float(experts) => {
                let problem = ExpertsProblem::Float(experts.type_name());
                Err(CheckpointExpertsError::of(&self.name, problem))
            }
        }
    }

    /// The same of the matrices of all experts from another source, such as the checkpoint's own with
    /// another activation.
    ///
    /// # Errors
    /// As [`CheckpointExperts::prepare`].
    pub fn prepare_source(
        &self,
        source: &dyn ExpertSource,
        device: &(impl Backend + ?Sized),
        options: &ExpertOptions,
    ) -> Result<Box<dyn ExpertOp>, CheckpointExpertsError> {
        let fault = |problem: ExpertsProblem| CheckpointExpertsError::of(&self.name, problem);
        let layer = self.layer()?;
        let mut options = options.clone();
        if layer.routing.bias && options.score_bias.is_none() {
            options.score_bias.clone_from(&self.score_bias);
        }
        let local = options.map.as_ref().map(|map| LocalExperts::new(source, map)).transpose();
        let local = local.map_err(fault)?;
        let source = local.as_ref().map_or(source, |local| local as &dyn ExpertSource);
        device.prepare_experts(layer, source, &options).map_err(|error| fault(error.into()))
    }
}

impl ExpertSizes {
    /// A description of these sizes that says the least: top 1 of the softmax.
    fn example(self) -> String {
        let Self { experts, hidden, intermediate, shards } = self;
        let routing = Routing { renormalise: true, ..Routing::new(Score::Softmax) };
        let gate = if shards == 2 { "silu" } else { "ungated relu2" };
        format!("{experts} experts of {hidden} x {intermediate}, top 1, {routing}, {gate}")
    }

    /// N and K of a matrix of a product.
    fn matrix(self, product: ExpertProduct) -> [u64; 2] {
        match product {
            ExpertProduct::GateUp => [self.intermediate, self.hidden],
            ExpertProduct::Down => [self.hidden, self.intermediate],
        }
    }
}
