//! Float weights into every scheme of the catalogue and back, through a file.

use std::collections::BTreeMap;
use std::path::Path;

use quantloom_dsl::format::{BF16, Number};
use quantloom_dsl::layout::{Component, Index, Shape};
use quantloom_dsl::reference::{PlainCodes, quantise, unpack};
use quantloom_dsl::{Arithmetic, Code, ScaleRule, ScaleType, Scheme};
use quantloom_kernels::{catalogue, scheme};
use quantloom_runtime::checkpoint::{Checkpoint, Dtype, Layer, Tensors};
use quantloom_runtime::quantise::{
    Outcome, QuantiseError, WeightProblem, candidates, quantise_checkpoint,
};
use quantloom_tests::floats::{Float, float_file, floats, quantised, untouched};
use quantloom_tests::sweep::Share;
use quantloom_tests::{Random, bf16_tensor, bf16_values, packed, parts, tensors_of, write_file};

/// Schemes that no other software's configuration can describe.
const FALL_BACK: &[&str] =
    &["arm_w4a8_channel", "arm_w4a8_g32", "e3m4_g64", "fp8_fnuz_block", "fp8_fnuz_channel"];

/// The `quant_method` of a scheme's own software; `None` for gpt-oss, which is recognised by its
/// tensors' names.
fn method(name: &str) -> Option<&'static str> {
    let by_prefix = [
        ("ct_", "compressed-tensors"),
        ("gptq", "gptq"),
        ("awq", "awq"),
        ("quark_", "quark"),
        ("modelopt_", "modelopt"),
        ("fp8_block", "fp8"),
    ];
    match by_prefix.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        Some((_, method)) => Some(method),
        None if name.starts_with("gpt_oss") => None,
        None => Some("quantloom"),
    }
}

#[test]
fn schemes_read_back_equal() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("float.safetensors"), folder.path().join("q.safetensors"));
    let mut fall_back = Vec::new();
    let share = Share::new(4, 3);
    for scheme in share.of(catalogue()) {
        let layers = floats(scheme);
        float_file(&from, scheme, &layers);
        let outcomes = quantised(scheme, &from, &to);
        let checkpoint = Checkpoint::open(&to).unwrap();
        assert_eq!(checkpoint.layers().count(), 2, "{}", scheme.name);
        for (float, outcome) in layers.iter().zip(&outcomes) {
            assert_eq!(outcome.layer, float.layer);
            let layer = checkpoint.layer(&float.layer).unwrap();
            reads_back(scheme, float, layer, outcome);
        }
        let written = tensors_of(&to);
        for (name, tensor) in untouched() {
            assert!(written[&name] == tensor, "{}: {name} was changed", scheme.name);
        }
        let config: Option<serde_json::Value> = Tensors::open(&to)
            .unwrap()
            .metadata("quantization_config")
            .map(|text| serde_json::from_str(text).unwrap());
        let said = config.as_ref().map(|config| config["quant_method"].as_str().unwrap());
        assert_eq!(said, method(&scheme.name), "{}", scheme.name);
        if said == Some("quantloom") {
            fall_back.push(scheme.name.as_str());
        }
        assert_eq!(files_in(folder.path()), 2, "no temporary file stays");
    }
    let names = share.of(catalogue()).into_iter().map(|scheme| scheme.name.as_str());
    let expected: Vec<_> = names.filter(|name| FALL_BACK.contains(name)).collect();
    assert_eq!(fall_back, expected);
}

/// Shapes that are not multiples of words and groups: the software's own layout may be unable to
/// describe them (its shape is counted in words), but every written file reads back.
#[test]
fn ragged_layers_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("float.safetensors"), folder.path().join("q.safetensors"));
    for scheme in catalogue() {
        let experts = if scheme.experts.is_some() { 2 } else { 1 };
        let layers: Vec<Float> = [(37, 200), (41, 203)]
            .into_iter()
            .zip(["model.layers.0.gate_up_proj", "model.layers.1.gate_up_proj"])
            .map(|((n, k), layer)| {
                let shape = Shape { experts, n, k };
                let weight = Random(n).bf16(shape.elements().unwrap() as usize, 0.05);
                Float { layer: layer.to_owned(), shape, weight, bias: None }
            })
            .collect();
        float_file(&from, scheme, &layers);
        quantised(scheme, &from, &to);
        let checkpoint = Checkpoint::open(&to).unwrap();
        for float in &layers {
            let layer = checkpoint.layer(&float.layer).unwrap_or_else(|fault| panic!("{fault}"));
            assert!(layer.scheme().same_meaning(scheme), "{}", scheme.name);
            assert_eq!(layer.shape(), float.shape, "{}", scheme.name);
            layer.unpack().unwrap();
        }
    }
}

