//! A plan as a few lines of text, for `quantloom show` and the headers of generated files.

use std::fmt;

use quantloom_dsl::Accumulate;
use quantloom_dsl::layout::{Component, Recode};

use super::Plan;
use super::scale::{LevelPlan, ScalePlacement, ScalePlan, WeightRounding};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { compute, dequant, native, .. } = self;
        let product = compute.product;
        let sum = match product.sum {
            Accumulate::F32 => "f32",
            Accumulate::I32 => "i32",
        };
        let quantises = if compute.quantises { ", x quantised first" } else { "" };
        let (weight, x) = (product.weight, product.activation);
        writeln!(f, "product: {}, {weight} x {x}, sums in {sum}{quantises}", product.name)?;
        let (per_code, rest) = (dequant.cost / 1000, dequant.cost % 1000 / 10);
        let rounded = self.rounding().map(|how| format!("; {how}")).unwrap_or_default();
        writeln!(f, "decode: {dequant}, {per_code}.{rest:02} instructions a code{rounded}")?;
        let recoded = match dequant.recode {
            Recode::Keep => String::new(),
            Recode::Xor(mask) => format!(", each code XOR {mask:#x}"),
            Recode::Table(_) => ", each code recoded".to_owned(),
        };
        let layout = native.layout.display(Component::Code);
        let (rows, columns) = (native.rows, native.columns);
        writeln!(f, "codes: {layout}, padded to {rows} x {columns}{recoded}")?;
        write!(f, "scales: {}", self.scale)
    }
}

impl fmt::Display for ScalePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segment = match self.segment {
            Some(columns) => format!("{columns} columns"),
            None => "the row".to_owned(),
        };
        let weight = match self.folded.map(|folded| folded.rounding) {
            Some(WeightRounding::Once) => "the weight, which is rounded",
            Some(WeightRounding::InParts) => "the weight in two parts, and rounded",
            Some(WeightRounding::Twice) => "the weight, both of which are rounded",
            Some(WeightRounding::Exact) | None => "the weight",
        };
        let level = |(of, elements): (&str, &str), (number, level): (usize, &LevelPlan)| {
            let divides = if level.divide { " (divides)" } else { "" };
            let placement = match level.placement {
                ScalePlacement::Element => format!("on {elements}"),
                ScalePlacement::Segment => format!("on the sum of {segment}"),
                ScalePlacement::Epilogue => "in the epilogue".to_owned(),
                ScalePlacement::Product => "in the product".to_owned(),
            };
            format!("{of}{} {placement}{divides}", number + 1)
        };
        let levels = self.levels.iter().enumerate();
        let mut parts: Vec<String> = levels.map(|at| level(("level ", weight), at)).collect();
        parts.extend(self.input.iter().enumerate().map(|at| level(("input level ", "x"), at)));
        if self.corrects {
            let number = if self.corrects_by_group { "a term of each group" } else { "a constant" };
            parts.push(match self.folded {
                Some(_) => format!("{number} added to the weight"),
                None => format!("{number} times the sum of x over {segment}"),
            });
        }
        if self.exponent != 0 {
            parts.push(format!("2^{} into the scales", -self.exponent));
        }
        if self.sorts_columns {
            parts.push("columns sorted by group, x gathered".to_owned());
        }
        f.write_str(&parts.join("; "))
    }
}
