//! A checkpoint's own bytes to native buffers and back, by kernels where the source has some.
//!
//! In: the bytes of stored tensors. Out: the memory of a [`NativeBuffer`], transformed on the device;
//! where no transform is scheduled, packed by the host as before, which is said.

use std::collections::BTreeMap;

use quantloom_dsl::Scheme;
use quantloom_dsl::layout::Shape;

use super::executor::Executor;
use super::native::NativeBuffer;
use super::products::Request;
use super::transform::transformed;
use super::weight::Filling;
use crate::column_order::{Arrangement, ColumnOrder};
use crate::op::ProductError;
use crate::unpacked::{UnpackError, Unpacked};
use crate::weight_data::Stored;

/// Fills native buffers from stored tensors: on the device, or by the host where there is no transform.
pub(super) struct Repacker<'s, 'b, E: Executor> {
    executor: &'s E,
    shape: Shape,
    stored: Stored<'s, 'b>,
    /// By store.
    uploaded: BTreeMap<String, E::Memory>,
    /// Orders of columns.
    orders: Vec<(ColumnOrder, E::Memory)>,
    /// For buffers that the host packs: all but the codes, and all.
    small: Option<Unpacked>,
    whole: Option<Unpacked>,
}

/// A native buffer, and how it was filled.
pub(super) struct Filled<M> {
    pub(super) memory: M,
    pub(super) bytes: u64,
    /// A line for whoever asks for an explanation.
    pub(super) note: Option<String>,
}

impl<'s, 'b, E: Executor> Repacker<'s, 'b, E> {
    pub(super) fn new(executor: &'s E, shape: Shape, stored: Stored<'s, 'b>) -> Self {
        Self {
            executor,
            shape,
            stored,
            uploaded: BTreeMap::new(),
            orders: Vec::new(),
            small: None,
            whole: None,
        }
    }

    fn filled(
        &mut self,
        request: &Request<'_>,
        order: Option<&ColumnOrder>,
        part: &NativeBuffer,
    ) -> Result<Filled<E::Memory>, ProductError> {
        match self.transform(request, order, part) {
            Ok(filled) => Ok(filled),
            Err(ProductError::NotScheduled(why)) => {
                let executor = self.executor;
                tracing::info!(buffer = %part.role, %why, "packed by the host");
                let unpacked = match part.form.reads_codes() {
                    true => self.whole(request.scheme)?,
                    false => self.small(request.scheme)?,
                };
                let mut filled = packed(executor, unpacked, order, part)?;
                filled.note = Some(format!("{}: packed by the host: {why}", part.role));
                Ok(filled)
            }
            Err(error) => Err(error),
        }
    }

    fn transform(
        &mut self,
        request: &Request<'_>,
        order: Option<&ColumnOrder>,
        part: &NativeBuffer,
    ) -> Result<Filled<E::Memory>, ProductError> {
        let moves = self.executor.source().repack_kernels(request, part)?;
        // Before anything is uploaded for it.
        self.executor.kernel(&moves.to_native).map_err(Into::into)?;
        for store in &moves.stores {
            if !self.uploaded.contains_key(store) {
                let missing = || ProductError::Pack(Box::new(UnpackError::Missing(store.clone())));
                let bytes = (self.stored)(store).ok_or_else(missing)?;
                let memory = self.executor.upload(bytes).map_err(Into::into)?;
                self.uploaded.insert(store.clone(), memory);
            }
        }
        let order = order.filter(|_| moves.order);
        if let Some(order) = order
            && self.orders.iter().all(|(known, _)| known != order)
        {
            let memory = self.executor.upload(&order.bytes()).map_err(Into::into)?;
            self.orders.push((order.clone(), memory));
        }
        let stored = moves.stores.iter().filter_map(|store| self.uploaded.get(store));
        let mut orders = self.orders.iter().filter(|(known, _)| Some(known) == order);
        let order = orders.next().map(|(_, memory)| memory);
        let stored: Vec<&E::Memory> = stored.chain(order).collect();
        // SAFETY: the source's own key for this buffer of the request; `ColumnOrder` names columns of the
        // weight that it was made of, which is this one (`of_stored`).
        let transformed =
            unsafe { transformed(self.executor, &moves.to_native, self.shape, &stored) };
        let (memory, bytes) = transformed?;
        tracing::debug!(buffer = %part.role, stores = ?moves.stores, "transformed on the device");
        let note = Some(format!("{}: transformed on the device", part.role));
        Ok(Filled { memory, bytes, note })
    }

    /// What the layer has besides its codes, unpacked by the host.
    pub(super) fn small(&mut self, scheme: &Scheme) -> Result<&Unpacked, ProductError> {
        let small = match (self.small.take(), &self.whole) {
            (Some(small), _) => small,
            (None, Some(whole)) => return Ok(whole),
            (None, None) => Unpacked::without_codes(scheme, self.shape, self.stored)
                .map_err(|error| ProductError::Pack(Box::new(error)))?,
        };
        Ok(self.small.insert(small))
    }

    /// The layer, unpacked by the host.
    fn whole(&mut self, scheme: &Scheme) -> Result<&Unpacked, ProductError> {
        let whole = match self.whole.take() {
            Some(whole) => whole,
            None => Unpacked::new(scheme, self.shape, self.stored)
                .map_err(|error| ProductError::Pack(Box::new(error)))?,
        };
        Ok(self.whole.insert(whole))
    }
}

impl<E: Executor> Filling<E::Memory> for Repacker<'_, '_, E> {
    fn order(
        &mut self,
        request: &Request<'_>,
        arrangement: &Arrangement,
    ) -> Result<ColumnOrder, ProductError> {
        Ok(ColumnOrder::of(arrangement, self.small(request.scheme)?))
    }

    fn fill(
        &mut self,
        request: &Request<'_>,
        order: Option<&ColumnOrder>,
        part: &NativeBuffer,
    ) -> Result<Filled<E::Memory>, ProductError> {
        self.filled(request, order, part)
    }
}

/// A buffer as the host packs it.
pub(super) fn packed<E: Executor>(
    executor: &E,
    weight: &Unpacked,
    order: Option<&ColumnOrder>,
    part: &NativeBuffer,
) -> Result<Filled<E::Memory>, ProductError> {
    let bytes = part.pack(weight, order).map_err(|error| ProductError::Pack(Box::new(error)))?;
    let memory = executor.upload(&bytes).map_err(Into::into)?;
    Ok(Filled { memory, bytes: bytes.len() as u64, note: None })
}
