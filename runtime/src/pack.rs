//! Packing: from plain codes to a scheme's stored tensors.

use std::collections::BTreeMap;

use quantloom_dsl::layout::{Component, Granularity, Layout, Recode, Shape, Transform};
use quantloom_dsl::reference::{PlainCodes, StoredTensors};
use quantloom_dsl::{Scheme, Store};

use crate::unpacked::UnpackError;

/// Packs plain codes with the layout transforms; the bytes are those of the reference's `pack`.
///
/// # Errors
/// [`UnpackError::Bind`], [`UnpackError::Transform`], [`UnpackError::Missing`].
pub fn pack(scheme: &Scheme, plain: &PlainCodes) -> Result<StoredTensors, UnpackError> {
    crate::forked::check().map_err(UnpackError::Forked)?;
    let mut slots = Slots::new(plain.shape);
    for component in scheme.components() {
        slots.extend(scheme, component, plain.of(component));
    }
    slots.pack(scheme)
}

/// Plain codes while a layer is quantised: 1, 2 or 4 bytes per code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    shape: Shape,
    components: BTreeMap<Component, Vec<u8>>,
}

/// Bytes of a component's plain code.
fn slot(granularity: Granularity) -> usize {
    (granularity.bits.next_power_of_two().max(8) / 8) as usize
}

impl Slots {
    /// No codes yet, for a layer of this shape.
    pub(crate) fn new(shape: Shape) -> Self {
        Self { shape, components: BTreeMap::new() }
    }

    /// Adds codes of a component, in the order (expert, row group, column group).
    pub(crate) fn extend(&mut self, scheme: &Scheme, component: Component, codes: &[u32]) {
        let Some(granularity) = scheme.granularity(component) else { return };
        let bytes =
            codes.iter().flat_map(|code| code.to_le_bytes().into_iter().take(slot(granularity)));
        let (rows, cols) = granularity.elements(self.shape);
        let all = (self.shape.experts * rows * cols) as usize * slot(granularity);
        let slots = self.components.entry(component);
        slots.or_insert_with(|| Vec::with_capacity(all)).extend(bytes);
    }

    /// Whether all codes of a component are this one; not if there are none, or if they have more bytes.
    pub(crate) fn all_are(&self, component: Component, code: u8) -> bool {
        let slots = self.components.get(&component);
        slots.is_some_and(|slots| slots.iter().all(|slot| *slot == code))
    }

    /// Sets the codes of weights, a byte each, in the order (expert, row, column).
    pub(crate) fn set_codes(&mut self, codes: Vec<u8>) {
        self.components.insert(Component::Code, codes);
    }

    /// The stored tensors of a scheme.
    ///
    /// # Errors
    /// As [`pack`].
    pub(crate) fn pack(&self, scheme: &Scheme) -> Result<StoredTensors, UnpackError> {
        let pack = |store: &Store| Ok((store.name.clone(), self.pack_store(scheme, store)?));
        scheme.stores.iter().map(pack).collect()
    }

    fn pack_store(&self, scheme: &Scheme, store: &Store) -> Result<Vec<u8>, UnpackError> {
        let name = || store.name.clone();
        let bind_fault = |error| UnpackError::Bind { store: name(), error };
        let transform_fault = |error| UnpackError::Transform { store: name(), error };
        let bound = scheme.bind(store, self.shape).map_err(bind_fault)?;
        let mut bytes = bound.blank(&store.layout);
        for component in scheme.components() {
            let Some(granularity) = scheme.granularity(component) else { continue };
            if !store.layout.holds(component) {
                continue;
            }
            let slots = Layout::plain(component, granularity.bits)
                .bind(self.shape, &|_| Some(granularity))
                .map_err(bind_fault)?;
            let source = self.components.get(&component).map_or(&[][..], Vec::as_slice);
            Transform::new(component, &slots, &bound, Recode::Keep)
                .and_then(|transform| transform.run(source, &mut bytes))
                .map_err(transform_fault)?;
        }
        Ok(bytes)
    }
}
