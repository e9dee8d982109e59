//! Settings of checkpoints that change the product: each is computed here by its software's rule,
//! or is an error that names it. The files are assembled as the software writes them.

use quantloom::codegen::jit::Simulator;
use quantloom_dsl::format::{BF16, Number};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::checkpoint::keys::{Kind, Use, table};
use quantloom_runtime::checkpoint::{
    Checkpoint, CheckpointError, CheckpointFormat, ConfigProblem, LayerFault, Options,
    PatternProblem,
};
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_tests::Random;
use quantloom_tools::forward::{Input, forward};
use serde_json::{Map, Value, json};

type Stored = (String, &'static str, Vec<usize>, Vec<u8>);

fn open(config: &Value, tensors: &[Stored]) -> Result<Checkpoint, String> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"quantization_config": config.to_string()}));
    let mut body: Vec<u8> = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let start = body.len();
        body.extend(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, body.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Value::from(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(body);
    Checkpoint::from_bytes(file, Options::default()).map_err(|error| error.to_string())
}

fn stored(name: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Stored {
    (format!("l.{name}"), dtype, shape.to_vec(), bytes)
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bf16s(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| ((*value as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec())
        .collect()
}

/// The error of the file or of its layer `l`.
fn fault(config: &Value, tensors: &[Stored]) -> String {
    match open(config, tensors) {
        Err(error) => error,
        Ok(file) => file.layer("l").map(|_| String::new()).unwrap_or_else(|e| e.to_string()),
    }
}

#[track_caller]
fn refused(config: &Value, tensors: &[Stored], words: &[&str]) {
    let error = fault(config, tensors);
    for word in words {
        assert!(error.contains(word), "{word}: {error}");
    }
}

fn e4m3() -> Number {
    Number::from_name("e4m3").unwrap()
}

/// Bytes that are e4m3 numbers.
fn e4m3_codes(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count)
        .map(|_| random.bits() as u8)
        .map(|b| if b & 0x7f == 0x7f { b & 0x47 } else { b })
        .collect()
}

/// Numbers of bf16, about normal, of several magnitudes.
fn tokens(random: &mut Random, count: usize) -> Vec<f64> {
    let unit = |random: &mut Random| random.below(1 << 20) as f64 / f64::from(1 << 20) - 0.5;
    (0..count)
        .map(|at| BF16.round(unit(random) * f64::from((at as i32 / 128) % 7 - 3).exp2()))
        .collect()
}

fn product(file: &Checkpoint, x: &[f64], k: usize) -> Vec<f32> {
    product_on(&CpuDevice::best(), file, x, k)
}

fn product_on(backend: &dyn Backend, file: &Checkpoint, x: &[f64], k: usize) -> Vec<f32> {
    let layer = file.layer("l").unwrap();
    let shape = vec![(x.len() / k) as u64, k as u64];
    let input = Input { values: x.to_vec(), shape, own: BF16 };
    forward(backend, layer.scheme(), layer, &layer.unpack().unwrap(), 0, &input).unwrap()
}

/// A GPU of each kind of kernels.
fn simulated() -> impl Iterator<Item = GpuDevice<Simulator>> {
    let targets = ["sm_80", "sm_89", "sm_90a", "gfx942", "gfx950", "wgsl", "wgsl_subgroups"];
    targets.into_iter().map(|target| GpuDevice::new(Simulator::new(target).unwrap()))
}

/// A file with factors on x gives what the file without them gives on the multiplied x.
fn assert_multiplied(
    backend: &dyn Backend,
    [with, without]: [&Checkpoint; 2],
    (x, factors): (&[f64], &[f64]),
) {
    let (k, name) = (factors.len(), backend.name());
    let multiplied = prescaled(x, factors);
    let plain = product_on(backend, without, &multiplied, k);
    assert_eq!(product_on(backend, with, x, k), plain, "{name}");
    assert_ne!(product_on(backend, with, &multiplied, k), plain, "{name}");
}

/// y compared with sums of x~ w, which differ by the rounding of f32 sums.
fn assert_product(ours: &[f32], x: &[f64], w: &[f64], k: usize) {
    let n = w.len() / k;
    assert_eq!(ours.len(), x.len() / k * n);
    for (at, ours) in ours.iter().enumerate() {
        let pairs = x[at / n * k..][..k].iter().zip(&w[at % n * k..][..k]);
        let (exact, size) =
            pairs.fold((0.0, 0.0), |(sum, size), (x, w)| (sum + x * w, size + (x * w).abs()));
        assert!((f64::from(*ours) - exact).abs() <= size * 1e-5, "y[{at}] is {ours}, not {exact}");
    }
}

/// DeepGEMM's rule: the next power of two of amax / 448, by the bits of that f32.
fn ceil_to_ue8m0(amax: f32) -> f64 {
    let bits = (amax / 448.0).to_bits();
    let exponent = (bits >> 23) + u32::from(bits & 0x7f_ffff != 0);
    f64::from(f32::from_bits(exponent << 23))
}

const FP8: &str = r#"{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
    "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}"#;

#[test]
fn ue8m0_scales_are_powers_of_two_rounded_up() {
    let (n, k) = (48, 384);
    let mut random = Random(1);
    let codes = e4m3_codes(&mut random, n * k);
    let mut x = tokens(&mut random, 3 * k);
    // Largest magnitudes at the threshold, and one step of bf16 above it.
    (x[0], x[k], x[2 * k]) = (1.75, 1.7578125, 3.5);
    let config: Value = serde_json::from_str(FP8).unwrap();
    let scales = [0.5f32, 2.0, 0.125];
    for kind in ["F32", "F8_E8M0", "U8"] {
        let bytes = match kind {
            "F32" => f32s(&scales),
            _ => scales.iter().map(|scale| (scale.to_bits() >> 23) as u8).collect(),
        };
        let tensors = [
            stored("weight", "F8_E4M3", &[n, k], codes.clone()),
            stored("weight_scale_inv", kind, &[1, 3], bytes),
        ];
        let file = open(&config, &tensors).unwrap();
        let mut quantised = x.clone();
        for group in quantised.chunks_mut(128) {
            let amax = group.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            let scale = ceil_to_ue8m0(amax as f32);
            for x in group {
                *x = e4m3().round(*x / scale) * scale;
            }
        }
        let value = |(at, code): (usize, &u8)| {
            e4m3().decode(u32::from(*code)) * f64::from(scales[at % k / 128])
        };
        let w: Vec<f64> = codes.iter().enumerate().map(value).collect();
        assert_product(&product(&file, &x, k), &quantised, &w, k);
    }
}

#[test]
fn static_scales_of_x_with_blocks_and_without() {
    let (n, k) = (16, 256);
    let mut random = Random(2);
    let codes = e4m3_codes(&mut random, n * k);
    let x = tokens(&mut random, 2 * k);
    let given = 0.003f32;
    for (block, name) in
        [(true, "activation_scale"), (false, "activation_scale"), (true, "input_scale")]
    {
        let mut config = json!({"quant_method": "fp8", "activation_scheme": "static"});
        config["weight_block_size"] = if block { json!([128, 128]) } else { Value::Null };
        let scales = if block { vec![0.5f32, 3.0] } else { vec![0.75] };
        let dims: &[usize] = if block { &[1, 2] } else { &[] };
        let tensors = [
            stored("weight", "F8_E4M3", &[n, k], codes.clone()),
            stored("weight_scale_inv", "F32", dims, f32s(&scales)),
            stored(name, "F32", &[], f32s(&[given])),
        ];
        let file = open(&config, &tensors).unwrap();
        let step = |x: &f64| {
            let quotient = f64::from((*x as f32) / given);
            e4m3().round(quotient.clamp(-448.0, 448.0)) * f64::from(given)
        };
        let quantised: Vec<f64> = x.iter().map(step).collect();
        let scale = |at: usize| f64::from(scales[if block { at % k / 128 } else { 0 }]);
        let value = |(at, code): (usize, &u8)| e4m3().decode(u32::from(*code)) * scale(at);
        let w: Vec<f64> = codes.iter().enumerate().map(value).collect();
        assert_product(&product(&file, &x, k), &quantised, &w, k);
    }
}

#[test]
fn fp8_settings_that_are_refused() {
    let tensors = [
        stored("weight", "F8_E4M3", &[16, 128], vec![0x38; 16 * 128]),
        stored("weight_scale_inv", "F32", &[1, 1], f32s(&[1.0])),
    ];
    let config = |key: &str, value: Value| {
        let mut config: Value = serde_json::from_str(FP8).unwrap();
        config[key] = value;
        config
    };
    assert_eq!(fault(&config("scale_fmt", json!("float")), &tensors), "");
    let cases: &[(&str, Value, &[&str])] = &[
        ("scale_fmt", json!("e5m3"), &["scale_fmt", "e5m3"]),
        ("fmt", json!("e5m2"), &["`fmt`", "e5m2"]),
        ("activation_scheme", json!("weird"), &["activation_scheme"]),
        ("dequantize", json!(true), &["`dequantize`"]),
        ("expert_dtype", json!("fp4"), &["`expert_dtype`"]),
        ("rounding", json!("stochastic"), &["`rounding`", "unknown"]),
        ("modules_to_not_convert", json!(["l"]), &["modules_to_not_convert", "stores quantised"]),
        ("weight_block_size", Value::Null, &["scale_fmt"]),
    ];
    for (key, value, words) in cases {
        refused(&config(key, value.clone()), &tensors, words);
    }
    let beside = |name: &str| [&tensors[..], &[stored(name, "F32", &[1], f32s(&[1.0]))]].concat();
    refused(
        &config("fmt", json!("e4m3")),
        &beside("smooth_scale"),
        &["l.smooth_scale", "may change"],
    );
    refused(&config("fmt", json!("e4m3")), &beside("output_scale"), &["l.output_scale"]);
    assert_eq!(fault(&config("fmt", json!("e4m3")), &beside("k_scale")), "");
}

/// A ModelOpt layer of 4-bit integers, two rows in a byte, and its weights.
fn awq(random: &mut Random, (n, k): (usize, usize)) -> (Vec<Stored>, Vec<f64>) {
    let bytes: Vec<u8> = (0..n / 2 * k).map(|_| random.bits() as u8).collect();
    let scales: Vec<f32> = (0..n * (k / 128)).map(|at| 0.5 + at as f32 / 64.0).collect();
    let value = |at: usize| {
        let (row, column) = (at / k, at % k);
        let code = bytes[row / 2 * k + column] >> (4 * (row % 2)) & 15;
        let code = i32::from(code) - if code > 7 { 16 } else { 0 };
        f64::from(code) * f64::from(scales[row * (k / 128) + column / 128])
    };
    let w = (0..n * k).map(value).collect();
    let tensors = vec![
        stored("weight", "U8", &[n / 2, k], bytes),
        stored("weight_scale", "F32", &[n, k / 128], f32s(&scales)),
    ];
    (tensors, w)
}

fn prescaled(x: &[f64], factors: &[f64]) -> Vec<f64> {
    x.iter().zip(factors.iter().cycle()).map(|(x, factor)| BF16.round(x * factor)).collect()
}

#[test]
fn x_is_multiplied_by_pre_quant_scale_first() {
    let (n, k) = (32, 256);
    let mut random = Random(3);
    let x = tokens(&mut random, 3 * k);
    let factors: Vec<f64> =
        tokens(&mut random, k).iter().map(|x| BF16.round(x.abs() + 0.25)).collect();
    let (mut tensors, w) = awq(&mut random, (n, k));
    let folded = tensors.clone();
    tensors.push(stored("pre_quant_scale", "BF16", &[k], bf16s(&factors)));
    let config = json!({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 128,
        "has_zero_point": false, "pre_quant_scale": true, "exclude_modules": ["lm_head"]});
    let file = open(&config, &tensors).unwrap();
    let scheme = file.layer("l").map_err(|e| e.to_string()).unwrap().scheme().to_string();
    assert!(scheme.contains("prescale: bf16,"), "{scheme}");
    assert_product(&product(&file, &x, k), &prescaled(&x, &factors), &w, k);
    let plain = open(&config, &folded).unwrap();
    for x in [&x[..], &x[..k]] {
        for device in simulated() {
            assert_multiplied(&device, [&file, &plain], (x, &factors));
        }
    }

    // FP8 codes of the multiplied x; the second scale of the weight is that of the kernels' range.
    let given = 0.01f32;
    tensors.push(stored("input_scale", "F32", &[], f32s(&[given])));
    tensors.push(stored("weight_scale_2", "F32", &[], f32s(&[0.25])));
    let mixed = json!({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        "l": {"quant_algo": "W4A8_AWQ", "group_size": 128, "has_zero_point": false,
            "pre_quant_scale": true},
        "other": {"quant_algo": "FP8"},
    }});
    let file = open(&mixed, &tensors).unwrap();
    let step = |x: &f64| {
        let quotient = f64::from((*x as f32) / given).clamp(-448.0, 448.0);
        e4m3().round(quotient) * f64::from(given)
    };
    let quantised: Vec<f64> = prescaled(&x, &factors).iter().map(step).collect();
    assert_product(&product(&file, &x, k), &quantised, &w, k);
    refused(
        &json!({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"m": {"quant_algo": "FP8"}}}),
        &tensors,
        &["quantized_layers"],
    );
    let svd = json!({"quant_method": "modelopt", "quant_algo": "NVFP4_SVD", "group_size": 16});
    refused(&svd, &tensors, &["NVFP4_SVD", "low-rank"]);
    tensors.push(stored("svdquant_lora_a", "F32", &[1], f32s(&[1.0])));
    refused(&mixed, &tensors, &["svdquant_lora_a"]);
}

#[test]
fn nvfp4_awq_is_nvfp4_of_the_multiplied_x() {
    let (n, k) = (16, 128);
    let mut random = Random(4);
    let x = tokens(&mut random, 2 * k);
    let factors: Vec<f64> =
        tokens(&mut random, k).iter().map(|x| BF16.round(x.abs() + 0.5)).collect();
    let mut tensors = vec![
        stored("weight", "U8", &[n, k / 2], (0..n * k / 2).map(|_| random.bits() as u8).collect()),
        stored("weight_scale", "F8_E4M3", &[n, k / 16], vec![0x38; n * k / 16]),
        stored("weight_scale_2", "F32", &[], f32s(&[0.5])),
        stored("input_scale", "F32", &[], f32s(&[0.001])),
    ];
    let config = |algorithm: &str| json!({"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 16});
    let plain = open(&config("NVFP4"), &tensors).unwrap();
    tensors.push(stored("pre_quant_scale", "BF16", &[k], bf16s(&factors)));
    let file = open(&config("NVFP4_AWQ"), &tensors).unwrap();
    assert_multiplied(&CpuDevice::best(), [&file, &plain], (&x, &factors));
    for device in simulated() {
        assert_multiplied(&device, [&file, &plain], (&x, &factors));
    }
}

#[test]
fn every_algorithm_of_modelopt() {
    let (n, k) = (128, 256);
    let fp8 = |scale: &[usize]| {
        let count = scale.iter().product();
        vec![
            stored("weight", "F8_E4M3", &[n, k], vec![0x38; n * k]),
            stored("weight_scale", "F32", scale, f32s(&vec![0.5; count])),
        ]
    };
    let bytes = |width: usize, scale: &'static str, dims: [usize; 2]| {
        vec![
            stored("weight", "U8", &[n, width], vec![0x21; n * width]),
            stored("weight_scale", scale, &dims, vec![0x38; dims[0] * dims[1]]),
        ]
    };
    let int8 = vec![
        stored("weight", "I8", &[n, k], vec![3; n * k]),
        stored("weight_scale", "F32", &[n], f32s(&vec![0.5; n])),
    ];
    let input = |tensors: Vec<Stored>| {
        [&tensors[..], &[stored("input_scale", "F32", &[], f32s(&[0.5]))]].concat()
    };
    let second = |tensors: Vec<Stored>| {
        [&tensors[..], &[stored("weight_scale_2", "F32", &[], f32s(&[0.5]))]].concat()
    };
    let mxfp8 = vec![
        stored("weight", "F8_E4M3", &[n, k], vec![0x38; n * k]),
        stored("weight_scale", "U8", &[n, k / 32], vec![127; n * k / 32]),
    ];
    let cases = [
        ("FP8", input(fp8(&[])), "per tensor"),
        ("FP8", fp8(&[n]), "per channel"),
        ("FP8_PER_CHANNEL_PER_TOKEN", fp8(&[n]), "per token"),
        ("fp8_pb_wo", fp8(&[1, 1, 2, 1]), "128x128"),
        ("W4A16_NVFP4", second(bytes(k / 2, "F8_E4M3", [n, k / 16])), "weight: e2m1"),
        ("W4A8_NVFP4_FP8", input(second(bytes(k / 2, "F8_E4M3", [n, k / 16]))), "e4m3 {"),
        ("W4A8_MXFP4_FP8", input(bytes(k / 2, "U8", [n, k / 32])), "e8m0 per 1x32"),
        ("MXFP8", mxfp8, "from pow2 above 1.75000011"),
        ("W8A16", int8.clone(), "weight: i8"),
        ("W8A8_SQ_PER_CHANNEL", input(int8), "from amax / 127"),
    ];
    for (algorithm, tensors, words) in cases {
        let config = json!({"quant_method": "modelopt", "quant_algo": algorithm});
        let file = open(&config, &tensors).unwrap();
        let layer = file.layer("l").map_err(|e| format!("{algorithm}: {e}")).unwrap();
        assert!(layer.scheme().to_string().contains(words), "{algorithm}: {}", layer.scheme());
        layer.unpack().unwrap();
    }
}

/// The order in which Quark's `reorder` puts eight columns into a word.
const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

#[test]
fn quark_packs_four_bits_along_rows() {
    let (n, k, group) = (16, 64, 32);
    let mut random = Random(5);
    let codes: Vec<u32> = (0..n * k).map(|_| random.below(16) as u32).collect();
    let scales: Vec<f32> = (0..k / group * n).map(|at| 0.25 + at as f32).collect();
    let zeros: Vec<u32> = (0..k / group * n).map(|_| random.below(16) as u32).collect();
    let words = |of: &dyn Fn(usize, usize) -> u32, rows: usize, order: &[usize; 8]| -> Vec<u8> {
        let word = |at: usize| {
            let (row, first) = (at / (n / 8), at % (n / 8) * 8);
            (0..8).fold(0u32, |word, place| word | of(first + order[place], row) << (4 * place))
        };
        (0..rows * n / 8).flat_map(|at| word(at).to_le_bytes()).collect()
    };
    let plain = [0, 1, 2, 3, 4, 5, 6, 7];
    for (dtype, method, order) in [
        ("int4", "reorder", &ORDER),
        ("int4", "order", &plain),
        ("uint4", "reorder", &ORDER),
        ("uint4", "order", &plain),
    ] {
        let signed = dtype == "int4";
        let config = json!({"quant_method": "quark", "global_quant_config": {
                "weight": {"dtype": dtype, "qscheme": "per_group", "group_size": group, "ch_axis": 1,
                    "is_dynamic": false, "symmetric": signed, "round_method": "half_even",
                    "scale_type": "float", "observer_cls": "PerGroupMinMaxObserver"},
                "input_tensors": null, "output_tensors": null, "bias": null, "target_device": null},
            "exclude": [], "layer_quant_config": {}, "layer_type_quant_config": {},
            "algo_config": [{"name": "awq", "scaling_layers": []}], "quant_mode": "eager_mode",
            "export": {"pack_method": method, "weight_format": "real_quantized",
                "kv_cache_group": [], "min_kv_scale": 0.0}});
        let zero = |row: usize, at: usize| if signed { 0 } else { zeros[at * n + row] };
        let tensors = [
            stored("weight", "I32", &[k, n / 8], words(&|row, at| codes[row * k + at], k, order)),
            stored("weight_scale", "F32", &[k / group, n], f32s(&scales)),
            stored("weight_zero_point", "I32", &[k / group, n / 8], words(&zero, k / group, order)),
        ];
        let file = open(&config, &tensors).unwrap();
        assert_eq!(file.notes().count(), 0);
        let layer = file.layer("l").map_err(|e| e.to_string()).unwrap();
        let ours = layer.unpack().unwrap().decode_rows(0..n as u64);
        for (at, ours) in ours.iter().enumerate() {
            let (row, column) = (at / k, at % k);
            let code = codes[at] as i32;
            let code = if signed && code > 7 { code - 16 } else { code };
            let by_group = column / group * n + row;
            let zero = if signed { 0 } else { zeros[by_group] as i32 };
            assert_eq!(*ours, (code - zero) as f32 * scales[by_group], "{dtype} {method} {at}");
        }
    }
}

#[test]
fn quark_settings_that_are_refused() {
    let tensors = [
        stored("weight", "F8_E4M3", &[16, 64], vec![0x38; 16 * 64]),
        stored("weight_scale", "F32", &[], f32s(&[1.0])),
        stored("input_scale", "F32", &[], f32s(&[1.0])),
    ];
    let spec = json!({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": false});
    let config = |pointer: &str, value: Value| {
        let mut config = json!({"quant_method": "quark", "global_quant_config": {
            "weight": spec, "input_tensors": spec, "output_tensors": null, "bias": null},
            "layer_quant_config": {"l*": {"weight": spec, "input_tensors": spec,
                "output_tensors": null, "bias": null}},
            "algo_config": null, "export": {"kv_cache_group": []}});
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(parent).unwrap()[key] = value;
        config
    };
    assert_eq!(fault(&config("/exclude", json!([])), &tensors), "");
    let cases: &[(&str, Value, &[&str])] = &[
        ("/layer_quant_config/l*/output_tensors", spec.clone(), &["output_tensors"]),
        ("/layer_quant_config/l*/bias", spec.clone(), &["bias"]),
        ("/layer_quant_config/l*/weight/zoom", json!(2), &["zoom", "unknown"]),
        ("/layer_quant_config/l*/input_tensors/scale_type", json!("pof2"), &["scale_type"]),
        ("/layer_quant_config/l*/input_tensors/round_method", json!("floor"), &["round_method"]),
        ("/algo_config", json!([{"name": "rotation", "r4": true}]), &["algo_config.r4"]),
        ("/algo_config", json!([{"name": "mystery"}]), &["algo_config.name", "mystery"]),
        ("/layer_type_quant_config", json!({"Linear": {}}), &["layer_type_quant_config"]),
        ("/export/weight_format", json!("fake_quantized"), &["weight_format"]),
    ];
    for (pointer, value, words) in cases {
        refused(&config(pointer, value.clone()), &tensors, words);
    }
    // Of other layers.
    let mut other = config("/layer_quant_config/l*/output_tensors", spec.clone());
    let layers = other["layer_quant_config"].as_object_mut().unwrap();
    let moved = layers.remove("l*").unwrap();
    layers.insert("m*".to_owned(), moved);
    assert_eq!(fault(&other, &tensors), "");
    // Outputs that are attention's cache.
    let mut cached = config("/layer_quant_config/l*/output_tensors", spec.clone());
    cached["export"]["kv_cache_group"] = json!(["l*"]);
    assert_eq!(fault(&cached, &tensors), "");
}

#[test]
fn bitsandbytes_four_bits() {
    let (n, k, block) = (8, 128, 64);
    let mut random = Random(6);
    let bytes: Vec<u8> = (0..n * k / 2).map(|_| random.bits() as u8).collect();
    let map: Vec<f32> = (0..16).map(|at| (at as f32 - 7.0) / 8.0 + 1e-3).collect();
    let blocks = n * k / block;
    let table: Vec<f32> = (0..256).map(|at| at as f32 / 255.0 - 0.3).collect();
    let absmax: Vec<u8> = (0..blocks).map(|_| random.bits() as u8).collect();
    let state = json!({"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": [n, k],
        "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.7});
    let config = json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false,
        "_load_in_4bit": true, "_load_in_8bit": false, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_use_double_quant": true,
        "bnb_4bit_quant_storage": "uint8", "llm_int8_threshold": 6.0,
        "llm_int8_has_fp16_weight": false, "llm_int8_skip_modules": null,
        "llm_int8_enable_fp32_cpu_offload": false});
    let scales: Vec<f32> =
        absmax.iter().map(|code| table[usize::from(*code)] * 1.5 + 0.7).collect();
    let text = |state: &Value| state.to_string().into_bytes();
    let tensors = |nested: bool, state: &Value| {
        let mut all = vec![
            stored("weight", "U8", &[n * k / 2, 1], bytes.clone()),
            stored("weight.quant_map", "F32", &[16], f32s(&map)),
            stored("weight.quant_state.bitsandbytes__nf4", "U8", &[text(state).len()], text(state)),
        ];
        if nested {
            all.push(stored("weight.absmax", "U8", &[blocks], absmax.clone()));
            all.push(stored("weight.nested_absmax", "F32", &[1], f32s(&[1.5])));
            all.push(stored("weight.nested_quant_map", "F32", &[256], f32s(&table)));
        } else {
            all.push(stored("weight.absmax", "F32", &[blocks], f32s(&scales)));
        }
        all
    };
    for nested in [false, true] {
        let file = open(&config, &tensors(nested, &state)).unwrap();
        let layer = file.layer("l").map_err(|e| e.to_string()).unwrap();
        let ours = layer.unpack().unwrap().decode_rows(0..n as u64);
        for (at, ours) in ours.iter().enumerate() {
            let code = bytes[at / 2] >> (4 * (1 - at % 2)) & 15;
            assert_eq!(*ours, map[usize::from(code)] * scales[at / block], "{nested} {at}");
        }
    }
    let mut odd = state.clone();
    odd["blocksize"] = json!(96);
    refused(&config, &tensors(false, &odd), &["blocks of 96"]);
    let eight = [
        stored("weight", "I8", &[n, k], vec![1; n * k]),
        stored("SCB", "F32", &[n], f32s(&vec![1.0; n])),
    ];
    refused(&config, &eight, &["llm_int8_threshold"]);
    let hqq = json!({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}});
    refused(&hqq, &eight, &["HQQ"]);
}

#[test]
fn gptqmodel_writes_the_version_as_format() {
    let (n, k) = (8, 32);
    let tensors = [
        stored("qweight", "I32", &[k / 8, n], vec![0; n * k / 2]),
        stored("qzeros", "I32", &[1, n / 8], vec![0; n / 2]),
        stored("scales", "F16", &[1, n], vec![0; 2 * n]),
    ];
    let config = |more: Value| {
        let mut config = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true,
            "desc_act": false, "lm_head": false, "pack_dtype": "int32", "method": "gptq",
            "meta": {"quantizer": ["gptqmodel:7.7.0"], "damp_percent": 0.05}});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let plus = |more: Value| {
        let file = open(&config(more), &tensors).unwrap();
        assert_eq!(file.notes().count(), 0);
        file.layer("l").map_err(|e| e.to_string()).unwrap().scheme().to_string().contains("u4 + 1")
    };
    assert!(plus(json!({})) && plus(json!({"format": "gptq"})));
    assert!(!plus(json!({"format": "gptq_v2"})) && !plus(json!({"checkpoint_format": "gptq_v2"})));
    refused(
        &config(json!({"format": "gptq", "checkpoint_format": "gptq_v2"})),
        &tensors,
        &["format"],
    );
    refused(&config(json!({"rotation": "hadamard"})), &tensors, &["rotation"]);
    refused(&config(json!({"activation": {"mode": "w4a8"}})), &tensors, &["activation"]);
    refused(&config(json!({"adapter": {"rank": 8}})), &tensors, &["adapter"]);
    let file = open(&config(json!({"flavour": "mint"})), &tensors).unwrap();
    let notes: Vec<&str> = file.notes().collect();
    assert!(notes.len() == 1 && notes[0].contains("`flavour`"), "{notes:?}");
}

/// Expressions that backtrack on every layer's name: a few are tried, the rest is an error.
#[test]
#[ignore = "it takes the whole budget: .ci/run runs it"]
fn patterns_have_one_budget() {
    let slow = |at: usize| format!("re:model.*?{}(?=b)x{at}", "(a|a)".repeat(12));
    let targets: Vec<String> = (0..500).map(slow).collect();
    let weights = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32});
    let config = json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"g": {"targets": targets, "weights": weights}}});
    let tensor = |layer: usize, name: &str, dtype, shape: &[usize], bytes| -> Stored {
        (format!("model.{layer}.{}.{name}", "a".repeat(30)), dtype, shape.to_vec(), bytes)
    };
    let mut tensors = Vec::new();
    for layer in 0..300 {
        tensors.push(tensor(layer, "weight_packed", "I32", &[1, 4], vec![0; 16]));
        tensors.push(tensor(layer, "weight_scale", "F32", &[1, 1], vec![0; 4]));
    }
    let file = open(&config, &tensors).unwrap();
    let errors: Vec<LayerFault> = file.layers().filter_map(|(_, layer)| layer.err()).collect();
    assert_eq!(errors.len(), 300);
    assert!(errors[299].to_string().contains("too long"), "{}", errors[299]);
    let LayerFault::Broken(error) = &errors[299] else { panic!("{:?}", errors[299]) };
    assert!(
        matches!(&**error, CheckpointError::Pattern { problem: PatternProblem::Time, .. }),
        "{error:?}"
    );
}

