//! An expert layer whose product kernels differ in their number of blocks, each of which takes the fake device 10 ns, beside 1 us of a
//! launch: those of 16 slots have half as many as those of 8.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quantloom_dsl::experts::{ExpertLayer, ExpertProduct};
use quantloom_dsl::format::{BF16, F32};
use quantloom_runtime::cuda::{Driver, Graph};
use quantloom_runtime::driver::{DriverError, DriverExecutor};
use quantloom_runtime::element::{Values, bf16};
use quantloom_runtime::experts::{ExpertCall, ExpertMatrices, ExpertOptions, Routed};
use quantloom_runtime::gpu::{
    Arrangement, ChoiceSource, ChosenKernel, ExpertKernels, ExpertRequest, GpuDevice,
    GpuExpertLayer, NativeBuffer, PlanKey, Products, Request, RoutedBy, Stacked,
    StackedAlternatives, StackedChoice, TimedExperts, Trusted, TuneError, TuneOptions,
    TunedExperts,
};
use quantloom_runtime::source::{
    Count, KernelKey, KernelSource, KernelText, LaunchRule, Refusal, Schedule,
};

use crate::experts::{LayerKernels, layer_text, matrix};
use crate::scenarios::Fake;
use crate::sources::{Sums, key};

/// How often this process asked for what is worth measuring.
static MEASUREMENTS: AtomicU32 = AtomicU32::new(0);

/// What is kept: the product, its slots if they were given, and the kernel.
type Kept = Arc<Mutex<Vec<(ExpertProduct, Option<u64>, StackedChoice)>>>;

/// Kernels of numbers of threads a block, the model's first, and what is kept of them.
struct Threads<D> {
    all: &'static [u64],
    at_first_use: bool,
    /// Whether nothing is kept, though nobody is told.
    forgets: bool,
    kept: Kept,
    driver: PhantomData<D>,
}

impl<D: Fake> KernelSource for Threads<D> {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let text = layer_text::<D>(key, false);
        let size = |name| key.schedule.parameters.get(name).copied();
        let (Some(threads), Some(slots)) = (size("threads"), size("slots")) else {
            return Ok(text);
        };
        let blocks = (Count::M * 32).ceil_div(threads) * (16 / slots);
        let rule = LaunchRule::plain(blocks, threads as u32, text.rule.parameters.clone());
        let own = text.text.replacen('{', &format!("{{ // threads {threads}, slots {slots},\n"), 1);
        Ok(KernelText { rule: Cow::Owned(rule), text: Cow::Owned(own), ..text })
    }
}

impl<D: Fake> Threads<D> {
    fn kernel(
        &self,
        request: &Request<'_>,
        (threads, slots): (u64, u64),
    ) -> Result<StackedChoice, Refusal> {
        let schedule = Schedule::new("decode", [("threads", threads), ("slots", slots)]);
        let key = KernelKey { schedule, ..key(request.target) };
        let choice = Sums::<D>(PhantomData).choose(request, 1)?;
        let choice = ChosenKernel { key, tokens: 2, ..choice };
        Ok(StackedChoice { choice, slots, groups_pairs: false })
    }

    /// The gate is a kernel of its own.
    fn refuse_gates(request: &Request<'_>, stacked: &Stacked) -> Result<(), Refusal> {
        match stacked.gate {
            None => Ok(()),
            Some(_) => Err(Refusal::NotPacked(Box::new(key(request.target)))),
        }
    }
}

impl<D: Fake> Products for Threads<D> {
    fn operand(&self, _: &Request<'_>, _: Option<&KernelKey>) -> Result<Vec<KernelKey>, Refusal> {
        Ok(Vec::new())
    }

