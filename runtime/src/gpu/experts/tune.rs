//! The fastest kernels of an expert layer on this device, found by measuring.
//!
//! In: a layer, a type of x, M. Out: the time of each pair of product kernels that is worth it ([`TunedExperts`]); the source of
//! kernels keeps the fastest pair ([`Products::keep_stacked`]) and chooses it from then on. What is timed is the whole layer, from ids to
//! y: the slots of a token block, which the first product decides, change all of its launches. Each call has tokens that meet experts
//! of their own, uniformly, so that weights come from memory ([`Clock`]). The search ([`Search`]) compares numbers of slots, then for the
//! best of these the kernels of the first product, then those of the second.
//!
//! [`Products::keep_stacked`]: crate::gpu::Products::keep_stacked

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, PoisonError};

use quantloom_dsl::experts::experts_met;
use quantloom_dsl::format::FloatFormat;

use super::choices::Decision;
use super::layer::{GpuExpertLayer, Products};
use super::plan::{PlanKey, RoutedBy, product_kernels};
use super::tensors::ExpertTensors;
use crate::experts::{ExpertError, ExpertsNotScheduled};
use crate::float_mode::standard;
use crate::gpu::clock::Clock;
use crate::gpu::executor::{Executor, Registers};
use crate::gpu::launch::bytes;
use crate::gpu::products::{Request, Stacked, StackedChoice};
use crate::gpu::tune::{
    Ranked, Sequence, Timed, TuneError, TuneOptions, compiled, is_ahead, one_at_a_time, random_x,
    ranked, registers,
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
    /// What the device's compiler says of the registers of each as a call launches them, if it does.
    pub registers: [Option<Registers>; 2],
}

impl Timed for TimedExperts {
    fn microseconds(&self) -> f64 {
        self.microseconds
    }

    fn set_microseconds(&mut self, microseconds: f64) {
        self.microseconds = microseconds;
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

/// The fewest calls of a measured time, each with ids of its own: of one call's ids alone a layer took from 0.96 to 1.17 of the time that it
/// takes on average (Qwen3-30B, docs/performance/experts.md).
const LEAST_CALLS: usize = 12;

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

    /// What is asked of the source of kernels for a matrix of each product with x of a type: with [`TunedExperts::products`] what a kernel
    /// is kept for.
    ///
    /// # Errors
    /// x of a type that the layer does not multiply.
    pub fn requests(&self, element: FloatFormat) -> Result<[Request<'_>; 2], ExpertError> {
        let [first, second] = &self.products(element)?.stacks;
        Ok([first, second].map(|stack| stack.request(self.executor.target())))
    }

    /// Measures the kernels of a call that nothing on this device was measured for, where the source of kernels asks for that; whether
    /// it was done. The first product's kernel tells, since its slots are both products'. Each number of tokens is measured once, whatever
    /// comes of it.
    pub(super) fn tuned_at_first_use(
        &self,
        products: &Products<E::Memory>,
        key: PlanKey,
        chosen: &[StackedChoice; 2],
    ) -> bool {
        let source = self.executor.source();
        let unmeasured = |[first, _]: &[StackedChoice; 2]| first.choice.by.may_be_tuned();
        let asked = || {
            let mut stacks = products.stacks.iter();
            stacks.all(|of| source.tunes_at_first_use(&of.request(self.executor.target())))
        };
        let measured = || products.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = key.routed != RoutedBy::Batched && key.tokens > 0 && unmeasured(chosen);
        if !wanted || measured().contains(&key.tokens) || !asked() {
            return false;
        }
        let _one = one_at_a_time();
        // Another thread, or another layer of this shape, may have measured it meanwhile.
        let again = self.decided(products, key, key.tokens);
        if again.is_ok_and(|decision| !unmeasured(&decision.choices)) {
            return true;
        }
        let tuner = self.tuner(products.element);
        let tuned = tuner.and_then(|tuner| tuner.tune(key.tokens, &TuneOptions::default()));
        // A captured stream is another one's later.
        if !matches!(tuned, Err(TuneError::NoClock { .. })) {
            measured().insert(key.tokens);
        }
        match tuned {
            Ok(TunedExperts { tokens, model, best, .. }) => {
                let [model, best] = [model, best].map(|timed| timed.microseconds);
                tracing::info!(layer = %self.layer, tokens, model, best, "measured at first use");
                true
            }
            Err(error) => {
                tracing::warn!(%error, layer = %self.layer, "not measured at first use");
                false
            }
        }
    }
}

impl<E: Executor> ExpertTuner<'_, E> {
    /// Measures the kernels for M tokens that each choose k of all experts. With [`TuneOptions::keep`] the source of kernels chooses the
    /// preferred ones from then on: for this layer, and for every other one of the same sizes that has not had so many tokens yet. Plans
    /// that engines hold stay as they are. Layers with the same first product have the same slots: those of the one that was measured last.
    ///
    /// Compiling the kernels takes longest, some ten seconds; as many threads share that as the machine runs at once.
    ///
    /// # Errors
    /// [`TuneError`].
    pub fn tune(&self, tokens: u64, options: &TuneOptions) -> Result<TunedExperts, TuneError> {
        // A kernel's source is written with this thread's arithmetic.
        standard(|| self.tuned(tokens.max(1), options))
    }

