//! The facts of a product: a plan, a shape, and the native form of w's parameters.
//!
//! The plan determines where each scale, zero point and shift is applied. `weight_params` reduces them to at
//! most four kinds of parameters: a scale of each segment's sum or of each weight ([`Problem::scale`]), zero
//! points that dequantisation subtracts ([`Problem::zero`]), a zero-point correction, which multiplies a
//! segment's sum of x or is added to each weight ([`Problem::correction`]), and a per-channel scale ([`Problem::channel_scale`]).
//! Where x has zero points that stay apart from its codes, they multiply the sums of rows of w ([`Problem::row_sum`]).
//! [`Problem::input`] is x as the product reads it. The matrix instruction and the lane map are not facts of
//! the product: a schedule chooses them (`mapping`).

use quantloom_dsl::experts::{ExpertProduct, OperandOf};
use quantloom_dsl::format::{
    BF16, F16, F32, FloatFormat, NUMBER_BF16, NUMBER_F16, NUMBER_F32, Number,
};
use quantloom_dsl::{Accumulate, Accuracy, Activation, BufferRole, Scheme, ZeroPointCorrection};

use super::activation::ActivationProblem;
use super::arrange::{Arranged, Order};
use super::byte_fragments::ByteFragments;
use super::chunk::tile_words;
use super::dequantise::writable;
use super::group_params::GroupParams;
use super::input::{Input, InputScale, ScaleOrder};
use super::mapping::{MainLoop, Mapping, lane_words};
use super::shader;
use super::stack::Stack;
use super::unscheduled::{Unscheduled, UnscheduledPart};
use super::warp_group;
use super::weight_params::{WeightParams, correction_terms};
use crate::ir::Half;
use crate::plan::native::SHARED_BYTES;
use crate::plan::{OperandType, Plan, PlanRange};
use crate::target::{Feature, Target};

mod ranges;

/// The most tiles of rows of a stack: a tile is at least a block, and blocks of rows are the second axis of a
/// grid.
const MOST_ROW_TILES: u32 = 65_535;

/// A product `y[M, N] = x[M, K] w[N, K]^T + bias[N]` with w quantised; the bias may be missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// What is computed, and on which target.
    pub plan: Plan,
    /// Output features.
    pub n: u32,
    /// Input features: columns of w in the product, pads included.
    pub k: u32,
    /// The order of columns, if it is not the stored one.
    pub order: Option<Order>,
    /// Multiplies the sum of a segment, or each weight ([`Problem::scales_sums`]).
    pub scale: Option<GroupParams>,
    /// Subtracted from codes during dequantisation.
    pub zero: Option<GroupParams>,
    /// The zero-point correction: multiplies the sum of x over a segment, or is added to each weight
    /// ([`Problem::corrects_sums`]).
    pub correction: Option<GroupParams>,
    /// Multiplies [`Self::scale`], which has a level of its own then, where both multiply weights.
    pub coarse_scale: Option<GroupParams>,
    /// Multiplies [`Self::correction`], likewise.
    pub coarse_correction: Option<GroupParams>,
    /// Whether there is a per-channel scale: f32, one per row, applied in the epilogue.
    pub channel_scale: bool,
    /// Whether there is the sum of each row of w, f32: x has zero points that are not in its elements ([`Input::zero`]).
    pub row_sum: bool,
    /// Whether there is a bias per row of w, stored as f32.
    pub bias: bool,
    /// x.
    pub input: Input,
    /// Type of y: f32, f16 or bf16.
    pub output: Number,
    /// Type of x before its operand is made, where it is known: f32, f16 or bf16.
    pub input_dtype: Option<FloatFormat>,
    /// The experts whose matrices are stacked; `None` if there is a single matrix.
    pub stack: Option<Stack>,
    /// What another product reads of y, which blocks write in place of y; `None` if they write y.
    pub(super) operand_of_y: Option<Box<ActivationProblem>>,
    /// The mapping to the plan's own instruction, from which schedules begin ([`MainLoop::new`]).
    pub(super) own_mapping: Mapping,
    /// Whether all numbers are in [`Self::param_ranges`]. In bf16 scales multiply the constants of last dequantisation steps
    /// then, where they multiply weights, or stand for their power of two.
    scales_in_range: bool,
    /// The same product as warp groups multiply it, where these read x in another type or order.
    of_warp_groups: Option<Box<Self>>,
    /// The scheme and the activation, for a kernel's name.
    stem: (Scheme, Activation),
}