    fn arrangement(&self, _: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Ok(None)
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativeBuffer>, Refusal> {
        Sums::<D>(PhantomData).native(request)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<ChosenKernel, Refusal> {
        Sums::<D>(PhantomData).choose(request, tokens)
    }

    fn choose_stacked(
        &self,
        request: &Request<'_>,
        stacked: &Stacked,
        _: u64,
    ) -> Result<StackedChoice, Refusal> {
        Self::refuse_gates(request, stacked)?;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = kept.iter();
        let found = kept.find(|(of, slots, _)| (*of, *slots) == (stacked.product, stacked.slots));
        match found {
            Some((_, _, kept)) => {
                let choice = ChosenKernel { by: ChoiceSource::Tuned, ..kept.choice.clone() };
                Ok(StackedChoice { choice, ..*kept })
            }
            None => self.kernel(request, (self.all[0], stacked.slots.unwrap_or(8))),
        }
    }

    fn alternatives_stacked(
        &self,
        request: &Request<'_>,
        stacked: &Stacked,
        tokens: u64,
    ) -> Result<StackedAlternatives, Refusal> {
        MEASUREMENTS.fetch_add(1, Ordering::Relaxed);
        Self::refuse_gates(request, stacked)?;
        let kernels = match stacked.slots {
            None => [8, 16].map(|slots| self.kernel(request, (self.all[0], slots))).to_vec(),
            Some(slots) => self.all.iter().map(|of| self.kernel(request, (*of, slots))).collect(),
        };
        Ok(StackedAlternatives { tokens, kernels: kernels.into_iter().collect::<Result<_, _>>()? })
    }

    fn keep_stacked(
        &self,
        _: &Request<'_>,
        stacked: &Stacked,
        _: u64,
        fastest: &StackedChoice,
    ) -> Result<(), Refusal> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.forgets {
            kept.push((stacked.product, stacked.slots, fastest.clone()));
        }
        Ok(())
    }

    fn tunes_at_first_use(&self, _: &Request<'_>) -> bool {
        self.at_first_use
    }

    fn expert_kernels(
        &self,
        request: &ExpertRequest<'_>,
        slots: u64,
        tokens: u64,
    ) -> Result<ExpertKernels, Refusal> {
        LayerKernels::<D>(PhantomData).expert_kernels(request, slots, tokens)
    }
}

/// A layer whose kernels these are, and what its source keeps.
fn layer<D: Fake>(
    all: &'static [u64],
    (at_first_use, forgets): (bool, bool),
) -> Result<GpuExpertLayer<DriverExecutor<D>>, DriverError> {
    let (kept, driver) = (Kept::default(), PhantomData);
    let source = Threads::<D> { all, at_first_use, forgets, kept, driver };
    // SAFETY: the texts do what their rules say.
    let source = unsafe { Trusted::new(Arc::new(source)) };
    let device = GpuDevice::new(DriverExecutor::<D>::new(0, source)?);
    let of: ExpertLayer = "2 experts of 64 x 64, top 1, softmax, ungated relu2".parse().unwrap();
    let gate_up = vec![vec![matrix(3)], vec![matrix(4)]];
    let matrices = ExpertMatrices::new(gate_up, vec![matrix(5), matrix(6)]).unwrap();
    Ok(device.prepare_layer(&of, &matrices, &ExpertOptions::default()).unwrap())
}

/// The threads of both products, and the slots.
fn said<'k>(kernels: impl IntoIterator<Item = &'k KernelKey>) -> String {
    let all = kernels.into_iter().map(|key| &key.schedule.parameters);
    let all: Vec<_> = all.filter(|of| of.contains_key("threads")).collect();
    let threads: Vec<String> = all.iter().map(|of| of["threads"].to_string()).collect();
    let slots: Vec<String> = all.iter().map(|of| of["slots"].to_string()).collect();
    format!("{} threads, {} slots", threads.join(" and "), slots.join(" and "))
}

/// The kernels of a plan, and why these.
fn planned<D: Fake>(layer: &GpuExpertLayer<DriverExecutor<D>>, routed: RoutedBy) -> String {
    let key = PlanKey { element: BF16, output: BF16, tokens: 2, routed, shared: None };
    let plan = layer.plan(key).unwrap();
    said(plan.steps().iter().map(|step| &step.kernel))
}

fn say(tuned: &Result<TunedExperts, TuneError>) {
    match tuned {
        Ok(TunedExperts { model, best, others, failed, spilled, products, .. }) => {
            let [model, best] =
                [model, best].map(|TimedExperts { kernels, microseconds, .. }| {
                    let keys = kernels.iter().map(|kernel| &kernel.choice.key);
                    format!("{} {microseconds:.2} us", said(keys))
                });
            let slots = products[1].slots.unwrap_or(0);
            let (others, failed, spilled) = (others.len(), failed.len(), spilled.len());
            println!(
                "model {model}, best {best}, {others} others, {failed} failed, {spilled} spilled, \
                 kept for {slots} slots"
            );
        }
        Err(error) => println!("{error}"),
    }
}

