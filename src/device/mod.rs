//! Where products run: the CPU, a GPU, or the simulator of a GPU, as one type.
//!
//! In: a constructor, or a name as `cuda:1`. Out: a [`Device`], on which every layer is prepared by the
//! same call:
//! ```
//! use quantloom::prelude::*;
//!
//! fn multiply(layer: &Layer, x: &[f32]) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
//!     Ok(layer.prepare(&Device::best())?.matmul(x)?)
//! }
//! ```
//! Asking for a device never panics and links nothing that may be missing: what a machine or a build
//! lacks is a [`DeviceError`] that says so.

mod error;
mod list;

#[cfg(feature = "cuda")]
use std::sync::Arc;

#[cfg(feature = "jit")]
use quantloom_codegen::jit::{Overrides, Simulator};
#[cfg(feature = "jit")]
use quantloom_codegen::target::unsupported_reason;
#[cfg(feature = "jit")]
use quantloom_dsl::format::FloatFormat;
use quantloom_runtime::backend::Backend;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::isa::Isa;
#[cfg(feature = "cuda")]
use quantloom_runtime::cuda::Cuda;
use quantloom_runtime::experts::{ExpertError, ExpertLayer, ExpertOp, ExpertOptions, ExpertSource};
#[cfg(feature = "jit")]
use quantloom_runtime::gpu::{GpuDevice, TuneError, TuneOptions, Tuned, TunedExperts};
#[cfg(feature = "hip")]
use quantloom_runtime::hip::Hip;
use quantloom_runtime::op::{Op, ProductError};
#[cfg(feature = "jit")]
use quantloom_runtime::prepared::PreparedLayer;
use quantloom_runtime::weight_data::WeightData;
#[cfg(feature = "wgpu")]
use quantloom_runtime::wgpu::Wgpu;

pub use error::DeviceError;
pub use list::{Available, Listed};

/// A device that products run on. A clone is the same device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Device {
    /// The CPU with one of its instruction sets.
    Cpu(CpuDevice),
    /// An NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(GpuDevice<Cuda>),
    /// An AMD GPU.
    #[cfg(feature = "hip")]
    Hip(GpuDevice<Hip>),
    /// A GPU through Vulkan, Metal or Direct3D 12.
    #[cfg(feature = "wgpu")]
    Wgpu(GpuDevice<Wgpu>),
    /// The simulator of a GPU: the kernels of a target, run on the CPU and checked, slowly.
    #[cfg(feature = "jit")]
    Simulated(GpuDevice<Simulator>),
}

/// How a device is opened, where something else is wanted than usual.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// Free choices of a GPU's schedules that replace the compiler's own: other tiles, to measure them.
    #[cfg(feature = "jit")]
    pub overrides: Overrides,
    /// Of an NVIDIA GPU: whether it measures the kernels of a product or an expert layer, shape and M before it first multiplies so, and keeps the
    /// fastest ([`Device::tune`]); asking which kernel multiplies does so too. That takes some seconds for each, once on a machine. The environment variable
    /// `QUANTLOOM_TUNE=first-use` asks for the same.
    pub tune_at_first_use: bool,
    /// Of a simulator, the order of its blocks, warps and copies.
    pub seed: u64,
}

impl Device {
    /// The CPU with its best instruction set and the decoders of the catalogue's code types.
    pub fn cpu() -> Self {
        Self::of_cpu(CpuDevice::best())
    }

    /// The CPU in plain Rust.
    pub fn portable() -> Self {
        Self::of_cpu(CpuDevice::portable())
    }

    /// An NVIDIA GPU by the driver's number, from 0.
    ///
    /// # Errors
    /// [`DeviceError::NotCompiled`] without the feature `cuda`; the error of the backend.
    pub fn cuda(ordinal: u32) -> Result<Self, DeviceError> {
        Opening::default().cuda(ordinal)
    }

    /// An AMD GPU by the runtime's number, from 0.
    ///
    /// # Errors
    /// [`DeviceError::NotCompiled`] without the feature `hip`; the error of the backend.
    pub fn hip(ordinal: u32) -> Result<Self, DeviceError> {
        Opening::default().hip(ordinal)
    }

    /// A GPU through Vulkan, Metal or Direct3D 12, by its number among those, from 0.
    ///
    /// # Errors
    /// [`DeviceError::NotCompiled`] without the feature `wgpu`; the error of the backend.
    pub fn wgpu(ordinal: u32) -> Result<Self, DeviceError> {
        Opening::default().wgpu(ordinal)
    }

    /// The simulator of a GPU target, such as `sm_90a`, `gfx942` or `wgsl`.
    ///
    /// # Errors
    /// [`DeviceError::Target`]; [`DeviceError::NotCompiled`] without the feature `jit`.
    pub fn simulated(target: &str) -> Result<Self, DeviceError> {
        Opening::default().simulated(target)
    }

