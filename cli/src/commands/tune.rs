//! `quantloom tune`: every tile that is worth it, measured; the fastest, for the table of tiles.

mod experts;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use quantloom::codegen::jit::measured_row;
use quantloom::codegen::schedule::merged;
use quantloom::device::Device;
use quantloom::dsl::experts::ExpertLayer;
use quantloom::dsl::format::FloatFormat;
use quantloom::dsl::layout::Shape;
use quantloom::dsl::{Accuracy, Scheme};
use quantloom::runtime::checkpoint::{Checkpoint, Layer};
use quantloom::runtime::cuda::Cuda;
use quantloom::runtime::gpu::{GpuDevice, GpuWeight, TimedKernel, TuneOptions, Tuned};
use quantloom::runtime::source::Schedule;
use quantloom::tiles;

use super::backend;
use super::bench::{normal_weight, own_type};
use super::named_layers::named_layer;
use super::sizes::{Tokens, shape};
use super::{print_line, scheme, table};
use crate::atomic_write::write_and_say;
use crate::progress::Progress;

/// The fastest tile of a GPU's kernels for a product, a shape and M, by measuring them all.
#[derive(Args)]
#[command(
    after_help = "Every tile that fits is compiled, run on weights of normal numbers that rotate beyond the \
    L2, and timed as `quantloom bench` times it, with programmatic launch. Only the fastest that is \
    ahead of the model's choice by more than --margin is kept or written; else the model's own choice is.\n\n\
    Of a checkpoint, every scheme and shape of its layers is measured once, with the weights of the first such layer; so are its \
    expert layers, as a whole: from the ids of experts to y, the slots of a token block and the tiles of both products together.\n\n\
    --keep is for your own GPU: every program of this user that opens it chooses these tiles from then on \
    (`explain` of a layer says so). They are in the cache (QUANTLOOM_CACHE), in `tiles`, a file for each name of a GPU; \
    remove the file to forget them. --write is for the table that the compiler comes with.\n\n\
    Examples:\n  \
    quantloom tune --scheme ct_w4a16 --shape 8192x8192 --m 1,8,16,32\n  \
    quantloom tune --scheme fp8_block --shape 7168x2048 --m 1,16,64,1024 --keep\n  \
    quantloom tune model/ --m 1,16,256 --keep\n  \
    quantloom tune --experts qwen3_30b --scheme ct_w4a16 --m 16,64,512 --keep\n  \
    quantloom tune --scheme ct_w4a16 --scheme ct_mxfp4a16 --shape 4096x4096 --shape 8192x8192 \
    --m 1,8 --write codegen/src/schedule/measured.txt\n\n\
    To try a tile in any program, without this table: \
    QUANTLOOM_KERNEL=\"skinny(row_tiles=2, warps=12)\". To have every program measure what it \
    meets for the first time: QUANTLOOM_TUNE=first-use"
)]
pub(crate) struct Arguments {
    /// Checkpoints whose layers are measured: safetensors or GGUF files, or model directories.
    #[arg(value_name = "MODEL", conflicts_with_all = ["schemes", "shapes"])]
    models: Vec<PathBuf>,
    /// A catalogue name or a .scheme file, of which weights of normal numbers are measured; several may be given.
    #[arg(long = "scheme", value_name = "SCHEME")]
    schemes: Vec<String>,
    /// The weight's shape; several may be given.
    #[arg(long = "shape", value_name = "NxK", value_parser = shape, default_value = "4096x4096")]
    shapes: Vec<(u64, u64)>,
    /// Whole expert layers instead of products: a model's (mixtral_8x7b, qwen3_30b, gpt_oss_20b, gpt_oss_120b, deepseek_v3, kimi_k2,
    /// llama4_scout), or the text of a layer; several may be given.
    #[arg(long, value_name = "LAYER", value_parser = named_layer, conflicts_with_all = ["shapes", "models"])]
    experts: Vec<ExpertLayer>,
    /// Values of M, each rounded up to a power of two; of expert layers to the next of four steps on the way to one.
    #[arg(long, value_name = "LIST", default_value = "1,8,16,32")]
    m: Tokens,
    /// An NVIDIA GPU.
    #[arg(long, default_value = "cuda")]
    backend: String,
    /// By how much a tile must be faster than the model's choice to be preferred, in per cent.
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0)]
    margin: f64,
    /// Only tiles of this schedule (skinny, tile, warp_group), and the model's choice.
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,
    /// How many of the fastest tiles to show of each case.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    top: usize,
    /// Keeps the fastest tiles in the cache, where every program that opens this GPU finds them.
    #[arg(long)]
    keep: bool,
    /// Writes the fastest tiles into this table, in place of its lines of the same cases.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// The kernels of one product, shape and M.