/// Measures; what is planned before and after.
pub(crate) fn tune<D: Fake>() -> Result<(), DriverError> {
    let tuned = |all, margin, keep| -> Result<(), DriverError> {
        let layer = layer::<D>(all, (false, false))?;
        let before = planned(&layer, RoutedBy::Chosen);
        let options = TuneOptions { margin, keep, ..TuneOptions::default() };
        say(&layer.tuner(BF16).and_then(|tuner| tuner.tune(2, &options)));
        println!("before {before}, after {}", planned(&layer, RoutedBy::Chosen));
        Ok(())
    };
    tuned(&[8, 16, 32], 0.02, true)?;
    // Not by 50%: the model's choice is kept.
    tuned(&[8, 16, 32], 0.5, true)?;
    tuned(&[8, 16, 32], 0.02, false)?;
    // 0 threads are no launch.
    tuned(&[8, 0, 32], 0.02, true)?;
    let layer = layer::<D>(&[0], (false, false))?;
    say(&layer.tuner(BF16).and_then(|tuner| tuner.tune(2, &TuneOptions::default())));
    // Of another schedule there is the model's choice alone; of this one all.
    for schedule in ["tile", "decode"] {
        let options = TuneOptions { schedule: Some(schedule.to_owned()), ..TuneOptions::default() };
        let layer = self::layer::<D>(&[8, 32], (false, false))?;
        say(&layer.tuner(BF16).and_then(|tuner| tuner.tune(2, &options)));
    }
    // A chunk has two tokens.
    let layer = self::layer::<D>(&[8, 32], (false, false))?;
    let tuned = layer.tuner(BF16).and_then(|tuner| tuner.tune(9, &TuneOptions::default()));
    println!(
        "of 9 tokens {:?}",
        tuned.map(|tuned| tuned.tokens).map_err(|error| error.to_string())
    );
    Ok(())
}

/// Nothing is measured while the stream is captured; that is no reason not to measure later.
pub(crate) fn captured() -> Result<(), DriverError> {
    let layer = layer::<Driver>(&[8, 16, 32], (true, false))?;
    let key = |tokens| PlanKey {
        element: BF16,
        output: BF16,
        tokens,
        routed: RoutedBy::Chosen,
        shared: None,
    };
    Graph::capture(layer.executor().stream(), |_| {
        say(&layer.tuner(BF16).and_then(|tuner| tuner.tune(2, &TuneOptions::default())));
        println!("in a capture {}", layer.plan(key(2)).map(drop).unwrap_err());
        Ok(())
    })?;
    println!("then {}", planned(&layer, RoutedBy::Chosen));
    Ok(())
}

/// The same before the first call, where the source asks for it, once; not of calls whose rows are sorted by expert already.
pub(crate) fn at_first_use<D: Fake>() -> Result<(), DriverError> {
    for how in [(false, false), (true, false), (true, true)] {
        let layer = layer::<D>(&[8, 16, 32], how)?;
        let before = MEASUREMENTS.load(Ordering::Relaxed);
        println!("batched {}", planned(&layer, RoutedBy::Batched));
        let batched = MEASUREMENTS.load(Ordering::Relaxed);
        println!("first {}", planned(&layer, RoutedBy::Chosen));
        let first = MEASUREMENTS.load(Ordering::Relaxed);
        // Another plan of as many tokens.
        let (element, output, routed) = (BF16, F32, RoutedBy::Chosen);
        drop(layer.plan(PlanKey { element, output, tokens: 2, routed, shared: None }).unwrap());
        let again = MEASUREMENTS.load(Ordering::Relaxed);
        println!("measured: {}, {}, {}", batched - before, first > batched, again - first);
    }
    Ok(())
}

/// The first launches of a call alone, from none to all: the last one of all writes y.
pub(crate) fn first_launches<D: Fake>() -> Result<(), DriverError> {
    let layer = layer::<D>(&[8], (false, false))?;
    let (x, ids, weights) = ([bf16::ONE; 2 * 64], [1, 0], [1.0; 2]);
    let routed = Routed::Chosen { ids: &ids, weights: &weights };
    let call = ExpertCall { x: Values::Bf16(&x), routed, shared: None };
    let mut tensors = layer.tensors(&call).unwrap();
    let before = layer.result(&tensors)?;
    let mut writes = Vec::new();
    for launches in 0..=tensors.launches() {
        layer.queue_first(launches, &mut tensors, false)?;
        writes.extend((layer.result(&tensors)? != before).then_some(launches));
    }
    println!("y is written by launches {writes:?} of {}", tensors.launches());
    Ok(())
}
