//! What products are given besides a weight and x, and what is known before x is: the order of columns,
//! and the scales and zero points of static activations.

use std::collections::BTreeMap;

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::{Component, Shape};

use super::native::ColumnOrder;
use crate::unpacked::Unpacked;

/// What belongs to a layer and not to its weight: where columns go, and what is known of x.
#[derive(Default)]
pub(super) struct Given {
    /// Their bytes, by the names of buffers.
    pub(super) buffers: BTreeMap<String, Vec<u8>>,
}

impl Given {
    /// The buffer of the columns' order, u32.
    pub(super) const ORDER: &str = "order";
    const ZERO: &str = "input_zero";

    fn scale(level: usize) -> String {
        format!("input_scale_{level}")
    }

    pub(super) fn of(weight: &Unpacked, order: Option<&ColumnOrder>) -> Self {
        let floats = |values: &[f64]| -> Vec<u8> {
            values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect()
        };
        let scales = weight.input().scales.iter().enumerate();
        let scales = scales.map(|(level, values)| (Self::scale(level), floats(values)));
        let zeros = (Self::ZERO.to_owned(), floats(&weight.input().zeros));
        let order = order.map_or(&[][..], ColumnOrder::columns);
        let order = order.iter().flat_map(|column| column.to_le_bytes()).collect();
        let all = scales.chain([zeros, (Self::ORDER.to_owned(), order)]);
        Self { buffers: all.filter(|(_, bytes)| !bytes.is_empty()).collect() }
    }

    /// The buffers that a scheme's layers have.
    pub(super) fn names(scheme: &Scheme) -> Vec<String> {
        let levels = scheme.quantiser().map_or(0, |quantiser| quantiser.scales.len());
        let levels = (0..levels).zip(0u8..);
        let scales = levels.map(|(level, at)| (Self::scale(level), Component::InputScale(at)));
        let others = [
            (Self::ZERO.to_owned(), Component::InputZero),
            (Self::ORDER.to_owned(), Component::Index),
        ];
        let stored = |(name, component)| scheme.number(component).map(|_| name);
        scales.chain(others).filter_map(stored).collect()
    }

    /// Columns of w as products take them.
    pub(super) fn columns(&self, shape: Shape) -> u64 {
        self.buffers.get(Self::ORDER).map_or(shape.k, |order| order.len() as u64 / 4)
    }
}