impl Problem {
    /// The problem of a scheme's product with one of its activations.
    ///
    /// # Errors
    /// If no schedule supports the product.
    pub fn new(
        scheme: &Scheme,
        activation: &Activation,
        target: &'static Target,
        shape: (u32, u32),
    ) -> Result<Self, Unscheduled> {
        Self::in_layout(scheme, activation, target, (shape, false))
    }

    /// The same of a weight in the layout for numbers that are all in [`Self::param_ranges`] (`of_range`), where the layout
    /// depends on that, or in the layout for any.
    ///
    /// Where warp groups do not suit the plan's sums of integers and suit sums of floats, products are floats, unless the scheme
    /// says `accuracy: exact` or `accumulate: i32`: integers take up to twice the time from 32 tokens on, and up to a quarter less
    /// before (measured: docs/performance/warp_group.md).
    ///
    /// # Errors
    /// If no schedule supports the product.
    pub fn in_layout(
        scheme: &Scheme,
        activation: &Activation,
        target: &'static Target,
        (shape, of_range): ((u32, u32), bool),
    ) -> Result<Self, Unscheduled> {
        let plans = PlanRange { of_range, ..PlanRange::default() };
        let this = Self::planned(scheme, activation, target, (shape, plans))?;
        let wanted = scheme.accuracy == Accuracy::Exact || scheme.accumulate == Accumulate::I32;
        let stays = wanted || !target.has(Feature::Wgmma) || warp_group::suits(&this);
        if !this.sums_integers() || stays {
            return Ok(this);
        }
        let floats = PlanRange { integers: false, ..plans };
        let floats = Self::planned(scheme, activation, target, (shape, floats));
        match floats.ok().filter(warp_group::suits) {
            // Where no layout is one for a range, the problem is that for any numbers.
            Some(floats) if of_range && !floats.is_of_range() => {
                Self::in_layout(scheme, activation, target, (shape, false))
            }
            floats => Ok(floats.unwrap_or(this)),
        }
    }

