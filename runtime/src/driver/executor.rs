//! A device behind a driver as the executor of products: one stream, its kernels loaded once.

use std::sync::Arc;

use super::api::DriverApi;
use super::arguments::{Argument, Expected, Sizes};
use super::buffer::DeviceBuffer;
use super::context::Context;
use super::error::DriverError;
use super::loader::Loader;
use super::module::{KernelFacts, LoadedKernel};
use super::stream::Stream;
use super::tensor_map::{TensorMap, TensorShape};
use crate::gpu::{Clock, Executor, Launch, LaunchBuffer, Products, Registers, Trusted};
use crate::image_cache::ImageCache;
use crate::source::{KernelKey, LaunchRule, ParameterKind, ProblemSize};

/// A device, the source of its kernels, and the stream on which they run.
pub struct DriverExecutor<D: DriverApi> {
    name: String,
    target: &'static str,
    stream: Stream<D>,
    loader: Arc<Loader<D>>,
    source: Trusted,
}

impl<D: DriverApi> DriverExecutor<D> {
    /// A device by the driver's number, with the images that are kept on this machine.
    ///
    /// The source is trusted like a library that the program links: its texts run as they are.
    ///
    /// # Errors
    /// Why there is no driver or no such device, a device that no kernels are made for, or what
    /// the driver answered.
    pub fn new(ordinal: u32, source: Trusted) -> Result<Self, DriverError> {
        Self::on(Stream::new(&Context::new(ordinal)?)?, source)
    }

    /// A stream and its device, with the images that are kept on this machine: those of an engine, by
    /// [`Stream::from_raw`]. Weights are prepared on the stream; products of a
    /// [`ProductPlan`](crate::gpu::ProductPlan) may be queued on any of its context.
    ///
    /// # Errors
    /// A device that no kernels are made for.
    pub fn on(stream: Stream<D>, source: Trusted) -> Result<Self, DriverError> {
        let context = stream.context();
        let ordinal = context.info().ordinal;
        let target = context.info().target.ok_or_else(|| DriverError::Unsupported {
            device: context.info().name.clone(),
            architecture: context.info().architecture.clone(),
            targets: D::TARGETS.1,
        })?;
        let backend = D::BACKEND;
        let name = if ordinal == 0 { backend.to_owned() } else { format!("{backend}:{ordinal}") };
        let loader = Loader::new(context, ImageCache::from_environment(), source.source().clone());
        let loader = Arc::new(loader);
        Ok(Self { name, target, stream, loader, source })
    }

    /// The stream on which everything is queued.
    pub fn stream(&self) -> &Stream<D> {
        &self.stream
    }

    fn context(&self) -> &Context<D> {
        self.stream.context()
    }
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn argument<'a, D: DriverApi>(slot: &'a mut LaunchBuffer<'_, DeviceBuffer<D, u8>>) -> Argument<'a> {
    match slot {
        LaunchBuffer::Read(memory) => Argument::Read(memory.read()),
        LaunchBuffer::Write(memory) => Argument::Write(memory.write_to()),
    }
}

impl<D: DriverApi> Executor for DriverExecutor<D> {
    type Memory = DeviceBuffer<D, u8>;
    type Kernel = Arc<LoadedKernel<D>>;
    type Ready = Ready<D>;
    type Error = DriverError;

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

    /// Loads nothing while somebody captures the stream: that could void the capture.
    fn is_loaded(&self, key: &KernelKey) -> bool {
        self.loader.loaded(key).is_some()
    }

    fn kernel(&self, key: &KernelKey) -> Result<Arc<LoadedKernel<D>>, DriverError> {
        if let Some(kernel) = self.loader.loaded(key) {
            return Ok(kernel);
        }
        if self.stream.is_captured()? {
            return Err(DriverError::NotWarm { kernel: key.to_string() });
        }
        self.loader.kernel(key)
    }

