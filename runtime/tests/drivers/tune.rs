//! Kernels that differ in their number of blocks, each of which takes the fake device 10 ns, beside 1 us of a launch.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quantloom_dsl::format::BF16;
use quantloom_runtime::cuda::{Driver, Graph};
use quantloom_runtime::driver::{DriverError, DriverExecutor};
use quantloom_runtime::gpu::{
    Alternatives, Arrangement, ChoiceSource, ChosenKernel, GpuDevice, GpuWeight, NativeBuffer,
    Products, Registers, Request, Trusted, TuneError, TuneOptions, Tuned,
};
use quantloom_runtime::source::{
    Count, KernelKey, KernelSource, KernelText, LaunchRule, Refusal, Schedule,
};

use crate::scenarios::{Fake, weight_on};
use crate::sources::{Sums, key};

/// How often this process began to measure.
static MEASUREMENTS: AtomicU32 = AtomicU32::new(0);

/// `Sums` in kernels of other numbers of threads a block: those that are worth measuring, the model's first, and what is kept.
struct Threads<D> {
    all: &'static [u64],
    at_first_use: bool,
    kept: Arc<Mutex<Option<ChosenKernel>>>,
    driver: PhantomData<D>,
}

impl<D: Fake> KernelSource for Threads<D> {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let text = Sums::<D>(PhantomData).text(key)?;
        let threads = key.schedule.parameters["threads"];
        let (blocks, parameters) = (Count::K.ceil_div(2 * threads), text.rule.parameters.clone());
        let rule = LaunchRule::plain(blocks, threads as u32, parameters);
        let own = text.text.replacen('{', &format!("{{ // threads {threads},\n"), 1);
        Ok(KernelText { rule: Cow::Owned(rule), text: Cow::Owned(own), ..text })
    }
}

impl<D: Fake> Threads<D> {
    fn kernel(&self, request: &Request<'_>, threads: u64) -> Result<ChosenKernel, Refusal> {
        let schedule = Schedule::new("decode", [("threads", threads)]);
        let key = KernelKey { schedule, ..key(request.target) };
        Ok(ChosenKernel { key, ..Sums::<D>(PhantomData).choose(request, 1)? })
    }
}

impl<D: Fake> Products for Threads<D> {
    fn operand(&self, _: &Request<'_>, _: Option<&KernelKey>) -> Result<Vec<KernelKey>, Refusal> {
        Ok(Vec::new())
    }

    fn arrangement(&self, request: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Sums::<D>(PhantomData).arrangement(request)
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativeBuffer>, Refusal> {
        Sums::<D>(PhantomData).native(request)
    }

    fn choose(&self, request: &Request<'_>, _: u64) -> Result<ChosenKernel, Refusal> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match kept {
            Some(kept) => Ok(ChosenKernel { by: ChoiceSource::Tuned, ..kept }),
            None => self.kernel(request, self.all[0]),
        }
    }

    fn alternatives(&self, request: &Request<'_>, tokens: u64) -> Result<Alternatives, Refusal> {
        MEASUREMENTS.fetch_add(1, Ordering::Relaxed);
        let kernels = self.all.iter().map(|threads| self.kernel(request, *threads));
        Ok(Alternatives { tokens, kernels: kernels.collect::<Result<_, _>>()? })
    }

    fn keep(&self, _: &Request<'_>, _: u64, fastest: &ChosenKernel) -> Result<(), Refusal> {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(fastest.clone());
        Ok(())
    }

    fn tunes_at_first_use(&self, _: &Request<'_>) -> bool {
        self.at_first_use
    }
}

/// A weight whose kernels these are, and what its source keeps.
fn weight<D: Fake>(
    all: &'static [u64],
    at_first_use: bool,
) -> Result<GpuWeight<DriverExecutor<D>>, DriverError> {
    let source = Threads::<D> { all, at_first_use, kept: Arc::default(), driver: PhantomData };
    // SAFETY: the texts do what their rules say.
    let source = unsafe { Trusted::new(Arc::new(source)) };
    let device = GpuDevice::new(DriverExecutor::<D>::new(0, source)?);
    Ok(weight_on(&device).unwrap())
}

