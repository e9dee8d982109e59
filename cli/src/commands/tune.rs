//! `quantloom tune`: every tile that is worth it, measured; the fastest, for the table of tiles.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use quantloom::codegen::jit::alternatives;
use quantloom::codegen::schedule::{Case, Chosen, Measured, merged};
use quantloom::device::Device;
use quantloom::dsl::layout::Shape;
use quantloom::dsl::{Accuracy, Scheme};
use quantloom::tiles;

use super::backend;
use super::bench::gpu::Copies;
use super::bench::own_type;
use super::sizes::{Tokens, shape};
use super::{print_line, scheme, table};
use crate::atomic_write::write_and_say;
use crate::progress::Progress;

/// The fastest tile of a GPU's kernels for a product, a shape and M, by measuring them all.
#[derive(Args)]
#[command(
    after_help = "Every tile that fits is compiled, run on random weights that rotate beyond the \
    L2, and timed as `quantloom bench` times it, with programmatic launch. Only the fastest that is \
    ahead of the model's choice by more than --margin is kept or written; else the model's own choice is.\n\n\
    --keep is for your own GPU: every program of this user that opens it chooses these tiles from then on \
    (`explain` of a layer says so). They are in the cache (QUANTLOOM_CACHE), in `tiles`, a file for each name of a GPU; \
    remove the file to forget them. --write is for the table that the compiler comes with.\n\n\
    Examples:\n  \
    quantloom tune --scheme ct_w4a16 --shape 8192x8192 --m 1,8,16,32\n  \
    quantloom tune --scheme fp8_block --shape 7168x2048 --m 1,16,64,1024 --keep\n  \
    quantloom tune --scheme ct_w4a16 --scheme ct_mxfp4a16 --shape 4096x4096 --shape 8192x8192 \
    --m 1,8 --write codegen/src/schedule/measured.txt\n\n\
    To try a tile in any program, without this table: \
    QUANTLOOM_KERNEL=\"skinny(row_tiles=2, warps=12)\""
)]
pub(crate) struct Arguments {
    /// A catalogue name or a .scheme file; several may be given.
    #[arg(long = "scheme", value_name = "SCHEME", required = true)]
    schemes: Vec<String>,
    /// The weight's shape; several may be given.
    #[arg(long = "shape", value_name = "NxK", value_parser = shape, default_value = "4096x4096")]
    shapes: Vec<(u64, u64)>,
    /// Values of M, each rounded up to a power of two.
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

/// A tile and its time.
struct Tried {
    chosen: Chosen,
    /// Microseconds a call, with programmatic launch.
    time: f64,
}

/// All tiles of one case.
struct Outcome {
    case: Case,
    scheme: String,
    /// What the model chooses.
    model: Tried,
    /// The fastest.
    best: Tried,
    /// Those that follow, measured once.
    others: Vec<Tried>,
    /// How many were measured.
    tried: usize,
    /// Those that the driver refused, and why.
    failed: Vec<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let known = arguments.write.as_ref().map(std::fs::read_to_string).transpose();
    let known = known.context("cannot read the table that `--write` names")?;
    let stores = arguments.keep || arguments.write.is_some();
    let schemes: Vec<Scheme> =
        arguments.schemes.iter().map(|name| scheme(name)).collect::<Result<_>>()?;
    let exact = schemes.iter().find(|scheme| scheme.accuracy == Accuracy::Exact);
    if let (Some(scheme), true) = (exact, stores) {
        bail!(
            "a table of tiles has no lines of exact products, which `{}` asks for: leave out --keep and --write",
            scheme.name
        );
    }
    let Device::Cuda(device) = backend::device(&arguments.backend)? else {
        bail!("`tune` measures kernels of an NVIDIA GPU: --backend cuda")
    };
    let name = device.executor().stream().context().info().name.clone();
    let own = arguments.keep.then(|| {
        tiles::path(&name).context("--keep writes into the cache, which QUANTLOOM_CACHE turns off")
    });
    let own = own.transpose()?;
    let Tokens(tokens) = &arguments.m;
    let cells = schemes.len() * arguments.shapes.len() * tokens.len();
    let progress = Progress::new("measuring", cells as u64);
    let mut outcomes = Vec::new();
    for scheme in &schemes {
        for &(n, k) in &arguments.shapes {
            let own = own_type(scheme);
            let copies = Copies::new(&device, scheme, own, Shape::matrix(n, k))?;
            let copies = copies.map_err(|why| anyhow::anyhow!("{}: {why}", scheme.name))?;
            for tokens in tokens {
                let tokens = tokens.next_power_of_two();
                let outcome = tune(&copies, scheme, tokens, arguments);
                outcomes.push(outcome.with_context(|| {
                    format!("scheme {}, N x K = {n} x {k}, M = {tokens}", scheme.name)
                })?);
                progress.advance(1);
            }
        }
    }
    drop(progress);
    show(&outcomes)?;
    let own = own.map(|path| {
        // Lines of another version, which do not parse, are left out.
        let known = tiles::read(&name);
        (path, known.iter().map(|row| format!("{row}\n")).collect::<String>())
    });
    for (path, known) in arguments.write.clone().zip(known).into_iter().chain(own) {
        let ahead = 1.0 + arguments.margin / 100.0;
        let row = |outcome: &Outcome| {
            let Outcome { case, model, best, .. } = outcome;
            let chosen = if best.time * ahead < model.time { best.chosen } else { model.chosen };
            Measured { case: case.clone(), chosen }
        };
        // After an error of the device no time can be trusted.
        let sound = outcomes.iter().filter(|outcome| outcome.failed.is_empty());
        let text = merged(&known, &sound.map(row).collect::<Vec<_>>())?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        write_and_say(&path, &text)?;
    }
    Ok(true)
}

/// Measures all tiles of a case.
fn tune(
    copies: &Copies<'_>,
    scheme: &Scheme,
    tokens: usize,
    arguments: &Arguments,
) -> Result<Outcome> {
    let request = copies.weight().asked(own_type(scheme))?;
    let (case, mut choices) = alternatives(&request, u32::try_from(tokens)?)?;
    if let Some(name) = &arguments.schedule {
        let model = choices.first().map(|(chosen, _)| *chosen);
        choices.retain(|(chosen, _)| chosen.name() == name || Some(*chosen) == model);
    }
    let (mut tried, mut failed) = (Vec::new(), Vec::new());
    for (chosen, choice) in &choices {
        match copies.time(tokens, choice) {
            Ok(times) => {
                tried.push(Tried { chosen: *chosen, time: times.overlapped.microseconds });
            }
            Err(why) => failed.push(format!("{}: {why:#}", choice.key.schedule)),
        }
    }
    // Once more, next to each other: what was fast by chance is not twice.
    tried.sort_by(|one, other| one.time.total_cmp(&other.time));
    let model = choices.first().map(|(chosen, _)| *chosen);
    let again = |tried: &Tried| {
        let (_, choice) = choices.iter().find(|(chosen, _)| *chosen == tried.chosen)?;
        let time = copies.time(tokens, choice).ok()?.overlapped.microseconds;
        Some(Tried { chosen: tried.chosen, time: time.max(tried.time) })
    };
    let finalists = tried.iter().take(FINALISTS);
    let best = finalists.filter_map(again).min_by(|one, other| one.time.total_cmp(&other.time));
    let model = tried.iter().find(|tried| Some(tried.chosen) == model).and_then(again);
    let (Some(best), Some(model)) = (best, model) else {
        bail!("no kernel ran: {}", failed.join("; "))
    };
    let (scheme, count) = (scheme.name.clone(), tried.len());
    tried.retain(|other| other.chosen != best.chosen);
    tried.truncate(arguments.top.saturating_sub(1));
    Ok(Outcome { case, scheme, model, best, others: tried, tried: count, failed })
}

/// The fastest are measured twice, and the slower time counts.
const FINALISTS: usize = 4;

fn show(outcomes: &[Outcome]) -> Result<()> {
    let mut rows = table(&["scheme", "N x K", "M", "model", "best", "gain", "tried", "best tile"]);
    let tile = |tried: &Tried| {
        let choices = tried.chosen.parameters().into_iter();
        let choices = choices.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
        format!("{} {}", tried.chosen.name(), choices.join(" "))
    };
    for Outcome { case, scheme, model, best, others, tried, failed } in outcomes {
        rows.add_row([
            scheme.clone(),
            format!("{} x {}", case.n, case.k),
            case.m.to_string(),
            format!("{:.2}", model.time),
            format!("{:.2}", best.time),
            format!("{:.1}%", (model.time / best.time - 1.0) * 100.0),
            format!("{tried} of {}", tried + failed.len()),
            tile(best),
        ]);
        for other in others {
            let [none, time] = [String::new(), format!("{:.2}", other.time)];
            let gain = format!("{:.1}%", (model.time / other.time - 1.0) * 100.0);
            let row = [none.clone(), none.clone(), none.clone(), none.clone(), time, gain, none];
            rows.add_row(row.into_iter().chain([tile(other)]));
        }
    }
    print_line(rows)?;
    print_line(
        "microseconds a call with programmatic launch; model: the tile that is chosen without the \
         table",
    )?;
    for why in outcomes.iter().flat_map(|outcome| &outcome.failed) {
        print_line(format_args!("did not run, so that its case is not written: {why}"))?;
    }
    Ok(())
}
