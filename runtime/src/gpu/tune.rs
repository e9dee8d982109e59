//! The fastest kernel of a product on this device, found by measuring.
//!
//! In: a prepared weight, a type of x, M. Out: the time of each kernel that is worth it ([`Tuned`]); the source of kernels keeps
//! the fastest ([`Products::keep`]) and chooses it from then on. The method is that of benchmarks: the weight rotates over
//! copies that exceed the caches ([`Clock`]), x is random, launches may overlap.
//!
//! [`Clock`]: super::Clock
//! [`Products::keep`]: super::Products::keep

use std::sync::{Arc, Mutex, PoisonError};

use quantloom_dsl::format::{F16, F32, FloatFormat};
use rayon::prelude::*;
use tracing::subscriber::NoSubscriber;

use super::executor::Executor;
use super::products::{Alternatives, ChoiceSource, ChosenKernel};
use super::weight::{GpuWeight, PreparedProduct};
use crate::element::{OwnedValues, Values, bf16, f16};
use crate::op::ProductError;
use crate::source::{KernelKey, Refusal};

/// What is measured, and what becomes of it.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// By how much a kernel must be faster than the model's choice to be preferred: 0.02 is 2%.
    pub margin: f64,
    /// Only kernels of this schedule, and the model's choice.
    pub schedule: Option<String>,
    /// Whether the source of kernels keeps the preferred kernel, and chooses it from then on. After an error of the device
    /// ([`Tuned::failed`]) no time can be trusted, and nothing is kept.
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
    /// [`TuneOptions::margin`].
    pub margin: f64,
}

impl Tuned {
    /// The kernel to choose: the fastest if it is ahead of the model's by the margin, else the model's.
    pub fn preferred(&self) -> &TimedKernel {
        let ahead = self.best.microseconds * (1.0 + self.margin) < self.model.microseconds;
        if ahead { &self.best } else { &self.model }
    }
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
    /// None of the kernels ran.
    #[error("of {count} kernels none ran; the first said: {first}")]
    NothingRan {
        /// Kernels that were tried.
        count: usize,
        /// The error of the first.
        first: Box<ProductError>,
    },
    /// The outcome is not kept.
    #[error("the fastest kernel is not kept: {0}")]
    NotKept(#[source] Refusal),
}

/// The fastest are measured twice, and the slower time counts.
const FINALISTS: usize = 4;

/// A weight and copies of it, on which its kernels are measured.
pub struct Tuner<'w, E: Executor> {
    weight: &'w GpuWeight<E>,
    element: FloatFormat,
    copies: Vec<GpuWeight<E>>,
}