/// Elements, slices, records and words that are not whole bytes: every written file reads back.
#[test]
fn stores_of_no_whole_bytes_read_back() {
    let u4 = "scale: f16 per 1x64, pack: u32 [k:8 | k, n]";
    let schemes = [
        // A zero point of 3, 4, 5, 7 bits an element.
        format!("weight: u4, zero: u4, {u4}"),
        format!("weight: u4, zero: u3, {u4}"),
        format!("weight: u4, zero: u5 [g, n], {u4}"),
        format!("weight: u4, zero: i7 [n, g], {u4}"),
        // Scales of 6 bits; whole numbers of 16.
        "weight: i8, scale: e3m2 per 1x32, scale: f32 per tensor, pack: [k, n]".to_owned(),
        "weight: i8, scale: u16 per 1x32, pack: [k, n]".to_owned(),
        // Codes of 3 and 5 bits one after the other, and of a single bit.
        "weight: i3, scale: bf16 per channel, pack: [k, n]".to_owned(),
        "weight: u5 - 16, scale: bf16 per channel, pack: [k, n]".to_owned(),
        "weight: codebook(-1, 1), scale: bf16 per channel, pack: [k, n]".to_owned(),
        // Codes with sign bits behind them to the next word's middle.
        "weight: i4, scale: bf16 per channel, pack: i8 [code, pad 8 = sign | k, n, w]".to_owned(),
        // An index of 12 bits; only the zero point is grouped along k.
        format!("weight: u4 - 8, index: u12, {u4}"),
        "weight: u4, zero: f16 per 1x32, index: i32, scale: f16 per channel, pack: u8 [k:2 | k, n]"
            .to_owned(),
    ];
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("float"), folder.path().join("q"));
    for clauses in schemes {
        let text = format!("s {{ {clauses}, activation: f16 }}");
        let scheme =
            quantloom_dsl::parse(&text).unwrap_or_else(|faults| panic!("{text}\n{faults}"));
        let layers: Vec<Float> = [(33, 160), (17, 321), (48, 256)]
            .into_iter()
            .map(|(n, k)| {
                let shape = Shape::matrix(n, k);
                let weight = Random(n).bf16((n * k) as usize, 0.05);
                Float { layer: format!("layers.{n}"), shape, weight, bias: None }
            })
            .collect();
        float_file(&from, &scheme, &layers);
        let tensors = Tensors::open(&from).unwrap();
        let mut chosen = candidates(&tensors, &scheme);
        chosen.retain(|candidate| candidate.layer.contains("layers"));
        let written = quantise_checkpoint(&tensors, &scheme, &chosen, &to, &|_| {});
        written.unwrap_or_else(|error| panic!("{text}\n{error}"));
        let checkpoint = Checkpoint::open(&to).unwrap_or_else(|error| panic!("{text}\n{error}"));
        for float in &layers {
            let layer = checkpoint.layer(&float.layer).unwrap_or_else(|f| panic!("{text}\n{f}"));
            assert!(layer.scheme().same_meaning(&scheme) && layer.shape() == float.shape, "{text}");
            let plain = unpack(layer.scheme(), float.shape, &packed(layer)).unwrap();
            let w = bf16_values(&float.weight);
            assert!(plain == quantise(&scheme, float.shape, &w, BF16, None).unwrap(), "{text}");
        }
    }
}

