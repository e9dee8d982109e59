//! From a configuration to the description of its expert layers.

use quantloom_dsl::experts::{ExpertGroups, ExpertLayer, Gate, Routing};
use serde_json::Value;

use super::super::CheckpointError;
use super::super::config::Fields;
use super::config::ModelConfig;
use super::{GateSource, ModelFamily, Setting};

/// Activation functions by the names of `hidden_act`: with up, and without.
const GATES: &[(&str, Option<Gate>, Option<Gate>)] = &[
    ("silu", Some(Gate::Silu), Some(Gate::UngatedSilu)),
    ("swish", Some(Gate::Silu), Some(Gate::UngatedSilu)),
    ("gelu", Some(Gate::Gelu), Some(Gate::UngatedGelu)),
    ("gelu_pytorch_tanh", Some(Gate::GeluTanh), Some(Gate::UngatedGeluTanh)),
    ("relu2", None, Some(Gate::UngatedRelu2)),
];

impl ModelConfig {
    /// The description of the model's expert layers; `None` if its family is not known.
    ///
    /// # Errors
    /// A key that is missing, or whose value is not known; numbers that are not a layer.
    pub(in super::super) fn expert_layer(&self) -> Result<Option<ExpertLayer>, CheckpointError> {
        let fields = Fields { object: &self.config.value, place: &self.config.place };
        self.family().map(|family| Reader { family, fields }.layer()).transpose()
    }
}

struct Reader<'a> {
    family: &'static ModelFamily,
    fields: Fields<'a>,
}

impl Reader<'_> {
    fn layer(&self) -> Result<ExpertLayer, CheckpointError> {
        let Self { family, fields } = self;
        let layer = ExpertLayer {
            experts: self.size(family.experts)?,
            hidden: self.size::<u64>(family.hidden)?,
            intermediate: self.size::<u64>(family.intermediate)?,
            top_k: self.size(family.top_k)?,
            routing: self.routing()?,
            gate: self.gate()?,
            weight_on_input: family.weight_on_input,
        };
        layer.check().map_err(|error| {
            fields.fault("model_type", format!("it is not an expert layer: {error}"))
        })?;
        Ok(layer)
    }

    /// The key of a list that is there.
    fn key<'k>(&self, keys: &[&'k str]) -> Option<&'k str> {
        keys.iter().find(|key| self.fields.get(key).is_some()).copied()
    }

    /// A size; the first key of the list that is there has it.
    fn size<T: TryFrom<i64>>(&self, keys: &[&str]) -> Result<T, CheckpointError> {
        let key = self.key(keys).or(keys.first().copied()).unwrap_or_default();
        let value = self.fields.needed(key, self.fields.integer(key)?)?;
        let wrong = |_| self.fields.fault(key, format!("`{key}` is {value}, which is not a size"));
        T::try_from(value).map_err(wrong)
    }

    /// A number, or what is meant without it.
    fn number(&self, keys: &[&str], otherwise: f32) -> Result<f32, CheckpointError> {
        match self.key(keys) {
            Some(key) => Ok(self.fields.number(key)?.map_or(otherwise, |value| value as f32)),
            None => Ok(otherwise),
        }
    }

    fn setting<T: Copy>(&self, setting: Setting<T>) -> Result<T, CheckpointError> {
        let (key, words, otherwise) = match setting {
            Setting::Always(value) => return Ok(value),
            Setting::Key { key, words, otherwise } => (key, words, otherwise),
        };
        let word = match self.fields.get(key) {
            None => return Ok(otherwise),
            Some(Value::String(word)) => word.clone(),
            Some(value) => value.to_string(),
        };
        let known = words.iter().find(|(known, _)| *known == word);
        known.map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
            self.fields
                .fault(key, format!("unknown {key} `{word}`; known are {}", known.join(", ")))
        })
    }

    fn routing(&self) -> Result<Routing, CheckpointError> {
        let family = self.family;
        let renormalise = self.setting(family.renormalise)?;
        let scaled = !(family.scale_or_renormalise && renormalise);
        let scale = match family.scale.filter(|_| scaled) {
            Some(key) => self.number(&[key], 1.0)?,
            None => 1.0,
        };
        Ok(Routing {
            score: self.setting(family.score)?,
            bias: self.setting(family.bias)?,
            groups: self.groups()?,
            renormalise,
            scale,
        })
    }

    fn groups(&self) -> Result<Option<ExpertGroups>, CheckpointError> {
        let Some(([count, keep], counts)) = self.family.groups else { return Ok(None) };
        if !self.setting(counts)? || self.key(&[count, keep]).is_none() {
            return Ok(None);
        }
        let groups = ExpertGroups { count: self.size(&[count])?, keep: self.size(&[keep])? };
        Ok(Some(groups).filter(|groups| *groups != ExpertGroups { count: 1, keep: 1 }))
    }

    fn gate(&self) -> Result<Gate, CheckpointError> {
        let (key, up) = match self.family.gate {
            GateSource::Gated(key) => (key, true),
            GateSource::Ungated(key) => (key, false),
            GateSource::SwigluOai { alpha, limit } => {
                let alpha = self.number(alpha.0, alpha.1)?;
                return Ok(Gate::SwigluOai { alpha, limit: self.number(limit.0, limit.1)? });
            }
        };
        let name = self.fields.needed(key, self.fields.text(key)?)?;
        let known = GATES.iter().find(|(known, ..)| *known == name);
        let gate = known.and_then(|(_, gated, ungated)| if up { *gated } else { *ungated });
        gate.ok_or_else(|| {
            let without = if up { "" } else { " without up" };
            self.fields
                .fault(key, format!("`{key}` is `{name}`, which is not a known gate{without}"))
        })
    }
}
