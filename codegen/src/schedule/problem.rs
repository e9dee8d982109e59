//! The facts of a product: a plan, a shape, and the native form of w's parameters.
//!
//! The plan says where each scale, zero point and shift is applied. `weight_params` turns them into at most
//! four kinds of parameters: a factor of each group's sum or of each weight ([`Problem::scale`]), zero
//! points that decoding subtracts ([`Problem::zero`]), a zero-point correction, which multiplies a
//! group's sum of x ([`Problem::correction`]), and a per-channel scale ([`Problem::channel_scale`]).
//! [`Problem::input`] is x as the product reads it. The matrix instruction and the lane map are not facts
//! of the product: a schedule chooses them (`mapping`).

use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16, NUMBER_F32, Number};
use quantloom_dsl::{Activation, Scheme, ZeroPointCorrection};

use super::arrange::{Arranged, Order};
use super::dequantise::writable;
use super::group_params::GroupParams;
use super::input::Input;
use super::mapping::{MainLoop, Mapping, lane_words};
use super::shader;
use super::weight_params::{WeightParams, correction_terms};
use crate::ir::Half;
use crate::plan::{Operand, Plan, Refusal};
use crate::target::{Feature, Target};

/// Why the schedules of this version do not take a problem.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unscheduled {
    /// There is no plan.
    #[error(transparent)]
    NoPlan(#[from] Refusal),
    /// A part of the scheme that no schedule handles yet.
    #[error("no schedule on {target} handles {what}")]
    Scheme {
        /// The target.
        target: &'static str,
        /// The part.
        what: String,
    },
    /// A shape that the schedules do not take.
    #[error("{what} = {value}: {rule}")]
    Shape {
        /// N, K, M.
        what: &'static str,
        /// Its value.
        value: u32,
        /// What is expected.
        rule: &'static str,
    },
    /// A tile that the target or the schedule does not take.
    #[error("tile: {0}")]
    Tile(String),
}

/// A product `y[M, N] = x[M, K] w[N, K]^T + bias[N]` with w quantised; the bias may be missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// What is computed, and on which target.
    pub plan: Plan,
    /// Output features.
    pub n: u32,
    /// Input features: columns of w as the product takes them.
    pub k: u32,
    /// The order of columns, if they do not stay as they are stored.
    pub order: Option<Order>,
    /// Multiplies the sum of a segment of columns, or each weight of it ([`Problem::scales_sums`]).
    pub scale: Option<GroupParams>,
    /// Taken off codes while they are decoded.
    pub zero: Option<GroupParams>,
    /// Multiplies the sum of x over a segment of columns.
    pub correction: Option<GroupParams>,
    /// Whether a number per row, f32, multiplies the finished sum.
    pub channel_scale: bool,
    /// Whether there is a bias per row of w, stored as f32.
    pub bias: bool,
    /// x.
    pub input: Input,
    /// Type of y: f32, f16 or bf16.
    pub output: Number,
    /// The mapping to the plan's own instruction, by which numbers of groups are laid out, in whole
    /// k-tiles; and by which schedules multiply that choose no other one.
    pub mapping: Mapping,
    /// The part of a kernel's name that says what is computed.
    stem: (Scheme, Activation),
}

impl Problem {
    /// Poses the product of a scheme with one of its activations.
    ///
    /// # Errors
    /// What the schedules do not handle.
    pub fn new(
        scheme: &Scheme,
        activation: &Activation,
        target: &'static Target,
        (n, k): (u32, u32),
    ) -> Result<Self, Unscheduled> {
        let Arranged { scheme: arranged, activation: of_x, plan, k_tile, order } =
            Arranged::new(scheme, activation, target)?;
        let unscheduled =
            |what: &str| Unscheduled::Scheme { target: target.name, what: what.into() };
        let operand = plan.compute.product.weight;
        let unmultiplied = || unscheduled(&format!("products in {operand}"));
        let mapping = Mapping::of_plan(&plan, k_tile).ok_or_else(unmultiplied)?;
        let decodes = if mapping.instruction.is_some() { writable } else { shader::writable };
        if !decodes(&plan.dequant, target) {
            return Err(unscheduled(&format!("codes decoded by {}", plan.dequant)));
        }
        if scheme.experts.is_some() {
            return Err(unscheduled("experts"));
        }
        let output = match (scheme.output, activation) {
            (Some(output), _) => output,
            (None, Activation::Float(number)) => *number,
            // That of x, which a quantiser does not say.
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
        // Words of codes are numbered in 32 bits.
        let words = u64::from(n.div_ceil(plan.native.rows))
            * u64::from(k.div_ceil(plan.native.columns))
            * u64::from(lane_words(&plan) * 32);
        if words > u64::from(u32::MAX) {
            return shape("N", n, "expected fewer rows with so many columns: 2^32 words of codes");
        }
        let WeightParams { scale, zero, correction, channel_scale } =
            WeightParams::of(&arranged, &plan, (n, k), k_tile);
        let changes = order.is_some() || scheme.prescale.is_some();
        let input = Input::new(&of_x, &plan, (k, k_tile), changes);
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
            channel_scale,
            bias,
            input,
            output,
            mapping,
            stem,
        };
        let main = MainLoop::new(&this);
        let apart = |scale: GroupParams| match (this.plan.scale.absorbed, main.scaled()) {
            (Some(_), _) => scale.shared_out((main.shared_columns() / scale.columns).max(1)),
            (None, Some(scaled)) => scale.shared_out(scaled.blocks),
            (None, None) => scale,
        };
        let scale = this.scale.map(apart);
        Ok(Self { scale, ..this })
    }

