//! The devices that a build has names for, present or not.

use std::fmt;

#[cfg(feature = "jit")]
use quantloom_codegen::target::TARGETS;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::isa::Isa;

#[cfg(any(feature = "cuda", feature = "hip", feature = "wgpu"))]
use super::Device;
use super::error::DeviceError;

/// A device by its name, present or not.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The name that [`Device::named`](super::Device::named) takes.
    pub name: String,
    /// What it is: the CPU with an instruction set, the product's name of a GPU, a simulator.
    pub description: String,
    /// Why it cannot be used; `None` if it is present.
    pub absent: Option<DeviceError>,
}

impl Listed {
    fn present(name: impl Into<String>, description: impl Into<String>) -> Self {
        Self { name: name.into(), description: description.into(), absent: None }
    }

    fn absent(name: &str, description: &str, why: impl Into<DeviceError>) -> Self {
        Self { absent: Some(why.into()), ..Self::present(name, description) }
    }

    /// Why it cannot be used, in words to print beside its name; `None` if it is present.
    pub fn why(&self) -> Option<String> {
        Some(match self.absent.as_ref()? {
            DeviceError::Instructions(absent) => absent.missing.to_string(),
            DeviceError::NotCompiled { feature } => format!("needs the feature `{feature}`"),
            error => {
                let text = error.to_string();
                let own = text.strip_prefix(&format!("{}: ", self.name));
                own.map_or(text.clone(), str::to_owned)
            }
        })
    }
}

/// Every device; the CPU first, simulators last.
pub(super) fn list() -> Vec<Listed> {
    let mut all = cpu();
    all.extend(cuda());
    all.extend(hip());
    all.extend(wgpu());
    all.extend(simulated());
    all
}

#[cfg(feature = "jit")]
fn simulated() -> Vec<Listed> {
    let targets = TARGETS.iter().filter(|target| target.gpu.is_some() && target.has_kernels());
    let listed = targets.map(|target| {
        Listed::present(format!("sim:{}", target.name), format!("the simulator of {}", target.name))
    });
    listed.collect()
}

#[cfg(not(feature = "jit"))]
fn simulated() -> Vec<Listed> {
    Vec::new()
}

/// The CPU with its best instruction set, then with each by its name.
fn cpu() -> Vec<Listed> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let best = CpuDevice::best().isa().name();
    let best = format!("{} with {best}, {threads} threads", std::env::consts::ARCH);
    let listed = |isa: Isa| match isa.check() {
        Ok(()) => Listed::present(isa.name(), "the CPU with this instruction set"),
        Err(absent) => Listed::absent(isa.name(), "the CPU with this instruction set", absent),
    };
    let sets = Isa::ALL.into_iter().rev().map(listed);
    std::iter::once(Listed::present("cpu", best)).chain(sets).collect()
}

/// The devices of a driver, or why there are none; `open` says why one cannot be used.
#[cfg(any(feature = "cuda", feature = "hip", feature = "wgpu"))]
fn found<D: fmt::Display>(
    backend: &'static str,
    devices: Result<Vec<D>, impl Into<DeviceError>>,
    has_kernels: impl Fn(&D) -> bool,
    open: fn(u32) -> Result<Device, DeviceError>,
) -> Vec<Listed> {
    let devices = match devices {
        Ok(devices) => devices,
        Err(error) => return vec![Listed::absent(backend, "a GPU", error)],
    };
    if devices.is_empty() {
        return vec![Listed { absent: open(0).err(), ..Listed::present(backend, "a GPU") }];
    }
    let listed = |(ordinal, device): (u32, &D)| {
        let name = if ordinal == 0 { backend.to_owned() } else { format!("{backend}:{ordinal}") };
        let absent = if has_kernels(device) { None } else { open(ordinal).err() };
        Listed { absent, ..Listed::present(name, device.to_string()) }
    };
    (0..).zip(&devices).map(listed).collect()
}

#[cfg(feature = "cuda")]
fn cuda() -> Vec<Listed> {
    found(
        "cuda",
        quantloom_runtime::cuda::devices().map_err(DeviceError::Cuda),
        |gpu| gpu.target.is_some(),
        Device::cuda,
    )
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Vec<Listed> {
    vec![Listed::absent("cuda", "NVIDIA GPUs", DeviceError::NotCompiled { feature: "cuda" })]
}

#[cfg(feature = "hip")]
fn hip() -> Vec<Listed> {
    found(
        "hip",
        quantloom_runtime::hip::devices().map_err(DeviceError::Hip),
        |gpu| gpu.target.is_some(),
        Device::hip,
    )
}

#[cfg(not(feature = "hip"))]
fn hip() -> Vec<Listed> {
    vec![Listed::absent("hip", "AMD GPUs", DeviceError::NotCompiled { feature: "hip" })]
}

#[cfg(feature = "wgpu")]
fn wgpu() -> Vec<Listed> {
    let devices = Ok::<_, DeviceError>(quantloom_runtime::wgpu::devices());
    found("wgpu", devices, |_| true, Device::wgpu)
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> Vec<Listed> {
    vec![Listed::absent("wgpu", "GPUs", DeviceError::NotCompiled { feature: "wgpu" })]
}

/// The names of devices for a message: those that are present, and why others are absent.
#[derive(Clone, Debug)]
pub struct Available(Vec<Listed>);

impl Available {
    /// The devices that there are now.
    pub fn now() -> Self {
        Self(list())
    }

    /// The names of devices that are present.
    pub fn present(&self) -> String {
        let names = self.0.iter().filter(|listed| listed.absent.is_none());
        let names = names.map(|listed| listed.name.as_str());
        let simulated = |name: &&str| name.starts_with("sim:");
        let others: Vec<&str> = names.filter(|name| !simulated(name)).collect();
        format!("auto, {}, sim:TARGET", others.join(", "))
    }

    /// The names of devices that are absent, those of one reason together.
    pub fn absent(&self) -> String {
        let all: Vec<(String, String)> =
            self.0.iter().filter_map(|listed| Some((listed.name.clone(), listed.why()?))).collect();
        let together = all.chunk_by(|(_, one), (_, next)| one == next).map(|alike| {
            let names: Vec<&str> = alike.iter().map(|(name, _)| name.as_str()).collect();
            format!("{} ({})", names.join(", "), alike[0].1)
        });
        together.collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Available {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "present are {}; absent are {}", self.present(), self.absent())
    }
}
