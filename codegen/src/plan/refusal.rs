//! Why a target has no plan for a scheme.

use quantloom_dsl::format::F32;
use quantloom_dsl::{Activation, Scheme};

use super::compute::ProductObstacle;
use super::operand::OperandType;
use super::plan;
use crate::target::{TARGETS, Target, target, unsupported_reason};

/// Why a target has no plan for a scheme.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No kernels are generated for the target in this version.
    #[error("no kernels are generated for {0} in this version")]
    NoKernels(&'static str),
    /// Kernels for the target are translations of another target's.
    #[error("{target} has no kernels of its own: runtimes translate those of {of}")]
    Translated {
        /// The target.
        target: &'static str,
        /// The other target.
        of: &'static str,
    },
    /// The target has no instruction whose operands represent w and x exactly.
    #[error("{target} has no product of {weight} weights and {activation} activations: {why}")]
    NoProduct {
        /// The weight's clause.
        weight: String,
        /// The activation's clause.
        activation: String,
        /// The target.
        target: &'static str,
        /// The obstacle, and what would work.
        why: ProductObstacle,
    },
    /// No dequantisation sequence from these codes to the product's operand.
    #[error("there is no dequantisation sequence from {code} to {operand} for {target}")]
    NoSequence {
        /// The weight's clause.
        code: String,
        /// The operand's type.
        operand: OperandType,
        /// The target.
        target: &'static str,
    },
    /// No native layout for the target's operand, or for a sequence that reads bits of codes separately.
    #[error("there is no native layout of {code} for {operand} operands of {target}")]
    NoLayout {
        /// The weight's clause.
        code: String,
        /// The operand's type.
        operand: OperandType,
        /// The target.
        target: &'static str,
    },
    /// A GPU that is not a target in this version.
    #[error("no kernels are generated for {name} in this version: {why}")]
    NotATarget {
        /// The name.
        name: String,
        /// What the schedules lack for the GPU.
        why: &'static str,
    },
    /// The scheme's author lists a target that does not exist.
    #[error("there is no target `{name}`{}", nearest.map_or(String::new(), |near| format!("; did you mean `{near}`?")))]
    Unknown {
        /// The name.
        name: String,
        /// The nearest name that exists.
        nearest: Option<&'static str>,
    },
}

/// Whether the target has a plan for the scheme, with at least one of its activations. On a GPU a
/// schedule has to support that plan too: see `support` (feature `gpu`).
///
/// # Errors
/// Why there is no plan.
pub fn planned(scheme: &Scheme, target: &'static Target) -> Result<(), PlanError> {
    judged(scheme, target, |activation| plan(scheme, activation, target).map(|_| ()))
}

/// Whether a target with kernels of its own runs the scheme with at least one of the activations that
/// x may have on that target.
///
/// # Errors
/// The error of `takes` for the first activation, if it accepts none.
pub fn judged<E: From<PlanError>>(
    scheme: &Scheme,
    target: &'static Target,
    takes: impl Fn(&Activation) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(of) = target.translated_from {
        return Err(PlanError::Translated { target: target.name, of }.into());
    }
    if !target.has_kernels() {
        return Err(PlanError::NoKernels(target.name).into());
    }
    let listed = scheme.activations.iter().cloned();
    // On a GPU without f32 products x in f32 is rounded to these.
    let narrower = scheme.activation_for(F32).filter(|_| target.gpu.is_some());
    let narrower = narrower.into_iter().flat_map(|taken| taken.narrower(scheme));
    let mut taken = listed.chain(narrower).map(|activation| takes(&activation));
    let first = taken.next().unwrap_or(Err(PlanError::NoKernels(target.name).into()));
    if first.is_ok() || taken.any(|taken| taken.is_ok()) { Ok(()) } else { first }
}

/// The target of a name in a scheme's `targets` clause.
///
/// # Errors
/// [`PlanError::NotATarget`] for a known GPU without kernels; otherwise [`PlanError::Unknown`] with the nearest
/// name, if one is near.
pub fn known(name: &str) -> Result<&'static Target, PlanError> {
    target(name).ok_or_else(|| {
        if let Some(why) = unsupported_reason(name) {
            return PlanError::NotATarget { name: name.to_owned(), why };
        }
        PlanError::Unknown { name: name.to_owned(), nearest: nearest(name) }
    })
}

/// The target whose name a text most likely means: one that begins with the text, by letters and digits
/// alone (`sm90` is `sm_90a`), else the one that is fewest typing mistakes away, two at most.
fn nearest(text: &str) -> Option<&'static str> {
    let plain = |name: &str| {
        let plain = name.chars().filter(char::is_ascii_alphanumeric);
        plain.map(|letter| letter.to_ascii_lowercase()).collect::<String>()
    };
    let asked = plain(text);
    let names = || TARGETS.iter().map(|target| target.name);
    let begun = |name: &&str| asked.len() >= 4 && plain(name).starts_with(&asked);
    let mistakes = |name: &str| strsim::damerau_levenshtein(text, name);
    let near = || names().filter(|name| mistakes(name) <= 2);
    names().filter(begun).chain(near()).min_by_key(|name| (!begun(name), mistakes(name)))
}
