//! An expert layer from its parts: the description, the experts, and what is beside them.

use std::collections::BTreeSet;
use std::sync::Arc;

use quantloom_dsl::experts::{ExpertLayer, Gate, Routing, Score};

use super::super::models::{ExpertNames, FAMILIES, ModelConfig};
use super::super::{Checkpoint, Tensor, tensor_name};
use super::collect::Collector;
use super::names;
use super::router::{Router, SharedExpert, check_floats, vector};
use super::{
    CheckpointExperts, CheckpointExpertsError, ExpertSizes, ExpertsProblem, LAYER_TEXT_KEY,
};

/// The expert layer of a name. `given` is the caller's description, which replaces that of the files.
pub(super) fn assemble<'c>(
    checkpoint: &'c Checkpoint,
    name: &str,
    given: Option<&ExpertLayer>,
) -> Result<CheckpointExperts<'c>, CheckpointExpertsError> {
    let fault = |problem: ExpertsProblem| CheckpointExpertsError::of(name, problem);
    let family = checkpoint.model.as_ref().and_then(|model| model.family());
    let family = family.map(|family| &family.names);
    let described = match given {
        Some(layer) => {
            layer.check().map_err(|error| fault(error.into()))?;
            Ok(Some(*layer))
        }
        None => described(checkpoint),
    };
    let known = described.as_ref().ok().copied().flatten();
    let experts = Collector { checkpoint, name, single: false, described: known, family };
    let none = || ExpertsProblem::NoLayer { known: Vec::new() };
    let (sizes, weights) = experts.collect().unwrap_or_else(|| Err(none())).map_err(fault)?;
    let described = described.map_err(fault).and_then(|known| {
        let model_type = checkpoint.model.as_ref().map(|model| model.model_type.clone());
        let nothing = || ExpertsProblem::NotDescribed { model_type, example: sizes.example() };
        known.ok_or_else(|| fault(nothing()))
    });
    let beside = Beside { checkpoint, name, names: known_names(family) };
    let router = beside.router(sizes);
    let score_bias = beside.score_bias(sizes).map_err(fault)?;
    let gate = described.as_ref().ok().map(|layer| layer.gate);
    let shared = match gate {
        Some(gate) => beside.shared(gate, sizes.hidden)?.map(Box::new),
        None => None,
    };
    let name = name.to_owned();
    // Without a gate none was looked for.
    let expected = checkpoint.model.as_ref().filter(|_| gate.is_some() && shared.is_none());
    let expected = expected.and_then(ModelConfig::shared_expert);
    let missing_shared = expected.map(|shared| names::beside(&name, shared));
    Ok(CheckpointExperts {
        name,
        sizes,
        described,
        weights,
        router,
        score_bias,
        shared,
        missing_shared,
    })
}

/// What the files say of all expert layers: the metadata's text, else the model's configuration.
fn described(checkpoint: &Checkpoint) -> Result<Option<ExpertLayer>, ExpertsProblem> {
    if let Some(text) = checkpoint.tensors.metadata(LAYER_TEXT_KEY) {
        let parsed = text.parse().map(Some);
        return parsed.map_err(|error| ExpertsProblem::Text { key: LAYER_TEXT_KEY, error });
    }
    let Some(model) = &checkpoint.model else { return Ok(None) };
    model.expert_layer().map_err(|error| ExpertsProblem::Broken(Arc::new(error)))
}

