//! NVIDIA ModelOpt: one algorithm for all layers (`quant_algo`), or one per layer
//! (`MIXED_PRECISION`, `quantized_layers`). Tensors are `weight`, `weight_scale`, `weight_scale_2`,
//! `input_scale` and `pre_quant_scale`, the prescale.
//!
//! Source: ModelOpt 0.47.0, `torch/export/quant_utils.py` (names, packing, scales),
//! `torch/quantization/qtensor` (rules).

use quantloom_dsl::layout::Shape;

use super::clause::{bias_clause, float_name};
use super::config::Fields;
use super::fp8::ABOVE_448;
use super::layer::{LayerError, LayerProblem, Recognised};
use super::patterns::Compiler;
use super::{CheckpointError, Found, LayerSource};

/// How codes are stored.
#[derive(Clone, Copy)]
pub(super) struct WeightCodes {
    /// Type of a code.
    pub(super) code: &'static str,
    pack: &'static str,
    /// Rows and columns of the weight for one row and column of the tensor.
    pub(super) step: (u64, u64),
}

const E4M3: WeightCodes = WeightCodes { code: "e4m3", pack: "[k, n]", step: (1, 1) };
const I8: WeightCodes = WeightCodes { code: "i8", pack: "[k, n]", step: (1, 1) };
const E2M1: WeightCodes = WeightCodes { code: "e2m1", pack: "u8 [k:2 | k, n]", step: (1, 2) };
/// Two rows per byte, the even one in the low half.
const I4: WeightCodes = WeightCodes { code: "i4", pack: "u8 [n:2 | k, n]", step: (2, 1) };