/// An unsupported input is an error with a reason, and no file is written.
#[test]
fn what_cannot_be_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let weight = || bf16_tensor(&[8, 320], &Random(3).bf16(8 * 320, 0.05));
    let pack = "scale: f16 per 1x16, pack: u8 [k:2 | k, n], activation: f16";
    let small = format!("s {{ weight: u4 - 8, index: u4, {pack} }}");
    let twice = format!("s {{ weight: u4 - 8, {pack} }}");
    for (name, text, other, said) in [
        ("index", small, None, "20 groups of columns cannot be numbered in u4"),
        ("twice", twice, Some("l.weight_scale"), "would be written twice"),
    ] {
        let mut tensors = BTreeMap::from([("l.weight".to_owned(), weight())]);
        tensors.extend(other.map(|other| (other.to_owned(), weight())));
        write_file(&path(name), &tensors, None);
        let tensors = Tensors::open(&path(name)).unwrap();
        let scheme =
            quantloom_dsl::parse(&text).unwrap_or_else(|faults| panic!("{text}\n{faults}"));
        let mut chosen = candidates(&tensors, &scheme);
        chosen.retain(|candidate| candidate.layer == "l");
        let error = quantise_checkpoint(&tensors, &scheme, &chosen, &path("out"), &|_| {});
        let error = error.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        let QuantiseError::Weight { problem, .. } = error else { panic!("{error:?}") };
        match name {
            "index" => assert!(matches!(*problem, WeightProblem::Index { groups: 20, .. })),
            _ => assert!(matches!(*problem, WeightProblem::Twice)),
        }
        assert!(!path("out").exists() && files_in(folder.path()) <= 2, "{name}");
    }
}

/// Unusual names of layers: empty, with spaces, quotes, other scripts, or like a tensor's.
#[test]
fn odd_names_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("float"), folder.path().join("q"));
    let names = ["", "a b", "a\"b\\", "层.ß", "a.weight", "weight_packed", "a\nb", "*.re:x"];
    for scheme in
        ["ct_w4a16", "gptq4_v1", "awq4", "ct_fp8_block", "quark_w_mxfp4_a_mxfp4", "e3m4_g64"]
    {
        let scheme = scheme_of(scheme);
        let tensor = |name: &&str| {
            let name = if name.is_empty() { "weight".to_owned() } else { format!("{name}.weight") };
            (name, bf16_tensor(&[64, 256], &Random(9).bf16(64 * 256, 0.05)))
        };
        write_file(&from, &names.iter().map(tensor).collect(), None);
        let tensors = Tensors::open(&from).unwrap();
        let chosen = candidates(&tensors, scheme);
        let written = quantise_checkpoint(&tensors, scheme, &chosen, &to, &|_| {});
        written.unwrap_or_else(|error| panic!("{}: {error}", scheme.name));
        let checkpoint = Checkpoint::open(&to).unwrap();
        for name in names {
            let layer = checkpoint.layer(name).unwrap_or_else(|f| panic!("{}: {f}", scheme.name));
            assert!(layer.scheme().same_meaning(scheme), "{}: {name:?}", scheme.name);
            layer.unpack().unwrap();
        }
    }
}

fn scheme_of(name: &str) -> &'static Scheme {
    scheme(name).unwrap_or_else(|| panic!("{name}"))
}

fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn reads_back(scheme: &Scheme, float: &Float, layer: &Layer, outcome: &Outcome) {
    let case = format!("{}: {}", scheme.name, float.layer);
    let w = bf16_values(&float.weight);
    let bias = float.bias.as_ref().map(|bias| bf16_values(bias));
    // A bias that the scheme does not declare is copied, and the layer has it.
    let mut expected = scheme.clone();
    if let (None, Some(_)) = (scheme.bias, &bias) {
        expected.bias = Some(Number::Float(BF16));
        let read = layer.scheme().stores_of(Component::Bias).next().expect(&case);
        expected.stores.push(read.clone());
        let sort = |scheme: &mut Scheme| scheme.stores.sort_by(|a, b| a.name.cmp(&b.name));
        let mut read = layer.scheme().clone();
        sort(&mut read);
        sort(&mut expected);
        assert!(read.same_meaning(&expected), "{case}:\n{}\nnot\n{expected}", layer.scheme());
    } else {
        assert!(layer.scheme().same_meaning(scheme), "{case}:\n{}", layer.scheme());
    }
    assert_eq!(layer.shape(), float.shape, "{case}");
    let plain = unpack(layer.scheme(), float.shape, &packed(layer)).unwrap();
    let reference = quantise(scheme, float.shape, &w, BF16, bias.as_deref()).unwrap();
    for (component, codes) in &reference.components {
        assert!(plain.of(*component) == codes, "{case}: {component}");
    }
    let unpacked = layer.unpack().unwrap();
    let decoded = unpacked.decode_rows(0..float.shape.experts * float.shape.n);
    within_half_a_step(scheme, &reference, &w, &decoded, &case);

    let read = unpacked.bias().map(<[f64]>::to_vec);
    let given =
        bias.or(scheme.bias.map(|_| vec![0.0; (float.shape.experts * float.shape.n) as usize]));
    let Some((read, given)) = read.zip(given.clone()) else {
        return assert!(given.is_none(), "{case}: the bias is lost");
    };
    for (read, given) in read.iter().zip(given) {
        assert!((read - given).abs() <= given.abs() * (-11f64).exp2(), "{case}: bias");
    }
    let noise: f64 = w.iter().zip(&decoded).map(|(w, d)| (w - f64::from(*d)).powi(2)).sum();
    let sqnr = 10.0 * (w.iter().map(|w| w * w).sum::<f64>() / noise).log10();
    assert!((sqnr - outcome.sqnr).abs() < 1e-6, "{case}: {sqnr} dB, said {}", outcome.sqnr);
    let least = least_sqnr(scheme);
    assert!((least..least + 12.0).contains(&sqnr), "{case}: {sqnr} dB, expected {least} or more");
}

