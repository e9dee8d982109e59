//! The CPU as a device: one of its instruction sets, and the decoders that are known there.

use std::fmt;

use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::{Code, Scheme};

use super::bf16_dot;
use super::decoder::{BUILT_IN, Decoder, Decoders, DynDecoder, LutDecoder};
use super::experts::CpuExperts;
use super::isa::{Isa, UnsupportedIsa};
use super::native::Bf16Products;
use super::weight::CpuWeight;
use crate::backend::Backend;
use crate::experts::{ExpertError, ExpertOp, ExpertOptions, ExpertSource};
use crate::op::{Op, ProductError};
use crate::unpacked::Unpacked;
use crate::weight_data::WeightData;

/// The CPU with one of its instruction sets.
#[derive(Clone, Copy)]
pub struct CpuDevice {
    isa: Isa,
    bf16_dot: bool,
    decoders: Decoders,
}

impl CpuDevice {
    /// The CPU with its best instruction set.
    pub fn best() -> Self {
        Self::with(Isa::best())
    }

    /// The CPU in plain Rust.
    pub fn portable() -> Self {
        Self::with(Isa::Portable)
    }

    fn with(isa: Isa) -> Self {
        Self { isa, bf16_dot: isa == Isa::Avx512Bf16 && bf16_dot::pays(), decoders: &[] }
    }

    /// The CPU with an instruction set.
    ///
    /// # Errors
    /// What this machine lacks for it.
    pub fn of(isa: Isa) -> Result<Self, UnsupportedIsa> {
        isa.check()?;
        Ok(Self::with(isa))
    }

    /// The same device, which multiplies x in bf16 by dot products of bf16 numbers, or does not. Without
    /// this call it does where a table of processors says that they are faster than products in `f32`. Only
    /// [`Isa::Avx512Bf16`] has such products; other instruction sets ignore the choice.
    #[must_use]
    pub fn with_bf16_dot(self, bf16_dot: bool) -> Self {
        Self { bf16_dot: bf16_dot && self.isa == Isa::Avx512Bf16, ..self }
    }

    /// Whether x in bf16 is multiplied by dot products of bf16 numbers.
    pub fn bf16_dot(self) -> bool {
        self.bf16_dot
    }

    /// The products of bf16 numbers that this device has.
    pub(super) fn bf16_products(self) -> Bf16Products {
        match self.isa {
            Isa::Avx512Bf16 if self.bf16_dot => Bf16Products::Dot,
            Isa::NeonBf16 => Bf16Products::Codes,
            _ => Bf16Products::Weights,
        }
    }

    /// The same device with the decoders of these code types, for schemes that bring none along.
    #[must_use]
    pub fn with_decoders(self, decoders: Decoders) -> Self {
        Self { decoders, ..self }
    }

    /// Its instruction set.
    pub fn isa(self) -> Isa {
        self.isa
    }

    /// Its name: that of the instruction set.
    pub fn name(self) -> &'static str {
        self.isa.name()
    }

    /// The known decoder that serves a code type.
    pub fn decoder(self, code: &Code) -> Option<&'static dyn DynDecoder> {
        let known = self.decoders.iter().chain(BUILT_IN);
        known.copied().find(|decoder| decoder.serves(code))
    }

    /// Prepares a weight for products as `scheme` says (that of the weight, or with another
    /// activation). A code type that no decoder serves is looked up in a table, which is slow: a
    /// `tracing` event of level WARN says so, and [`Op::explain`].
    ///
    /// # Errors
    /// [`ProductError::Scheme`] if the weight's codes, groups or shape are not the scheme's.
    pub fn prepare(self, scheme: &Scheme, weight: &Unpacked) -> Result<CpuWeight, ProductError> {
        let decoder = match self.decoder(&scheme.weight.code) {
            Some(decoder) => Decoder::Known(decoder),
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
        Ok(Box::new(match weight.extra::<&'static dyn DynDecoder>() {
            Some(decoder) => CpuWeight::new(*self, Decoder::Known(*decoder), scheme, unpacked)?,
            None => (*self).prepare(scheme, unpacked)?,
        }))
    }

    fn prepare_experts(
        &self,
        layer: &ExpertLayer,
        weights: &dyn ExpertSource,
        options: &ExpertOptions,
    ) -> Result<Box<dyn ExpertOp>, ExpertError> {
        Ok(Box::new(CpuExperts::new(*self, layer, weights, options)?))
    }
}

impl fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bf16 = if self.bf16_dot { ", bf16 dot" } else { "" };
        write!(f, "CpuDevice({}{bf16}, {} decoders)", self.isa, self.decoders.len())
    }
}
