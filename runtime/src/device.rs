//! Where products run.
//!
//! In: a wish, or none. Out: a [`Device`], the CPU with one of its instruction sets, which prepares
//! weights; or, with what a program brings along, another [`Backend`]. Asking never panics and links
//! nothing that may be missing: what a machine has not is an [`Err`] that says so.

use quantloom_dsl::{Code, Scheme};

use crate::cpu::family::{BUILT_IN, Decode, Decoder, Families, LutDecoder};
use crate::cpu::isa::{Absent, Isa};
use crate::cpu::weight::CpuWeight;
use crate::gpu::Stored;
use crate::op::{Op, ProductError};
use crate::unpacked::Unpacked;

/// Why there is no such device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The machine has it not.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// No device is called that.
    #[error(
        "there is no backend \"{0}\"; they are auto, cpu, cuda, hip, wgpu, sim:TARGET and the \
         instruction sets {names}",
        names = Isa::ALL.map(Isa::name).join(", ")
    )]
    Unknown(String),
}

/// A device behind the one interface: what commands, checks and the conformance kit multiply on.
pub trait Backend: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &str;

    /// Prepares a weight for products as `scheme` says (that of the weight, or with another
    /// activation).
    ///
    /// # Errors
    /// See [`ProductError`].
    fn prepare(&self, scheme: &Scheme, weight: &Unpacked) -> Result<Box<dyn Op>, ProductError>;

    /// The same where the stored tensors of the weight are at hand, packed as `scheme` says: a
    /// device that brings those into place by itself takes them.
    ///
    /// # Errors
    /// See [`ProductError`].
    fn prepare_stored(
        &self,
        scheme: &Scheme,
        weight: &Unpacked,
        _stored: Stored<'_, '_>,
    ) -> Result<Box<dyn Op>, ProductError> {
        self.prepare(scheme, weight)
    }
}

impl Backend for Device {
    fn name(&self) -> &str {
        self.isa.name()
    }

    fn prepare(&self, scheme: &Scheme, weight: &Unpacked) -> Result<Box<dyn Op>, ProductError> {
        Ok(Box::new((*self).prepare(scheme, weight)?))
    }
}

/// A place where products run, and the decoders that are known there.
#[derive(Clone, Copy)]
pub struct Device {
    isa: Isa,
    families: Families,
}

impl Device {
    /// The best that is present.
    ///
    /// # Errors
    /// None today: a CPU is always there.
    pub fn best() -> Result<Self, DeviceError> {
        Ok(Self::cpu())
    }

    /// The CPU with its best instruction set.
    pub fn cpu() -> Self {
        Self::of(Isa::best())
    }

    /// The CPU in plain Rust.
    pub fn portable() -> Self {
        Self::of(Isa::Portable)
    }

    /// `auto`, `cpu`, or the name of an instruction set.
    ///
    /// # Errors
    /// [`DeviceError`]: unknown, or not on this machine.
    pub fn named(name: &str) -> Result<Self, DeviceError> {
        match name {
            "auto" => Self::best(),
            "cpu" => Ok(Self::cpu()),
            other => {
                let isa =
                    Isa::from_name(other).ok_or_else(|| DeviceError::Unknown(other.to_owned()))?;
                isa.check()?;
                Ok(Self::of(isa))
            }
        }
    }

    fn of(isa: Isa) -> Self {
        Self { isa, families: &[] }
    }

    /// The same device, knowing these families besides what a typed scheme brings along.
    #[must_use]
    pub fn with_families(self, families: Families) -> Self {
        Self { families, ..self }
    }

    /// Its instruction set.
    pub fn isa(self) -> Isa {
        self.isa
    }

    /// Its name: that of the instruction set.
    pub fn name(self) -> &'static str {
        self.isa.name()
    }

    /// The known family that serves a code type.
    pub fn family(self, code: &Code) -> Option<&'static dyn Decode> {
        let known = self.families.iter().chain(BUILT_IN);
        known.copied().find(|family| family.serves(code))
    }

    /// Prepares a weight for products as `scheme` says (that of the weight, or with another
    /// activation).
    ///
    /// # Errors
    /// [`ProductError::Scheme`] if the weight's codes, groups or shape are not the scheme's.
    pub fn prepare(self, scheme: &Scheme, weight: &Unpacked) -> Result<CpuWeight, ProductError> {
        let decoder = match self.family(&scheme.weight.code) {
            Some(family) => Decoder::Known(family),
            None => Decoder::Table(LutDecoder::new(&scheme.weight.code)),
        };
        CpuWeight::new(self, decoder, scheme, weight)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}, {} families)", self.isa, self.families.len())
    }
}
