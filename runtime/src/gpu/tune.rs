//! The fastest kernel of a product on this device, found by measuring.
//!
//! In: a prepared weight, a type of x, M. Out: the time of each kernel that is worth it ([`Tuned`]); the source of kernels keeps
//! the fastest ([`Products::keep`]) and chooses it from then on. The method is that of benchmarks: the weight rotates over
//! copies that exceed the caches ([`Clock`]), x is random, launches may overlap.
//!
//! [`Products::keep`]: super::Products::keep

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use quantloom_dsl::format::{F16, F32, FloatFormat};
use tracing::subscriber::NoSubscriber;

use super::clock::Clock;
use super::executor::{Executor, Registers};
use super::products::{Alternatives, ChosenKernel};
use super::weight::{GpuWeight, PreparedProduct};
use crate::element::{OwnedValues, Values, bf16, f16};
use crate::experts::ExpertError;
use crate::float_mode::standard;
use crate::op::ProductError;
use crate::source::{KernelKey, Refusal};

/// What is measured, and what becomes of it.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// By how much a kernel must be faster than the model's choice to be preferred: 0.02 is 2%.
    pub margin: f64,
    /// Only kernels of this schedule, and the model's choice.
    pub schedule: Option<String>,
    /// Whether the source of kernels keeps the preferred kernel, and chooses it from then on.
    pub keep: bool,
}

impl Default for TuneOptions {
    /// All kernels; the fastest is kept if it is ahead by 2%.
    fn default() -> Self {
        Self { margin: 0.02, schedule: None, keep: true }
    }
}

/// A kernel and its time.
#[derive(Clone, Debug)]
pub struct TimedKernel {
    /// The kernel.
    pub kernel: ChosenKernel,
    /// Microseconds of a call, with the kernels that make its operand of x.
    pub microseconds: f64,
    /// What the device's compiler says of its registers, if it does.
    pub registers: Option<Registers>,
}

/// The kernels of a product for one M, measured.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// M of the measurement: that which was asked for, rounded up as the source of kernels tells them apart.
    pub tokens: u64,
    /// What the source chooses without a measurement.
    pub model: TimedKernel,
    /// The fastest, which may be the same.
    pub best: TimedKernel,
    /// All others that ran, the fastest first.
    pub others: Vec<TimedKernel>,
    /// Those that did not run, and why.
    pub failed: Vec<(KernelKey, ProductError)>,
    /// Those that were not measured, since the device's compiler spilled registers to local memory. (How many registers a kernel
    /// has is estimated before it is compiled, for the model's choice alone, which is measured whatever it has.)
    pub spilled: Vec<(KernelKey, Registers)>,
    /// [`TuneOptions::margin`].
    pub margin: f64,
}

impl Tuned {
    /// The kernel to choose: the fastest if it is ahead of the model's by the margin, else the model's.
    pub fn preferred(&self) -> &TimedKernel {
        match is_ahead(self.best.microseconds, self.model.microseconds, self.margin) {
            true => &self.best,
            false => &self.model,
        }
    }
}

/// Whether a time is ahead of the model's by a margin.
pub(super) fn is_ahead(best: f64, model: f64, margin: f64) -> bool {
    best * (1.0 + margin) < model
}