    /// The problem with a plan among some.
    fn planned(
        scheme: &Scheme,
        activation: &Activation,
        target: &'static Target,
        ((n, k), plans): ((u32, u32), PlanRange),
    ) -> Result<Self, Unscheduled> {
        let Arranged { scheme: arranged, activation: of_x, plan, k_tile, order } =
            Arranged::new(scheme, activation, target, plans)?;
        let unscheduled = |part: UnscheduledPart| Unscheduled::Scheme { target: target.name, part };
        let operand = plan.compute.product.weight;
        let unmultiplied = || unscheduled(UnscheduledPart::Products(operand));
        let mapping = Mapping::of_plan(&plan, k_tile).ok_or_else(unmultiplied)?;
        let decodes = if mapping.instruction.is_some() { writable } else { shader::writable };
        if !decodes(&plan.dequant, target) {
            let sequence = Box::new(plan.dequant.clone());
            return Err(unscheduled(UnscheduledPart::Dequantisation(sequence)));
        }
        if scheme.experts.is_some() {
            return Err(unscheduled(UnscheduledPart::Experts));
        }
        let output = match (scheme.output, activation) {
            (Some(output), _) => output,
            (None, Activation::Float(number)) => *number,
            // The output is the type of x, which a quantiser does not determine.
            (None, Activation::Quantised(_)) => NUMBER_BF16,
        };
        written(output, target)?;
        let shape = |what, value, rule| Err(Unscheduled::Shape { what, value, rule });
        if n == 0 || n > 1 << 24 {
            return shape("N", n, "expected 1 to 2^24");
        }
        if k == 0 || k > 1 << 24 {
            return shape("K", k, "expected 1 to 2^24");
        }
        // Words of codes are indexed with 32 bits.
        let words = u64::from(n.div_ceil(plan.native.rows))
            * u64::from(k.div_ceil(plan.native.columns))
            * u64::from(lane_words(&plan) * plan.native.lanes);
        if words > u64::from(u32::MAX) {
            return shape("N", n, "expected fewer rows with so many columns: 2^32 words of codes");
        }
        let WeightParams {
            scale,
            zero,
            correction,
            coarse_scale,
            coarse_correction,
            channel_scale,
        } = WeightParams::of(&arranged, &plan, (n, k), k_tile);
        let changes = order.is_some() || scheme.prescale.is_some();
        let input = Input::new(&of_x, &plan, (k, k_tile), changes);
        let row_sum = input.zero;
        let bias = scheme.bias.is_some();
        let stem = (scheme.clone(), activation.clone());
        let this = Self {
            plan,
            n,
            k,
            order,
            scale,
            zero,
            correction,
            coarse_scale,
            coarse_correction,
            channel_scale,
            row_sum,
            bias,
            input,
            output,
            input_dtype: None,
            stack: None,
            operand_of_y: None,
            own_mapping: mapping,
            scales_in_range: false,
            of_warp_groups: None,
            stem,
        };
        let main = MainLoop::new(&this);
        let apart = |scale: GroupParams| match (this.plan.scale.folded, main.scaled()) {
            (Some(_), _) => scale.shared_out((main.shared_columns() / scale.columns).max(1)),
            (None, Some(scaled)) => scale.shared_out(scaled.apart),
            (None, None) => scale,
        };
        let scale = this.scale.map(apart);
        let correction = match this.corrects_sums() {
            true => this.correction,
            false => this.correction.map(apart),
        };
        let this = Self { scale, correction, ..this };
        let of_warp_groups = this.for_warp_groups().map(Box::new);
        Ok(Self { of_warp_groups, ..this })
    }

    /// The same product as warp groups multiply it; `None` if they read x as other instructions do.
    fn for_warp_groups(&self) -> Option<Self> {
        if !self.target().has(Feature::Wgmma) {
            return None;
        }
        let bytes = self.in_bytes();
        let scales = self.input.scale.and_then(InputScale::columns).is_some() && !self.input.codes;
        if !scales {
            return bytes;
        }
        let this = bytes.unwrap_or_else(|| self.clone());
        let input = Input { scale_order: ScaleOrder::TokenTiles, ..this.input };
        Some(Self { input, ..this })
    }

    /// The same product of the codes' bytes, for warp groups; `None` if these multiply as other instructions do.
    fn in_bytes(&self) -> Option<Self> {
        let (fragments, plan) = ByteFragments::of(&self.plan)?;
        let operand = plan.compute.product.activation;
        let columns = self.k.next_multiple_of(SHARED_BYTES);
        let input = Input { operand, columns, fragments: Some(fragments), ..self.input };
        if fragments == ByteFragments::Whole {
            return Some(Self { plan, input, ..self.clone() });
        }
        let own_mapping = Mapping::of_lanes(&plan.compute.product, SHARED_BYTES)?;
        let this = Self { plan, input, own_mapping, ..self.clone() };
        // One buffer of scales serves all schedules; its layout follows from the k-tile.
        let same = |of: &GroupParams| {
            of.layout(self) == of.layout(&this) && of.words(self) == of.words(&this)
        };
        let of_sums = this.scale.is_none() || this.scales_sums() && this.scale.iter().all(same);
        (of_sums && this.zero.or(this.correction).is_none()).then_some(this)
    }

    /// The same product as warp groups multiply it.
    pub fn of_warp_groups(&self) -> &Self {
        self.of_warp_groups.as_deref().unwrap_or(self)
    }

    /// The same change of the product, and of the product as warp groups multiply it.
    fn changed(mut self, change: impl Fn(&mut Self)) -> Self {
        if let Some(own) = &mut self.of_warp_groups {
            change(own);
        }
        change(&mut self);
        self
    }