    fn tuned(&self, asked: u64, options: &TuneOptions) -> Result<TunedExperts, TuneError> {
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
        let first = layer.decided(products, key(asked), asked)?;
        let of = Stacked { slots: None, ..first.products[0] };
        let rounded = source.alternatives_stacked(&first.requests[0], &of, asked);
        let rounded = rounded.map_err(ProductError::from)?.tokens;
        // Where fewer tokens are a chunk, such chunks are what is launched.
        let rows =
            |tokens| Ok::<_, ExpertError>(layer.first_chunk(products, key(tokens))?.0.problem.m);
        // And where a call of so many works in another way, its kernels are not those of the call that is asked about.
        let alike = |tokens| {
            let decision = layer.decided(products, key(tokens), tokens)?;
            Ok::<_, ExpertError>(decision.way == first.way)
        };
        let whole = rows(rounded)? == rounded && alike(rounded)?;
        let tokens = if whole { rounded } else { rows(asked)? };
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
        let inputs = self.inputs(tokens, clock.copies(bytes).max(LEAST_CALLS))?;
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
            // The second first: the line of the first, which decides slots, is not to be alone.
            let kept = [1, 0].into_iter().try_for_each(|at| {
                source.keep_stacked(&requests[at], &tuned.products[at], tokens, &kernels[at])
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
        let of_expert =
            all.map(|((request, of), stack)| stack.bytes_of_matrix(source, request) * of.shards);
        let all = f64::from(layer.layer.experts);
        let met = experts_met(all, f64::from(layer.layer.top_k), tokens as f64) / all;
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
        let mut seconds: BTreeMap<u64, Option<StackedChoice>> = BTreeMap::new();
        let mut pairs = vec![self.decision.choices.clone()];
        for first in self.alternatives(0, None) {
            let slots = first.slots;
            let second = seconds.entry(slots).or_insert_with(|| {
                let all = self.alternatives(1, Some(slots));
                all.into_iter().next()
            });
            pairs.extend(second.clone().map(|second| [first, second]));
        }
        self.measure(pairs);
        for slots in self.best_slots() {
            for product in [0, 1] {
                let with_slots = |timed: &&TimedExperts| timed.kernels[0].slots == slots;
                let fastest = self
                    .of_schedule()
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

    /// Whether a kernel is of the schedule that is asked for.
    fn is_asked(&self, kernel: &StackedChoice) -> bool {
        self.only.is_none_or(|only| kernel.choice.key.schedule.name == only)
    }

    /// The pairs that ran whose kernels are both of the schedule that is asked for.
    fn of_schedule(&self) -> impl Iterator<Item = &TimedExperts> {
        self.timed.iter().filter(|timed| timed.kernels.iter().all(|kernel| self.is_asked(kernel)))
    }

    /// The numbers of slots with the fastest kernels.
    fn best_slots(&self) -> Vec<u64> {
        let mut timed: Vec<&TimedExperts> = self.of_schedule().collect();
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

    /// The kernels of a product that are worth measuring, the model's first if it is of the schedule that is asked for; none where the source
    /// takes none.
    fn alternatives(&self, product: usize, slots: Option<u64>) -> Vec<StackedChoice> {
        let request = &self.decision.requests[product];
        let of = Stacked { slots, ..self.decision.products[product] };
        let source = self.layer.executor().source();
        let all = source.alternatives_stacked(request, &of, self.key.tokens);
        let mut kernels = all.map_or_else(|_: Refusal| Vec::new(), |all| all.kernels);
        kernels.retain(|kernel| self.is_asked(kernel));
        kernels
    }

    /// Compiles pairs of kernels, and times those that have not been yet.
    fn measure(&mut self, mut pairs: Vec<[StackedChoice; 2]>) {
        let model = keys(&self.decision.choices);
        pairs.retain(|pair| self.seen.insert(keys(pair)));
        let launched: Vec<[KernelKey; 2]> = pairs.iter().map(|pair| self.launched(pair)).collect();
        let mut kernels: Vec<KernelKey> = launched.iter().flatten().cloned().collect();
        kernels.sort_by_key(ToString::to_string);
        kernels.dedup();
        compiled(self.layer.executor(), &kernels);
        for (pair, launched) in pairs.into_iter().zip(launched) {
            let own = keys(&pair);
            let registers = launched.each_ref().map(|key| registers(self.layer.executor(), key));
            let spills = launched.iter().zip(registers).filter_map(|(key, registers)| {
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

    /// The kernels that a call of the layer multiplies with by a pair: the first one may make what the second one reads.
    fn launched(&self, pair: &[StackedChoice; 2]) -> [KernelKey; 2] {
        let decision = self.decision.with(pair.clone());
        let launches = self.layer.launches(decision, self.key, self.key.tokens);
        let kernels = launches
            .ok()
            .map(|launches| product_kernels(&launches.steps).cloned().collect::<Vec<KernelKey>>());
        // What cannot be launched fails where it is timed, and says why.
        kernels.and_then(|kernels| kernels.try_into().ok()).unwrap_or_else(|| keys(pair))
    }

    /// Microseconds of a call of the layer with a pair of kernels.
    fn time(&self, pair: &[StackedChoice; 2]) -> Result<f64, ExpertError> {
        let (layer, tokens) = (self.layer, self.key.tokens);
        let launches = layer.launches(self.decision.with(pair.clone()), self.key, tokens)?;
        let products = layer.products(self.key.element)?;
        let chunk = Arc::new(layer.chunk(products, &launches.steps, self.key, tokens)?);
        // Such a call would be cut into chunks of fewer tokens.
        let fits = launches.most >= tokens && chunk.workspace().total() <= layer.most_workspace;
        let Some(inputs) = self.inputs.first().filter(|_| fits) else {
            return Err(ExpertsNotScheduled::Chunks(tokens).into());
        };
        // One workspace and one y for all calls, as engines have them.
        let tensors = ExpertTensors::on_inputs(layer.executor(), chunk, inputs.clone());
        let mut tensors = tensors.map_err(ExpertError::product)?;
        let mut call = |call: usize| {
            tensors.read(self.inputs[call].clone());
            layer.queue(&mut tensors, true)
        };
        self.clock.time(self.inputs.len(), &mut call).map_err(ExpertError::product)
    }

    /// What was found, after the fastest pairs were measured again.
    fn outcome(mut self, margin: f64) -> Result<TunedExperts, TuneError> {
        let model = keys(&self.decision.choices);
        let is_model = |timed: &TimedExperts| keys(&timed.kernels) == model;
        let timed = std::mem::take(&mut self.timed);
        let ranked = ranked(timed, is_model, |of| self.time(&of.kernels))?;
        let Self { failed, spilled, decision, key, .. } = self;
        let Some(Ranked { model, best, others }) = ranked else {
            let count = failed.len() + spilled.len();
            let first = failed.into_iter().next().map(|(_, error)| Box::new(error.into()));
            return Err(TuneError::NothingRan { count, first });
        };
        let (tokens, products) = (key.tokens, decision.products);
        let tuned = TunedExperts { tokens, model, best, others, failed, spilled, products, margin };
        let products = decision.with(tuned.preferred().kernels.clone()).products;
        Ok(TunedExperts { products, ..tuned })
    }
}

fn keys(pair: &[StackedChoice; 2]) -> [KernelKey; 2] {
    pair.each_ref().map(|of| of.choice.key.clone())
}
