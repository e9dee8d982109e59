//! Hostile input: files that are cut off, flipped, or lie. Each gives one error that names what
//! is wrong; none panics, allocates by what a header claims, or leaves output behind.
//!
//! The tables at the top of each part are the lies; `fuzz/` looks for more of them, and what it
//! has found is replayed here.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};

use quantloom_runtime::check::check;
use quantloom_runtime::checkpoint::{Checkpoint, Options};
use quantloom_tests::{Random, golden_file, quantloom};
use serde_json::{Map, Value, json};

#[path = "../../fuzz/src/drive.rs"]
mod drive;

/// The files here are below 400 KiB: nothing that is read from them needs more in one piece.
const MOST_BYTES: usize = 32 << 20;

/// An allocator that refuses more than [`MOST_BYTES`] at once, which ends the test.
struct Bounded;

// SAFETY: every call goes to the system's allocator unchanged, or fails as an allocator may.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MOST_BYTES {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's own promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's own promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

/// One golden file a family of formats, and one of its quantised layers.
const FAMILIES: &[(&str, &str)] = &[
    ("ct_w4a16", "layer"),
    ("ct_w4a16_asym", "layer"),
    ("ct_w3a16_aligned", "layer"),
    ("ct_w4a8", "layer"),
    ("ct_w8a8", "layer"),
    ("ct_fp8", "layer"),
    ("ct_fp8_block", "layer"),
    ("ct_nvfp4", "layer"),
    ("ct_mxfp4", "layer"),
    ("ct_mxfp6a8", "layer"),
    ("gptq3", "layer"),
    ("gptq4_v1_actorder", "layer"),
    ("awq4", "layer"),
    ("modelopt_nvfp4", "layer"),
    ("quark_w_mxfp4", "layer"),
    ("quark_w_mxfp6_e3m2", "layer"),
    ("quark_w8a8_int8_channel", "layer"),
    ("gpt_oss_mxfp4", "experts.gate_up_proj"),
];

/// A safetensors file taken apart.
#[derive(Clone)]
struct File {
    metadata: Map<String, Value>,
    tensors: Vec<Stored>,
}

#[derive(Clone)]
struct Stored {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

impl File {
    /// A golden file without its references.
    fn golden(name: &str) -> Self {
        let bytes = std::fs::read(golden_file(name)).unwrap();
        let (header, body) = split(&bytes);
        let metadata = header.get("__metadata__").and_then(Value::as_object).cloned();
        let tensors =
            header.iter().filter(|(name, _)| *name != "__metadata__").map(|(name, of)| {
                let sizes = |key: &str| -> Vec<u64> {
                    of[key].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect()
                };
                let range = sizes("data_offsets");
                Stored {
                    name: name.clone(),
                    dtype: of["dtype"].as_str().unwrap().to_owned(),
                    shape: sizes("shape"),
                    bytes: body[range[0] as usize..range[1] as usize].to_vec(),
                }
            });
        let tensors = tensors.filter(|tensor| !tensor.name.starts_with("ref.")).collect();
        Self { metadata: metadata.unwrap_or_default(), tensors }
    }

    fn tensor(&mut self, name: &str) -> &mut Stored {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the file")
    }

    fn config(&mut self) -> Value {
        let text = self.metadata.get("quantization_config").and_then(Value::as_str);
        serde_json::from_str(text.expect("a configuration")).unwrap()
    }

    fn set_config(&mut self, text: String) {
        self.metadata.insert("quantization_config".to_owned(), Value::from(text));
    }

    /// Puts a value at a JSON pointer of the configuration.
    fn set(&mut self, pointer: &str, value: Value) {
        let mut config = self.config();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(parent).expect(pointer)[key] = value;
        self.set_config(config.to_string());
    }

    fn header(&self) -> Map<String, Value> {
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), Value::from(self.metadata.clone()));
        let mut start = 0;
        for Stored { name, dtype, shape, bytes } in &self.tensors {
            let end = start + bytes.len();
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
            header.insert(name.clone(), entry);
            start = end;
        }
        header
    }

    fn bytes(&self) -> Vec<u8> {
        self.with_header(&Value::from(self.header()).to_string())
    }

    /// The file with a header of one's own.
    fn with_header(&self, header: &str) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(self.tensors.iter().flat_map(|tensor| &tensor.bytes));
        file
    }
}

