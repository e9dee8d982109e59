//! Layers with an explicit scheme, for files without a configuration: finds their tensors and their
//! shape.

use std::collections::BTreeSet;
use std::path::Path;

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::{GroupSize, Shape};

use super::layer::squeezed;
use super::{
    Checkpoint, CheckpointError, CheckpointFormat, Layer, LayerError, Options, Recognised, Schemes,
    Tensors, having, models, tensor_name,
};

/// The scheme of a layer, given by the caller.
#[derive(Clone, Debug)]
pub struct ExplicitScheme {
    /// The scheme, whose stores name the tensors.
    pub scheme: Scheme,
    /// The layer's name, the prefix of the tensors' names; `None` if only one layer has all tensors
    /// of the scheme.
    pub layer: Option<String>,
    /// N and K; `None` if the tensors' dimensions allow only one shape.
    pub shape: Option<(u64, u64)>,
}

/// Why a layer whose scheme the caller gives cannot be made out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExplicitSchemeError {
    /// No layer has all tensors of the scheme.
    #[error("no layer has all tensors of the scheme {scheme}, which are named {}", tensors.join(", "))]
    NoLayer {
        /// The scheme's name.
        scheme: String,
        /// Its stores.
        tensors: Vec<String>,
    },
    /// Several layers have them, and the caller names none.
    #[error(
        "{} layers have the tensors of the scheme {scheme}, such as {}; --layer names one",
        layers.len(), first_two(layers)
    )]
    SeveralLayers {
        /// The scheme's name.
        scheme: String,
        /// The layers, two at least.
        layers: Vec<String>,
    },
    /// The tensors' dimensions fit no shape.
    #[error(
        "the tensors of the layer \"{layer}\" do not determine its shape; give it with --shape NxK"
    )]
    NoShape {
        /// The layer.
        layer: String,
    },
    /// The tensors' dimensions fit several shapes.
    #[error(
        "the tensors of the layer \"{layer}\" may be of the shape {}x{} as well as {}x{}: --shape NxK \
         says which",
        shapes[0].0, shapes[0].1, shapes[1].0, shapes[1].1
    )]
    SeveralShapes {
        /// The layer.
        layer: String,
        /// N and K of two of them.
        shapes: [(u64, u64); 2],
    },
}

fn first_two(layers: &[String]) -> String {
    layers.iter().take(2).map(|layer| format!("\"{layer}\"")).collect::<Vec<_>>().join(" and ")
}

impl Checkpoint {
    /// [`Checkpoint::open_with`], with an explicit scheme for a layer, which replaces the
    /// configuration's.
    ///
    /// # Errors
    /// As [`Checkpoint::open_with`], except that the configuration may be missing; a layer or a
    /// shape that the tensors do not determine.
    pub fn open_with_scheme(
        path: impl AsRef<Path>,
        options: Options,
        told: &ExplicitScheme,
    ) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let tensors = Tensors::open_as(path, options.access)?;
        let mut checkpoint = match Self::new(tensors.clone(), Some(path), options) {
            Err(CheckpointError::NoConfig(_)) => {
                let (format, notes, layers) = (CheckpointFormat::Quantloom, Vec::new(), Vec::new());
                let model = models::find(Some(path), &tensors, None)?;
                let path = Some(path.to_owned());
                Self { path, tensors, config: None, model, format, notes, layers }
            }
            other => other?,
        };
        let layer = told.layer(&checkpoint.tensors)?;
        if checkpoint.layers.is_empty() {
            checkpoint.format = CheckpointFormat::Quantloom;
        }
        checkpoint.layers.retain(|(name, _)| *name != layer.name());
        checkpoint.layers.push((layer.name().to_owned(), Ok(layer)));
        checkpoint.layers.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(checkpoint)
    }
}

impl ExplicitScheme {
    fn layer(&self, tensors: &Tensors) -> Result<Layer, CheckpointError> {
        let name = match &self.layer {
            Some(name) => name.clone(),
            None => self.only_layer(tensors)?,
        };
        let shape = self.shape(&name, tensors)?;
        let recognised = Recognised::new(self.scheme.to_string(), shape);
        let mut schemes = Schemes::default();
        Ok(Layer::assemble(&name, CheckpointFormat::Quantloom, recognised, &mut schemes, tensors)?)
    }