    /// The same product with another type of y.
    ///
    /// # Errors
    /// A type that no schedule writes.
    pub fn giving(self, output: Number) -> Result<Self, Unscheduled> {
        written(output, self.target())?;
        Ok(self.changed(|problem| problem.output = output))
    }

    /// The same product of x of a type.
    #[must_use]
    pub fn reading(self, input_dtype: FloatFormat) -> Self {
        self.changed(|problem| problem.input_dtype = Some(input_dtype))
    }

    /// The same product of x as it is given, for the buffers of a kernel that makes its operand itself; `None` if the type of x
    /// is not known.
    pub(super) fn of_given_x(&self) -> Option<Self> {
        let operand = match self.input_dtype? {
            F32 => OperandType::F32,
            F16 => OperandType::F16,
            BF16 => OperandType::Bf16,
            _ => return None,
        };
        let input = Input {
            operand,
            columns: self.k,
            prepared: false,
            scale: None,
            zero: false,
            codes: false,
            fragments: None,
            scale_order: ScaleOrder::Rows,
        };
        Some(Self { input, ..self.clone() })
    }

    /// The operand of x of a type with so many columns, as this product reads it.
    ///
    /// # Errors
    /// An operand that no kernel makes.
    pub fn operand(
        &self,
        input_dtype: Number,
        columns: u32,
    ) -> Result<ActivationProblem, Unscheduled> {
        let (scheme, activation) = &self.stem;
        let (operand, shape) = (self.input.operand, (columns, self.input.columns));
        let (target, gathers) = (self.target(), self.order.is_some());
        let problem = ActivationProblem::new(
            scheme,
            activation,
            input_dtype,
            operand,
            target,
            shape,
            gathers,
        )?;
        if self.input.codes {
            return problem.leaving_codes();
        }
        if self.plan.compute.folds_input {
            return Ok(problem.folding()?.in_fragments(self.input.fragments));
        }
        let segment = self.input.scale.and_then(InputScale::columns);
        let problem = problem.in_segments(segment).in_fragments(self.input.fragments);
        Ok(problem.with_scales_in(self.input.scale_order))
    }

    /// The same product for each matrix of a stack.
    ///
    /// # Errors
    /// A stack without matrices, or one of 2^32 words of codes.
    pub fn stacked(self, stack: Stack) -> Result<Self, Unscheduled> {
        let shape = |what, value, rule| Err(Unscheduled::Shape { what, value, rule });
        if stack.top_k == 0 {
            return shape("top k", stack.top_k, "expected 1 or more");
        }
        if stack.gate.is_some_and(|gate| gate.shards() as u32 != stack.shards) {
            return shape("shards", stack.shards, "expected those of the gate");
        }
        if stack.weighted && stack.product != ExpertProduct::Down {
            return shape("shards", stack.shards, "only rows of pairs are weighted");
        }
        if stack.combined && (stack.product != ExpertProduct::Down || !stack.direct) {
            return shape("top k", stack.top_k, "only rows of pairs that are not sorted are added");
        }
        let of_shared = |own| [F32, F16, BF16].contains(&own) && stack.combined;
        if stack.shared.is_some_and(|own| !of_shared(own)) {
            let rule = "shared experts in f32, f16 or bf16 are added to sums of pairs";
            return shape("top k", stack.top_k, rule);
        }
        if stack.operand == OperandOf::Matrix && stack.together() > 1 {
            let rule = "matrices that a block multiplies together read the same rows of x";
            return shape("shards", stack.shards, rule);
        }
        let matrices = u64::from(stack.experts) * u64::from(stack.shards);
        let words = u64::from(self.row_tiles()) * u64::from(tile_words(&self));
        if matrices == 0 || matrices.saturating_mul(words) > u64::from(u32::MAX) {
            let rule = "expected 1 or more, with fewer than 2^32 words of codes";
            return shape("experts", stack.experts, rule);
        }
        let (n, stacked) = (self.n, self.changed(|problem| problem.stack = Some(stack)));
        if stacked.grid_row_tiles() > MOST_ROW_TILES {
            return shape(
                "N",
                n,
                "expected fewer tiles of rows than the second axis of a grid has blocks",
            );
        }
        Ok(stacked)
    }

