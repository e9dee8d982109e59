//! A device as the executor of products: one queue, its kernels compiled once.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::adapter::Opened;
use super::error::WgpuError;
use super::memory::Memory;
use super::pipeline::{Pipeline, Sizes};
use crate::gpu::{Executor, Launch, Products};
use crate::op::ProductError;
use crate::source::{KernelKey, LaunchRule, ProblemSize};

/// The target of every device, and that of devices whose subgroups have one size.
const TARGETS: [&str; 2] = ["wgsl", "wgsl_subgroups"];

/// A device, the source of its kernels, and the kernels that it has compiled.
pub struct Wgpu {
    name: String,
    opened: Opened,
    source: Arc<dyn Products>,
    kernels: Mutex<HashMap<KernelKey, Arc<Pipeline>>>,
}

impl Wgpu {
    /// A device by its number, as [`devices`](super::devices) counts them.
    ///
    /// # Errors
    /// Why there is no such device, or what its driver answered.
    pub fn new(ordinal: usize, source: Arc<dyn Products>) -> Result<Self, WgpuError> {
        Self::open(ordinal, source, true)
    }

    /// The same, with the kernels that every device takes, whatever this one has besides.
    ///
    /// # Errors
    /// Why there is no such device, or what its driver answered.
    pub fn without_subgroups(ordinal: usize, source: Arc<dyn Products>) -> Result<Self, WgpuError> {
        Self::open(ordinal, source, false)
    }

    fn open(ordinal: usize, source: Arc<dyn Products>, subgroups: bool) -> Result<Self, WgpuError> {
        let name = if ordinal == 0 { "wgpu".to_owned() } else { format!("wgpu:{ordinal}") };
        let opened = Opened::new(ordinal, subgroups)?;
        Ok(Self { name, opened, source, kernels: Mutex::default() })
    }
}

/// A kernel with its sizes for a problem.
#[derive(Debug)]
pub struct Ready {
    pipeline: Arc<Pipeline>,
    sizes: Sizes,
}

impl fmt::Debug for Wgpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Executor for Wgpu {
    type Memory = Memory;
    type Kernel = Arc<Pipeline>;
    type Ready = Ready;
    type Error = WgpuError;

    fn name(&self) -> &str {
        &self.name
    }

    fn target(&self) -> &str {
        TARGETS[usize::from(self.opened.subgroups)]
    }

    /// No API says how many there are; no kernel of this target asks.
    fn multiprocessors(&self) -> u64 {
        1
    }

    fn source(&self) -> &dyn Products {
        &*self.source
    }

    fn is_loaded(&self, key: &KernelKey) -> bool {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key)
    }

    fn kernel(&self, key: &KernelKey) -> Result<Arc<Pipeline>, WgpuError> {
        let kernels = || self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels().get(key) {
            return Ok(kernel.clone());
        }
        let kernel = Arc::new(Pipeline::new(&self.opened, &self.source.text(key)?)?);
        kernels().insert(key.clone(), kernel.clone());
        Ok(kernel)
    }

    fn rule<'k>(&self, kernel: &'k Arc<Pipeline>) -> &'k LaunchRule {
        kernel.rule()
    }

    fn ready(&self, kernel: &Arc<Pipeline>, problem: &ProblemSize) -> Result<Ready, WgpuError> {
        Ok(Ready { sizes: kernel.sizes(&self.opened, problem)?, pipeline: kernel.clone() })
    }

    fn upload(&self, bytes: &[u8]) -> Result<Memory, WgpuError> {
        Memory::of(&self.opened, bytes)
    }

    fn output(&self, bytes: u64) -> Result<Memory, WgpuError> {
        // What a kernel does not write is seen: NaN in f32, f16 and bf16.
        Memory::ones(&self.opened, bytes)
    }

    fn zeroed(&self, bytes: u64) -> Result<Memory, WgpuError> {
        Memory::zeroed(&self.opened, bytes)
    }

    fn download(&self, memory: &Memory) -> Result<Vec<u8>, WgpuError> {
        memory.read(&self.opened)
    }

    /// One queue orders all work of a device.
    fn wait(&self) -> Result<(), WgpuError> {
        Ok(())
    }

    fn launch(&self, mut launch: Launch<'_, '_, Self>) -> Result<(), WgpuError> {
        let Ready { pipeline, sizes } = launch.kernel();
        pipeline.launch(&self.opened, sizes, launch.slots())
    }
}

impl From<WgpuError> for ProductError {
    fn from(error: WgpuError) -> Self {
        match error {
            WgpuError::Refused(why) => why.into(),
            error => Self::device(error),
        }
    }
}
