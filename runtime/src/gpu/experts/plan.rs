//! The launches of an expert layer for M tokens: kernels in their order, the buffers between them, and the
//! chunks into which tokens are cut.

use std::sync::Arc;

use quantloom_dsl::Quantiser;
use quantloom_dsl::experts::OperandOf;
use quantloom_dsl::format::{F32, FloatFormat};
use quantloom_dsl::layout::GroupSize;

use super::choices::Decision;
use super::layer::{GpuExpertLayer, Products};
use crate::experts::{ExpertError, ExpertsNotScheduled};
use crate::gpu::executor::Executor;
use crate::gpu::plan::{Chunk, LaunchStep, WorkspaceBytes};
use crate::gpu::products::{ExpertRequest, StackedChoice};
use crate::op::{NotScheduled, ProductError};
use crate::source::{BufferRole, Count, KernelKey, ProblemSize, Work};

/// How a call says which experts its tokens meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoutedBy {
    /// The router's logits [M, E], f32: kernels choose.
    Logits,
    /// Ids [M, k], i32, and router weights [M, k], f32.
    Chosen,
    /// Ids `[M]` of experts that are here, one a row of x, with router weights of 1 in the sum.
    Batched,
}

/// What decides the launches of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanKey {
    /// The type of x and h.
    pub element: FloatFormat,
    /// The type of y: that of x, or f32.
    pub output: FloatFormat,
    /// M.
    pub tokens: u64,
    /// Where experts come from.
    pub routed: RoutedBy,
    /// The type of the result of shared experts, if one is added.
    pub shared: Option<FloatFormat>,
}

/// An expert layer with M tokens, ready to be launched: kernels are loaded, grids and sizes are numbers. It
/// keeps the layer's memory and its kernels.
pub struct LayerPlan<E: Executor> {
    pub(super) executor: Arc<E>,
    pub(super) key: PlanKey,
    /// Each chunk with its first token.
    pub(crate) chunks: Vec<(u64, Arc<Chunk<E>>)>,
    workspace: WorkspaceBytes,
    /// The products' choices, of the first chunk.
    pub(super) choices: [StackedChoice; 2],
    /// The type of parts, of the first chunk: no other one has more of them.
    pub(super) parts: FloatFormat,
    /// The launches of the first chunk.
    pub(super) steps: Vec<LaunchStep>,
    /// The ways that were rejected, each with its reason.
    pub(super) refused: Vec<String>,
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
        self.chunks.iter().map(|(_, chunk)| chunk.launches.len()).sum()
    }

    /// The launches of the first chunk, in order; with the rules of their kernels they give a
    /// [`LaunchPlan`](crate::gpu::LaunchPlan).
    pub fn steps(&self) -> &[LaunchStep] {
        &self.steps
    }

    /// The sizes of the first chunk, from which grids and bytes follow; `None` without tokens.
    pub fn sizes(&self) -> Option<ProblemSize> {
        self.chunks.first().map(|(_, chunk)| chunk.problem)
    }

    /// Bytes of an input for all tokens; 0 if the plan does not read it.
    pub fn input_bytes(&self, role: BufferRole) -> u64 {
        let of = |chunk: &Chunk<E>| {
            let mut inputs = chunk.inputs.iter();
            inputs.find(|(known, _)| *known == role).map_or(0, |(_, bytes)| *bytes)
        };
        self.chunks.iter().map(|(_, chunk)| of(chunk)).sum()
    }

    /// Bytes of y.
    pub fn y_bytes(&self) -> u64 {
        self.chunks.iter().map(|(_, chunk)| chunk.y_bytes).sum()
    }
}

/// What a call with some tokens launches.
pub(super) struct Launches {
    pub(super) steps: Vec<LaunchStep>,
    choices: [StackedChoice; 2],
    /// The type of parts.
    parts: FloatFormat,
    /// The most tokens of such launches.
    pub(super) most: u64,
    /// The ways that were rejected, each with its reason.
    refused: Vec<String>,
}

/// The kernels of launches that multiply: that of the first product, which may do more, and that of the second.
pub(super) fn product_kernels(steps: &[LaunchStep]) -> impl Iterator<Item = &KernelKey> {
    let kernels = steps.iter().map(|step| &step.kernel);
    kernels.filter(|kernel| {
        matches!(kernel.work, Work::Product { .. } | Work::ProductWithOperand { .. })
    })
}

impl<E: Executor> GpuExpertLayer<E> {
    /// The launches of a call. The same plan as before for a key that was asked for before.
    ///
    /// The first plan of a kernel compiles and loads it, which no stream may be captured during; so does one that
    /// measures first, where the source of kernels asks for that ([`Products::tunes_at_first_use`](crate::gpu::Products::tunes_at_first_use)).
    /// Engines keep the plan: a launch needs no lock, this call does.
    ///
    /// # Errors
    /// No kernels for such a call, a workspace beyond what the options allow for one token, or what the
    /// device says.
    pub fn plan(&self, key: PlanKey) -> Result<Arc<LayerPlan<E>>, ExpertError> {
        self.plans.get_or_plan(key, || self.planned(key))
    }

