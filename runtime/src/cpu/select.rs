//! Which kernel of the CPU a product runs on, and why not another.
//!
//! In: a device, a scheme, a shape. Out: a [`Selection`]: the kernel that was chosen and, for each
//! one that was not, a typed [`Rejection`]. Candidates are tried best first; the first without a
//! rejection is chosen.

use std::fmt;

use quantloom_dsl::format::Number;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Activation, Code, Scheme, TableIntegers};

use super::blocking::Instruction;
use super::device::CpuDevice;
use super::groups::{IntegerInput, common_columns, divides_into_segments, dot_columns, permutes};
use super::isa::{Isa, UnsupportedIsa};
use super::native::{NativeWeight, Path};
use crate::explanation::together;

/// A kernel by what distinguishes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelName {
    /// Instruction set.
    pub isa: Isa,
    /// How it multiplies.
    pub path: Path,
    /// The decoder that decodes: a code type, or `table`.
    pub decoder: &'static str,
}

impl KernelName {
    /// The kernel of a product whose blocks these instructions multiply, if any.
    pub(crate) fn on(&self, instruction: Option<Instruction>) -> String {
        let Self { isa, decoder, .. } = self;
        match instruction {
            None => self.to_string(),
            Some(Instruction::Bytes) => format!("{isa}, {decoder} decode, i8 matrix"),
            Some(Instruction::SplitBf16 { .. }) => {
                format!("{isa}, {decoder} decode, bf16 matrix or f32 fma by the type of x")
            }
            Some(Instruction::Bf16Dot(_)) => {
                format!("{isa}, {decoder} decode, bf16 dot or f32 fma by the type of x")
            }
        }
    }
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self.path {
            Path::Dot => "i8 dot",
            Path::Fma => "f32 fma",
        };
        write!(f, "{}, {} decode, {path}", self.isa, self.decoder)
    }
}

/// Why a kernel was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The machine lacks the instructions.
    #[error(transparent)]
    UnsupportedIsa(#[from] UnsupportedIsa),
    /// The device was made for another set.
    #[error("the device was asked for {0}")]
    OtherSet(Isa),
    /// Integer products need integer codes, or codes that a table makes integers.
    #[error(
        "integer products need integer codes, or at most 16 that are small integers times a power of two, \
         without zero points; the weight's are {0}"
    )]
    FloatCodes(String),
    /// Integer products need an activation of integers; the scheme's first one is of this type, `None` if it has none.
    #[error(
        "integer products need an activation quantised to integers of at most 8 bits, or to floats that are such \
         integers times a power of two, this one is {}",
        .0.map_or("not given".to_owned(), |number| number.to_string())
    )]
    Activation(Option<Number>),
    /// Scales of x by groups need its columns in their order.
    #[error(
        "integer products with an activation scale per {0} columns need columns of the weight in their \
         order, without padding between groups"
    )]
    ActivationGroups(usize),
    /// The device does not multiply bf16 numbers by dot products.
    #[error(
        "not known to be faster than f32 on this processor, or declined: see \
         `CpuDevice::with_bf16_dot`"
    )]
    WithoutBf16Dot,
    /// Neither weights nor codes are single bf16 numbers.
    #[error(
        "neither weights with their scales are single bf16 numbers, nor codes in groups of whole \
         steps of 32 columns"
    )]
    NoBf16Operand,
    /// Groups are too short or do not end with half a chunk.
    #[error("integer products need scales that are constant over 16 columns, these are over {0}")]
    Groups(usize),
    /// No decoder was generated for the code type.
    #[error(
        "SLOW: no decoder is generated for {0}, so that each code is looked up in a table of values; \
         `scheme!` generates one"
    )]
    NoDecoder(String),
    /// Another one comes first.
    #[error("{0} comes first")]
    Later(String),
}

/// A kernel that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Which.
    pub kernel: String,
    /// Why.
    pub why: Rejection,
}

/// The kernel that was chosen and those that were not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// What runs.
    pub kernel: KernelName,
    /// What does not, in the order of trial.
    pub rejected: Vec<Rejected>,
}