/// Header and body.
fn split(bytes: &[u8]) -> (Map<String, Value>, &[u8]) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), &bytes[8 + length..])
}

/// Opens the file, takes the layer and unpacks it; what went wrong first.
fn read(bytes: Vec<u8>, layer: &str) -> Result<(), String> {
    let checkpoint =
        Checkpoint::from_bytes(bytes, Options::default()).map_err(|error| error.to_string())?;
    let layer = checkpoint.layer(layer).map_err(|error| error.to_string())?;
    layer.unpack().map(|_| ()).map_err(|error| error.to_string())
}

/// The error of a file that must not be read, which has to hold one of the words.
#[track_caller]
fn refused(what: &str, bytes: Vec<u8>, layer: &str, words: &[&str]) {
    let error = read(bytes, layer).expect_err(what);
    assert!(words.iter().any(|word| error.contains(word)), "{what}: {error}");
    assert!(!error.contains('\n') && error.len() < 3000, "{what}: {error}");
}

#[test]
fn golden_files_are_read() {
    for (name, layer) in FAMILIES {
        assert_eq!(read(File::golden(name).bytes(), layer), Ok(()), "{name}");
    }
}

// The container.

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
            ("shape that is no list", first, "shape", json!({"0": 16})),
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
        refused(name, twice, layer, &[&format!("\"{tensor}\" is there twice")]);
    }
}

/// Tensors that a layer can be read without: an activation's scale that says that there is one,
/// zero points that say nothing, a bias.
const OPTIONAL: &[(&str, &str)] = &[
    ("modelopt_nvfp4", "layer.input_scale"),
    ("quark_w8a8_int8_channel", "layer.weight_zero_point"),
    ("gptq3", "layer.g_idx"),
    ("gpt_oss_mxfp4", "experts.gate_up_proj_bias"),
];

/// What is done to a tensor.
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
                // One number is one number, whatever its shape; what is optional may be ignored;
                // a single scale leaves the number of rows free.
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

// What tensors and configurations say.

