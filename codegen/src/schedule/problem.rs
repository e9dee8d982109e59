//! What is multiplied: a plan, a shape, and the native form of everything that is not x or y.
//!
//! The plan says where each scale, zero point and shift is applied; here they become at most four
//! kinds of numbers, whatever the scheme calls them: what multiplies the sum of a run of columns
//! or each weight of it ([`Problem::scale`]), what is taken off each code ([`Problem::zero`]), what multiplies a run's sum
//! of x ([`Problem::addend`]), and what multiplies a finished row ([`Problem::factor`]).

use quantloom_dsl::format::{BF16, F16, NUMBER_BF16, NUMBER_F16, NUMBER_F32, Number};
use quantloom_dsl::layout::{Component, GroupSize};
use quantloom_dsl::{Activation, ScaleType, Scheme, Zero, ZeroKind, ZeroPointCorrection};

use super::arrange::{Arranged, Order};
use super::dequantise::{takes_zeros, writable};
use super::grouped::{Grouped, What};
use super::lanes::{Lanes, OfLane, Rows, Scaled};
use super::shader;
use crate::ir::{Half, MatrixOp, Word, matrix_op};
use crate::plan::native::SHARED_BYTES;
use crate::plan::scale::Place;
use crate::plan::{Operand, Plan, Refusal};
use crate::target::{Chip, Class, Feature, Target};

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

/// x as a product reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Type of its elements.
    pub operand: Operand,
    /// Elements from one row to the next; beyond K they are 0.
    pub columns: u32,
    /// Whether a kernel before the product makes it of what the user gives: multiplied by factors of its
    /// columns, quantised, with its columns in the order of w's, or padded.
    pub prepared: bool,
    /// The scales that come with it.
    pub scale: Option<InputScale>,
    /// Whether the product's instruction takes them, as codes of e8m0 instead of f32: those of a step in a
    /// word, that of the first block of columns in the lowest byte.
    pub codes: bool,
}

/// Scales of x, `[M, groups]`, f32 or words of codes ([`Input::codes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputScale {
    /// One a row.
    Row,
    /// One for so many columns.
    Columns(u32),
}

impl InputScale {
    /// Columns of a number that changes along K.
    pub const fn columns(self) -> Option<u32> {
        match self {
            Self::Row => None,
            Self::Columns(columns) => Some(columns),
        }
    }
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
    /// Columns that a warp works through at a time: whole chunks, whole runs or a part of one.
    pub turn: u32,
    /// Multiplies the sum of a run of columns, or each weight of it ([`Problem::scales_runs`]).
    pub scale: Option<Grouped>,
    /// Taken off codes while they are decoded.
    pub zero: Option<Grouped>,
    /// Multiplies the sum of x over a run of columns.
    pub addend: Option<Grouped>,
    /// Whether a number per row, f32, multiplies the finished sum.
    pub factor: bool,
    /// Whether there is a bias per row of w, stored as f32.
    pub bias: bool,
    /// x.
    pub input: Input,
    /// Type of y: f32, f16 or bf16.
    pub output: Number,
    /// Its matrix instruction, a tile of rows of w by one of tokens; `None` where lanes multiply by
    /// themselves.
    pub product: Option<&'static MatrixOp>,
    /// Who holds what of it.
    pub(super) lanes: Lanes,
    /// The part of a kernel's name that says what is computed.
    stem: (Scheme, Activation),
}