impl Selection {
    /// A line for the kernel, by the name that it has for some number of tokens, and one for each
    /// reason why others were rejected.
    pub fn explain(&self, kernel: &str) -> String {
        let mut lines = vec![format!("{kernel} is chosen")];
        lines.extend(together(self.rejected.iter().map(|rejected| {
            let why = match &rejected.why {
                // The name of the set precedes this text.
                Rejection::UnsupportedIsa(absent) => format!("not present: {}", absent.missing),
                why => why.to_string(),
            };
            (rejected.kernel.as_str(), why)
        })));
        lines.join("\n")
    }
}

/// Chooses the kernel for a scheme and a shape on a device.
pub fn select(device: &CpuDevice, scheme: &Scheme, shape: Shape) -> Selection {
    let decoder = device.decoder(&scheme.weight.code).map(|decoder| decoder.name());
    select_with(device, decoder, scheme, shape)
}

/// The same with a decoder that the scheme brings along.
pub(crate) fn select_with(
    device: &CpuDevice,
    decoder: Option<&'static str>,
    scheme: &Scheme,
    shape: Shape,
) -> Selection {
    let mut rejected = Vec::new();
    for isa in Isa::ALL.into_iter().rev().filter(|isa| *isa != device.isa()) {
        let why = match isa.check() {
            Err(absent) => Rejection::UnsupportedIsa(absent),
            Ok(()) => Rejection::OtherSet(device.isa()),
        };
        rejected.push(Rejected { kernel: isa.name().to_owned(), why });
    }
    let decoder = match decoder {
        Some(decoder) => decoder,
        None => {
            let why = Rejection::NoDecoder(code_name(&scheme.weight.code));
            rejected.push(Rejected { kernel: "generated decode".to_owned(), why });
            "table"
        }
    };
    let isa = device.isa();
    let path = match refuse_dot(scheme, shape) {
        None => Path::Dot,
        Some(why) => {
            rejected.push(Rejected { kernel: format!("{isa}, i8 dot"), why });
            Path::Fma
        }
    };
    let kernel = KernelName { isa, path, decoder };
    if path == Path::Dot {
        let why = Rejection::Later(kernel.to_string());
        rejected.push(Rejected { kernel: format!("{isa}, f32 fma"), why });
    }
    tracing::debug!(scheme = scheme.name, %kernel, "select");
    Selection { kernel, rejected }
}

/// Why x in bf16 is not multiplied by dot products of bf16 numbers on an instruction set that has them.
pub(super) fn rejected_bf16_dot(
    kernel: &KernelName,
    bf16_dot: bool,
    weight: &NativeWeight,
) -> Option<Rejected> {
    let KernelName { isa: isa @ Isa::Avx512Bf16, path: Path::Fma, .. } = kernel else {
        return None;
    };
    let why = match (bf16_dot, weight.bf16_operand()) {
        (false, _) => Rejection::WithoutBf16Dot,
        (true, None) => Rejection::NoBf16Operand,
        (true, Some(_)) => return None,
    };
    Some(Rejected { kernel: format!("{isa}, bf16 dot"), why })
}

/// Why integer products do not compute a scheme, if they do not.
fn refuse_dot(scheme: &Scheme, shape: Shape) -> Option<Rejection> {
    let (weight, alone) = (&scheme.weight, scheme.zero.is_none() && scheme.shifts.is_empty());
    let looked_up = || alone && weight.offset == 0 && TableIntegers::of(&weight.code).is_some();
    if weight.code.is_float() && !looked_up() {
        return Some(Rejection::FloatCodes(code_name(&weight.code)));
    }
    let quantiser = match scheme.activations.first() {
        Some(Activation::Quantised(quantiser)) => quantiser,
        Some(Activation::Float(number)) => return Some(Rejection::Activation(Some(*number))),
        None => return Some(Rejection::Activation(None)),
    };
    let Some(of_x) = IntegerInput::of(quantiser, shape) else {
        return Some(Rejection::Activation(Some(quantiser.code)));
    };
    if let Some(columns) = of_x.group
        && permutes(scheme, shape)
    {
        return Some(Rejection::ActivationGroups(columns));
    }
    let common = common_columns(dot_columns(scheme, shape), of_x.group);
    common.filter(|columns| !divides_into_segments(*columns)).map(Rejection::Groups)
}

fn code_name(code: &Code) -> String {
    match code {
        Code::Number(number) => number.to_string(),
        Code::Codebook(values) => format!("a codebook of {}", values.len()),
    }
}
