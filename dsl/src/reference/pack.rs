//! Packing and unpacking, bit by bit, with the address function.

use std::collections::BTreeMap;

use super::ReferenceError;
use crate::Scheme;
use crate::layout::{
    BitContent, BoundLayout, Component, Element, Fill, Granularity, Index, Shape, read_bits,
    write_bits,
};

/// The stored tensors of one layer: bytes by store name.
pub type StoredTensors = BTreeMap<String, Vec<u8>>;

/// Unpacked elements: the raw codes of each component, one `u32` per element, in the order (expert,
/// row group, column group), the last fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainCodes {
    /// The shape.
    pub shape: Shape,
    /// Codes by component.
    pub components: BTreeMap<Component, Vec<u32>>,
}

impl PlainCodes {
    /// The codes of a component; empty if the component is absent.
    pub fn of(&self, component: Component) -> &[u32] {
        self.components.get(&component).map_or(&[], Vec::as_slice)
    }
}

/// Position of the element that an index belongs to.
pub(super) fn position(granularity: Granularity, shape: Shape, index: Index) -> usize {
    let (rows, cols) = granularity.elements(shape);
    ((index.e * rows + granularity.rows.group(index.n)) * cols + granularity.cols.group(index.k))
        as usize
}

/// The first index of each element, in the order of [`PlainCodes`].
pub(super) fn elements(granularity: Granularity, shape: Shape) -> impl Iterator<Item = Index> {
    use crate::layout::GroupSize;
    let step = |group_size: GroupSize, extent: u64| match group_size {
        GroupSize::Each(count) => u64::from(count),
        GroupSize::All => extent,
    };
    let (by_n, by_k) = (step(granularity.rows, shape.n), step(granularity.cols, shape.k));
    (0..shape.experts).flat_map(move |e| {
        (0..shape.n)
            .step_by(by_n as usize)
            .flat_map(move |n| (0..shape.k).step_by(by_k as usize).map(move |k| Index { e, n, k }))
    })
}

fn bind(scheme: &Scheme, shape: Shape) -> Result<Vec<(String, BoundLayout)>, ReferenceError> {
    let bind = |store: &crate::Store| match scheme.bind(store, shape) {
        Ok(bound) => Ok((store.name.clone(), bound)),
        Err(error) => Err(ReferenceError::Bind { store: store.name.clone(), error }),
    };
    scheme.stores.iter().map(bind).collect()
}

/// Reads every component's codes from the stored tensors.
///
/// # Errors
/// [`ReferenceError::Bind`], [`ReferenceError::Missing`], [`ReferenceError::Size`].
pub fn unpack(
    scheme: &Scheme,
    shape: Shape,
    packed: &StoredTensors,
) -> Result<PlainCodes, ReferenceError> {
    let stores = bind(scheme, shape)?;
    for (name, bound) in &stores {
        let bytes = packed.get(name).ok_or_else(|| ReferenceError::Missing(name.clone()))?;
        if bytes.len() as u64 != bound.bytes() {
            return Err(ReferenceError::Size {
                store: name.clone(),
                expected: bound.bytes(),
                found: bytes.len() as u64,
            });
        }
    }
    let mut components = BTreeMap::new();
    for component in scheme.components() {
        let Some(granularity) = scheme.granularity(component) else { continue };
        let code = |index: Index| {
            let mut code = 0;
            for bit in 0..granularity.bits {
                for (name, bound) in &stores {
                    if let Some(address) = bound.address(Element { component, index, bit }) {
                        code |= (read_bits(&packed[name], address, 1) as u32) << bit;
                    }
                }
            }
            code
        };
        components.insert(component, elements(granularity, shape).map(code).collect());
    }
    Ok(PlainCodes { shape, components })
}

/// Writes every component's codes into stored tensors; holes get their fill.
///
/// # Errors
/// [`ReferenceError::Bind`], or [`ReferenceError::Length`] if a component has the wrong
/// number of codes.
pub fn pack(scheme: &Scheme, plain: &PlainCodes) -> Result<StoredTensors, ReferenceError> {
    let shape = plain.shape;
    for component in scheme.components() {
        let Some(granularity) = scheme.granularity(component) else { continue };
        let (rows, cols) = granularity.elements(shape);
        let (expected, found) = (shape.experts * rows * cols, plain.of(component).len() as u64);
        if expected != found {
            return Err(ReferenceError::Length { what: "a component", expected, found });
        }
    }
    let bit_of = |component: Component, index: Index, bit: u32| {
        let granularity = scheme.granularity(component)?;
        let code = plain.of(component).get(position(granularity, shape, index))?;
        Some(u64::from(code >> bit & 1))
    };
    let mut packed = StoredTensors::new();
    for (name, bound) in bind(scheme, shape)? {
        let mut bytes = vec![0; bound.bytes() as usize];
        for address in 0..bound.bits() {
            let bit = match bound.content(address) {
                BitContent::Bit(at) => bit_of(at.component, at.index, at.bit),
                BitContent::Sign(component, index) => {
                    let top =
                        scheme.granularity(component).map_or(1, |granularity| granularity.bits) - 1;
                    bit_of(component, index, top)
                }
                BitContent::Hole(Fill::One) => Some(1),
                BitContent::Hole(_) => None,
            };
            write_bits(&mut bytes, address, 1, bit.unwrap_or(0));
        }
        packed.insert(name, bytes);
    }
    Ok(packed)
}
