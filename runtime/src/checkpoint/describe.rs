//! The inverse of reading: the configuration and the extra tensors with which a format's software
//! stores a scheme. A description is used only if it reads back as the same scheme.

use std::collections::BTreeMap;

use quantloom_dsl::format::{E2M1, E2M3, E4M3, Number};
use quantloom_dsl::layout::{GroupSize, Shape};
use quantloom_dsl::{Activation, Code, Group, ScaleLevel, Scheme, ZeroKind};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::quantloom;
use super::write::{Entry, tensor_name};

/// How a scheme's layers are written into a file.
#[derive(Clone, Debug)]
pub struct Description {
    /// The `quantization_config`; `None` if the tensors' names are enough.
    pub config: Option<Map<String, Value>>,
    /// Tensors in addition to those of the scheme.
    pub extras: Extras,
}

/// Tensors that a format's software expects in addition to those of a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extras {
    /// None.
    None,
    /// compressed-tensors: `weight_shape`, two numbers.
    WeightShape,
    /// GPTQ without act-order: the trivial `g_idx`, one number per column.
    TrivialIndex,
    /// Quark int8: zero points that are 0, as many as scales.
    ZeroZeroPoints,
}

impl Extras {
    /// The extra tensors of one layer.
    pub fn of(self, scheme: &Scheme, layer: &str, shape: Shape) -> Vec<(Entry, Vec<u8>)> {
        let entry = |name: &str, dtype: Dtype, dims: Vec<u64>, bytes: Vec<u8>| {
            let name = tensor_name(layer, name);
            (Entry { name, dtype, shape: dims, bytes: bytes.len() as u64 }, bytes)
        };
        match self {
            Self::None => Vec::new(),
            Self::WeightShape => {
                let bytes = [shape.n, shape.k].iter().flat_map(|v| v.to_le_bytes()).collect();
                vec![entry("weight_shape", Dtype::I64, vec![2], bytes)]
            }
            Self::TrivialIndex => {
                let group = scheme.scales.first().map_or(GroupSize::All, |scale| scale.group.cols);
                let bytes = (0..shape.k).flat_map(|k| (group.group(k) as u32).to_le_bytes());
                vec![entry("g_idx", Dtype::I32, vec![shape.k], bytes.collect())]
            }
            Self::ZeroZeroPoints => {
                let rows = scheme.scales.first().map_or(GroupSize::All, |scale| scale.group.rows);
                let count = rows.elements(shape.n);
                let zeros = vec![0; count as usize];
                vec![entry("weight_zero_point", Dtype::I8, vec![count], zeros)]
            }
        }
    }
}

/// Every description of a scheme, that of the scheme's own software first. The last description,
/// the scheme's text, exists for every scheme.
pub fn describe(scheme: &Scheme, layers: &[(String, Shape)]) -> Vec<Description> {
    let named = |name: &str| scheme.stores.iter().any(|store| store.name == name);
    let mut found = Vec::new();
    if named("_blocks") {
        found.push(Description { config: None, extras: Extras::None });
    }
    if let Some(config) = gptq(scheme) {
        let extras = if scheme.index.is_some() { Extras::None } else { Extras::TrivialIndex };
        found.push(Description { config: Some(config), extras });
    }
    found.extend(
        awq(scheme).map(|config| Description { config: Some(config), extras: Extras::None }),
    );
    if let Some(config) = compressed_tensors(scheme) {
        let extras = if named("weight_packed") && !scheme.weight.code.is_float() {
            Extras::WeightShape
        } else {
            Extras::None
        };
        found.push(Description { config: Some(config), extras });
    }
    // Quark can describe per-tensor FP8 with the same tensors; their names are ModelOpt's.
    for config in modelopt(scheme).into_iter().chain(fp8(scheme)) {
        found.push(Description { config: Some(config), extras: Extras::None });
    }
    if let Some(config) = quark(scheme) {
        let int8 = scheme.weight.code == Code::Number(Number::Int(8));
        let extras = if int8 { Extras::ZeroZeroPoints } else { Extras::None };
        found.push(Description { config: Some(config), extras });
    }
    found.push(Description {
        config: Some(quantloom::config(scheme, layers)),
        extras: Extras::None,
    });
    found
}

