//! The compiler with overrides of free choices, to measure and to verify other tiles, and with a table of tiles that were
//! measured on the device it compiles for.

use std::fmt;
use std::sync::Arc;

use quantloom_dsl::Accuracy;
use quantloom_dsl::format::FloatFormat;
use quantloom_runtime::gpu::{
    Alternatives, Arrangement, ChoiceSource, ChosenKernel, ExpertKernels, ExpertRequest,
    NativeBuffer, ParamRange, Products, RepackKernels, Request, Stacked, StackedAlternatives,
    StackedChoice,
};
use quantloom_runtime::source::{KernelKey, KernelSource, KernelText, Refusal, Schedule};

use super::compile::{INPUT_DTYPE, MAKES_OPERAND, choice, choose_experts, gpu, problem_on, size};
use super::{
    Jit, JitError, Overrides, choose_of_environment, measured_row, measured_row_of_experts,
    of_environment,
};
use crate::schedule::{Case, Chosen, Measured};
use crate::target::Target;

/// Tiles that were measured on one device. They come before those of the compiler's own table
/// ([`crate::schedule::measured_rows`]).
pub trait TileTable: fmt::Debug + Send + Sync {
    /// The fastest tile of a case, if it was measured.
    fn fastest(&self, case: &Case) -> Option<Chosen>;

    /// Keeps the fastest tile of a case, in place of the one before.
    ///
    /// # Errors
    /// Why it cannot be kept.
    fn keep(&self, row: Measured) -> Result<(), Refusal>;

    /// Whether a case that is not in it is measured before its first product.
    fn tunes_at_first_use(&self) -> bool;
}

/// [`Jit`] with overrides, and with a table of measured tiles beside its own.
#[derive(Clone, Debug, Default)]
pub struct JitWithOverrides {
    overrides: Overrides,
    tiles: Option<Arc<dyn TileTable>>,
}

impl JitWithOverrides {
    /// With these overrides.
    pub fn new(overrides: Overrides) -> Self {
        Self { overrides, tiles: None }
    }

    /// With the tiles of a device.
    #[must_use]
    pub fn with_tiles(self, tiles: Arc<dyn TileTable>) -> Self {
        Self { tiles: Some(tiles), ..self }
    }
}

impl KernelSource for JitWithOverrides {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        Jit.text(key)
    }
}

