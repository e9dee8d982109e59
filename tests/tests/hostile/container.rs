//! Headers with false statements about tensors, the header, sizes and types.

use quantloom_tests::file::{File, Stored};
use serde_json::{Value, json};

use crate::FAMILIES;
use crate::refused::{read, refused};

#[test]
fn headers_that_lie_about_tensors() {
    const MOST: u64 = u64::MAX;
    for (name, layer) in FAMILIES {
        let file = File::golden(name);
        let (first, last) = (&file.tensors[0].name, &file.tensors.last().unwrap().name);
        let end = file.tensors.iter().map(|tensor| tensor.bytes.len()).sum::<usize>();
        let wider = if file.tensors[0].dtype == "I64" { "I32" } else { "I64" };
        let lies: &[(&str, &str, &str, Value)] = &[
            ("offset beyond the file", last, "data_offsets", json!([0, end + 1])),
            ("huge offset", last, "data_offsets", json!([0, MOST])),
            ("offsets from end to start", first, "data_offsets", json!([8, 0])),
            ("overlap", last, "data_offsets", json!([0, end])),
            ("negative offset", first, "data_offsets", json!([-8, 8])),
            ("fractional offset", first, "data_offsets", json!([0.5, 8])),
            ("one offset", first, "data_offsets", json!([0])),
            ("offsets that are text", first, "data_offsets", json!("0..8")),
            ("shape beyond its bytes", first, "shape", json!([1u64 << 40, 1u64 << 20])),
            ("shape that overflows", first, "shape", json!([MOST, MOST])),
            ("negative shape", first, "shape", json!([-1, 16])),
            ("shape that is not a list", first, "shape", json!({"0": 16})),
            ("shape of nothing", first, "shape", json!([0, MOST])),
            ("unknown type", first, "dtype", json!("I5")),
            ("type that is a number", first, "dtype", json!(5)),
            ("type of another width", first, "dtype", json!(wider)),
        ];
        for (what, tensor, key, value) in lies {
            let mut header = file.header();
            header[*tensor][*key] = value.clone();
            let bytes = file.with_header(&Value::from(header).to_string());
            refused(&format!("{name}: {what}"), bytes, layer, &["not a valid safetensors file"]);
        }
    }
}

#[test]
fn headers_that_are_none() {
    let (name, layer) = FAMILIES[0];
    let file = File::golden(name);
    let header = Value::from(file.header()).to_string();
    let deep = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
    let headers = [
        ("no JSON", "{".to_owned()),
        ("a list", "[]".to_owned()),
        ("a number", "7".to_owned()),
        ("nothing", String::new()),
        ("deep lists", deep("[", "]")),
        ("deep objects", format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000))),
        ("an entry that is a list", header.replacen("{\"dtype\"", "[{\"dtype\"", 1)),
        (
            "metadata that is a list",
            header.replacen("\"__metadata__\":{", "\"__metadata__\":[{", 1),
        ),
        ("deep metadata", format!("{{\"__metadata__\":{{\"a\":{}}}}}", deep("[", "]"))),
        ("metadata of numbers", "{\"__metadata__\":{\"a\":1}}".to_owned()),
    ];
    for (what, header) in headers {
        refused(what, file.with_header(&header), layer, &["not a valid safetensors file"]);
    }
    for length in [0, 1, 1 << 20, 1 << 40, u64::MAX, u64::MAX - 7] {
        let mut bytes = file.bytes();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        refused(&format!("header of {length} bytes"), bytes, layer, &["safetensors"]);
    }
    let not_text = file.with_header(&header.replace("layer", "l\u{7f}yer"));
    let at = not_text.iter().position(|byte| *byte == 0x7f).unwrap();
    let mut bytes = not_text;
    bytes[at] = 0xff;
    refused("a header that is not UTF-8", bytes, layer, &["not a valid safetensors file"]);
}

#[test]
fn a_tensor_that_is_there_twice() {
    for (name, layer) in FAMILIES {
        let file = File::golden(name);
        let tensor = &file.tensors[0].name;
        let header = Value::from(file.header()).to_string();
        let entry = format!("{}:{}", Value::from(tensor.as_str()), file.header()[tensor]);
        let twice = file.with_header(&header.replacen(&entry, &format!("{entry},{entry}"), 1));
        refused(name, twice, layer, &[&format!("\"{tensor}\" occurs twice")]);
    }
}

/// Tensors that a layer can be read without: an activation's scale, which signals that x is
/// quantised, zero points that are all 0, a bias.
const OPTIONAL: &[(&str, &str)] = &[
    ("modelopt_nvfp4", "layer.input_scale"),
    ("quark_w8a8_int8_channel", "layer.weight_zero_point"),
    ("gptq3", "layer.g_idx"),
    ("gpt_oss_mxfp4", "experts.gate_up_proj_bias"),
];

/// A change of a tensor.
type Misfit = (&'static str, fn(&mut Stored));

#[test]
fn tensors_that_do_not_fit() {
    for (name, layer) in FAMILIES {
        let file = File::golden(name);
        let own = file.tensors.iter().filter(|tensor| tensor.name.starts_with(layer));
        for tensor in own.map(|tensor| tensor.name.as_str()) {
            let mut missing = file.clone();
            missing.tensors.retain(|other| other.name != tensor);
            let optional = OPTIONAL.contains(&(*name, tensor));
            if !optional {
                read(missing.bytes(), layer).expect_err(tensor);
            }
            let lies: &[Misfit] = &[
                ("another type", |tensor| {
                    tensor.dtype = match tensor.dtype.as_str() {
                        "F32" => "I32",
                        "I32" => "F32",
                        "I64" => "F64",
                        "F16" | "BF16" => "I16",
                        _ => "BOOL",
                    }
                    .to_owned();
                }),
                ("no rows", |tensor| {
                    tensor.shape[0] = 0;
                    tensor.bytes.clear();
                }),
                ("no rows of endless width", |tensor| {
                    tensor.shape = vec![0, 1 << 63];
                    tensor.bytes.clear();
                }),
                ("no columns of endless height", |tensor| {
                    tensor.shape = vec![1 << 62, 0];
                    tensor.bytes.clear();
                }),
                ("a row more", |tensor| {
                    let row = tensor.bytes.len() / tensor.shape[0] as usize;
                    tensor.bytes.extend_from_within(..row);
                    tensor.shape[0] += 1;
                }),
                ("a scalar", |tensor| {
                    let size = tensor.bytes.len() as u64 / tensor.shape.iter().product::<u64>();
                    tensor.bytes.truncate(size as usize);
                    tensor.shape.clear();
                }),
            ];
            for (what, lie) in lies {
                let mut file = file.clone();
                let before = file.tensor(tensor).shape.iter().product::<u64>();
                lie(file.tensor(tensor));
                let result = read(file.bytes(), layer);
                // One number is one number, whatever its shape; optional tensors may be ignored; a
                // single scale does not determine the number of rows.
                let free = *what == "a scalar" && before == 1
                    || *what == "a row more" && (*name, tensor) == ("ct_fp8", "layer.weight");
                if !optional && !free {
                    let error = result.expect_err(&format!("{name}: {tensor}: {what}"));
                    assert!(error.contains("layer") || error.contains("experts"), "{error}");
                }
            }
        }
    }
}
