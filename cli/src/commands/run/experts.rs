//! `quantloom run --experts`: a whole expert layer.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use quantloom::device::Device;
use quantloom::runtime::checkpoint::{Checkpoint, CheckpointExperts, Dtype, ExpertsProblem};
use quantloom::runtime::experts::{
    ExpertError, ExpertLayer, ExpertMap, ExpertOptions, InputScales, Routed,
};
use quantloom::runtime::tensor::{f32_bytes, reals};
use quantloom_tools::forward::Input;
use quantloom_tools::forward::experts::PreparedExperts;

use super::super::{eprint_line, print_line};
use super::Arguments;
use super::tensors::{named, write};
use crate::progress::Progress;

#[derive(Args)]
pub(super) struct ExpertArguments {
    /// The expert layer to compute whole, as `inspect` names it: y of the experts that tokens choose, and
    /// of the shared expert if the file has one. Without --logits and --ids the checkpoint's router
    /// chooses.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["layer", "expert", "token_scale", "activation", "scheme"])]
    pub(super) experts: Option<String>,
    /// The router's logits, [M, E].
    #[arg(long, value_name = "FILE:NAME", requires = "experts", conflicts_with_all = ["ids", "weights"])]
    logits: Option<String>,
    /// The experts of each token, [M, k], i32 or i64; below 0: none.
    #[arg(long, value_name = "FILE:NAME", requires_all = ["experts", "weights"])]
    ids: Option<String>,
    /// Their router weights, [M, k].
    #[arg(long, value_name = "FILE:NAME", requires_all = ["experts", "ids"])]
    weights: Option<String>,
    /// Which experts are here, [E]: the place of each, or below 0. The others' parts are left out.
    #[arg(long, value_name = "FILE:NAME", requires = "experts")]
    map: Option<String>,
    /// Of static scales of x and h, each expert's own, or the largest of all experts as vLLM takes it.
    #[arg(long, value_enum, default_value_t = ScalesArgument::Each, requires = "experts")]
    input_scales: ScalesArgument,
    /// The layer in words, if the files do not describe it or something else is wanted:
    /// "128 experts of 2048 x 768, top 8, softmax renormalised, silu" (docs/expert-layers.md).
    #[arg(long, value_name = "TEXT", requires = "experts")]
    layer_text: Option<ExpertLayer>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScalesArgument {
    Each,
    Largest,
}

impl ExpertArguments {
    /// The files of the tensors that it names.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let named = [&self.logits, &self.ids, &self.weights, &self.map];
        let files = named.into_iter().flatten().filter_map(|named| named.rsplit_once(':'));
        files.map(|(file, _)| Path::new(file))
    }
}

/// Computes the layer and writes y, ids and router weights.
pub(super) fn run(
    arguments: &Arguments,
    name: &str,
    checkpoint: &Checkpoint,
    device: &Device,
) -> Result<bool> {
    let of = &arguments.experts;
    let experts = match &of.layer_text {
        Some(layer) => checkpoint.expert_layer_as(name, layer)?,
        None => checkpoint.expert_layer(name)?,
    };
    let experts = arguments.products.of_experts(experts);
    let layer = *experts.layer()?;
    let Some([scheme, _]) = experts.schemes() else {
        bail!("the expert layer \"{name}\" is not quantised: devices compute quantised ones");
    };
    let tensor = named("--input", &arguments.input)?;
    let x = Input::of_type(&tensor).with_context(|| {
        format!("x is of type {:?}; f32, f16 and bf16 multiply", tensor.dtype())
    })?;
    if x.shape.last() != Some(&layer.hidden) {
        bail!("x is {:?}; its last dimension must be H = {}", x.shape, layer.hidden);
    }
    let tokens = x.values.len() / layer.hidden as usize;
    if let Some(shared) = experts.missing_shared() {
        eprint_line(&format!("quantloom: note: {}", super::super::without_shared(shared)));
    }
    let mut options = ExpertOptions::default();
    if of.input_scales == ScalesArgument::Largest {
        options.input_scales = InputScales::Largest;
        eprint_line("quantloom: note: every expert takes the largest static scale, not its own");
    }
    if let Some(map) = &of.map {
        options.map = Some(expert_map(&integers("--map", map)?)?);
    }
    let progress = Progress::new("multiplying", 0);
    let refused = |error: ExpertError| match error {
        ExpertError::NotScheduled(_) => {
            anyhow!("{error} (on {}; --backend takes another device)", device.name())
        }
        error => error.into(),
    };
    let prepared = PreparedExperts::new(&experts, device.backend(), &options, false);
    let prepared = prepared.map_err(|error| match *error.problem {
        ExpertsProblem::Expert(why) => refused(*why),
        _ => error.into(),
    })?;
    let [rounded, _] = prepared.op().rounds_x(x.own);
    super::note_input(scheme, false, x.own, rounded);
    let explained = arguments.explain.then(|| prepared.op().explain(tokens));
    let choice = Choice::of(of, &experts, &x, tokens)?;
    let (ids, weights) = choice.chosen(&prepared, tokens * layer.top_k as usize)?;
    let y = prepared.forward(&x, Routed::Chosen { ids: &ids, weights: &weights });
    drop(progress);
    if let Some(lines) = explained {
        eprint_line(&lines);
    }
    let y = y.map_err(refused)?;
    let pairs = vec![tokens as u64, u64::from(layer.top_k)];
    let ids = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let written = [
        ("ids", Dtype::I32, pairs.clone(), ids),
        ("weights", Dtype::F32, pairs, f32_bytes(&weights)),
        ("y", Dtype::F32, x.shape.clone(), f32_bytes(&y)),
    ];
    write(&arguments.out, &written)?;
    print_line(format_args!(
        "wrote {}: y, f32, {:?}, of {layer}; {}",
        arguments.out.display(),
        x.shape,
        device.name()
    ))?;
    Ok(true)
}

