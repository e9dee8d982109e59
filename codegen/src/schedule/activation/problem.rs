//! The operand of x for a product: its type, its quantiser, its columns.

use quantloom_dsl::format::{BF16, E4M3, F16, F32, FloatFormat, Number};
use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{
    Activation, Arithmetic, Group, Quantiser, ScaleLevel, ScaleRule, ScaleType, Scheme,
};

use super::RANGES_OF_A_LANE;
use super::levels::columns;
use super::rows::Routed;
use super::source::VECTOR;
use crate::ir::Access;
use crate::plan::scale::folds_input;
use crate::plan::{OperandType, kernel_name, product_name};
use crate::schedule::input::leaves_zero;
use crate::schedule::{ByteFragments, ScaleOrder, Unscheduled, UnscheduledPart};
use crate::target::{Feature, Target};

/// An operand [M, P] of x [M, K] in the input dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivationProblem {
    /// The target.
    pub target: &'static Target,
    /// The input dtype: f32, f16 or bf16.
    pub own: FloatFormat,
    /// Type of the operand's elements.
    pub operand: OperandType,
    /// Columns of x.
    pub k: u32,
    /// Columns of the operand (P): a multiple of 8; those of x, then zeros.
    pub padded: u32,
    /// Whether columns are reordered by a given order.
    pub gathers: bool,
    /// Columns of the operand that share a scale in the product; `None` if scales do not change along
    /// columns.
    pub segment: Option<u32>,
    /// Whether scales of the finest level stay codes, a byte each, for an instruction that scales.
    pub codes: bool,
    /// Whether elements are the values of codes times their finest scale, and the operand's scales are the product of
    /// the coarser ones, one a row.
    pub folds: bool,
    pub(super) activation: Activation,
    pub(super) arithmetic: Arithmetic,
    /// The product of an expert layer whose experts read x in different ways: rows belong to slots.
    pub(super) routed: Option<Routed>,
    /// The fragments in whose order the operand's columns are.
    pub(super) fragments: Option<ByteFragments>,
    /// The order of the operand's scales.
    pub(super) scale_order: ScaleOrder,
    scheme: Scheme,
}

impl ActivationProblem {
    /// The problem of x's operand in a scheme's product with one of its activations.
    ///
    /// # Errors
    /// An operand type that does not represent the codes, scales in integers of more bits than f32
    /// holds, shapes beyond the limits.
    pub fn new(
        scheme: &Scheme,
        activation: &Activation,
        own: Number,
        operand: OperandType,
        target: &'static Target,
        (k, padded): (u32, u32),
        gathers: bool,
    ) -> Result<Self, Unscheduled> {
        let codes = false;
        let none = |part| Unscheduled::Scheme { target: target.name, part };
        let Number::Float(own @ (F32 | F16 | BF16)) = own else {
            return Err(none(UnscheduledPart::Activations(own)));
        };
        let (activation, arithmetic) = (activation.clone(), scheme.arithmetic);
        let scheme = scheme.clone();
        let this = Self {
            target,
            own,
            operand,
            k,
            padded,
            gathers,
            segment: None,
            codes,
            folds: false,
            activation,
            arithmetic,
            routed: None,
            fragments: None,
            scale_order: ScaleOrder::Rows,
            scheme,
        };
        let this = Self { segment: this.group(), ..this };
        match &this.activation {
            Activation::Float(_) => {
                if !matches!(operand, OperandType::F32 | OperandType::F16 | OperandType::Bf16) {
                    let x = Number::Float(own);
                    return Err(none(UnscheduledPart::OperandType { x, operand }));
                }
            }
            Activation::Quantised(quantiser) => {
                if !this.holds(quantiser) {
                    return Err(none(UnscheduledPart::OperandType { x: quantiser.code, operand }));
                }
                this.levels_are_taken(quantiser).map_err(none)?;
            }
        }
        let shape = |what, value, rule| Err(Unscheduled::Shape { what, value, rule });
        if k == 0 || k > 1 << 24 {
            return shape("K", k, "expected 1 to 2^24");
        }
        if operand.bits() == 6 && !padded.is_multiple_of(32) {
            return shape("P", padded, "expected a multiple of 32 for elements of 6 bits");
        }
        if padded < k || padded > 1 << 25 || !padded.is_multiple_of(VECTOR) {
            return shape("P", padded, "expected a multiple of 8, from K to 2^25");
        }
        Ok(this)
    }

    /// The same for a product with segments of other lengths than the groups of x: each segment is part
    /// of one group.
    #[must_use]
    pub fn in_segments(self, segment: Option<u32>) -> Self {
        Self { segment: segment.filter(|_| self.segment.is_some()).or(self.segment), ..self }
    }