impl<E: Executor> GpuWeight<E> {
    /// Copies this weight as often as measuring its products with x of a type needs: at least twice, and beyond the device's
    /// caches.
    ///
    /// # Errors
    /// [`TuneError::NoClock`], [`TuneError::Product`].
    pub fn tuner(&self, element: FloatFormat) -> Result<Tuner<'_, E>, TuneError> {
        let product = self.product(element)?;
        let device = || self.executor.name().to_owned();
        let clock = self.executor.clock().ok_or_else(|| TuneError::NoClock { device: device() })?;
        let copies = (1..clock.copies(self.bytes(element))).map(|_| self.copied_product(product));
        let copies = copies.collect::<Result<_, E::Error>>().map_err(Into::into)?;
        Ok(Tuner { weight: self, element, copies })
    }

    /// A choice that nothing on this device was measured for, after measuring, where the source of kernels asks for that.
    pub(super) fn tuned_at_first_use(
        &self,
        product: &PreparedProduct<E>,
        tokens: u64,
        chosen: ChosenKernel,
    ) -> ChosenKernel {
        /// One product at a time: two would slow each other down.
        static ONE: Mutex<()> = Mutex::new(());
        let (source, request) = (self.executor.source(), self.request(product));
        let unmeasured = |chosen: &ChosenKernel| {
            matches!(chosen.by, ChoiceSource::Model | ChoiceSource::Measured)
        };
        if !unmeasured(&chosen) || !source.tunes_at_first_use(&request) {
            return chosen;
        }
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
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
    /// Compiling the kernels takes longest, seconds to a minute; threads of the caller's rayon pool share that.
    ///
    /// # Errors
    /// [`TuneError`].
    pub fn tune(&self, tokens: u64, options: &TuneOptions) -> Result<Tuned, TuneError> {
        let executor = self.weight.executor();
        let product = self.weight.product(self.element)?;
        let request = self.weight.request(product);
        let alternatives = executor.source().alternatives(&request, tokens.max(1));
        let Alternatives { tokens, mut kernels } = alternatives.map_err(ProductError::from)?;
        if let (Some(name), Some(model)) = (&options.schedule, kernels.first().cloned()) {
            kernels.retain(|kernel| kernel.key.schedule.name == *name || kernel.key == model.key);
        }
        // What fails here fails below again, with its error. What the driver's compiler warns of, such as registers in local
        // memory, is no fault of a kernel that is only measured.
        kernels.par_iter().for_each(|kernel| {
            tracing::subscriber::with_default(NoSubscriber::new(), || {
                drop(executor.kernel(&kernel.key));
            });
        });
        let x = random_x(self.element, tokens.saturating_mul(self.weight.shape.k) as usize);
        let (mut timed, mut failed) = (Vec::new(), Vec::new());
        for kernel in &kernels {
            match self.time(product, kernel, tokens, values(&x)) {
                Ok(microseconds) => {
                    timed.push(TimedKernel { kernel: kernel.clone(), microseconds })
                }
                Err(error) => failed.push((kernel.key.clone(), error)),
            }
        }
        // Once more, next to each other: what was fast by chance is not twice.
        timed.sort_by(|one, other| one.microseconds.total_cmp(&other.microseconds));
        let model = kernels.first().map(|kernel| &kernel.key);
        let mut finals = Vec::new();
        for (at, first) in timed.iter().enumerate() {
            if at < FINALISTS || Some(&first.kernel.key) == model {
                let again = self.time(product, &first.kernel, tokens, values(&x))?;
                finals.push(TimedKernel {
                    microseconds: again.max(first.microseconds),
                    ..first.clone()
                });
            }
        }
        let model = finals.iter().find(|timed| Some(&timed.kernel.key) == model).cloned();
        let best =
            finals.into_iter().min_by(|one, other| one.microseconds.total_cmp(&other.microseconds));
        let (Some(model), Some(best)) = (model, best) else {
            let first = failed.into_iter().next().map(|(_, error)| error);
            let first = first.unwrap_or_else(|| crate::op::NotScheduled::NoActivation.into());
            return Err(TuneError::NothingRan { count: kernels.len(), first: Box::new(first) });
        };
        timed.retain(|timed| timed.kernel.key != best.kernel.key);
        let margin = options.margin;
        let tuned = Tuned { tokens, model, best, others: timed, failed, margin };
        if options.keep && tuned.failed.is_empty() {
            let kept = executor.source().keep(&request, tokens, &tuned.preferred().kernel);
            kept.map_err(TuneError::NotKept)?;
            product.forget();
        }
        Ok(tuned)
    }

    /// Microseconds of a call with a kernel.
    fn time(
        &self,
        product: &PreparedProduct<E>,
        kernel: &ChosenKernel,
        tokens: u64,
        x: Values<'_>,
    ) -> Result<f64, ProductError> {
        let (weight, executor) = (self.weight, self.weight.executor());
        let chunk = Arc::new(weight.chunk(product, kernel, tokens)?);
        let mut tensors = weight.tensors_of(product, chunk, x)?;
        let weights: Vec<&GpuWeight<E>> = [weight].into_iter().chain(&self.copies).collect();
        let mut call = |copy: usize| weights[copy].queue(&mut tensors, true);
        let none =
            || Refusal::Reason(Arc::new(TuneError::NoClock { device: executor.name().to_owned() }));
        let clock = executor.clock().ok_or_else(none)?;
        clock.time(weights.len(), &mut call).map_err(Into::into)
    }
}

/// Numbers that are nearly normal, with a mean of 0 and a variance of 1: equal numbers would draw less power and run at higher
/// clocks. Sums of four uniform ones, of the bytes of a linear congruential sequence (Knuth's MMIX).
fn random_x(element: FloatFormat, count: usize) -> OwnedValues {
    let mut state = 1u64;
    let numbers = (0..count).map(|_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let sum: u32 = state.to_be_bytes()[..4].iter().map(|byte| u32::from(*byte)).sum();
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
