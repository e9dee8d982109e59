//! Expert layers in an engine's own memory, on an engine's own stream.
//!
//! In: a [`LayerPlan`], the addresses of x, of logits or of ids and router weights, of y and of a workspace,
//! a stream. Out: the plan's kernels, queued. Nothing is allocated, copied or waited for, so that a graph may
//! capture it: each replay reads what is at the addresses by then, other experts too.

use std::ffi::c_void;

use super::api::DriverApi;
use super::arguments::{DeviceSlice, DeviceSliceMut};
use super::engine::{Inputs, Memory, address, queue};
use super::error::DriverError;
use super::executor::DriverExecutor;
use super::functions::Handle;
use crate::gpu::LayerPlan;
use crate::source::BufferRole;

/// Which experts the tokens of a call meet, in device memory.
#[derive(Clone, Copy)]
pub enum RoutedSlices<'a> {
    /// The router's logits [M, E], f32: for plans of [`RoutedBy::Logits`](crate::gpu::RoutedBy).
    Logits(DeviceSlice<'a>),
    /// Chosen by the caller.
    Chosen {
        /// [M, k], i32, in the order of choice. An id below 0, or of E or more, is not an expert.
        ids: DeviceSlice<'a>,
        /// The router weights [M, k], f32.
        weights: DeviceSlice<'a>,
    },
}

/// What a call reads, in device memory; each begins at a multiple of 16 bytes.
#[derive(Clone, Copy)]
pub struct ExpertSlices<'a> {
    /// [M, H] of the plan's type, rows without gaps.
    pub x: DeviceSlice<'a>,
    /// Which experts the tokens meet.
    pub routed: RoutedSlices<'a>,
    /// The result [M, H] of shared experts, of a plan that adds it.
    pub shared: Option<DeviceSlice<'a>>,
}

impl ExpertSlices<'_> {
    fn slice(&self, role: BufferRole) -> Option<(u64, u64)> {
        let slice = match (role, &self.routed) {
            (BufferRole::X, _) => Some(&self.x),
            (BufferRole::Shared, _) => self.shared.as_ref(),
            (BufferRole::Logits, RoutedSlices::Logits(logits)) => Some(logits),
            (BufferRole::Ids, RoutedSlices::Chosen { ids, .. }) => Some(ids),
            (BufferRole::RouterWeights, RoutedSlices::Chosen { weights, .. }) => Some(weights),
            _ => None,
        };
        slice.map(|slice| (slice.address(), slice.bytes()))
    }
}

impl<D: DriverApi> LayerPlan<DriverExecutor<D>> {
    /// Queues y [M, H] of the layer on a stream, a `CUstream`, `cudaStream_t` or `hipStream_t`.
    ///
    /// y has [`LayerPlan::y_bytes`], the workspace
    /// [`WorkspaceBytes::total`](crate::gpu::WorkspaceBytes::total) bytes or more; both begin at multiples
    /// of 16 bytes. With `overlap` kernels may start before the one before has ended (programmatic
    /// dependent launch), the first one before the work that is queued before.
    ///
    /// # Safety
    /// - The stream is one of the context of the layer's executor; where it is the calling thread's default
    ///   stream, that of the context as well.
    /// - All slices are memory of that context, y and the workspace overlap nothing, and all stay, as the
    ///   plan does, until the work is done: if a graph captures it, until the last replay is.
    /// - The first [`WorkspaceBytes::counters`](crate::gpu::WorkspaceBytes) bytes of the workspace were
    ///   0 before the first launch with it, and nobody but such launches has written there since. The rest
    ///   may hold anything.
    /// - What other streams do with the slices is ordered with this stream.
    /// - With `overlap`, a kernel before this one that was itself launched so has waited for what was
    ///   before it.
    ///
    /// # Errors
    /// An input that the plan reads and the call lacks, memory that is too small or not aligned, or what
    /// the driver answered.
    pub unsafe fn launch(
        &self,
        stream: *mut c_void,
        inputs: &ExpertSlices<'_>,
        y: DeviceSliceMut<'_>,
        workspace: DeviceSliceMut<'_>,
        overlap: bool,
    ) -> Result<(), DriverError> {
        let mut given = Inputs::default();
        for role in Inputs::ROLES {
            let expected = self.input_bytes(role);
            if expected == 0 {
                continue;
            }
            let missing = || DriverError::MissingInput { input: role };
            let (at, bytes) = inputs.slice(role).ok_or_else(missing)?;
            given.set(role, address(&role.to_string(), at, bytes, expected)?);
        }
        let y = address("y", y.address(), y.bytes(), self.y_bytes())?;
        let mut memory = Memory::of_launch(given, y, workspace, self.workspace())?;
        let current = self.executor().stream().context().enter()?;
        for (_, chunk) in &self.chunks {
            for launch in &chunk.launches {
                // SAFETY: the caller's promise.
                unsafe { queue(&current, Handle(stream), (chunk, launch), memory, overlap) }?;
            }
            memory = memory.behind(chunk);
        }
        Ok(())
    }
}