    /// The same with the finest scale in the operand's elements.
    ///
    /// # Errors
    /// Scales that a kernel of its own chooses, or products of codes and scales that are no numbers of the operand's type
    /// (`plan::compute::ComputePlan::folds_input`).
    pub fn folding(self) -> Result<Self, Unscheduled> {
        let taken = self.quantiser().is_some_and(|quantiser| {
            let of = (self.operand, self.target.class);
            folds_input(&self.scheme, quantiser, of) && !self.has_scale_kernel()
        });
        match taken {
            true => Ok(Self { folds: true, ..self }),
            false => Err(Unscheduled::Scheme {
                target: self.target.name,
                part: UnscheduledPart::ScaledElements,
            }),
        }
    }

    /// Whether the product reads scales of the operand.
    pub(super) fn has_scales(&self) -> bool {
        !self.folds || self.levels().len() > 1
    }

    /// The same with the operand's columns in the order of fragments of bytes; the operand has whole steps of these.
    #[must_use]
    pub fn in_fragments(self, fragments: Option<ByteFragments>) -> Self {
        Self { fragments, ..self }
    }

    /// The same with scales in another order, for a single matrix.
    #[must_use]
    pub fn with_scales_in(self, scale_order: ScaleOrder) -> Self {
        Self { scale_order, ..self }
    }

    /// The same for a product of an expert layer whose experts read x in different ways.
    #[must_use]
    pub fn routed(self, routed: Routed) -> Self {
        Self { routed: Some(routed), ..self }
    }

    /// How rows are written: those of slots without a pair are not.
    pub(super) fn rows_access(&self) -> Access {
        match self.routed {
            None => Access::WriteOnce,
            Some(_) => Access::WriteSome,
        }
    }

    /// Sets of static scales, zero points, prescales and orders of columns: one, or one a matrix.
    pub(super) fn matrices(&self) -> u32 {
        self.routed.map_or(1, Routed::matrices)
    }

    /// Sets of ranges, if a scale is chosen from all of x: one, or one a matrix with a prescale of its own.
    pub(super) fn sets_of_ranges(&self) -> u32 {
        if self.prescales() { self.matrices() } else { 1 }
    }

    /// The same for an instruction that scales: scales are codes of the finest level, e8m0 or e4m3, `[M, G]` bytes; the
    /// product applies the others.
    ///
    /// # Errors
    /// A finest level of another type or not along columns, or others that are not static scales of all of x.
    pub fn leaving_codes(self) -> Result<Self, Unscheduled> {
        match self.levels() {
            [level, others @ ..]
                if matches!(self.number(level), Number::E8m0 | Number::Float(E4M3))
                    && level.group.cols != GroupSize::All
                    && others.iter().all(|other| other.stored && other.group == Group::TENSOR)
                    && !self.has_scale_kernel() =>
            {
                Ok(Self { codes: true, ..self })
            }
            _ => Err(Unscheduled::Scheme {
                target: self.target.name,
                part: UnscheduledPart::ScaleCodes,
            }),
        }
    }

    /// Whether elements of the operand are exactly those of x (after the prescale), two per word.
    pub(super) fn keeps_pairs(&self) -> bool {
        self.own != F32 && self.operand.number() == Number::Float(self.own)
    }

    /// Whether x has a prescale.
    pub(super) const fn prescales(&self) -> bool {
        self.scheme.prescale.is_some()
    }

    /// The quantiser; `None` for a float activation.
    pub fn quantiser(&self) -> Option<&Quantiser> {
        match &self.activation {
            Activation::Quantised(quantiser) => Some(quantiser),
            Activation::Float(_) => None,
        }
    }

    /// Columns of x that share all scales, counted from the start of a row; `None` if a row does. If
    /// each group is part of one group of the next level, they are the finest level's groups.
    pub fn group(&self) -> Option<u32> {
        common_group(self.levels())
    }

    /// Levels of scales, finest first.
    pub(super) fn levels(&self) -> &[ScaleLevel] {
        self.quantiser().map_or(&[], |quantiser| &quantiser.scales)
    }

    /// Columns of a group of the coarsest level, if the scales of a vector follow from the group's vectors alone, groups are whole, and the
    /// operand has the columns of x in their order, and no others: what blocks of another product can make of their results.
    pub(in crate::schedule) fn columns_of_vectors(&self) -> Option<u32> {
        let quantiser = self.quantiser()?;
        let chosen = quantiser.zero.is_none() && quantiser.scales.iter().all(|level| !level.stored);
        let kept = !self.gathers && !self.prescales() && self.padded == self.k;
        let apart = self.launches() == 1 && !self.spans_columns() && self.matrices() == 1;
        let coarsest = quantiser.scales.iter().filter_map(columns).max();
        coarsest.filter(|columns| chosen && kept && apart && self.k.is_multiple_of(*columns))
    }

