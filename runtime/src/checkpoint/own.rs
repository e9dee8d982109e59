//! Files of `quantloom quantize` whose scheme no other software's configuration can say: the
//! configuration holds the scheme's text and each layer's shape.
//!
//! `{"quant_method": "quantloom", "scheme": TEXT, "layers": {NAME: [E, N, K]}}`

use std::sync::Arc;

use quantloom_dsl::format::Number;
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::{Scheme, Store, default_layout, default_name, parse};
use serde_json::{Map, Value, json};

use super::clause::float_name;
use super::layer::{LayerError, Recognised};
use super::{CheckpointError, Found, Source};

pub(super) fn layers(source: &Source<'_>) -> Result<Found, CheckpointError> {
    let fields = source.fields;
    let text = fields.needed("scheme", fields.text("scheme")?)?;
    let scheme = parse(text).map_err(|faults| {
        let first = faults.faults().first().map_or("", |fault| fault.message.as_str());
        fields.fault(format!("`scheme` is not valid: {first}"))
    })?;
    let text: Arc<str> = text.into();
    let layers = fields.needed("layers", fields.object("layers")?)?;
    let found = layers.object.iter().map(|(layer, value)| {
        let size = |at: usize| value.as_array().and_then(|sizes| sizes.get(at)?.as_u64());
        let recognised = match (size(0), size(1), size(2)) {
            (Some(experts), Some(n), Some(k)) => {
                let shape = Shape { experts, n, k };
                with_bias(source, layer, &scheme)
                    .map(|own| Recognised::new(own.unwrap_or_else(|| text.clone()), shape))
            }
            _ => Err(LayerError::new(layer, "`layers` does not give [E, N, K]").into()),
        };
        (layer.clone(), recognised)
    });
    Ok(found.collect())
}

/// The scheme with a bias, where a layer keeps one that the scheme does not know.
fn with_bias(
    source: &Source<'_>,
    layer: &str,
    scheme: &Scheme,
) -> Result<Option<Arc<str>>, CheckpointError> {
    let known = scheme.bias.is_some() || scheme.experts.is_some();
    let Some(bias) = source.tensor(layer, "bias").filter(|_| !known) else { return Ok(None) };
    let number = Number::from_name(float_name(layer, "bias", bias.dtype())?);
    let mut scheme = scheme.clone();
    scheme.bias = number;
    scheme.stores.push(Store {
        name: default_name(Component::Bias),
        owner: Component::Bias,
        layout: default_layout(Component::Bias),
    });
    Ok(Some(scheme.to_string().into()))
}

/// The configuration of a file.
pub(super) fn config(scheme: &Scheme, layers: &[(String, Shape)]) -> Map<String, Value> {
    let shape = |shape: &Shape| json!([shape.experts, shape.n, shape.k]);
    let layers: Map<String, Value> =
        layers.iter().map(|(name, of)| (name.clone(), shape(of))).collect();
    let mut config = Map::new();
    config.insert("quant_method".to_owned(), Value::from("quantloom"));
    config.insert("scheme".to_owned(), Value::from(scheme.to_string()));
    config.insert("layers".to_owned(), Value::Object(layers));
    config
}
