//! `quantloom schemes`

use anyhow::Result;
use clap::Args;
use quantloom::codegen::support;
use quantloom::codegen::target::{SupportLevel, TARGETS, Target};
use quantloom::dsl::Scheme;
use serde_json::{Value, json};

use super::{print_json, print_line, table};

#[derive(Args)]
pub(crate) struct Arguments {
    /// An array of {name, summary, bits_per_weight, targets}.
    #[arg(long)]
    json: bool,
    /// A Markdown table of schemes and targets, as docs/schemes.md has it, with the reasons of refusals.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let schemes = quantloom::kernels::catalogue();
    let targets = |scheme: &Scheme| -> Vec<&str> {
        support::supported(scheme).map(|target| target.name).collect()
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
        print_json(&all)?;
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
    print_line(rows)?;
    Ok(true)
}

fn markdown(schemes: &[Scheme]) -> Result<bool> {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    print_line(format_args!("| scheme | bits/weight | {} |", names.join(" | ")))?;
    print_line(format_args!("|---|---|{}", "---|".repeat(names.len())))?;
    let mut reasons: Vec<String> = Vec::new();
    for scheme in schemes {
        let mut cell = |target: &'static Target| match support::support(scheme, target) {
            Ok(()) if target.support_level == SupportLevel::Hardware => "runs".to_owned(),
            Ok(()) => "simulated".to_owned(),
            Err(why) => {
                let why = why.to_string();
                let known = reasons.iter().position(|reason| *reason == why);
                let number = known.unwrap_or_else(|| {
                    reasons.push(why);
                    reasons.len() - 1
                });
                format!("- ({})", number + 1)
            }
        };
        let cells: Vec<String> = TARGETS.iter().map(&mut cell).collect();
        let bits = scheme.bits_per_weight();
        print_line(format_args!("| `{}` | {bits:.3} | {} |", scheme.name, cells.join(" | ")))?;
    }
    print_line(
        "\nruns: right on the hardware; simulated: right on the simulator, and the vendor's compiler takes",
    )?;
    print_line("the kernels; -: refused, for the reason of that number.")?;
    for (number, reason) in reasons.iter().enumerate() {
        print_line(format_args!(
            "{}{}. {reason}",
            if number == 0 { "\n" } else { "" },
            number + 1
        ))?;
    }
    Ok(true)
}