/// The group of a scale of the weight.
#[derive(Clone, Copy)]
pub(super) enum WeightScales {
    /// The whole weight, or a row if there are as many scales as rows.
    Tensor,
    /// A row.
    Channel,
    /// A block of 128 by 128.
    Block,
    /// Columns of a row, with float scales.
    Group,
    /// Columns of a row, with e4m3 scales and one scale per tensor.
    Two,
    /// 32 columns of a row, with e8m0 scales.
    Power(&'static str),
}

impl WeightScales {
    /// The clauses of the scales; `number` is the type of float scales, `group` the columns of a group.
    fn clauses(self, number: &str, group: Option<u32>) -> String {
        match self {
            Self::Tensor => format!("scale: {number} per tensor [g],"),
            Self::Channel => format!("scale: {number} per channel [n],"),
            Self::Block => format!("scale: {number} per 128x128,"),
            Self::Group => format!("scale: {number} per 1x{} from amax / 7,", group.unwrap_or(128)),
            // Both scales multiply; times 448, the largest block scale, and 6, the largest code,
            // they reach amax.
            Self::Two => format!(
                "scale: e4m3 per 1x{},
                 scale: f32 per tensor from amax / 2688 [g] as \"weight_scale_2\",",
                group.unwrap_or(16)
            ),
            Self::Power(rule) => format!("scale: e8m0 per 1x{} {rule},", group.unwrap_or(32)),
        }
    }
}

/// How x is quantised.
#[derive(Clone, Copy)]
pub(super) enum InputQuantiser {
    /// Not quantised.
    No,
    /// To this type, with one static scale of this rule.
    Static(&'static str, &'static str),
    /// As `Static` if the file has the scale, else not quantised.
    IfStored(&'static str),
    /// With a dynamic scale per token.
    Token(&'static str),
    /// As the weight: NVFP4, with a static scale if the file has it.
    Two,
    /// MXFP8.
    Power,
}

impl InputQuantiser {
    /// Whether x may be quantised, or left as it is.
    pub(super) fn takes(self, quantised: bool) -> bool {
        match self {
            Self::No => !quantised,
            Self::IfStored(_) | Self::Two => true,
            Self::Static(..) | Self::Token(_) | Self::Power => quantised,
        }
    }
}

/// What an algorithm's layers are.
pub(super) struct Algorithm {
    /// The name, `quant_algo`.
    pub(super) name: &'static str,
    pub(super) codes: WeightCodes,
    pub(super) scales: WeightScales,
    pub(super) x: InputQuantiser,
}

const fn algorithm_row(
    name: &'static str,
    codes: WeightCodes,
    scales: WeightScales,
    x: InputQuantiser,
) -> Algorithm {
    Algorithm { name, codes, scales, x }
}

/// The supported algorithms.
pub(super) const ALGORITHMS: &[Algorithm] = &[
    algorithm_row("FP8", E4M3, WeightScales::Tensor, InputQuantiser::IfStored("e4m3")),
    algorithm_row(
        "FP8_PER_CHANNEL_PER_TOKEN",
        E4M3,
        WeightScales::Channel,
        InputQuantiser::Token("e4m3"),
    ),
    algorithm_row("FP8_PB_WO", E4M3, WeightScales::Block, InputQuantiser::No),
    algorithm_row("FP8_PB_REAL", E4M3, WeightScales::Block, InputQuantiser::No),
    algorithm_row("NVFP4", E2M1, WeightScales::Two, InputQuantiser::Two),
    algorithm_row("NVFP4_AWQ", E2M1, WeightScales::Two, InputQuantiser::Two),
    algorithm_row("W4A16_NVFP4", E2M1, WeightScales::Two, InputQuantiser::No),
    algorithm_row("W4A8_NVFP4_FP8", E2M1, WeightScales::Two, InputQuantiser::Static("e4m3", "")),
    algorithm_row(
        "W4A8_MXFP4_FP8",
        E2M1,
        WeightScales::Power("from pow2"),
        InputQuantiser::Static("e4m3", ""),
    ),
    algorithm_row(
        "MXFP8",
        E4M3,
        WeightScales::Power("from pow2 above 1.7500001192092896"),
        InputQuantiser::Power,
    ),
    algorithm_row("W4A16_AWQ", I4, WeightScales::Group, InputQuantiser::No),
    algorithm_row("W4A8_AWQ", I4, WeightScales::Group, InputQuantiser::Static("e4m3", "")),
    algorithm_row("W8A16", I8, WeightScales::Channel, InputQuantiser::No),
    algorithm_row(
        "W8A8_SQ_PER_CHANNEL",
        I8,
        WeightScales::Channel,
        InputQuantiser::Static("i8", "from amax / 127"),
    ),
];

/// The parts of a layer's scheme.
pub(super) struct LayerText<'a> {
    pub(super) algorithm: &'a Algorithm,
    /// The type of float scales.
    pub(super) scale: &'a str,
    /// Columns of a group.
    pub(super) group: Option<u32>,
    /// The type of the factors of x's columns.
    pub(super) prescale: Option<&'a str>,
    pub(super) activation: &'a str,
    /// The clause of the bias.
    pub(super) bias: &'a str,
}

impl LayerText<'_> {
    pub(super) fn scheme(&self) -> String {
        let Self { algorithm, scale, group, activation, bias, .. } = self;
        let prescale = self.prescale.map_or_else(String::new, |number| {
            format!("prescale: {number} as \"pre_quant_scale\",")
        });
        format!(
            "ModelOpt {{ weight: {}, {} pack: {}, {prescale} activation: {activation}, {bias} }}",
            algorithm.codes.code,
            algorithm.scales.clauses(scale, *group),
            algorithm.codes.pack,
        )
    }
}

fn algorithm(fields: Fields<'_>) -> Result<&'static Algorithm, CheckpointError> {
    let name = fields.needed("quant_algo", fields.text("quant_algo")?)?.to_ascii_uppercase();
    ALGORITHMS.iter().find(|algorithm| algorithm.name == name).ok_or_else(|| {
        let known: Vec<&str> = ALGORITHMS.iter().map(|algorithm| algorithm.name).collect();
        let what = match name.as_str() {
            "NVFP4_SVD" | "NVFP4_SVDQUANT" => {
                "the quant_algo `NVFP4_SVD` adds the product of a low-rank residual, which schemes do not have"
                    .to_owned()
            }
            _ => format!(
                "unknown quant_algo `{name}`; supported are {}, MIXED_PRECISION",
                known.join(", ")
            ),
        };
        fields.fault("quant_algo", what)
    })
}

pub(super) fn layers(source: &LayerSource<'_>) -> Result<Found, CheckpointError> {
    let fields = source.fields;
    let mixed =
        fields.text("quant_algo")?.is_some_and(|name| name.eq_ignore_ascii_case("MIXED_PRECISION"));
    let each = fields.object("quantized_layers")?;
    let one = if mixed { None } else { Some(algorithm(fields)?) };
    let group = match group_size(fields, "group_size")? {
        Some(group) => Some(group),
        None => group_of_groups(fields)?.filter(|_| !mixed),
    };
    let mut compiler = Compiler::new();
    let mut excluded_by = |key: &'static str| -> Result<_, CheckpointError> {
        Ok((key, compiler.list(fields.list(key)?, Compiler::glob)?))
    };
    let excluded = [excluded_by("exclude_modules")?, excluded_by("ignore")?];
    let recognise = |layer: &str| -> Result<Recognised, CheckpointError> {
        for (key, patterns) in &excluded {
            if patterns.any(layer)? {
                return Err(LayerError::excluded(layer, key).into());
            }
        }
        if let Some(algorithm) = one {
            return Reader { source, layer, group }.read(algorithm);
        }
        let (name, settings) =
            each.map_or(Ok(None), |each| named(each, layer))?.ok_or_else(|| {
                LayerError::of(
                    layer,
                    LayerProblem::Unlisted("`quantized_layers` does not name the layer"),
                )
            })?;
        source.refused(layer, &["quantized_layers", name])?;
        let mut own = group_size(settings, "group_size")?;
        if own.is_none() {
            own = group_size(settings, "awq_block_size")?;
        }
        Reader { source, layer, group: own.or(group) }.read(algorithm(settings)?)
    };
    let found = source.having("weight_scale").into_iter().map(|layer| {
        let recognised = recognise(&layer);
        (layer, recognised)
    });
    Ok(found.collect())
}

/// The settings of a layer: its own, or those of an enclosing module.
fn named<'a>(
    each: Fields<'a>,
    layer: &str,
) -> Result<Option<(&'a str, Fields<'a>)>, CheckpointError> {
    let mut name = Some(layer);
    while let Some(at) = name {
        if let Some((key, _)) = each.object.get_key_value(at) {
            return Ok(each.object(key)?.map(|settings| (key.as_str(), settings)));
        }
        name = at.rsplit_once('.').map(|(parent, _)| parent);
    }
    Ok(None)
}

