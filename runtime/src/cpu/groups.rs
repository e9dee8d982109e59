//! Groups along K: their columns in the native layout, and the segments of integer products.
//!
//! In: a scheme's groups of w and of x. Out: the columns of a native group, the order of columns, the
//! columns that have one scale on both sides, what integer products read of x beside codes.

use quantloom_dsl::layout::{Component, GroupSize, Shape};
use quantloom_dsl::{Quantiser, Scheme, SignedBytes};

use super::kernels::CHUNK;
use super::native::Path;
use crate::column_order::{Arrangement, ColumnOrder};
use crate::unpacked::Unpacked;

/// The shortest segment of integer products.
pub(super) const HALF_CHUNK: usize = CHUNK / 2;

/// The integers of x, as integer products read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntegerInput {
    /// Columns that share a scale and a zero point; `None` if those of a row do.
    pub group: Option<usize>,
    /// Whether there are zero points.
    pub zero_points: bool,
    /// How codes become signed bytes.
    pub bytes: SignedBytes,
}

impl IntegerInput {
    /// Those of a quantiser; `None` if its codes are no signed bytes.
    pub fn of(quantiser: &Quantiser, shape: Shape) -> Option<Self> {
        let bytes = SignedBytes::of(quantiser.code)?;
        let zero_points = quantiser.zero.is_some() || bytes.centre != 0;
        Some(Self { group: activation_columns(quantiser, shape), zero_points, bytes })
    }
}

/// The permutation of the columns of one expert.
pub(super) struct ExpertColumns {
    pub(super) order: Option<Vec<u32>>,
    /// A column of each native group, if the group has one.
    pub(super) source: Vec<Option<u64>>,
}

/// Columns of a native group, and the permutation of each expert's columns.
pub(super) fn arrange(weight: &Unpacked) -> (usize, Vec<ExpertColumns>) {
    let shape = weight.shape();
    let k = shape.k as usize;
    let group = group_columns(weight.scheme(), shape);
    let whole = matches!(group, 4 | 8 | 16) || group.is_multiple_of(CHUNK);
    let index = weight.index();
    let as_stored = |source: Vec<Option<u64>>| -> Vec<ExpertColumns> {
        let one = |_| ExpertColumns { order: None, source: source.clone() };
        (0..shape.experts).map(one).collect()
    };
    // Of one group an index says nothing.
    if group >= k {
        return (k.next_multiple_of(CHUNK), as_stored(vec![Some(0)]));
    }
    if whole && index.is_none() {
        return (group, as_stored((0..shape.k).step_by(group).map(Some).collect()));
    }
    let orders = |width: usize| -> Vec<ColumnOrder> {
        let groups = if index.is_none() { vec![group as u32] } else { Vec::new() };
        let arrangement =
            Arrangement { segment: width as u32, indexed: index.is_some(), groups, whole: 1 };
        let expert = |expert: usize| index.map(|index| &index[expert * k..][..k]);
        let experts = (0..shape.experts as usize).map(expert);
        experts.map(|index| ColumnOrder::new(&arrangement, index, shape.k)).collect()
    };
    let (width, orders) = match index {
        None => (filled_columns(group), orders(filled_columns(group))),
        Some(_) => {
            // Act-order over all of K: every group has its number of columns, and nothing is padded.
            let full = orders(group);
            let padded = |order: &ColumnOrder| order.columns().len() > k.next_multiple_of(group);
            match whole && !full.iter().any(padded) {
                true => (group, full),
                false => (CHUNK, orders(CHUNK)),
            }
        }
    };
    let arranged = orders.into_iter().map(|order| {
        // A group begins with a column.
        let source = order.columns().chunks(width).map(|columns| Some(u64::from(columns[0])));
        ExpertColumns { source: source.collect(), order: Some(order.into_columns()) }
    });
    (width, arranged.collect())
}

/// Columns of a padded group.
fn filled_columns(group: usize) -> usize {
    if group > 16 { group.next_multiple_of(CHUNK) } else { group.next_power_of_two().max(4) }
}

/// Columns of a scheme's native groups, if columns are not permuted; `None` if there are none.
pub(super) fn dot_columns(scheme: &Scheme, shape: Shape) -> Option<usize> {
    let group = group_columns(scheme, shape);
    (group < shape.k as usize).then(|| filled_columns(group))
}

/// Whether the native columns of a scheme are in another order than those of x, or padded between
/// groups.
pub(super) fn permutes(scheme: &Scheme, shape: Shape) -> bool {
    let group = group_columns(scheme, shape);
    group < shape.k as usize && (scheme.index.is_some() || filled_columns(group) != group)
}

/// The greatest common divisor of the groups of x along k; `None` if a scale of x is one of a whole
/// row.
fn activation_columns(quantiser: &Quantiser, shape: Shape) -> Option<usize> {
    let columns = quantiser.scales.iter().filter_map(|scale| match scale.group.cols {
        GroupSize::Each(columns) if u64::from(columns) < shape.k => Some(u64::from(columns)),
        _ => None,
    });
    let common = columns.fold(0, gcd);
    (common != 0).then_some(common as usize)
}

/// The columns that have one scale on both sides: the greatest common divisor of the groups of w and
/// of x; `None` if both have one scale a row.
pub(super) fn common_columns(weight: Option<usize>, x: Option<usize>) -> Option<usize> {
    let common = gcd(weight.unwrap_or(0) as u64, x.unwrap_or(0) as u64);
    (common != 0).then_some(common as usize)
}

/// Whether integer products can have segments of whole groups, or of parts of them.
pub(super) fn divides_into_segments(columns: usize) -> bool {
    columns.is_multiple_of(HALF_CHUNK)
}

/// Columns of a segment, at most `most`, if so many columns have one scale: the largest divisor in
/// whole chunks; where there is none, half a chunk. `most` is a multiple of a chunk.
pub(super) fn segment(columns: usize, most: usize, path: Path) -> usize {
    let chunks = columns / CHUNK;
    if path == Path::Dot && !columns.is_multiple_of(CHUNK) {
        return HALF_CHUNK;
    }
    if columns <= most {
        return columns;
    }
    let parts = (1..=chunks).find(|parts| chunks.is_multiple_of(*parts) && columns / parts <= most);
    columns / parts.unwrap_or(chunks)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The greatest common divisor of all groups along k; K or more if there are none.
fn group_columns(scheme: &Scheme, shape: Shape) -> usize {
    let parts = scheme.components().into_iter().filter(|component| {
        matches!(component, Component::Scale(_) | Component::Zero | Component::Shift(_))
    });
    let columns = parts.filter_map(|part| match scheme.granularity(part)?.cols {
        GroupSize::Each(columns) => Some(u64::from(columns)),
        GroupSize::All => None,
    });
    let common = columns.fold(0, gcd);
    if common == 0 { shape.k as usize } else { common as usize }
}
