//! `quantloom schemes`

use anyhow::Result;
use clap::Args;
use quantloom::codegen::plan;
use quantloom::codegen::target::TARGETS;
use quantloom::dsl::Scheme;
use serde_json::{Value, json};

use super::{say, table};

#[derive(Args)]
pub(crate) struct Arguments {
    /// An array of {name, summary, bits_per_weight, targets}.
    #[arg(long)]
    json: bool,
    /// A Markdown table of schemes and targets, as the README has it.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let schemes = quantloom::kernels::catalogue();
    let targets = |scheme: &Scheme| -> Vec<&str> {
        plan::supported(scheme).map(|target| target.name).collect()
    };
    if arguments.json {
        let value = |scheme: &Scheme| {
            json!({
                "name": scheme.name,
                "summary": scheme.summary,
                "bits_per_weight": scheme.bits_per_weight(),
                "targets": targets(scheme),
            })
        };
        let all: Vec<Value> = schemes.iter().map(value).collect();
        say(serde_json::to_string_pretty(&all)?)?;
        return Ok(true);
    }
    if arguments.markdown {
        return markdown(schemes);
    }
    let mut rows = table(&["scheme", "bits/weight", "targets", "meaning"]);
    for scheme in schemes {
        rows.add_row([
            scheme.name.clone(),
            format!("{:.3}", scheme.bits_per_weight()),
            targets(scheme).join(" "),
            scheme.summary.lines().next().unwrap_or("").to_owned(),
        ]);
    }
    say(rows)?;
    Ok(true)
}

fn markdown(schemes: &[Scheme]) -> Result<bool> {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    say(format_args!("| scheme | bits/weight | {} |", names.join(" | ")))?;
    say(format_args!("|---|---|{}", "---|".repeat(names.len())))?;
    for scheme in schemes {
        let cell = |target| if plan::support(scheme, target).is_ok() { "runs" } else { "-" };
        let cells: Vec<&str> = TARGETS.iter().map(cell).collect();
        let bits = scheme.bits_per_weight();
        say(format_args!("| `{}` | {bits:.3} | {} |", scheme.name, cells.join(" | ")))?;
    }
    Ok(true)
}
