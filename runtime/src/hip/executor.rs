//! A HIP device as the executor of products: one stream, its kernels loaded once.

use std::sync::Arc;

use super::buffer::Buffer;
use super::device::Device;
use super::error::HipError;
use super::loader::Loader;
use super::module::{Argument, Kernel};
use super::stream::Stream;
use crate::gpu::arguments::Sizes;
use crate::gpu::{Executor, Launch, Products, Slot, Trusted};
use crate::image_cache::ImageCache;
use crate::op::ProductError;
use crate::source::{KernelKey, LaunchRule, Problem};

/// A device, the source of its kernels, and the stream on which they run.
pub struct Hip {
    name: String,
    target: &'static str,
    stream: Stream,
    loader: Loader,
    source: Trusted,
}

impl Hip {
    /// A device by the runtime's number, with the images that are kept on this machine.
    ///
    /// The source is trusted like a library that the program links: its texts run as they are.
    ///
    /// # Errors
    /// Why there is no runtime or no such device, a device that no kernels are made for, or what
    /// the runtime answered.
    pub fn new(ordinal: u32, source: Trusted) -> Result<Self, HipError> {
        let device = Device::new(ordinal)?;
        let target = device.info().target().ok_or_else(|| HipError::Unsupported {
            device: device.info().name.clone(),
            architecture: device.info().architecture.clone(),
        })?;
        let name = if ordinal == 0 { "hip".to_owned() } else { format!("hip:{ordinal}") };
        let loader = Loader::new(&device, ImageCache::from_environment(), source.source().clone());
        Ok(Self { name, target, stream: Stream::new(&device)?, loader, source })
    }

    /// The stream on which everything is queued.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn argument<'a>(slot: &'a mut Slot<'_, Buffer>) -> Argument<'a> {
    match slot {
        Slot::Read(memory) => Argument::Read(memory.read()),
        Slot::Write(memory) => Argument::Write(memory.write_to()),
    }
}

impl Executor for Hip {
    type Memory = Buffer;
    type Kernel = Arc<Kernel>;
    type Ready = (Arc<Kernel>, Sizes);
    type Error = HipError;

    fn name(&self) -> &str {
        &self.name
    }

    fn target(&self) -> &str {
        self.target
    }

    fn multiprocessors(&self) -> u64 {
        u64::from(self.stream.device().info().multiprocessors)
    }

    fn source(&self) -> &dyn Products {
        &**self.source.source()
    }

    fn kernel(&self, key: &KernelKey) -> Result<Arc<Kernel>, HipError> {
        self.loader.kernel(key)
    }

    fn rule<'k>(&self, kernel: &'k Arc<Kernel>) -> &'k LaunchRule {
        kernel.rule()
    }

    fn ready(&self, kernel: &Arc<Kernel>, problem: &Problem) -> Result<Self::Ready, HipError> {
        Ok((kernel.clone(), kernel.sizes(problem)?))
    }

    fn upload(&self, bytes: &[u8]) -> Result<Buffer, HipError> {
        Buffer::from_host(&self.stream, bytes)
    }

    fn output(&self, bytes: u64) -> Result<Buffer, HipError> {
        // What a kernel does not write is seen: NaN in f32, f16 and bf16.
        Buffer::filled(&self.stream, length(bytes), 0xff)
    }

    fn zeroed(&self, bytes: u64) -> Result<Buffer, HipError> {
        Buffer::filled(&self.stream, length(bytes), 0)
    }

    fn download(&self, memory: &Buffer) -> Result<Vec<u8>, HipError> {
        memory.to_host(&self.stream)
    }

    fn wait(&self) -> Result<(), HipError> {
        self.stream.synchronize()
    }

    /// Launches of a stream follow one another; there is nothing to overlap with.
    fn launch(&self, mut launch: Launch<'_, '_, Self>) -> Result<(), HipError> {
        let (kernel, sizes) = launch.kernel();
        let arguments: Vec<Argument<'_>> = launch.slots().iter_mut().map(argument).collect();
        // SAFETY: the text is one of a trusted source, its numbers are vouched for by whoever made the
        // launch.
        unsafe { kernel.launch_in_order(&self.stream, sizes, &arguments) }
    }
}

impl From<HipError> for ProductError {
    fn from(error: HipError) -> Self {
        match error {
            HipError::Refused(why) => why.into(),
            error => Self::device(error),
        }
    }
}
