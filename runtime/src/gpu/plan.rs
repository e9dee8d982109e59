//! The launch plan of a product or of an expert layer: its launches, the buffers that they share, how large
//! those are.
//!
//! In: the [`LaunchStep`]s that a source of kernels says, and the rules of their kernels. Out: a
//! [`LaunchPlan`], whose sizes are formulas in M, N and K; and, for a number of tokens, a [`ProductPlan`]:
//! loaded kernels, grids, and where in a workspace each buffer is. Any executor runs the steps of a
//! plan on memory of its own (`launch`); an engine on CUDA or HIP gives its own memory and
//! stream (`driver::engine`).

use std::sync::Arc;
use std::thread;

use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{ActivationChoice, Quantiser};

use super::executor::Executor;
use super::products::ChosenKernel;
use super::weight::{GpuWeight, PreparedProduct};
use crate::float_mode::standard;
use crate::op::{NotScheduled, ProductError};
use crate::source::{
    Access, BufferRole, Count, KernelKey, LaunchRule, ParameterKind, ProblemSize, Refusal, Storage,
};

/// One launch of a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchStep {
    /// The kernel.
    pub kernel: KernelKey,
    /// Buffers of the kernel that are others in the plan: what each is to the kernel, and what to the
    /// plan. All others are the plan's buffers of the same role.
    pub bindings: Vec<(BufferRole, BufferRole)>,
    /// The product that it belongs to: 0, or 1 for the second one of an expert layer. Each has its own
    /// weight, and its own operand of x.
    pub product: usize,
    /// M of the kernel, in terms of the plan's.
    pub rows: Count,
}

impl LaunchStep {
    /// A launch whose buffers have the same roles in the plan as in the kernel.
    pub fn new(kernel: KernelKey) -> Self {
        Self { kernel, bindings: Vec::new(), product: 0, rows: Count::M }
    }

    /// The same for another product of the plan.
    #[must_use]
    pub fn of_product(self, product: usize) -> Self {
        Self { product, ..self }
    }

    /// The same with another number of rows as M.
    #[must_use]
    pub fn over(self, rows: Count) -> Self {
        Self { rows, ..self }
    }

    /// The same with one buffer of the kernel bound to a buffer of another role.
    #[must_use]
    pub fn bound(mut self, own: BufferRole, in_plan: BufferRole) -> Self {
        self.bindings.push((own, in_plan));
        self
    }

    fn role_in_plan(&self, own: BufferRole) -> BufferRole {
        let bound = self.bindings.iter().find(|(of_kernel, _)| *of_kernel == own);
        bound.map_or(own, |(_, in_plan)| *in_plan)
    }

    /// The product whose buffer of this role it uses.
    fn product_of(&self, role: BufferRole) -> usize {
        if belongs_to_product(role) { self.product } else { 0 }
    }
}

/// The kernels of launches. Those that are not loaded yet are compiled side by side, each by a thread of its own: a call has
/// few kernels, and each takes tens of milliseconds. What fails on another thread fails again on this one, which says why.
fn kernels<E: Executor>(executor: &E, steps: &[LaunchStep]) -> Result<Vec<E::Kernel>, E::Error> {
    let mut missing: Vec<&KernelKey> = Vec::new();
    for LaunchStep { kernel, .. } in steps {
        if !missing.contains(&kernel) && !executor.is_loaded(kernel) {
            missing.push(kernel);
        }
    }
    if let [first, others @ ..] = &missing[..] {
        // What is said of a kernel goes where this thread's words go.
        let told = tracing::dispatcher::get_default(Clone::clone);
        let load = |kernel: &KernelKey| drop(standard(|| executor.kernel(kernel)));
        thread::scope(|scope| {
            for kernel in others {
                scope.spawn(|| tracing::dispatcher::with_default(&told, || load(kernel)));
            }
            load(first);
        });
    }
    steps.iter().map(|step| executor.kernel(&step.kernel)).collect()
}

