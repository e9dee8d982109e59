//! The memory of an expert layer's launches on its executor, and the launches on that memory.

use std::sync::Arc;

use super::layer::GpuExpertLayer;
use crate::gpu::executor::Executor;
use crate::gpu::launch::{Bound, queued};
use crate::gpu::plan::Chunk;
use crate::source::{BufferRole, Storage};

/// Inputs, y and the workspace of a layer's launches on the device.
pub struct ExpertTensors<E: Executor> {
    chunk: Arc<Chunk<E>>,
    inputs: Vec<(BufferRole, Arc<E::Memory>)>,
    y: E::Memory,
    workspace: Vec<E::Memory>,
}

impl<E: Executor> ExpertTensors<E> {
    /// Uploads inputs, and makes room for y and the workspace.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn new(
        executor: &E,
        chunk: Arc<Chunk<E>>,
        inputs: impl IntoIterator<Item = (BufferRole, Vec<u8>)>,
    ) -> Result<Self, E::Error> {
        let upload = |(role, bytes): (_, Vec<u8>)| Ok((role, Arc::new(executor.upload(&bytes)?)));
        let inputs = inputs.into_iter().map(upload).collect::<Result<_, E::Error>>()?;
        Self::on_inputs(executor, chunk, inputs)
    }

    /// Makes room for y and the workspace beside inputs that are on the device.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn on_inputs(
        executor: &E,
        chunk: Arc<Chunk<E>>,
        inputs: Vec<(BufferRole, Arc<E::Memory>)>,
    ) -> Result<Self, E::Error> {
        let workspace = chunk.workspace_buffers.iter().map(|place| match place.storage {
            Storage::Counters => executor.zeroed(place.bytes),
            _ => executor.output(place.bytes),
        });
        let workspace = workspace.collect::<Result<_, _>>()?;
        let y = executor.output(chunk.y_bytes)?;
        Ok(Self { chunk, inputs, y, workspace })
    }
}

impl<E: Executor> ExpertTensors<E> {
    /// How many launches [`GpuExpertLayer::queue`] queues.
    pub fn launches(&self) -> usize {
        self.chunk.launches.len()
    }

    /// Reads other inputs from now on, of as many tokens.
    pub(super) fn read(&mut self, inputs: Vec<(BufferRole, Arc<E::Memory>)>) {
        self.inputs = inputs;
    }

    /// Reads the inputs of another call of the same plan from now on, which keeps them too: so several calls share one workspace and
    /// one y, as those of an engine do. False, with nothing changed, if the other has another plan.
    #[must_use]
    pub fn read_inputs_of(&mut self, other: &Self) -> bool {
        let alike = Arc::ptr_eq(&self.chunk, &other.chunk);
        if alike {
            self.read(other.inputs.clone());
        }
        alike
    }
}

impl<E: Executor> GpuExpertLayer<E> {
    /// Queues the launches of a layer. Allocates nothing on the device. With `overlap` a kernel may start
    /// before the one before it has ended, and waits itself.
    ///
    /// # Errors
    /// What the device says.
    pub fn queue(&self, tensors: &mut ExpertTensors<E>, overlap: bool) -> Result<(), E::Error> {
        self.queue_first(usize::MAX, tensors, overlap)
    }

    /// As [`Self::queue`], of the first `launches` launches alone, to measure what each of them adds. Only the last launch of a call
    /// writes y: with fewer than all y stays as it was, with more than there are all are queued.
    ///
    /// # Errors
    /// What the device says.
    pub fn queue_first(
        &self,
        launches: usize,
        tensors: &mut ExpertTensors<E>,
        overlap: bool,
    ) -> Result<(), E::Error> {
        let ExpertTensors { chunk, inputs, y, workspace } = tensors;
        let input = |role| {
            let mut inputs = inputs.iter();
            inputs.find(|(known, _)| *known == role).map(|(_, memory)| &**memory)
        };
        let bound =
            Bound { constant: &|constant| Some(&*constant.memory), input: &input, y, workspace };
        // SAFETY: the source's own keys for this layer; ids that name no expert are left out by the
        // kernels, and those in an expert map were compared with the number of experts; counters begin
        // as 0.
        unsafe { queued(&*self.executor, chunk, 0..launches, bound, overlap) }
    }

    /// y [M, H], after all that was queued: little-endian.
    ///
    /// # Errors
    /// What the device says.
    pub fn result(&self, tensors: &ExpertTensors<E>) -> Result<Vec<u8>, E::Error> {
        self.executor.download(&tensors.y)
    }
}
