//! What is multiplied: a plan, a shape, and the native form of everything that is not x or y.

use quantloom_dsl::format::{NUMBER_BF16, NUMBER_F16, Number};
use quantloom_dsl::layout::Grain;
use quantloom_dsl::{Activation, ScaleType, Scheme, ZeroKind};

use crate::ir::{Half, MatrixOp, matrix_op};
use crate::plan::{Operand, Plan, Refusal, plan};
use crate::target::Target;

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
    /// Input features.
    pub k: u32,
    /// Columns that share a scale.
    pub group: u32,
    /// Type of the scales, as it is stored natively.
    pub scale: Half,
    /// Whether there is a zero point per group, stored like the scales.
    pub zero: bool,
    /// Whether there is a bias per row of w, stored as f32.
    pub bias: bool,
    /// Type of x and y, and of the operands of the product.
    pub activation: Half,
    /// Its matrix instruction of 16 columns.
    pub product: &'static MatrixOp,
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
        let plan = plan(scheme, activation, target)?;
        let unscheduled =
            |what: &str| Unscheduled::Scheme { target: target.name, what: what.into() };
        let (half, row) = match plan.compute.product.weight {
            Operand::Bf16 => (Half::Bf16, "mma.m16n8k16.bf16"),
            Operand::F16 => (Half::F16, "mma.m16n8k16.f16"),
            operand => return Err(unscheduled(&format!("products in {operand}"))),
        };
        let product =
            matrix_op(row, target).ok_or_else(|| unscheduled("products of 16 x 8 x 16"))?;
        if plan.compute.quantises {
            return Err(unscheduled("quantised activations"));
        }
        if plan.dequant.stages.len() != 1 || plan.dequant.yields() != (0, 0) {
            return Err(unscheduled(&format!("codes decoded by {}", plan.dequant)));
        }
        let parts = [
            (scheme.shift.is_some(), "shifts"),
            (scheme.index.is_some(), "columns in the order of activation"),
            (scheme.experts.is_some(), "experts"),
        ];
        if let Some((_, what)) = parts.into_iter().find(|(there, _)| *there) {
            return Err(unscheduled(what));
        }
        let [level] = scheme.scales[..] else {
            return Err(unscheduled(&format!("{} levels of scales", scheme.scales.len())));
        };
        let scale = match level.number {
            ScaleType::Number(NUMBER_BF16) => Half::Bf16,
            ScaleType::Number(NUMBER_F16) => Half::F16,
            _ => return Err(unscheduled("scales that are neither bf16 nor f16")),
        };
        let (Grain::Each(1), Grain::Each(group), false) =
            (level.group.rows, level.group.cols, level.divide)
        else {
            return Err(unscheduled("scales other than one factor per row and group"));
        };
        if scheme.zero.is_some_and(|zero| zero.group != level.group) {
            return Err(unscheduled("zero points with groups of their own"));
        }
        // Zero points are taken off inside of the decoding, where sums of small integers are exact.
        let small = |zero: &quantloom_dsl::Zero| match zero.kind {
            ZeroKind::Codes { number: Number::Uint(bits) | Number::Int(bits), .. } => bits <= 4,
            _ => false,
        };
        if scheme.zero.is_some_and(|zero| !small(&zero)) {
            return Err(unscheduled("zero points other than integers of 4 bits"));
        }
        if !matches!(activation, Activation::Float(number) if output(scheme, *number) == *number) {
            return Err(unscheduled("a result of another type than x"));
        }
        let shape = |what, value, rule| Err(Unscheduled::Shape { what, value, rule });
        if n == 0 || n > 1 << 24 {
            return shape("N", n, "expected 1 to 2^24");
        }
        // Rows of x are copied by 16 bytes.
        if k == 0 || k > 1 << 24 || !k.is_multiple_of(8) {
            return shape("K", k, "expected a multiple of 8, up to 2^24");
        }
        // Words of codes are numbered in 32 bits; a tile's lanes have four words a chunk.
        let tiles = u64::from(n.div_ceil(plan.native.rows));
        if tiles * u64::from(k.div_ceil(plan.native.columns)) * 128 > u64::from(u32::MAX) {
            return shape("N", n, "expected fewer rows with so many columns: 2^32 words of codes");
        }
        if !group.is_multiple_of(plan.native.columns) || group > 256 {
            return Err(unscheduled(&format!("groups of {group} columns")));
        }
        let (zero, bias) = (scheme.zero.is_some(), scheme.bias.is_some());
        let stem = (scheme.clone(), activation.clone());
        Ok(Self { plan, n, k, group, scale, zero, bias, activation: half, product, stem })
    }

    /// Where it runs.
    pub fn target(&self) -> &'static Target {
        self.plan.target
    }

    /// Tiles of rows of w, padded.
    pub fn row_tiles(&self) -> u32 {
        self.n.div_ceil(self.plan.native.rows)
    }

    /// Pieces of columns that a lane loads at once, padded.
    pub fn chunks(&self) -> u32 {
        self.k.div_ceil(self.plan.native.columns)
    }

    /// Groups of columns; the last one may be short.
    pub fn groups(&self) -> u32 {
        self.k.div_ceil(self.group)
    }

    /// Chunks of a group.
    pub fn group_chunks(&self) -> u32 {
        self.group / self.plan.native.columns
    }

    /// Tokens of a product: columns of B and D.
    pub fn token_tile(&self) -> u32 {
        self.product.shape[1]
    }

    /// Lanes that share a row of A or a column of B, each with columns of its own along k.
    pub fn row_lanes(&self) -> u32 {
        self.target().gpu.map_or(1, |gpu| gpu.warp) / self.token_tile()
    }

    /// Neighbouring columns of a chunk that a lane holds.
    pub fn lane_columns(&self) -> u32 {
        self.plan.native.columns / self.row_lanes()
    }

    /// The name of a kernel for this product.
    pub fn kernel_name(&self, tile: &str) -> String {
        let (scheme, activation) = &self.stem;
        let bias = if self.bias { "_bias" } else { "" };
        let tile = format!("{tile}_n{}k{}{bias}", self.n, self.k);
        crate::plan::kernel_name(scheme, activation, &tile, self.target())
    }
}

fn output(scheme: &Scheme, activation: Number) -> Number {
    scheme.output.unwrap_or(activation)
}