/// A file, what is done to it, and words of which the error must hold one.
type Lie = (&'static str, fn(&mut File), &'static [&'static str]);

fn put(file: &mut File, tensor: &str, at: usize, bytes: &[u8]) {
    file.tensor(tensor).bytes[at..at + bytes.len()].copy_from_slice(bytes);
}

fn sizes(file: &mut File, sizes: &[i64]) {
    let tensor = file.tensor("layer.weight_shape");
    tensor.shape = vec![sizes.len() as u64];
    tensor.bytes = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
}

fn weights(file: &mut File, key: &str, value: Value) {
    file.set(&format!("/config_groups/group_0/weights/{key}"), value);
}

fn targets(file: &mut File, pattern: &str) {
    file.set("/config_groups/group_0/targets", json!([pattern]));
}

const LIES: &[Lie] = &[
    // Values that are none.
    ("ct_mxfp4", |f| put(f, "layer.weight_scale", 100, &[0xff]), &["\"weight_scale\": number 100"]),
    ("quark_w_mxfp4", |f| put(f, "layer.weight_scale", 5, &[0xff]), &["\"weight_scale\""]),
    ("gpt_oss_mxfp4", |f| put(f, "experts.gate_up_proj_scales", 9, &[0xff]), &["\"_scales\""]),
    ("ct_w4a16", |f| put(f, "layer.weight_scale", 6, &[0xc0, 0x7f]), &["\"weight_scale\""]),
    ("gptq3", |f| put(f, "layer.scales", 6, &[0x01, 0x7e]), &["\"scales\""]),
    ("awq4", |f| put(f, "layer.scales", 6, &[0x01, 0xfe]), &["\"scales\""]),
    ("ct_nvfp4", |f| put(f, "layer.weight_scale", 3, &[0x7f]), &["\"weight_scale\""]),
    ("ct_nvfp4", |f| put(f, "layer.weight_global_scale", 0, &[0; 4]), &["weight_global_scale"]),
    ("ct_nvfp4", |f| put(f, "layer.input_global_scale", 0, &[0xff; 4]), &["input_global_scale"]),
    ("ct_fp8", |f| put(f, "layer.input_scale", 0, &[0xff; 2]), &["\"input_scale\""]),
    ("modelopt_nvfp4", |f| put(f, "layer.weight_scale_2", 0, &[0xff; 4]), &["weight_scale_2"]),
    ("ct_w4a8", |f| put(f, "layer.weight", 77, &[8]), &["\"layer.weight\" holds 8 at position 77"]),
    ("ct_w4a8", |f| put(f, "layer.weight", 77, &[0x80]), &["holds -128"]),
    ("quark_w8a8_int8_channel", |f| put(f, "layer.weight_zero_point", 3, &[1]), &["zero_point"]),
    ("gptq4_v1_actorder", |f| put(f, "layer.g_idx", 8, &[2, 0, 0, 0]), &["\"g_idx\"", "is 2"]),
    ("gptq4_v1_actorder", |f| put(f, "layer.g_idx", 8, &[0xff; 4]), &["\"g_idx\""]),
    ("gptq3", |f| put(f, "layer.g_idx", 8, &[0, 0, 0, 0x7f]), &["\"g_idx\""]),
    // A shape that is none.
    ("ct_w4a16", |f| sizes(f, &[48, 1 << 40]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48, i64::MAX]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[1 << 40, 256]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48, -256]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[i64::MIN, 256]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48, 0]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48, 256, 1]), &["weight_shape"]),
    ("ct_w4a16", |f| sizes(f, &[48, 255 - 8]), &["weight_packed", "words"]),
    // A configuration that does not say what is there.
    ("ct_w4a16", |f| weights(f, "group_size", json!(0)), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!(-2)), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!(u64::MAX)), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!(1u64 << 33)), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!(1.5)), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!("128")), &["group_size"]),
    ("ct_w4a16", |f| weights(f, "group_size", json!(64)), &["weight_scale"]),
    ("ct_w4a16", |f| weights(f, "num_bits", json!(0)), &["0 bits"]),
    ("ct_w4a16", |f| weights(f, "num_bits", json!(-4)), &["-4 bits"]),
    ("ct_w4a16", |f| weights(f, "num_bits", json!(1u64 << 40)), &["bits"]),
    ("ct_w4a16", |f| weights(f, "num_bits", json!(8)), &["weight_packed"]),
    ("ct_w4a16", |f| weights(f, "num_bits", json!([4])), &["num_bits"]),
    ("ct_w4a16", |f| weights(f, "type", json!("complex")), &["complex"]),
    ("ct_w4a16", |f| weights(f, "strategy", json!("hope")), &["hope"]),
    ("ct_w4a16", |f| weights(f, "symmetric", json!("yes")), &["symmetric"]),
    ("ct_w4a16", |f| weights(f, "symmetric", json!(false)), &["weight_zero_point"]),
    ("ct_fp8_block", |f| weights(f, "block_structure", json!([0, 128])), &["block_structure"]),
    ("ct_fp8_block", |f| weights(f, "block_structure", json!([1, -1])), &["block_structure"]),
    ("ct_fp8_block", |f| weights(f, "block_structure", json!("128")), &["block_structure"]),
    ("ct_w4a16", |f| f.set("/config_groups", json!([])), &["config_groups"]),
    ("ct_w4a16", |f| f.set("/config_groups", Value::Null), &["config_groups"]),
    ("ct_w4a16", |f| f.set("/config_groups", json!({"W99A1": ["Linear"]})), &["W99A1"]),
    ("ct_w4a16", |f| f.set("/config_groups/group_0", json!("all")), &["group_0"]),
    ("ct_w4a16", |f| f.set("/config_groups/group_0/weights", json!(4)), &["weights"]),
    ("ct_w4a16", |f| f.set("/config_groups/group_0/targets", json!([4])), &["targets"]),
    ("ct_w4a16", |f| f.set("/ignore", json!({"a": 1})), &["ignore"]),
    ("ct_w4a16", |f| f.set("/ignore", json!(["layer"])), &["ignore"]),
    ("ct_w4a16", |f| f.set("/quant_method", json!("magic")), &["magic"]),
    ("ct_w4a16", |f| f.set("/quant_method", json!(3)), &["quant_method"]),
    ("gptq3", |f| f.set("/bits", json!(0)), &["0-bit"]),
    ("gptq3", |f| f.set("/bits", json!(i64::MIN)), &["-bit"]),
    ("gptq3", |f| f.set("/bits", json!("3")), &["bits"]),
    ("gptq3", |f| f.set("/bits", json!(4)), &["qzeros", "scales", "g_idx"]),
    ("gptq3", |f| f.set("/group_size", json!(0)), &["group_size"]),
    ("gptq3", |f| f.set("/group_size", json!(64)), &["scales", "qzeros", "g_idx"]),
    ("gptq3", |f| f.set("/checkpoint_format", json!("gptq_p")), &["gptq_p"]),
    ("gptq3", |f| f.set("/dynamic", json!({"(": {}})), &["pattern"]),
    ("gptq3", |f| f.set("/dynamic", json!({"layer": 3})), &["dynamic"]),
    ("awq4", |f| f.set("/bits", json!(3)), &["bits"]),
    ("awq4", |f| f.set("/version", json!("gemv")), &["gemv"]),
    ("awq4", |f| f.set("/group_size", json!(1)), &["qzeros", "scales"]),
    ("modelopt_nvfp4", |f| f.set("/quant_algo", json!("NVFP5")), &["NVFP5"]),
    ("modelopt_nvfp4", |f| f.set("/group_size", json!(-7)), &["group_size"]),
    ("modelopt_nvfp4", |f| f.set("/exclude_modules", json!(["l*"])), &["exclude_modules"]),
    ("quark_w_mxfp4", |f| f.set("/global_quant_config", json!(1)), &["global_quant_config"]),
    ("quark_w_mxfp4", |f| f.set("/global_quant_config/weight/dtype", json!("fp3")), &["fp3"]),
    ("quark_w_mxfp4", |f| f.set("/layer_quant_config", json!({"l*": 2})), &["l*"]),
    ("quark_w_mxfp4", |f| f.set("/exclude", json!("layer")), &["exclude"]),
    // Expressions that are none, are huge, or take forever.
    ("ct_w4a16", |f| targets(f, "re:("), &["pattern"]),
    ("ct_w4a16", |f| targets(f, "re:(a{1000}){1000}"), &["pattern"]),
    ("ct_w4a16", |f| targets(f, "re:(?=l)((((a{99}){99}){99}){99})"), &["pattern"]),
    ("ct_w4a16", |f| targets(f, "re:(l*a*y*e*r*)(?:(?:l|a|y|e|r|\\1)*)*)(?=x)"), &["pattern"]),
    // Text that is no JSON, or too deep.
    ("ct_w4a16", |f| f.set_config("{\"quant_method\":".to_owned()), &["not valid JSON"]),
    ("ct_w4a16", |f| f.set_config("[".repeat(100_000)), &["not valid JSON"]),
    ("ct_w4a16", |f| f.set_config("{\"bits\": 1e999}".to_owned()), &["not valid JSON"]),
    ("ct_w4a16", |f| f.set_config("{}".to_owned()), &["quant_method"]),
];