    /// The same product with a result of another type.
    ///
    /// # Errors
    /// A type that no schedule writes.
    pub fn giving(self, output: Number) -> Result<Self, Unscheduled> {
        written(output, self.target())?;
        Ok(Self { output, ..self })
    }

    /// The target.
    pub fn target(&self) -> &'static Target {
        self.plan.target
    }

    /// Tiles of rows of w, padded.
    pub fn row_tiles(&self) -> u32 {
        self.n.div_ceil(self.plan.native.rows)
    }

    /// Pieces of columns in which codes lie, padded.
    pub fn chunks(&self) -> u32 {
        self.k.div_ceil(self.plan.native.columns)
    }

    /// Words of codes that a lane has of a chunk, plane after plane.
    pub fn lane_words(&self) -> u32 {
        lane_words(&self.plan)
    }

    /// The 16-bit type in which weights and x meet, if it is one.
    pub fn half(&self) -> Option<Half> {
        match self.input.operand {
            Operand::F16 => Some(Half::F16),
            Operand::Bf16 => Some(Half::Bf16),
            _ => None,
        }
    }

    /// Whether products are those of matrix instructions, and not of lanes by themselves.
    pub fn by_matrix(&self) -> bool {
        self.plan.compute.product.matrix.is_some()
    }

    /// Whether the scale multiplies sums, and not the weights before.
    pub fn scales_sums(&self) -> bool {
        let by_instruction = self.plan.compute.product.scaling().is_some();
        self.scale.is_some() && self.plan.scale.absorbed.is_none() && !by_instruction
    }

    /// Refuses a kernel that starts before the one before it has ended, where the target has no such.
    pub(super) fn may_start_early(&self, programmatic: bool) -> Result<(), Unscheduled> {
        let target = self.target();
        if programmatic && !target.has(Feature::GridDependency) {
            return Err(Unscheduled::Tile(format!("there is no early start on {target}")));
        }
        Ok(())
    }

    /// Whether sums are exact integers.
    pub fn sums_integers(&self) -> bool {
        self.input.operand == Operand::I8
    }

    /// What the sums of a segment, as floats, are to be multiplied with besides their scales: decoding
    /// leaves codes a power of two too large, which integers lose when they become floats, and so may
    /// x be left.
    pub fn exponent(&self) -> i32 {
        let lack = self.plan.scale.absorbed.map_or(0, |absorbed| absorbed.lack);
        let of_weights =
            if self.sums_integers() { 0 } else { lack - self.plan.dequant.encoding().1 };
        of_weights - self.plan.compute.exponent
    }

    /// The power of two that an addend is in units of: sums without scales of their own are as large
    /// as decoding leaves them.
    pub fn correction_exponent(&self) -> i32 {
        let of_sums = if self.scales_sums() { 0 } else { -self.exponent() };
        of_sums - self.plan.compute.exponent
    }

    /// The terms of the addend: what the sums of codes that decoding makes still lack.
    pub fn correction_terms(&self) -> ZeroPointCorrection {
        correction_terms(&self.plan, self.zero.as_ref())
    }

    /// What is computed, without the shape, as far as it decides which tile is fast: neither the bias,
    /// nor the type of y, nor those of zero points.
    pub fn product_name(&self) -> String {
        let (scheme, activation) = &self.stem;
        crate::plan::product_name(scheme, activation)
    }

    /// The name of a kernel for this product.
    pub fn kernel_name(&self, tile: &str) -> String {
        let (scheme, activation) = &self.stem;
        let bias = if self.bias { "_bias" } else { "" };
        // Of floats the type of x, which the name has already.
        let output = match activation {
            Activation::Float(number) if *number == self.output => String::new(),
            _ => format!("_{}", self.output),
        };
        let tile = format!("{tile}_n{}k{}{bias}{output}", self.n, self.k);
        crate::plan::kernel_name(scheme, activation, &tile, self.target())
    }
}

/// Whether results of a type can be written.
fn written(output: Number, target: &'static Target) -> Result<(), Unscheduled> {
    match output {
        NUMBER_F32 | NUMBER_F16 | NUMBER_BF16 => Ok(()),
        _ => {
            let what = format!("results in {output}, only in f32, f16 and bf16");
            Err(Unscheduled::Scheme { target: target.name, what })
        }
    }
}
