//! Products in an engine's own memory, on an engine's own stream.
//!
//! In: a [`ProductPlan`], the addresses of x, y and a workspace, a stream. Out: the plan's kernels, queued. The
//! driver is asked for the thread's context, for a copy of x where its rows have gaps, for the tensor maps of
//! kernels that have some (encoded on the host, at each launch), and for the launches. Nothing is allocated,
//! waited for or locked, so that any owner of the stream may capture it into a graph.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::api::DriverApi;
use super::arguments::{DeviceSlice, DeviceSliceMut, Expected, LaunchFault, PARAMETERS, aligned};
use super::context::Current;
use super::error::DriverError;
use super::executor::{DriverExecutor, Ready};
use super::functions::Handle;
use super::tensor_map::RawTensorMap;
use crate::gpu::plan::{BufferLocation, Chunk, ReadyLaunch, WORKSPACE_ALIGN};
use crate::gpu::{ProductPlan, WorkspaceBytes};
use crate::source::{BufferRole, LaunchRule, Storage};

/// What x, y and a workspace are multiples of, in bytes: the widest load of a kernel.
const ALIGN: u32 = 16;

/// Addresses of what a caller gives; 0 where there is none.
#[derive(Clone, Copy, Default)]
pub(super) struct Inputs([u64; Inputs::ROLES.len()]);

impl Inputs {
    /// What callers give.
    pub(super) const ROLES: [BufferRole; 5] = [
        BufferRole::X,
        BufferRole::Logits,
        BufferRole::Ids,
        BufferRole::RouterWeights,
        BufferRole::Shared,
    ];

    fn place(role: BufferRole) -> Option<usize> {
        Self::ROLES.iter().position(|known| *known == role)
    }

    fn of(self, role: BufferRole) -> u64 {
        Self::place(role).map_or(0, |at| self.0[at])
    }

    pub(super) fn set(&mut self, role: BufferRole, address: u64) {
        if let Some(at) = Self::place(role) {
            self.0[at] = address;
        }
    }
}

/// Addresses of a launch.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    inputs: Inputs,
    y: u64,
    workspace: u64,
    /// Where scratch is counted back from.
    workspace_end: u64,
}

impl Memory {
    /// Those of a launch whose inputs are known to be long enough.
    pub(super) fn of_launch(
        inputs: Inputs,
        y: u64,
        workspace: DeviceSliceMut<'_>,
        needed: WorkspaceBytes,
    ) -> Result<Self, DriverError> {
        let found = workspace.bytes();
        let workspace = address("workspace", workspace.address(), found, needed.total())?;
        let workspace_end = workspace + found / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
        Ok(Self { inputs, y, workspace, workspace_end })
    }

    /// The addresses behind the rows of a chunk.
    pub(super) fn behind<D: DriverApi>(mut self, chunk: &Chunk<DriverExecutor<D>>) -> Self {
        for (role, bytes) in &chunk.inputs {
            self.inputs.set(*role, self.inputs.of(*role) + bytes);
        }
        Self { y: self.y + chunk.y_bytes, ..self }
    }

    fn of<D: DriverApi>(self, chunk: &Chunk<DriverExecutor<D>>, location: BufferLocation) -> u64 {
        match location {
            BufferLocation::Constant(at) => chunk.constants[at].memory.read().address(),
            BufferLocation::Input(role) => self.inputs.of(role),
            BufferLocation::Y => self.y,
            BufferLocation::Workspace(at) => match chunk.workspace_buffers[at] {
                workspace_buffer if workspace_buffer.storage == Storage::Counters => {
                    self.workspace + workspace_buffer.offset
                }
                workspace_buffer => self.workspace_end - workspace_buffer.offset,
            },
        }
    }
}

fn refused(fault: LaunchFault) -> DriverError {
    DriverError::Launch { entry: "a product".to_owned(), fault }
}

fn long_enough(name: &str, found: u64, expected: u64) -> Result<(), DriverError> {
    if found >= expected {
        return Ok(());
    }
    Err(refused(LaunchFault::Size { parameter: name.to_owned(), expected, found }))
}

/// The address of a slice that is long enough and that the kernels' loads take.
pub(super) fn address(
    name: &str,
    address: u64,
    found: u64,
    expected: u64,
) -> Result<u64, DriverError> {
    long_enough(name, found, expected)?;
    // What is empty may be anywhere.
    if expected > 0 {
        aligned(name, address, ALIGN).map_err(refused)?;
    }
    Ok(address)
}

