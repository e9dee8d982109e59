//! `quantloom emit`

mod experts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use quantloom::codegen::emit::{self, rust::page::decoder_page};
use quantloom::codegen::jit::Jit;
use quantloom::codegen::plan::{self, LANES_TILE, kernel_name};
use quantloom::codegen::support;
use quantloom::codegen::target::{Class, Target, names};
use quantloom::dsl::experts::ExpertLayer;
use quantloom::dsl::format::{BF16, Number};
use quantloom::dsl::{Activation, Scheme};
use quantloom::runtime::cpu::isa::Isa;
use quantloom::runtime::gpu::{ColumnOrder, Products as _, Request};
use quantloom::runtime::source::KernelSource as _;

use super::named_layers::named_layer;
use super::sizes::shape;
use super::{ProductOptions, print_line};
use crate::atomic_write::{Replace, write_and_say};
use crate::printed::shell_word;

/// The generated code of a scheme's kernels.
///
/// For x86, neon and portable this is the decoder of the scheme's codes, in Rust; everything
/// else of a CPU kernel is the same for all schemes and is in quantloom_runtime::cpu. For sm_80,
/// sm_89, sm_90a, sm_100a, sm_103a, sm_120, sm_120a and sm_121a it is the whole kernel of a
/// product, in PTX, for AMD's GPUs in HIP C++. Kernels are named after what they compute: code,
/// group, activation, tile, target. With --experts the kernels are those of an expert layer, after
/// its launch plan: which kernel runs when, on how many blocks, on which buffers.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    quantloom emit ct_w4a16 --target x86\n  \
    quantloom emit ct_w4a16 --target sm_90a --shape 4096x4096 --m 16 --out kernels\n  \
    quantloom emit ct_w4a16 --target sm_90a --m 8 --out kernels \
    --experts '8 experts of 256 x 512, top 2, softmax renormalised, silu'\n\n\
    A model's layer has a name too, such as qwen3_30b; its matrices are prepared as on a device, which \
    takes a while.")]
pub(crate) struct Arguments {
    /// A catalogue name or a .scheme file.
    scheme: String,
    /// x86, neon, portable; sm_80, sm_89, sm_90a, sm_100a, sm_103a, sm_120, sm_120a, sm_121a;
    /// gfx942, gfx950, gfx1100, gfx1151, gfx1200, gfx1201; wgsl, wgsl_subgroups.
    #[arg(long)]
    target: String,
    /// The weight's shape, for a GPU: N and K are constants of the text.
    #[arg(long, value_name = "NxK", value_parser = shape, default_value = "4096x4096")]
    shape: (u64, u64),
    /// The kernels and the launch plan of an expert layer, for a GPU, instead of a product: a model's
    /// (mixtral_8x7b, qwen3_30b, gpt_oss_20b, gpt_oss_120b, deepseek_v3, kimi_k2, llama4_scout), or the text
    /// of a layer.
    #[arg(long, value_name = "LAYER", value_parser = named_layer, conflicts_with = "shape")]
    experts: Option<ExpertLayer>,
    /// Rows of x, for a GPU: they decide the kernel, which may take more.
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    m: u64,
    /// The kernel that takes any scales, of which some targets have a slower one: else that for scales of the size that
    /// weights have (in bf16 and for most integer codes: below 2).
    #[arg(long, conflicts_with = "experts")]
    any_scales: bool,
    /// Write KERNELNAME.rs, .ptx, .hip or .wgsl files into this folder instead of printing them; of an
    /// expert layer launches.txt too.
    #[arg(long)]
    out: Option<PathBuf>,
    #[command(flatten)]
    products: ProductOptions,
    #[command(flatten)]
    replace: Replace,
}