/// The lock of measurements at first use: a process has one at a time, since two would slow each other down.
pub(super) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why kernels could not be measured, or the outcome not be kept.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// Nothing on this device times a call, or its stream is captured.
    #[error("{device} times no calls, so that nothing can be tuned on it")]
    NoClock {
        /// The device's name.
        device: String,
    },
    /// No product of this type, no memory for the copies, or what the device says.
    #[error(transparent)]
    Product(#[from] ProductError),
    /// The same of an expert layer.
    #[error(transparent)]
    Experts(Box<ExpertError>),
    /// None of the kernels ran.
    #[error("of {count} kernels none ran{}", said(first.as_deref()))]
    NothingRan {
        /// Kernels that were tried.
        count: usize,
        /// The error of the first; `None` if there was none to try.
        first: Option<Box<TuneError>>,
    },
    /// The outcome is not kept.
    #[error("the fastest kernel is not kept: {0}")]
    NotKept(#[source] Refusal),
}

impl From<ExpertError> for TuneError {
    fn from(error: ExpertError) -> Self {
        Self::Experts(Box::new(error))
    }
}

fn said(first: Option<&TuneError>) -> String {
    first.map_or_else(String::new, |error| format!("; the first said: {error}"))
}

/// The fastest are measured again, next to each other: clocks of a device change with what it did before.
const FINALISTS: usize = 4;
/// How often, in turns; the middle one of these times counts.
const ROUNDS: usize = 3;

/// What was measured, with its time.
pub(super) trait Timed: Clone {
    /// Microseconds of a call.
    fn microseconds(&self) -> f64;

    /// The same after another measurement.
    fn set_microseconds(&mut self, microseconds: f64);
}

impl Timed for TimedKernel {
    fn microseconds(&self) -> f64 {
        self.microseconds
    }

    fn set_microseconds(&mut self, microseconds: f64) {
        self.microseconds = microseconds;
    }
}

/// The model's choice, the fastest, and all but the fastest in the order of time.
pub(super) struct Ranked<T> {
    pub(super) model: T,
    pub(super) best: T,
    pub(super) others: Vec<T>,
}

/// What is the fastest, after the fastest candidates and the model's were measured again in turns; `None` if there is none. A choice of
/// the model that did not run is no choice: the fastest takes its place.
///
/// # Errors
/// That of `time`.
pub(super) fn ranked<T: Timed, E>(
    timed: Vec<T>,
    is_model: impl Fn(&T) -> bool,
    time: impl Fn(&T) -> Result<f64, E>,
) -> Result<Option<Ranked<T>>, E> {
    let by_time = |all: &mut Vec<T>| {
        all.sort_by(|one, other| one.microseconds().total_cmp(&other.microseconds()));
    };
    let mut others = timed;
    by_time(&mut others);
    let (mut finalists, mut last) = (Vec::new(), Vec::new());
    for (at, timed) in others.into_iter().enumerate() {
        let again = at < FINALISTS || is_model(&timed);
        if again { &mut finalists } else { &mut last }.push(timed);
    }
    let mut rounds = vec![Vec::new(); finalists.len()];
    for _ in 0..ROUNDS {
        for (finalist, times) in finalists.iter().zip(&mut rounds) {
            times.push(time(finalist)?);
        }
    }
    for (finalist, mut times) in finalists.iter_mut().zip(rounds) {
        times.sort_by(f64::total_cmp);
        finalist.set_microseconds(times[ROUNDS / 2]);
    }
    by_time(&mut finalists);
    let model = finalists.iter().find(|timed| is_model(timed)).cloned();
    let mut finalists = finalists.into_iter();
    let Some(best) = finalists.next() else { return Ok(None) };
    let model = model.unwrap_or_else(|| best.clone());
    let mut others: Vec<T> = finalists.chain(last).collect();
    by_time(&mut others);
    Ok(Some(Ranked { model, best, others }))
}

/// A weight and copies of it, on which its kernels are measured, on a queue of their own: products of other threads go on meanwhile, and
/// each makes the other slower.
pub struct Tuner<'w, E: Executor> {
    weight: &'w GpuWeight<E>,
    element: FloatFormat,
    /// The first copy, whose executor is that of all.
    first: GpuWeight<E>,
    others: Vec<GpuWeight<E>>,
}

