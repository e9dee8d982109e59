//! compressed-tensors: `config_groups` of weight and activation settings, each with targets.
//!
//! Source: compressed-tensors 0.20.0, `quantization/quant_args.py` (settings),
//! `compressors/*` (tensor names and packing), `quantization/utils/helpers.py` (scales).

use std::borrow::Cow;

use quantloom_dsl::layout::Shape;
use safetensors::Dtype;
use serde_json::{Map, Value};

use super::clause::{bias_clause, float_name};
use super::config::Fields;
use super::ct_presets as presets;
use super::layer::{LayerError, LayerProblem, Recognised};
use super::patterns::{Compiler, Pattern};
use super::{CheckpointError, Found, LayerSource, having, tensor_name};

struct Group {
    name: String,
    targets: Vec<Pattern>,
    classes: Vec<Class>,
    settings: Map<String, Value>,
    format: Option<String>,
}

/// A class of modules that a group targets. A file does not say the class of a layer, so that its name has to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// `Linear`, and classes of other names that may hold a matrix (`FusedMoE`): every layer, embeddings if no group targets
    /// those.
    Linear,
    /// `Embedding`: layers that are named as embeddings are.
    Embedding,
    /// `LlamaAttention`: no layer. Such a group quantises what attention computes.
    Attention,
}

impl Class {
    /// The class of a target; `None` if the target is the name of a layer or an expression.
    fn of(target: &str) -> Option<Self> {
        if !target.starts_with(|letter: char| letter.is_ascii_uppercase()) {
            return None;
        }
        let is = |what: &str| target.contains(what);
        Some(match () {
            () if is("Embedding") => Self::Embedding,
            () if is("Attention") => Self::Attention,
            () => Self::Linear,
        })
    }

    /// The classes that a layer may be of, the likeliest first.
    fn of_layer(layer: &str) -> &'static [Self] {
        const EMBEDDINGS: [&str; 7] = [
            "embed_tokens",
            "embed_in",
            "embeddings",
            "word_embeddings",
            "tok_embeddings",
            "wte",
            "wpe",
        ];
        let last = layer.rsplit('.').next().unwrap_or_default();
        match EMBEDDINGS.contains(&last) {
            true => &[Self::Embedding, Self::Linear],
            false => &[Self::Linear],
        }
    }
}

pub(super) fn layers(source: &LayerSource<'_>) -> Result<Found, CheckpointError> {
    let fields = source.fields;
    let mut compiler = Compiler::new();
    let groups = groups(fields, &mut compiler)?;
    let ignore = fields.list("ignore")?;
    let ignore = compiler.list(ignore, Compiler::target)?;
    let mut names = having(source.tensors, "weight_packed");
    names.extend(having(source.tensors, "weight_scale"));
    names.sort();
    names.dedup();
    let recognise = |layer: &str| -> Result<Recognised, CheckpointError> {
        if ignore.any(layer)? {
            return Err(LayerError::excluded(layer, "ignore").into());
        }
        let group = group_of(&groups, layer)?.ok_or_else(|| {
            LayerError::of(
                layer,
                LayerProblem::Unlisted("no group of `config_groups` targets the layer"),
            )
        })?;
        LayerReader { source, layer, group }.read(fields.place)
    };
    let found = names.into_iter().map(|layer| {
        let recognised = recognise(&layer);
        (layer, recognised)
    });
    Ok(found.collect())
}

fn groups(fields: Fields<'_>, compiler: &mut Compiler) -> Result<Vec<Group>, CheckpointError> {
    let all = fields.needed("config_groups", fields.object("config_groups")?)?;
    let global = fields.text("format")?.filter(|format| *format != "mixed-precision");
    let mut groups = Vec::new();
    for (name, value) in all.object {
        let settings: Cow<'_, Map<String, Value>> = match value {
            Value::Object(settings) => Cow::Borrowed(settings),
            // The name of a preset with a list of targets.
            Value::Array(targets) => {
                Cow::Owned(presets::settings(name, targets).ok_or_else(|| {
                    fields.fault("config_groups", format!("unknown preset `{name}`"))
                })?)
            }
            other => {
                return Err(fields.fault("config_groups", format!("the group `{name}` is {other}")));
            }
        };
        let of = Fields { object: &settings, place: fields.place };
        let targets = of.list("targets")?;
        let patterns = targets.iter().filter(|target| Class::of(target).is_none());
        // A group without weights quantises what modules compute, and is no layer's by its class.
        let classes = targets.iter().filter(|_| of.get("weights").is_some());
        groups.push(Group {
            name: name.clone(),
            classes: classes.filter_map(|target| Class::of(target)).collect(),
            targets: patterns.map(|target| compiler.target(target)).collect::<Result<_, _>>()?,
            format: of.text("format")?.or(global).map(str::to_owned),
            settings: settings.into_owned(),
        });
    }
    Ok(groups)
}