/// A kernel's name, its text, and the ending of its file.
struct Emitted {
    name: String,
    text: String,
    ending: &'static str,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let scheme = arguments.products.scheme(&arguments.scheme)?;
    if let Some(why) = Isa::no_kernels(&arguments.target) {
        bail!("there are no kernels for {} in this version: {why}", arguments.target);
    }
    let target = plan::known(&arguments.target)
        .map_err(|unknown| anyhow!("{unknown} (the targets are {})", names()))?;
    let (launches, kernels) = match (&arguments.experts, target.class) {
        (Some(layer), _) => {
            let (launches, kernels) = experts::layer(&scheme, target, layer, arguments.m)?;
            (Some(launches), kernels)
        }
        (None, Class::Lanes) => (None, decoders(&scheme, target, &arguments.scheme)?),
        (None, _) => (None, products(&scheme, target, arguments)?),
    };
    let Some(folder) = &arguments.out else {
        // A comment in the language of every kernel.
        for line in launches.iter().flat_map(|launches| launches.lines()) {
            print_line(format_args!("// {line}").to_string().trim_end())?;
        }
        // Kernels that differ in their activations alone have one text.
        let mut printed: Vec<&str> = Vec::new();
        for kernel in &kernels {
            if !printed.contains(&kernel.text.as_str()) {
                print_line(kernel.text.trim_end())?;
                printed.push(&kernel.text);
            }
        }
        return Ok(true);
    };
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let path = |kernel: &Emitted| folder.join(format!("{}.{}", kernel.name, kernel.ending));
    // Kernels of one name have one text.
    let mut files: BTreeMap<PathBuf, &str> =
        kernels.iter().map(|kernel| (path(kernel), kernel.text.as_str())).collect();
    files.extend(launches.iter().map(|text| (folder.join("launches.txt"), text.as_str())));
    let outputs: Vec<(&str, &Path)> = files.keys().map(|path| ("--out", path.as_path())).collect();
    arguments.replace.check(&outputs, &[Path::new(&arguments.scheme)])?;
    for (path, text) in &files {
        write_and_say(path, text)?;
    }
    Ok(true)
}

/// A decoder for each activation that the target multiplies.
fn decoders(scheme: &Scheme, target: &'static Target, argument: &str) -> Result<Vec<Emitted>> {
    support::support(scheme, target)?;
    let again = format!("quantloom emit {} --target {target}", shell_word(argument));
    let text = decoder_page(&scheme.weight.code, &again)?;
    let mut kernels = Vec::new();
    for activation in &scheme.activations {
        if plan::plan(scheme, activation, target).is_ok() {
            let name = kernel_name(scheme, activation, LANES_TILE, target);
            kernels.push(Emitted { name, text: text.clone(), ending: "rs" });
        }
    }
    Ok(kernels)
}

/// The kernels of a product for each activation that a schedule takes: those that make of x what it
/// reads, if any, and its own. x to be quantised comes in bf16.
fn products(
    scheme: &Scheme,
    target: &'static Target,
    arguments: &Arguments,
) -> Result<Vec<Emitted>> {
    let (n, k) = arguments.shape;
    let mut kernels = Vec::new();
    let mut refused = None;
    for activation in &scheme.activations {
        let own = match activation {
            Activation::Float(Number::Float(own)) => *own,
            _ => BF16,
        };
        let request = Request {
            scheme,
            activation,
            input_dtype: own,
            target: target.name,
            n,
            k,
            x_columns: k,
            scales_in_range: !arguments.any_scales,
            layout_of_range: !arguments.any_scales,
        };
        let keys = Jit.arrangement(&request).and_then(|arrangement| {
            // Of columns with a group index as many as if all groups were full.
            let columns = arrangement.map(|arrangement| ColumnOrder::new(&arrangement, None, k));
            let k = columns.map_or(k, |order| order.columns().len() as u64);
            let request = Request { k, ..request };
            let choice = Jit.choose(&request, arguments.m)?;
            let operand = Jit.operand(&request, Some(&choice.key))?;
            Ok(operand.into_iter().chain([choice.key]).collect::<Vec<_>>())
        });
        match keys {
            Ok(keys) => {
                for key in keys {
                    let text = Jit.text(&key)?;
                    let (name, text) = (text.entry.into_owned(), text.text.into_owned());
                    kernels.push(Emitted { name, text, ending: emit::file_extension(target) });
                }
            }
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    match refused {
        Some(why) if kernels.is_empty() => Err(why.into()),
        _ => Ok(kernels),
    }
}