impl<E: Executor> GpuWeight<E> {
    /// Copies this weight as often as measuring its products with x of a type needs: three times, or beyond twice the device's
    /// caches.
    ///
    /// # Errors
    /// [`TuneError::NoClock`], [`TuneError::Product`].
    pub fn tuner(&self, element: FloatFormat) -> Result<Tuner<'_, E>, TuneError> {
        let product = self.product(element)?;
        let none = || TuneError::NoClock { device: self.executor.name().to_owned() };
        let apart = Arc::new(self.executor.apart().map_err(Into::into)?.ok_or_else(none)?);
        let count = apart.clock().ok_or_else(none)?.copies(self.bytes(element));
        let copy = || self.copied_product(product, &apart).map_err(Into::into);
        let first = copy()?;
        let others = (1..count).map(|_| copy()).collect::<Result<_, ProductError>>()?;
        Ok(Tuner { weight: self, element, first, others })
    }

    /// A choice that nothing on this device was measured for, after measuring, where the source of kernels asks for that.
    pub(super) fn tuned_at_first_use(
        &self,
        product: &PreparedProduct<E>,
        tokens: u64,
        chosen: ChosenKernel,
    ) -> ChosenKernel {
        let (source, request) = (self.executor.source(), self.request(product));
        let unmeasured = |chosen: &ChosenKernel| chosen.by.may_be_tuned();
        let asked = !product.not_tuned.load(Relaxed) && source.tunes_at_first_use(&request);
        if !unmeasured(&chosen) || !asked {
            return chosen;
        }
        let _one = one_at_a_time();
        // Another thread, or another weight of this shape, may have measured it meanwhile.
        let again = || source.choose(&request, tokens).ok().filter(|chosen| !unmeasured(chosen));
        if let Some(chosen) = again() {
            return chosen;
        }
        let tuner = self.tuner(product.element);
        match tuner.and_then(|tuner| tuner.tune(tokens, &TuneOptions::default())) {
            Ok(tuned) => {
                let Tuned { tokens, model, best, .. } = &tuned;
                let [model, best] = [model, best].map(|timed| timed.microseconds);
                tracing::info!(kernel = %chosen.key, tokens, model, best, "measured at first use");
            }
            Err(error) => {
                product.not_tuned.store(true, Relaxed);
                tracing::warn!(%error, kernel = %chosen.key, "not measured at first use");
            }
        }
        again().unwrap_or(chosen)
    }
}

impl<E: Executor> Tuner<'_, E> {
    /// Measures the kernels for M tokens. With [`TuneOptions::keep`] the source of kernels chooses the preferred one from then
    /// on: for this weight, and for every other one of the shape that has not multiplied so many tokens yet. Plans that exist
    /// stay as they are.
    ///
    /// Compiling the kernels takes longest, seconds; as many threads share that as the machine runs at once. (They are none of a rayon pool,
    /// whose threads would take up other work meanwhile, perhaps another product's first use.)
    ///
    /// # Errors
    /// [`TuneError`].
    pub fn tune(&self, tokens: u64, options: &TuneOptions) -> Result<Tuned, TuneError> {
        standard(|| self.tuned(tokens, options))
    }

    fn tuned(&self, tokens: u64, options: &TuneOptions) -> Result<Tuned, TuneError> {
        let executor = self.weight.executor();
        let product = self.weight.product(self.element)?;
        let request = self.weight.request(product);
        let alternatives = executor.source().alternatives(&request, tokens.max(1));
        let Alternatives { tokens, mut kernels } = alternatives.map_err(ProductError::from)?;
        if let (Some(name), Some(model)) = (&options.schedule, kernels.first().cloned()) {
            kernels.retain(|kernel| kernel.key.schedule.name == *name || kernel.key == model.key);
        }
        let Some(clock) = self.first.executor().clock() else {
            return Err(TuneError::NoClock { device: executor.name().to_owned() });
        };
        let keys: Vec<KernelKey> = kernels.iter().map(|kernel| kernel.key.clone()).collect();
        compiled(self.first.executor(), &keys);
        let x = random_x(self.element, tokens.saturating_mul(self.weight.shape.k) as usize);
        let (mut timed, mut failed, mut spilled) = (Vec::new(), Vec::new(), Vec::new());
        for (at, kernel) in kernels.iter().enumerate() {
            let registers = registers(self.first.executor(), &kernel.key);
            match registers {
                Some(registers) if at > 0 && registers.spilled_bytes > 0 => {
                    spilled.push((kernel.key.clone(), registers));
                    continue;
                }
                _ => {}
            }
            match self.time(clock, kernel, tokens, values(&x)) {
                Ok(microseconds) => {
                    timed.push(TimedKernel { kernel: kernel.clone(), microseconds, registers })
                }
                Err(error) => failed.push((kernel.key.clone(), error)),
            }
        }
        let model = kernels.first().map(|kernel| &kernel.key);
        let is_model = |timed: &TimedKernel| Some(&timed.kernel.key) == model;
        let again = |timed: &TimedKernel| self.time(clock, &timed.kernel, tokens, values(&x));
        let Some(Ranked { model, best, others }) = ranked(timed, is_model, again)? else {
            let first = failed.into_iter().next().map(|(_, error)| Box::new(error.into()));
            return Err(TuneError::NothingRan { count: kernels.len(), first });
        };
        let margin = options.margin;
        let tuned = Tuned { tokens, model, best, others, failed, spilled, margin };
        if options.keep {
            let kept = executor.source().keep(&request, tokens, &tuned.preferred().kernel);
            product.forget();
            kept.map_err(TuneError::NotKept)?;
        }
        Ok(tuned)
    }

    /// Microseconds of a call with a kernel.
    fn time(
        &self,
        clock: &dyn Clock<E::Error>,
        kernel: &ChosenKernel,
        tokens: u64,
        x: Values<'_>,
    ) -> Result<f64, ProductError> {
        let product = self.first.product(self.element)?;
        let chunk = Arc::new(self.first.chunk(product, kernel, tokens)?);
        let mut tensors = self.first.tensors_of(product, chunk, x)?;
        let copies: Vec<&GpuWeight<E>> = [&self.first].into_iter().chain(&self.others).collect();
        let mut call = |copy: usize| copies[copy].queue(&mut tensors, true);
        clock.time(copies.len(), &mut call).map_err(Into::into)
    }
}

