//! The devices of this machine, by number: the fastest kind first.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ::wgpu::{
    Adapter, AdapterInfo, Backends, Device, DeviceDescriptor, DeviceType, Features, Instance,
    InstanceDescriptor, InstanceFlags, Queue,
};

use super::error::WgpuError;
use super::fault::ready;

/// A device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// What reaches it: `vulkan`, `metal`, `dx12`.
    pub api: String,
    /// What it is: `discrete GPU`, `CPU`, ...
    pub kind: &'static str,
    /// Its driver, as that says it.
    pub driver: String,
}

impl Found {
    fn new(info: &AdapterInfo) -> Self {
        let kind = match info.device_type {
            DeviceType::DiscreteGpu => "discrete GPU",
            DeviceType::IntegratedGpu => "integrated GPU",
            DeviceType::VirtualGpu => "virtual GPU",
            DeviceType::Cpu => "CPU",
            DeviceType::Other => "device",
        };
        let driver = format!("{} {}", info.driver, info.driver_info).trim().to_owned();
        Self { name: info.name.clone(), api: info.backend.to_string(), kind, driver }
    }

    /// Whether it is a graphics card, which has memory of its own.
    pub fn is_card(&self) -> bool {
        self.kind == "discrete GPU"
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} by {}, {}", self.name, self.kind, self.api, self.driver)
    }
}

/// A device that is open.
pub(super) struct Opened {
    pub(super) device: Device,
    pub(super) queue: Queue,
    /// Whether kernels may exchange registers in subgroups.
    pub(super) subgroups: bool,
    /// Why the device is gone, once it is.
    lost: Arc<Mutex<Option<String>>>,
}

impl Opened {
    /// Opens a device by its number, with subgroups if they are wanted and of one size.
    pub(super) fn new(ordinal: usize, subgroups: bool) -> Result<Self, WgpuError> {
        let adapters = adapters();
        let count = adapters.len();
        if count == 0 {
            return Err(WgpuError::NoAdapter);
        }
        let none = || WgpuError::NoDevice { ordinal, count };
        let adapter = adapters.into_iter().nth(ordinal).ok_or_else(none)?;
        let info = adapter.get_info();
        let one_size = info.subgroup_min_size == info.subgroup_max_size;
        let subgroups = subgroups && one_size && adapter.features().contains(Features::SUBGROUP);
        let descriptor = DeviceDescriptor {
            required_features: if subgroups { Features::SUBGROUP } else { Features::empty() },
            required_limits: adapter.limits(),
            ..DeviceDescriptor::default()
        };
        let name = info.name;
        let opened = ready(adapter.request_device(&descriptor));
        let why = |error: ::wgpu::RequestDeviceError| WgpuError::Open {
            device: name,
            why: error.to_string(),
        };
        let (device, queue) = opened.map_err(why)?;
        let lost = Arc::new(Mutex::new(None));
        let told = lost.clone();
        device.set_device_lost_callback(move |_, why| {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        });
        // Without a scope of ours an error would end the program; one that no call of ours asked for
        // belongs to the log.
        device.on_uncaptured_error(Arc::new(|error| {
            tracing::warn!(%error, "the GPU's API reports an error");
        }));
        Ok(Self { device, queue, subgroups, lost })
    }

    /// An error if the device is gone.
    pub(super) fn there(&self) -> Result<(), WgpuError> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.clone().map_or(Ok(()), |why| Err(WgpuError::Lost(why)))
    }
}

/// The devices of this machine, in the order of their numbers.
pub fn devices() -> Vec<Found> {
    adapters().iter().map(|adapter| Found::new(&adapter.get_info())).collect()
}

fn adapters() -> Vec<Adapter> {
    let backends = Backends::VULKAN | Backends::METAL | Backends::DX12;
    let mut descriptor = InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    // The driver's own layers for debugging stay out, whatever the build.
    descriptor.flags = InstanceFlags::empty();
    let instance = Instance::new(descriptor);
    let mut adapters = ready(instance.enumerate_adapters(backends));
    adapters.sort_by_key(|adapter| match adapter.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    });
    adapters
}
