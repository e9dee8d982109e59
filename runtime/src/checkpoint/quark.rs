//! AMD Quark: OCP MX weights and activations, int8, FP8. Source: Quark's exported
//! `quantization_config` (`global_quant_config`, `layer_quant_config`, `exclude`) and the
//! readers of vLLM.

use quantloom_dsl::layout::Shape;

use super::clause::{bias_clause, float_name};
use super::config::Fields;
use super::layer::{LayerError, Recognised};
use super::patterns::Compiler;
use super::{CheckpointError, Found, LayerSource};

pub(super) fn layers(source: &LayerSource<'_>) -> Result<Found, CheckpointError> {
    let fields = source.fields;
    let mut compiler = Compiler::new();
    let exclude = compiler.list(fields.list("exclude")?, Compiler::glob)?;
    let global = fields.needed("global_quant_config", fields.object("global_quant_config")?)?;
    let cached = cached(fields)?;
    let mut special = Vec::new();
    if let Some(layers) = fields.object("layer_quant_config")? {
        for pattern in layers.object.keys() {
            let settings = layers.needed(pattern, layers.object(pattern)?)?;
            special.push((pattern.as_str(), compiler.glob(pattern)?, settings));
        }
    }
    let recognise = |layer: &str| -> Result<Recognised, CheckpointError> {
        if exclude.any(layer)? {
            return Err(LayerError::excluded(layer, "exclude").into());
        }
        let (mut settings, mut of_cache) = (global, false);
        let mut path = vec!["global_quant_config"];
        for (key, pattern, own) in &special {
            if pattern.matches(layer)? {
                (settings, of_cache) = (*own, cached.contains(key));
                path = vec!["layer_quant_config", key];
                break;
            }
        }
        source.refused(layer, &path)?;
        if !of_cache && let Some(outputs) = settings.get("output_tensors") {
            let what = format!("`output_tensors`: quantised outputs are not supported: {outputs}");
            return Err(LayerError::unsupported(layer, what).into());
        }
        recognise(source, layer, settings)
    };
    let found = source.having("weight_scale").into_iter().map(|layer| {
        let recognised = recognise(&layer);
        (layer, recognised)
    });
    Ok(found.collect())
}

/// Patterns of layers whose outputs are quantised for attention's cache, not for the product.
fn cached<'a>(fields: Fields<'a>) -> Result<Vec<&'a str>, CheckpointError> {
    let mut found = fields.list("kv_cache_group")?;
    if let Some(export) = fields.object("export")? {
        found.extend(export.list("kv_cache_group")?);
    }
    if let Some(cache) = fields.object("kv_cache_quant_config")? {
        found.extend(cache.object.keys().map(String::as_str));
    }
    Ok(found)
}

/// A float or integer element type of Quark.
pub(super) struct Element {
    pub(super) name: &'static str,
    pub(super) code: &'static str,
    pub(super) pack: &'static str,
    /// Codes and bytes of the smallest unit of a row that is whole bytes.
    pub(super) unit: (u64, u64),
    /// The mantissa from which Quark's "even" rule rounds MX scales up.
    pub(super) above: &'static str,
}

pub(super) const ELEMENTS: &[Element] = &[
    Element { name: "fp4", code: "e2m1", pack: "u8 [k:2 | k, n]", unit: (2, 1), above: "1.75" },
    Element {
        name: "fp6_e3m2",
        code: "e3m2",
        pack: "u8 [k:4 | w, k, n]",
        unit: (4, 3),
        above: "1.875",
    },
    Element {
        name: "fp6_e2m3",
        code: "e2m3",
        pack: "u8 [k:4 | w, k, n]",
        unit: (4, 3),
        above: "1.9375",
    },
    Element { name: "fp8_e4m3", code: "e4m3", pack: "[k, n]", unit: (1, 1), above: "1.9375" },
    Element { name: "int8", code: "i8", pack: "[k, n]", unit: (1, 1), above: "" },
    Element { name: "int4", code: "i4", pack: "", unit: (8, 1), above: "" },
    Element { name: "uint4", code: "u4", pack: "", unit: (8, 1), above: "" },
];