/// dB. Integers: normal weights fill 2^b steps with at least 2 * 4.5 deviations, and the error
/// of a step is 1 / sqrt(12) of it. Floats: an error of half a step of 2^-m at most, so
/// 2^-(m+1) / sqrt(3) relative, one bit more lost to clamping and to what is near zero.
fn least_sqnr(scheme: &Scheme) -> f64 {
    match &scheme.weight.code {
        Code::Number(Number::Float(format)) => 6.02 * f64::from(format.mantissa_bits) + 4.77,
        code => 6.02 * f64::from(code.bits()) - 20.0 * (9.0 / 12f64.sqrt()).log10(),
    }
}

/// Each weight is within half a step of its code, and each scale uses the codes' range.
///
/// In units of the scale, q = w / s. The quantiser's own roundings move q by a few u, u being
/// 2^-8 in bf16 (`arithmetic: own`) and 2^-24 in f32, and the stored scale by its own u, or by half
/// of its smallest number where it is subnormal; a zero point is rounded too, by half a step more.
fn within_half_a_step(scheme: &Scheme, plain: &PlainCodes, w: &[f64], decoded: &[f32], case: &str) {
    let (low, high) = scheme.weight.range();
    let arithmetic = match scheme.arithmetic {
        Arithmetic::InputDtype => (-8f64).exp2(),
        Arithmetic::F32 => (-24f64).exp2(),
    };
    let stored = |scale: f64| match scheme.scales[0].number {
        ScaleType::Number(Number::Float(format)) => {
            let mantissa = f64::from(format.mantissa_bits);
            let smallest = (1.0 - f64::from(format.bias()) - mantissa).exp2();
            // The first of several levels is chosen so that the scale is not subnormal.
            let subnormal = if scheme.scales.len() == 1 { smallest / 2.0 / scale } else { 0.0 };
            (-mantissa - 1.0).exp2().max(subnormal)
        }
        _ => 0.0,
    };
    let rule = scheme.scales[0].rule;
    // The smallest scale that the rule may give: how far beyond the codes a weight may then be.
    let exact_reach = match rule {
        ScaleRule::Amax(divisor) => f64::from_bits(divisor),
        ScaleRule::Range(_) => high - low + 1.0,
        ScaleRule::Pow2Over(divisor) => f64::from_bits(divisor),
        ScaleRule::Pow2 { above } => {
            let threshold = above.map_or(2.0, f64::from_bits);
            threshold * high.log2().floor().exp2()
        }
    };
    let shape = plain.shape;
    let mut largest: f64 = 0.0;
    for (at, (w, decoded)) in w.iter().zip(decoded).enumerate() {
        let (row, k) = (at as u64 / shape.k, at as u64 % shape.k);
        let index = Index { e: row / shape.n, n: row % shape.n, k };
        let (code, zero, scale) = parts(scheme, plain, index);
        let place = format!("{case}: w[{row}, {k}] = {w}, {decoded} = ({code} - {zero}) * {scale}");
        let exact = (code - zero) * scale;
        assert!((f64::from(*decoded) - exact).abs() <= exact.abs() * (-23f64).exp2(), "{place}");
        assert!(scale.is_normal() && (*w != 0.0 || exact == 0.0), "{place}");
        let q = w / scale;
        let reach = exact_reach * (1.0 + 4.0 * arithmetic + stored(scale));
        largest = largest.max(q.abs());
        assert!(q.abs() <= reach, "{place}: the scale is too small");
        let half = match &scheme.weight.code {
            Code::Number(Number::Float(format)) => {
                let lowest = 1.0 - f64::from((1 << (format.exponent_bits - 1)) - 1);
                let exponent = q.abs().min(high).log2().floor().max(lowest);
                (exponent - f64::from(format.mantissa_bits) - 1.0).exp2()
            }
            _ if scheme.zero.is_some() => 1.0,
            _ => 0.5,
        };
        let beyond = (q - high).max(low - q).max(0.0);
        let slack = 4.0 * arithmetic * (q.abs() + zero.abs());
        let clamped = if scheme.zero.is_some() { 0.0 } else { beyond };
        let bound = half.max(clamped) + slack + reach * (-22f64).exp2();
        assert!((q - (code - zero)).abs() <= bound, "{place}: off by more than {bound} steps");
    }
    assert!(largest >= high / 2.0 * 0.99, "{case}: the codes are used up to {largest} only");
}

