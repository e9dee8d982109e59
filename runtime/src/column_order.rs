//! The order in which a product takes the columns of w and x along K.
//!
//! In: an [`Arrangement`], which the source of a kernel asks for, and the group index of a layer, if it
//! has one. Out: a [`ColumnOrder`]. Columns that share every scale, zero point and shift, of w and of x,
//! are a segment. A product sums runs of equal length, so that each segment is padded to whole runs.

use std::fmt;

use quantloom_dsl::layout::{Granularity, GroupSize, Shape};

use crate::unpacked::Unpacked;

/// How a product wants columns, where it does not take them as they are stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arrangement {
    /// Columns of a segment, which share all group parameters. Each group of columns is padded to whole
    /// segments.
    pub segment: u32,
    /// Whether columns are sorted by the group index of the layer; a segment has one value of it.
    pub indexed: bool,
    /// Sizes of groups that are counted along K: a segment is inside of one group of each.
    pub groups: Vec<u32>,
    /// The whole order is padded to a multiple of so many columns.
    pub whole: u32,
}

impl fmt::Display for Arrangement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, indexed, groups, whole } = self;
        let index = if *indexed { "the group index and " } else { "" };
        write!(f, "by {index}groups of {groups:?} in segments of {segment}, {whole} at a time")
    }
}

/// Columns of w in the order of their groups: those of a group side by side, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnOrder(Vec<u32>);

/// No column: zero in w and x.
pub const NO_COLUMN: u32 = u32::MAX;

impl ColumnOrder {
    /// That of a layer.
    pub fn of(arrangement: &Arrangement, weight: &Unpacked) -> Self {
        let index = weight.index().filter(|_| arrangement.indexed);
        Self::new(arrangement, index, weight.shape().k)
    }

    /// Of K columns, by their group index `[K]` if one is given.
    pub fn new(arrangement: &Arrangement, index: Option<&[u32]>, k: u64) -> Self {
        let Arrangement { segment, groups, whole, .. } = arrangement;
        let group_of = |column: u32| {
            let indexed = index.and_then(|index| index.get(column as usize));
            let counted = groups.iter().map(move |group| column / group.max(&1));
            indexed.copied().into_iter().chain(counted)
        };
        let mut columns: Vec<u32> = (0..u32::try_from(k).unwrap_or(NO_COLUMN)).collect();
        // Columns of a group keep their order.
        columns.sort_by(|one, other| group_of(*one).cmp(group_of(*other)));
        let mut order = Vec::with_capacity(columns.len());
        for columns in columns.chunk_by(|one, other| group_of(*one).eq(group_of(*other))) {
            order.extend(columns);
            order.resize(order.len().next_multiple_of((*segment).max(1) as usize), NO_COLUMN);
        }
        order.resize(order.len().next_multiple_of((*whole).max(1) as usize), NO_COLUMN);
        Self(order)
    }

    /// Pads the order to so many places, if it has fewer.
    pub(crate) fn pad(&mut self, places: usize) {
        self.0.resize(self.0.len().max(places), NO_COLUMN);
    }

    /// One that was kept: a column of w or [`NO_COLUMN`] for each place.
    pub(crate) fn kept(columns: Vec<u32>) -> Self {
        Self(columns)
    }

    /// The column of w and x at each place, [`NO_COLUMN`] where there is none.
    pub fn columns(&self) -> &[u32] {
        &self.0
    }

    /// [`Self::columns`] as a vector.
    pub(crate) fn into_columns(self) -> Vec<u32> {
        self.0
    }

    /// The same as bytes, u32, little-endian.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|column| column.to_le_bytes()).collect()
    }

    /// The shape of w in this order.
    pub fn shape(&self, shape: Shape) -> Shape {
        Shape { k: self.0.len() as u64, ..shape }
    }

    /// The first column of w from a place on, inside of its group.
    pub(crate) fn first_of(&self, place: u64, granularity: Granularity) -> Option<u64> {
        let places = self.0.get(place as usize..)?;
        let group = match granularity.cols {
            GroupSize::Each(columns) => &places[..places.len().min(columns as usize)],
            GroupSize::All => places,
        };
        group.iter().copied().find(|&column| column != NO_COLUMN).map(u64::from)
    }

    /// Codes [N, K] in this order, 0 where there is no column.
    pub(crate) fn codes(&self, weight: &Unpacked) -> Vec<u8> {
        let k = weight.shape().k as usize;
        let row = |row: &[u8]| -> Vec<u8> {
            self.0.iter().map(|&at| row.get(at as usize).copied().unwrap_or(0)).collect()
        };
        weight.codes().chunks(k.max(1)).flat_map(row).collect()
    }
}
