//! `convert`: a checkpoint's layers into another format, every value kept.
//!
//! In: a checkpoint and a format. Out: a [`ConversionPlan`], which says how the format stores each layer or why it
//! does not; then a file or a folder of that format ([`ConversionPlan::write`]).
//!
//! One mechanism serves all pairs of formats. A layer is unpacked by its own scheme; the format lists the schemes
//! that it may store such a layer by (`checkpoint::storage`), the smallest first; the first of them that holds all
//! values exactly is taken (`recode`). The codes are packed by that scheme's layouts, and the format's own
//! reader has to recognise the same scheme and shape in the tensors. At the end the whole output is read
//! back, and each weight compared with the layer's, bit for bit (`proof`).
//!
//! Names of layers and tensors stay as they are, and so does all that a model does around its layers. Other
//! tensors are copied.

mod exact;
mod inexact;
mod output;
mod proof;
mod recode;
mod stacks;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use quantloom_dsl::format::{BF16, F16, Number};
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::{Accumulate, Activation, Scheme};

use crate::checkpoint::storage::{Storage, StoredLayer, Variant, Wanted, variants};
use crate::checkpoint::{
    Checkpoint, CheckpointFormat, Dtype, GgufTensorLimit, Layer, LayerFault, element_number,
    tensor_name, unwritable_in_gguf,
};
use crate::tensor::float_format;
use crate::unpacked::{UnpackError, Unpacked};

pub use crate::checkpoint::storage::SettingConflict;
pub use inexact::{Inexact, Misread};
pub use output::{ConvertError, Output};
pub use proof::ProofError;

use output::LayerTensors;
use stacks::{Source, parts};

/// What is converted.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvertOptions {
    /// Leave out how x is quantised, so that formats take the layers that do not say it. The weights
    /// are the same; products are then those of x as it is.
    pub weights_only: bool,
}

/// Why a layer or a tensor cannot be converted.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unconvertible {
    /// The layer cannot be read.
    #[error("it cannot be read: {0}")]
    Layer(LayerFault),
    /// The layer's values cannot be read.
    #[error("it cannot be read: {0}")]
    Unpack(Box<UnpackError>),
    /// The format is read and not written.
    #[error("{0} is not written")]
    Format(&'static str),
    /// The layer's format keeps more beside a layer than a conversion would know of.
    #[error("layers of {0} are read and not converted")]
    From(&'static str),
    /// The format stores no such codes.
    #[error("{format} stores {stores}")]
    Codes {
        /// The format.
        format: &'static str,
        /// What it stores.
        stores: &'static str,
    },
    /// The format's layers are matrices, and the names of the stack's are not known.
    #[error(
        "it is a stack of experts, and layers are matrices there: no names of its matrices are known (of stacks \
         `experts.gate_up_proj`, `experts.down_proj`, `experts.w13`, `experts.w2`, `ffn_gate_exps`, `ffn_up_exps`, \
         `ffn_down_exps` they are)"
    )]
    Stack,
    /// The format's nearest scheme does not hold the values.
    #[error("{nearest}: {why}")]
    Inexact {
        /// What the format calls it.
        nearest: String,
        /// Why not.
        why: Box<Inexact>,
    },
    /// The layer differs from others in what the format says of all layers alike.
    #[error(transparent)]
    Apart(SettingConflict),
    /// The format has no such tensor.
    #[error(transparent)]
    Tensor(TensorLimit),
}

/// Why an output cannot have a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorLimit {
    /// GGUF has no type for these elements.
    #[error("ggml has no type for elements of {0:?}")]
    Elements(Dtype),
    /// GGUF has no tensor of this name and these dimensions.
    #[error(transparent)]
    Gguf(#[from] GgufTensorLimit),
    /// A layer's tensor, as the format calls it, and a copied one have one name.
    #[error("another tensor would have this name too")]
    Twice,
    /// What the writer of the output's header says.
    #[error("{0}")]
    Header(String),
}

