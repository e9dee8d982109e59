//! The numbers of a weight's parameters for which a product has faster kernels, and where scales may multiply weights.
//!
//! Scales and terms that are rounded to the type of the instruction's operands have to be in its range; powers of two stand for that of
//! the last dequantisation steps. A weight's numbers are compared with these ranges when it is prepared.

use quantloom_dsl::format::{BF16, F16, NUMBER_BF16, NUMBER_F16, Number};
use quantloom_dsl::{Accuracy, BufferRole, Code};

use super::Problem;
use crate::ir::Half;
use crate::plan::scale::WeightRounding;
use crate::plan::scaled::NumberRange;
use crate::plan::sequence::Sequence;
use crate::schedule::group_params::GroupParams;
use crate::schedule::input::InputScale;
use crate::target::Feature;

impl Problem {
    /// The same product of a weight of which all numbers are in [`Self::param_ranges`], or of any.
    #[must_use]
    pub fn of_scales(self, in_range: bool) -> Self {
        let in_range = in_range && !self.param_ranges().is_empty();
        self.changed(|problem| problem.scales_in_range = in_range)
    }

    /// Whether all numbers are in [`Self::param_ranges`].
    pub fn scales_in_range(&self) -> bool {
        self.scales_in_range
    }

    /// The numbers of buffers that multiply weights, or are added to them, in a faster way than others; none if there is none:
    /// - in bf16 powers of two stand for the power of two of last dequantisation steps ([`Self::power_of_range`]);
    ///
    /// and of scales that multiply weights in a way that rounds these:
    /// - in bf16 the constants of last dequantisation steps take them, unless zero points are in the constants;
    /// - in f16 weights are no larger than its numbers, nor are scales that make good what decoding leaves codes too
    ///   small. (Products of integers and a number of f16 are multiples of f16's smallest number, so that none is too small.)
    pub fn param_ranges(&self) -> Vec<(BufferRole, NumberRange)> {
        let own = self.of_warp_groups();
        let of_scales = |range| vec![(BufferRole::Scale, range)];
        if let Some(power) = [self, own].into_iter().filter_map(Self::power_of_range).max() {
            let number = Number::E8m0;
            let most = 2f64.powi(BF16.max().log2().floor() as i32 - power);
            return of_scales(NumberRange { number, most, least: number.decode(0) });
        }
        let by_plan = own.plan.scale.rounds_weights();
        let may = own.may_round() && !own.scales_of_x_along_k();
        let by_choice = self.target().has(Feature::Wgmma) && own.scales_sums() && may;
        let (Some(half), Some(scale)) = (own.half(), own.scale) else { return Vec::new() };
        if !by_plan && (!by_choice || scale.number != half.number()) {
            return Vec::new();
        }
        match half {
            Half::Bf16 if scale.number == NUMBER_BF16 && own.zero.is_none() => {
                let range = own.plan.dequant.stages.last().and_then(Sequence::scale_range);
                range.map_or(Vec::new(), of_scales)
            }
            Half::Bf16 => Vec::new(),
            Half::F16 if by_plan => own.ranges_of_f16(),
            Half::F16 => {
                let range = |largest| NumberRange::of_f16(scale.number, own.most_scale(largest));
                own.largest_weight().map(range).map_or(Vec::new(), of_scales)
            }
        }
    }

    /// The same of f16, if the plan multiplies weights with scales: with a term, both are at most half of what f16 takes.
    fn ranges_of_f16(&self) -> Vec<(BufferRole, NumberRange)> {
        let terms = if self.correction.is_some() { 2.0 } else { 1.0 };
        let (low, high) = self.plan.dequant.weight.range();
        let largest = low.abs().max(high.abs()).max(1.0);
        let of = |(role, finest): (_, Option<GroupParams>), (of_coarse, coarse), most: f64| {
            let finest = finest?;
            let coarse: Option<GroupParams> = coarse;
            Some(match coarse {
                Some(coarse) => {
                    let integers = finest.number.max().max(-finest.number.min());
                    (of_coarse, NumberRange::of_f16(coarse.number, most / integers))
                }
                None => (role, NumberRange::of_f16(finest.number, most)),
            })
        };
        let scale = of(
            (BufferRole::Scale, self.scale),
            (BufferRole::CoarseScale, self.coarse_scale),
            self.most_scale(terms * largest),
        );
        let term = of(
            (BufferRole::Correction, self.correction),
            (BufferRole::CoarseCorrection, self.coarse_correction),
            F16.max() / terms,
        );
        // The digits that a small term lacks are small beside weights of scales that lack none.
        let term = term.map(|(role, range)| (role, NumberRange { least: 0.0, ..range }));
        scale.into_iter().chain(term).collect()
    }

