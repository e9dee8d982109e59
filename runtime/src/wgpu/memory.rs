//! Memory of a device, and copies.

use std::sync::mpsc;

use ::wgpu::{Buffer, BufferDescriptor, BufferUsages, CommandEncoderDescriptor, MapMode, PollType};

use super::adapter::Opened;
use super::error::WgpuError;
use super::fault::checked;

/// Bytes in the memory of a device.
#[derive(Debug)]
pub struct Memory {
    pub(super) buffer: Buffer,
    /// Those that were asked for; the buffer has a few more.
    pub(super) bytes: u64,
}

/// What the lengths of buffers are multiples of: kernels read by 16 bytes.
const SIZE_UNIT: u64 = 16;
/// Bytes that are filled at once.
const WRITE_BYTES: usize = 1 << 20;
/// What the lengths of copies are multiples of.
const WORD: usize = 4;

impl Memory {
    /// Memory full of 0.
    pub(super) fn zeroed(of: &Opened, bytes: u64) -> Result<Self, WgpuError> {
        of.there()?;
        let size = bytes.max(1).next_multiple_of(SIZE_UNIT);
        let limit = of.device.limits().max_storage_buffer_binding_size;
        if size > limit {
            let doing = format!("making room for {bytes} bytes");
            return Err(WgpuError::Call {
                doing,
                why: format!("a buffer of this device has at most {limit}"),
            });
        }
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let descriptor = BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let doing = || format!("making room for {bytes} bytes");
        let buffer = checked(&of.device, doing, || of.device.create_buffer(&descriptor))?;
        Ok(Self { buffer, bytes })
    }

    /// Memory with these bytes.
    pub(super) fn of(of: &Opened, bytes: &[u8]) -> Result<Self, WgpuError> {
        let memory = Self::zeroed(of, bytes.len() as u64)?;
        let (words, rest) = bytes.split_at(bytes.len() / WORD * WORD);
        let doing = || format!("uploading {} bytes", bytes.len());
        checked(&of.device, doing, || {
            if !words.is_empty() {
                of.queue.write_buffer(&memory.buffer, 0, words);
            }
            if !rest.is_empty() {
                let mut last = [0; WORD];
                last[..rest.len()].copy_from_slice(rest);
                of.queue.write_buffer(&memory.buffer, words.len() as u64, &last);
            }
            // Uploads that wait for a launch would pile up beside the memory that they are for.
            of.queue.submit([]);
        })?;
        Ok(memory)
    }

    /// Memory of which every byte is 0xff.
    pub(super) fn ones(of: &Opened, bytes: u64) -> Result<Self, WgpuError> {
        let memory = Self::zeroed(of, bytes)?;
        let doing = || format!("filling {bytes} bytes");
        let ones = vec![0xff; WRITE_BYTES];
        let size = memory.buffer.size();
        for first in (0..size).step_by(WRITE_BYTES) {
            let bytes = usize::try_from(size - first).unwrap_or(WRITE_BYTES).min(WRITE_BYTES);
            let write = || of.queue.write_buffer(&memory.buffer, first, &ones[..bytes]);
            checked(&of.device, doing, write)?;
        }
        of.queue.submit([]);
        Ok(memory)
    }

    /// Its bytes, after all that was queued.
    pub(super) fn read(&self, of: &Opened) -> Result<Vec<u8>, WgpuError> {
        of.there()?;
        let size = self.bytes.next_multiple_of(WORD as u64);
        if size == 0 {
            return Ok(Vec::new());
        }
        let doing = || format!("downloading {} bytes", self.bytes);
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let descriptor = BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let (tell, told) = mpsc::channel();
        let staging = checked(&of.device, doing, || {
            let staging = of.device.create_buffer(&descriptor);
            let mut commands =
                of.device.create_command_encoder(&CommandEncoderDescriptor::default());
            commands.copy_buffer_to_buffer(&self.buffer, 0, &staging, 0, size);
            of.queue.submit([commands.finish()]);
            staging.map_async(MapMode::Read, .., move |result| {
                // Nobody listens if the wait below has failed.
                let _ = tell.send(result);
            });
            staging
        })?;
        let failed =
            |why: String| of.there().err().unwrap_or(WgpuError::Call { doing: doing(), why });
        of.device.poll(PollType::wait_indefinitely()).map_err(|error| failed(error.to_string()))?;
        let mapped = told.recv().map_err(|error| failed(error.to_string()))?;
        mapped.map_err(|error| failed(error.to_string()))?;
        let view = staging.get_mapped_range(..).map_err(|error| failed(error.to_string()))?;
        let mut bytes = view.to_vec();
        bytes.truncate(usize::try_from(self.bytes).unwrap_or(usize::MAX));
        Ok(bytes)
    }
}
