//! A CUDA device as the executor of products: one stream, its kernels loaded once.

use std::sync::Arc;

use super::buffer::Buffer;
use super::device::Context;
use super::error::CudaError;
use super::launch::Argument;
use super::loader::Loader;
use super::module::Kernel;
use super::stream::Stream;
use super::tensor_map::{TensorMap, TensorShape};
use crate::gpu::{Executor, Launch, Products, Slot, Trusted};
use crate::image_cache::ImageCache;
use crate::op::ProductError;
use crate::source::{KernelKey, LaunchRule, ParameterKind};

/// A device, the source of its kernels, and the stream on which they run.
pub struct Cuda {
    name: String,
    target: &'static str,
    stream: Stream,
    loader: Loader,
    source: Trusted,
}

impl Cuda {
    /// A device by the driver's number, with the images that are kept on this machine.
    ///
    /// The source is trusted like a library that the program links: its texts run as they are.
    ///
    /// # Errors
    /// Why there is no driver or no such device, a device that no kernels are made for, or what
    /// the driver answered.
    pub fn new(ordinal: u32, source: Trusted) -> Result<Self, CudaError> {
        let context = Context::new(ordinal)?;
        let target = context.info().target().ok_or_else(|| CudaError::TooOld {
            device: context.info().name.clone(),
            sm: context.info().sm(),
        })?;
        let name = if ordinal == 0 { "cuda".to_owned() } else { format!("cuda:{ordinal}") };
        let loader = Loader::new(&context, ImageCache::from_environment(), source.source().clone());
        Ok(Self { name, target, stream: Stream::new(&context)?, loader, source })
    }

    /// The stream on which everything is queued.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    fn context(&self) -> &Context {
        self.stream.context()
    }
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn argument<'a>(slot: &'a mut Slot<'_, Buffer<u8>>) -> Argument<'a> {
    match slot {
        Slot::Read(memory) => Argument::Read(memory.read()),
        Slot::Write(memory) => Argument::Write(memory.write_to()),
    }
}

impl Executor for Cuda {
    type Memory = Buffer<u8>;
    type Kernel = Arc<Kernel>;
    type Error = CudaError;

    fn name(&self) -> &str {
        &self.name
    }

    fn target(&self) -> &str {
        self.target
    }

    fn multiprocessors(&self) -> u64 {
        u64::from(self.context().info().multiprocessors)
    }

    fn source(&self) -> &dyn Products {
        &**self.source.source()
    }

    fn kernel(&self, key: &KernelKey) -> Result<Arc<Kernel>, CudaError> {
        self.loader.kernel(key)
    }

    fn rule<'k>(&self, kernel: &'k Arc<Kernel>) -> &'k LaunchRule {
        kernel.rule()
    }

    fn upload(&self, bytes: &[u8]) -> Result<Buffer<u8>, CudaError> {
        Buffer::from_host(&self.stream, bytes)
    }

    fn output(&self, bytes: u64) -> Result<Buffer<u8>, CudaError> {
        // What a kernel does not write is seen: NaN in f32, f16 and bf16.
        let mut buffer = Buffer::uninitialised(self.context(), length(bytes))?;
        buffer.fill_bytes(&self.stream, 0xff)?;
        Ok(buffer)
    }

    fn zeroed(&self, bytes: u64) -> Result<Buffer<u8>, CudaError> {
        Buffer::zeroed(&self.stream, length(bytes))
    }

    fn download(&self, memory: &Buffer<u8>) -> Result<Vec<u8>, CudaError> {
        memory.to_host(&self.stream)
    }

    fn launch(&self, mut launch: Launch<'_, '_, Self>) -> Result<(), CudaError> {
        let (kernel, problem, overlap) = (launch.kernel(), launch.problem(), launch.overlap());
        let slots = launch.slots();
        let parameters = &kernel.rule().parameters;
        let buffers: Vec<&str> = parameters
            .iter()
            .filter(|parameter| matches!(parameter.kind, ParameterKind::Buffer { .. }))
            .map(|parameter| parameter.name.as_str())
            .collect();
        let mut maps = Vec::new();
        for parameter in parameters {
            let ParameterKind::TensorMap(rule) = &parameter.kind else { continue };
            let shape = TensorShape::of(rule, problem)
                .map_err(|fault| CudaError::Launch { entry: kernel.entry().to_owned(), fault })?;
            let at = buffers.iter().position(|name| *name == rule.buffer);
            if let Some(Slot::Read(memory)) = at.and_then(|at| slots.get(at)) {
                maps.push(TensorMap::new(self.context(), memory.read(), &shape)?);
            }
        }
        // Buffers come first in the text, tensor maps last; a missing one is refused by its name.
        let arguments: Vec<Argument<'_>> =
            slots.iter_mut().map(argument).chain(maps.iter().map(Argument::Map)).collect();
        // SAFETY: the text is one of a trusted source, its numbers are vouched for by whoever made the
        // launch; maps are of the shapes that the rule says.
        unsafe { kernel.launch_in_order(&self.stream, problem, overlap, &arguments) }
    }
}

impl From<CudaError> for ProductError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Refused(why) => why.into(),
            error => Self::Device(error.to_string()),
        }
    }
}
