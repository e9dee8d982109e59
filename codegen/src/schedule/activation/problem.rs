//! What is made: the operand of a product, from x of a type, for a quantiser or as it is.

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number};
use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{Activation, Arithmetic, Quantiser, ScaleLevel, ScaleRule, ScaleType, Scheme};

use super::EXTENTS_OF_A_LANE;
use super::levels::columns;
use super::source::PIECE;
use crate::plan::{Operand, kernel_name};
use crate::schedule::Unscheduled;
use crate::target::{Feature, Target};

/// An operand [M, P] of x [M, K] in the type `own`.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivationProblem {
    /// Where it runs.
    pub target: &'static Target,
    /// Type of x: f32, f16 or bf16.
    pub own: FloatFormat,
    /// Type of the operand's elements.
    pub operand: Operand,
    /// Columns of x.
    pub k: u32,
    /// Columns of the operand (P): a multiple of 8; x, then zeros.
    pub padded: u32,
    /// Whether columns are taken in an order that is given; of x as it is.
    pub gathers: bool,
    /// Columns of the operand that share a scale of the product, where scales change along columns.
    pub run: Option<u32>,
    /// Whether scales are left as codes of e8m0, a byte each, for an instruction that scales.
    pub codes: bool,
    pub(super) activation: Activation,
    pub(super) arithmetic: Arithmetic,
    scheme: Scheme,
}

impl ActivationProblem {
    /// Poses the operand of a scheme's product with one of its activations.
    ///
    /// # Errors
    /// What the schedule does not take: an operand that does not hold the codes, groups of several
    /// tokens or of columns that no lanes share, shapes beyond the limits.
    pub fn new(
        scheme: &Scheme,
        activation: &Activation,
        own: Number,
        operand: Operand,
        target: &'static Target,
        (k, padded): (u32, u32),
        gathers: bool,
    ) -> Result<Self, Unscheduled> {
        let codes = false;
        let none = |what: String| Unscheduled::Scheme { target: target.name, what };
        let Number::Float(own @ (F32 | F16 | BF16)) = own else {
            return Err(none(format!("activations in {own}")));
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
            run: None,
            codes,
            activation,
            arithmetic,
            scheme,
        };
        let this = Self { run: this.group(), ..this };
        match &this.activation {
            Activation::Float(_) => {
                if !matches!(operand, Operand::F32 | Operand::F16 | Operand::Bf16) {
                    return Err(none(format!("{own} activations as operands in {operand}")));
                }
            }
            Activation::Quantised(quantiser) => {
                if !this.holds(quantiser) {
                    let what = format!("{} activations as operands in {operand}", quantiser.code);
                    return Err(none(what));
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
        if padded < k || padded > 1 << 25 || !padded.is_multiple_of(PIECE) {
            return shape("P", padded, "expected a multiple of 8, from K to 2^25");
        }
        Ok(this)
    }

    /// The same for a product with other runs of columns than x has groups: each run is part of one
    /// group, and has its scale.
    #[must_use]
    pub fn in_runs(self, run: Option<u32>) -> Self {
        Self { run: run.filter(|_| self.run.is_some()).or(self.run), ..self }
    }

    /// The same for an instruction that scales: with scales as codes of e8m0, `[M, G]` bytes.
    ///
    /// # Errors
    /// Scales that are not one level of e8m0 along columns.
    pub fn leaving_codes(self) -> Result<Self, Unscheduled> {
        let levels = self.quantiser().map_or(&[][..], |quantiser| &quantiser.scales);
        match levels {
            [level]
                if self.number(level) == Number::E8m0
                    && level.group.cols != GroupSize::All
                    && !self.is_apart() =>
            {
                Ok(Self { codes: true, ..self })
            }
            _ => Err(Unscheduled::Scheme {
                target: self.target.name,
                what: "scales of activations as codes, other than one level of e8m0".to_owned(),
            }),
        }
    }

    /// Whether elements of the operand are those of x, multiplied by its factors, bit for bit, two to a
    /// word.
    pub(super) fn keeps_pairs(&self) -> bool {
        self.own != F32 && self.operand.number() == Number::Float(self.own)
    }

    /// Whether columns of x are multiplied by factors first.
    pub(super) const fn prescales(&self) -> bool {
        self.scheme.prescale.is_some()
    }

    /// The quantiser, unless x is taken as it is.
    pub fn quantiser(&self) -> Option<&Quantiser> {
        match &self.activation {
            Activation::Quantised(quantiser) => Some(quantiser),
            Activation::Float(_) => None,
        }
    }

    /// Columns of x that share all scales; `None` if a row does.
    pub fn group(&self) -> Option<u32> {
        match self.quantiser()?.scales.first()?.group.cols {
            GroupSize::Each(columns) => Some(columns),
            GroupSize::All => None,
        }
    }

    /// Columns of the operand that share a scale; `None` if a row does.
    pub(super) const fn columns_of_scale(&self) -> Option<u32> {
        self.run
    }

    /// Scales of a row of the operand (G).
    pub fn groups(&self) -> u32 {
        self.columns_of_scale().map_or(1, |columns| self.padded.div_ceil(columns))
    }

    /// Scales of a row of x.
    pub(super) fn own_groups(&self) -> u32 {
        self.group().map_or(1, |columns| self.k.div_ceil(columns))
    }

    /// Whether scales of groups are found by a kernel of their own: where columns are gathered, runs of
    /// the product are no groups of x, or lanes do not share out a group.
    pub(super) fn is_apart(&self) -> bool {
        let most = self.warp() * PIECE;
        let by_lanes =
            |columns: u32| columns.is_power_of_two() && (PIECE..=most).contains(&columns);
        let levels = self.quantiser().map_or(&[][..], |quantiser| &quantiser.scales);
        let mut sizes = levels.iter().filter_map(columns).peekable();
        let grouped = sizes.peek().is_some();
        grouped && (self.gathers || self.run != self.group() || !sizes.all(by_lanes))
    }

    /// Kernels that make the operand.
    pub fn launches(&self) -> u32 {
        1 + u32::from(self.spans_rows()) + u32::from(self.is_apart())
    }

    /// Rows of x of a launch at most: elements are numbered in 31 bits.
    pub fn most_tokens(&self) -> u32 {
        (1 << 31) / self.padded
    }

    /// Extents that the first of two kernels leaves where [`Self::spans_rows`], two words each.
    pub fn parts(&self) -> u32 {
        self.warp() * EXTENTS_OF_A_LANE
    }

    /// Whether a scale is chosen from all of x: two kernels.
    pub fn spans_rows(&self) -> bool {
        self.chosen().any(|level| level.group.rows == GroupSize::All)
    }

    /// Whether a scale is chosen from a whole row.
    pub(super) fn spans_columns(&self) -> bool {
        self.chosen()
            .any(|level| level.group.rows != GroupSize::All && level.group.cols == GroupSize::All)
    }

    /// Levels whose scales are chosen here.
    fn chosen(&self) -> impl Iterator<Item = &ScaleLevel> {
        let levels = self.quantiser().map_or(&[][..], |quantiser| &quantiser.scales);
        levels.iter().filter(|level| !level.stored)
    }

    /// Whether extents have two ends.
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
            Arithmetic::Own => self.own,
        }
    }

    /// The stored type of a level.
    pub(super) const fn number(&self, level: &ScaleLevel) -> Number {
        match level.number {
            ScaleType::Own => Number::Float(self.own),
            ScaleType::Number(number) => number,
        }
    }

    /// The name of a kernel.
    pub(super) fn kernel_name(&self, what: &str) -> String {
        let gathers = if self.gathers { "_gathered" } else { "" };
        let prescales = if self.prescales() { "_prescaled" } else { "" };
        let (own, operand) = (self.own, self.operand);
        let codes = if self.codes { "_codes" } else { "" };
        let runs = match self.run {
            Some(run) if self.is_apart() => format!("r{run}"),
            _ => String::new(),
        };
        let (k, padded) = (self.k, self.padded);
        let tile = format!("{what}_{own}_{operand}_k{k}p{padded}{runs}{gathers}{prescales}{codes}");
        kernel_name(&self.scheme, &self.activation, &tile, self.target)
    }

    /// Whether each code, less each zero point, is an element of the operand. Bytes would leave the
    /// zero point to the product, and no plan has that.
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
        match (self.operand, quantiser.zero) {
            (Operand::I8, None) => matches!(code, Number::Int(_)),
            (Operand::E2m1 | Operand::E2m3 | Operand::E3m2, None) => {
                self.target.has(Feature::MfmaScale) && code == self.operand.number()
            }
            (Operand::E4m3, None) => self.target.has(Feature::PackE4m3) && values().all(exact),
            (Operand::E4m3Fnuz | Operand::Bf16 | Operand::F16 | Operand::F32, None) => {
                values().all(exact)
            }
            (Operand::Bf16 | Operand::F16 | Operand::F32, Some(_)) => {
                let most = (code.max() - code.min()) as i32;
                (-most..=most).all(|value| exact(f64::from(value)))
            }
            _ => false,
        }
    }

