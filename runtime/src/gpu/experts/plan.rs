//! The launches of an expert layer for M tokens: kernels in their order, the buffers between them, and the
//! chunks into which tokens are cut.

use std::fmt;
use std::sync::{Arc, PoisonError};

use quantloom_dsl::Quantiser;
use quantloom_dsl::experts::{ExpertProduct, OperandOf};
use quantloom_dsl::format::{F32, FloatFormat};
use quantloom_dsl::layout::GroupSize;

use super::layer::{GpuExpertLayer, Products};
use crate::experts::{ExpertError, ExpertsNotScheduled};
use crate::float_mode::standard;
use crate::gpu::executor::Executor;
use crate::gpu::plan::{Chunk, LaunchStep, WorkspaceBytes};
use crate::gpu::products::{ExpertRequest, Request, Stacked, StackedChoice};
use crate::op::{NotScheduled, ProductError};
use crate::source::{BufferRole, Count, KernelKey, ProblemSize, Refusal};

/// Slots of a token block that kernels of every schedule of matrix instructions take.
const COMMON_SLOTS: u64 = 64;

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

impl PlanKey {
    fn order(&self) -> ([[u8; 2]; 2], u64, RoutedBy, Option<[u8; 2]>) {
        let Self { element, output, tokens, routed, shared } = *self;
        let bits = |format: FloatFormat| [format.exponent_bits, format.mantissa_bits];
        ([element, output].map(bits), tokens, routed, shared.map(bits))
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

/// How the two products work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    /// Pairs are not sorted: each is a token block of its own.
    direct: bool,
    /// The first product applies the gate.
    fused: bool,
    /// The second product adds the experts of a token.
    combined: bool,
}

impl Way {
    /// The best first.
    const ALL: [Self; 4] = [
        Self { direct: true, fused: true, combined: true },
        Self { direct: true, fused: true, combined: false },
        Self { direct: false, fused: true, combined: false },
        Self { direct: false, fused: false, combined: false },
    ];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = if self.direct { "pairs as they are" } else { "pairs sorted by expert" };
        let gate =
            if self.fused { "the gate in the first product" } else { "a kernel for the gate" };
        let sum = if self.combined { ", the sum in the second product" } else { "" };
        write!(f, "{pairs}, {gate}{sum}")
    }
}

/// What a call with some tokens launches.
struct Launches {
    steps: Vec<LaunchStep>,
    choices: [StackedChoice; 2],
    /// The type of parts.
    parts: FloatFormat,
    /// The most tokens of such launches.
    most: u64,
    /// The ways that were rejected, each with its reason.
    refused: Vec<String>,
}

/// The most tokens whose pairs are not sorted.
const MOST_UNSORTED: u64 = 8;
/// Pairs over the experts that a call is expected to meet, up to which pairs are not sorted: each reads its expert's
/// weights, which sorted ones of one expert share. Of 128 experts and 8 a token 8 tokens have 1.24 (0.96 of the time of
/// sorted pairs on an H200), of 8 and 2 two tokens 1.14 (0.81), three 1.30 (0.90) and four 1.46 (0.99 to 1.10):
/// docs/performance/experts.md. Other GPUs were not measured.
const MOST_PAIRS_AN_EXPERT: f64 = 1.4;