#[test]
fn lies_are_named() {
    for (at, (name, lie, words)) in LIES.iter().enumerate() {
        let mut file = File::golden(name);
        lie(&mut file);
        let layer = FAMILIES.iter().find(|(family, _)| family == name).map(|(_, layer)| *layer);
        refused(&format!("lie {at}, {name}, {words:?}"), file.bytes(), layer.unwrap(), words);
    }
}

/// An expression that backtracks without end on a name of many like letters.
#[test]
fn a_catastrophic_expression_gives_up() {
    let mut file = File::golden("ct_w4a16");
    let long = "a".repeat(60);
    for tensor in &mut file.tensors {
        tensor.name = tensor.name.replace("layer", &long);
    }
    for pattern in
        ["re:(?:(?:a|aa)(?=a|$))*\\bx", "re:(a*)*(a*)*(a*)*(a*)*\\1\\2x", "re:(?:a?){60}\\Bx"]
    {
        targets(&mut file, pattern);
        refused(pattern, file.bytes(), &long, &["pattern", "no group"]);
    }
}

/// Every value of a configuration in turn becomes one of another type: an error or a layer.
#[test]
fn configurations_of_wrong_types() {
    fn pointers(value: &Value, at: String, all: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    pointers(value, format!("{at}/{key}"), all);
                }
            }
            Value::Array(items) => {
                for (number, value) in items.iter().enumerate() {
                    pointers(value, format!("{at}/{number}"), all);
                }
            }
            _ => {}
        }
        all.push(at);
    }
    let long = Value::from("x".repeat(100_000));
    let values = [
        json!(7),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!(true),
        json!("nonsense"),
        json!([]),
        json!([[[]]]),
        json!({}),
        Value::Null,
        json!(["re:("]),
        long,
    ];
    for (name, layer) in FAMILIES.iter().filter(|(name, _)| *name != "gpt_oss_mxfp4") {
        let file = File::golden(name);
        let config = file.clone().config();
        let mut all = Vec::new();
        pointers(&config, String::new(), &mut all);
        for (pointer, value) in all.iter().flat_map(|at| values.iter().map(move |v| (at, v))) {
            let mut config = config.clone();
            *config.pointer_mut(pointer).unwrap() = value.clone();
            let mut file = file.clone();
            file.set_config(config.to_string());
            if let Err(error) = read(file.bytes(), layer) {
                assert!(error.len() < 3000 && !error.contains('\n'), "{name} {pointer}: {error}");
            }
        }
    }
}

