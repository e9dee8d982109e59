//! The order of columns in a product, and the segments that the product sums separately.
//!
//! A segment has columns that share every scale, zero point and shift, of w and of x. Groups may have any
//! size, and a group index may place columns anywhere. In: a scheme and one of its activations. Out: the
//! plan of a product whose groups are as long as its segments, and the order of columns that this needs.
//!
//! The first of three cases that applies:
//! 1. K-tiles divide groups, or groups divide k-tiles. Nothing is changed.
//! 2. All groups are whole segments of a length that the product supports: 48 columns are three segments of
//!    16. Parameters are repeated for each segment; columns keep their order.
//! 3. Otherwise columns that share all parameters (a set: one group of each kind, and one value of the group
//!    index) are placed together, and each set is padded to whole segments. Codes of pads are 0, and so is x
//!    there, so that pads add nothing.
//!
//! Of all supported lengths of segments the one with the fewest padded columns is chosen, and of equal ones
//! the longest, which has the fewest parameters.
//!
//! In the first case the operand of x may be codes times their finest scale, whose groups then are no segments of the
//! product. In the others x has another order or other groups than its quantiser, and the operand is codes alone.

use std::collections::BTreeSet;

use quantloom_dsl::layout::GroupSize;
use quantloom_dsl::{Activation, Scheme};

use super::mapping::k_tile;
use super::unscheduled::{Unscheduled, UnscheduledPart};
use crate::plan::native::SHARED_BYTES;
use crate::plan::scale::{input_groups, weight_groups};
use crate::plan::{Plan, PlanRange, plan_among};
use crate::target::Target;

/// The longest segment: longer ones save next to nothing.
const LONGEST_SEGMENT: u32 = 128;
/// The most columns over which pads are counted.
const COUNTED: u32 = 1 << 16;

/// An order of columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Columns of a segment: sets are padded to whole segments.
    pub segment: u32,
    /// Whether the columns of a set have the same group index.
    pub indexed: bool,
    /// Sizes of the groups that contain each set, counted along K.
    pub groups: Vec<u32>,
}

/// A product whose groups a schedule supports.
pub(super) struct Arranged {
    /// The scheme and the activation, with segments as groups.
    pub(super) scheme: Scheme,
    pub(super) activation: Activation,
    pub(super) plan: Plan,
    /// Columns of a k-tile.
    pub(super) k_tile: u32,
    /// `None` for the stored order.
    pub(super) order: Option<Order>,
}

impl Arranged {
    pub(super) fn new(
        scheme: &Scheme,
        activation: &Activation,
        target: &'static Target,
        plans: PlanRange,
    ) -> Result<Self, Unscheduled> {
        let of_codes = PlanRange { folding: false, of_range: false, ..plans };
        let of_weights = sizes(weight_groups(scheme));
        let of_x = sizes(input_groups(activation));
        // A group index without groups has no effect.
        let indexed = scheme.index.is_some() && !of_weights.is_empty();
        let scheme = Scheme { index: scheme.index.filter(|_| indexed), ..scheme.clone() };
        let sizes: BTreeSet<u32> = of_weights.iter().chain(&of_x).copied().collect();
        if !indexed {
            let natural = |plans: PlanRange| {
                let natural = Self::posed(&scheme, activation, target, (plans, None));
                natural.and_then(|this| this.regular(&sizes))
            };
            // Where no layout is one for a range, the plan is that for any scales.
            if plans.of_range
                && let Ok(this) = natural(plans)
                && this.plan.scale.is_of_range(&this.plan.dequant)
            {
                return Ok(this);
            }
            let any = PlanRange { of_range: false, ..plans };
            let natural = natural(any).or_else(|_| natural(of_codes));
            if natural.is_ok() || sizes.is_empty() {
                return natural;
            }
        }
        let groups = if indexed { of_x } else { sizes };
        // Columns of one index are spread over the groups of x.
        let balanced = of_weights.last().copied().filter(|_| groups.is_empty()).unwrap_or(1);
        let padded = |segment: u32| match indexed {
            true => u64::from(balanced.next_multiple_of(segment)),
            false => padded(&groups, segment),
        };
        let mut segments: Vec<u32> =
            (0..=LONGEST_SEGMENT.ilog2()).rev().map(|log| 1 << log).collect();
        segments.sort_by_key(|&segment| padded(segment));
        let mut why = None;
        for segment in segments {
            let dense = !indexed && groups.iter().all(|group| group.is_multiple_of(segment));
            let order = || Order { segment, indexed, groups: groups.iter().copied().collect() };
            let order = (!dense).then(order);
            let (scheme, activation) = regrouped(&scheme, activation, segment);
            match Self::posed(&scheme, &activation, target, (of_codes, order)) {
                Ok(this) => return Ok(this),
                // An error that the longest segment also has is the reason.
                Err(error) if segment == LONGEST_SEGMENT => why = Some(error),
                Err(_) => {}
            }
        }
        let part = || UnscheduledPart::Groups(groups.iter().copied().collect());
        let none = || Unscheduled::Scheme { target: target.name, part: part() };
        Err(why.unwrap_or_else(none))
    }