struct Outcome {
    scheme: String,
    shape: (u64, u64),
    tuned: Tuned,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    if arguments.models.is_empty() && arguments.schemes.is_empty() {
        bail!("nothing to measure: name a MODEL, or a scheme by --scheme (`quantloom tune --help`)")
    }
    let known = arguments.write.as_ref().map(std::fs::read_to_string).transpose();
    let known = known.context("cannot read the table that `--write` names")?;
    let stores = arguments.keep || arguments.write.is_some();
    let random = arguments.schemes.iter().map(|name| scheme(name));
    let random = random.collect::<Result<Vec<Scheme>>>()?;
    let open = |path: &PathBuf| Ok(Checkpoint::open(path)?);
    let checkpoints = arguments.models.iter().map(open).collect::<Result<Vec<_>>>()?;
    let layers = layers(&arguments.models, &checkpoints)?;
    let of_shape = |scheme| {
        let shape = move |&(n, k): &(u64, u64)| Subject::Random(scheme, Shape::matrix(n, k));
        arguments.shapes.iter().filter(|_| arguments.experts.is_empty()).map(shape)
    };
    let singles = random.iter().flat_map(of_shape);
    let subjects: Vec<Subject<'_>> = singles.chain(layers.iter().map(Subject::Layer)).collect();
    let of_layer =
        |scheme| arguments.experts.iter().map(move |layer| experts::Subject::Random(scheme, layer));
    let mut of_experts: Vec<experts::Subject<'_>> = random.iter().flat_map(of_layer).collect();
    let (stored, mut left_out) = experts::stored(&checkpoints);
    of_experts.extend(stored);
    if subjects.is_empty() && of_experts.is_empty() {
        let why = left_out.first().map_or_else(String::new, |why| format!("; {why}"));
        bail!("there is no quantised layer to measure{why}")
    }
    let schemes = of_experts.iter().flat_map(experts::Subject::schemes);
    let mut schemes = subjects.iter().map(Subject::scheme).chain(schemes);
    let exact = schemes.find(|scheme| scheme.accuracy == Accuracy::Exact);
    if let (Some(scheme), true) = (exact, stores) {
        bail!(
            "a table of tiles has no lines of exact products, which `{}` asks for: leave out --keep and --write",
            scheme.name
        );
    }
    let Device::Cuda(device) = backend::device(&arguments.backend)? else {
        bail!("`tune` measures kernels of an NVIDIA GPU: --backend cuda")
    };
    let name = &device.executor().stream().context().info().name;
    let own = arguments.keep.then(|| {
        tiles::path(name).context("--keep writes into the cache, which QUANTLOOM_CACHE turns off")
    });
    let own = own.transpose()?;
    let (margin, schedule) = (arguments.margin / 100.0, arguments.schedule.clone());
    let options = TuneOptions { margin, schedule, keep: arguments.keep };
    let Tokens(tokens) = &arguments.m;
    let count = (subjects.len() + of_experts.len()) * tokens.len();
    let progress = Progress::new("measuring", count as u64);
    let (mut outcomes, mut rows) = (Vec::new(), Vec::new());
    for subject in &subjects {
        let (scheme, Shape { n, k, .. }) = (subject.scheme(), subject.shape());
        let own = own_type(scheme);
        let what = || format!("scheme {}, N x K = {n} x {k}", scheme.name);
        let weight = subject.prepared(&device, own).with_context(what)?;
        let tuner = weight.tuner(own).with_context(what)?;
        for tokens in tokens {
            let tuned = tuner.tune(*tokens as u64, &options);
            let tuned = tuned.with_context(|| format!("{}, M = {tokens}", what()))?;
            if arguments.write.is_some() {
                let fastest = &tuned.preferred().kernel.key;
                rows.push(measured_row(&weight.asked(own)?, tuned.tokens, fastest)?);
            }
            outcomes.push(Outcome { scheme: scheme.name.clone(), shape: (n, k), tuned });
            progress.advance(1);
        }
    }
    let mut layers = Vec::new();
    for subject in &of_experts {
        let rows = arguments.write.is_some().then_some(&mut rows);
        let done = &mut || progress.advance(1);
        let tuned = subject.tune(&device, (tokens, &options), rows, (&mut layers, done));
        match (tuned, subject) {
            (Err(why), experts::Subject::Stored(_)) => left_out.push(format!("{why:#}")),
            (tuned, _) => tuned?,
        }
    }
    drop(progress);
    if !outcomes.is_empty() {
        show(&outcomes, arguments.top)?;
    }
    if !layers.is_empty() {
        experts::show(&layers, arguments.top)?;
    }
    for why in &left_out {
        print_line(format_args!("not measured: {why}"))?;
    }
    if let Some(path) = &own {
        print_line(format_args!("kept in {}", path.display()))?;
    }
    if let Some((path, known)) = arguments.write.clone().zip(known) {
        write_and_say(&path, &merged(&known, &rows)?)?;
    }
    Ok(true)
}