/// Whether each product of a plan has a buffer of this role; otherwise there is one a plan.
fn belongs_to_product(role: BufferRole) -> bool {
    match role {
        BufferRole::Codes
        | BufferRole::Scale
        | BufferRole::Zero
        | BufferRole::Correction
        | BufferRole::CoarseScale
        | BufferRole::CoarseCorrection
        | BufferRole::ChannelScale
        | BufferRole::RowSum
        | BufferRole::Bias
        | BufferRole::Operand
        | BufferRole::OperandScale
        | BufferRole::ColumnOrder
        | BufferRole::InputScale(_)
        | BufferRole::InputZero
        | BufferRole::Prescale
        | BufferRole::Extremes
        | BufferRole::GroupScale
        | BufferRole::GroupZero
        | BufferRole::PartialSums
        | BufferRole::Arrivals => true,
        BufferRole::X
        | BufferRole::Y
        | BufferRole::Order
        | BufferRole::Logits
        | BufferRole::Ids
        | BufferRole::RouterWeights
        | BufferRole::RoutedIds
        | BufferRole::RoutedWeights
        | BufferRole::ExpertMap
        | BufferRole::ScoreBias
        | BufferRole::PairCounts
        | BufferRole::Weighted
        | BufferRole::Summed
        | BufferRole::Hidden
        | BufferRole::HiddenOperand
        | BufferRole::HiddenScale
        | BufferRole::Parts
        | BufferRole::Shared => false,
    }
}

/// A buffer of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanBuffer {
    /// What it is to the product.
    pub role: BufferRole,
    /// The product, if each has one.
    pub product: usize,
    /// The bytes that the launches touch.
    pub bytes: Count,
}

/// A launch of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLaunch {
    /// The kernel.
    pub kernel: KernelKey,
    /// The place in [`LaunchPlan::buffers`] of each buffer of the kernel, in the order of its rule,
    /// and what the kernel does with that buffer.
    pub slots: Vec<(usize, Access)>,
}

/// What a product launches, for any sizes that its kernels take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// The buffers, each role of each product once.
    pub buffers: Vec<PlanBuffer>,
    /// The launches, in order.
    pub launches: Vec<PlanLaunch>,
}

/// Steps that are not a plan: a fault of their source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// A buffer without a role.
    #[error("the buffer `{0}` is none of a product's")]
    Unknown(String),
    /// A buffer that several parameters of one kernel are, one of which writes.
    #[error("the buffer `{0}` is bound twice in a launch that writes it")]
    Twice(BufferRole),
    /// A buffer of the weight or of the caller that a kernel writes.
    #[error("the buffer `{0}` is written, and belongs to the weight or is x")]
    Written(BufferRole),
    /// A buffer that is read before any launch has written it.
    #[error("the buffer `{0}` is read, and no launch before wrote it")]
    NotWritten(BufferRole),
}

impl LaunchPlan {
    /// The plan of steps, each with the rule of its kernel.
    ///
    /// # Errors
    /// Steps that do not fit together.
    pub fn new<'s>(
        steps: impl IntoIterator<Item = (&'s LaunchStep, &'s LaunchRule)>,
    ) -> Result<Self, PlanFault> {
        let mut plan = Self { buffers: Vec::new(), launches: Vec::new() };
        for (step, rule) in steps {
            let known = plan.buffers.len();
            let mut slots = Vec::new();
            for parameter in &rule.parameters {
                let ParameterKind::Buffer { access, bytes, role, .. } = &parameter.kind else {
                    continue;
                };
                let unknown = || PlanFault::Unknown(parameter.name.clone());
                let role = step.role_in_plan(role.ok_or_else(unknown)?);
                let bytes = bytes.with_rows(&step.rows);
                let buffer = PlanBuffer { role, product: step.product_of(role), bytes };
                let at = plan.place(buffer, *access, known)?;
                let twice = slots.iter().find(|(other, _)| *other == at);
                if twice.is_some_and(|(_, other)| (*access, *other) != (Access::Read, Access::Read))
                {
                    return Err(PlanFault::Twice(role));
                }
                slots.push((at, *access));
            }
            plan.launches.push(PlanLaunch { kernel: step.kernel.clone(), slots });
        }
        Ok(plan)
    }

    /// The place of a buffer that a launch uses; `known` buffers are of launches before.
    fn place(
        &mut self,
        buffer: PlanBuffer,
        access: Access,
        known: usize,
    ) -> Result<usize, PlanFault> {
        let role = buffer.role;
        let same = |known: &PlanBuffer| (known.role, known.product) == (role, buffer.product);
        match (role.storage(), access) {
            (Storage::Weight | Storage::Input, Access::Write | Access::ReadWrite) => {
                return Err(PlanFault::Written(role));
            }
            (Storage::Output | Storage::Scratch, Access::Read)
                if !self.buffers[..known].iter().any(same) =>
            {
                return Err(PlanFault::NotWritten(role));
            }
            _ => {}
        }
        match self.buffers.iter().position(same) {
            Some(at) => {
                let known = &mut self.buffers[at];
                if known.bytes != buffer.bytes {
                    known.bytes = known.bytes.clone().max(buffer.bytes);
                }
                Ok(at)
            }
            None => {
                self.buffers.push(buffer);
                Ok(self.buffers.len() - 1)
            }
        }
    }
}