/// A layer, and how the format stores it. Where the format has no stacks of experts, each matrix of a stack is a layer;
/// where it has some, matrices of experts may be one.
#[derive(Debug)]
pub struct PlannedLayer {
    /// The name.
    pub name: String,
    /// The shape; `None` if the layer cannot be read.
    pub shape: Option<Shape>,
    /// Its scheme.
    pub from: Option<Scheme>,
    /// Bytes of its tensors.
    pub bytes: u64,
    source: Source,
    outcome: Result<Storage, Unconvertible>,
}

impl PlannedLayer {
    /// One whose values are not read.
    fn refused(name: &str, why: Unconvertible) -> Self {
        let (name, source, outcome) = (name.to_owned(), Source::Layer, Err(why));
        Self { name, shape: None, from: None, bytes: 0, source, outcome }
    }

    /// The values, which were read when the plan was made.
    fn values(
        &self,
        checkpoint: &Checkpoint,
        options: ConvertOptions,
    ) -> Result<Unpacked, ConvertError> {
        let names = self.source.layers(&self.name);
        let layers =
            names.iter().map(|name| checkpoint.layer(name)).collect::<Result<Vec<_>, _>>()?;
        let fault =
            |error| ConvertError::Unpack { layer: self.name.clone(), error: Box::new(error) };
        self.source.unpack(&layers, options).map_err(fault)
    }

    /// What the format calls the way in which it stores the layer.
    ///
    /// # Errors
    /// Why it does not.
    pub fn target(&self) -> Result<&str, &Unconvertible> {
        self.outcome.as_ref().map(|storage| storage.label.as_str())
    }

    /// The scheme by which the format stores the layer, if it does.
    pub fn to(&self) -> Option<&Scheme> {
        self.outcome.as_ref().ok().map(|storage| &storage.scheme)
    }
}

/// What a conversion will do.
#[derive(Debug)]
pub struct ConversionPlan<'c> {
    checkpoint: &'c Checkpoint,
    format: CheckpointFormat,
    options: ConvertOptions,
    layers: Vec<PlannedLayer>,
    /// Tensors that are copied.
    copied: Vec<String>,
    /// Those that the format cannot have.
    refused: Vec<(String, Unconvertible)>,
    /// Tensors of layers that their schemes do not have: left out, with the layers that have them.
    left_out: BTreeMap<String, u64>,
    /// The format's configuration.
    config: Option<serde_json::Map<String, serde_json::Value>>,
}

impl<'c> ConversionPlan<'c> {
    /// Looks for the way in which a format stores each layer. `progress` is called with the number of
    /// further weights that are done.
    pub fn new(
        checkpoint: &'c Checkpoint,
        format: CheckpointFormat,
        options: ConvertOptions,
        progress: &dyn Fn(u64),
    ) -> Self {
        let variants = variants(format);
        let mut probed = HashSet::new();
        // Of each variant: the layers.
        let mut found: Vec<Vec<PlannedLayer>> = variants.iter().map(|_| Vec::new()).collect();
        let mut unwritten = Vec::new();
        for part in parts(checkpoint, format, options) {
            let unpacked = part.layers.and_then(|(layers, source)| {
                let fault = |error| Unconvertible::Unpack(Box::new(error));
                let unpacked = source.unpack(&layers, options).map_err(fault)?;
                Ok((source.bytes(&layers), source, unpacked))
            });
            for (variant, found) in variants.iter().zip(&mut found) {
                found.push(planned(&part.name, &unpacked, format, variant, &mut probed));
            }
            if variants.is_empty() {
                let refusal = Unconvertible::Format(format.name());
                unwritten.push(PlannedLayer::refused(&part.name, refusal));
            }
            if let Ok((.., unpacked)) = &unpacked {
                progress(unpacked.shape().elements().unwrap_or(0));
            }
        }
        let (mut copied, beside) = others(checkpoint);
        let not_quantised = not_quantised(checkpoint, format, &copied);
        let mut plans = variants.iter().zip(found).map(|(variant, mut layers)| {
            let config = configured(&mut layers, variant, &not_quantised);
            let missing = layers.iter().filter(|layer| layer.outcome.is_err()).count();
            (missing, layers, config)
        });
        let mut best = plans.next();
        for plan in plans {
            if best.as_ref().is_none_or(|best| plan.0 < best.0) {
                best = Some(plan);
            }
        }
        let (_, layers, mut config) = best.unwrap_or((0, unwritten, None));
        let same = format == checkpoint.format();
        if let (true, Some(config), Some(source)) = (same, &mut config, checkpoint.config()) {
            let of_cache = |key: &str| CACHE_KEYS.contains(&key) && keeps_cache(format);
            let kept = source.value.iter().filter(|(key, _)| of_cache(key));
            config.extend(kept.map(|(key, value)| (key.clone(), value.clone())));
        }
        let mut left_out: BTreeMap<String, u64> = BTreeMap::new();
        for (layer, name) in beside {
            if written(&layers, layer, name) {
                continue;
            }
            // The same format knows what they are, if its configuration still says it.
            if same && (keeps_cache(format) || !CACHE_TENSORS.contains(&name)) {
                copied.push(tensor_name(layer, name));
            } else {
                *left_out.entry(name.to_owned()).or_default() += 1;
            }
        }
        copied.sort();
        let refused = refused(checkpoint, format, &copied);
        let mut plan =
            Self { checkpoint, format, options, layers, copied, refused, left_out, config };
        plan.refused.extend(plan.not_in_a_header());
        plan
    }

