//! Plans: what a product computes on a target, before any source is generated.
//!
//! In: a [`Scheme`], one of its activations, a [`Target`]. Out: a [`Plan`] of four parts, or a
//! typed [`PlanError`]:
//! - [`ComputePlan`]: the product instruction and its compute dtype ([`compute`]);
//! - [`DequantPlan`]: the steps from packed codes to that product's operand ([`dequant`]);
//! - [`ScalePlan`]: where scales, zero points and shifts are applied ([`scale`]);
//! - [`NativeLayout`]: the layout of codes in which kernels read memory in order ([`native`]).
//!
//! Start at [`plan()`]. A sequence of steps is data ([`sequence`], [`step`]): [`interpret`] runs a sequence
//! bit by bit, every emitter prints it, [`templates`] generate it, [`cost`] estimates its cost. Nothing here
//! depends on a vendor's language; a class of targets is a row in each table.

pub mod compute;
pub mod cost;
pub mod dequant;
mod describe;
pub mod interpret;
pub mod name;
pub mod native;
pub mod operand;
mod refusal;
pub mod scale;
pub mod scaled;
pub mod sequence;
pub mod sink;
pub mod step;
pub mod templates;

use std::cmp::Reverse;

use quantloom_dsl::format::Number;
use quantloom_dsl::{Accumulate, Activation, Scheme};

pub use compute::{ComputePlan, ProductInstruction, ProductObstacle};
pub use dequant::DequantPlan;
pub use name::{brief, kernel_name, product_name};
pub use native::NativeLayout;
pub use operand::OperandType;
pub use refusal::{PlanError, judged, known, planned};
pub use scale::ScalePlan;
pub use sequence::Sequence;

use crate::target::Target;

/// The tile that a decoder for lanes works on, in names: 16 rows by 32 columns.
pub const LANES_TILE: &str = "n16k32";

/// The plan of a scheme's product with one activation on one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The target.
    pub target: &'static Target,
    /// The activation.
    pub activation: Activation,
    /// The product.
    pub compute: ComputePlan,
    /// The dequantisation of codes to the product's operand.
    pub dequant: DequantPlan,
    /// Scales, zero points, shifts.
    pub scale: ScalePlan,
    /// The layout of codes.
    pub native: NativeLayout,
}

impl Plan {
    /// The compute dtype in words, with a reason if it is not the type of x.
    pub fn compute_dtype(&self) -> String {
        let (operand, target) = (self.compute.product.activation, self.target);
        let (weight, own) = (brief(&self.dequant.weight), operand.number());
        let rounded = self.rounding().map(|how| format!("; {how}")).unwrap_or_default();
        let dtype = match &self.activation {
            _ if self.compute.product.weight != operand => {
                format!("as {} times {operand}", self.compute.product.weight)
            }
            Activation::Quantised(quantiser) if quantiser.code != own => format!(
                "in {operand}, since {target} has no product of {weight} weights and {} activations",
                quantiser.code
            ),
            _ => format!("in {operand}"),
        };
        dtype + &rounded
    }

    /// The rounding of weights, if the operand does not represent the values of the codes.
    pub fn rounding(&self) -> Option<String> {
        let (operand, error) = (self.dequant.operand, self.dequant.error());
        let Number::Float(format) = operand.number() else { return None };
        match error {
            0.0 => None,
            _ if error <= format.epsilon() / 2.0 => {
                Some(format!("values are rounded to {operand}, by {error:.1e} of each at most"))
            }
            _ => Some(format!(
                "values are rounded to {operand}, whose range is narrower than theirs: \
                 the smallest lose digits or become 0"
            )),
        }
    }
}

/// The plan for a scheme with one of its activations: with the first product for which all parts of a
/// plan exist, or one with operands of equal width that folds the finest scale of x into these, or else whose sums
/// have longer segments, or else whose dequantisation is cheaper. Hopper's kernels may have another plan
/// (`schedule::Problem::in_layout`). `support` (feature `gpu`) also checks that the target has kernels.
///
/// # Errors
/// The last obstacle, if there is no plan.
pub fn plan(
    scheme: &Scheme,
    activation: &Activation,
    target: &'static Target,
) -> Result<Plan, PlanError> {
    plan_among(scheme, activation, target, PlanRange::default())
}

/// Which plans come into question.
#[derive(Clone, Copy, Debug)]
pub struct PlanRange {
    /// Whether a scale of x may be in the elements of its operand, and weights may be rounded with their scales.
    pub folding: bool,
    /// Whether the weight's scales are all in the range that f16 takes, where short groups' multiply weights then.
    pub of_range: bool,
    /// Whether products may sum integers.
    pub integers: bool,
}

impl Default for PlanRange {
    fn default() -> Self {
        Self { folding: true, of_range: false, integers: true }
    }
}

/// The same as [`plan`], among some plans.
///
/// # Errors
/// The last obstacle, if there is no plan.
pub fn plan_among(
    scheme: &Scheme,
    activation: &Activation,
    target: &'static Target,
    range: PlanRange,
) -> Result<Plan, PlanError> {
    let all = ComputePlan::all(scheme, activation, target.class).into_iter();
    let all = all.filter(|plan| range.integers || plan.product.sum == Accumulate::F32);
    let all = all.map(|plan| match range.folding {
        true => plan,
        false => plan.without_folding(),
    });
    let all = all.map(|plan| if range.of_range { plan.of_range() } else { plan });
    best(scheme, activation, target, all.collect())
}

/// The best plan of these products.
fn best(
    scheme: &Scheme,
    activation: &Activation,
    target: &'static Target,
    products: Vec<ComputePlan>,
) -> Result<Plan, PlanError> {
    let mut obstacle = PlanError::NoProduct {
        weight: brief(&scheme.weight),
        activation: match activation {
            Activation::Float(number) => number.to_string(),
            Activation::Quantised(quantiser) => format!("quantised {}", quantiser.code),
        },
        target: target.name,
        why: ComputePlan::obstacle(scheme, activation, target.class),
    };
    let mut best: Option<Plan> = None;
    for compute in products {
        let operand = compute.product.weight;
        let code = || brief(&scheme.weight);
        let Some(dequant) = DequantPlan::new(&scheme.weight, operand, target.class) else {
            obstacle = PlanError::NoSequence { code: code(), operand, target: target.name };
            continue;
        };
        let scale = ScalePlan::new(scheme, activation, (&compute, target.class), &dequant);
        let dequant = match scheme.zero.is_none() && scheme.shifts.is_empty() {
            true => dequant.of_rows(activation, scale.segment, target.class),
            false => dequant,
        };
        let cost = |compute: &ComputePlan, scale: &ScalePlan, dequant: &DequantPlan| {
            let segment = Reverse(scale.segment.unwrap_or(u32::MAX));
            let (error, steps, lacks_power) = dequant.price();
            let price = (error, steps + scale.own_step(dequant, target.class), lacks_power);
            (!compute.folds_input, segment, scale.is_of_range(dequant), price)
        };
        let better = best.as_ref().is_none_or(|best: &Plan| {
            let least = cost(&best.compute, &best.scale, &best.dequant);
            best.dequant.operand.bits() == operand.bits()
                && cost(&compute, &scale, &dequant) < least
        });
        if !better {
            continue;
        }
        let layout = NativeLayout::new(&dequant, &compute.product, scale.segment, target.class);
        let Some(native) = layout else {
            obstacle = PlanError::NoLayout { code: code(), operand, target: target.name };
            continue;
        };
        let activation = activation.clone();
        best = Some(Plan { target, activation, compute, dequant, scale, native });
    }
    best.ok_or(obstacle)
}