/// The workspace that launches need, in bytes.
///
/// One region serves every product on a stream. Its first bytes are counters: they are 0 before the
/// first launch, and each launch leaves them 0. The rest is scratch, whose contents do not matter.
/// Counters are counted from the region's beginning and scratch from its end, so that a region for
/// several products needs the most counters and the most scratch of any of them ([`Self::max`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkspaceBytes {
    /// Counters at the beginning, which are 0 between launches.
    pub counters: u64,
    /// Scratch at the end.
    pub scratch: u64,
}

/// What the places in a workspace are multiples of, in bytes.
pub(crate) const WORKSPACE_ALIGN: u64 = 256;

impl WorkspaceBytes {
    /// All of it.
    pub const fn total(self) -> u64 {
        self.counters.saturating_add(self.scratch)
    }

    /// What serves both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        let counters = self.counters.max(other.counters);
        Self { counters, scratch: self.scratch.max(other.scratch) }
    }
}

/// Where a buffer of a launch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferLocation {
    /// One of the weight's, by its place among the constants.
    Constant(usize),
    /// The caller's, such as x.
    Input(BufferRole),
    /// The caller's y.
    Y,
    /// One of the workspace, by its place there.
    Workspace(usize),
}

/// A buffer in a workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkspaceBuffer {
    pub(crate) storage: Storage,
    pub(crate) bytes: u64,
    /// Counters: bytes from the beginning of a workspace. Scratch: bytes back from its end.
    pub(crate) offset: u64,
}

/// A launch with its sizes.
pub(crate) struct ReadyLaunch<E: Executor> {
    pub(crate) ready: E::Ready,
    pub(crate) slots: Vec<(BufferLocation, Access)>,
}

/// The launches of one kernel choice: rows of x that one launch of each takes.
pub(crate) struct Chunk<E: Executor> {
    pub(super) problem: ProblemSize,
    pub(crate) launches: Vec<ReadyLaunch<E>>,
    /// What the launches read of the weights.
    pub(crate) constants: Vec<Constant<E::Memory>>,
    pub(crate) workspace_buffers: Vec<WorkspaceBuffer>,
    /// What the caller gives, and its bytes.
    pub(crate) inputs: Vec<(BufferRole, u64)>,
    pub(crate) y_bytes: u64,
}

/// A buffer of a prepared weight, of one of a plan's products.
pub(crate) struct Constant<M> {
    pub(super) role: BufferRole,
    pub(crate) memory: Arc<M>,
}

