//! `quantloom run`

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use quantloom::dsl::Scheme;
use quantloom::dsl::format::FloatFormat;
use quantloom::runtime::backend::Backend as _;
use quantloom::runtime::checkpoint::Dtype;
use quantloom::runtime::op::ProductError;
use quantloom::runtime::tensor::f32_bytes;
use quantloom::runtime::weight_data::WeightData;
use quantloom_tools::forward::{Input, as_called, multiply};

use super::{ProductOptions, Reading, eprint_line, print_line};
use crate::atomic_write::Replace;
use crate::progress::Progress;
use experts::ExpertArguments;
use tensors::{named, write};

mod experts;
mod tensors;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    quantloom run model/ --layer model.layers.0.mlp.down_proj --input x.safetensors:x --out y.safetensors\n  \
    quantloom run layer.safetensors --scheme my.scheme --shape 4096x4096 --input x.safetensors:x \
    --out y.safetensors --force\n  \
    quantloom run model/ --experts model.layers.0.mlp.experts --input x.safetensors:x --out y.safetensors")]
pub(crate) struct Arguments {
    /// A .safetensors or .gguf file, or a model directory.
    path: PathBuf,
    /// The layer, as `inspect` names it; may be left out if there is only one.
    #[arg(long, value_name = "NAME")]
    layer: Option<String>,
    /// The activation: a safetensors file and a tensor's name, FILE:NAME; f32, f16 or bf16,
    /// [M, K] or [B, M, K].
    #[arg(long, value_name = "FILE:NAME")]
    input: String,
    /// What multiplies: `auto` takes the fastest device that is present, `cpu` the best instruction
    /// set; or one by its name, as `quantloom devices` lists them. The last line printed names the
    /// device; devices differ in the rounding of sums.
    #[arg(long, default_value = "auto")]
    backend: String,
    /// Of a layer of stacked experts, the one to multiply with.
    #[arg(long, default_value_t = 0)]
    expert: u64,
    /// One dynamic activation scale a token, or one for all of x. `auto` does what the
    /// checkpoint's own software does: compressed-tensors takes one for all of a
    /// two-dimensional x, and one a token of a three-dimensional one.
    #[arg(long, value_enum, default_value_t = Tokens::Auto)]
    token_scale: Tokens,
    /// The alternative of the scheme's activations that x is taken as, whatever its type: `bf16`, or
    /// the type of the quantiser's codes, `i8`. Without it the scheme's list decides.
    #[arg(long, value_name = "TYPE")]
    activation: Option<String>,
    /// Also say which kernel multiplies, and why not another.
    #[arg(long)]
    explain: bool,
    /// The file to write: the tensor `y`, f32 [M, N]; with --experts `y` [M, H], and the choice, `ids` i32 and
    /// `weights` f32 [M, k].
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    products: ProductOptions,
    #[command(flatten)]
    experts: ExpertArguments,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    replace: Replace,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Tokens {
    Auto,
    PerToken,
    WholeTensor,
}

/// Says what becomes of x of a type, where that is not as the scheme's only alternative has it: the device rounds x, or
/// the scheme has several alternatives.
fn note_input(scheme: &Scheme, mixed: bool, own: FloatFormat, rounded: FloatFormat) {
    let note = match scheme.activation_for(own) {
        Some(taken) if rounded != own && taken.converted().is_some() => {
            format!("x in {own} is rounded to {rounded}: the scheme does not list {own}")
        }
        _ if rounded != own => {
            format!("x in {own} is rounded to {rounded}: the device has no products of {own}")
        }
        Some(taken) if mixed && taken.converted().is_none() => taken.to_string(),
        _ => return,
    };
    eprint_line(&format!("quantloom: note: {note}"));
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let device = super::backend::device(&arguments.backend)?;
    let name = arguments.layer.as_deref();
    let checkpoint = arguments.reading.open(&arguments.path, name)?;
    if let Some(name) = &arguments.experts.experts {
        let input = arguments.input.rsplit_once(':').map(|(file, _)| Path::new(file));
        let inputs = [arguments.path.as_path()].into_iter().chain(input);
        let inputs: Vec<&Path> = inputs.chain(arguments.experts.files()).collect();
        arguments.replace.check(&[("--out", &arguments.out)], &inputs)?;
        return experts::run(arguments, name, &checkpoint, &device);
    }
    let layer = arguments.reading.layer(&checkpoint, name)?;
    let file = arguments.input.rsplit_once(':').map_or("", |(file, _)| file);
    let scheme = Path::new(arguments.reading.scheme().unwrap_or_default());
    let inputs = [arguments.path.as_path(), Path::new(file), scheme];
    arguments.replace.check(&[("--out", &arguments.out)], &inputs)?;
    let tensor = named("--input", &arguments.input)?;
    let x = Input::of_type(&tensor).with_context(|| {
        format!("--input is of type {:?}; f32, f16 and bf16 multiply", tensor.dtype())
    })?;
    if x.shape.last() != Some(&layer.shape().k) {
        bail!("--input is {:?}; its last dimension must be K = {}", x.shape, layer.shape().k);
    }
    let rank = match arguments.token_scale {
        Tokens::Auto => x.shape.len(),
        Tokens::PerToken => 3,
        Tokens::WholeTensor => 2,
    };
    let called = as_called(layer.scheme(), layer.format(), rank);
    let scheme = match &arguments.activation {
        Some(name) => Cow::Owned(called.with_activation(name)?),
        None => Cow::Borrowed(&*called),
    };
    let scheme = arguments.products.of(scheme.into_owned());
    let progress = Progress::new("multiplying", 0);
    let unpacked = layer.unpack()?;
    let data = WeightData::stored(&scheme, layer.shape(), |name| layer.store(name));
    // `auto` may be a GPU without kernels for the scheme.
    let refused = |error: ProductError| match error {
        ProductError::NotScheduled(_) => {
            anyhow!("{error} (on {}; --backend takes another device)", device.name())
        }
        error => error.into(),
    };
    let op = device.prepare_weight(&data.with_unpacked(&unpacked)).map_err(refused)?;
    note_input(op.scheme(), called.is_mixed(), x.own, op.accumulation().rounds_x(x.own));
    let tokens = x.shape[..x.shape.len() - 1].iter().product::<u64>();
    // What it says is said before the product may fail.
    let explained = arguments.explain.then(|| op.explain(tokens as usize));
    let y = multiply(op.as_ref(), arguments.expert, &x);
    drop(progress);
    if let Some(lines) = explained {
        eprint_line(&lines);
    }
    let y = y.map_err(refused)?;
    if arguments.token_scale == Tokens::Auto && *called != *layer.scheme() {
        eprint_line(
            "quantloom: note: x is two-dimensional, so that one activation scale is taken for all \
             of it, as compressed-tensors does; --token-scale per-token takes one a token",
        );
    }
    let mut dims = x.shape.clone();
    if let Some(last) = dims.last_mut() {
        *last = layer.shape().n;
    }
    write(&arguments.out, &[("y", Dtype::F32, dims.clone(), f32_bytes(&y))])?;
    print_line(format_args!(
        "wrote {}: y, f32, {dims:?}, {}",
        arguments.out.display(),
        device.name()
    ))?;
    Ok(true)
}