/// Whether so few tokens of k experts each hardly meet an expert twice, if they may meet any of them.
fn rarely_share_experts(experts: u64, (top_k, tokens): (u64, u64)) -> bool {
    let (experts, top_k, m) = (experts.max(1) as f64, top_k as f64, tokens as f64);
    let met = experts * (1.0 - (1.0 - (top_k / experts).min(1.0)).powf(m));
    tokens <= MOST_UNSORTED && top_k * m <= MOST_PAIRS_AN_EXPERT * met
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
            return Err(ExpertError::product(why));
        }
        let mut most = key.tokens.max(1);
        let (first, launches) = loop {
            let rows = most.min(key.tokens.max(1));
            let launches = self.launches(products, key, rows)?;
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
            break (Arc::new(chunk), launches);
        };
        let rows = first.problem.m;
        if key.tokens > rows && self.spans_tokens(products) {
            let (tokens, most) = (key.tokens, rows);
            let why = NotScheduled::SharedScale { tokens, most };
            return Err(ExpertError::product(why));
        }
        let mut workspace = first.workspace();
        let mut chunks: Vec<(u64, Arc<Chunk<E>>)> = Vec::new();
        let mut at = 0;
        while at < key.tokens {
            let own = rows.min(key.tokens - at);
            let chunk = if own == rows {
                first.clone()
            } else {
                let launches = self.launches(products, key, own)?;
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

    /// Experts of a token: k.
    fn choices_of(&self, routed: RoutedBy) -> u64 {
        match routed {
            RoutedBy::Logits | RoutedBy::Chosen => self.layer.top_k.into(),
            RoutedBy::Batched => 1,
        }
    }

    /// The types that parts of so many pairs may have, the preferred one first: f32, but where these are too many
    /// bytes that of y.
    fn types_of_parts(&self, output: FloatFormat, pairs: u64) -> Vec<FloatFormat> {
        let bytes = pairs.saturating_mul(self.layer.hidden).saturating_mul(4);
        let narrow = output != F32 && bytes > self.most_f32_parts;
        narrow.then_some(output).into_iter().chain([F32]).collect()
    }

    /// The choices of the two products for a way, with rows of the second one of a type, which are weighted or not.
    fn choices(
        &self,
        requests: &[Request<'_>; 2],
        operands: [OperandOf; 2],
        (way, output, weighted): (Way, FloatFormat, bool),
        shared: Option<FloatFormat>,
        (top_k, tokens): (u64, u64),
    ) -> Result<[(Stacked, StackedChoice); 2], ProductError> {
        let source = self.executor.source();
        let gate_up = Stacked {
            product: ExpertProduct::GateUp,
            experts: self.local.into(),
            chosen_from: match self.map {
                Some(_) => self.layer.experts.into(),
                None => self.local.into(),
            },
            shards: self.layer.gate.shards() as u64,
            top_k,
            slots: None,
            gate: way.fused.then_some(self.layer.gate),
            output: if way.fused { requests[0].input_dtype } else { F32 },
            direct: way.direct,
            weighted: false,
            combined: false,
            shared: None,
            operand: operands[0],
        };
        let of_slots = |slots: Option<u64>| {
            let gate_up = Stacked { slots, ..gate_up };
            let first = source.choose_stacked(&requests[0], &gate_up, tokens)?;
            let (product, slots) = (ExpertProduct::Down, Some(first.slots));
            let (gate, combined, operand) = (None, way.combined, operands[1]);
            let shared = shared.filter(|_| combined);
            let down = Stacked {
                product,
                shards: 1,
                slots,
                gate,
                output,
                weighted,
                combined,
                shared,
                operand,
                ..gate_up
            };
            let second = source.choose_stacked(&requests[1], &down, tokens);
            let both = second.map(|second| [(gate_up, first.clone()), (down, second)]);
            Ok::<_, Refusal>((first.slots, both))
        };
        // The second product may have no kernel for as many slots as the first one takes.
        match of_slots(None)? {
            (slots, Err(why)) if slots != COMMON_SLOTS && !way.direct => {
                match of_slots(Some(COMMON_SLOTS)) {
                    Ok((_, Ok(choices))) => Ok(choices),
                    Ok((_, Err(_))) | Err(_) => Err(why.into()),
                }
            }
            (_, choices) => Ok(choices?),
        }
    }

    /// The launches of a call with so many tokens: the first way of [`Way::ALL`] that kernels take.
    fn launches(
        &self,
        products: &Products<E::Memory>,
        key: PlanKey,
        tokens: u64,
    ) -> Result<Launches, ExpertError> {
        let (source, target) = (self.executor.source(), self.executor.target());
        let [first, second] = &products.stacks;
        let requests = [first.request(target), second.request(target)];
        let mut operands = [first.operand, second.operand];
        let mut prepared = [true; 2];
        for (at, (request, operand)) in requests.iter().zip(&mut operands).enumerate() {
            // Experts that read x as it is read it alike.
            if source.operand(request, None).map_err(ProductError::from)?.is_empty() {
                (*operand, prepared[at]) = (OperandOf::Row, false);
            }
        }
        let (local, top_k) = (u64::from(self.local), self.choices_of(key.routed));
        let unsorted = self.map.is_none()
            && key.routed != RoutedBy::Batched
            && rarely_share_experts(local, (top_k, tokens));
        let batched = key.routed == RoutedBy::Batched;
        let on_input = self.layer.weight_on_input && !batched;
        let weighted = !(on_input || batched);
        let (mut refused, mut found) = (Vec::new(), None);
        let ways = Way::ALL.into_iter().filter(|way| unsorted || !way.direct);
        let types = self.types_of_parts(key.output, tokens * top_k);
        let of_way = |way: Way| {
            let types = if way.combined { &[F32][..] } else { &types };
            types.iter().map(move |parts| (way, *parts))
        };
        for (way, parts) in ways.flat_map(of_way) {
            // What is rounded has its weight already, so that it overflows where y does.
            let of = match way.combined {
                true => (way, key.output, weighted),
                false => (way, parts, weighted && parts != F32),
            };
            match self.choices(&requests, operands, of, key.shared, (top_k, tokens)) {
                Ok(choices) => {
                    found = Some(Ok((way, parts, choices)));
                    break;
                }
                Err(why) => {
                    let rounded = if parts == F32 { "" } else { ", rounded parts" };
                    refused.push(format!("not {way}{rounded}: {why}"));
                    found = Some(Err(why));
                }
            }
        }
        let none = || Err(NotScheduled::NoActivation.into());
        let (way, parts, [(of_gate_up, gate_up), (of_down, down)]) = found.unwrap_or_else(none)?;
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
        for (product, ((from, to), choice)) in ends.into_iter().zip([&gate_up, &down]).enumerate() {
            let (request, stacked) = (&requests[product], [&of_gate_up, &of_down][product]);
            let kernel = Some(&choice.choice.key);
            let of_slots = stacked.operand != OperandOf::Row || product == 1 && !way.direct;
            let operand = match (prepared[product], of_slots) {
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
            let step = routed(choice.choice.key.clone()).of_product(product);
            steps.push(step.bound(BufferRole::X, read).bound(BufferRole::Y, to));
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

#[cfg(test)]
mod tests {
    use super::rarely_share_experts;

    /// By uniform routing 8 tokens of top 8 meet 51.6 of 128 experts, 6 of top 8 35.3 of 64.
    #[test]
    fn few_tokens_rarely_share_experts() {
        let few = [(128, (8, 1)), (128, (8, 8)), (8, (2, 3)), (64, (8, 6)), (1, (1, 1))];
        let many = [(128, (8, 9)), (384, (8, 9)), (8, (2, 4)), (64, (8, 7)), (1, (1, 2))];
        assert!(few.into_iter().all(|(experts, of)| rarely_share_experts(experts, of)));
        assert!(!many.into_iter().any(|(experts, of)| rarely_share_experts(experts, of)));
    }
}