impl<E: Executor> Chunk<E> {
    /// The launches of steps for a problem. `constant` gives the memory of a product's weight.
    ///
    /// # Errors
    /// Steps that are not a plan, or what the device says of a kernel.
    pub(super) fn assembled(
        executor: &E,
        steps: &[LaunchStep],
        problem: ProblemSize,
        constant: impl Fn(usize, BufferRole) -> Option<Arc<E::Memory>>,
    ) -> Result<Self, ProductError> {
        let kernels = kernels(executor, steps).map_err(Into::into)?;
        let rules = kernels.iter().map(|kernel| executor.rule(kernel));
        let fault = |fault: PlanFault| ProductError::from(Refusal::Fault(Arc::new(fault)));
        let plan = LaunchPlan::new(steps.iter().zip(rules)).map_err(fault)?;
        let (mut constants, mut workspace_buffers, mut inputs) =
            (Vec::new(), Vec::new(), Vec::new());
        let (mut counters, mut scratch, mut y_bytes) = (0, 0, 0);
        let mut locations = Vec::new();
        for &PlanBuffer { role, product, ref bytes } in &plan.buffers {
            // A formula that gives no number is refused by its kernel, below, with its name.
            let bytes = bytes.of(&problem).unwrap_or(0);
            let mut workspace_buffer = |storage, offset| {
                workspace_buffers.push(WorkspaceBuffer { storage, bytes, offset });
                BufferLocation::Workspace(workspace_buffers.len() - 1)
            };
            let padded = bytes.checked_next_multiple_of(WORKSPACE_ALIGN).unwrap_or(bytes);
            locations.push(match role.storage() {
                Storage::Weight => {
                    let none = || fault(PlanFault::Unknown(role.to_string()));
                    let memory = constant(product, role).ok_or_else(none)?;
                    constants.push(Constant { role, memory });
                    BufferLocation::Constant(constants.len() - 1)
                }
                Storage::Input => {
                    inputs.push((role, bytes));
                    BufferLocation::Input(role)
                }
                Storage::Output => {
                    y_bytes = bytes;
                    BufferLocation::Y
                }
                Storage::Scratch => {
                    scratch += padded;
                    workspace_buffer(Storage::Scratch, scratch)
                }
                Storage::Counters => {
                    counters += padded;
                    workspace_buffer(Storage::Counters, counters - padded)
                }
            });
        }
        let mut launches = Vec::new();
        for (step, (kernel, launch)) in steps.iter().zip(kernels.iter().zip(&plan.launches)) {
            // A number of rows that is none is refused by the kernel as well.
            let problem = ProblemSize { m: step.rows.of(&problem).unwrap_or(0), ..problem };
            let ready = executor.ready(kernel, &problem).map_err(Into::into)?;
            let slots = launch.slots.iter().map(|(at, access)| (locations[*at], *access)).collect();
            launches.push(ReadyLaunch { ready, slots });
        }
        Ok(Self { problem, launches, constants, workspace_buffers, inputs, y_bytes })
    }

    pub(super) fn workspace(&self) -> WorkspaceBytes {
        let most = |storage| {
            let of = self.workspace_buffers.iter().filter(|buffer| buffer.storage == storage);
            let end = |buffer: &WorkspaceBuffer| match storage {
                Storage::Counters => buffer.offset + buffer.bytes,
                _ => buffer.offset,
            };
            of.map(end).max().unwrap_or(0).next_multiple_of(WORKSPACE_ALIGN)
        };
        WorkspaceBytes { counters: most(Storage::Counters), scratch: most(Storage::Scratch) }
    }
}

/// A product with M tokens of one type, ready to be launched: kernels are loaded, grids and sizes are
/// numbers. It keeps the weight's memory and its kernels.
///
/// See [`GpuWeight::plan`], and for an engine on CUDA or HIP [`ProductPlan::launch`](#method.launch).
pub struct ProductPlan<E: Executor> {
    pub(super) executor: Arc<E>,
    pub(super) element: FloatFormat,
    pub(super) output: FloatFormat,
    pub(super) shape: Shape,
    pub(super) tokens: u64,
    /// Each with its first row.
    pub(crate) chunks: Vec<(u64, Arc<Chunk<E>>)>,
    workspace: WorkspaceBytes,
}

impl<E: Executor> ProductPlan<E> {
    /// The executor of the weight.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// M: rows of x and y.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The type of x.
    pub fn element(&self) -> FloatFormat {
        self.element
    }

    /// The type of y.
    pub fn output(&self) -> FloatFormat {
        self.output
    }

    /// Bytes of x: M rows of K elements without gaps.
    pub fn x_bytes(&self) -> u64 {
        self.tokens * self.row_bytes().0
    }

    /// Bytes of y: M rows of N elements without gaps.
    pub fn y_bytes(&self) -> u64 {
        self.tokens * self.row_bytes().1
    }

    /// K: elements of a row of x.
    pub fn columns(&self) -> u64 {
        self.shape.k
    }

    /// Bytes of a row of x and of y.
    pub(crate) fn row_bytes(&self) -> (u64, u64) {
        let row =
            |columns: u64, format: FloatFormat| columns * u64::from(format.bits()).div_ceil(8);
        (row(self.shape.k, self.element), row(self.shape.n, self.output))
    }

    /// The workspace that a launch needs.
    pub fn workspace(&self) -> WorkspaceBytes {
        self.workspace
    }

    /// Kernels that a launch of the plan queues.
    pub fn launches(&self) -> usize {
        self.chunks.iter().map(|(_, chunk)| chunk.launches.len()).sum()
    }
}