/// Who chooses the experts.
enum Choice {
    Logits(Vec<f32>),
    Chosen(Vec<i32>, Vec<f32>),
}

impl Choice {
    fn of(
        arguments: &ExpertArguments,
        experts: &CheckpointExperts<'_>,
        x: &Input,
        tokens: usize,
    ) -> Result<Self> {
        if let (Some(ids), Some(weights)) = (&arguments.ids, &arguments.weights) {
            return Ok(Self::Chosen(integers("--ids", ids)?, floats("--weights", weights)?));
        }
        if let Some(named) = &arguments.logits {
            let (logits, experts) = (floats("--logits", named)?, experts.sizes().experts as usize);
            if Some(logits.len()) != tokens.checked_mul(experts) {
                bail!(
                    "--logits has {} values, x and the layer give {tokens} x {experts}",
                    logits.len()
                );
            }
            return Ok(Self::Logits(logits));
        }
        let router = experts.router().context("--logits or --ids and --weights choose")?;
        let values: Vec<f32> = x.values.iter().map(|value| *value as f32).collect();
        eprint_line(&format!(
            "quantloom: note: the checkpoint's router chooses for {tokens} tokens"
        ));
        Ok(Self::Logits(router.logits(&values)))
    }

    /// Ids and router weights of so many pairs.
    fn chosen(self, prepared: &PreparedExperts<'_>, pairs: usize) -> Result<(Vec<i32>, Vec<f32>)> {
        match self {
            Self::Chosen(ids, weights) => Ok((ids, weights)),
            Self::Logits(logits) => {
                let (mut ids, mut weights) = (vec![0; pairs], vec![0.0; pairs]);
                prepared.op().route(&logits, &mut ids, &mut weights)?;
                Ok((ids, weights))
            }
        }
    }
}

fn floats(option: &str, text: &str) -> Result<Vec<f32>> {
    let tensor = named(option, text)?;
    let values = reals(&tensor);
    let values = values.with_context(|| format!("{option} is of type {:?}", tensor.dtype()))?;
    Ok(values.into_iter().map(|value| value as f32).collect())
}

fn integers(option: &str, text: &str) -> Result<Vec<i32>> {
    let tensor = named(option, text)?;
    let wide = |bytes: &[u8]| bytes.try_into().map(i64::from_le_bytes).unwrap_or_default();
    let narrow = |bytes: &[u8]| bytes.try_into().map(i32::from_le_bytes).unwrap_or_default();
    match tensor.dtype() {
        Dtype::I32 => Ok(tensor.bytes().chunks_exact(4).map(narrow).collect()),
        Dtype::I64 => {
            let ids = tensor.bytes().chunks_exact(8).map(|id| i32::try_from(wide(id)));
            ids.collect::<Result<_, _>>()
                .with_context(|| format!("{option} has a number beyond i32"))
        }
        other => bail!("{option} is of type {other:?}; it has to be i32 or i64"),
    }
}

/// A map whose places are counted by the largest.
fn expert_map(places: &[i32]) -> Result<ExpertMap> {
    let local = places
        .iter()
        .filter_map(|place| usize::try_from(*place).ok())
        .max()
        .map_or(0, |last| last + 1);
    Ok(ExpertMap::new(places.to_vec(), local)?)
}