/// A program can tell the ways apart in which a configuration is wrong.
#[test]
fn faults_of_configurations_are_typed() {
    let problem = |text: &str| {
        let header = json!({"__metadata__": {"quantization_config": text}}).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        match Checkpoint::from_bytes(file, Options::default()).err() {
            Some(CheckpointError::Config { place, problem }) => {
                assert_eq!(place, "the metadata key `quantization_config`");
                problem
            }
            other => panic!("{text}: {other:?}"),
        }
    };
    let said = |problem: &ConfigProblem| problem.to_string();
    let json = problem("{");
    assert!(matches!(&json, ConfigProblem::Json { error } if error.is_eof()), "{json}");
    let missing = problem("{}");
    assert!(matches!(&missing, ConfigProblem::Missing(key) if key == "quant_method"), "{missing}");
    let format = problem(r#"{"quant_method": "abc"}"#);
    assert!(matches!(&format, ConfigProblem::Format(name) if name == "abc"), "{format}");
    let number = problem(r#"{"quant_method": 3}"#);
    assert!(matches!(&number, ConfigProblem::Type { key, .. } if key == "quant_method"));
    assert_eq!(said(&number), "`quant_method` is 3, expected a string");
    let list = problem(r#"{"quant_method": [1, 2]}"#);
    assert_eq!(said(&list), "`quant_method` is a list, expected a string");
    let setting = problem(r#"{"quant_method": "awq", "bits": 3}"#);
    assert!(matches!(&setting, ConfigProblem::Setting { .. }), "{setting:?}");
}

/// Values cost far more memory than their text.
#[test]
fn metadata_of_millions_of_values() {
    let many = |text: &str, count: usize| {
        let config =
            format!("{{\"quant_method\": \"fp8\", \"x\": [{}]}}", vec![text; count].join(","));
        let header = json!({"__metadata__": {"quantization_config": config}}).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        Checkpoint::from_bytes(file, Options::default()).err().unwrap().to_string()
    };
    assert!(many("0", 4_000_000).contains("too many"), "values");
    assert!(many("{\"\":0}", 400_000).contains("too many"), "objects");
    assert!(many("0", 1000).contains("`x`"), "a few are read");
}

/// `docs/checkpoint-keys.md` is generated from the tables.
#[test]
fn the_page_of_keys_is_fresh() {
    let families = [
        CheckpointFormat::CompressedTensors,
        CheckpointFormat::Gptq,
        CheckpointFormat::Awq,
        CheckpointFormat::Quark,
        CheckpointFormat::ModelOpt,
        CheckpointFormat::Fp8,
        CheckpointFormat::GptOss,
        CheckpointFormat::BitsAndBytes,
        CheckpointFormat::Hqq,
    ];
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/checkpoint-keys.md");
    let old = std::fs::read_to_string(page).unwrap();
    let head = old.split("\n## ").next().unwrap().trim_end();
    let mut new = format!("{head}\n");
    for family in families {
        let table = table(family).unwrap();
        new += &format!("\n## {}\n\n{}.\n\n", family.name(), table.software);
        for (kind, title) in [(Kind::Key, "key"), (Kind::Tensor, "other tensor of a layer")] {
            let rows: Vec<_> = table.rows.iter().filter(|row| row.kind == kind).collect();
            if rows.is_empty() {
                continue;
            }
            if kind == Kind::Tensor {
                new.push('\n');
            }
            new += &format!("| {title} | | why |\n|---|---|---|\n");
            for row in rows {
                let what = match &row.what {
                    Use::Used => "used".to_owned(),
                    Use::Harmless => "harmless".to_owned(),
                    Use::Zeros => "has to be zeros".to_owned(),
                    Use::Reported => "reported".to_owned(),
                    Use::Refused(values) if values.is_empty() => "refused".to_owned(),
                    Use::Refused(values) => format!("refused unless {}", values.join(", ")),
                };
                let why = if row.path.last() == Some(&"?") { "any other key" } else { row.note };
                new += &format!("| `{}` | {what} | {why} |\n", row.path.join("."));
            }
        }
    }
    if std::env::var_os("QUANTLOOM_WRITE_PAGES").is_some() {
        std::fs::write(page, &new).unwrap();
    }
    assert!(
        old == new,
        "again: QUANTLOOM_WRITE_PAGES=1 cargo test -p quantloom-tests --test tests page"
    );
}