    /// What of the levels is not taken.
    fn levels_are_taken(&self, quantiser: &Quantiser) -> Result<(), String> {
        let mut finer = 1;
        for (at, level) in quantiser.scales.iter().enumerate() {
            let GroupSize::Each(columns) = level.group.cols else {
                // What is coarser than a whole row is a whole row too.
                if quantiser.scales[at..].iter().any(|level| level.group.cols != GroupSize::All) {
                    return Err("groups of columns around whole rows".to_owned());
                }
                if !matches!(level.group.rows, GroupSize::Each(1) | GroupSize::All) {
                    return Err("a scale for several tokens".to_owned());
                }
                if level.stored && level.group.rows != GroupSize::All {
                    return Err("a static scale for each token".to_owned());
                }
                continue;
            };
            if level.group.rows != GroupSize::Each(1) || level.stored {
                return Err("a scale for columns of several tokens".to_owned());
            }
            if !columns.is_multiple_of(finer) {
                return Err("groups that do not lie in each other".to_owned());
            }
            finer = columns;
        }
        if quantiser.chooses_across_factors() {
            return Err("a scale of all of x that makes up for those of tokens".to_owned());
        }
        for level in quantiser.scales.iter().filter(|level| !level.stored) {
            let power = level.rule.power(quantiser.code.max().max(-quantiser.code.min()));
            let pow2 = power.is_some();
            let number = self.number(level);
            let taken = match number {
                Number::E8m0 => pow2 && !level.divide,
                Number::Float(_) => true,
                // Exact in f32, and in the range of its conversions.
                Number::Int(bits) | Number::Uint(bits) => bits <= 16,
            };
            // Of codes below 2 the exponent is not that of a normal number.
            let small = power.is_some_and(|power| power.exponent < 1);
            if !taken || small {
                return Err(format!("{number} scales of activations by that rule"));
            }
        }
        let integers = |number| matches!(number, Number::Int(_) | Number::Uint(_));
        match quantiser.zero {
            Some(zero) if !integers(zero) || !integers(quantiser.code) => {
                Err(format!("{zero} zero points of {} activations", quantiser.code))
            }
            Some(_) if quantiser.scales.is_empty() => Err("zero points without scales".to_owned()),
            _ => Ok(()),
        }
    }
}