    /// The same first product of an expert layer, with a gate, whose blocks write what the second product reads of h in place of h.
    ///
    /// # Errors
    /// Rows of another kind, or an operand that does not follow from the columns of a group alone.
    pub fn writing(self, operand: ActivationProblem) -> Result<Self, Unscheduled> {
        let gated = self.stack.is_some_and(|stack| stack.gate.is_some() && !stack.direct);
        let own = self.output == Number::Float(operand.own) && self.n == operand.k;
        if !gated || !own || operand.columns_of_vectors().is_none() {
            let part = UnscheduledPart::OperandOfResults;
            return Err(Unscheduled::Scheme { target: self.target().name, part });
        }
        Ok(self.changed(|problem| problem.operand_of_y = Some(Box::new(operand.clone()))))
    }

    /// Tiles of rows that the grid's blocks share out: those of a matrix, or of all matrices that a block
    /// multiplies together.
    pub(super) fn grid_row_tiles(&self) -> u32 {
        self.row_tiles() * self.together()
    }

    /// Rows of w that the grid's blocks share out: as [`Self::grid_row_tiles`].
    pub(super) fn grid_rows(&self) -> u32 {
        if self.together() == 1 { self.n } else { self.grid_row_tiles() * self.plan.native.rows }
    }

    /// Matrices that a block multiplies together.
    pub(super) fn together(&self) -> u32 {
        self.stack.map_or(1, Stack::together)
    }

    /// The product with a single matrix of the stack.
    #[must_use]
    pub fn single(&self) -> Self {
        self.clone().changed(|problem| problem.stack = None)
    }