/// The names of the family; of all families if it is not known.
fn known_names(family: Option<&'static ExpertNames>) -> Vec<&'static ExpertNames> {
    match family {
        Some(names) => vec![names],
        None => FAMILIES.iter().map(|family| &family.names).collect(),
    }
}

/// What is beside the experts of a name.
struct Beside<'c, 'n> {
    checkpoint: &'c Checkpoint,
    name: &'n str,
    names: Vec<&'static ExpertNames>,
}

impl<'c> Beside<'c, '_> {
    /// The different names of something, with the module that the experts are a part of.
    fn full(&self, of: impl Fn(&ExpertNames) -> Option<&'static str>) -> BTreeSet<String> {
        let found = self.names.iter().filter_map(|names| of(names));
        found.map(|name| names::beside(self.name, name)).collect()
    }

    fn tensor(&self, name: &str) -> Option<&'c Tensor> {
        self.checkpoint.tensors.get(name)
    }

    /// The router. Callers that route themselves need none, so that what is wrong with a router does not refuse the layer.
    fn router(&self, sizes: ExpertSizes) -> Result<Router<'c>, ExpertsProblem> {
        let names = self.full(|names| Some(names.router));
        let tried: Vec<String> = names.iter().map(|name| tensor_name(name, "weight")).collect();
        if let Some(name) = names.iter().find(|name| self.checkpoint.recognised(name).is_some()) {
            return Err(ExpertsProblem::QuantisedRouter(name.clone()));
        }
        for (name, weight) in names.iter().zip(&tried) {
            let Some(tensor) = self.tensor(weight) else { continue };
            let bias = tensor_name(name, "bias");
            let found = self.tensor(&bias).map(|tensor| (bias.as_str(), tensor));
            let dims = [u64::from(sizes.experts), sizes.hidden];
            return Router::new((weight, tensor), found, dims);
        }
        Err(ExpertsProblem::NoRouter { tried })
    }

    fn score_bias(&self, sizes: ExpertSizes) -> Result<Option<Vec<f32>>, ExpertsProblem> {
        let names = self.full(|names| names.score_bias);
        let found = names.iter().find_map(|name| Some((name, self.tensor(name)?)));
        found.map(|(name, tensor)| vector(name, tensor, sizes.experts.into())).transpose()
    }

    /// The shared expert: a layer of one expert with the same gate.
    fn shared(
        &self,
        gate: Gate,
        hidden: u64,
    ) -> Result<Option<SharedExpert<'c>>, CheckpointExpertsError> {
        for name in self.full(|names| names.shared) {
            let fault = |problem: ExpertsProblem| CheckpointExpertsError::of(&name, problem);
            let one = Collector {
                checkpoint: self.checkpoint,
                name: &name,
                single: true,
                described: None,
                family: self.names.first().copied().filter(|_| self.names.len() == 1),
            };
            let Some(collected) = one.collect() else { continue };
            let (sizes, weights) = collected.map_err(fault)?;
            let layer = ExpertLayer {
                experts: 1,
                hidden: sizes.hidden,
                intermediate: sizes.intermediate,
                top_k: 1,
                routing: Routing { renormalise: true, ..Routing::new(Score::Softmax) },
                gate,
                weight_on_input: false,
            };
            layer.check().map_err(|error| fault(error.into()))?;
            if gate.shards() != sizes.shards {
                let (expected, found) = (gate.shards(), sizes.shards);
                let gate = gate.to_string();
                return Err(fault(ExpertsProblem::Gate { gate, expected, found }));
            }
            if sizes.hidden != hidden {
                let [found, expected] =
                    [sizes.hidden, hidden].map(|hidden| [sizes.intermediate, hidden]);
                let matrix = name.clone();
                return Err(fault(ExpertsProblem::Shape { expert: 0, matrix, found, expected }));
            }
            let gates = self.full(|names| names.shared_gate);
            if let Some(name) = gates.iter().find(|name| self.checkpoint.recognised(name).is_some())
            {
                return Err(fault(ExpertsProblem::QuantisedRouter(name.clone())));
            }
            let gates: Vec<String> = gates.iter().map(|name| tensor_name(name, "weight")).collect();
            let gate = gates.iter().find_map(|name| Some((self.tensor(name)?, name)));
            match (&gate, gates.first()) {
                (Some((tensor, name)), _) => {
                    check_floats(name, tensor, &[1, hidden]).map_err(fault)?;
                }
                // Of the family that the model is of, if that is known.
                (None, Some(name)) if self.names.len() == 1 => {
                    return Err(fault(ExpertsProblem::NoSharedGate(name.clone())));
                }
                (None, _) => {}
            }
            let layer = CheckpointExperts {
                name,
                sizes,
                described: Ok(layer),
                weights,
                router: Err(ExpertsProblem::NoRouter { tried: Vec::new() }),
                score_bias: None,
                shared: None,
                missing_shared: None,
            };
            return Ok(Some(SharedExpert { layer, gate: gate.map(|(tensor, _)| tensor) }));
        }
        Ok(None)
    }
}
