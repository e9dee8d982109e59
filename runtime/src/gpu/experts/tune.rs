//! The fastest kernels of an expert layer on this device, found by measuring.
//!
//! In: a layer, a type of x, M. Out: the time of each pair of product kernels that is worth it ([`TunedExperts`]); the source of
//! kernels keeps the fastest pair ([`Products::keep_stacked`]) and chooses it from then on. What is timed is the whole layer, from ids to
//! y: the slots of a token block, which the first product decides, change all of its launches. Each call has tokens that meet experts
//! of their own, uniformly, so that weights come from memory ([`Clock`]). The search ([`Search`]) compares numbers of slots, then for the
//! best of these the kernels of the first product, then those of the second.
//!
//! [`Products::keep_stacked`]: crate::gpu::Products::keep_stacked

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::Shape;

use super::choices::Decision;
use super::layer::{GpuExpertLayer, Products};
use super::plan::{PlanKey, RoutedBy};
use super::tensors::ExpertTensors;
use crate::experts::ExpertError;
use crate::gpu::clock::Clock;
use crate::gpu::executor::{Executor, Registers};
use crate::gpu::launch::bytes;
use crate::gpu::products::{ChoiceSource, Request, Stacked, StackedChoice};
use crate::gpu::tune::{
    FINALISTS, Sequence, TuneError, TuneOptions, compiled, is_ahead, one_at_a_time, random_x,
};
use crate::op::ProductError;
use crate::source::{BufferRole, KernelKey, Refusal};

/// Numbers of slots of which all kernels are measured.
const BEST_SLOTS: usize = 2;

/// The product kernels of an expert layer and their time.
#[derive(Clone, Debug)]
pub struct TimedExperts {
    /// The kernels of the first product and of the second.
    pub kernels: [StackedChoice; 2],
    /// Microseconds of the whole layer, from ids to y.
    pub microseconds: f64,
    /// What the device's compiler says of the registers of each, if it does.
    pub registers: [Option<Registers>; 2],
}

impl TimedExperts {
    fn keys(&self) -> [KernelKey; 2] {
        keys(&self.kernels)
    }
}

/// The product kernels of an expert layer for one M, measured.
#[derive(Clone, Debug)]
pub struct TunedExperts {
    /// M of the measurement: that which was asked for, rounded up as the source of kernels tells them apart, or the most tokens of a chunk.
    pub tokens: u64,
    /// What the source chooses without a measurement.
    pub model: TimedExperts,
    /// The fastest, which may be the same.
    pub best: TimedExperts,
    /// All others that ran, the fastest first.
    pub others: Vec<TimedExperts>,
    /// Those that did not run, and why.
    pub failed: Vec<([KernelKey; 2], ExpertError)>,
    /// Kernels that were not measured, since the device's compiler spilled registers to local memory; the model's is measured whatever
    /// it has.
    pub spilled: Vec<(KernelKey, Registers)>,
    /// What was asked of the source of kernels for the experts of each product, with the preferred kernels.
    pub products: [Stacked; 2],
    /// [`TuneOptions::margin`].
    pub margin: f64,
}

impl TunedExperts {
    /// The kernels to choose: the fastest if they are ahead of the model's by the margin, else the model's.
    pub fn preferred(&self) -> &TimedExperts {
        match is_ahead(self.best.microseconds, self.model.microseconds, self.margin) {
            true => &self.best,
            false => &self.model,
        }
    }
}

/// An expert layer whose kernels are measured, on a queue of their own: calls of other threads go on meanwhile, and each makes the other
/// slower.
pub struct ExpertTuner<'l, E: Executor> {
    layer: &'l GpuExpertLayer<E>,
    element: FloatFormat,
    /// The layer's memory, with a queue of its own.
    apart: GpuExpertLayer<E>,
}

