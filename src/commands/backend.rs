//! `--backend`: from a name to where products run, or what is there instead.

use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use quantloom::codegen::jit::{Jit, Simulator};
use quantloom::codegen::target::TARGETS;
use quantloom::runtime::cpu::isa::Isa;
use quantloom::runtime::cuda::{Cuda, CudaError};
use quantloom::runtime::device::{Backend, Device};
use quantloom::runtime::gpu::GpuDevice;

/// Where products run.
pub(crate) enum Place {
    /// An instruction set of this machine.
    Cpu(Device),
    /// An NVIDIA GPU.
    Cuda(GpuDevice<Cuda>),
    /// The simulator of a GPU.
    Simulator(GpuDevice<Simulator>),
}

impl Place {
    /// As what all commands multiply on.
    pub(crate) fn backend(&self) -> &dyn Backend {
        match self {
            Self::Cpu(device) => device,
            Self::Cuda(device) => device,
            Self::Simulator(device) => device,
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.backend().name()
    }
}

/// The place of a name.
pub(crate) fn place(name: &str) -> Result<Place> {
    let ordinal = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
    match name {
        "cuda" => cuda(0).map(Place::Cuda),
        _ if name.starts_with("sim:") => simulator(name, 0).map(Place::Simulator),
        _ => match ordinal {
            Some(ordinal) => cuda(ordinal).map(Place::Cuda),
            None => device(name).map(Place::Cpu),
        },
    }
}

/// The places of a name, where `all` is every instruction set that is present.
pub(crate) fn places(name: &str) -> Result<Vec<Place>> {
    match name {
        "all" => Isa::present().map(|isa| place(isa.name())).collect(),
        name => Ok(vec![place(name)?]),
    }
}

/// The CPU, with the catalogue's decoders.
pub(crate) fn device(name: &str) -> Result<Device> {
    match name {
        "hip" | "wgpu" => bail!(
            "the backend {name} has no products in this version (`quantloom devices` tells what \
             it needs); present are {}",
            present()
        ),
        name => match Device::named(name) {
            Ok(device) => Ok(device.with_families(quantloom::kernels::FAMILIES)),
            Err(error) => match Isa::from_name(name) {
                // By name: what the processor lacks.
                Some(_) => Err(anyhow!("{error}; present are {}", present())),
                None => Err(anyhow!(
                    "there is no backend \"{name}\"; present are {}; absent are {}",
                    present(),
                    absent()
                )),
            },
        },
    }
}

/// A GPU by the driver's number.
fn cuda(ordinal: u32) -> Result<GpuDevice<Cuda>> {
    match Cuda::new(ordinal, Arc::new(Jit)) {
        Ok(executor) => Ok(GpuDevice::new(executor)),
        Err(error @ CudaError::LibraryNotFound) => Err(anyhow!(
            "cuda: {error}; install NVIDIA's driver (525 or later; `quantloom devices --test` \
             tries it), or take another backend: present are {}",
            present()
        )),
        Err(error) => Err(anyhow!("cuda: {error}; present are {}", present())),
    }
}

/// The simulator of a target, `sim:TARGET`; the seed orders its blocks, warps and copies.
pub(crate) fn simulator(name: &str, seed: u64) -> Result<GpuDevice<Simulator>> {
    let target = name.strip_prefix("sim:").unwrap_or(name);
    let simulator = Simulator::new(target).map_err(|why| anyhow!("{why}"))?;
    Ok(GpuDevice::new(simulator.with_seed(seed)))
}

fn present() -> String {
    let sets = Isa::present().map(|isa| isa.name().to_owned());
    let simulated = TARGETS.iter().filter(|target| Simulator::new(target.name).is_ok());
    let simulated = simulated.map(|target| format!("sim:{target}"));
    format!("auto, cpu, {}", sets.chain(simulated).collect::<Vec<_>>().join(", "))
}

fn absent() -> String {
    let sets = Isa::ALL.into_iter().filter_map(|isa| {
        let absent = isa.check().err()?;
        Some(format!("{isa} ({})", absent.missing))
    });
    let cuda = quantloom::runtime::cuda::devices().err();
    let cuda = cuda.map(|error| format!("cuda ({error})"));
    let others = ["hip", "wgpu"].map(|name| format!("{name} (not in this version)"));
    sets.chain(cuda).chain(others).collect::<Vec<_>>().join(", ")
}