    /// The layers, by name.
    pub fn layers(&self) -> &[PlannedLayer] {
        &self.layers
    }

    /// Tensors that are copied, and those of them that the format cannot have.
    pub fn copied(&self) -> (&[String], &[(String, Unconvertible)]) {
        (&self.copied, &self.refused)
    }

    /// Tensors of layers that their schemes do not have, by the last part of their names, with the number of
    /// layers that have one: what their format keeps beside a layer (its shape, zeros, what is of attention's
    /// cache). They are left out, since another format may mean something else by them.
    pub fn left_out(&self) -> impl Iterator<Item = (&str, u64)> {
        self.left_out.iter().map(|(name, layers)| (name.as_str(), *layers))
    }

    /// How many layers and tensors cannot be converted.
    pub fn refusals(&self) -> usize {
        self.layers.iter().filter(|layer| layer.outcome.is_err()).count() + self.refused.len()
    }

    /// The format that will be written.
    pub fn format(&self) -> CheckpointFormat {
        self.format
    }
}

/// A layer's scheme as it is converted.
fn scheme_of(layer: &Layer, options: ConvertOptions) -> Scheme {
    let mut scheme = layer.scheme().clone();
    if options.weights_only && scheme.quantiser().is_some() {
        scheme.activations =
            [BF16, F16].map(|float| Activation::Float(Number::Float(float))).into();
        // Sums of integers are those of quantised x.
        scheme.accumulate = Accumulate::F32;
        let of_x = |component| matches!(component, Component::InputScale(_) | Component::InputZero);
        scheme.stores.retain(|store| !of_x(store.owner));
    }
    scheme
}

/// How a variant of a format stores a layer: its bytes, where they are, its values.
fn planned(
    name: &str,
    layer: &Result<(u64, Source, Unpacked), Unconvertible>,
    format: CheckpointFormat,
    variant: &Variant,
    probed: &mut HashSet<(String, Shape)>,
) -> PlannedLayer {
    let (bytes, source, unpacked) = match layer {
        Ok(layer) => layer,
        Err(refusal) => return PlannedLayer::refused(name, refusal.clone()),
    };
    let outcome = stored(name, unpacked, format, variant, probed);
    let (shape, from) = (Some(unpacked.shape()), Some(unpacked.scheme().clone()));
    let (name, source) = (name.to_owned(), source.clone());
    PlannedLayer { name, shape, from, bytes: *bytes, source, outcome }
}

