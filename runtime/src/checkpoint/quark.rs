//! AMD Quark: OCP MX weights and activations, int8, FP8. Source: Quark's exported
//! `quantization_config` (`global_quant_config`, `layer_quant_config`, `exclude`) and the
//! readers of vLLM.

use quantloom_dsl::layout::Shape;

use super::clause::{bias_clause, float_name};
use super::config::Fields;
use super::layer::{LayerError, Recognised};
use super::patterns::{self, Compiler, Pattern};
use super::{CheckpointError, Found, Source};

pub(super) fn layers(source: &Source<'_>) -> Result<Found, CheckpointError> {
    let fields = source.fields;
    let exclude = fields.list("exclude")?;
    let mut compiler = Compiler::new();
    let exclude: Vec<Pattern> =
        exclude.into_iter().map(|text| compiler.glob(text)).collect::<Result<_, _>>()?;
    let global = fields.needed("global_quant_config", fields.object("global_quant_config")?)?;
    let mut special = Vec::new();
    if let Some(layers) = fields.object("layer_quant_config")? {
        for pattern in layers.object.keys() {
            let settings = layers.object(pattern)?;
            special.push((compiler.glob(pattern)?, layers.needed(pattern, settings)?));
        }
    }
    let recognise = |layer: &str| -> Result<Recognised, CheckpointError> {
        if patterns::any(&exclude, layer)? {
            let what = "`exclude` names it, but it stores quantised tensors";
            return Err(LayerError::new(layer, what).into());
        }
        let mut settings = global;
        for (pattern, own) in &special {
            if pattern.matches(layer)? {
                settings = *own;
                break;
            }
        }
        recognise(source, layer, settings)
    };
    let found = source.having("weight_scale").into_iter().map(|layer| {
        let recognised = recognise(&layer);
        (layer, recognised)
    });
    Ok(found.collect())
}

/// A float or integer element type of Quark.
struct Element {
    name: &'static str,
    code: &'static str,
    pack: &'static str,
    /// Codes and bytes of the smallest whole unit of a row.
    unit: (u64, u64),
    /// The mantissa from which Quark's "even" rounding of MX scales goes up.
    above: &'static str,
}

const ELEMENTS: &[Element] = &[
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
];

fn element(fields: Fields<'_>) -> Result<&'static Element, CheckpointError> {
    let name = fields.needed("dtype", fields.text("dtype")?)?;
    ELEMENTS.iter().find(|element| element.name == name).ok_or_else(|| {
        let known: Vec<&str> = ELEMENTS.iter().map(|element| element.name).collect();
        fields.fault(format!("the dtype `{name}` is not known; known are {}", known.join(", ")))
    })
}

fn recognise(
    source: &Source<'_>,
    layer: &str,
    settings: Fields<'_>,
) -> Result<Recognised, CheckpointError> {
    let fault = |what: String| CheckpointError::from(LayerError::new(layer, what));
    let weight = settings.needed("weight", settings.object("weight")?)?;
    let element = element(weight)?;
    let [n, bytes] = source.matrix(layer, "weight", "two dimensions")?;
    let scheme = weight.needed("qscheme", weight.text("qscheme")?)?;
    if scheme == "per_group" && element.unit == (4, 3) && is_old_packing(source, layer, bytes)? {
        return Err(fault(
            "Quark's older 6-bit blocks of 25 bytes with signed exponents are not supported; export \
             it again with `pack_method` order"
                .to_owned(),
        ));
    }
    if bytes % element.unit.1 != 0 {
        return Err(fault(format!("{bytes} bytes a row are not whole {} codes", element.name)));
    }
    let k = bytes / element.unit.1 * element.unit.0;
    let scale_tensor = source.needed(layer, "weight_scale")?;
    let scale = match scheme {
        "per_group" => {
            let group = weight.needed("group_size", weight.group_size("group_size")?)?;
            e8m0_only(weight)?;
            format!("scale: e8m0 per 1x{group} from pow2 above {}", element.above)
        }
        "per_channel" => {
            let number = float_name(layer, "weight_scale", scale_tensor.dtype())?;
            format!("scale: {number} per channel [n]")
        }
        "per_tensor" => {
            let number = float_name(layer, "weight_scale", scale_tensor.dtype())?;
            format!("scale: {number} per tensor [g]")
        }
        other => return Err(weight.fault(format!("the qscheme `{other}` is not known"))),
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
    Ok(Recognised { scheme: scheme.into(), shape: Shape::matrix(n, k) })
}

/// The older packing has 25 bytes where the common one has 24 bytes and a scale.
fn is_old_packing(source: &Source<'_>, layer: &str, bytes: u64) -> Result<bool, CheckpointError> {
    let groups = source.needed(layer, "weight_scale")?.shape().last().copied().unwrap_or(0) as u64;
    Ok(groups > 0 && groups.checked_mul(25) == Some(bytes))
}

fn e8m0_only(fields: Fields<'_>) -> Result<(), CheckpointError> {
    match fields.text("scale_format")? {
        None | Some("e8m0") => Ok(()),
        Some(other) => Err(fields.fault(format!("the scale_format `{other}` is not known"))),
    }
}

/// Symmetric layers store zero points too: they must be zero, and are not silently dropped.
fn zero_point(
    source: &Source<'_>,
    layer: &str,
    weight: Fields<'_>,
) -> Result<&'static str, CheckpointError> {
    let symmetric = weight.flag("symmetric")?.unwrap_or(true);
    let Some(zeros) = source.tensor(layer, "weight_zero_point") else {
        return if symmetric {
            Ok("")
        } else {
            Err(LayerError::new(layer, "the tensor `weight_zero_point` is missing").into())
        };
    };
    if !symmetric {
        return Ok("zero: i8 [n] as \"weight_zero_point\",");
    }
    if zeros.bytes().iter().any(|byte| *byte != 0) {
        let what = "it is symmetric, but a zero point in `weight_zero_point` is not 0";
        return Err(LayerError::new(layer, what).into());
    }
    Ok("")
}

fn activation(
    source: &Source<'_>,
    layer: &str,
    inputs: Fields<'_>,
) -> Result<String, CheckpointError> {
    let element = element(inputs)?;
    let scheme = inputs.needed("qscheme", inputs.text("qscheme")?)?;
    let dynamic = inputs.flag("is_dynamic")?.unwrap_or(false);
    if inputs.flag("symmetric")? == Some(false) {
        return Err(inputs.fault("asymmetric activations are not supported for Quark"));
    }
    if scheme == "per_group" {
        let group = inputs.needed("group_size", inputs.group_size("group_size")?)?;
        e8m0_only(inputs)?;
        let (code, above) = (element.code, element.above);
        return Ok(format!("{code} {{ scale: e8m0 per 1x{group} from pow2 above {above} }}"));
    }
    let group = match scheme {
        "per_tensor" => "tensor",
        "per_channel" | "per_token" => "token",
        other => return Err(inputs.fault(format!("the qscheme `{other}` is not known"))),
    };
    // Symmetric int8 activations use -127..127.
    let rule = if element.code == "i8" { "from amax / 127" } else { "" };
    let code = element.code;
    if dynamic {
        return Ok(format!("{code} {{ scale: f32 per {group} {rule} }}"));
    }
    let tensor = source.needed(layer, "input_scale")?;
    let number = float_name(layer, "input_scale", tensor.dtype())?;
    Ok(format!("{code} {{ scale: {number} per tensor {rule} static }}"))
}