/// The layers of checkpoints that are in no expert layer, one of each scheme and shape.
fn layers(models: &[PathBuf], checkpoints: &[Checkpoint]) -> Result<Vec<Layer>> {
    let mut layers: Vec<Layer> = Vec::new();
    for (path, checkpoint) in models.iter().zip(checkpoints) {
        let experts: Vec<_> = checkpoint.expert_layers().filter_map(|(_, of)| of.ok()).collect();
        let of_experts: BTreeSet<&str> = experts.iter().flat_map(|of| of.members()).collect();
        let alone = checkpoint.layers().filter(|(name, _)| !of_experts.contains(name));
        for (name, layer) in alone {
            let layer = layer.with_context(|| format!("{}: {name}", path.display()))?;
            let alike =
                |known: &Layer| (known.scheme(), known.shape()) == (layer.scheme(), layer.shape());
            if layer.shape().experts == 1 && !layers.iter().any(alike) {
                layers.push(layer.clone());
            }
        }
    }
    Ok(layers)
}

/// What is measured.
enum Subject<'a> {
    /// A random weight.
    Random(&'a Scheme, Shape),
    /// That of a layer.
    Layer(&'a Layer),
}

impl Subject<'_> {
    fn scheme(&self) -> &Scheme {
        match self {
            Self::Random(scheme, _) => scheme,
            Self::Layer(layer) => layer.scheme(),
        }
    }

    fn shape(&self) -> Shape {
        match self {
            Self::Random(_, shape) => *shape,
            Self::Layer(layer) => layer.shape(),
        }
    }

    /// The weight on a GPU, for x of one type.
    fn prepared(&self, device: &GpuDevice<Cuda>, own: FloatFormat) -> Result<GpuWeight<Cuda>> {
        let (scheme, shape) = (self.scheme().with_input(own), self.shape());
        Ok(match self {
            Self::Random(all, _) => {
                let packed = normal_weight(all, shape, 0)?;
                let stored = |name: &str| packed.get(name).map(Vec::as_slice);
                device.prepare_stored(&scheme, shape, &stored)?
            }
            Self::Layer(layer) => {
                device.prepare_stored(&scheme, shape, &|name: &str| layer.store(name))?
            }
        })
    }
}

fn show(outcomes: &[Outcome], top: usize) -> Result<()> {
    let mut rows = table(&[
        "scheme",
        "N x K",
        "M",
        "model",
        "best",
        "gain",
        "tried",
        "registers",
        "best tile",
    ]);
    let tile = |timed: &TimedKernel| of_tile(&timed.kernel.key.schedule);
    let registers = |timed: &TimedKernel| {
        timed.registers.map_or_else(String::new, |registers| registers.of_thread.to_string())
    };
    for Outcome { scheme, shape: (n, k), tuned } in outcomes {
        let Tuned { tokens, model, best, others, failed, spilled, .. } = tuned;
        let ran = others.len() + 1;
        let gain = |timed: &TimedKernel| {
            format!("{:.1}%", (model.microseconds / timed.microseconds - 1.0) * 100.0)
        };
        rows.add_row([
            scheme.clone(),
            format!("{n} x {k}"),
            tokens.to_string(),
            format!("{:.2}", model.microseconds),
            format!("{:.2}", best.microseconds),
            gain(best),
            format!("{ran} of {}", ran + failed.len() + spilled.len()),
            registers(best),
            tile(best),
        ]);
        for other in others.iter().take(top.saturating_sub(1)) {
            let (none, time) = (String::new(), format!("{:.2}", other.microseconds));
            let [scheme, shape, tokens, model, tried] = std::array::from_fn(|_| none.clone());
            let times = [scheme, shape, tokens, model, time, gain(other), tried];
            rows.add_row(times.into_iter().chain([registers(other), tile(other)]));
        }
    }
    print_line(rows)?;
    print_line(
        "microseconds a call with programmatic launch; model: the tile that is chosen without the \
         table; registers: of a thread, as the driver counts them",
    )?;
    let failed = outcomes.iter().flat_map(|outcome| &outcome.tuned.failed);
    let failed = failed.map(|(kernel, why)| (kernel.schedule.to_string(), why.to_string()));
    unmeasured(outcomes.iter().map(|outcome| outcome.tuned.spilled.len()).sum(), failed)
}

/// The free choices of a kernel, without the sizes, which are in the row of a table already.
fn of_tile(schedule: &Schedule) -> String {
    let Schedule { name, parameters } = schedule;
    let sizes = ["n", "k", "experts", "shards", "top_k", "chosen_from"];
    let choices = parameters.iter().filter(|(name, _)| !sizes.contains(&name.as_str()));
    let choices = choices.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    format!("{name} {}", choices.join(" "))
}

/// Says how many tiles were left out for their registers, and which ones did not run, and why.
fn unmeasured(spilled: usize, failed: impl Iterator<Item = (String, String)>) -> Result<()> {
    if spilled > 0 {
        print_line(format_args!(
            "not measured: {spilled} tiles of which the driver's compiler spills registers"
        ))?;
    }
    for (kernel, why) in failed {
        print_line(format_args!("did not run: {kernel}: {why}"))?;
    }
    Ok(())
}
