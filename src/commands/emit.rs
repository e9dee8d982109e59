//! `quantloom emit`

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use quantloom::codegen::emit::rust::page::family_page;
use quantloom::codegen::plan::{self, LANES_TILE, kernel_name};
use quantloom::codegen::target::{Class, Target};
use quantloom::dsl::Scheme;

use super::{say, scheme};
use crate::whole::write_whole;

/// The generated code of a scheme's kernels.
///
/// For x86, neon and portable this is the decoder of the scheme's codes, in Rust; everything
/// else of a CPU kernel is the same for all schemes and lies in quantloom_runtime::cpu. Kernels
/// are named after what they compute: code, group, activation, tile, target.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A catalogue name or a .scheme file.
    scheme: String,
    /// x86, neon or portable.
    #[arg(long)]
    target: String,
    /// Write KERNELNAME.rs files into this folder instead of printing them.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// A kernel's name and its text.
struct Emitted {
    name: String,
    text: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let scheme = scheme(&arguments.scheme)?;
    let target = plan::known(&arguments.target)?;
    let kernels = emit(&scheme, target, &arguments.scheme)?;
    let Some(folder) = &arguments.out else {
        // Kernels that differ in their activations alone have one text.
        let mut printed: Vec<&str> = Vec::new();
        for kernel in &kernels {
            if !printed.contains(&kernel.text.as_str()) {
                say(kernel.text.trim_end())?;
                printed.push(&kernel.text);
            }
        }
        return Ok(true);
    };
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    for kernel in &kernels {
        let path = folder.join(format!("{}.rs", kernel.name));
        write_whole(&path, &kernel.text)
            .with_context(|| format!("cannot write {}", path.display()))?;
        say(format_args!("wrote {}", path.display()))?;
    }
    Ok(true)
}

/// A kernel for each activation that the target multiplies.
fn emit(scheme: &Scheme, target: &'static Target, argument: &str) -> Result<Vec<Emitted>> {
    if target.class != Class::Lanes {
        bail!("no text is emitted for {target} in this version; x86, neon and portable have one");
    }
    plan::support(scheme, target)?;
    let again = format!("quantloom emit {argument} --target {target}");
    let text = family_page(&scheme.weight.code, &again)?;
    let mut kernels = Vec::new();
    for activation in &scheme.activations {
        if plan::plan(scheme, activation, target).is_ok() {
            let name = kernel_name(scheme, activation, LANES_TILE, target);
            kernels.push(Emitted { name, text: text.clone() });
        }
    }
    Ok(kernels)
}