fn element(fields: Fields<'_>) -> Result<&'static Element, CheckpointError> {
    let name = fields.needed("dtype", fields.text("dtype")?)?;
    ELEMENTS.iter().find(|element| element.name == name).ok_or_else(|| {
        let known: Vec<&str> = ELEMENTS.iter().map(|element| element.name).collect();
        fields.fault("dtype", format!("unknown dtype `{name}`; supported are {}", known.join(", ")))
    })
}

fn recognise(
    source: &LayerSource<'_>,
    layer: &str,
    settings: Fields<'_>,
) -> Result<Recognised, CheckpointError> {
    let fault = |what: String| CheckpointError::from(LayerError::inconsistent(layer, what));
    let unsupported = |what: String| CheckpointError::from(LayerError::unsupported(layer, what));
    let weight = settings.needed("weight", settings.object("weight")?)?;
    let element = element(weight)?;
    if element.unit == (8, 1) {
        return four_bits(source, layer, settings, element);
    }
    let [n, bytes] = source.matrix(layer, "weight", "two dimensions")?;
    let scheme = weight.needed("qscheme", weight.text("qscheme")?)?;
    if scheme == "per_group" && element.unit == (4, 3) && is_old_packing(source, layer, bytes)? {
        return Err(unsupported(
            "Quark's older 6-bit blocks of 25 bytes with signed exponents are not supported; export \
             it again with `pack_method` order"
                .to_owned(),
        ));
    }
    if bytes % element.unit.1 != 0 {
        return Err(fault(format!("{bytes} bytes a row are not whole {} codes", element.name)));
    }
    let k = bytes / element.unit.1 * element.unit.0;
    let axis = weight.integer("ch_axis")?;
    let expected: &[i64] = if scheme == "per_group" { &[-1, 1] } else { &[0] };
    if scheme != "per_tensor" && axis.is_some_and(|axis| !expected.contains(&axis)) {
        return Err(weight.fault("ch_axis", "`ch_axis` of the weight is another axis"));
    }
    let scale_tensor = source.needed(layer, "weight_scale")?;
    let scale = match scheme {
        "per_group" => {
            let group = weight.needed("group_size", weight.group_size("group_size")?)?;
            e8m0_only(weight)?;
            if element.above.is_empty() {
                let what = format!("`{}` weights per group are not supported", element.name);
                return Err(unsupported(what));
            }
            format!("scale: e8m0 per 1x{group} {}", power_rule(weight, element)?)
        }
        "per_channel" => {
            let number = float_name(layer, "weight_scale", scale_tensor.dtype())?;
            format!("scale: {number} per channel [n]")
        }
        "per_tensor" => {
            let number = float_name(layer, "weight_scale", scale_tensor.dtype())?;
            format!("scale: {number} per tensor [g]")
        }
        other => return Err(weight.fault("qscheme", format!("unknown qscheme `{other}`"))),
    };
    let zero = zero_point(source, layer, weight)?;
    let activation = match settings.object("input_tensors")? {
        None => "bf16 | f16".to_owned(),
        Some(inputs) => activation(source, layer, inputs)?,
    };
    let bias = bias_clause(source, layer)?;
    let scheme = format!(
        "Quark {{ weight: {}, {zero} {scale}, pack: {}, activation: {activation}, {bias} }}",
        element.code, element.pack
    );
    Ok(Recognised::new(scheme, Shape::matrix(n, k)))
}

/// Integers of 4 bits, eight in a word of 32 bits. If columns share scales, the words are along N
/// and all tensors are transposed; else the words are along K. `reorder`, the default, uses AWQ's
/// order.
fn four_bits(
    source: &LayerSource<'_>,
    layer: &str,
    settings: Fields<'_>,
    element: &Element,
) -> Result<Recognised, CheckpointError> {
    let fault = |what: &str| CheckpointError::from(LayerError::inconsistent(layer, what));
    let unsupported = |what: &str| CheckpointError::from(LayerError::unsupported(layer, what));
    let weight = settings.needed("weight", settings.object("weight")?)?;
    let method = match source.fields.object("export")? {
        Some(export) => export.text("pack_method")?,
        None => None,
    };
    let order = |axis: char| match method {
        None | Some("reorder") => Ok(format!("{axis}/2:4, {axis}:2")),
        Some("order") => Ok(format!("{axis}:8")),
        Some(other) => Err(unsupported(&format!("unknown pack_method `{other}`"))),
    };
    let [rows, words] = source.matrix(layer, "weight", "two dimensions")?;
    let tensor = source.needed(layer, "weight_scale")?;
    let number = float_name(layer, "weight_scale", tensor.dtype())?;
    let scheme = weight.needed("qscheme", weight.text("qscheme")?)?;
    let (shape, scale, pack, zeros) = match scheme {
        "per_group" => {
            let group = weight.needed("group_size", weight.group_size("group_size")?)?;
            // The last word may not be full.
            let n = tensor.shape().last().map_or(0, |n| *n as u64);
            if n.div_ceil(8) != words {
                return Err(fault("`weight` and `weight_scale` differ in their rows"));
            }
            let order = order('n')?;
            (
                Shape::matrix(n, rows),
                format!("scale: {number} per 1x{group} [n, g]"),
                format!("i32 [{order} | n, k]"),
                format!("i32 [{order} | n, g]"),
            )
        }
        "per_channel" | "per_tensor" => {
            let (scale, zeros) = if scheme == "per_channel" {
                (format!("scale: {number} per channel [n]"), format!("i32 [{} | n]", order('n')?))
            } else {
                (format!("scale: {number} per tensor [g]"), String::new())
            };
            let k = words.checked_mul(8).ok_or_else(|| fault("K is too large"))?;
            (Shape::matrix(rows, k), scale, format!("i32 [{} | k, n]", order('k')?), zeros)
        }
        other => return Err(weight.fault("qscheme", format!("unknown qscheme `{other}`"))),
    };
    let symmetric = weight.flag("symmetric")?.unwrap_or(true) && element.code == "i4";
    let zero = match (symmetric, scheme, source.tensor(layer, "weight_zero_point")) {
        (true, ..) => String::new(),
        (false, "per_tensor", _) => {
            return Err(unsupported("one zero point for all of a 4-bit weight is not supported"));
        }
        (false, _, None) => return Err(fault("the tensor `weight_zero_point` is missing")),
        (false, _, Some(zero)) if zero.dtype() == safetensors::Dtype::I32 => {
            format!("zero: {} {zeros} as \"weight_zero_point\",", element.code)
        }
        (false, "per_group", Some(zero)) => {
            let number = float_name(layer, "weight_zero_point", zero.dtype())?;
            format!("zero: {number} [n, g] as \"weight_zero_point\",")
        }
        (false, _, Some(_)) => {
            return Err(unsupported("float zero points of rows are not supported"));
        }
    };
    let activation = match settings.object("input_tensors")? {
        None => "bf16 | f16".to_owned(),
        Some(inputs) => activation(source, layer, inputs)?,
    };
    let bias = bias_clause(source, layer)?;
    let scheme = format!(
        "Quark {{ weight: {}, {zero} {scale}, pack: {pack}, activation: {activation}, {bias} }}",
        element.code
    );
    Ok(Recognised::new(scheme, shape))
}

/// The rule by which MX scales are chosen; without a rule in the file, the library's default.
fn power_rule(fields: Fields<'_>, element: &Element) -> Result<String, CheckpointError> {
    match fields.text("scale_calculation_mode")? {
        None | Some("even") => Ok(format!("from pow2 above {}", element.above)),
        Some("floor") => Ok("from pow2".to_owned()),
        Some(other) => Err(fields.fault(
            "scale_calculation_mode",
            format!("unknown scale_calculation_mode `{other}`; supported are `even` and `floor`"),
        )),
    }
}

/// The older packing has 25 bytes; the common one has 24 bytes and a scale.
fn is_old_packing(
    source: &LayerSource<'_>,
    layer: &str,
    bytes: u64,
) -> Result<bool, CheckpointError> {
    let groups = source.needed(layer, "weight_scale")?.shape().last().copied().unwrap_or(0) as u64;
    Ok(groups > 0 && groups.checked_mul(25) == Some(bytes))
}

fn e8m0_only(fields: Fields<'_>) -> Result<(), CheckpointError> {
    match fields.text("scale_format")? {
        None | Some("e8m0") => Ok(()),
        Some(other) => Err(fields.fault("scale_format", format!("unknown scale_format `{other}`"))),
    }
}

/// Symmetric layers store zero points too: they must be zero, and are checked.
fn zero_point(
    source: &LayerSource<'_>,
    layer: &str,
    weight: Fields<'_>,
) -> Result<&'static str, CheckpointError> {
    let symmetric = weight.flag("symmetric")?.unwrap_or(true);
    // Zero points of symmetric layers are listed as tensors that must be zeros.
    if symmetric {
        return Ok("");
    }
    source.needed(layer, "weight_zero_point")?;
    Ok("zero: i8 [n] as \"weight_zero_point\",")
}