    fn planned(&self, key: PlanKey) -> Result<LayerPlan<E>, ExpertError> {
        let products = self.products(key.element)?;
        if key.output != key.element && key.output != F32 {
            let (x, y) = (key.element, key.output);
            let why = NotScheduled::TypeOfY { x, y, rounded: x };
            return Err(ExpertError::product(why));
        }
        let (mut first, mut launches) = self.first_chunk(products, key)?;
        let cut = |most| {
            let cut = key.tokens > most && self.spans_tokens(products);
            let why = NotScheduled::SharedScale { tokens: key.tokens, most };
            if cut { Err(ExpertError::product(why)) } else { Ok(()) }
        };
        cut(first.problem.m)?;
        let rows = PlanKey { tokens: first.problem.m.min(key.tokens), ..key };
        if self.tuned_at_first_use(products, rows, &launches.choices) {
            (first, launches) = self.first_chunk(products, key)?;
            cut(first.problem.m)?;
        }
        let rows = first.problem.m;
        let mut workspace = first.workspace();
        let mut chunks: Vec<(u64, Arc<Chunk<E>>)> = Vec::new();
        let mut at = 0;
        while at < key.tokens {
            let own = rows.min(key.tokens - at);
            let chunk = if own == rows {
                first.clone()
            } else {
                let decision = self.decided(products, key, own)?;
                let launches = self.launches(decision, key, own)?;
                Arc::new(self.chunk(products, &launches.steps, key, own)?)
            };
            workspace = workspace.max(chunk.workspace());
            chunks.push((at, chunk));
            at += own;
        }
        let executor = self.executor.clone();
        let Launches { steps, choices, parts, refused, .. } = launches;
        Ok(LayerPlan { executor, key, chunks, workspace, choices, parts, steps, refused })
    }

    /// The first chunk of a call, which has as many tokens as kernels and the workspace allow, and its launches.
    pub(super) fn first_chunk(
        &self,
        products: &Products<E::Memory>,
        key: PlanKey,
    ) -> Result<(Arc<Chunk<E>>, Launches), ExpertError> {
        let mut most = key.tokens.max(1);
        loop {
            let rows = most.min(key.tokens.max(1));
            let decision = self.decided(products, key, rows)?;
            let launches = self.launches(decision, key, rows)?;
            let limit = launches.most.max(1);
            if rows > limit {
                most = limit;
                continue;
            }
            let chunk = self.chunk(products, &launches.steps, key, rows)?;
            let needed = chunk.workspace().total();
            if needed > self.most_workspace {
                if rows == 1 {
                    let most = self.most_workspace;
                    return Err(ExpertError::Workspace { needed, most });
                }
                most = rows.div_ceil(2);
                continue;
            }
            return Ok((Arc::new(chunk), launches));
        }
    }

    /// Whether a scale of x or h is over several tokens.
    fn spans_tokens(&self, products: &Products<E::Memory>) -> bool {
        let quantisers = self.schemes.iter().map(|scheme| {
            let choice = scheme.activation_for(products.element);
            choice.and_then(|choice| choice.quantiser().cloned())
        });
        quantisers.flatten().any(|quantiser| quantiser.spans_tokens())
    }

    pub(super) fn chunk(
        &self,
        products: &Products<E::Memory>,
        steps: &[LaunchStep],
        key: PlanKey,
        rows: u64,
    ) -> Result<Chunk<E>, ExpertError> {
        let (n, k) = (self.layer.hidden, self.layer.intermediate);
        let problem = ProblemSize {
            experts: self.local.into(),
            routed_rows: rows * self.choices_of(key.routed),
            ..ProblemSize::new(rows, n, k, self.executor.multiprocessors())
        };
        let constant = |product, role| self.constant(products, product, role).cloned();
        Ok(Chunk::assembled(&*self.executor, steps, problem, constant)?)
    }