    /// The part of the name of a kernel that writes the operand of its results: the product that reads the operand, and its form.
    pub(in crate::schedule) fn label_of_results(&self) -> String {
        let product = product_name(&self.scheme, &self.activation);
        format!("_for_{product}_{}{}", self.operand, self.form())
    }

    /// The part of a kernel's name that says how columns and scales are ordered.
    fn form(&self) -> String {
        let fragments = match self.fragments {
            Some(ByteFragments::Whole) => "_fragments",
            Some(ByteFragments::Nibbles) => "_nibbles",
            Some(ByteFragments::Rows) | None => "",
        };
        let tiles = match self.scale_order {
            ScaleOrder::Rows => "",
            ScaleOrder::TokenTiles => "_tiles",
        };
        let folds = if self.folds { "_scaled" } else { "" };
        format!("{folds}{fragments}{tiles}")
    }

    /// Columns of the operand that share a scale; `None` if a row does.
    pub(super) fn columns_of_scale(&self) -> Option<u32> {
        self.segment.filter(|_| !self.folds)
    }

    /// Scales of a row of the operand (G).
    pub fn groups(&self) -> u32 {
        self.columns_of_scale().map_or(1, |columns| self.padded.div_ceil(columns))
    }

    /// Scales of a row of x.
    pub(super) fn own_groups(&self) -> u32 {
        self.group().map_or(1, |columns| self.k.div_ceil(columns))
    }

    /// Whether a kernel of its own chooses the scales of groups: if columns are reordered, if segments
    /// of the product differ from groups of x, if the lanes of a warp cannot divide a group, if a group
    /// has several tokens, or if a group is not part of one group of each coarser level.
    pub(super) fn has_scale_kernel(&self) -> bool {
        let most = self.warp() * VECTOR;
        let by_lanes = |level: &ScaleLevel| match (level.group.rows, columns(level)) {
            (GroupSize::Each(1), Some(columns)) => {
                columns.is_power_of_two() && (VECTOR..=most).contains(&columns)
            }
            _ => false,
        };
        let levels = self.levels();
        let mut of_vectors = levels[..self.first_of_row()].iter();
        let grouped = self.group().is_some();
        !of_vectors.all(by_lanes)
            || grouped && (self.gathers || self.segment != self.group())
            || (0..levels.len()).any(|level| !self.nests(level))
    }

    /// Whether each group of a dynamic level is part of one group of every coarser level.
    pub(super) fn nests(&self, level: usize) -> bool {
        let part = |finer: GroupSize, coarser: GroupSize| match (finer, coarser) {
            (_, GroupSize::All) => true,
            (GroupSize::All, GroupSize::Each(_)) => false,
            (GroupSize::Each(finer), GroupSize::Each(coarser)) => coarser.is_multiple_of(finer),
        };
        let Some((finer, coarser)) = self.levels()[level..].split_first() else { return true };
        let mut coarser = coarser.iter().map(|coarser| coarser.group);
        let of = finer.group;
        finer.stored || coarser.all(|group| part(of.rows, group.rows) && part(of.cols, group.cols))
    }

    /// The first of the coarsest levels that do not change along a row.
    pub(super) fn first_of_row(&self) -> usize {
        let levels = self.levels();
        let of_row = |level: &usize| columns(&levels[*level]).is_none() && self.nests(*level);
        levels.len() - (0..levels.len()).rev().take_while(of_row).count()
    }

    /// The number of kernels.
    pub fn launches(&self) -> u32 {
        1 + u32::from(self.spans_rows()) + u32::from(self.has_scale_kernel())
    }

    /// The most rows of x of a launch: elements are indexed with 31 bits.
    pub fn most_tokens(&self) -> u32 {
        (1 << 31) / self.padded
    }

    /// Ranges that the first kernel writes if [`Self::spans_rows`], two words each.
    pub fn parts(&self) -> u32 {
        self.warp() * RANGES_OF_A_LANE
    }

    /// Whether a scale is chosen from all of x, which needs two kernels.
    pub fn spans_rows(&self) -> bool {
        self.chosen().any(|level| level.group.rows == GroupSize::All)
    }

    /// Whether a scale is chosen from a whole row.
    pub(in crate::schedule) fn spans_columns(&self) -> bool {
        self.chosen()
            .any(|level| level.group.rows != GroupSize::All && level.group.cols == GroupSize::All)
    }

    /// The dynamic levels.
    fn chosen(&self) -> impl Iterator<Item = &ScaleLevel> {
        self.levels().iter().filter(|level| !level.stored)
    }

    /// Whether ranges need both ends.
    pub(super) fn signed(&self) -> bool {
        let zero = self.quantiser().is_some_and(|quantiser| quantiser.zero.is_some());
        zero || self.chosen().any(|level| matches!(level.rule, ScaleRule::Range(_)))
    }