impl Products for JitWithOverrides {
    fn arrangement(&self, request: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Jit.arrangement(request)
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativeBuffer>, Refusal> {
        Jit.native(request)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<ChosenKernel, Refusal> {
        let target = gpu(request.target)?;
        let made = choose_of_environment(request, tokens, self.tiles.as_deref())?;
        Ok(overridden(request, (target, tokens), made, &self.overrides)?)
    }

    fn alternatives(&self, request: &Request<'_>, tokens: u64) -> Result<Alternatives, Refusal> {
        Jit.alternatives(request, tokens)
    }

    fn keep(
        &self,
        request: &Request<'_>,
        tokens: u64,
        fastest: &ChosenKernel,
    ) -> Result<(), Refusal> {
        match &self.tiles {
            Some(tiles) => tiles.keep(measured_row(request, tokens, &fastest.key)?),
            None => Jit.keep(request, tokens, fastest),
        }
    }

    /// Not of exact products, of which a table has no lines.
    fn tunes_at_first_use(&self, request: &Request<'_>) -> bool {
        let asked = self.tiles.as_ref().is_some_and(|tiles| tiles.tunes_at_first_use());
        asked && request.scheme.accuracy != Accuracy::Exact
    }

    fn choose_stacked(
        &self,
        request: &Request<'_>,
        stacked: &Stacked,
        tokens: u64,
    ) -> Result<StackedChoice, Refusal> {
        let overrides = [&of_environment()?, &self.overrides];
        choose_experts(request, stacked, tokens, (self.tiles.as_deref(), &overrides))
    }

    fn alternatives_stacked(
        &self,
        request: &Request<'_>,
        stacked: &Stacked,
        tokens: u64,
    ) -> Result<StackedAlternatives, Refusal> {
        Jit.alternatives_stacked(request, stacked, tokens)
    }

    fn keep_stacked(
        &self,
        request: &Request<'_>,
        stacked: &Stacked,
        tokens: u64,
        fastest: &StackedChoice,
    ) -> Result<(), Refusal> {
        match &self.tiles {
            Some(tiles) => {
                let key = &fastest.choice.key;
                tiles.keep(measured_row_of_experts(request, stacked, tokens, key)?)
            }
            None => Jit.keep_stacked(request, stacked, tokens, fastest),
        }
    }

    fn expert_kernels(
        &self,
        request: &ExpertRequest<'_>,
        slots: u64,
        tokens: u64,
    ) -> Result<ExpertKernels, Refusal> {
        Jit.expert_kernels(request, slots, tokens)
    }

    fn order_with_operand(
        &self,
        request: &Request<'_>,
        product: &KernelKey,
        of: (&ExpertRequest<'_>, u64, u64),
    ) -> Result<Option<KernelKey>, Refusal> {
        Jit.order_with_operand(request, product, of)
    }

    fn product_with_operand(
        &self,
        requests: [&Request<'_>; 2],
        stacked: [&Stacked; 2],
        choices: [&StackedChoice; 2],
    ) -> Result<Option<KernelKey>, Refusal> {
        Jit.product_with_operand(requests, stacked, choices)
    }

    fn operand(
        &self,
        request: &Request<'_>,
        product: Option<&KernelKey>,
    ) -> Result<Vec<KernelKey>, Refusal> {
        Jit.operand(request, product)
    }

    fn operand_stacked(
        &self,
        request: &Request<'_>,
        stacked: &Stacked,
        product: Option<&KernelKey>,
        slots: u64,
    ) -> Result<Vec<KernelKey>, Refusal> {
        Jit.operand_stacked(request, stacked, product, slots)
    }

    fn param_ranges(&self, request: &Request<'_>) -> Result<Vec<ParamRange>, Refusal> {
        Jit.param_ranges(request)
    }

    fn rounds_x(&self, request: &Request<'_>) -> Result<FloatFormat, Refusal> {
        Jit.rounds_x(request)
    }

    fn repack_kernels(
        &self,
        request: &Request<'_>,
        part: &NativeBuffer,
    ) -> Result<RepackKernels, Refusal> {
        Jit.repack_kernels(request, part)
    }
}

/// A choice after overrides of its free choices, if there are any.
///
/// # Errors
/// If the schedule does not support the overrides.
pub(super) fn overridden(
    request: &Request<'_>,
    (target, tokens): (&'static Target, u64),
    made: ChosenKernel,
    overrides: &Overrides,
) -> Result<ChosenKernel, JitError> {
    let mut schedule = made.key.schedule.clone();
    // They follow from what is chosen.
    for name in [MAKES_OPERAND, INPUT_DTYPE] {
        schedule.parameters.remove(name);
    }
    let problem = || problem_on(target, request);
    let replaced = match overrides.instead() {
        Some(name) => {
            let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
            let chosen = Chosen::of(name, &problem()?, tokens)?;
            schedule = Schedule::new(chosen.name(), chosen.parameters());
            true
        }
        None => false,
    };
    if !overrides.apply(&mut schedule)? && !replaced {
        return Ok(made);
    }
    let problem = problem()?;
    let chosen = Chosen::read(&schedule.name, &schedule.parameters)?;
    let chosen = match schedule.parameters.contains_key(MAKES_OPERAND) {
        true => chosen,
        false => chosen.making_operand(&problem, size(tokens)),
    };
    chosen.schedule().checked(&problem)?;
    choice(request, &problem, chosen, ChoiceSource::Override)
}