/// What the device's compiler says of a kernel's registers; `None` if it says nothing, or the kernel cannot be loaded.
pub(super) fn registers<E: Executor>(executor: &E, key: &KernelKey) -> Option<Registers> {
    executor.kernel(key).ok().and_then(|kernel| executor.registers(&kernel))
}

/// Compiles and loads kernels, those that can be. What fails here fails again when they are timed, with its error. What the
/// driver's compiler warns of, such as registers in local memory, is no fault of a kernel that is only measured.
pub(super) fn compiled<E: Executor>(executor: &E, kernels: &[KernelKey]) {
    let next = AtomicUsize::new(0);
    let work = || {
        tracing::subscriber::with_default(NoSubscriber::new(), || {
            while let Some(key) = kernels.get(next.fetch_add(1, Relaxed)) {
                // A kernel's source is written with this thread's arithmetic.
                drop(standard(|| executor.kernel(key)));
            }
        });
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(kernels.len());
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}

/// Numbers of a linear congruential sequence (Knuth's MMIX), of which the high bits are the good ones.
pub(super) struct Sequence(u64);

impl Default for Sequence {
    fn default() -> Self {
        Self(1)
    }
}

impl Sequence {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }

    /// A number below another, which is at least 1.
    pub(super) fn below(&mut self, most: usize) -> usize {
        ((u64::from(self.word()) * most as u64) >> 32) as usize
    }
}

/// Numbers that are nearly normal, with a mean of 0 and a variance of 1: equal numbers would draw less power and run at higher
/// clocks. Each is the sum of four uniform ones, the bytes of a word.
pub(super) fn random_x(element: FloatFormat, count: usize) -> OwnedValues {
    let mut sequence = Sequence::default();
    let numbers = (0..count).map(|_| {
        let sum: u32 = sequence.word().to_be_bytes().iter().map(|byte| u32::from(*byte)).sum();
        // Four bytes have a mean of 510 and a variance of 4 (256^2 - 1) / 12.
        (sum as f32 - 510.0) / 147.8
    });
    match element {
        F32 => OwnedValues::F32(numbers.collect()),
        F16 => OwnedValues::F16(numbers.map(f16::from_f32).collect()),
        _ => OwnedValues::Bf16(numbers.map(bf16::from_f32).collect()),
    }
}

fn values(x: &OwnedValues) -> Values<'_> {
    x.into()
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::format::BF16;

    use super::*;

    #[test]
    fn x_is_nearly_normal() {
        let OwnedValues::F32(x) = random_x(F32, 1 << 16) else { unreachable!() };
        let mean = x.iter().sum::<f32>() / x.len() as f32;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / x.len() as f32;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean}, {variance}");
        assert!(matches!(random_x(F16, 3), OwnedValues::F16(x) if x.len() == 3));
        assert!(matches!(random_x(BF16, 3), OwnedValues::Bf16(x) if x.len() == 3));
    }
}
