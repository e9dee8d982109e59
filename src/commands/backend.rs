//! `--backend`: from a name to a device, or what is there instead.

use anyhow::{Result, anyhow, bail};
use quantloom::runtime::cpu::isa::Isa;
use quantloom::runtime::device::Device;

/// The device of a name.
pub(crate) fn device(name: &str) -> Result<Device> {
    match name {
        "cuda" | "hip" | "wgpu" => bail!(
            "the backend {name} has no products in this version (`quantloom devices` tells what \
             it needs); present are {}",
            present()
        ),
        sim if sim.starts_with("sim:") => bail!(
            "the simulator multiplies no checkpoints in this version; present are {}",
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

/// The devices of a name, where `all` is every instruction set that is present.
pub(crate) fn devices(name: &str) -> Result<Vec<Device>> {
    match name {
        "all" => Isa::present().map(|isa| device(isa.name())).collect(),
        name => Ok(vec![device(name)?]),
    }
}

fn present() -> String {
    let sets: Vec<&str> = Isa::present().map(Isa::name).collect();
    format!("auto, cpu, {}", sets.join(", "))
}

fn absent() -> String {
    let sets = Isa::ALL.into_iter().filter_map(|isa| {
        let absent = isa.check().err()?;
        Some(format!("{isa} ({})", absent.missing))
    });
    let others = ["cuda", "hip", "wgpu"].map(|name| format!("{name} (not in this version)"));
    sets.chain(others).collect::<Vec<_>>().join(", ")
}
