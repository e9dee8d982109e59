//! The launches of an expert layer for M tokens: kernels in their order, the buffers between them, and the
//! pieces into which tokens are cut.

use std::sync::{Arc, PoisonError};

use quantloom_dsl::Quantiser;
use quantloom_dsl::experts::ExpertProduct;
use quantloom_dsl::format::{F32, FloatFormat};
use quantloom_dsl::layout::GroupSize;

use super::layer::{GpuExpertLayer, Products};
use crate::experts::ExpertError;
use crate::float_mode::standard;
use crate::gpu::executor::Executor;
use crate::gpu::plan::{Chunk, Step, WorkspaceBytes};
use crate::gpu::products::{ExpertRequest, Stacked, StackedChoice};
use crate::op::{NotScheduled, ProductError};
use crate::source::{BufferRole, Count, KernelKey, Problem};

/// How a call says which experts its tokens meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoutedBy {
    /// The router's logits [M, E], f32: kernels choose.
    Logits,
    /// Ids [M, k], i32, and router weights [M, k], f32.
    Chosen,
    /// Ids `[M]` of experts that are here, one a row of x, with router weights of 1 in the sum.
    Batched,
}

/// What decides the launches of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanKey {
    /// The type of x, h and the result of shared experts.
    pub element: FloatFormat,
    /// The type of y: that of x, or f32.
    pub output: FloatFormat,
    /// M.
    pub tokens: u64,
    /// Where experts come from.
    pub routed: RoutedBy,
    /// Whether the result of shared experts is added.
    pub shared: bool,
}

impl PlanKey {
    fn order(&self) -> ([u8; 4], u64, RoutedBy, bool) {
        let Self { element, output, tokens, routed, shared } = *self;
        let bits = |format: FloatFormat| [format.exponent_bits, format.mantissa_bits];
        let ([e, m], [output_e, output_m]) = (bits(element), bits(output));
        ([e, m, output_e, output_m], tokens, routed, shared)
    }
}

impl PartialOrd for PlanKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PlanKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// An expert layer with M tokens, ready to be launched: kernels are loaded, grids and sizes are numbers. It
/// keeps the layer's memory and its kernels.
pub struct LayerPlan<E: Executor> {
    pub(super) executor: Arc<E>,
    pub(super) key: PlanKey,
    /// Each piece with its first token.
    pub(crate) pieces: Vec<(u64, Arc<Chunk<E>>)>,
    workspace: WorkspaceBytes,
    /// The products' choices, of the first piece.
    pub(super) choices: [StackedChoice; 2],
    /// The kernels of the first piece.
    pub(super) kernels: Vec<KernelKey>,
}

impl<E: Executor> LayerPlan<E> {
    /// The executor of the layer.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// What it was made for.
    pub fn key(&self) -> PlanKey {
        self.key
    }

    /// The workspace that a launch needs.
    pub fn workspace(&self) -> WorkspaceBytes {
        self.workspace
    }

    /// Kernels that a launch of the plan queues.
    pub fn launches(&self) -> usize {
        self.pieces.iter().map(|(_, chunk)| chunk.launches.len()).sum()
    }

    /// Bytes of an input for all tokens; 0 if the plan does not read it.
    pub fn input_bytes(&self, role: BufferRole) -> u64 {
        let of = |chunk: &Chunk<E>| {
            let mut inputs = chunk.inputs.iter();
            inputs.find(|(known, _)| *known == role).map_or(0, |(_, bytes)| *bytes)
        };
        self.pieces.iter().map(|(_, chunk)| of(chunk)).sum()
    }

    /// Bytes of y.
    pub fn y_bytes(&self) -> u64 {
        self.pieces.iter().map(|(_, chunk)| chunk.y_bytes).sum()
    }
}

/// Plans that a layer keeps.
const KEPT_PLANS: usize = 512;

