//! Why a target does not run a scheme, as far as plans say.

use quantloom_dsl::format::F32;
use quantloom_dsl::{Activation, Scheme};

use super::operand::Operand;
use super::plan;
use crate::target::{TARGETS, Target, target, unsupported_reason};

/// Why a target does not run a scheme.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No kernels are generated for the target in this version.
    #[error("no kernels are generated for {0} in this version")]
    NoKernels(&'static str),
    /// The target has the texts of another one.
    #[error("{target} has no kernels of its own: runtimes translate those of {of}")]
    Translated {
        /// The target.
        target: &'static str,
        /// The other one.
        of: &'static str,
    },
    /// The target multiplies nothing that holds both sides exactly.
    #[error("{target} has no product of {weight} weights and {activation} activations: {why}")]
    NoProduct {
        /// The weight's clause.
        weight: String,
        /// The activation's clause.
        activation: String,
        /// The target.
        target: &'static str,
        /// What is in the way, and what works.
        why: String,
    },
    /// No sequence makes the product's operand of these codes.
    #[error("there is no sequence from {code} to {operand} for {target}")]
    NoSequence {
        /// The weight's clause.
        code: String,
        /// What the product reads.
        operand: Operand,
        /// The target.
        target: &'static str,
    },
    /// The target's operand has no layout yet, or the sequence wants a code's bits apart.
    #[error("there is no native layout of {code} for {operand} operands of {target}")]
    NoLayout {
        /// The weight's clause.
        code: String,
        /// What the product reads.
        operand: Operand,
        /// The target.
        target: &'static str,
    },
    /// There is a plan, but no schedule of this version takes it.
    #[error("{0}")]
    NotScheduled(String),
    /// A GPU that is no target in this version.
    #[error("no kernels are generated for {name} in this version: {why}")]
    Later {
        /// The name.
        name: String,
        /// What the schedules lack for it.
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

/// Whether the target has a plan for the scheme, with at least one of its activations. Whether a
/// schedule of a GPU takes that plan is the next question, which the GPU compiler answers
/// (`support`, feature `gpu`).
///
/// # Errors
/// The reason why not.
pub fn planned(scheme: &Scheme, target: &'static Target) -> Result<(), Refusal> {
    judged(scheme, target, |activation| plan(scheme, activation, target).map(|_| ()))
}

/// Whether a target with kernels of its own takes the scheme with at least one of the activations
/// that x may have there.
///
/// # Errors
/// What `takes` says of the first activation, if it takes none.
pub fn judged(
    scheme: &Scheme,
    target: &'static Target,
    takes: impl Fn(&Activation) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    if let Some(of) = target.translated_from {
        return Err(Refusal::Translated { target: target.name, of });
    }
    if !target.has_kernels() {
        return Err(Refusal::NoKernels(target.name));
    }
    let listed = scheme.activations.iter().cloned();
    // What x in f32 is rounded to on a GPU without products of it.
    let narrower = scheme.activation_for(F32).filter(|_| target.gpu.is_some());
    let narrower = narrower.into_iter().flat_map(|taken| taken.narrower(scheme));
    let mut taken = listed.chain(narrower).map(|activation| takes(&activation));
    let first = taken.next().unwrap_or(Err(Refusal::NoKernels(target.name)));
    if first.is_ok() || taken.any(|taken| taken.is_ok()) { Ok(()) } else { first }
}

/// The target of a name that a scheme's author wrote.
///
/// # Errors
/// There is none in this version, and why; or none at all, with the nearest name, if one is near.
pub fn known(name: &str) -> Result<&'static Target, Refusal> {
    target(name).ok_or_else(|| {
        if let Some(why) = unsupported_reason(name) {
            return Refusal::Later { name: name.to_owned(), why };
        }
        let near = TARGETS
            .iter()
            .map(|target| (strsim::damerau_levenshtein(name, target.name), target.name))
            .filter(|(distance, _)| *distance <= 2)
            .min();
        Refusal::Unknown { name: name.to_owned(), nearest: near.map(|(_, name)| name) }
    })
}
