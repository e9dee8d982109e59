//! `quantloom tune` of expert layers: the slots of a token block and the tiles of both products, measured together.

use anyhow::{Context as _, Result, anyhow};
use quantloom::codegen::jit::measured_row_of_experts;
use quantloom::codegen::schedule::Measured;
use quantloom::dsl::Scheme;
use quantloom::dsl::experts::ExpertLayer;
use quantloom::runtime::backend::Backend as _;
use quantloom::runtime::checkpoint::{Checkpoint, CheckpointExperts};
use quantloom::runtime::cuda::Cuda;
use quantloom::runtime::experts::ExpertOp;
use quantloom::runtime::gpu::{GpuDevice, TimedExperts, TuneOptions, TunedExperts};

use super::super::bench::own_type;
use super::super::random_experts::{RandomExperts, options};
use super::super::{print_line, table};
use super::{of_tile, unmeasured};

/// What is measured.
pub(super) enum Subject<'a> {
    /// Random matrices of a layer.
    Random(&'a Scheme, &'a ExpertLayer),
    /// Those of a checkpoint.
    Stored(Box<CheckpointExperts<'a>>),
}

/// The kernels of a layer and M.
pub(super) struct Outcome {
    scheme: String,
    layer: String,
    tuned: TunedExperts,
}

/// The expert layers of checkpoints, one of each description and pair of schemes, and why others are not measured.
pub(super) fn stored(checkpoints: &[Checkpoint]) -> (Vec<Subject<'_>>, Vec<String>) {
    let mut known: Vec<CheckpointExperts<'_>> = Vec::new();
    let mut left_out = Vec::new();
    for (name, experts) in checkpoints.iter().flat_map(Checkpoint::expert_layers) {
        let described =
            experts.and_then(|experts| experts.layer().copied().map(|of| (experts, of)));
        let (experts, layer) = match described {
            Ok(described) => described,
            Err(why) => {
                left_out.push(format!("{name}: {why}"));
                continue;
            }
        };
        let Some(schemes) = experts.schemes() else {
            left_out.push(format!("{name}: its experts are not quantised"));
            continue;
        };
        let alike = |other: &CheckpointExperts<'_>| {
            other.layer().is_ok_and(|other| *other == layer) && other.schemes() == Some(schemes)
        };
        if !known.iter().any(alike) {
            known.push(experts);
        }
    }
    let subject = |experts| Subject::Stored(Box::new(experts));
    (known.into_iter().map(subject).collect(), left_out)
}

impl Subject<'_> {
    /// The schemes of both products.
    pub(super) fn schemes(&self) -> Vec<&Scheme> {
        match self {
            Self::Random(scheme, _) => vec![scheme],
            Self::Stored(experts) => experts.schemes().into_iter().flatten().collect(),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Random(scheme, layer) => format!("scheme {}, {layer}", scheme.name),
            Self::Stored(experts) => experts.name().to_owned(),
        }
    }

    fn prepared(&self, device: &GpuDevice<Cuda>) -> Result<Box<dyn ExpertOp>> {
        Ok(match self {
            Self::Random(scheme, layer) => {
                let weights = RandomExperts::new(scheme, layer)?;
                device.prepare_experts(layer, &weights, &options(layer))?
            }
            Self::Stored(experts) => experts.prepare(device)?,
        })
    }

    /// Measures a layer for each M, and adds the lines of a table if they are wanted.
    pub(super) fn tune(
        &self,
        device: &GpuDevice<Cuda>,
        (tokens, options): (&[usize], &TuneOptions),
        mut rows: Option<&mut Vec<Measured>>,
        (outcomes, done): (&mut Vec<Outcome>, &mut dyn FnMut()),
    ) -> Result<()> {
        let op = self.prepared(device).with_context(|| self.name())?;
        let layer = op.as_cuda().ok_or_else(|| anyhow!("the layer is not on an NVIDIA GPU"))?;
        let [scheme, second] = op.schemes();
        let own = own_type(scheme);
        let tuner = layer.tuner(own).with_context(|| self.name())?;
        for tokens in tokens {
            let tuned = tuner.tune(*tokens as u64, options);
            let tuned = tuned.with_context(|| format!("{}, M = {tokens}", self.name()))?;
            if let Some(rows) = rows.as_deref_mut() {
                let kernels = &tuned.preferred().kernels;
                for ((request, of), kernel) in
                    layer.requests(own)?.iter().zip(&tuned.products).zip(kernels)
                {
                    let key = &kernel.choice.key;
                    rows.push(measured_row_of_experts(request, of, tuned.tokens, key)?);
                }
            }
            let scheme = match scheme.name == second.name {
                true => scheme.name.clone(),
                false => format!("{}, {}", scheme.name, second.name),
            };
            outcomes.push(Outcome { scheme, layer: op.layer().to_string(), tuned });
            done();
        }
        Ok(())
    }
}

pub(super) fn show(outcomes: &[Outcome], top: usize) -> Result<()> {
    let header =
        ["scheme", "layer", "M", "model", "best", "gain", "tried", "slots", "gate_up", "down"];
    let mut rows = table(&header);
    let kernels = |timed: &TimedExperts| {
        let [first, second] = timed.kernels.each_ref().map(|of| of_tile(&of.choice.key.schedule));
        [timed.kernels[0].slots.to_string(), first, second]
    };
    for Outcome { scheme, layer, tuned } in outcomes {
        let TunedExperts { tokens, model, best, others, failed, .. } = tuned;
        let ran = others.len() + 1;
        let gain = |timed: &TimedExperts| {
            format!("{:.1}%", (model.microseconds / timed.microseconds - 1.0) * 100.0)
        };
        let first = [
            scheme.clone(),
            layer.clone(),
            tokens.to_string(),
            format!("{:.2}", model.microseconds),
            format!("{:.2}", best.microseconds),
            gain(best),
            format!("{ran} of {}", ran + failed.len()),
        ];
        rows.add_row(first.into_iter().chain(kernels(best)));
        for other in others.iter().take(top.saturating_sub(1)) {
            let time = format!("{:.2}", other.microseconds);
            let [scheme, layer, tokens, model, tried] = std::array::from_fn(|_| String::new());
            let times = [scheme, layer, tokens, model, time, gain(other), tried];
            rows.add_row(times.into_iter().chain(kernels(other)));
        }
    }
    print_line(rows)?;
    print_line(
        "microseconds of a layer with programmatic launch, from ids to y, each call with other experts, uniformly; model: the tiles \
         that are chosen without the table; slots: of a token block",
    )?;
    let failed = outcomes.iter().flat_map(|outcome| &outcome.tuned.failed);
    let failed = failed.map(|([first, second], why)| {
        (format!("{}, {}", first.schedule, second.schedule), why.to_string())
    });
    unmeasured(outcomes.iter().map(|outcome| outcome.tuned.spilled.len()).sum(), failed)
}
