//! `quantloom show`

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use quantloom::codegen::plan;
use quantloom::codegen::target::{TARGETS, Target};
use quantloom::dsl::{Activation, Scheme};

use super::{say, scheme, text_table};
use crate::picture::picture;
use crate::whole::{Replace, write_and_say};

#[derive(Args)]
pub(crate) struct Arguments {
    /// A catalogue name or a .scheme file.
    scheme: String,
    /// Also draw the packing into this file.
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    replace: Replace,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let outputs: Vec<(&str, &Path)> =
        arguments.svg.iter().map(|path| ("--svg", path.as_path())).collect();
    arguments.replace.check(&outputs, &[Path::new(&arguments.scheme)])?;
    let scheme = scheme(&arguments.scheme)?;
    say(&scheme)?;
    say(format_args!("{:.4} bits per weight", scheme.bits_per_weight()))?;
    let mut stores = text_table(&["tensor", "holds", "type", "layout"]);
    for store in &scheme.stores {
        let held: Vec<String> = scheme
            .components()
            .into_iter()
            .filter(|component| store.layout.holds(*component))
            .map(|component| component.to_string())
            .collect();
        let dtype = quantloom::runtime::checkpoint::element_dtype(&scheme, store);
        let layout = store.layout.display(store.owner).to_string();
        stores.add_row([store.name.clone(), held.join(", "), format!("{dtype:?}"), layout]);
    }
    say(stores)?;
    let mut targets = text_table(&["target", "plan"]);
    for target in TARGETS {
        targets.add_text([target.name.to_owned(), planned(&scheme, target)]);
    }
    say(targets)?;
    if let Some(path) = &arguments.svg {
        write_and_say(path, &picture(&scheme))?;
    }
    Ok(true)
}

/// The plans for each of the scheme's activations, equal ones once; or why there is none.
fn planned(scheme: &Scheme, target: &'static Target) -> String {
    if let Err(refusal) = plan::support(scheme, target) {
        return format!("refused: {refusal}");
    }
    let mut plans: Vec<(String, Vec<String>)> = Vec::new();
    for activation in &scheme.activations {
        let text = match plan::plan(scheme, activation, target) {
            Ok(plan) => plan.to_string(),
            Err(refusal) => format!("refused: {refusal}"),
        };
        let name = match activation {
            Activation::Float(number) => number.to_string(),
            Activation::Quantised(quantiser) => quantiser.code.to_string(),
        };
        match plans.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(name),
            None => plans.push((text, vec![name])),
        }
    }
    let plans = plans.iter().map(|(text, names)| format!("x in {}\n{text}", names.join(" or ")));
    plans.collect::<Vec<_>>().join("\n")
}
