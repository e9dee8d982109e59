//! `--backend`: from a name to where products run, or what is there instead.

use std::sync::Arc;

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use quantloom::codegen::jit::{Overrides, Retuned, Simulator};
use quantloom::codegen::target::{TARGETS, unsupported_reason};
use quantloom::runtime::cpu::isa::Isa;
use quantloom::runtime::cuda::{Cuda, CudaError};
use quantloom::runtime::device::{Backend, Device};
use quantloom::runtime::gpu::{GpuDevice, Trusted};
use quantloom::runtime::hip::{Hip, HipError};
#[cfg(feature = "wgpu")]
use quantloom::runtime::wgpu::Wgpu;

/// What a GPU's schedules are told beyond what they choose by themselves.
#[derive(Args, Clone, Default)]
pub(crate) struct Tuning {
    /// Free choices of a GPU's schedule that replace its own, to try another tile: NAME=VALUE, with
    /// commas between several; `bench` shows the names.
    #[arg(long = "tile", value_name = "NAME=VALUE", value_delimiter = ',', value_parser = choice)]
    choices: Vec<(String, u64)>,
}

fn choice(text: &str) -> Result<(String, u64), String> {
    let wrong = || format!("\"{text}\" is not NAME=VALUE, such as row_tiles=2");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    Ok((name.trim().to_owned(), value.trim().parse().map_err(|_| wrong())?))
}

impl Tuning {
    fn overrides(&self) -> Overrides {
        let choices: BTreeMap<_, _> = self.choices.iter().cloned().collect();
        Overrides::of_all(choices)
    }

    fn source(&self) -> Arc<Retuned> {
        Arc::new(Retuned(self.overrides()))
    }

    /// The same, for devices that run texts as they are.
    fn trusted(&self) -> Trusted {
        quantloom::jit::retuned(self.overrides())
    }
}

/// Where products run.
pub(crate) enum Place {
    /// An instruction set of this machine.
    Cpu(Device),
    /// An NVIDIA GPU.
    Cuda(GpuDevice<Cuda>),
    /// A GPU through Vulkan, Metal or Direct3D 12.
    #[cfg(feature = "wgpu")]
    Wgpu(GpuDevice<Wgpu>),
    /// An AMD GPU.
    Hip(GpuDevice<Hip>),
    /// The simulator of a GPU.
    Simulator(GpuDevice<Simulator>),
}