impl<E: Executor> GpuExpertLayer<E> {
    /// Prepares to measure the layer's kernels with x of a type. The layer's weights are not copied.
    ///
    /// # Errors
    /// [`TuneError::NoClock`]; [`TuneError::Experts`] if the layer does not multiply such x.
    pub fn tuner(&self, element: FloatFormat) -> Result<ExpertTuner<'_, E>, TuneError> {
        self.products(element)?;
        let none = || TuneError::NoClock { device: self.executor.name().to_owned() };
        let apart = self.executor.apart().map_err(Into::into)?.ok_or_else(none)?;
        let apart = self.on(Arc::new(apart));
        Ok(ExpertTuner { layer: self, element, apart })
    }

    /// What the source asks of a matrix of each product with x of a type: with [`TunedExperts::products`] what a kernel is kept for.
    ///
    /// # Errors
    /// x of a type that the layer does not multiply.
    pub fn requests(&self, element: FloatFormat) -> Result<[Request<'_>; 2], ExpertError> {
        let [first, second] = &self.products(element)?.stacks;
        Ok([first, second].map(|stack| stack.request(self.executor.target())))
    }

    /// Measures the kernels of a call that nothing on this device was measured for, where the source of kernels asks for that; whether
    /// it was done.
    pub(super) fn tuned_at_first_use(
        &self,
        products: &Products<E::Memory>,
        key: PlanKey,
        chosen: &[StackedChoice; 2],
    ) -> bool {
        let source = self.executor.source();
        let unmeasured = |choices: &[StackedChoice; 2]| {
            let by = |of: &StackedChoice| of.choice.by;
            choices.iter().any(|of| matches!(by(of), ChoiceSource::Model | ChoiceSource::Measured))
        };
        let asked =
            || source.tunes_at_first_use(&products.stacks[0].request(self.executor.target()));
        let wanted = key.routed != RoutedBy::Batched && !products.not_tuned.load(Relaxed);
        if !wanted || !unmeasured(chosen) || !asked() {
            return false;
        }
        let _one = one_at_a_time();
        // Another thread, or another layer of this shape, may have measured it meanwhile.
        let again = self.decided(products, key, key.tokens.max(1));
        if again.is_ok_and(|decision| !unmeasured(&decision.choices)) {
            return true;
        }
        let tuner = self.tuner(products.element);
        match tuner.and_then(|tuner| tuner.tune(key.tokens, &TuneOptions::default())) {
            Ok(tuned) => {
                let TunedExperts { tokens, model, best, .. } = &tuned;
                let [model, best] = [model, best].map(|timed| timed.microseconds);
                tracing::info!(layer = %self.layer, tokens, model, best, "measured at first use");
                true
            }
            Err(error) => {
                products.not_tuned.store(true, Relaxed);
                tracing::warn!(%error, layer = %self.layer, "not measured at first use");
                false
            }
        }
    }
}