/// An f32 rounded to bf16, nearest even: independent of the crate's formats.
fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn f32_of(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// compressed-tensors' rule, from its description alone: scale = bf16(amax / ((2^b - 1) / 2)),
/// code = round(clamp(bf16(w / scale))), half to even.
#[test]
fn integer_codes_are_those_of_compressed_tensors() {
    // Name, bits, group (0: the row), packed.
    let packed = (2..=8).map(|bits| (format!("ct_w{bits}a16"), bits, 128, true));
    let with_int8 = (2..=7).map(|bits| (format!("ct_w{bits}a8"), bits, 128, false));
    let with_int4 = (2..=4).map(|bits| (format!("ct_w{bits}a4"), bits, 128, false));
    let others =
        [("ct_w4afp8", 4, 128, false), ("ct_w8a8", 8, 0, false), ("ct_mxint4", 4, 32, true)];
    let others = others.map(|(name, bits, group, packed)| (name.to_owned(), bits, group, packed));
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("float.safetensors"), folder.path().join("q.safetensors"));
    let mut compared = 0;
    for (name, bits, group, packed) in packed.chain(with_int8).chain(with_int4).chain(others) {
        let scheme = scheme(&name).expect(&name);
        let layers = floats(scheme);
        float_file(&from, scheme, &layers);
        quantised(scheme, &from, &to);
        let file = tensors_of(&to);
        for float in &layers {
            let (n, k) = (float.shape.n as usize, float.shape.k as usize);
            let group = if group == 0 { k } else { group };
            let stored = |tensor: &str| &file[&format!("{}.{tensor}", float.layer)];
            let (codes, scales) = if packed {
                assert_eq!(
                    stored("weight_shape").2,
                    [n as u64, k as u64].map(u64::to_le_bytes).concat()
                );
                (&stored("weight_packed").2, &stored("weight_scale"))
            } else {
                (&stored("weight").2, &stored("weight_scale"))
            };
            assert_eq!((scales.0, &scales.1), (Dtype::BF16, &vec![n, k / group]), "{name}");
            let row_bytes = codes.len() / n;
            let half = (f32::from(1u16 << bits) - 1.0) / 2.0;
            let limit = f32::from(1u16 << (bits - 1));
            for (at, group_of) in float.weight.chunks(group).enumerate() {
                let found = u16::from_le_bytes([scales.2[2 * at], scales.2[2 * at + 1]]);
                let amax = group_of.iter().map(|w| f32_of(*w).abs()).fold(0.0, f32::max);
                if amax > 0.0 {
                    assert_eq!(found, bf16(amax / half), "{name}: scale {at}");
                }
                for (offset, w) in group_of.iter().enumerate() {
                    let place = at * group + offset;
                    let (row, column) = (place / k, place % k);
                    let bytes = &codes[row * row_bytes..][..row_bytes];
                    let code = if packed {
                        let bit = |bit: usize| i32::from(bytes[bit / 8] >> (bit % 8) & 1);
                        let first = column * bits;
                        (0..bits).map(|b| bit(first + b) << b).sum::<i32>() - (1 << (bits - 1))
                    } else {
                        i32::from(bytes[column] as i8)
                    };
                    let scaled = f32_of(bf16(f32_of(*w) / f32_of(found)));
                    let right = scaled.clamp(-limit, limit - 1.0).round_ties_even() as i32;
                    assert_eq!(code, right, "{name}: w[{row}, {column}]");
                }
            }
        }
        compared += 1;
    }
    assert_eq!(compared, 19);
}
