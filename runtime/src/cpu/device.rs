//! The CPU as a device: one of its instruction sets, and the decoders that are known there.

use std::fmt;

use quantloom_dsl::{Code, Scheme};

use super::family::{BUILT_IN, Decode, Decoder, Families, LutDecoder};
use super::isa::{Absent, Isa};
use super::weight::CpuWeight;
use crate::backend::Backend;
use crate::op::{Op, ProductError};
use crate::unpacked::Unpacked;
use crate::weight_data::WeightData;

/// The CPU with one of its instruction sets.
#[derive(Clone, Copy)]
pub struct CpuDevice {
    isa: Isa,
    families: Families,
}

impl CpuDevice {
    /// The CPU with its best instruction set.
    pub fn best() -> Self {
        Self { isa: Isa::best(), families: &[] }
    }

    /// The CPU in plain Rust.
    pub fn portable() -> Self {
        Self { isa: Isa::Portable, families: &[] }
    }

    /// The CPU with an instruction set.
    ///
    /// # Errors
    /// What this machine lacks for it.
    pub fn of(isa: Isa) -> Result<Self, Absent> {
        isa.check()?;
        Ok(Self { isa, families: &[] })
    }

    /// The same device with the decoders of these code types, for schemes that bring none along.
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
    /// activation). A code type that no family serves is looked up in a table, which is slow: a
    /// `tracing` event of level WARN says so, and [`Op::explain`].
    ///
    /// # Errors
    /// [`ProductError::Scheme`] if the weight's codes, groups or shape are not the scheme's.
    pub fn prepare(self, scheme: &Scheme, weight: &Unpacked) -> Result<CpuWeight, ProductError> {
        let decoder = match self.family(&scheme.weight.code) {
            Some(family) => Decoder::Known(family),
            None => {
                tracing::warn!(
                    scheme = scheme.name,
                    code = %scheme.weight,
                    "no decoder is generated for these codes: products look each of them up in a \
                     table, which is slow"
                );
                Decoder::Table(LutDecoder::new(&scheme.weight.code))
            }
        };
        CpuWeight::new(self, decoder, scheme, weight)
    }
}

impl Backend for CpuDevice {
    fn name(&self) -> &str {
        self.isa.name()
    }

    /// Takes the decoder of a declared scheme, if the weight brings one along as its extra.
    fn prepare_weight(&self, weight: &WeightData<'_>) -> Result<Box<dyn Op>, ProductError> {
        let (scheme, unpacked) = (weight.scheme(), weight.unpack()?);
        Ok(Box::new(match weight.extra::<&'static dyn Decode>() {
            Some(decoder) => CpuWeight::new(*self, Decoder::Known(*decoder), scheme, unpacked)?,
            None => (*self).prepare(scheme, unpacked)?,
        }))
    }
}

impl fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuDevice({}, {} families)", self.isa, self.families.len())
    }
}
