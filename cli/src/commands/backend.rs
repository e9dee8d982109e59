//! `--backend`: from a name to where products run, or what is there instead.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use clap::Args;
use quantloom::codegen::jit::{Overrides, Simulator};
use quantloom::device::{Available, Device, DeviceError, Opening};
use quantloom::runtime::cpu::CpuDevice;
use quantloom::runtime::cpu::isa::Isa;
use quantloom::runtime::cuda::CudaError;
use quantloom::runtime::gpu::GpuDevice;
use quantloom::runtime::hip::HipError;

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
    fn opening(&self, seed: u64) -> Opening {
        let choices: BTreeMap<_, _> = self.choices.iter().cloned().collect();
        Opening { overrides: Overrides::of_all(choices), seed, ..Opening::default() }
    }
}

/// The device of a name.
pub(crate) fn device(name: &str) -> Result<Device> {
    tuned(name, &Tuning::default())
}

/// The device of a name, whose schedules are told something.
pub(crate) fn tuned(name: &str, tuning: &Tuning) -> Result<Device> {
    Device::open(name, &tuning.opening(0)).map_err(advised)
}

/// The devices of a name, where `all` is every instruction set that is present.
pub(crate) fn devices(name: &str, tuning: &Tuning) -> Result<Vec<Device>> {
    match name {
        "all" => Isa::present().map(|isa| device(isa.name())).collect(),
        name => Ok(vec![tuned(name, tuning)?]),
    }
}

/// The CPU, with the catalogue's decoders.
pub(crate) fn cpu() -> CpuDevice {
    CpuDevice::best().with_decoders(quantloom::kernels::DECODERS)
}

/// The simulator of a target, `sim:TARGET`; the seed orders its blocks, warps and copies.
pub(crate) fn simulator(name: &str, seed: u64, tuning: &Tuning) -> Result<GpuDevice<Simulator>> {
    let target = name.strip_prefix("sim:").unwrap_or(name);
    match Device::open(&format!("sim:{target}"), &tuning.opening(seed)).map_err(advised)? {
        Device::Simulated(device) => Ok(device),
        other => Err(anyhow!("{} is no simulator", other.name())),
    }
}

/// The error with what to install, or what to take instead.
fn advised(error: DeviceError) -> anyhow::Error {
    let install = match &error {
        DeviceError::Unknown { .. } | DeviceError::Target { .. } => return error.into(),
        DeviceError::Cuda(CudaError::LibraryNotFound { .. }) => {
            "; install NVIDIA's driver (525 or later; `quantloom devices --test` tries it), or take \
             another backend"
        }
        DeviceError::Hip(HipError::LibraryNotFound { .. }) => {
            "; install ROCm (6.0 or later), or take another backend"
        }
        _ => "",
    };
    let separator = if install.is_empty() { ";" } else { ":" };
    anyhow!("{error}{install}{separator} present are {}", Available::now().present())
}