    /// The only layer that has all tensors of the scheme.
    fn only_layer(&self, tensors: &Tensors) -> Result<String, CheckpointError> {
        let names: Vec<&str> = self.scheme.stores.iter().map(|store| store.name.as_str()).collect();
        let whole = |layer: &String| {
            names.iter().all(|name| tensors.get(&tensor_name(layer, name)).is_some())
        };
        let first = names.first().copied().unwrap_or("weight");
        let found: Vec<String> = having(tensors, first).into_iter().filter(whole).collect();
        match found.as_slice() {
            [only] => Ok(only.clone()),
            [] => {
                let tensors = names.into_iter().map(str::to_owned).collect();
                Err(ExplicitSchemeError::NoLayer { scheme: self.scheme.name.clone(), tensors }
                    .into())
            }
            _ => {
                let scheme = self.scheme.name.clone();
                Err(ExplicitSchemeError::SeveralLayers { scheme, layers: found }.into())
            }
        }
    }

    /// The given shape, with the matching number of experts; or the only possible shape.
    fn shape(&self, layer: &str, tensors: &Tensors) -> Result<Shape, CheckpointError> {
        let mut stored = Vec::new();
        for store in &self.scheme.stores {
            let name = tensor_name(layer, &store.name);
            let missing = || LayerError::missing(layer, name.clone());
            stored.push((store, tensors.get(&name).ok_or_else(missing)?));
        }
        let dims: BTreeSet<u64> =
            stored.iter().flat_map(|(_, t)| t.shape()).map(|size| *size as u64).collect();
        let fits = |shape: Shape| {
            stored.iter().all(|(store, tensor)| {
                let found: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
                self.scheme.bind(store, shape).is_ok_and(|bound| {
                    bound.bytes() == tensor.bytes().len() as u64
                        && squeezed(bound.dims()) == squeezed(&found)
                })
            })
        };
        let experts: Vec<u64> = match self.scheme.experts {
            Some(_) => dims.iter().copied().chain([1]).collect(),
            None => vec![1],
        };
        if let Some((n, k)) = self.shape {
            let shapes = experts.iter().map(|experts| Shape { experts: *experts, n, k });
            let fallback = Shape { experts: 1, n, k };
            // A given shape that does not fit is rejected with an error that shows what fits.
            return Ok(shapes.clone().find(|shape| fits(*shape)).unwrap_or(fallback));
        }
        let sizes = self.sizes(&dims);
        let mut found = Vec::new();
        for experts in experts {
            for n in &sizes {
                for k in &sizes {
                    let shape = Shape { experts, n: *n, k: *k };
                    if fits(shape) {
                        found.push(shape);
                        // Partly filled words and groups are not visible from outside.
                        let near = [(n - 1, *k), (*n, k - 1)].map(|(n, k)| Shape { n, k, ..shape });
                        found.extend(near.into_iter().filter(|near| fits(*near)));
                    }
                }
            }
        }
        let layer = layer.to_owned();
        match found.as_slice() {
            [only] => Ok(*only),
            [] => Err(ExplicitSchemeError::NoShape { layer }.into()),
            [first, second, ..] => {
                let shapes = [(first.n, first.k), (second.n, second.k)];
                Err(ExplicitSchemeError::SeveralShapes { layer, shapes }.into())
            }
        }
    }

    /// Candidates for N and K: dimensions, and their products with the sizes of words and groups.
    fn sizes(&self, dims: &BTreeSet<u64>) -> BTreeSet<u64> {
        let scales = self.scheme.scales.iter().map(|scale| scale.group);
        let granularity = scales.flat_map(|group| [group.rows, group.cols]);
        let granularity = granularity.filter_map(|group_size| match group_size {
            GroupSize::Each(count) => Some(u64::from(count)),
            GroupSize::All => None,
        });
        let factors: BTreeSet<u64> = granularity.chain([1, 2, 4, 8, 16, 32, 64]).collect();
        let sizes = dims.iter().flat_map(|dim| factors.iter().map(move |by| dim.checked_mul(*by)));
        sizes.flatten().filter(|size| *size > 0).collect()
    }
}