impl<E: Executor> GpuExpertLayer<E> {
    /// The launches of a call. The same plan as before for a key that was asked for before.
    ///
    /// The first plan of a kernel compiles and loads it, which no stream may be captured during. Engines
    /// keep the plan: a launch needs no lock, this call does.
    ///
    /// # Errors
    /// No kernels for such a call, a workspace beyond what the options allow for one token, or what the
    /// device says.
    pub fn plan(&self, key: PlanKey) -> Result<Arc<LayerPlan<E>>, ExpertError> {
        let plans = || self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans().get(&key) {
            return Ok(plan.clone());
        }
        // A kernel's source is written with this thread's arithmetic.
        let plan = Arc::new(standard(|| self.planned(key))?);
        let mut plans = plans();
        if plans.len() >= KEPT_PLANS {
            plans.clear();
        }
        Ok(plans.entry(key).or_insert(plan).clone())
    }

    fn planned(&self, key: PlanKey) -> Result<LayerPlan<E>, ExpertError> {
        let products = self.products(key.element)?;
        if key.output != key.element && key.output != F32 {
            let (x, y) = (key.element, key.output);
            let why = NotScheduled::TypeOfY { x, y, rounded: x };
            return Err(ExpertError::Product(why.into()));
        }
        let mut most = key.tokens.max(1);
        let (first, choices, kernels) = loop {
            let rows = most.min(key.tokens.max(1));
            let (steps, choices, limit) = self.steps(products, key, rows)?;
            if rows > limit.max(1) {
                most = limit.max(1);
                continue;
            }
            let chunk = self.chunk(products, &steps, key, rows)?;
            let needed = chunk.workspace().total();
            if needed > self.most_workspace {
                if rows == 1 {
                    let most = self.most_workspace;
                    return Err(ExpertError::Workspace { needed, most });
                }
                most = rows.div_ceil(2);
                continue;
            }
            let kernels = steps.into_iter().map(|step| step.kernel).collect();
            break (Arc::new(chunk), choices, kernels);
        };
        let rows = first.problem.m;
        if key.tokens > rows && self.spans_tokens(products) {
            let (tokens, most) = (key.tokens, rows);
            let why = NotScheduled::SharedScale { tokens, most };
            return Err(ExpertError::Product(why.into()));
        }
        let mut workspace = first.workspace();
        let mut pieces: Vec<(u64, Arc<Chunk<E>>)> = Vec::new();
        let mut at = 0;
        while at < key.tokens {
            let own = rows.min(key.tokens - at);
            let chunk = if own == rows {
                first.clone()
            } else {
                let (steps, ..) = self.steps(products, key, own)?;
                Arc::new(self.chunk(products, &steps, key, own)?)
            };
            workspace = workspace.max(chunk.workspace());
            pieces.push((at, chunk));
            at += own;
        }
        let executor = self.executor.clone();
        Ok(LayerPlan { executor, key, pieces, workspace, choices, kernels })
    }

    /// Whether a scale of x or h is over several tokens.
    fn spans_tokens(&self, products: &Products<E::Memory>) -> bool {
        let quantisers = self.schemes.iter().map(|scheme| {
            let choice = scheme.activation_for(products.element);
            choice.and_then(|choice| choice.quantiser().cloned())
        });
        quantisers.flatten().any(|quantiser| quantiser.spans_tokens())
    }

    fn chunk(
        &self,
        products: &Products<E::Memory>,
        steps: &[Step],
        key: PlanKey,
        rows: u64,
    ) -> Result<Chunk<E>, ExpertError> {
        let (n, k) = (self.layer.hidden, self.layer.intermediate);
        let problem = Problem {
            experts: self.local.into(),
            routed_rows: rows * self.choices_of(key.routed),
            ..Problem::new(rows, n, k, self.executor.multiprocessors())
        };
        let constant = |product, role| self.constant(products, product, role).cloned();
        Ok(Chunk::assembled(&*self.executor, steps, problem, constant)?)
    }

    /// Experts of a token: k.
    fn choices_of(&self, routed: RoutedBy) -> u64 {
        match routed {
            RoutedBy::Logits | RoutedBy::Chosen => self.layer.top_k.into(),
            RoutedBy::Batched => 1,
        }
    }