/// What is chosen: its threads, and why.
fn chosen<D: Fake>(weight: &GpuWeight<DriverExecutor<D>>) -> String {
    let ChosenKernel { key, by, .. } = weight.choice(BF16, 1).unwrap();
    format!("{} threads, {by:?}", key.schedule.parameters["threads"])
}

fn say(tuned: &Result<Tuned, TuneError>) {
    match tuned {
        Ok(Tuned { model, best, others, failed, spilled, .. }) => {
            let [model, best] = [model, best].map(|timed| {
                let threads = timed.kernel.key.schedule.parameters["threads"];
                format!("{threads} threads {:.2} us", timed.microseconds)
            });
            let (others, failed) = (others.len(), failed.len());
            print!("model {model}, best {best}, {others} others, {failed} failed");
            for (key, Registers { of_thread, spilled_bytes }) in spilled {
                let threads = key.schedule.parameters["threads"];
                print!(", {threads} threads spill {spilled_bytes} bytes of {of_thread} registers");
            }
            println!();
        }
        Err(error) => println!("{error}"),
    }
}

/// Measures; what is chosen before and after.
pub(crate) fn tune<D: Fake>() -> Result<(), DriverError> {
    let options = |margin, keep| TuneOptions { margin, keep, ..TuneOptions::default() };
    let tuned = |all, options: &TuneOptions| -> Result<(), DriverError> {
        let weight = weight::<D>(all, false)?;
        let before = chosen(&weight);
        say(&weight.tuner(BF16).and_then(|tuner| tuner.tune(1, options)));
        println!("before {before}, after {}", chosen(&weight));
        Ok(())
    };
    tuned(&[8, 16, 32, 4], &options(0.02, true))?;
    tuned(&[8, 16, 32, 4], &options(0.05, true))?;
    tuned(&[8, 16, 32, 4], &options(0.02, false))?;
    // The model's choice is measured beside those of another schedule.
    let of =
        |schedule: &str| TuneOptions { schedule: Some(schedule.to_owned()), ..options(0.02, true) };
    tuned(&[8, 16, 32, 4], &of("decode"))?;
    tuned(&[8, 16, 32, 4], &of("tile"))?;
    // 0 threads are no launch: the fastest of the others is kept, also in place of the model's.
    tuned(&[8, 0, 32], &options(0.02, true))?;
    tuned(&[0, 8, 32], &options(0.02, true))?;
    tuned(&[0], &options(0.02, true))
}

/// Nothing is measured while the stream is captured, and products go on with the model's choice.
pub(crate) fn captured() -> Result<(), DriverError> {
    let weight = weight::<Driver>(&[8, 16, 32], true)?;
    Graph::capture(weight.executor().stream(), |_| {
        say(&weight.tuner(BF16).and_then(|tuner| tuner.tune(1, &TuneOptions::default())));
        println!("in a capture {}", chosen(&weight));
        Ok(())
    })?;
    Ok(())
}

/// The same before the first product, where the source asks for it, and once.
pub(crate) fn at_first_use<D: Fake>() -> Result<(), DriverError> {
    for at_first_use in [false, true] {
        let weight = weight::<D>(&[8, 16, 32], at_first_use)?;
        println!("first {}", chosen(&weight));
        println!("again {}", chosen(&weight));
    }
    println!("without one of them {}", chosen(&weight::<D>(&[8, 0, 32], true)?));
    // What cannot be measured is multiplied by the model's choice.
    let weight = weight::<D>(&[0], true)?;
    println!("failing {}", chosen(&weight));
    // Nor is that tried again, for other M.
    let before = MEASUREMENTS.load(Ordering::Relaxed);
    let _ = weight.choice(BF16, 2).unwrap();
    println!("measured again: {}", MEASUREMENTS.load(Ordering::Relaxed) - before);
    Ok(())
}
