//! Quantloom's own format, for schemes that no other software's configuration can describe: the
//! configuration contains the scheme's text, or one text per layer, and each layer's shape.
//!
//! `{"quant_method": "quantloom", "scheme": TEXT, "layers": {NAME: LAYER}}` with a layer
//! `[E, N, K]`, or `{"shape": [E, N, K], "scheme": TEXT}` if its scheme is another.

use std::sync::Arc;

use quantloom_dsl::format::Number;
use quantloom_dsl::layout::{Component, Shape};
use quantloom_dsl::{Scheme, Store, default_layout, default_name, parse};
use serde_json::{Map, Value, json};

use super::clause::float_name;
use super::layer::{LayerError, Recognised};
use super::{CheckpointError, Found, LayerSource};

pub(super) fn layers(source: &LayerSource<'_>) -> Result<Found, CheckpointError> {
    let fields = source.fields;
    let parsed = |text: &str| {
        parse(text).map_err(|faults| {
            let first = faults.faults().first().map_or("", |fault| fault.message.as_str());
            format!("`scheme` is not valid: {first}")
        })
    };
    let common = fields.text("scheme")?;
    let common: Option<(Arc<str>, Scheme)> = match common {
        Some(text) => {
            Some((text.into(), parsed(text).map_err(|what: String| fields.fault("scheme", what))?))
        }
        None => None,
    };
    let layers = fields.needed("layers", fields.object("layers")?)?;
    let found = layers.object.iter().map(|(layer, value)| {
        let fault = |what: String| CheckpointError::from(LayerError::inconsistent(layer, what));
        let recognised = || {
            let sizes = value.get("shape").unwrap_or(value).as_array();
            let size = |at: usize| sizes.and_then(|sizes| sizes.get(at)?.as_u64());
            let (Some(experts), Some(n), Some(k)) = (size(0), size(1), size(2)) else {
                return Err(fault("an entry of `layers` is not [E, N, K]".to_owned()));
            };
            let shape = Shape { experts, n, k };
            let own = match value.get("scheme").and_then(Value::as_str) {
                Some(text) => Some((Arc::from(text), parsed(text).map_err(fault)?)),
                None => None,
            };
            let Some((text, scheme)) = own.as_ref().or(common.as_ref()) else {
                return Err(fault(
                    "there is no `scheme`, neither for the layer nor for the file".to_owned(),
                ));
            };
            let biased = with_bias(source, layer, scheme)?;
            Ok(Recognised::new(biased.unwrap_or_else(|| text.clone()), shape))
        };
        (layer.clone(), recognised())
    });
    Ok(found.collect())
}

/// The configuration of a file with one scheme per layer, as text.
pub fn attached(layers: &[(&str, &Scheme, Shape)]) -> String {
    let layer = |(name, scheme, shape): &(&str, &Scheme, Shape)| {
        let shape = [shape.experts, shape.n, shape.k];
        ((*name).to_owned(), json!({ "shape": shape, "scheme": scheme.to_string() }))
    };
    let layers: Map<String, Value> = layers.iter().map(layer).collect();
    json!({ "quant_method": "quantloom", "layers": layers }).to_string()
}

/// The scheme with a bias, if a layer stores a bias that the scheme does not declare.
fn with_bias(
    source: &LayerSource<'_>,
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