impl<E: Executor> ExpertTuner<'_, E> {
    /// Measures the kernels for M tokens that each choose k of all experts. With [`TuneOptions::keep`] the source of kernels chooses the
    /// preferred ones from then on: for this layer, and for every other one of the same sizes that has not had so many tokens yet. Plans
    /// that engines hold stay as they are.
    ///
    /// Compiling the kernels takes longest, some seconds; as many threads share that as the machine runs at once.
    ///
    /// # Errors
    /// [`TuneError`].
    pub fn tune(&self, tokens: u64, options: &TuneOptions) -> Result<TunedExperts, TuneError> {
        let layer = &self.apart;
        let source = layer.executor().source();
        let products = layer.products(self.element)?;
        let key = |tokens| PlanKey {
            element: self.element,
            output: self.element,
            tokens,
            routed: RoutedBy::Chosen,
            shared: None,
        };
        let asked = layer.decided(products, key(tokens.max(1)), tokens.max(1))?;
        let alternatives =
            source.alternatives_stacked(&asked.requests[0], &asked.products[0], tokens.max(1));
        let tokens = alternatives.map_err(ProductError::from)?.tokens;
        let (chunk, _) = layer.first_chunk(products, key(tokens))?;
        let tokens = chunk.problem.m;
        let model = |request: &Request<'_>, of: &Stacked| {
            let all = source.alternatives_stacked(request, of, tokens)?.kernels;
            // A source that has alternatives has the model's; else its refusal says why not.
            all.into_iter().next().map_or_else(|| source.choose_stacked(request, of, tokens), Ok)
        };
        let decision = layer.decided_by(products, key(tokens), (tokens, &model))?;
        let Some(clock) = layer.executor().clock() else {
            return Err(TuneError::NoClock { device: layer.executor().name().to_owned() });
        };
        let bytes = self.bytes(products, &decision, tokens);
        let inputs = self.inputs(tokens, clock.copies(bytes))?;
        let mut search = Search {
            layer,
            clock,
            key: key(tokens),
            decision,
            inputs,
            only: options.schedule.as_deref(),
            seen: HashSet::new(),
            timed: Vec::new(),
            failed: Vec::new(),
            spilled: Vec::new(),
        };
        search.all();
        let tuned = search.outcome(options.margin)?;
        if options.keep {
            let requests = self.layer.requests(self.element)?;
            let kernels = &tuned.preferred().kernels;
            let source = self.layer.executor().source();
            let kept = (0..2).try_for_each(|product| {
                let of = (&requests[product], &tuned.products[product]);
                source.keep_stacked(of.0, of.1, tokens, &kernels[product])
            });
            self.layer.forget();
            kept.map_err(TuneError::NotKept)?;
        }
        Ok(tuned)
    }

    /// Bytes of the weights that a call reads.
    fn bytes(&self, products: &Products<E::Memory>, decision: &Decision<'_>, tokens: u64) -> u64 {
        let layer = &self.apart;
        let source = layer.executor().source();
        let all = decision.requests.iter().zip(&decision.products).zip(&products.stacks);
        let of_expert = all.map(|((request, of), stack)| {
            let shape = Shape { k: request.k, ..stack.shape };
            let parts = source.native(request).unwrap_or_default();
            parts.iter().filter_map(|part| part.bytes(shape)).sum::<u64>() * of.shards
        });
        let share = f64::from(layer.layer.top_k) / f64::from(layer.layer.experts);
        let met = 1.0 - (1.0 - share.min(1.0)).powf(tokens as f64);
        (of_expert.sum::<u64>() as f64 * met * f64::from(layer.local)) as u64
    }

    /// x, and the ids and router weights of each of some calls: all tokens choose different experts, uniformly.
    fn inputs(&self, tokens: u64, calls: usize) -> Result<Vec<Inputs<E>>, TuneError> {
        let layer = &self.apart;
        let (experts, top_k) = (layer.layer.experts as usize, layer.layer.top_k as usize);
        let upload = |bytes: &[u8]| -> Result<Arc<E::Memory>, TuneError> {
            Ok(Arc::new(layer.executor().upload(bytes).map_err(Into::into)?))
        };
        let x = random_x(self.element, (tokens * layer.layer.hidden) as usize);
        let x = upload(&bytes((&x).into()))?;
        let weights = (1.0 / top_k as f32).to_le_bytes().repeat(tokens as usize * top_k);
        let weights = upload(&weights)?;
        let mut sequence = Sequence::default();
        let mut order: Vec<u32> = (0..layer.layer.experts).collect();
        let mut call = || {
            let mut ids = Vec::with_capacity(tokens as usize * top_k * 4);
            for _ in 0..tokens {
                for choice in 0..top_k {
                    order.swap(choice, choice + sequence.below(experts - choice));
                }
                ids.extend(order[..top_k].iter().flat_map(|id| id.to_le_bytes()));
            }
            let ids = (BufferRole::Ids, upload(&ids)?);
            let weights = (BufferRole::RouterWeights, weights.clone());
            Ok(vec![ids, weights, (BufferRole::X, x.clone())])
        };
        (0..calls).map(|_| call()).collect()
    }
}

