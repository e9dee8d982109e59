//! FP8 of DeepSeek-V3 and transformers: e4m3 weights with `weight_scale_inv` per block or per
//! tensor (which multiplies, in spite of its name), or `weight_scale` per tensor. x is quantised
//! per 1xC of a block of RxC columns, or with one static scale, `input_scale` or
//! `activation_scale`.

use quantloom_dsl::layout::Shape;
use safetensors::Dtype;
use serde_json::Value;

use super::clause::{bias_clause, float_name};
use super::config::Fields;
use super::layer::{LayerError, Recognised};
use super::{CheckpointError, Found, LayerSource};

/// The rule of `scale_fmt: ue8m0`: x's scales are `2^ceil(log2(amax / 448))`, as in DeepGEMM's
/// `ceil_to_ue8m0`. 448 is 1.75 * 2^8, so the power is one larger than that of the largest code
/// exactly if the mantissa of amax is above 1.75, in f32: 1.75 + 2^-23 or more.
pub(super) const ABOVE_448: &str = "pow2 above 1.7500001192092896";

/// Names of the weight's scale; a layer has one of them.
const SCALES: [&str; 2] = ["weight_scale_inv", "weight_scale"];

struct Settings {
    /// Rows and columns of a block.
    block: Option<(u64, u64)>,
    /// Whether x's scale is stored.
    fixed: bool,
    /// Whether x's scales are powers of two.
    powers: bool,
    /// Layers, or parents of layers, that are not quantised, with the keys that name them.
    kept: Vec<(&'static str, String)>,
}

impl Settings {
    fn read(fields: Fields<'_>) -> Result<Self, CheckpointError> {
        let activation = fields.text("activation_scheme")?.unwrap_or("dynamic");
        let format = fields.text("scale_fmt")?.unwrap_or("float");
        let known = |key: &str, value: &str, known: [&str; 2]| match known.contains(&value) {
            true => Ok(value == known[1]),
            false => Err(fields.fault(
                key,
                format!("unknown {key} `{value}`; supported are `{}` and `{}`", known[0], known[1]),
            )),
        };
        let mut kept = Vec::new();
        for key in ["modules_to_not_convert", "ignored_layers"] {
            kept.extend(fields.list(key)?.into_iter().map(|name| (key, name.to_owned())));
        }
        Ok(Self {
            block: block(fields)?,
            fixed: known(
                "activation_scheme",
                &activation.to_ascii_lowercase(),
                ["dynamic", "static"],
            )?,
            powers: known("scale_fmt", format, ["float", "ue8m0"])?,
            kept,
        })
    }

    /// The key by which a layer is not quantised.
    fn kept_by(&self, layer: &str) -> Option<&'static str> {
        let names = |kept: &str| {
            let rest = layer.strip_prefix(kept);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.kept.iter().find(|(_, kept)| names(kept)).map(|(key, _)| *key)
    }
}

fn block(fields: Fields<'_>) -> Result<Option<(u64, u64)>, CheckpointError> {
    let Some(value) = fields.get("weight_block_size") else { return Ok(None) };
    let side = |at: usize| {
        let side = value.as_array()?.get(at).and_then(Value::as_u64)?;
        (1..=1 << 24).contains(&side).then_some(side)
    };
    match (side(0), side(1)) {
        (Some(rows), Some(cols)) => Ok(Some((rows, cols))),
        _ => Err(fields.fault("weight_block_size", format!("`weight_block_size` is {value}"))),
    }
}

pub(super) fn layers(source: &LayerSource<'_>) -> Result<Found, CheckpointError> {
    let settings = Settings::read(source.fields)?;
    let mut names: Vec<(String, &str)> = Vec::new();
    for scale in SCALES {
        names.extend(source.having(scale).into_iter().map(|layer| (layer, scale)));
    }
    names.sort();
    let found = names.into_iter().map(|(layer, scale)| {
        let recognised = recognise(source, &layer, &settings, scale);
        (layer, recognised)
    });
    Ok(found.collect())
}

fn recognise(
    source: &LayerSource<'_>,
    layer: &str,
    settings: &Settings,
    scale: &str,
) -> Result<Recognised, CheckpointError> {
    if let Some(key) = settings.kept_by(layer) {
        return Err(LayerError::excluded(layer, key).into());
    }
    if SCALES.iter().all(|name| source.tensor(layer, name).is_some()) {
        let what = "the layer has both `weight_scale_inv` and `weight_scale`";
        return Err(LayerError::inconsistent(layer, what).into());
    }
    let [n, k] = source.matrix(layer, "weight", "[N, K]")?;
    let stored = source.needed(layer, scale)?.dtype();
    let number = match stored {
        Dtype::F8_E8M0 => "e8m0",
        Dtype::U8 if settings.powers => "e8m0",
        other => float_name(layer, scale, other)?,
    };
    let group = settings.block.map_or("tensor".to_owned(), |(rows, cols)| format!("{rows}x{cols}"));
    let places = if settings.block.is_some() { "" } else { "[g]" };
    let activation = activation(source, layer, settings)?;
    let bias = bias_clause(source, layer)?;
    let rule = if number == "e8m0" { format!("from {ABOVE_448}") } else { String::new() };
    let scheme = format!(
        "Fp8 {{ weight: e4m3, scale: {number} per {group} {rule} {places} as \"{scale}\", pack: [k, n],
           activation: {activation}, {bias} }}"
    );
    Ok(Recognised::new(scheme, Shape::matrix(n, k)))
}

fn activation(
    source: &LayerSource<'_>,
    layer: &str,
    settings: &Settings,
) -> Result<String, CheckpointError> {
    if settings.fixed {
        let names = ["input_scale", "activation_scale"];
        let there = names.iter().find(|name| source.tensor(layer, name).is_some());
        let name = there.copied().unwrap_or("input_scale");
        let number = float_name(layer, name, source.needed(layer, name)?.dtype())?;
        return Ok(format!("e4m3 {{ scale: {number} per tensor static as \"{name}\" }}"));
    }
    Ok(match (settings.block, settings.powers) {
        (Some((_, cols)), true) => {
            format!("e4m3 {{ scale: e8m0 per 1x{cols} from {ABOVE_448} }}")
        }
        (Some((_, cols)), false) => format!("e4m3 {{ scale: f32 per 1x{cols} }}"),
        (None, false) => "e4m3 { scale: f32 per tensor }".to_owned(),
        (None, true) => {
            let what = "`scale_fmt` is `ue8m0` without `weight_block_size`: which values of x share a \
                        scale is not said";
            return Err(LayerError::inconsistent(layer, what).into());
        }
    })
}