fn object(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

fn group_cols(group: Group) -> i64 {
    match group.cols {
        GroupSize::Each(cols) => i64::from(cols),
        GroupSize::All => -1,
    }
}

fn gptq(scheme: &Scheme) -> Option<Map<String, Value>> {
    scheme.stores.iter().find(|store| store.name == "qweight")?;
    let Some(ZeroKind::Codes { plus, wraps: false, .. }) = scheme.zero.map(|zero| zero.kind) else {
        return None;
    };
    object(json!({
        "quant_method": "gptq",
        "bits": scheme.weight.code.bits(),
        "group_size": group_cols(scheme.scales.first()?.group),
        "desc_act": scheme.index.is_some(),
        "sym": false,
        "checkpoint_format": if plus == 1 { "gptq" } else { "gptq_v2" },
    }))
}

fn awq(scheme: &Scheme) -> Option<Map<String, Value>> {
    scheme.stores.iter().find(|store| store.name == "qweight")?;
    object(json!({
        "quant_method": "awq",
        "bits": scheme.weight.code.bits(),
        "group_size": group_cols(scheme.scales.first()?.group),
        "zero_point": scheme.zero.is_some(),
        "version": "gemm",
    }))
}

pub(super) fn compressed_tensors(scheme: &Scheme) -> Option<Map<String, Value>> {
    let number = match &scheme.weight.code {
        Code::Number(number) => *number,
        Code::Codebook(_) => return None,
    };
    let packed = scheme.stores.iter().any(|store| store.name == "weight_packed");
    let weights = ct_args(number, scheme.zero.is_some(), &scheme.scales, false)?;
    let inputs = match scheme.activations.first()? {
        Activation::Float(_) => Value::Null,
        Activation::Quantised(quantiser) => {
            let asymmetric = quantiser.zero.is_some();
            ct_args(quantiser.code, asymmetric, &quantiser.scales, true)?
        }
    };
    let mx = scheme.scales.first()?.stored_number() == Some(Number::E8m0);
    let format = match (number.is_float(), packed, number.bits()) {
        (false, true, _) => "pack-quantized",
        (false, false, _) => "int-quantized",
        (true, _, 4) if mx => "mxfp4-pack-quantized",
        (true, _, 4) => "nvfp4-pack-quantized",
        (true, _, 6) => "mxfp6-pack-quantized",
        (true, _, _) if mx => "mxfp8-quantized",
        (true, _, _) => "float-quantized",
    };
    object(json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": weights, "input_activations": inputs,
            "output_activations": null, "format": format,
        }},
        "ignore": [],
    }))
}

/// The settings of weights or activations, as compressed-tensors writes them.
fn ct_args(number: Number, asymmetric: bool, scales: &[ScaleLevel], input: bool) -> Option<Value> {
    let float = match number {
        Number::Float(format) if [E2M1, E2M3, E4M3].contains(&format) => true,
        Number::Float(_) | Number::E8m0 => return None,
        Number::Uint(_) | Number::Int(_) => false,
    };
    let level = scales.first()?;
    let two_levels = scales.len() == 2;
    let strategy = match (level.group.rows, level.group.cols) {
        (GroupSize::All, _) => "tensor",
        (_, GroupSize::All) if input => "token",
        (_, GroupSize::All) => "channel",
        (GroupSize::Each(1), _) if two_levels => "tensor_group",
        (GroupSize::Each(1), _) => "group",
        _ => "block",
    };
    let mut args = object(json!({
        "num_bits": number.bits(),
        "type": if float { "float" } else { "int" },
        "symmetric": !asymmetric,
        "strategy": strategy,
        "dynamic": input && !level.stored,
    }))?;
    if let ("group" | "tensor_group", GroupSize::Each(cols)) = (strategy, level.group.cols) {
        args.insert("group_size".to_owned(), Value::from(cols));
    }
    if let ("block", GroupSize::Each(rows), GroupSize::Each(cols)) =
        (strategy, level.group.rows, level.group.cols)
    {
        args.insert("block_structure".to_owned(), json!([rows, cols]));
    }
    if level.stored_number() == Some(Number::E8m0) {
        args.insert("scale_dtype".to_owned(), Value::from("torch.uint8"));
    }
    if two_levels {
        args.insert("scale_dtype".to_owned(), Value::from("torch.float8_e4m3fn"));
        if input && scales[1].stored {
            args.insert("dynamic".to_owned(), Value::from("local"));
        }
    }
    Some(Value::Object(args))
}