/// The scheme's text is repeated for each layer: it is held once.
#[test]
fn schemes_of_our_own_files() {
    let file = |config: Value| File {
        metadata: Map::from_iter([("quantization_config".to_owned(), config.to_string().into())]),
        tensors: Vec::new(),
    };
    let text = "S{weight:u4-8,scale:f16 per 1x32,pack:u32[k:8|k,n],activation:f16}";
    let config = |scheme: Value, layers: Value| {
        file(json!({"quant_method": "quantloom", "scheme": scheme, "layers": layers})).bytes()
    };
    let shapes = [
        json!([1, 1 << 20, 1u64 << 40]),
        json!([u64::MAX, u64::MAX, u64::MAX]),
        json!([0, 0, 0]),
        json!([1, 2]),
        json!([1, -8, 8]),
        json!("8x8"),
    ];
    for shape in shapes {
        refused("shape", config(json!(text), json!({"l": shape})), "l", &["layer \"l\""]);
    }
    refused("no scheme", config(json!("S {"), json!({"l": [1, 8, 32]})), "l", &["scheme"]);
    let padded = format!("{text}{}", " ".repeat(1 << 20));
    refused("a long scheme", config(json!(padded), json!({"l": [1, 8, 32]})), "l", &["bytes"]);
    let many: Map<String, Value> =
        (0..20_000).map(|layer| (layer.to_string(), json!([1, 8, 32]))).collect();
    let text = format!("/// {}\n{text}", "x".repeat(60_000));
    refused("many layers", config(json!(text), many.into()), "7", &["7.weight"]);
}

/// A narrow activation and a narrow weight: their product is not computed to find that it is not
/// the reference's.
#[test]
fn a_product_beyond_its_factors() {
    let wide = 1 << 17;
    let config = json!({"quant_method": "fp8", "activation_scheme": "dynamic"}).to_string();
    let tensor = |name: &str, dtype: &str, shape: [u64; 2], bytes: usize| Stored {
        name: name.to_owned(),
        dtype: dtype.to_owned(),
        shape: shape.to_vec(),
        bytes: vec![0x38; bytes],
    };
    let file = File {
        metadata: Map::from_iter([("quantization_config".to_owned(), Value::from(config))]),
        tensors: vec![
            tensor("l.weight", "F8_E4M3", [wide, 1], 1 << 17),
            tensor("l.weight_scale", "F32", [1, 1], 4),
            tensor("ref.x", "BF16", [wide, 1], 2 << 17),
            tensor("ref.y", "BF16", [1, 1], 2),
        ],
    };
    let checkpoint = Checkpoint::from_bytes(file.bytes(), Options::default()).unwrap();
    let findings = format!("{:?}", check(&checkpoint));
    assert!(findings.contains("ref.y has 1 values"), "{findings}");
}

// Damage.