/// The group of a layer: by exact name, else by expression, else by class.
fn group_of<'g>(groups: &'g [Group], layer: &str) -> Result<Option<&'g Group>, CheckpointError> {
    for exact in [true, false] {
        for group in groups {
            for target in &group.targets {
                if matches!(target, Pattern::Exact(_)) == exact && target.matches(layer)? {
                    return Ok(Some(group));
                }
            }
        }
    }
    let of_class = |class: &Class| groups.iter().find(|group| group.classes.contains(class));
    Ok(Class::of_layer(layer).iter().find_map(of_class))
}

struct LayerReader<'a> {
    source: &'a LayerSource<'a>,
    layer: &'a str,
    group: &'a Group,
}

/// The settings of weights or activations.
struct Args<'a> {
    fields: Fields<'a>,
    bits: i64,
    float: bool,
    symmetric: bool,
    strategy: &'a str,
}

impl<'a> Args<'a> {
    fn read(fields: Fields<'a>) -> Result<Self, CheckpointError> {
        let number = fields.text("type")?.unwrap_or("int");
        let group = fields.integer("group_size")?;
        // Without a strategy the library infers one from the group size.
        let inferred = match group {
            None => "tensor",
            Some(-1) => "channel",
            Some(_) => "group",
        };
        Ok(Self {
            fields,
            bits: fields.integer("num_bits")?.unwrap_or(8),
            float: match number {
                "float" => true,
                "int" => false,
                other => return Err(fields.fault("type", format!("unknown type `{other}`"))),
            },
            symmetric: fields.flag("symmetric")?.unwrap_or(true),
            strategy: fields.text("strategy")?.unwrap_or(inferred),
        })
    }

    /// E8M0 scales: float codes in groups of 32, with `uint8` scales.
    fn is_mx(&self) -> Result<bool, CheckpointError> {
        let bytes = matches!(self.fields.text("scale_dtype")?, Some("torch.uint8" | "uint8"));
        Ok(self.float && bytes)
    }

    /// The mantissa from which a quantiser rounds the largest magnitude up.
    fn mx_rule(&self) -> &'static str {
        if self.bits == 6 { "pow2 above 1.9375" } else { "pow2 above 1.75" }
    }

    fn float_code(&self) -> Result<&'static str, CheckpointError> {
        match self.bits {
            4 => Ok("e2m1"),
            6 => Ok("e2m3"),
            8 => Ok("e4m3"),
            bits => Err(self
                .fields
                .fault("num_bits", format!("float codes of {bits} bits are not supported"))),
        }
    }

    fn group(&self) -> Result<String, CheckpointError> {
        let size = self.fields.group_size("group_size")?;
        match self.strategy {
            "tensor" => Ok("tensor".to_owned()),
            "channel" => Ok("channel".to_owned()),
            "token" => Ok("token".to_owned()),
            "group" | "tensor_group" => {
                Ok(format!("1x{}", self.fields.needed("group_size", size)?))
            }
            "block" => {
                let block = self.fields.get("block_structure").and_then(Value::as_array);
                let side = |at: usize| {
                    let side = block?.get(at)?.as_u64()?;
                    (1..=1 << 24).contains(&side).then_some(side)
                };
                match (side(0), side(1)) {
                    (Some(rows), Some(cols)) => Ok(format!("{rows}x{cols}")),
                    _ => Err(self
                        .fields
                        .fault("block_structure", "`block_structure` is not two block sizes")),
                }
            }
            other => Err(self.fields.fault("strategy", format!("unknown strategy `{other}`"))),
        }
    }
}