/// The first way to store a layer that holds its values.
fn stored(
    name: &str,
    unpacked: &Unpacked,
    format: CheckpointFormat,
    variant: &Variant,
    probed: &mut HashSet<(String, Shape)>,
) -> Result<Storage, Unconvertible> {
    let shape = unpacked.shape();
    let mut nearest: Option<(String, Inexact, bool)> = None;
    for mut storage in (variant.storages)(&Wanted { from: unpacked.scheme() }) {
        let same_codes = storage.scheme.weight == unpacked.scheme().weight;
        let held = recode::recode(unpacked, &storage.scheme, storage.whole).and_then(|slots| {
            let middle = storage.middle;
            let middle = middle.is_some_and(|(_, code)| slots.all_are(Component::Zero, code));
            if let Some(misread) = output::unwritable(format, name, shape, &storage) {
                return Err(Inexact::ReadBack(misread));
            }
            let settings = serde_json::Value::Object(storage.settings.clone());
            let key = (format!("{} {settings}", storage.scheme), shape);
            if probed.contains(&key) {
                return Ok(middle);
            }
            let tensors = LayerTensors::new(name, shape, &storage, &slots);
            let tensors =
                tensors.map_err(|error| Inexact::ReadBack(Misread::Pack(Box::new(error))))?;
            let layers = [StoredLayer { name, shape, storage: &storage }];
            let config = (variant.config)(&layers, &[])
                .map_err(|(_, conflict)| Inexact::ReadBack(Misread::Settings(conflict)))?;
            proof::probe(format, &storage, shape, &tensors, config).map_err(Inexact::ReadBack)?;
            probed.insert(key);
            Ok(middle)
        });
        match held {
            Ok(middle) => {
                if let Some((setting, _)) = storage.middle {
                    storage.settings.insert(setting.to_owned(), middle.into());
                }
                return Ok(storage);
            }
            Err(why) => {
                // Of those that came as near, one with the layer's codes, and the largest.
                let rank = |why: &Inexact, same: bool| (why.depth(), same);
                let of = rank(&why, same_codes);
                if nearest.as_ref().is_none_or(|(_, known, same)| of >= rank(known, *same)) {
                    nearest = Some((storage.label, why, same_codes));
                }
            }
        }
    }
    Err(match nearest {
        Some((nearest, why, _)) => {
            let nearest = if why.of_format() { format.name().to_owned() } else { nearest };
            Unconvertible::Inexact { nearest, why: Box::new(why) }
        }
        None => Unconvertible::Codes { format: format.name(), stores: variant.stores },
    })
}

/// The configuration of all layers that are stored; those that cannot be with others are refused.
fn configured(
    layers: &mut [PlannedLayer],
    variant: &Variant,
    others: &[String],
) -> Option<serde_json::Map<String, serde_json::Value>> {
    loop {
        let positions: Vec<usize> =
            (0..layers.len()).filter(|at| layers[*at].outcome.is_ok()).collect();
        let stored: Vec<StoredLayer<'_>> = positions
            .iter()
            .filter_map(|at| {
                let PlannedLayer { name, shape, outcome, .. } = &layers[*at];
                Some(StoredLayer { name, shape: (*shape)?, storage: outcome.as_ref().ok()? })
            })
            .collect();
        match (variant.config)(&stored, others) {
            Ok(config) => return config,
            Err((at, why)) => {
                let at = positions[at];
                layers[at].outcome = Err(Unconvertible::Apart(why));
            }
        }
    }
}

/// The tensors that are not a layer's, and those of layers that their schemes do not have: the layer, and
/// the last part of the name.
fn others(checkpoint: &Checkpoint) -> (Vec<String>, Vec<(&str, &str)>) {
    let mut own = HashSet::new();
    let mut all_beside = Vec::new();
    for (name, layer) in checkpoint.layers() {
        let Ok(layer) = layer else { continue };
        own.extend(layer.stores().map(|(store, _)| tensor_name(name, store)));
        for beside in checkpoint.beside(layer) {
            if own.insert(tensor_name(name, beside)) {
                all_beside.push((name, beside));
            }
        }
    }
    let all = checkpoint.tensors().names().filter(|name| !own.contains(*name));
    (all.map(str::to_owned).collect(), all_beside)
}