    /// Lanes of a warp.
    pub(super) fn warp(&self) -> u32 {
        self.target.gpu.map_or(32, |gpu| gpu.warp)
    }

    /// The type of the quantiser's arithmetic.
    pub(super) const fn arithmetic(&self) -> FloatFormat {
        match self.arithmetic {
            Arithmetic::F32 => F32,
            Arithmetic::InputDtype => self.own,
        }
    }

    /// The stored type of a level.
    pub(super) const fn number(&self, level: &ScaleLevel) -> Number {
        match level.number {
            ScaleType::InputDtype => Number::Float(self.own),
            ScaleType::Number(number) => number,
        }
    }

    /// The name of a kernel.
    pub(in crate::schedule) fn kernel_name(&self, what: &str) -> String {
        let gathers = if self.gathers { "_gathered" } else { "" };
        let prescales = if self.prescales() { "_prescaled" } else { "" };
        let (own, operand) = (self.own, self.operand);
        let codes = if self.codes { "_codes" } else { "" };
        let segments = match self.segment {
            Some(segment) if self.has_scale_kernel() => format!("r{segment}"),
            _ => String::new(),
        };
        let (k, padded) = (self.k, self.padded);
        let form = self.form();
        let routed = self.routed.map(Routed::label).unwrap_or_default();
        let tile = format!(
            "{what}_{own}_{operand}_k{k}p{padded}{segments}{gathers}{prescales}{codes}{form}{routed}"
        );
        kernel_name(&self.scheme, &self.activation, &tile, self.target)
    }

    /// Whether the operand has codes and not their differences from the zero point, which the product subtracts: bytes.
    pub fn leaves_zero(&self) -> bool {
        leaves_zero(&self.activation, self.operand)
    }

    /// Whether each code, minus each zero point where the operand leaves none to the product, is an element of the operand.
    fn holds(&self, quantiser: &Quantiser) -> bool {
        let code = quantiser.code;
        if code.bits() > 8 {
            return false;
        }
        let unit = 2f64.powi(self.operand.exponent(code));
        let exact = |value: f64| {
            !value.is_finite() || self.operand.number().round(value * unit) == value * unit
        };
        let values = || (0..1u32 << code.bits()).map(|stored| code.decode(stored));
        // A product subtracts zero points of rows.
        let row_has_one = |zero: Option<Number>| zero.is_none() || self.group().is_none();
        match (self.operand, quantiser.zero) {
            (OperandType::I8, zero) => matches!(code, Number::Int(_)) && row_has_one(zero),
            (OperandType::I4, zero) => matches!(code, Number::Int(..=4)) && row_has_one(zero),
            (OperandType::E5m2, None) => code == self.operand.number(),
            (
                OperandType::E2m1
                | OperandType::E2m3
                | OperandType::E3m2
                | OperandType::PaddedE2m1
                | OperandType::PaddedE2m3
                | OperandType::PaddedE3m2,
                None,
            ) => self.target.scales_operands() && code == self.operand.number(),
            (OperandType::E4m3, None) => self.target.has(Feature::PackE4m3) && values().all(exact),
            (
                OperandType::E4m3Fnuz | OperandType::Bf16 | OperandType::F16 | OperandType::F32,
                None,
            ) => values().all(exact),
            (OperandType::Bf16 | OperandType::F16 | OperandType::F32, Some(_)) => {
                let most = (code.max() - code.min()) as i32;
                (-most..=most).all(|value| exact(f64::from(value)))
            }
            _ => false,
        }
    }

    /// Refuses levels and zero points that are not supported.
    fn levels_are_taken(&self, quantiser: &Quantiser) -> Result<(), UnscheduledPart> {
        for level in &quantiser.scales {
            if level.stored && level.group != Group::TENSOR {
                return Err(UnscheduledPart::StaticScales);
            }
            // f32 holds integers of up to 24 bits.
            if let number @ (Number::Int(25..) | Number::Uint(25..)) = self.number(level) {
                return Err(UnscheduledPart::InputScales(number));
            }
        }
        let integers = |number| matches!(number, Number::Int(_) | Number::Uint(_));
        match quantiser.zero {
            Some(zero) if !integers(zero) || !integers(quantiser.code) => {
                Err(UnscheduledPart::InputZeros { zero, code: quantiser.code })
            }
            Some(_) if quantiser.scales.is_empty() => Err(UnscheduledPart::ZerosAlone),
            _ => Ok(()),
        }
    }
}

/// Columns that share all scales of these levels: the greatest common divisor of their groups. `None` if
/// no scale changes along a row.
pub(in crate::schedule) fn common_group(levels: &[ScaleLevel]) -> Option<u32> {
    fn divisor(a: u32, b: u32) -> u32 {
        if b == 0 { a } else { divisor(b, a % b) }
    }
    levels.iter().filter_map(columns).reduce(divisor)
}
