//! `quantloom emit --experts`: the kernels of an expert layer, and its launch plan.
//!
//! The layer is prepared on the simulator of the target with random matrices, so that kernels, their order
//! and their buffers are those of a device.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use quantloom::codegen::emit;
use quantloom::codegen::jit::{Jit, Simulator};
use quantloom::codegen::target::{Class, Target};
use quantloom::dsl::Scheme;
use quantloom::dsl::experts::ExpertLayer;
use quantloom::runtime::gpu::{LaunchPlan, LaunchStep, LayerPlan, PlanKey, RoutedBy};
use quantloom::runtime::source::{Access, KernelSource as _, KernelText, ProblemSize};

use super::super::backend::{Tuning, simulator};
use super::super::random_experts::{RandomExperts, options};
use super::super::size;
use super::Emitted;

/// The launch plan of a call with M tokens and the router's logits, and the kernels, each once.
pub(super) fn layer(
    scheme: &Scheme,
    target: &'static Target,
    layer: &ExpertLayer,
    tokens: u64,
) -> Result<(String, Vec<Emitted>)> {
    if matches!(target.class, Class::Lanes) {
        bail!("expert layers on {target} have no kernels of their own: leave --experts out");
    }
    let device = simulator(target.name, 0, &Tuning::default())?;
    let weights = RandomExperts::new(scheme, layer)?;
    let prepared = device.prepare_layer(layer, &weights, &options(layer))?;
    let (element, routed) = (weights.own, RoutedBy::Logits);
    let key = PlanKey { element, output: element, tokens, routed, shared: None };
    let plan = prepared.plan(key)?;
    let texts = plan.steps().iter().map(|step| Jit.text(&step.kernel));
    let texts = texts.collect::<Result<Vec<KernelText<'_>>, _>>()?;
    let mut said = format!(
        "Launches of {layer}, {} on {target}: M = {tokens}, x in {element}, experts by logits.\n\
         {} launches, {} of workspace.\n",
        scheme.name,
        plan.launches(),
        size(plan.workspace().total()),
    );
    write_launches(&mut said, &plan, &texts)?;
    let mut kernels: Vec<Emitted> = Vec::new();
    for text in texts {
        if kernels.iter().all(|known| known.name != text.entry) {
            let (name, text) = (text.entry.into_owned(), text.text.into_owned());
            kernels.push(Emitted { name, text, ending: emit::file_extension(target) });
        }
    }
    Ok((said, kernels))
}

/// A launch a paragraph: the kernel, its grid, and the bytes of its buffers.
fn write_launches(
    said: &mut String,
    plan: &LayerPlan<Simulator>,
    texts: &[KernelText<'_>],
) -> Result<()> {
    let Some(sizes) = plan.sizes() else { return Ok(()) };
    if sizes.m < plan.key().tokens {
        writeln!(said, "Tokens are cut into chunks of {}: the launches of one.", sizes.m)?;
    }
    let steps = plan.steps();
    let launched = LaunchPlan::new(steps.iter().zip(texts.iter().map(|text| &*text.rule)))?;
    for (at, (launch, (step, text))) in
        launched.launches.iter().zip(steps.iter().zip(texts)).enumerate()
    {
        writeln!(said, "\n{}. {}", at + 1, text.entry)?;
        writeln!(said, "   {}", grid(step, text, &sizes))?;
        for (access, verb) in
            [(Access::Read, "reads"), (Access::Write, "writes"), (Access::ReadWrite, "updates")]
        {
            let mut buffers = Vec::new();
            for (buffer, _) in launch.slots.iter().filter(|(_, of)| *of == access) {
                let buffer = &launched.buffers[*buffer];
                let bytes = buffer.bytes.of(&sizes).map_or_else(|| "?".to_owned(), size);
                let of = if buffer.product == 1 { " of the second product" } else { "" };
                buffers.push(format!("`{}`{of} {bytes}", buffer.role));
            }
            if !buffers.is_empty() {
                writeln!(said, "   {verb} {}", buffers.join(", "))?;
            }
        }
    }
    Ok(())
}

/// The blocks of a launch and their threads.
fn grid(step: &LaunchStep, text: &KernelText<'_>, sizes: &ProblemSize) -> String {
    let blocks = text.rule.grid.each_ref().map(|count| {
        count.with_rows(&step.rows).of(sizes).map_or_else(|| "?".to_owned(), |n| n.to_string())
    });
    let overlaps = if text.rule.overlaps { ", programmatic dependent launch" } else { "" };
    format!("grid {}, {} threads a block{overlaps}", blocks.join(" x "), text.rule.threads)
}