impl LayerReader<'_> {
    fn fault(&self, what: impl Into<String>) -> CheckpointError {
        LayerError::inconsistent(self.layer, what).into()
    }

    fn unsupported(&self, what: impl Into<String>) -> CheckpointError {
        LayerError::unsupported(self.layer, what).into()
    }

    fn read(&self, place: &str) -> Result<Recognised, CheckpointError> {
        self.source.refused(self.layer, &["config_groups", &self.group.name])?;
        let settings = Fields { object: &self.group.settings, place };
        let weights = settings.needed("weights", settings.object("weights")?)?;
        let weights = Args::read(weights)?;
        let format = self.group.format.as_deref().unwrap_or("");
        if ["marlin-24", "sparse-24-bitmask", "sparse-bitmask"].contains(&format) {
            return Err(
                self.unsupported(format!("the format `{format}` is outside the scheme language"))
            );
        }
        let (weight, pack, zero, shape) = self.codes(&weights)?;
        let scales = self.scales(&weights)?;
        let activation = match settings.object("input_activations")? {
            None => "bf16 | f16".to_owned(),
            Some(inputs) => self.activation(&Args::read(inputs)?)?,
        };
        // A group index that was never set is stored as -1, and means none.
        let filled = |tensor: &&super::Tensor| !tensor.bytes().chunks(4).any(|k| k == [0xff; 4]);
        let index = match self.source.tensor(self.layer, "weight_g_idx").filter(filled) {
            Some(_) => "index: i32 as \"weight_g_idx\",",
            None => {
                self.order_is_none(&weights)?;
                ""
            }
        };
        let bias = bias_clause(self.source, self.layer)?;
        let scheme = format!(
            "CompressedTensors {{ weight: {weight}, {zero} {scales} {index} pack: {pack},
               activation: {activation}, {bias} arithmetic: own }}"
        );
        Ok(Recognised::new(scheme, shape))
    }

    /// With `actorder` by groups, a tensor stores the group of each column; the tensor must be
    /// there.
    fn order_is_none(&self, weights: &Args<'_>) -> Result<(), CheckpointError> {
        match weights.fields.get("actorder") {
            Some(Value::String(order)) if ["group", "dynamic"].contains(&order.as_str()) => {
                let what = format!(
                    "`actorder` is `{order}`, but the tensor \"{}\" is missing",
                    tensor_name(self.layer, "weight_g_idx")
                );
                Err(self.fault(what))
            }
            Some(Value::Bool(true)) => {
                Err(self.fault("`actorder` is true, but no tensor stores the permutation"))
            }
            _ => Ok(()),
        }
    }

    /// Weight, pack and zero clauses, and the shape.
    fn codes(&self, args: &Args<'_>) -> Result<(String, String, String, Shape), CheckpointError> {
        let packed = self.source.tensor(self.layer, "weight_packed");
        let plain = self.source.tensor(self.layer, "weight");
        if args.float {
            if !args.symmetric {
                return Err(self.unsupported("float codes with zero points are not supported"));
            }
            let code = args.float_code()?;
            let (pack, tensor, per_byte) = match (args.bits, packed, plain) {
                (4, Some(tensor), _) => ("u8 [k:2 | k, n] as \"weight_packed\"", tensor, (2, 1)),
                (6, Some(tensor), _) => ("u8 [k:4 | w, k, n] as \"weight_packed\"", tensor, (4, 3)),
                (8, _, Some(tensor)) => ("[k, n]", tensor, (1, 1)),
                _ => {
                    return Err(self.fault(format!("no tensor stores its {}-bit codes", args.bits)));
                }
            };
            let [n, bytes] = self.two(tensor.shape(), "its codes")?;
            if bytes * per_byte.0 % per_byte.1 != 0 {
                return Err(self.fault(format!("{bytes} bytes a row are not whole codes")));
            }
            let shape = Shape::matrix(n, bytes * per_byte.0 / per_byte.1);
            return Ok((code.to_owned(), pack.to_owned(), String::new(), shape));
        }
        let bits = args.bits;
        if !(1..=8).contains(&bits) {
            return Err(self.unsupported(format!("integer codes of {bits} bits are not supported")));
        }
        match (packed, plain) {
            (Some(tensor), _) => self.packed_integers(args, tensor.shape(), tensor.dtype()),
            (None, Some(tensor)) => {
                let [n, k] = self.two(tensor.shape(), "`weight`")?;
                let pack = match 8 - bits {
                    0 => "[k, n]".to_owned(),
                    pad => format!("i8 [code, pad {pad} = sign | k, n]"),
                };
                let zero = if args.symmetric { "" } else { "zero: i8," };
                Ok((format!("i{bits}"), pack, zero.to_owned(), Shape::matrix(n, k)))
            }
            (None, None) => Err(self.fault("both `weight_packed` and `weight` are missing")),
        }
    }

    fn packed_integers(
        &self,
        args: &Args<'_>,
        packed: &[usize],
        dtype: Dtype,
    ) -> Result<(String, String, String, Shape), CheckpointError> {
        let bits = args.bits as u64;
        let [rows, words] = self.two(packed, "`weight_packed`")?;
        if dtype != Dtype::I32 {
            return Err(LayerError::of_type(self.layer, "weight_packed", dtype, "I32").into());
        }
        let [n, k] = self.weight_shape()?;
        if n != rows {
            return Err(
                self.fault(format!("`weight_shape` says {n} rows, `weight_packed` has {rows}"))
            );
        }
        let too_wide = || self.fault(format!("`weight_shape` says {k} columns"));
        let dense = k.checked_mul(bits).ok_or_else(too_wide)?.div_ceil(32);
        let aligned = k.div_ceil(32 / bits);
        // The widths of the two packings of 3, 5, 6 and 7 bits differ only beyond 150 columns.
        let (pack, zeros) = if words == dense {
            ("i32 [k:* | w, n]".to_owned(), "i32 [n:* | g, w]".to_owned())
        } else if words == aligned {
            let codes = 32 / bits;
            (format!("i32 [k:{codes} | k, n]"), format!("i32 [n:{codes} | g, n]"))
        } else {
            return Err(self.fault(format!(
                "`weight_packed` has {words} words a row; by `weight_shape` it has {k} codes of \
                 {bits} bits, which take {dense} (dense) or {aligned} (aligned)"
            )));
        };
        let (weight, zero) = if args.symmetric {
            (format!("u{bits} - {}", 1 << (bits - 1)), String::new())
        } else {
            let zero = format!("zero: u{bits} {zeros} as \"weight_zero_point\",");
            (format!("u{bits}"), zero)
        };
        let pack = format!("{pack} as \"weight_packed\"");
        Ok((weight, pack, zero, Shape::matrix(n, k)))
    }

    /// The values of the tensor `weight_shape`.
    fn weight_shape(&self) -> Result<[u64; 2], CheckpointError> {
        let tensor = self.source.needed(self.layer, "weight_shape")?;
        let width = match tensor.dtype() {
            Dtype::I64 => 8,
            Dtype::I32 => 4,
            other => return Err(self.fault(format!("`weight_shape` is of type {other:?}"))),
        };
        let value = |bytes: &[u8]| {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            let negative = bytes.last().is_some_and(|top| top & 0x80 != 0);
            if negative { None } else { Some(u64::from_le_bytes(eight)).filter(|v| *v > 0) }
        };
        let values: Vec<Option<u64>> = tensor.bytes().chunks_exact(width).map(value).collect();
        match values.as_slice() {
            [Some(n), Some(k)] => Ok([*n, *k]),
            _ => Err(self.fault("`weight_shape` is not two sizes [N, K]")),
        }
    }

    fn two(&self, shape: &[usize], what: &str) -> Result<[u64; 2], CheckpointError> {
        match shape {
            // Not empty, and therefore smaller than the file: the arithmetic below does not
            // overflow.
            [n, k] if *n > 0 && *k > 0 => Ok([*n as u64, *k as u64]),
            other => Err(self.fault(format!("{what}: shape {other:?}, expected [N, K]"))),
        }
    }

    fn scales(&self, args: &Args<'_>) -> Result<String, CheckpointError> {
        let tensor = self.source.needed(self.layer, "weight_scale")?;
        let group = args.group()?;
        if args.is_mx()? {
            return Ok(format!("scale: e8m0 per {group} from {},", args.mx_rule()));
        }
        if args.strategy == "tensor_group" {
            // The product of the two scales of NVFP4 reaches 448 * 6; the global scale is a
            // divisor.
            return Ok(format!(
                "scale: e4m3 per {group},
                 scale: divide f32 per tensor from amax / 2688 [g] as \"weight_global_scale\","
            ));
        }
        let number = float_name(self.layer, "weight_scale", tensor.dtype())?;
        let layout = if group == "tensor" { "[g]" } else { "" };
        Ok(format!("scale: {number} per {group} {layout},"))
    }

    fn activation(&self, args: &Args<'_>) -> Result<String, CheckpointError> {
        let code =
            if args.float { args.float_code()?.to_owned() } else { format!("i{}", args.bits) };
        let group = match args.strategy {
            "channel" | "block" => {
                let what = format!("activations per {} are not supported", args.strategy);
                return Err(self.unsupported(what));
            }
            _ => args.group()?,
        };
        if args.is_mx()? {
            return Ok(format!("{code} {{ scale: e8m0 per {group} from {} }}", args.mx_rule()));
        }
        let dynamic = args.fields.get("dynamic");
        if args.strategy == "tensor_group" {
            let fixed = if dynamic == Some(&Value::Bool(true)) { "" } else { "static" };
            let name = if fixed.is_empty() { "" } else { "as \"input_global_scale\"" };
            return Ok(format!(
                "{code} {{ scale: e4m3 per {group},
                   scale: divide f32 per tensor from amax / 2688 {fixed} {name} }}"
            ));
        }
        let zero = match (args.symmetric, args.float) {
            (true, _) => "",
            (false, false) => "zero: i8,",
            (false, true) => return Err(self.unsupported("float activations with zero points")),
        };
        if dynamic == Some(&Value::Bool(true)) {
            return Ok(format!("{code} {{ {zero} scale: own per {group} }}"));
        }
        let tensor = self.source.needed(self.layer, "input_scale")?;
        let number = float_name(self.layer, "input_scale", tensor.dtype())?;
        Ok(format!("{code} {{ {zero} scale: {number} per {group} static }}"))
    }
}