/// 32-bit words of codes that a lane has of a turn at most: what registers leave room for.
const MOST_WORDS: u32 = 12;
/// The longest turn.
const LONGEST_TURN: u32 = 128;

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
        let Arranged { scheme: arranged, activation: of_x, plan, turn, order } =
            Arranged::new(scheme, activation, target)?;
        let unscheduled =
            |what: &str| Unscheduled::Scheme { target: target.name, what: what.into() };
        let operand = plan.compute.product.weight;
        let unmultiplied = || unscheduled(&format!("products in {operand}"));
        let (product, lanes) = match (plan.compute.product.matrix, target.gpu) {
            (Some(row), _) => {
                let product = matrix_op(row, target).ok_or_else(unmultiplied)?;
                (Some(product), Lanes::new(product).ok_or_else(|| unscheduled(row))?)
            }
            (None, Some(gpu)) => (None, Lanes::of_rows(gpu.warp)),
            (None, None) => return Err(unmultiplied()),
        };
        let decodes = if product.is_some() { writable } else { shader::writable };
        if !decodes(&plan.dequant) {
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
        let Numbers { scale, zero, addend, factor } = Numbers::of(&arranged, &plan, (n, k), turn);
        let input = input(&of_x, &plan, (k, turn), order.is_some() || scheme.prescale.is_some());
        let bias = scheme.bias.is_some();
        let stem = (scheme.clone(), activation.clone());
        let this = Self {
            plan,
            n,
            k,
            order,
            turn,
            scale,
            zero,
            addend,
            factor,
            bias,
            input,
            output,
            product,
            lanes,
            stem,
        };
        let apart = |scale: Grouped| match (this.plan.scale.absorbed, &this.lanes.scaled) {
            (Some(_), _) => scale.shared_out((this.shared_columns() / scale.columns).max(1)),
            (None, Some(scaled)) => scale.shared_out(scaled.blocks),
            (None, None) => scale,
        };
        Ok(Self { scale: this.scale.map(apart), ..this })
    }

    /// The same product with a result of another type.
    ///
    /// # Errors
    /// A type that no schedule writes.
    pub fn giving(self, output: Number) -> Result<Self, Unscheduled> {
        written(output, self.target())?;
        Ok(Self { output, ..self })
    }

    /// Where it runs.
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

    /// Turns along K; the last one may be short.
    pub fn turns(&self) -> u32 {
        self.k.div_ceil(self.turn)
    }

    /// Chunks of a turn.
    pub fn turn_chunks(&self) -> u32 {
        self.turn / self.plan.native.columns
    }

    /// Words of codes that a lane has of a chunk, section after section.
    pub fn lane_words(&self) -> u32 {
        lane_words(&self.plan)
    }

    /// Words of codes that a lane has of a turn.
    pub fn turn_words(&self) -> u32 {
        self.turn_chunks() * self.lane_words()
    }

    /// Columns whose sum is kept apart, a turn at most: those that share what multiplies sums.
    pub fn run(&self) -> u32 {
        self.plan.scale.run.map_or(self.turn, |run| run.min(self.turn))
    }

    /// Columns of a step of the product.
    pub const fn step(&self) -> u32 {
        self.plan.compute.product.columns
    }

    /// Steps of the product in a run.
    pub fn run_steps(&self) -> u32 {
        self.run() / self.step()
    }

    /// Tokens of a product: columns of B and D.
    pub fn token_tile(&self) -> u32 {
        self.product.map_or(1, |product| product.shape[1])
    }

    /// Lanes that share a row of A or a column of B, each with columns of its own along k.
    pub fn row_lanes(&self) -> u32 {
        self.lanes.of_row
    }

    /// The rows whose numbers a lane has: of the weights where these are changed as they are decoded,
    /// else of the sums.
    pub(super) fn rows(&self, of: &Grouped) -> &Rows {
        match &self.lanes.scaled {
            Some(scaled) if of.of_weights => &scaled.rows,
            _ if of.of_weights => &self.lanes.a.rows,
            _ => &self.lanes.d.rows,
        }
    }

    /// Which of the lanes that share those rows it is, where each has numbers of its own columns.
    pub(super) fn part(&self) -> &OfLane {
        self.lanes.scaled.as_ref().map_or(&self.lanes.a.part, |scaled| &scaled.block)
    }

    /// Who supplies which scale to an instruction that scales.
    pub(super) fn scaled(&self) -> Option<&Scaled> {
        self.lanes.scaled.as_ref()
    }

    /// Columns that the lanes of a row share out at a time, in one piece each.
    pub fn shared_columns(&self) -> u32 {
        if self.lanes.scaled.is_some() {
            return self.lanes.b.columns * self.row_lanes();
        }
        let most = SHARED_BYTES * 8 / self.input.operand.stored_bits();
        self.run().min(self.plan.native.columns).min(most)
    }

    /// Neighbouring columns that a lane holds.
    pub fn lane_columns(&self) -> u32 {
        self.shared_columns() / self.row_lanes()
    }

    /// Bytes of x that so many columns of a row take.
    pub fn input_bytes(&self, columns: u32) -> u32 {
        columns * self.input.operand.stored_bits() / 8
    }

    /// What the buffer of x is an array of.
    pub fn input_word(&self) -> Word {
        match self.input.operand.stored_bits() {
            ..=8 => Word::U8,
            16 => Word::U16,
            _ => Word::U32,
        }
    }

    /// Words of that buffer that so many columns of a row take.
    pub fn input_words(&self, columns: u32) -> u32 {
        self.input_bytes(columns) / self.input_word().bytes()
    }

    /// Registers of x that a lane has of a step: B, and what lies behind it.
    pub fn step_registers(&self) -> u32 {
        self.input_bytes(self.step()) / self.row_lanes() / 4
    }

    /// Numbers of the scales of a row of x, if it has scales: of the columns of the input.
    pub fn input_groups(&self) -> Option<u32> {
        let columns = self.input.scale?.columns();
        Some(columns.map_or(1, |columns| self.input.columns.div_ceil(columns)))
    }

    /// The 16-bit type in which weights and x meet, if it is one.
    pub fn half(&self) -> Option<Half> {
        match self.input.operand {
            Operand::F16 => Some(Half::F16),
            Operand::Bf16 => Some(Half::Bf16),
            _ => None,
        }
    }

    /// Whether the scale multiplies sums, and not the weights before.
    pub fn scales_runs(&self) -> bool {
        self.scale.is_some() && self.plan.scale.absorbed.is_none() && self.lanes.scaled.is_none()
    }

    /// Refuses a kernel that starts before the one before it has ended, where the target has no such.
    pub(super) fn may_start_early(&self, programmatic: bool) -> Result<(), Unscheduled> {
        let target = self.target();
        if programmatic && !target.has(Feature::GridDependency) {
            return Err(Unscheduled::Tile(format!("there is no early start on {target}")));
        }
        Ok(())
    }

    /// Registers of a thread that the target's compiler needs besides what a schedule counts, as its
    /// reports have shown, where so many sums of a run are made side by side: on AMD 64-bit addresses,
    /// steps of bf16 by way of f32, and the sums of all runs of a turn at a time; on the newest chips of
    /// NVIDIA half of those sums.
    pub(super) fn compiled(&self, side_by_side: u32) -> u32 {
        let sums = self.lanes.d.registers.len() as u32 * side_by_side;
        let more = self.turn / self.run() - 1;
        match self.target().gpu.map(|gpu| gpu.chip) {
            Some(Chip::Gfx(_)) => 32 + more * sums,
            Some(Chip::Sm { number: 120.., .. }) => 8 + more * sums / 2,
            _ => 0,
        }
    }

    /// Whether sums are exact integers.
    pub fn sums_integers(&self) -> bool {
        self.input.operand == Operand::I8
    }

    /// What the sums of a run, as floats, are to be multiplied with besides their scales: decoding
    /// leaves codes a power of two too large, which integers lose when they become floats, and so may
    /// x be left.
    pub fn exponent(&self) -> i32 {
        let lack = self.plan.scale.absorbed.map_or(0, |absorbed| absorbed.lack);
        let of_weights = if self.sums_integers() { 0 } else { lack - self.plan.dequant.encoding().1 };
        of_weights - self.plan.compute.exponent
    }

    /// The power of two that an addend is in units of: sums without scales of their own are as large
    /// as decoding leaves them.
    pub fn addend_exponent(&self) -> i32 {
        let of_sums = if self.scales_runs() { 0 } else { -self.exponent() };
        of_sums - self.plan.compute.exponent
    }

    /// The terms of the addend: what the sums of codes that decoding makes still lack.
    pub fn correction(&self) -> ZeroPointCorrection {
        correction(&self.plan, self.zero.as_ref())
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

fn lane_words(plan: &Plan) -> u32 {
    let lanes = plan.target.gpu.map_or(1, |gpu| gpu.warp);
    plan.native.columns * plan.native.rows * plan.dequant.weight.code.bits() / (32 * lanes)
}

/// As many columns as registers leave room for, a power of two of whole chunks; `None` if runs do
/// not fit into chunks, nor chunks into runs.
pub(super) fn turn(plan: &Plan, step: u32) -> Option<u32> {
    let chunk = plan.native.columns;
    if plan.target.class == Class::Shader {
        let fits = |run: u32| run.is_multiple_of(chunk) || run < chunk && chunk.is_multiple_of(run);
        return plan
            .scale
            .run
            .is_none_or(|run| fits(run) && run.is_multiple_of(step))
            .then_some(chunk);
    }
    // What is no longer than a byte of x comes in rows of 128 bytes: see the ring of the tile schedule.
    let least = match plan.compute.product.activation.stored_bits() {
        bits @ ..=8 => SHARED_BYTES * 8 / bits,
        _ => chunk,
    };
    let room = |turn: &u32| *turn <= least || turn / chunk * lane_words(plan) <= MOST_WORDS;
    let turns = (0..)
        .map(|more| chunk << more)
        .take_while(|turn| *turn <= LONGEST_TURN.max(chunk).max(least));
    let fits = |turn: &u32| match plan.scale.run {
        None => true,
        Some(run) if run < chunk => run.is_power_of_two() && run.is_multiple_of(step),
        Some(run) => run.is_multiple_of(*turn) || turn.is_multiple_of(run),
    };
    turns.filter(|turn| *turn >= least && room(turn) && fits(turn)).last()
}

fn input(activation: &Activation, plan: &Plan, (k, turn): (u32, u32), changes: bool) -> Input {
    let (operand, step) = (plan.compute.product.activation, plan.compute.product.columns);
    let codes = plan.compute.product.scaling().is_some();
    let scale = match activation {
        Activation::Float(_) => None,
        Activation::Quantised(quantiser) => {
            let columns = quantiser.scales.iter().filter_map(|level| match level.group.cols {
                GroupSize::Each(columns) => Some(columns),
                GroupSize::All => None,
            });
            let columns = columns.min().map(|columns| if codes { step } else { columns });
            Some(columns.map_or(InputScale::Row, InputScale::Columns))
        }
    };
    // Rows of x are read by 16 bytes.
    let whole = (k * operand.stored_bits() / 8).is_multiple_of(16);
    // Lanes that multiply by themselves read f32.
    let by_lanes = plan.target.class == Class::Shader;
    let prepared = scale.is_some() || changes || !whole || by_lanes;
    let columns = if prepared { k.next_multiple_of(turn) } else { k };
    Input { operand, columns, prepared, scale, codes }
}

/// What multiplies, what is taken off, and what is added.
struct Numbers {
    scale: Option<Grouped>,
    zero: Option<Grouped>,
    addend: Option<Grouped>,
    factor: bool,
}

impl Numbers {
    fn of(scheme: &Scheme, plan: &Plan, (n, k): (u32, u32), turn: u32) -> Self {
        let whole_row = k.next_multiple_of(turn);
        let run = plan.scale.run.unwrap_or(whole_row);
        let placed = |place: Place| {
            let levels = (0u8..).zip(&plan.scale.levels).zip(&scheme.scales);
            levels.filter(move |((_, level), _)| level.place == place)
        };
        // What decoding multiplies with is the only one.
        let mut by_run =
            placed(Place::Weight).chain(placed(Place::Run)).chain(placed(Place::Product));
        let scale = match (by_run.next(), by_run.next()) {
            (None, _) => None,
            (Some(((at, level), scale)), None) if !level.divide => {
                let rows = match scale.group.rows {
                    GroupSize::Each(rows) => rows,
                    GroupSize::All => n.next_multiple_of(plan.native.rows),
                };
                let columns = match scale.group.cols {
                    GroupSize::Each(columns) => columns,
                    GroupSize::All => whole_row,
                };
                let number = match scale.number {
                    ScaleType::Number(number) => number,
                    ScaleType::Own => NUMBER_F32,
                };
                let what = What::Component(Component::Scale(at));
                Grouped::stored(what, number, (rows, columns), (plan.native.rows, turn))
            }
            _ => None,
        };
        // Of a type that has no way to f32 here, or of several, as f32.
        let on_weights = plan.scale.absorbed.is_some() || placed(Place::Product).next().is_some();
        let scale = match (scale, plan.scale.absorbed) {
            (None, Some(absorbed)) => Some(Grouped::computed(What::Scale, absorbed.columns)),
            (None, None) if placed(Place::Run).next().is_some() => {
                Some(Grouped::computed(What::Scale, run))
            }
            (scale, _) => scale,
        };
        let scale = scale.map(|scale| Grouped { of_weights: on_weights, ..scale });
        let (add, _) = plan.dequant.encoding();
        let zero = scheme.zero.and_then(|zero| taken_off(&zero, plan, (add, turn)));
        let adds = correction(plan, zero.as_ref()).needed(scheme);
        Self {
            scale,
            zero,
            addend: adds.then(|| Grouped::computed(What::Addend, run)),
            factor: placed(Place::Epilogue).next().is_some(),
        }
    }
}

/// What sums lack, where decoding takes these zero points off, or none.
fn correction(plan: &Plan, taken_off: Option<&Grouped>) -> ZeroPointCorrection {
    let (add, _) = plan.dequant.encoding();
    ZeroPointCorrection { zero: taken_off.is_none(), add }
}

/// Zero points that are taken off inside of the decoding, where sums of small integers are exact:
/// the code lies above a base of 128 in bf16, which has 8 bits, and of 1024 in f16, which has 11; base,
/// smallest code and zero point together, and the code less the zero point, stay within twice the base.
/// What is added to stored zero points counts.
fn taken_off(zero: &Zero, plan: &Plan, (add, turn): (i32, u32)) -> Option<Grouped> {
    let (half, most, base) = match plan.dequant.operand {
        Operand::Bf16 => (BF16, 7, 128.0),
        Operand::F16 => (F16, 8, 1024.0),
        _ => return None,
    };
    let ZeroKind::Codes { number, plus, wraps } = zero.kind else { return None };
    let (Number::Uint(bits) | Number::Int(bits)) = number else { return None };
    // One that wraps is a number of its bits again.
    let plus = if wraps { 0.0 } else { f64::from(plus) };
    let (least, largest) = (number.min() + plus, number.max() + plus);
    let (low, high) = plan.dequant.weight.range();
    let exact = largest - low.min(0.0) <= base && high - least <= 2.0 * base;
    let (GroupSize::Each(1), GroupSize::Each(columns)) = (zero.group.rows, zero.group.cols) else {
        return None;
    };
    let last = plan.dequant.stages.last()?;
    if add != 0 || bits > most || !exact || !takes_zeros(last) {
        return None;
    }
    let what = What::Component(Component::Zero);
    let tile = (plan.native.rows, turn);
    let zeros = Grouped::stored(what, Number::Float(half), (1, columns), tile)?;
    Some(Grouped { of_weights: true, ..zeros })
}