impl<E: Executor> GpuWeight<E> {
    /// The product with M tokens of a type, its kernels loaded. The same plan as before for an M that
    /// was asked for before.
    ///
    /// The first plan of a kernel compiles and loads it, which no stream may be captured during; see
    /// [`GpuWeight::warm`]. Any further plan with loaded kernels takes microseconds of the host and
    /// asks nothing of the device. Engines keep the plan: a launch needs no lock, this call does.
    ///
    /// # Errors
    /// No product of that type, or no kernel for so many tokens; what the device says, such as that the
    /// stream is captured and the kernel is not loaded.
    pub fn plan(
        &self,
        element: FloatFormat,
        tokens: u64,
    ) -> Result<Arc<ProductPlan<E>>, ProductError> {
        let product = self.product(element)?;
        product.plans.get_or_plan(tokens, || self.planned(product, tokens))
    }

    /// Compiles and loads all kernels that products with these numbers of tokens need, so that later
    /// plans load nothing: before a stream is captured, and before the first request.
    ///
    /// # Errors
    /// See [`GpuWeight::plan`].
    pub fn warm(&self, element: FloatFormat, tokens: &[u64]) -> Result<(), ProductError> {
        tokens.iter().try_for_each(|tokens| self.plan(element, *tokens).map(drop))
    }

    fn planned(
        &self,
        product: &PreparedProduct<E>,
        tokens: u64,
    ) -> Result<ProductPlan<E>, ProductError> {
        let element = product.element;
        let choice = |rows| self.choice(element, rows);
        let most = match tokens {
            0 => 1,
            tokens => choice(tokens)?.tokens.max(1),
        };
        let quantiser = self.scheme.activation_for(element).and_then(ActivationChoice::quantiser);
        if tokens > most && quantiser.is_some_and(Quantiser::spans_tokens) {
            return Err(NotScheduled::SharedScale { tokens, most }.into());
        }
        let mut chunks: Vec<(u64, Arc<Chunk<E>>)> = Vec::new();
        let mut first = 0;
        while first < tokens {
            let rows = most.min(tokens - first);
            let alike = chunks.iter().find(|(_, chunk)| chunk.problem.m == rows);
            let chunk = match alike {
                Some((_, chunk)) => chunk.clone(),
                None => Arc::new(self.chunk(product, &choice(rows)?, rows)?),
            };
            chunks.push((first, chunk));
            first += rows;
        }
        let sizes = chunks.iter().map(|(_, chunk)| chunk.workspace());
        let workspace = sizes.fold(WorkspaceBytes::default(), WorkspaceBytes::max);
        let (executor, output, shape) = (self.executor.clone(), product.output, self.shape);
        Ok(ProductPlan { executor, element, output, shape, tokens, chunks, workspace })
    }

    /// The launches of a choice for so many rows of x.
    pub(super) fn chunk(
        &self,
        product: &PreparedProduct<E>,
        choice: &ChosenKernel,
        rows: u64,
    ) -> Result<Chunk<E>, ProductError> {
        if rows > choice.tokens {
            return Err(NotScheduled::Rows { rows, most: choice.tokens }.into());
        }
        let executor = &*self.executor;
        let steps = executor.source().steps(&self.request(product), choice)?;
        let Shape { n, k, .. } = self.shape;
        let problem = ProblemSize::new(rows, n, k, executor.multiprocessors());
        Chunk::assembled(executor, &steps, problem, |_, role| self.constant(product, role).cloned())
    }