/// Whether a layer is written with a tensor of this name; layers are sorted by name.
fn written(layers: &[PlannedLayer], layer: &str, tensor: &str) -> bool {
    let at = layers.partition_point(|planned| planned.name.as_str() < layer);
    let planned = layers.get(at).filter(|planned| planned.name == layer);
    let Some(PlannedLayer { outcome: Ok(storage), shape: Some(shape), .. }) = planned else {
        return false;
    };
    let extras = storage.extras.of(&storage.scheme, layer, *shape);
    storage.scheme.stores.iter().any(|store| store.name == tensor)
        || extras.iter().any(|(entry, _)| entry.name == tensor_name(layer, tensor))
}

/// The copied tensors that a format cannot have.
fn refused(
    checkpoint: &Checkpoint,
    format: CheckpointFormat,
    copied: &[String],
) -> Vec<(String, Unconvertible)> {
    let mut found = Vec::new();
    for name in copied {
        let Some(tensor) = checkpoint.tensors().get(name) else { continue };
        let what = if format == CheckpointFormat::Gguf {
            let dims: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
            match element_number(tensor.dtype()) {
                None => Some(TensorLimit::Elements(tensor.dtype())),
                Some(_) => unwritable_in_gguf(name, &dims).map(TensorLimit::Gguf),
            }
        } else {
            None
        };
        found.extend(what.map(|what| (name.clone(), Unconvertible::Tensor(what))));
    }
    found
}

/// Keys with which configurations say how attention's cache is quantised.
const CACHE_KEYS: [&str; 3] = ["kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_quant_method"];

/// Tensors of layers with the scales of attention's cache.
const CACHE_TENSORS: [&str; 3] = ["k_scale", "v_scale", "kv_scale"];

/// Whether a format says how attention's cache is quantised by [`CACHE_KEYS`]. Quark does so in the settings of
/// layers, which are written anew.
fn keeps_cache(format: CheckpointFormat) -> bool {
    use CheckpointFormat::{CompressedTensors, Fp8, ModelOpt};
    [CompressedTensors, ModelOpt, Fp8].contains(&format)
}

/// Keys with which configurations name the modules that are not quantised.
const EXCLUDING: [&str; 5] =
    ["ignore", "ignored_layers", "modules_to_not_convert", "exclude", "exclude_modules"];

/// The modules that are not quantised, for the configuration: the copied matrices; what the source's own
/// configuration says, patterns only within one format; and the head of a model, whose weight is that of the
/// embedding where the files have none of its own.
fn not_quantised(
    checkpoint: &Checkpoint,
    format: CheckpointFormat,
    copied: &[String],
) -> Vec<String> {
    let mut found = float_matrices(checkpoint, copied);
    let layers: Vec<&str> = checkpoint.layers().map(|(name, _)| name).collect();
    let is_head = |name: &str| name.rsplit('.').next() == Some("lm_head");
    let heads = || layers.iter().copied().chain(found.iter().map(String::as_str));
    if !found.is_empty() && !heads().any(is_head) {
        found.insert("lm_head".to_owned());
    }
    let said = checkpoint.config().into_iter().flat_map(|config| {
        let lists = EXCLUDING.iter().filter_map(|key| config.value.get(*key)?.as_array());
        lists.flatten().filter_map(serde_json::Value::as_str)
    });
    // Some readers look for a name anywhere in that of a layer.
    let plain = |name: &&str| {
        !name.contains(|c: char| "*?[]()^$|+\\:".contains(c))
            && !layers.iter().any(|layer| layer.contains(name))
    };
    let same = format == checkpoint.format();
    found.extend(said.filter(|name| same || plain(name)).map(str::to_owned));
    found.into_iter().collect()
}

/// The names of the copied matrices, without `.weight`: modules that are not quantised.
fn float_matrices(checkpoint: &Checkpoint, copied: &[String]) -> BTreeSet<String> {
    let matrix = |name: &String| {
        let tensor = checkpoint.tensors().get(name)?;
        let float = float_format(tensor.dtype()).is_some() && tensor.shape().len() == 2;
        // Results in test files are no modules.
        let module = name.strip_suffix(".weight").filter(|module| float && *module != "ref")?;
        Some(module.to_owned())
    };
    copied.iter().filter_map(matrix).collect()
}