    /// The target.
    pub fn target(&self) -> &'static Target {
        self.plan.target
    }

    /// Tiles of rows of w, padded.
    pub fn row_tiles(&self) -> u32 {
        self.n.div_ceil(self.plan.native.rows)
    }

    /// Chunks of columns in the layout of codes, padded.
    pub fn chunks(&self) -> u32 {
        self.k.div_ceil(self.plan.native.columns)
    }

    /// Words of codes of one lane in a chunk, plane by plane.
    pub fn lane_words(&self) -> u32 {
        lane_words(&self.plan)
    }

    /// Columns of the k-tile by which group parameters are laid out; that of most schedules.
    pub fn k_tile(&self) -> u32 {
        self.own_mapping.k_tile
    }

    /// The compute dtype, if it is a 16-bit float.
    pub fn half(&self) -> Option<Half> {
        match self.input.operand {
            OperandType::F16 => Some(Half::F16),
            OperandType::Bf16 => Some(Half::Bf16),
            _ => None,
        }
    }

    /// Whether the product uses a matrix instruction, and not scalar arithmetic per lane.
    pub fn by_matrix(&self) -> bool {
        self.plan.compute.product.matrix.is_some()
    }

    /// Whether the scale multiplies sums, and not weights during dequantisation.
    pub fn scales_sums(&self) -> bool {
        let by_instruction = self.plan.compute.product.scaling().is_some();
        self.scale.is_some() && self.plan.scale.folded.is_none() && !by_instruction
    }

    /// The group parameters that the product has, each with the role of its buffer, in the order of the buffers.
    pub fn group_params(&self) -> impl Iterator<Item = (BufferRole, GroupParams)> + use<> {
        let all = [
            (BufferRole::Scale, self.scale),
            (BufferRole::Zero, self.zero),
            (BufferRole::Correction, self.correction),
            (BufferRole::CoarseScale, self.coarse_scale),
            (BufferRole::CoarseCorrection, self.coarse_correction),
        ];
        all.into_iter().filter_map(|(role, of)| Some((role, of?)))
    }

    /// Whether the product multiplies the bytes that planes of codes are joined to.
    pub(super) fn joins_to_bytes(&self) -> bool {
        let dequant = &self.plan.dequant;
        dequant.joining().is_some() && dequant.decoding().is_none()
    }

    /// Whether the zero-point correction multiplies sums of x, and is not added to weights during dequantisation.
    pub fn corrects_sums(&self) -> bool {
        self.correction.is_some_and(|correction| !correction.of_weights)
    }

    /// Whether scales of w or of x multiply the sums of segments.
    pub fn scales_segments(&self) -> bool {
        let by_instruction = self.plan.compute.product.scaling().is_some();
        let of_x = self.input.scale.and_then(InputScale::columns).is_some();
        self.scales_sums() || of_x && !by_instruction
    }

    /// Refuses programmatic dependent launch on a target without that feature.
    pub(super) fn refuse_dependent_launch(&self, programmatic: bool) -> Result<(), Unscheduled> {
        let target = self.target();
        if programmatic && !target.has(Feature::GridDependency) {
            return Err(Unscheduled::DependentLaunch(target.name));
        }
        Ok(())
    }

    /// Whether sums are exact integers.
    pub fn sums_integers(&self) -> bool {
        matches!(self.input.operand, OperandType::I8 | OperandType::I4)
    }

    /// The power of two that the sums of a segment, as floats, have to be multiplied with besides their
    /// scales: dequantisation may leave codes a power of two too large (integers lose it when they are
    /// converted to float), and so may the kernel that prepares x.
    pub fn exponent(&self) -> i32 {
        let deficit = self.plan.scale.folded.map_or(0, |folded| folded.exponent_deficit);
        let of_weights =
            if self.sums_integers() { 0 } else { deficit - self.plan.dequant.encoding().1 };
        of_weights - self.plan.compute.exponent
    }

    /// The power of two of the zero-point correction's unit: sums without scales have the magnitude that
    /// dequantisation leaves.
    pub fn correction_exponent(&self) -> i32 {
        let of_sums = if self.scales_sums() { 0 } else { -self.exponent() };
        of_sums - self.plan.compute.exponent
    }

    /// The terms of the zero-point correction: what the sums of dequantised codes lack.
    pub fn correction_terms(&self) -> ZeroPointCorrection {
        correction_terms(&self.plan, self.zero.as_ref())
    }

    /// The name of the product without its shape, as far as it affects which tile is fast: without the
    /// bias, the type of y, and the types of zero points; of x whose elements have their scale, their type alone.
    pub fn product_name(&self) -> String {
        let (scheme, activation) = &self.stem;
        let elements = Activation::Float(self.input.operand.number());
        let of_x = if self.plan.compute.folds_input { &elements } else { activation };
        crate::plan::product_name(scheme, of_x)
    }

    /// The name of a kernel for this product.
    pub fn kernel_name(&self, tile: &str) -> String {
        let (scheme, activation) = &self.stem;
        let bias = if self.bias { "_bias" } else { "" };
        // With a float activation the name already has the type of x.
        let output = match activation {
            Activation::Float(number) if *number == self.output => String::new(),
            _ => format!("_{}", self.output),
        };
        let stack = self.stack.map(Stack::label).unwrap_or_default();
        let scales = if self.scales_in_range { "_in_range" } else { "" };
        let operand = self.operand_of_y.as_deref().map(ActivationProblem::label_of_results);
        let operand = operand.unwrap_or_default();
        let tile = format!("{tile}_n{}k{}{bias}{output}{stack}{scales}{operand}", self.n, self.k);
        crate::plan::kernel_name(scheme, activation, &tile, self.target())
    }
}

/// Refuses types of y that no schedule writes.
fn written(output: Number, target: &'static Target) -> Result<(), Unscheduled> {
    match output {
        NUMBER_F32 | NUMBER_F16 | NUMBER_BF16 => Ok(()),
        _ => {
            let part = UnscheduledPart::Results(output);
            Err(Unscheduled::Scheme { target: target.name, part })
        }
    }
}