impl<D: DriverApi> ProductPlan<DriverExecutor<D>> {
    /// Queues `y = x w^T (+ bias)` on a stream, a `CUstream`, `cudaStream_t` or `hipStream_t`.
    ///
    /// x is [M, K] of [`ProductPlan::element`], y [M, N] of [`ProductPlan::output`], both in rows without gaps (else
    /// [`ProductPlan::launch_strided`]). The workspace has [`WorkspaceBytes::total`](crate::gpu::WorkspaceBytes::total) bytes or
    /// more. All three begin at multiples of 16 bytes.
    ///
    /// With `overlap` the first kernel may start before the work that is queued before it has ended
    /// (programmatic dependent launch): it loads weights, and waits before it reads x or writes.
    ///
    /// Nothing is allocated, copied or waited for, so that the stream may be captured by anybody; a
    /// graph then holds these addresses, and each replay multiplies what is in x by then.
    ///
    /// # Safety
    /// - The stream is one of the context of the weight's executor; where it is the calling thread's
    ///   default stream, that of the context as well.
    /// - x, y and the workspace are memory of that context, overlap nowhere, and stay, as the plan does,
    ///   until the work is done: if a graph captures it, until the last replay is.
    /// - The first [`WorkspaceBytes::counters`](crate::gpu::WorkspaceBytes) bytes of the workspace were
    ///   0 before the first launch with it, and nobody but such launches has written there since.
    ///   They are 0 again after each. The rest may hold anything.
    /// - What other streams do with x, y and the workspace is ordered with this stream. So one workspace
    ///   serves any number of plans on one stream, and two streams need one each.
    /// - With `overlap`, a kernel before this one that was itself launched so has waited for what was
    ///   before it.
    ///
    /// # Errors
    /// Memory that is too small or not aligned, or what the driver answered.
    pub unsafe fn launch(
        &self,
        stream: *mut c_void,
        x: DeviceSlice<'_>,
        y: DeviceSliceMut<'_>,
        workspace: DeviceSliceMut<'_>,
        overlap: bool,
    ) -> Result<(), DriverError> {
        let x = address("x", x.address(), x.bytes(), self.x_bytes())?;
        let memory = self.memory(x, y, workspace, self.workspace())?;
        let current = self.executor().stream().context().enter()?;
        // SAFETY: the caller's promise.
        unsafe { self.queue(&current, Handle(stream), memory, [overlap; 2]) }
    }

    /// The workspace of [`ProductPlan::launch_strided`]: that of a launch, and x without gaps.
    pub fn strided_workspace(&self) -> WorkspaceBytes {
        let WorkspaceBytes { counters, scratch } = self.workspace();
        let x = self.x_bytes().next_multiple_of(WORKSPACE_ALIGN);
        WorkspaceBytes { counters, scratch: scratch.saturating_add(x) }
    }