    /// The largest scale that f16 takes, and with which a number of this size is one of f16.
    fn most_scale(&self, largest: f64) -> f64 {
        let (_, exponent) = self.plan.dequant.encoding();
        (F16.max() / largest).min(F16.max() * 2f64.powi(exponent))
    }

    /// The power of two of last dequantisation steps that scales in [`Self::param_ranges`] stand for: of powers of two, which multiply
    /// weights exactly. Larger ones are multiplied separately, since their products with it are beyond bf16.
    pub fn power_of_range(&self) -> Option<i32> {
        let folded = self.plan.scale.folded?;
        let separate = folded.rounding == WeightRounding::Exact && folded.exponent.is_none();
        let powers =
            self.scale.is_some_and(|scale| scale.number == Number::E8m0 && scale.rows == 1);
        let multiplies = separate && powers && self.half() == Some(Half::Bf16);
        let power = multiplies.then(|| self.plan.dequant.factor()).flatten();
        power.filter(|&power| power > 0)
    }

    /// Whether the layout is that for numbers in [`Self::param_ranges`] alone.
    pub fn is_of_range(&self) -> bool {
        self.plan.scale.is_of_range(&self.plan.dequant)
    }

    /// The largest magnitude of a weight without its scale, if codes are integers.
    fn largest_weight(&self) -> Option<f64> {
        let Code::Number(Number::Uint(_) | Number::Int(_)) = self.plan.dequant.weight.code else {
            return None;
        };
        let (low, high) = self.plan.dequant.weight.range();
        let scheme_zero = self.stem.0.zero.filter(|_| self.zero.is_some());
        let (least, largest) = match scheme_zero {
            Some(zero) => zero.kind.integer_range()?,
            None => (0.0, 0.0),
        };
        Some((low - largest).abs().max((high - least).abs()).max(1.0))
    }

    /// Whether all scales of groups can multiply weights, with one rounding. bf16 has the range of f32, so that no
    /// scaled weight overflows, and what underflows is as small as in f32; f16 takes those of [`Self::param_ranges`].
    pub(in crate::schedule) fn may_scale_weights(&self) -> bool {
        let taken = |scale: GroupParams| match self.half() {
            Some(Half::Bf16) => scale.number == NUMBER_BF16,
            Some(Half::F16) => scale.number == NUMBER_F16 && self.scales_in_range,
            None => false,
        };
        let may = self.may_round() && !self.scales_of_x_along_k();
        !self.scales_segments() || may && self.scale.is_some_and(taken)
    }

    /// Whether a schedule may choose to round weights.
    pub(super) fn may_round(&self) -> bool {
        self.stem.0.accuracy == Accuracy::Fast
    }

    /// Weights times scales are `2^exponent` times what they should be. In f16, where small ones would lose digits, they are as
    /// they should be if a schedule chooses to multiply them.
    pub fn scaled_exponent(&self) -> i32 {
        let (_, decoded) = self.plan.dequant.encoding();
        match (self.plan.scale.folded, self.half()) {
            (Some(folded), _) => decoded - folded.exponent_deficit,
            (None, Some(Half::F16)) => 0,
            (None, _) => decoded,
        }
    }

    pub(super) fn scales_of_x_along_k(&self) -> bool {
        self.input.scale.and_then(InputScale::columns).is_some()
    }
}