impl Place {
    /// As what all commands multiply on.
    pub(crate) fn backend(&self) -> &dyn Backend {
        match self {
            Self::Cpu(device) => device,
            Self::Cuda(device) => device,
            #[cfg(feature = "wgpu")]
            Self::Wgpu(device) => device,
            Self::Hip(device) => device,
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
    tuned(name, &Tuning::default())
}

/// The place of a name, whose schedules are told something.
pub(crate) fn tuned(name: &str, tuning: &Tuning) -> Result<Place> {
    let (driver, ordinal) = match name.split_once(':') {
        None => (name, Some(0)),
        Some((driver, number)) => (driver, number.parse().ok()),
    };
    match (driver, ordinal) {
        ("cuda", Some(ordinal)) => cuda(ordinal, tuning).map(Place::Cuda),
        ("hip", Some(ordinal)) => hip(ordinal, tuning).map(Place::Hip),
        #[cfg(feature = "wgpu")]
        ("wgpu", Some(ordinal)) => wgpu(ordinal, tuning).map(Place::Wgpu),
        ("sim", _) => simulator(name, 0, tuning).map(Place::Simulator),
        _ => device(name).map(Place::Cpu),
    }
}

/// The places of a name, where `all` is every instruction set that is present.
pub(crate) fn places(name: &str, tuning: &Tuning) -> Result<Vec<Place>> {
    match name {
        "all" => Isa::present().map(|isa| place(isa.name())).collect(),
        name => Ok(vec![tuned(name, tuning)?]),
    }
}

/// The CPU, with the catalogue's decoders.
pub(crate) fn device(name: &str) -> Result<Device> {
    match name {
        name if name == "wgpu" || name.starts_with("wgpu:") => bail!(
            "this program was built without the feature `wgpu` (cargo build -p quantloom-cli --features wgpu); \
             present are {}",
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
fn cuda(ordinal: u32, tuning: &Tuning) -> Result<GpuDevice<Cuda>> {
    match Cuda::new(ordinal, tuning.trusted()) {
        Ok(executor) => Ok(GpuDevice::new(executor)),
        Err(error @ CudaError::LibraryNotFound) => Err(anyhow!(
            "cuda: {error}; install NVIDIA's driver (525 or later; `quantloom devices --test` \
             tries it), or take another backend: present are {}",
            present()
        )),
        Err(error) => Err(anyhow!("cuda: {error}; present are {}", present())),
    }
}

/// A GPU by its number among those of `quantloom devices`.
#[cfg(feature = "wgpu")]
fn wgpu(number: u32, tuning: &Tuning) -> Result<GpuDevice<Wgpu>> {
    match Wgpu::new(number as usize, tuning.source()) {
        Ok(executor) => Ok(GpuDevice::new(executor)),
        Err(error) => Err(anyhow!("wgpu: {error}; present are {}", present())),
    }
}

/// An AMD GPU by the runtime's number.
fn hip(ordinal: u32, tuning: &Tuning) -> Result<GpuDevice<Hip>> {
    match Hip::new(ordinal, tuning.trusted()) {
        Ok(executor) => Ok(GpuDevice::new(executor)),
        Err(error @ HipError::LibraryNotFound { .. }) => Err(anyhow!(
            "hip: {error}; install ROCm (6.0 or later), or take another backend: present are {}",
            present()
        )),
        Err(error) => Err(anyhow!("hip: {error}; present are {}", present())),
    }
}

/// The simulator of a target, `sim:TARGET`; the seed orders its blocks, warps and copies.
pub(crate) fn simulator(name: &str, seed: u64, tuning: &Tuning) -> Result<GpuDevice<Simulator>> {
    let target = name.strip_prefix("sim:").unwrap_or(name);
    let simulator = Simulator::new(target).map_err(|refusal| match unsupported_reason(target) {
        Some(why) => anyhow!("{refusal}; no target in this version: {why}"),
        None => anyhow!("{refusal}"),
    })?;
    Ok(GpuDevice::new(simulator.with_seed(seed).with_source(tuning.source())))
}

fn present() -> String {
    let sets = Isa::present().map(|isa| isa.name().to_owned());
    let simulated = TARGETS.iter().filter(|target| Simulator::new(target.name).is_ok());
    let simulated: Vec<&str> = simulated.map(|target| target.name).collect();
    let sets: Vec<String> = sets.collect();
    format!("auto, cpu, {}, sim:TARGET ({})", sets.join(", "), simulated.join(", "))
}

/// What is not there, and why; neighbours for one reason together.
fn absent() -> String {
    let sets = Isa::ALL.into_iter().filter_map(|isa| {
        let absent = isa.check().err()?;
        Some((isa.name(), absent.missing.to_string()))
    });
    let cuda = quantloom::runtime::cuda::devices().err();
    let cuda = cuda.map(|error| ("cuda", error.to_string()));
    let hip = quantloom::runtime::hip::devices().err();
    let hip = hip.map(|error| ("hip", error.to_string()));
    let all: Vec<_> = sets.chain(cuda).chain(hip).chain(absent_wgpu()).collect();
    let together = |alike: &[(&str, String)]| {
        let names: Vec<&str> = alike.iter().map(|(name, _)| *name).collect();
        format!("{} ({})", names.join(", "), alike[0].1)
    };
    let reasons = all.chunk_by(|(_, one), (_, next)| one == next).map(together);
    reasons.collect::<Vec<_>>().join(", ")
}

#[cfg(feature = "wgpu")]
fn absent_wgpu() -> Option<(&'static str, String)> {
    let none = quantloom::runtime::wgpu::devices().is_empty();
    none.then(|| ("wgpu", "no device for Vulkan, Metal or Direct3D 12".to_owned()))
}

#[cfg(not(feature = "wgpu"))]
fn absent_wgpu() -> Option<(&'static str, String)> {
    Some(("wgpu", "built without it".to_owned()))
}
