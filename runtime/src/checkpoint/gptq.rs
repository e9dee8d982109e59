//! GPTQ: `qweight` [K*b/32, N], `qzeros` [G, N*b/32], `scales` [G, N], `g_idx` [K].
//!
//! Source: AutoGPTQ and GPTQModel, `checkpoint_format` `gptq` (version 1, which stores the
//! zero point minus one) and `gptq_v2`.

use quantloom_dsl::layout::Shape;
use serde_json::Value;

use super::clause::{bias_clause, float_name};
use super::config::Fields;
use super::layer::{LayerError, Recognised};
use super::patterns::{Compiler, Pattern};
use super::{CheckpointError, Found, GptqVersion, LayerSource};

/// Bits of a code.
pub(super) const WIDTHS: [i64; 4] = [2, 3, 4, 8];

/// The parts of a layer's scheme.
pub(super) struct LayerText<'a> {
    pub(super) bits: i64,
    /// What is added to a stored zero point.
    pub(super) plus: &'a str,
    pub(super) wraps: &'a str,
    /// The type of scales.
    pub(super) scale: &'a str,
    pub(super) group: &'a str,
    /// Whether columns have a group index.
    pub(super) index: bool,
    /// The clause of the bias.
    pub(super) bias: &'a str,
}

impl LayerText<'_> {
    /// The scheme; `None` if there is none for so many bits.
    pub(super) fn scheme(&self) -> Option<String> {
        let Self { bits, plus, wraps, scale, group, bias, .. } = self;
        let (pack, zeros) = match bits {
            2 | 4 | 8 => {
                let codes = 32 / bits;
                (format!("i32 [k:{codes} | n, k]"), format!("i32 [n:{codes} | n, g]"))
            }
            3 => ("i32 [k:32 | n, w, k]".to_owned(), "i32 [n:32 | w, n, g]".to_owned()),
            _ => return None,
        };
        let index = if self.index { "index: i32 as \"g_idx\"," } else { "" };
        Some(format!(
            "GptqU{bits} {{ weight: u{bits}, zero: u{bits}{plus}{wraps} {zeros} as \"qzeros\",
               scale: {scale} per {group} [n, g] as \"scales\", {index}
               pack: {pack} as \"qweight\", activation: f16 | bf16, {bias} }}"
        ))
    }
}

/// The settings that a layer's overrides may replace.
struct Settings {
    bits: i64,
    group: Option<u32>,
    act_order: bool,
    version: GptqVersion,
    wraps: bool,
}

pub(super) fn layers(source: &LayerSource<'_>) -> Result<Found, CheckpointError> {
    let fields = source.fields;
    let rules = dynamic_rules(fields)?;
    let mut found = Vec::new();
    for layer in source.having("qweight") {
        let mut settings = settings(source, fields)?;
        let mut excluded = false;
        let mut refused = Ok(());
        for (key, exclude, pattern, overrides) in &rules {
            if pattern.matches(&layer)? {
                excluded = *exclude;
                refused = source.refused(&layer, &["dynamic", key]);
                if let Some(overrides) = overrides {
                    override_with(&mut settings, *overrides)?;
                }
                break;
            }
        }
        let recognised = if let Err(error) = refused {
            Err(error.into())
        } else if excluded {
            Err(LayerError::excluded(&layer, "dynamic").into())
        } else {
            recognise(source, &layer, &settings)
        };
        found.push((layer, recognised));
    }
    Ok(found)
}

fn settings(source: &LayerSource<'_>, fields: Fields<'_>) -> Result<Settings, CheckpointError> {
    // GPTQModel writes the same value under both names.
    let (old, new) = (fields.text("checkpoint_format")?, fields.text("format")?);
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        let what = format!("`checkpoint_format` is `{old}`, but `format` is `{new}`");
        return Err(fields.fault("checkpoint_format", what));
    }
    let version = match (source.options.gptq_version, old.or(new)) {
        (Some(version), _) => version,
        (None, None | Some("gptq")) => GptqVersion::V1,
        (None, Some("gptq_v2")) => GptqVersion::V2,
        (None, Some(other)) => {
            return Err(fields.fault("checkpoint_format", format!(
                "`checkpoint_format` or `format` is `{other}`; supported are `gptq` and `gptq_v2`"
            )));
        }
    };
    Ok(Settings {
        bits: fields.needed("bits", fields.integer("bits")?)?,
        group: fields.group_size("group_size")?,
        act_order: fields.flag("desc_act")?.unwrap_or(false),
        version,
        wraps: source.options.gptq_zero_wraps,
    })
}