/// The inputs of a call on the device.
type Inputs<E> = Vec<(BufferRole, Arc<<E as Executor>::Memory>)>;

/// What is measured, and what was.
struct Search<'t, E: Executor> {
    layer: &'t GpuExpertLayer<E>,
    clock: &'t dyn Clock<E::Error>,
    key: PlanKey,
    /// What the model chooses.
    decision: Decision<'t>,
    /// Of each call.
    inputs: Vec<Inputs<E>>,
    /// [`TuneOptions::schedule`].
    only: Option<&'t str>,
    seen: HashSet<[KernelKey; 2]>,
    timed: Vec<TimedExperts>,
    failed: Vec<([KernelKey; 2], ExpertError)>,
    spilled: Vec<(KernelKey, Registers)>,
}

impl<E: Executor> Search<'_, E> {
    /// Measures the model's kernels, each number of slots with kernels of the models, and all kernels of the best of these.
    fn all(&mut self) {
        let firsts = self.alternatives(0, None);
        let with_second = firsts.into_iter().filter_map(|first| {
            let second = self.alternatives(1, Some(first.slots)).into_iter().next()?;
            Some([first, second])
        });
        let model = self.decision.choices.clone();
        let pairs = [model].into_iter().chain(with_second).collect();
        self.measure(pairs);
        for slots in self.best_slots() {
            for product in [0, 1] {
                let with_slots = |timed: &&TimedExperts| timed.kernels[0].slots == slots;
                let fastest = self
                    .timed
                    .iter()
                    .filter(with_slots)
                    .min_by(|one, other| one.microseconds.total_cmp(&other.microseconds));
                let Some(TimedExperts { kernels, .. }) = fastest.cloned() else { continue };
                let pairs = self.alternatives(product, Some(slots)).into_iter().map(|kernel| {
                    let mut pair = kernels.clone();
                    pair[product] = kernel;
                    pair
                });
                self.measure(pairs.collect());
            }
        }
    }

    /// The numbers of slots with the fastest kernels.
    fn best_slots(&self) -> Vec<u64> {
        let mut timed: Vec<&TimedExperts> = self.timed.iter().collect();
        timed.sort_by(|one, other| one.microseconds.total_cmp(&other.microseconds));
        let mut best: Vec<u64> = Vec::new();
        for TimedExperts { kernels: [first, _], .. } in timed {
            if !best.contains(&first.slots) {
                best.push(first.slots);
            }
        }
        best.truncate(BEST_SLOTS);
        best
    }

    /// The kernels of a product that are worth measuring, the model's first; none where the source takes none.
    fn alternatives(&self, product: usize, slots: Option<u64>) -> Vec<StackedChoice> {
        let request = &self.decision.requests[product];
        let of = Stacked { slots, ..self.decision.products[product] };
        let source = self.layer.executor().source();
        let all = source.alternatives_stacked(request, &of, self.key.tokens);
        all.map_or_else(|_: Refusal| Vec::new(), |all| all.kernels)
    }

    /// Compiles pairs of kernels, and times those that have not been yet.
    fn measure(&mut self, mut pairs: Vec<[StackedChoice; 2]>) {
        let model = keys(&self.decision.choices);
        if let Some(only) = self.only {
            let of_schedule = |of: &StackedChoice| of.choice.key.schedule.name == only;
            pairs.retain(|pair| keys(pair) == model || pair.iter().all(of_schedule));
        }
        pairs.retain(|pair| self.seen.insert(keys(pair)));
        let mut kernels: Vec<KernelKey> = pairs.iter().flat_map(keys).collect();
        kernels.sort_by_key(ToString::to_string);
        kernels.dedup();
        compiled(self.layer.executor(), &kernels);
        for pair in pairs {
            let own = keys(&pair);
            let registers = [0, 1].map(|product| self.registers(&own[product]));
            let spills = own.iter().zip(registers).filter_map(|(key, registers)| {
                let registers = registers.filter(|registers| registers.spilled_bytes > 0)?;
                Some((key.clone(), registers))
            });
            let spills: Vec<_> = spills.collect();
            if own != model && !spills.is_empty() {
                let known = |(key, _): &(KernelKey, _)| self.spilled.iter().any(|of| of.0 == *key);
                let new: Vec<_> = spills.into_iter().filter(|of| !known(of)).collect();
                self.spilled.extend(new);
                continue;
            }
            match self.time(&pair) {
                Ok(microseconds) => {
                    self.timed.push(TimedExperts { kernels: pair, microseconds, registers })
                }
                Err(error) => self.failed.push((own, error)),
            }
        }
    }

    /// What the device's compiler says of a kernel's registers; `None` if it says nothing, or the kernel cannot be loaded.
    fn registers(&self, key: &KernelKey) -> Option<Registers> {
        let executor = self.layer.executor();
        executor.kernel(key).ok().and_then(|kernel| executor.registers(&kernel))
    }

    /// Microseconds of a call of the layer with a pair of kernels.
    fn time(&self, pair: &[StackedChoice; 2]) -> Result<f64, ExpertError> {
        let (layer, tokens) = (self.layer, self.key.tokens);
        let launches = layer.launches(self.decision.with(pair.clone()), self.key, tokens)?;
        let products = layer.products(self.key.element)?;
        let chunk = Arc::new(layer.chunk(products, &launches.steps, self.key, tokens)?);
        let tensors = self.inputs.iter().map(|inputs| {
            ExpertTensors::on_inputs(layer.executor(), chunk.clone(), inputs.clone())
        });
        let tensors = tensors.collect::<Result<Vec<_>, _>>();
        let mut tensors = tensors.map_err(ExpertError::product)?;
        let mut call = |call: usize| layer.queue(&mut tensors[call], true);
        self.clock.time(self.inputs.len(), &mut call).map_err(ExpertError::product)
    }

    /// What was found: the fastest pairs once more, next to each other, since what was fast by chance is not twice.
    fn outcome(mut self, margin: f64) -> Result<TunedExperts, TuneError> {
        self.timed.sort_by(|one, other| one.microseconds.total_cmp(&other.microseconds));
        let model = keys(&self.decision.choices);
        let mut finals = Vec::new();
        for (at, first) in self.timed.iter().enumerate() {
            if at < FINALISTS || first.keys() == model {
                let again = self.time(&first.kernels)?;
                let microseconds = again.max(first.microseconds);
                finals.push(TimedExperts { microseconds, ..first.clone() });
            }
        }
        let chosen = finals.iter().find(|timed| timed.keys() == model).cloned();
        let best =
            finals.into_iter().min_by(|one, other| one.microseconds.total_cmp(&other.microseconds));
        let Self { mut timed, failed, spilled, decision, key, .. } = self;
        let Some(best) = best else {
            let count = failed.len() + spilled.len();
            let first = failed.into_iter().next().map(|(_, error)| Box::new(error.into()));
            return Err(TuneError::NothingRan { count, first });
        };
        // A choice of the model that does not run is no choice.
        let model = chosen.unwrap_or_else(|| best.clone());
        timed.retain(|timed| timed.keys() != best.keys());
        let (tokens, others) = (key.tokens, timed);
        let products = decision.products;
        let tuned = TunedExperts { tokens, model, best, others, failed, spilled, products, margin };
        let products = decision.with(tuned.preferred().kernels.clone()).products;
        Ok(TunedExperts { products, ..tuned })
    }
}

fn keys(pair: &[StackedChoice; 2]) -> [KernelKey; 2] {
    pair.each_ref().map(|of| of.choice.key.clone())
}