    /// As [`ProductPlan::launch`], of rows of x each of which begins `stride` elements after the one before, at
    /// any address. Kernels take rows without gaps, so that a copy of M * K elements into the workspace,
    /// which has [`ProductPlan::strided_workspace`], goes before them on the stream. x is not copied if `stride`
    /// is K.
    ///
    /// With `overlap` kernels may start before the one before has ended, but for the first, which waits for the copy.
    ///
    /// # Safety
    /// As [`ProductPlan::launch`].
    ///
    /// # Errors
    /// As there; a stride below K.
    pub unsafe fn launch_strided(
        &self,
        stream: *mut c_void,
        (x, stride): (DeviceSlice<'_>, u64),
        y: DeviceSliceMut<'_>,
        workspace: DeviceSliceMut<'_>,
        overlap: bool,
    ) -> Result<(), DriverError> {
        let ((row, _), (columns, rows)) = (self.row_bytes(), (self.columns(), self.tokens()));
        if stride == columns {
            // SAFETY: the caller's promise.
            return unsafe { self.launch(stream, x, y, workspace, overlap) };
        }
        if stride < columns {
            return Err(refused(LaunchFault::Stride { stride, columns }));
        }
        let pitch = stride.saturating_mul(row / columns.max(1));
        let expected = match rows {
            0 => 0,
            rows => pitch.saturating_mul(rows - 1).saturating_add(row),
        };
        long_enough("x", x.bytes(), expected)?;
        let needed = self.strided_workspace();
        let mut memory = self.memory(0, y, workspace, needed)?;
        let dense = memory.workspace_end - needed.scratch;
        memory.inputs.set(BufferRole::X, dense);
        let current = self.executor().stream().context().enter()?;
        if rows > 0 {
            let (stream, from) = (Handle(stream), x.address());
            let [pitch, row, rows] = [pitch, row, rows].map(|size| size as usize);
            current.call(
                || format!("copying {rows} rows of x, {stride} elements apart"),
                // SAFETY: both sides have so many rows of so many bytes, which the caller promises to
                // keep until the copy is done.
                |driver| unsafe { driver.copy_rows(dense, from, pitch, row, rows, stream) },
            )?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.queue(&current, Handle(stream), memory, [false, overlap]) }
    }

    /// The addresses of a launch; x is known to be long enough.
    fn memory(
        &self,
        x: u64,
        y: DeviceSliceMut<'_>,
        workspace: DeviceSliceMut<'_>,
        needed: WorkspaceBytes,
    ) -> Result<Memory, DriverError> {
        let y = address("y", y.address(), y.bytes(), self.y_bytes())?;
        let mut inputs = Inputs::default();
        inputs.set(BufferRole::X, x);
        Memory::of_launch(inputs, y, workspace, needed)
    }

    /// Queues the plan's launches. With `overlap` each may start before the one before has ended.
    ///
    /// # Safety
    /// As [`ProductPlan::launch`], whose addresses `memory` has.
    unsafe fn queue(
        &self,
        current: &Current<'_, D>,
        stream: Handle,
        memory: Memory,
        [mut overlap, others]: [bool; 2],
    ) -> Result<(), DriverError> {
        let mut memory = memory;
        for (_, chunk) in &self.chunks {
            address("x", memory.inputs.of(BufferRole::X), 1, 1)?;
            address("y", memory.y, 1, 1)?;
            for launch in &chunk.launches {
                // SAFETY: the caller's promise.
                unsafe { queue(current, stream, (chunk, launch), memory, overlap) }?;
                overlap = others;
            }
            memory = memory.behind(chunk);
        }
        Ok(())
    }
}

/// Queues one launch.
///
/// # Safety
/// As [`ProductPlan::launch`], whose addresses `memory` has.
pub(super) unsafe fn queue<D: DriverApi>(
    current: &Current<'_, D>,
    stream: Handle,
    (chunk, launch): (&Chunk<DriverExecutor<D>>, &ReadyLaunch<DriverExecutor<D>>),
    memory: Memory,
    overlap: bool,
) -> Result<(), DriverError> {
    let Ready { kernel, sizes, maps } = &launch.ready;
    let mut encoded = [RawTensorMap::EMPTY; LaunchRule::MOST_TENSOR_MAPS];
    for (map, (buffer, bytes, shape)) in encoded.iter_mut().zip(maps) {
        let (location, _) = launch.slots[*buffer];
        *map = RawTensorMap::encoded(current, memory.of(chunk, location), *bytes, shape)?;
    }
    let mut slots = launch.slots.iter();
    let mut maps = encoded.iter_mut();
    let mut values = [0u64; PARAMETERS];
    let mut pointers = [null_mut::<c_void>(); PARAMETERS];
    for (at, expected) in sizes.expected().iter().enumerate() {
        pointers[at] = match expected {
            Expected::Map => maps.next().map_or(null_mut(), |map| (&raw mut *map).cast()),
            Expected::Size(size) => {
                values[at] = u64::from(*size);
                (&raw mut values[at]).cast()
            }
            // Scalars are refused when a kernel is made ready.
            Expected::Buffer { .. } | Expected::Scalar(_) => {
                values[at] = slots.next().map_or(0, |(location, _)| memory.of(chunk, *location));
                (&raw mut values[at]).cast()
            }
        };
    }
    let overlap = overlap && kernel.rule().overlaps;
    current.call(
        || format!("launching {}", kernel.entry()),
        // SAFETY: one pointer a parameter of the rule, which is the text's, each to a value at least as
        // wide as the parameter; the driver copies values before it returns. Addresses are of memory
        // that the caller promises, of the weight, which the plan keeps, and in the workspace, whose
        // length was compared.
        |driver| unsafe {
            driver.launch(kernel.function(), sizes, overlap, stream, pointers.as_mut_ptr())
        },
    )
}