#[test]
fn truncated_files() {
    for (name, layer) in FAMILIES {
        let bytes = File::golden(name).bytes();
        let lengths = (0..bytes.len()).filter(|at| *at < 600 || at % 331 == 0);
        for length in lengths.chain([bytes.len() - 1]) {
            refused(name, bytes[..length].to_vec(), layer, &["not a valid safetensors file"]);
        }
        let longer = [&bytes[..], &[0]].concat();
        refused(name, longer, layer, &["not a valid safetensors file"]);
    }
}

/// Three of four flips hit the header, where they matter most.
#[test]
fn flipped_bits() {
    for (number, (name, _)) in (0..).zip(FAMILIES) {
        let mut bytes = File::golden(name).bytes();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let mut random = Random(number);
        for flip in 0..2000 {
            let range = if flip % 4 == 0 { bytes.len() as u64 } else { header };
            let (at, bit) = (random.below(range) as usize, 1 << random.below(8));
            bytes[at] ^= bit;
            drive::checkpoint(&bytes);
            bytes[at] ^= bit;
        }
    }
}

// Directories.

#[test]
fn directories_that_lie() {
    let good = File::golden("ct_w4a16").bytes();
    let map = |shard: &str| json!({"weight_map": {"layer.weight_packed": shard}}).to_string();
    let indices = [
        (map("../shard.safetensors"), "../shard.safetensors"),
        (map("sub/shard.safetensors"), "sub/shard.safetensors"),
        (map("/etc/passwd"), "/etc/passwd"),
        (map("/"), "not a file of this directory"),
        (map("."), "not a file of this directory"),
        (map(".."), "not a file of this directory"),
        (map(""), "not a file of this directory"),
        (map("missing.safetensors"), "missing.safetensors"),
        (map("a\u{0}b"), "cannot read"),
        (map("folder"), "is not a file"),
        (json!({"weight_map": {"a": 7}}).to_string(), "not a string"),
        (json!({"weight_map": {}}).to_string(), "weight_map"),
        (json!({"weight_map": ["shard.safetensors"]}).to_string(), "weight_map"),
        (json!([]).to_string(), "weight_map"),
        ("{".to_owned(), "not valid JSON"),
        ("[".repeat(100_000), "not valid JSON"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let open = || Checkpoint::open(folder.path()).map(|_| ()).map_err(|e| e.to_string());
    assert!(open().unwrap_err().contains("holds no .safetensors file"));
    std::fs::write(path("shard.safetensors"), &good).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    assert_eq!(open(), Ok(()));
    for (index, word) in &indices {
        std::fs::write(path("model.safetensors.index.json"), index).unwrap();
        let error = open().expect_err(word);
        assert!(error.contains(word), "{index:.80}: {error}");
    }
    std::fs::remove_file(path("model.safetensors.index.json")).unwrap();
    std::fs::write(path("again.safetensors"), &good).unwrap();
    assert!(open().unwrap_err().contains("is there twice"));
    std::fs::write(path("again.safetensors"), b"").unwrap();
    assert!(open().unwrap_err().contains("again.safetensors is not a valid safetensors file"));
    std::fs::remove_file(path("again.safetensors")).unwrap();
    std::fs::create_dir(path("again.safetensors")).unwrap();
    assert!(open().unwrap_err().contains("again.safetensors is not a file"));
}

/// Opening a pipe waits for a writer that does not come.
#[cfg(unix)]
#[test]
fn a_pipe_is_not_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.safetensors");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    if made.is_ok_and(|status| status.success()) {
        let error = Checkpoint::open(&pipe).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("is not a file"), "{error}");
    }
}

// The command.

/// Status 1, one sentence, and nothing written beside the input.
#[track_caller]
fn refuses(folder: &Path, arguments: &[&str], word: &str) {
    let files = || std::fs::read_dir(folder).unwrap().count();
    let before = files();
    let ran = quantloom(arguments);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.starts_with("quantloom: ") && ran.err.contains(word), "{ran:?}");
    assert_eq!(ran.err.trim_end().lines().count(), 1, "{ran:?}");
    assert_eq!(files(), before, "{}: it left a file", ran.line);
}