    /// A device by its name: `auto` ([`Device::best`]), `cpu`, the name of an instruction set, `cuda`,
    /// `cuda:1`, `hip`, `wgpu`, `sim:sm_90a`.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] with the names that this build knows, [`DeviceError::NoKernels`]; see the constructors for others.
    pub fn named(name: &str) -> Result<Self, DeviceError> {
        Self::open(name, &Opening::default())
    }

    /// [`Device::named`], opened in another way.
    ///
    /// # Errors
    /// As there.
    pub fn open(name: &str, opening: &Opening) -> Result<Self, DeviceError> {
        if let Some(target) = name.strip_prefix("sim:") {
            return opening.simulated(target);
        }
        if let Some(isa) = Isa::from_name(name) {
            return Ok(Self::of_cpu(CpuDevice::of(isa)?));
        }
        let (backend, ordinal) = match name.split_once(':') {
            None => (name, Some(0)),
            Some((backend, number)) => (backend, number.parse().ok()),
        };
        match (backend, ordinal) {
            ("auto", _) if backend == name => Ok(opening.best().0),
            ("cpu", _) if backend == name => Ok(Self::cpu()),
            ("cuda", Some(ordinal)) => opening.cuda(ordinal),
            ("hip", Some(ordinal)) => opening.hip(ordinal),
            ("wgpu", Some(ordinal)) => opening.wgpu(ordinal),
            _ => {
                let (name, available) = (name.to_owned(), Available::now());
                if let Some(why) = Isa::no_kernels(&name) {
                    return Err(DeviceError::NoKernels { name, why });
                }
                Err(DeviceError::Unknown { name, available: Box::new(available) })
            }
        }
    }

    /// The fastest device that is present: an NVIDIA GPU (the driver's first, which is its fastest),
    /// else an AMD GPU, else a graphics card that `wgpu` reaches, else the CPU.
    pub fn best() -> Self {
        Self::best_and_absent().0
    }

    /// [`Device::best`], and why each device that would be faster is not available.
    pub fn best_and_absent() -> (Self, Vec<DeviceError>) {
        Opening::default().best()
    }

    /// Every device that this build has a name for, with the reason if it cannot be used.
    pub fn list() -> Vec<Listed> {
        list::list()
    }

    /// Measures the kernels of a layer for x of a type and numbers of tokens, and keeps the fastest: products on this device
    /// choose it from then on, in this program and, if the cache is on, in every later one of this user (`quantloom::tiles`).
    /// The layer is one that this device has prepared.
    ///
    /// A number of tokens stands for all that round up to the same power of two. Kernels of other layers of the same
    /// scheme and shape are the same; those that have multiplied so many tokens already keep theirs, and so do plans that an engine
    /// holds. So tune before the first product, once for each scheme and shape of a model. It takes some seconds for
    /// each number of tokens, nearly all of it for compiling kernels, and memory for copies of the layer that exceed the
    /// device's caches twice.
    ///
    /// # Errors
    /// [`TuneError::NoClock`] where nothing times kernels: on all devices but NVIDIA GPUs, and during a capture. See [`TuneError`]
    /// for others.
    #[cfg(feature = "jit")]
    pub fn tune(
        &self,
        layer: &PreparedLayer,
        x: FloatFormat,
        tokens: &[u64],
        options: &TuneOptions,
    ) -> Result<Vec<Tuned>, TuneError> {
        #[cfg(feature = "cuda")]
        if let Some(weight) = layer.as_cuda() {
            let tuner = weight.tuner(x)?;
            return tokens.iter().map(|tokens| tuner.tune(*tokens, options)).collect();
        }
        let _ = (layer, x, tokens, options);
        Err(TuneError::NoClock { device: self.name().to_owned() })
    }

    /// [`Device::tune`] of an expert layer that this device has prepared: the slots of a token block and the kernels of both products,
    /// by the time of the whole layer with tokens that choose among all experts uniformly. The layer's weights are not copied. A number
    /// of tokens stands for all that round up to the same one of four steps from a power of two to the next.
    ///
    /// # Errors
    /// As of [`Device::tune`].
    #[cfg(feature = "jit")]
    pub fn tune_experts(
        &self,
        layer: &dyn ExpertOp,
        x: FloatFormat,
        tokens: &[u64],
        options: &TuneOptions,
    ) -> Result<Vec<TunedExperts>, TuneError> {
        #[cfg(feature = "cuda")]
        if let Some(layer) = layer.as_cuda() {
            let tuner = layer.tuner(x)?;
            return tokens.iter().map(|tokens| tuner.tune(*tokens, options)).collect();
        }
        let _ = (layer, x, tokens, options);
        Err(TuneError::NoClock { device: self.name().to_owned() })
    }

    /// Its name, which [`Device::named`] takes.
    pub fn name(&self) -> &str {
        self.backend().name()
    }