/// A group size; the software writes 0 for none.
fn group_size(fields: Fields<'_>, key: &str) -> Result<Option<u32>, CheckpointError> {
    if fields.integer(key)? == Some(0) { Ok(None) } else { fields.group_size(key) }
}

/// The group size of `config_groups`, which have one algorithm.
fn group_of_groups(fields: Fields<'_>) -> Result<Option<u32>, CheckpointError> {
    let Some(groups) = fields.object("config_groups")? else { return Ok(None) };
    for name in groups.object.keys() {
        let weights = match groups.object(name)? {
            Some(group) => group.object("weights")?,
            None => None,
        };
        if let Some(weights) = weights {
            return group_size(weights, "group_size");
        }
    }
    Ok(None)
}

struct Reader<'a> {
    source: &'a LayerSource<'a>,
    layer: &'a str,
    group: Option<u32>,
}

impl Reader<'_> {
    fn read(&self, algorithm: &Algorithm) -> Result<Recognised, CheckpointError> {
        let [rows, columns] = self.source.matrix(self.layer, "weight", "two dimensions")?;
        let step = algorithm.codes.step;
        let shape = Shape::matrix(rows * step.0, columns * step.1);
        let count: usize = self.source.needed(self.layer, "weight_scale")?.shape().iter().product();
        let each_row = count as u64 == shape.n && shape.n != 1;
        let scales = match algorithm.scales {
            WeightScales::Tensor if each_row => WeightScales::Channel,
            scales => scales,
        };
        let scale = match scales {
            WeightScales::Two | WeightScales::Power(_) => "f32",
            _ => self.float("weight_scale")?,
        };
        let prescale = match self.source.tensor(self.layer, "pre_quant_scale") {
            None => None,
            Some(_) => Some(self.float("pre_quant_scale")?),
        };
        let text = LayerText {
            algorithm: &Algorithm { scales, ..*algorithm },
            scale,
            group: self.group(scales, shape)?,
            prescale,
            activation: &self.activation(algorithm.x)?,
            bias: &bias_clause(self.source, self.layer)?,
        };
        Ok(Recognised::new(text.scheme(), shape))
    }

    fn float(&self, name: &str) -> Result<&'static str, CheckpointError> {
        Ok(float_name(self.layer, name, self.source.needed(self.layer, name)?.dtype())?)
    }

    /// Columns of a group: as the configuration says, or, of float scales, as many as there are columns for each.
    fn group(&self, scales: WeightScales, shape: Shape) -> Result<Option<u32>, CheckpointError> {
        let WeightScales::Group = scales else { return Ok(self.group) };
        // Whole groups only: the software does not pad.
        let dims = self.source.needed(self.layer, "weight_scale")?.shape();
        let columns = dims.last().map_or(0, |columns| *columns as u64);
        let even = columns > 0 && shape.k.is_multiple_of(columns);
        let inferred = even.then(|| u32::try_from(shape.k / columns).ok()).flatten();
        let group = self
            .group
            .or(inferred)
            .ok_or_else(|| LayerError::inconsistent(self.layer, "`group_size` is missing"))?;
        Ok(Some(group))
    }

    fn activation(&self, x: InputQuantiser) -> Result<String, CheckpointError> {
        let stored = self.source.tensor(self.layer, "input_scale").is_some();
        let float = || "bf16 | f16".to_owned();
        Ok(match x {
            InputQuantiser::No => float(),
            InputQuantiser::IfStored(_) | InputQuantiser::Two if !stored => float(),
            InputQuantiser::IfStored(code) => self.fixed(code, "")?,
            InputQuantiser::Static(code, rule) => self.fixed(code, rule)?,
            InputQuantiser::Token(code) => format!("{code} {{ scale: f32 per token }}"),
            InputQuantiser::Two => format!(
                "e2m1 {{ scale: e4m3 per 1x{},
                   scale: f32 per tensor from amax / 2688 static as \"input_scale\" }}",
                self.group.unwrap_or(16)
            ),
            InputQuantiser::Power => {
                format!(
                    "e4m3 {{ scale: e8m0 per 1x{} from {ABOVE_448} }}",
                    self.group.unwrap_or(32)
                )
            }
        })
    }

    fn fixed(&self, code: &str, rule: &str) -> Result<String, CheckpointError> {
        let number = self.float("input_scale")?;
        Ok(format!("{code} {{ scale: {number} per tensor {rule} static }}"))
    }
}