    fn rule<'k>(&self, kernel: &'k Arc<LoadedKernel<D>>) -> &'k LaunchRule {
        kernel.rule()
    }

    fn registers(&self, kernel: &Arc<LoadedKernel<D>>) -> Option<Registers> {
        let KernelFacts { registers: of_thread, local_bytes: spilled_bytes, .. } = kernel.facts();
        Some(Registers { of_thread, spilled_bytes })
    }

    fn ready(
        &self,
        kernel: &Arc<LoadedKernel<D>>,
        problem: &ProblemSize,
    ) -> Result<Ready<D>, DriverError> {
        Ready::new(kernel, problem)
    }

    fn upload(&self, bytes: &[u8]) -> Result<DeviceBuffer<D, u8>, DriverError> {
        DeviceBuffer::from_host(&self.stream, bytes)
    }

    fn output(&self, bytes: u64) -> Result<DeviceBuffer<D, u8>, DriverError> {
        // What a kernel does not write is seen: NaN in f32, f16 and bf16.
        let mut buffer = DeviceBuffer::uninitialised(self.context(), length(bytes))?;
        buffer.fill_bytes(&self.stream, 0xff)?;
        Ok(buffer)
    }

    fn zeroed(&self, bytes: u64) -> Result<DeviceBuffer<D, u8>, DriverError> {
        DeviceBuffer::zeroed(&self.stream, length(bytes))
    }

    fn download(&self, memory: &DeviceBuffer<D, u8>) -> Result<Vec<u8>, DriverError> {
        memory.to_host(&self.stream)
    }

    fn wait(&self) -> Result<(), DriverError> {
        self.stream.synchronize()
    }

    /// None while somebody captures the stream.
    fn apart(&self) -> Result<Option<Self>, DriverError> {
        if D::clock(self).is_none() || self.stream.is_captured()? {
            return Ok(None);
        }
        let (name, target) = (self.name.clone(), self.target);
        let (loader, source) = (self.loader.clone(), self.source.clone());
        Ok(Some(Self { name, target, stream: Stream::new(self.context())?, loader, source }))
    }

    fn clock(&self) -> Option<&dyn Clock<DriverError>> {
        D::clock(self)
    }

    fn launch(&self, mut launch: Launch<'_, '_, Self>) -> Result<(), DriverError> {
        let (Ready { kernel, sizes, maps }, overlap) = (launch.kernel(), launch.overlap());
        let slots = launch.slots();
        let mut encoded = Vec::new();
        for (buffer, _, shape) in maps {
            let place = match slots.get(*buffer) {
                Some(LaunchBuffer::Read(memory)) => {
                    (memory.read().address(), memory.read().bytes())
                }
                Some(LaunchBuffer::Write(memory)) => {
                    (memory.read().address(), memory.read().bytes())
                }
                None => continue,
            };
            encoded.push(TensorMap::of_argument(self.context(), place, shape)?);
        }
        // Buffers come first in the text, tensor maps last; a missing one is refused by its name.
        let arguments: Vec<Argument<'_>> =
            slots.iter_mut().map(argument).chain(encoded.iter().map(Argument::Map)).collect();
        // SAFETY: the text is one of a trusted source, its numbers are vouched for by whoever made the
        // launch; maps are of the shapes that the rule says.
        unsafe { kernel.launch_in_order(&self.stream, sizes, overlap, &arguments) }
    }
}

/// A kernel with its sizes for a problem.
pub struct Ready<D: DriverApi> {
    pub(crate) kernel: Arc<LoadedKernel<D>>,
    pub(crate) sizes: Sizes,
    /// Of each tensor map: the place of its buffer among the kernel's, that one's bytes, its shape.
    pub(crate) maps: Vec<(usize, u64, TensorShape)>,
}

impl<D: DriverApi> Ready<D> {
    fn new(kernel: &Arc<LoadedKernel<D>>, problem: &ProblemSize) -> Result<Self, DriverError> {
        let parameters = &kernel.rule().parameters;
        let refused = |what| DriverError::NotPlanned { entry: kernel.entry().to_owned(), what };
        if parameters.iter().any(|parameter| matches!(parameter.kind, ParameterKind::Scalar(_))) {
            return Err(refused("it has a number that no plan knows"));
        }
        let sizes = kernel.sizes(problem)?;
        let buffers = parameters.iter().zip(sizes.expected());
        let buffers: Vec<(&str, u64)> = buffers
            .filter_map(|(parameter, expected)| match expected {
                Expected::Buffer { bytes, .. } => Some((parameter.name.as_str(), *bytes)),
                _ => None,
            })
            .collect();
        let mut maps = Vec::new();
        for parameter in parameters {
            let ParameterKind::TensorMap(rule) = &parameter.kind else { continue };
            let shape = TensorShape::of(rule, problem).map_err(|fault| kernel.fault(fault))?;
            let at = buffers.iter().position(|(name, _)| *name == rule.buffer);
            let at = at.ok_or_else(|| refused("a tensor map is of none of its buffers"))?;
            maps.push((at, buffers[at].1, shape));
        }
        if maps.len() > LaunchRule::MOST_TENSOR_MAPS {
            return Err(refused("it has too many tensor maps"));
        }
        Ok(Self { kernel: kernel.clone(), sizes, maps })
    }
}