    /// The device behind the common interface.
    pub fn backend(&self) -> &dyn Backend {
        match self {
            Self::Cpu(device) => device,
            #[cfg(feature = "cuda")]
            Self::Cuda(device) => device,
            #[cfg(feature = "hip")]
            Self::Hip(device) => device,
            #[cfg(feature = "wgpu")]
            Self::Wgpu(device) => device,
            #[cfg(feature = "jit")]
            Self::Simulated(device) => device,
        }
    }

    fn of_cpu(device: CpuDevice) -> Self {
        Self::Cpu(device.with_decoders(quantloom_kernels::DECODERS))
    }
}

impl Backend for Device {
    fn name(&self) -> &str {
        self.backend().name()
    }

    fn prepare_weight(&self, weight: &WeightData<'_>) -> Result<Box<dyn Op>, ProductError> {
        self.backend().prepare_weight(weight)
    }

    fn prepare_experts(
        &self,
        layer: &ExpertLayer,
        weights: &dyn ExpertSource,
        options: &ExpertOptions,
    ) -> Result<Box<dyn ExpertOp>, ExpertError> {
        self.backend().prepare_experts(layer, weights, options)
    }
}

impl From<CpuDevice> for Device {
    fn from(device: CpuDevice) -> Self {
        Self::Cpu(device)
    }
}

impl Opening {
    #[cfg(feature = "cuda")]
    fn cuda(&self, ordinal: u32) -> Result<Device, DeviceError> {
        let all = quantloom_runtime::cuda::devices().map_err(DeviceError::Cuda)?;
        let info = all.into_iter().find(|device| device.ordinal == ordinal);
        let file = info.and_then(|info| crate::tiles::path(&info.name));
        let at_first_use = self.tune_at_first_use || crate::tiles::asked_by_environment();
        let tiles = Arc::new(crate::tiles::DeviceTiles::new(file, at_first_use));
        let executor = Cuda::new(ordinal, crate::jit::of_device(tiles, self.overrides.clone()));
        Ok(Device::Cuda(GpuDevice::new(executor.map_err(DeviceError::Cuda)?)))
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda(&self, _ordinal: u32) -> Result<Device, DeviceError> {
        Err(DeviceError::NotCompiled { feature: "cuda" })
    }

    #[cfg(feature = "hip")]
    fn hip(&self, ordinal: u32) -> Result<Device, DeviceError> {
        let executor = Hip::new(ordinal, crate::jit::with_overrides(self.overrides.clone()));
        Ok(Device::Hip(GpuDevice::new(executor.map_err(DeviceError::Hip)?)))
    }

    #[cfg(not(feature = "hip"))]
    fn hip(&self, _ordinal: u32) -> Result<Device, DeviceError> {
        Err(DeviceError::NotCompiled { feature: "hip" })
    }

    #[cfg(feature = "wgpu")]
    fn wgpu(&self, ordinal: u32) -> Result<Device, DeviceError> {
        let source = crate::jit::with_overrides(self.overrides.clone()).source().clone();
        Ok(Device::Wgpu(GpuDevice::new(Wgpu::new(ordinal as usize, source)?)))
    }

    #[cfg(not(feature = "wgpu"))]
    fn wgpu(&self, _ordinal: u32) -> Result<Device, DeviceError> {
        Err(DeviceError::NotCompiled { feature: "wgpu" })
    }

    #[cfg(not(feature = "jit"))]
    fn simulated(&self, _target: &str) -> Result<Device, DeviceError> {
        Err(DeviceError::NotCompiled { feature: "jit" })
    }

    #[cfg(feature = "jit")]
    fn simulated(&self, target: &str) -> Result<Device, DeviceError> {
        let source = crate::jit::with_overrides(self.overrides.clone()).source().clone();
        let simulator = Simulator::new(target)
            .map_err(|refusal| DeviceError::Target { refusal, why: unsupported_reason(target) })?;
        let simulator = simulator.with_seed(self.seed).with_source(source);
        Ok(Device::Simulated(GpuDevice::new(simulator)))
    }

    /// The fastest device, and why others are not available.
    fn best(&self) -> (Device, Vec<DeviceError>) {
        let mut absent = Vec::new();
        for open in [Self::cuda, Self::hip, Self::graphics_card] {
            match open(self, 0) {
                Ok(device) => return (device, absent),
                Err(error) => {
                    tracing::debug!(%error, "a device that would be faster is not available");
                    absent.push(error);
                }
            }
        }
        (Device::cpu(), absent)
    }

    /// A graphics card through `wgpu`. What shares the memory of the CPU is not faster than it.
    fn graphics_card(&self, ordinal: u32) -> Result<Device, DeviceError> {
        #[cfg(feature = "wgpu")]
        if !quantloom_runtime::wgpu::devices().first().is_some_and(|found| found.is_card()) {
            return Err(quantloom_runtime::wgpu::WgpuError::NoAdapter.into());
        }
        self.wgpu(ordinal)
    }
}