    /// The launches of a call with so many tokens by what was decided.
    pub(super) fn launches(
        &self,
        decision: Decision<'_>,
        key: PlanKey,
        tokens: u64,
    ) -> Result<Launches, ExpertError> {
        let (source, target) = (self.executor.source(), self.executor.target());
        let Decision { way, parts, requests, prepared, products, choices, refused } = decision;
        let ([of_gate_up, of_down], [gate_up, down]) = (products, choices);
        let (local, top_k) = (u64::from(self.local), self.choices_of(key.routed));
        let batched = key.routed == RoutedBy::Batched;
        let (on_input, weighted) = self.weights(key.routed);
        let slots = gate_up.slots;
        let request_of_layer = ExpertRequest {
            layer: &self.layer,
            experts: if batched { local } else { self.layer.experts.into() },
            local,
            mapped: self.map.is_some() && !batched,
            top_k,
            input_dtype: key.element,
            parts,
            output: key.output,
            target,
            weighted: weighted && !of_down.weighted,
            shared: key.shared,
        };
        let sorted_slots = if way.direct { 0 } else { slots };
        let kernels = source.expert_kernels(&request_of_layer, sorted_slots, tokens);
        let kernels = kernels.map_err(ProductError::from)?;
        // Token blocks have at most L (B - 1) slots more than there are pairs.
        let slots_of_pairs = kernels.most_rows.saturating_sub(local * slots);
        let taken = gate_up.choice.tokens.min(down.choice.tokens);
        let most = taken.min(slots_of_pairs / top_k);
        let logits = key.routed == RoutedBy::Logits;
        let routed = |kernel: KernelKey| match logits {
            false => LaunchStep::new(kernel),
            true => LaunchStep::new(kernel)
                .bound(BufferRole::Ids, BufferRole::RoutedIds)
                .bound(BufferRole::RouterWeights, BufferRole::RoutedWeights),
        };
        let mut steps: Vec<LaunchStep> = Vec::new();
        if logits {
            steps.push(LaunchStep::new(kernels.route));
        }
        let order = kernels.order.into_iter().filter(|_| !way.direct);
        let mut order: Vec<LaunchStep> = order.map(routed).collect();
        let mut x = BufferRole::X;
        if on_input {
            steps.push(routed(kernels.weigh));
            x = BufferRole::Weighted;
        }
        let rows =
            if way.direct { Count::RoutedRows } else { Count::token_blocks(local, slots) * slots };
        let sizes = [Count::M, rows];
        let summed = if way.fused { BufferRole::Hidden } else { BufferRole::Summed };
        let rows_of_down = if way.combined { BufferRole::Y } else { BufferRole::Parts };
        let ends = [(x, summed), (BufferRole::Hidden, rows_of_down)];
        let mut between = (!way.fused).then(|| LaunchStep::new(kernels.gate));
        let first_with_operand = match way.fused && !way.direct && prepared[1] {
            true => source.product_with_operand(
                [&requests[0], &requests[1]],
                [&of_gate_up, &of_down],
                [&gate_up, &down],
            ),
            false => Ok(None),
        };
        let first_with_operand = first_with_operand.map_err(ProductError::from)?;
        for (product, ((from, to), choice)) in ends.into_iter().zip([&gate_up, &down]).enumerate() {
            let (request, stacked) = (&requests[product], [&of_gate_up, &of_down][product]);
            let kernel = Some(&choice.choice.key);
            let of_slots = stacked.operand != OperandOf::Row || product == 1 && !way.direct;
            let of_results = product == 1 && first_with_operand.is_some();
            let operand = match (prepared[product] && !of_results, of_slots) {
                (false, _) => Ok(Vec::new()),
                (true, false) => source.operand(request, kernel),
                (true, true) => source.operand_stacked(request, stacked, kernel, slots),
            };
            let operand = operand.map_err(ProductError::from)?;
            let both = match (of_slots, &order[..]) {
                (false, [_]) if !operand.is_empty() => {
                    let of = (&request_of_layer, sorted_slots, tokens);
                    source.order_with_operand(request, &choice.choice.key, of)
                }
                _ => Ok(None),
            };
            let operand = match both.map_err(ProductError::from)? {
                Some(both) => {
                    order.clear();
                    vec![both]
                }
                None => operand,
            };
            let read = if operand.is_empty() { from } else { BufferRole::Operand };
            if product == 1 && !operand.is_empty() {
                self.groups_of_rows(key.element)?;
            }
            if of_slots {
                steps.append(&mut order);
            }
            for kernel in operand {
                let step = routed(kernel).of_product(product).over(sizes[product].clone());
                steps.push(step.bound(BufferRole::X, from));
            }
            // What needs no order comes before: the product may start while pairs are sorted.
            steps.append(&mut order);
            let with_operand = first_with_operand.clone().filter(|_| product == 0);
            let kernel = with_operand.unwrap_or_else(|| choice.choice.key.clone());
            let read = if of_results { BufferRole::HiddenOperand } else { read };
            let step = routed(kernel).of_product(product);
            let step = step.bound(BufferRole::X, read).bound(BufferRole::Y, to);
            steps.push(match of_results {
                true => step.bound(BufferRole::OperandScale, BufferRole::HiddenScale),
                false => step,
            });
            steps.extend(between.take());
        }
        if !way.combined {
            steps.push(routed(kernels.combine));
        }
        Ok(Launches { steps, choices: [gate_up, down], parts, most, refused })
    }

    /// Refuses scales of groups of some rows of h. Rows of h belong to pairs, and a scheme does not say which
    /// pairs are neighbours: by token, by expert, or with the pairs of experts that are elsewhere between them.
    fn groups_of_rows(&self, element: FloatFormat) -> Result<(), ExpertError> {
        let choice = self.schemes[1].activation_for(element);
        let some = |quantiser: &Quantiser| {
            quantiser.scales.iter().any(|level| matches!(level.group.rows, GroupSize::Each(2..)))
        };
        match choice.and_then(|choice| choice.quantiser().map(some)) {
            Some(true) => Err(ExpertsNotScheduled::RowGroups.into()),
            _ => Ok(()),
        }
    }
}
