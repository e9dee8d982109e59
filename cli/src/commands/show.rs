//! `quantloom show`

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use quantloom::codegen::plan::{self, Plan};
use quantloom::codegen::schedule::Problem;
use quantloom::codegen::support;
use quantloom::codegen::target::{TARGETS, Target};
use quantloom::dsl::format::F32;
use quantloom::dsl::{Activation, Scheme};

use super::{print_line, scheme, text_table};
use crate::atomic_write::{Replace, write_and_say};
use crate::picture::picture;

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
    print_line(&scheme)?;
    print_line(format_args!("{:.4} bits per weight", scheme.bits_per_weight()))?;
    for taken in scheme.activation_choices() {
        print_line(taken)?;
    }
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
    print_line(stores)?;
    for what in scheme.clipping() {
        print_line(format_args!("note: {what}"))?;
    }
    let mut targets = text_table(&["target", "plan"]);
    for target in TARGETS {
        targets.add_text([target.name.to_owned(), planned(&scheme, target)]);
    }
    print_line(targets)?;
    if let Some(path) = &arguments.svg {
        write_and_say(path, &picture(&scheme))?;
    }
    Ok(true)
}

/// N and K without ragged tiles.
const SHAPE: (u32, u32) = (1024, 4096);

/// The plan of the kernels of a GPU, whose choice may depend on what their schedules support; or else that of the scheme alone.
fn plan_of(
    scheme: &Scheme,
    activation: &Activation,
    target: &'static Target,
) -> Result<Plan, plan::PlanError> {
    // Each expert is multiplied as a weight of its own.
    let dense = Scheme { experts: None, ..scheme.clone() };
    match Problem::new(&dense, activation, target, SHAPE) {
        Ok(problem) => Ok(problem.plan),
        Err(_) => plan::plan(scheme, activation, target),
    }
}

/// What x is multiplied as, and the plan: of the activation, or of a narrower type to which a GPU rounds
/// it.
fn planned_for(
    scheme: &Scheme,
    activation: &Activation,
    target: &'static Target,
) -> (String, Result<Plan, plan::PlanError>) {
    let name = activation.name();
    let planned = plan_of(scheme, activation, target);
    let taken = scheme.activation_for(F32).filter(|taken| taken.activation == activation);
    if let (Err(_), Some(taken), Some(_)) = (&planned, taken, target.gpu) {
        for narrower in taken.narrower(scheme) {
            if let Ok(plan) = plan_of(scheme, &narrower, target) {
                return (format!("{name} rounded to {}", narrower.name()), Ok(plan));
            }
        }
    }
    (name, planned)
}

/// The plans for each of the scheme's activations, equal ones once; or why there is none.
fn planned(scheme: &Scheme, target: &'static Target) -> String {
    if let Err(refusal) = support::support(scheme, target) {
        return format!("refused: {refusal}");
    }
    let mut plans: Vec<(String, Vec<String>)> = Vec::new();
    for activation in &scheme.activations {
        let (name, plan) = planned_for(scheme, activation, target);
        let text = match plan {
            Ok(plan) => plan.to_string(),
            Err(refusal) => format!("refused: {refusal}"),
        };
        match plans.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(name),
            None => plans.push((text, vec![name])),
        }
    }
    let plans = plans.iter().map(|(text, names)| format!("x in {}\n{text}", names.join(" or ")));
    plans.collect::<Vec<_>>().join("\n")
}