type DynamicRule<'a> = (&'a str, bool, Pattern, Option<Fields<'a>>);

/// `dynamic`: expressions with the prefix `+:` (the default) or `-:`, first match wins.
fn dynamic_rules<'a>(fields: Fields<'a>) -> Result<Vec<DynamicRule<'a>>, CheckpointError> {
    let Some(dynamic) = fields.object("dynamic")? else { return Ok(Vec::new()) };
    let mut compiler = Compiler::new();
    let mut rules = Vec::new();
    for (key, value) in dynamic.object {
        let (exclude, expression) = match (key.strip_prefix("-:"), key.strip_prefix("+:")) {
            (Some(expression), _) => (true, expression),
            (None, Some(expression)) => (false, expression),
            (None, None) => (false, key.as_str()),
        };
        let overrides = match value {
            Value::Object(object) => Some(Fields { object, place: fields.place }),
            Value::Bool(false) | Value::Null => None,
            other => {
                return Err(fields.fault("dynamic", format!("`dynamic` of `{key}` is {other}")));
            }
        };
        let exclude = exclude || *value == Value::Bool(false);
        rules.push((key.as_str(), exclude, compiler.expression(expression)?, overrides));
    }
    Ok(rules)
}

fn override_with(settings: &mut Settings, fields: Fields<'_>) -> Result<(), CheckpointError> {
    if let Some(bits) = fields.integer("bits")? {
        settings.bits = bits;
    }
    if fields.get("group_size").is_some() {
        settings.group = fields.group_size("group_size")?;
    }
    if let Some(act_order) = fields.flag("desc_act")? {
        settings.act_order = act_order;
    }
    Ok(())
}

fn recognise(
    source: &LayerSource<'_>,
    layer: &str,
    settings: &Settings,
) -> Result<Recognised, CheckpointError> {
    let fault = |what: String| CheckpointError::from(LayerError::inconsistent(layer, what));
    let unsupported = |what: String| CheckpointError::from(LayerError::unsupported(layer, what));
    let bits = settings.bits;
    let [words, n] = source.matrix(layer, "qweight", "[K*bits/32, N]")?;
    if !WIDTHS.contains(&bits) {
        return Err(unsupported(format!(
            "{bits}-bit GPTQ codes are not supported, only 2, 3, 4 and 8 (the planar layouts of 5, \
             6 and 7 bits are another format)"
        )));
    }
    if !(words * 32).is_multiple_of(bits as u64) {
        return Err(fault(format!("{words} words are not whole {bits}-bit codes")));
    }
    let k = words * 32 / bits as u64;
    let group = match settings.group {
        Some(size) => format!("1x{size}"),
        None => "channel".to_owned(),
    };
    let scale = float_name(layer, "scales", source.needed(layer, "scales")?.dtype())?;
    let index = has_order(source, layer, settings, k)?;
    let plus = match settings.version {
        GptqVersion::V1 => " + 1",
        GptqVersion::V2 => "",
    };
    let wraps = if settings.wraps && settings.version == GptqVersion::V1 { " wraps" } else { "" };
    let bias = &bias_clause(source, layer)?;
    let text = LayerText { bits, plus, wraps, scale, group: &group, index, bias };
    let scheme = text.scheme().ok_or_else(|| unsupported(format!("{bits}-bit codes")))?;
    Ok(Recognised::new(scheme, Shape::matrix(n, k)))
}

/// Whether the layer has a group index other than the trivial one: `desc_act` is set, or the index
/// is not k / group.
fn has_order(
    source: &LayerSource<'_>,
    layer: &str,
    settings: &Settings,
    k: u64,
) -> Result<bool, CheckpointError> {
    let Some(index) = source.tensor(layer, "g_idx") else {
        if settings.act_order && settings.group.is_some() {
            let what = "`desc_act` is set, but the tensor `g_idx` is missing";
            return Err(LayerError::inconsistent(layer, what).into());
        }
        return Ok(false);
    };
    let group = settings.group.map_or(u64::MAX, u64::from);
    let trivial = index.bytes().len() as u64 == k * 4
        && (0..).zip(index.bytes().chunks_exact(4)).all(|(k, bytes)| {
            u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])) == k / group
        });
    Ok(settings.act_order && settings.group.is_some() || !trivial)
}