fn activation(
    source: &LayerSource<'_>,
    layer: &str,
    inputs: Fields<'_>,
) -> Result<String, CheckpointError> {
    let element = element(inputs)?;
    let scheme = inputs.needed("qscheme", inputs.text("qscheme")?)?;
    let dynamic = inputs.flag("is_dynamic")?.unwrap_or(false);
    if inputs.flag("symmetric")? == Some(false) {
        return Err(inputs.fault("symmetric", "asymmetric activations are not supported for Quark"));
    }
    if scheme == "per_group" {
        let group = inputs.needed("group_size", inputs.group_size("group_size")?)?;
        e8m0_only(inputs)?;
        if element.above.is_empty() {
            let what = format!("`{}` activations per group are not supported", element.name);
            return Err(inputs.fault("qscheme", what));
        }
        let (code, rule) = (element.code, power_rule(inputs, element)?);
        return Ok(format!("{code} {{ scale: e8m0 per 1x{group} {rule} }}"));
    }
    let group = match scheme {
        "per_tensor" => "tensor",
        "per_channel" | "per_token" => "token",
        other => return Err(inputs.fault("qscheme", format!("unknown qscheme `{other}`"))),
    };
    // Symmetric int8 activations use -127..127.
    let rule = match element.code {
        "i8" => "from amax / 127",
        "i4" => "from amax / 7",
        "u4" => return Err(inputs.fault("dtype", "activations in `uint4` are not supported")),
        _ => "",
    };
    let code = element.code;
    if dynamic {
        return Ok(format!("{code} {{ scale: f32 per {group} {rule} }}"));
    }
    let tensor = source.needed(layer, "input_scale")?;
    let number = float_name(layer, "input_scale", tensor.dtype())?;
    Ok(format!("{code} {{ scale: {number} per tensor {rule} static }}"))
}
