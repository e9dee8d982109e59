//! AWQ, version `gemm`: `qweight` [K, N/8] with eight codes along N in the order
//! 0 2 4 6 1 3 5 7, `qzeros` [G, N/8] likewise, `scales` [G, N]. Source: AutoAWQ.

use quantloom_dsl::layout::Shape;

use super::clause::{bias_clause, float_name};
use super::layer::Recognised;
use super::{CheckpointError, Found, LayerSource};

pub(super) fn layers(source: &LayerSource<'_>) -> Result<Found, CheckpointError> {
    let fields = source.fields;
    let bits = fields.integer("bits")?.or(fields.integer("w_bit")?);
    let bits = fields.needed("bits", bits)?;
    if bits != 4 {
        return Err(fields.fault("bits", format!("`bits` is {bits}; AWQ packs 4")));
    }
    for key in ["version", "format"] {
        if let Some(version) = fields.text(key)?.filter(|it| !it.eq_ignore_ascii_case("gemm")) {
            let what = format!("`{key}` is `{version}`; only the `gemm` packing is supported");
            return Err(fields.fault(key, what));
        }
    }
    let group = fields.group_size(if fields.get("group_size").is_some() {
        "group_size"
    } else {
        "q_group_size"
    })?;
    let zeros = fields.flag("zero_point")?.unwrap_or(true);
    let recognise = |layer: &str| recognise(source, layer, group, zeros);
    let found = source.having("qweight").into_iter().map(|layer| {
        let recognised = recognise(&layer);
        (layer, recognised)
    });
    Ok(found.collect())
}

/// The scheme of a layer, with zero points or without; `scale` is the type of scales, `bias` the clause of
/// the bias.
pub(super) fn scheme_text(zeros: bool, scale: &str, group: &str, bias: &str) -> String {
    let (weight, zero) = if zeros {
        ("u4", "zero: u4 i32 [n/2:4, n:2 | n, g] as \"qzeros\",")
    } else {
        ("u4 - 8", "")
    };
    format!(
        "Awq {{ weight: {weight}, {zero} scale: {scale} per {group} [n, g] as \"scales\",
           pack: i32 [n/2:4, n:2 | n, k] as \"qweight\", activation: f16 | bf16, {bias} }}"
    )
}

fn recognise(
    source: &LayerSource<'_>,
    layer: &str,
    group: Option<u32>,
    zeros: bool,
) -> Result<Recognised, CheckpointError> {
    let [k, words] = source.matrix(layer, "qweight", "[K, N/8]")?;
    let group = group.map_or("channel".to_owned(), |size| format!("1x{size}"));
    let scale = float_name(layer, "scales", source.needed(layer, "scales")?.dtype())?;
    let scheme = scheme_text(zeros, scale, &group, &bias_clause(source, layer)?);
    Ok(Recognised::new(scheme, Shape::matrix(words * 8, k)))
}