pub(super) fn quark(scheme: &Scheme) -> Option<Map<String, Value>> {
    let Code::Number(number) = scheme.weight.code else { return None };
    let weight = quark_args(number, scheme.scales.first()?, false)?;
    let inputs = match scheme.activations.first()? {
        Activation::Float(_) => Value::Null,
        Activation::Quantised(quantiser) => {
            quark_args(quantiser.code, quantiser.scales.first()?, true)?
        }
    };
    object(json!({
        "quant_method": "quark",
        "global_quant_config": {
            "weight": weight, "input_tensors": inputs, "output_tensors": null, "bias": null,
        },
        "exclude": [],
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "export": {"pack_method": "order", "kv_cache_group": []},
    }))
}

fn quark_args(number: Number, level: &ScaleLevel, input: bool) -> Option<Value> {
    let dtype = match number.to_string().as_str() {
        "e2m1" => "fp4",
        "e3m2" => "fp6_e3m2",
        "e2m3" => "fp6_e2m3",
        "e4m3" => "fp8_e4m3",
        "i8" => "int8",
        _ => return None,
    };
    let qscheme = match (level.group.rows, level.group.cols) {
        (GroupSize::All, _) => "per_tensor",
        (_, GroupSize::All) => "per_channel",
        _ => "per_group",
    };
    let mut args = object(json!({
        "dtype": dtype,
        "qscheme": qscheme,
        "ch_axis": if input { 1 } else { 0 },
        "is_dynamic": input && !level.stored,
        "symmetric": true,
    }))?;
    if qscheme == "per_group" {
        args.insert("group_size".to_owned(), Value::from(group_cols(level.group)));
        args.insert("scale_format".to_owned(), Value::from("e8m0"));
        args.insert("ch_axis".to_owned(), Value::from(-1));
    }
    Some(Value::Object(args))
}

fn modelopt(scheme: &Scheme) -> Option<Map<String, Value>> {
    let level = scheme.scales.first()?;
    let algorithm = match scheme.weight.code {
        Code::Number(Number::Float(E2M1)) if scheme.scales.len() == 2 => "NVFP4",
        Code::Number(Number::Float(E4M3)) if scheme.scales.len() == 1 => "FP8",
        _ => return None,
    };
    let group = group_cols(level.group).max(16);
    object(json!({
        "quant_method": "modelopt", "quant_algo": algorithm, "group_size": group,
        "exclude_modules": [], "ignore": [],
    }))
}

pub(super) fn fp8(scheme: &Scheme) -> Option<Map<String, Value>> {
    let Code::Number(Number::Float(E4M3)) = scheme.weight.code else { return None };
    let level = scheme.scales.first()?;
    let fixed = scheme.quantiser()?.scales.first()?.stored;
    let mut config = object(json!({
        "quant_method": "fp8", "activation_scheme": if fixed { "static" } else { "dynamic" },
    }))?;
    if let (GroupSize::Each(rows), GroupSize::Each(cols)) = (level.group.rows, level.group.cols) {
        config.insert("weight_block_size".to_owned(), json!([rows, cols]));
    }
    let of_x = scheme.quantiser()?.scales.first()?;
    if of_x.stored_number() == Some(Number::E8m0) {
        config.insert("scale_fmt".to_owned(), Value::from("ue8m0"));
    }
    Some(config)
}

impl Description {
    /// The file's metadata.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        let mut metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        if let Some(config) = &self.config {
            let text = Value::Object(config.clone()).to_string();
            metadata.insert("quantization_config".to_owned(), text);
        }
        metadata
    }
}