#[test]
fn the_command_says_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let out = path("out.safetensors");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(path(name), bytes).unwrap();
        path(name)
    };
    let lying = |name: &str, lie: fn(&mut File)| {
        let mut file = File::golden(name);
        lie(&mut file);
        write(&format!("{name}.safetensors"), &file.bytes())
    };
    let whole = File::golden("awq4").bytes();
    let files = [
        (write("cut.safetensors", &whole[..whole.len() / 2]), "not a valid safetensors file"),
        (write("empty.safetensors", b""), "not a valid safetensors file"),
        (path("missing.safetensors"), "missing.safetensors"),
        (lying("ct_mxfp4", |f| put(f, "layer.weight_scale", 1, &[0xff])), "weight_scale"),
        (lying("ct_w4a16", |f| sizes(f, &[48, 1 << 40])), "weight_shape"),
        (lying("ct_w4a8", |f| put(f, "layer.weight", 0, &[100])), "weight"),
        (lying("gptq4_v1_actorder", |f| put(f, "layer.g_idx", 0, &[0xff; 4])), "g_idx"),
    ];
    let golden = |name: &str| golden_file(name).to_str().unwrap().to_owned();
    let input = format!("{}:ref.x", golden("ct_w4a16"));
    for (file, word) in &files {
        let layer = ["--layer", "layer", "--out", &out];
        refuses(folder.path(), &[&["dequantize", file], &layer[..]].concat(), word);
        let run = ["run", file, "--input", &input];
        refuses(folder.path(), &[&run, &layer[..]].concat(), word);
    }
    refuses(folder.path(), &["inspect", &files[0].0], files[0].1);
    refuses(folder.path(), &["inspect", &files[4].0], files[4].1);
    refuses(folder.path(), &["check", &files[0].0], files[0].1);
    // A scheme whose layout pads each row to 2^30 codes, and one whose group is as wide as can be.
    let scheme = |name: &str, scale: &str, pack: &str| {
        let text = format!("S {{ weight: u4, scale: {scale}, pack: {pack}, activation: f16 }}");
        write(name, text.as_bytes())
    };
    let padded = scheme("padded.scheme", "f16 per 1x32", "u32 [k:8 | k/8:134217728, n]");
    let weight = golden("moe_mixtral");
    let quantize = ["quantize", &weight, "--only", "gate", "--out", &out, "--scheme"];
    refuses(folder.path(), &[&quantize[..], &[&padded]].concat(), "takes");
    let wide = scheme("wide.scheme", "f16 per 1x16777216", "u32 [k:8 | k, n]");
    quantloom(&[&quantize[..], &[&wide]].concat()).done();
    std::fs::remove_file(&out).unwrap();
    for (dtype, rows, bytes) in [("F16", 1, 2), ("F16", 128, 256), ("I32", 64, 256)] {
        let mut float = File { metadata: Map::new(), tensors: Vec::new() };
        for (name, dtype, shape, bytes) in
            [("l.weight", "F32", vec![64, 128], 64 * 128 * 4), ("l.bias", dtype, vec![rows], bytes)]
        {
            let (name, dtype) = (name.to_owned(), dtype.to_owned());
            float.tensors.push(Stored { name, dtype, shape, bytes: vec![0; bytes] });
        }
        let float = write("bias.safetensors", &float.bytes());
        let quantize = ["quantize", &float, "--out", &out, "--scheme", "ct_w4a16_bias"];
        refuses(folder.path(), &quantize, "its bias is");
    }
    let none = write("none.scheme", "\u{1}@".repeat(10_000).as_bytes());
    let ran = quantloom(&[&quantize[..], &[&none]].concat());
    assert!(ran.code == Some(1) && ran.err.len() < 20_000, "{}", ran.err);
    assert!(!Path::new(&out).exists());
}

// What the fuzzer has found.

/// The corpus of `fuzz/`, and every input that once failed there, by the target it is for.
#[test]
fn the_fuzzers_corpus() {
    let fuzz = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz"));
    for target in ["scheme_text", "checkpoint"] {
        let drive = if target == "checkpoint" { drive::checkpoint } else { drive::scheme_text };
        let mut replayed = 0;
        for folder in [fuzz.join("corpus"), fuzz.join("regressions")] {
            let Ok(entries) = std::fs::read_dir(folder.join(target)) else { continue };
            for entry in entries {
                drive(&std::fs::read(entry.unwrap().path()).unwrap());
                replayed += 1;
            }
        }
        assert!(replayed > 10, "{target}: {replayed} files; is fuzz/corpus there?");
    }
}
