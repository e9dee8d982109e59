//! Names of products, `q4g128_bf16`, and of their kernels, `q4g128_bf16__m16n64k64__sm90a`: product, tile,
//! target.

use quantloom_dsl::format::{NUMBER_BF16, Number};
use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{Activation, Code, Group, ScaleType, Scheme, WeightCode};

use super::compute::has_zero;
use crate::target::Target;

/// A weight's clause in a message: a long codebook is abbreviated.
pub fn brief(weight: &WeightCode) -> String {
    const MOST: usize = 8;
    match &weight.code {
        Code::Codebook(values) if values.len() > MOST => {
            let first = values[..3].iter().map(|bits| f32::from_bits(*bits).to_string());
            let first = first.collect::<Vec<_>>().join(", ");
            format!("codebook({first}, ... {} values)", values.len())
        }
        _ => weight.to_string(),
    }
}

/// The name of a scheme's kernel for an activation, a tile and a target: the product's name, `z` if x has
/// zero points, the tile, the target without underscores.
pub fn kernel_name(
    scheme: &Scheme,
    activation: &Activation,
    tile: &str,
    target: &Target,
) -> String {
    let target = target.name.replace('_', "");
    let zero = if has_zero(activation) { "z" } else { "" };
    format!("{}{zero}__{tile}__{target}", product_name(scheme, activation))
}

/// The name of a scheme's product with an activation.
///
/// Code (`q4` for integers of four bits, else the format), `z` with zero points, `s` with shifts,
/// then per scale level its group (`g128` columns, `c` a row, `t` all, `b128x128` a block) and
/// its type unless that is bf16; the activation. Packing is not part of the name: one kernel serves
/// every packing.
pub fn product_name(scheme: &Scheme, activation: &Activation) -> String {
    let code = match &scheme.weight.code {
        Code::Number(Number::Uint(bits) | Number::Int(bits)) => format!("q{bits}"),
        Code::Number(number) => number.to_string(),
        Code::Codebook(values) => format!("book{}", values.len().ilog2()),
    };
    let zero = if scheme.zero.is_some() { "z" } else { "" };
    let shift = if scheme.shifts.is_empty() { "" } else { "s" };
    let scales: String = scheme
        .scales
        .iter()
        .map(|scale| {
            let number = match scale.number {
                ScaleType::InputDtype | ScaleType::Number(NUMBER_BF16) => String::new(),
                ScaleType::Number(number) => number.to_string(),
            };
            group(scale.group) + &number
        })
        .collect();
    let order = if scheme.index.is_some() { "o" } else { "" };
    let x = match activation {
        Activation::Float(number) => number.to_string(),
        Activation::Quantised(quantiser) => {
            let groups = quantiser.scales.iter().map(|scale| match scale.group.cols {
                GroupSize::Each(cols) => format!("g{cols}"),
                GroupSize::All => String::new(),
            });
            format!("{}{}", quantiser.code, groups.collect::<String>())
        }
    };
    format!("{code}{zero}{shift}{scales}{order}_{x}")
}

fn group(group: Group) -> String {
    match (group.rows, group.cols) {
        (GroupSize::All, _) => "t".to_owned(),
        (_, GroupSize::All) => "c".to_owned(),
        (GroupSize::Each(1), GroupSize::Each(cols)) => format!("g{cols}"),
        (GroupSize::Each(rows), GroupSize::Each(cols)) => format!("b{rows}x{cols}"),
    }
}