    fn posed(
        scheme: &Scheme,
        activation: &Activation,
        target: &'static Target,
        (plans, order): (PlanRange, Option<Order>),
    ) -> Result<Self, Unscheduled> {
        let plan = plan_among(scheme, activation, target, plans)?;
        let step = plan.compute.product.columns;
        let k_tile = k_tile(&plan, step).ok_or_else(|| Unscheduled::Scheme {
            target: target.name,
            part: UnscheduledPart::Segments(plan.scale.segment.unwrap_or(0)),
        })?;
        let (scheme, activation) = (scheme.clone(), activation.clone());
        Ok(Self { scheme, activation, plan, k_tile, order })
    }

    /// This, if k-tiles divide groups of these sizes or groups divide k-tiles, and every schedule of the
    /// target supports such k-tiles.
    fn regular(self, sizes: &BTreeSet<u32>) -> Result<Self, Unscheduled> {
        let k_tile = self.k_tile;
        let product = &self.plan.compute.product;
        let bytes = k_tile * product.activation.stored_bits() / 8;
        // The tile schedule stores rows of x over all banks of shared memory.
        let whole = product.matrix.is_none() || bytes.is_multiple_of(SHARED_BYTES);
        let regular = |size: u32| size.is_multiple_of(k_tile) || k_tile.is_multiple_of(size);
        match sizes.iter().find(|size| !whole || !regular(**size)) {
            None => Ok(self),
            Some(&group) => Err(Unscheduled::Scheme {
                target: self.plan.target.name,
                part: UnscheduledPart::GroupsInKTiles { group, k_tile },
            }),
        }
    }
}

/// Sizes of groups, without whole rows.
fn sizes(granularity: impl Iterator<Item = GroupSize>) -> BTreeSet<u32> {
    granularity
        .filter_map(|group_size| match group_size {
            GroupSize::Each(columns) => Some(columns),
            GroupSize::All => None,
        })
        .collect()
}

/// The scheme and the activation with groups of `segment` columns.
fn regrouped(scheme: &Scheme, activation: &Activation, segment: u32) -> (Scheme, Activation) {
    let shorten = |cols: &mut GroupSize| {
        if let GroupSize::Each(columns) = cols {
            *columns = segment;
        }
    };
    let (mut scheme, mut activation) = (scheme.clone(), activation.clone());
    scheme.scales.iter_mut().for_each(|scale| shorten(&mut scale.group.cols));
    if let Some(zero) = &mut scheme.zero {
        shorten(&mut zero.group.cols);
    }
    scheme.shifts.iter_mut().for_each(|shift| shorten(&mut shift.group.cols));
    if let Activation::Quantised(quantiser) = &mut activation {
        quantiser.scales.iter_mut().for_each(|scale| shorten(&mut scale.group.cols));
    }
    (scheme, activation)
}

/// The number of columns after each interval between group ends is padded to whole segments.
fn padded(groups: &BTreeSet<u32>, segment: u32) -> u64 {
    let (mut first, mut columns) = (0, 0);
    while first < COUNTED {
        let ends = groups.iter().map(|group| (first / group + 1) * group);
        let end = ends.min().unwrap_or(COUNTED);
        columns += u64::from((end - first).next_multiple_of(segment));
        first = end;
        // From here on the pattern repeats.
        if groups.iter().all(|group| first.is_multiple_of(*group)) {
            return columns * u64::from(COUNTED) / u64::from(first);
        }
    }
    columns
}