    /// The memory of a constant buffer of a product.
    pub(super) fn constant<'w>(
        &'w self,
        product: &'w PreparedProduct<E>,
        role: BufferRole,
    ) -> Option<&'w Arc<E::Memory>> {
        match role {
            BufferRole::ColumnOrder => product.order.as_ref().map(|order| &order.memory),
            BufferRole::InputScale(_) | BufferRole::InputZero | BufferRole::Prescale => {
                let mut inputs = self.static_inputs.iter();
                inputs.find(|(known, _)| *known == role).map(|(_, memory)| memory)
            }
            role => {
                let mut parts = product.parts.iter();
                parts.find(|part| part.native.role == role).map(|part| &part.memory)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::format::{BF16, Number};
    use quantloom_dsl::parse;

    use super::*;
    use crate::source::{Parameter, Schedule, Work};

    fn step(name: &str) -> LaunchStep {
        let text = "w { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], \
                    activation: bf16 }";
        let scheme = parse(text).unwrap();
        let work = Work::product(&scheme, &scheme.activations[0], Number::Float(BF16));
        let (schedule, target) = (Schedule::new(name, []), "sm_90a".to_owned());
        LaunchStep::new(KernelKey { work, schedule, target })
    }

    fn rule(parameters: &[(BufferRole, Access, Count)]) -> LaunchRule {
        let parameters = parameters.iter();
        let parameters =
            parameters.map(|(role, access, bytes)| Parameter::of(*role, *access, bytes.clone()));
        LaunchRule::plain(1, 32, parameters.collect())
    }

    fn x() -> (BufferRole, Access, Count) {
        (BufferRole::X, Access::Read, Count::M * Count::K * 2)
    }

    #[test]
    fn the_operand_is_what_the_product_reads_as_x() {
        let made = rule(&[x(), (BufferRole::Operand, Access::Write, Count::M * Count::K)]);
        let product = rule(&[
            (BufferRole::Codes, Access::Read, Count::N * Count::K),
            (BufferRole::X, Access::Read, Count::M * 100),
            (BufferRole::Y, Access::Write, Count::M * Count::N * 2),
        ]);
        let steps = [step("made"), step("product").bound(BufferRole::X, BufferRole::Operand)];
        let plan = LaunchPlan::new(steps.iter().zip([&made, &product])).unwrap();
        let roles: Vec<BufferRole> = plan.buffers.iter().map(|buffer| buffer.role).collect();
        use BufferRole::{Codes, Operand, X, Y};
        assert_eq!(roles, [X, Operand, Codes, Y]);
        let slots = plan.launches.iter().map(|launch| launch.slots.clone());
        let (read, write) = (Access::Read, Access::Write);
        let expected = [vec![(0, read), (1, write)], vec![(2, read), (1, read), (3, write)]];
        assert_eq!(slots.collect::<Vec<_>>(), expected);
        // As large as the one that touches more of it.
        for (k, bytes) in [(64, 300), (128, 384)] {
            let problem = ProblemSize::new(3, 41, k, 1);
            assert_eq!(plan.buffers[1].bytes.of(&problem), Some(bytes));
        }
    }

    #[test]
    fn steps_that_do_not_fit_together_are_refused() {
        let fault = |rule: LaunchRule| LaunchPlan::new([(&step("one"), &rule)]).unwrap_err();
        let bytes = || Count::Fixed(16);
        let of = |role, access| rule(&[(role, access, bytes())]);
        use BufferRole::{Arrivals, Codes, Operand, X, Y};
        assert_eq!(fault(of(Codes, Access::Write)), PlanFault::Written(Codes));
        assert_eq!(fault(of(X, Access::ReadWrite)), PlanFault::Written(X));
        assert_eq!(fault(of(Operand, Access::Read)), PlanFault::NotWritten(Operand));
        // A launch does not write for itself.
        let both = [(Operand, Access::Write, bytes()), (Operand, Access::Read, bytes())];
        assert_eq!(fault(rule(&both)), PlanFault::NotWritten(Operand));
        let twice = [(Y, Access::Write, bytes()), (Y, Access::Write, bytes())];
        assert_eq!(fault(rule(&twice)), PlanFault::Twice(Y));
        let unknown = LaunchRule::plain(1, 32, vec![Parameter::buffer("z", Access::Read, 16)]);
        assert_eq!(fault(unknown), PlanFault::Unknown("z".to_owned()));
        // What is read alone may be bound twice, and counters are there before.
        assert!(LaunchPlan::new([(&step("one"), &rule(&[x(), x()]))]).is_ok());
        assert!(LaunchPlan::new([(&step("one"), &of(Arrivals, Access::ReadWrite))]).is_ok());
    }

    #[test]
    fn a_workspace_for_several_has_the_most_of_each_part() {
        let one = WorkspaceBytes { counters: 256, scratch: 4096 };
        let other = WorkspaceBytes { counters: 1024, scratch: 512 };
        assert_eq!(one.max(other), WorkspaceBytes { counters: 1024, scratch: 4096 });
        assert_eq!(one.max(other).total(), 5120);
    }
}