    /// The launches of a call with so many tokens, in order, the choices of the two products, and the
    /// most tokens of such launches.
    fn steps(
        &self,
        products: &Products<E::Memory>,
        key: PlanKey,
        tokens: u64,
    ) -> Result<(Vec<Step>, [StackedChoice; 2], u64), ExpertError> {
        let (source, target) = (self.executor.source(), self.executor.target());
        let [first, second] = &products.stacks;
        let requests = [first.request(target), second.request(target)];
        let (local, top_k) = (u64::from(self.local), self.choices_of(key.routed));
        let stacked = |product, shards, slots| {
            let stacked = Stacked {
                product,
                experts: local,
                shards,
                top_k,
                slots,
                gate: None,
                direct: false,
                weighted: false,
            };
            let request = &requests[usize::from(product == ExpertProduct::Down)];
            source.choose_stacked(request, &stacked, tokens).map_err(ProductError::from)
        };
        let gate_up = stacked(ExpertProduct::GateUp, self.layer.gate.shards() as u64, None)?;
        let slots = gate_up.slots;
        let down = stacked(ExpertProduct::Down, 1, Some(slots))?;
        let batched = key.routed == RoutedBy::Batched;
        let on_input = self.layer.weight_on_input && !batched;
        let request = ExpertRequest {
            layer: &self.layer,
            experts: if batched { local } else { self.layer.experts.into() },
            local,
            mapped: self.map.is_some() && !batched,
            top_k,
            own: key.element,
            output: key.output,
            target,
            weighted: !(on_input || batched),
            shared: key.shared,
        };
        let kernels = source.expert_kernels(&request, slots, tokens).map_err(ProductError::from)?;
        // Token blocks have at most L (B - 1) slots more than there are pairs.
        let slots_of_pairs = kernels.most_rows.saturating_sub(local * slots);
        let taken = gate_up.choice.tokens.min(down.choice.tokens);
        let most = taken.min(slots_of_pairs / top_k);
        let logits = key.routed == RoutedBy::Logits;
        let routed = |kernel: KernelKey| match logits {
            false => Step::new(kernel),
            true => Step::new(kernel)
                .bound(BufferRole::Ids, BufferRole::RoutedIds)
                .bound(BufferRole::RouterWeights, BufferRole::RoutedWeights),
        };
        let mut steps: Vec<Step> = Vec::new();
        if logits {
            steps.push(Step::new(kernels.route));
        }
        steps.extend(kernels.order.into_iter().map(routed));
        let mut x = BufferRole::X;
        if on_input {
            steps.push(routed(kernels.weigh));
            x = BufferRole::Weighted;
        }
        let rows = Count::token_blocks(local, slots) * slots;
        let gate = Step::new(kernels.gate);
        let sizes = [Count::M, rows];
        let ends = [(x, BufferRole::Summed), (BufferRole::Hidden, BufferRole::Parts)];
        let mut between = Some(gate);
        for (product, ((from, to), choice)) in ends.into_iter().zip([&gate_up, &down]).enumerate() {
            let operand = source.operand(&requests[product]).map_err(ProductError::from)?;
            let read = if operand.is_empty() { from } else { BufferRole::Operand };
            if product == 1 && !operand.is_empty() {
                self.groups_of_rows(key.element)?;
            }
            for kernel in operand {
                let step = Step::new(kernel).of_product(product).over(sizes[product].clone());
                steps.push(step.bound(BufferRole::X, from));
            }
            let step = Step::new(choice.choice.key.clone()).of_product(product);
            steps.push(step.bound(BufferRole::X, read).bound(BufferRole::Y, to));
            steps.extend(between.take());
        }
        steps.push(routed(kernels.combine));
        Ok((steps, [gate_up, down], most))
    }

    /// Refuses scales of groups of some rows of h: its rows are sorted by expert, with empty ones among them.
    fn groups_of_rows(&self, element: FloatFormat) -> Result<(), ExpertError> {
        let choice = self.schemes[1].activation_for(element);
        let some = |quantiser: &Quantiser| {
            quantiser.scales.iter().any(|level| matches!(level.group.rows, GroupSize::Each(2..)))
        };
        match choice.and_then(|choice| choice.quantiser().map(some)) {
            Some(true) => {
                let why = "scales of groups of several rows of the second product's input";
                Err(ExpertError::NotScheduled(why.to_owned()))
            }
            _ => Ok(()),
        }
    }
}
