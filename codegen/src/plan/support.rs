//! Whether a target runs a scheme, and the reasons why not.

use quantloom_dsl::format::F32;
use quantloom_dsl::{Activation, Scheme};

use super::operand::Operand;
use super::plan;
use crate::schedule::{Problem, Unscheduled, choose};
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

/// Whether the target runs the scheme, with at least one of its activations.
///
/// # Errors
/// The reason why not.
pub fn support(scheme: &Scheme, target: &'static Target) -> Result<(), Refusal> {
    if let Some(of) = target.translated_from {
        return Err(Refusal::Translated { target: target.name, of });
    }
    if !target.has_kernels() {
        return Err(Refusal::NoKernels(target.name));
    }
    let kernel = |activation: &Activation| match target.gpu {
        None => plan(scheme, activation, target).map(|_| ()),
        Some(_) => scheduled(scheme, activation, target),
    };
    let listed = scheme.activations.iter().cloned();
    // What x in f32 is rounded to on a GPU without products of it.
    let narrower = scheme.activation_for(F32).filter(|_| target.gpu.is_some());
    let narrower = narrower.into_iter().flat_map(|taken| taken.narrower(scheme));
    let mut plans = listed.chain(narrower).map(|activation| kernel(&activation));
    let first = plans.next().unwrap_or(Err(Refusal::NoKernels(target.name)));
    if first.is_ok() || plans.any(|plan| plan.is_ok()) { Ok(()) } else { first }
}

/// Whether a schedule takes the product of a whole shape with one token.
fn scheduled(
    scheme: &Scheme,
    activation: &Activation,
    target: &'static Target,
) -> Result<(), Refusal> {
    const WHOLE: (u32, u32) = (4096, 4096);
    // Experts are multiplied one by one, each as a weight of its own.
    let dense = Scheme { experts: None, ..scheme.clone() };
    let problem = Problem::new(&dense, activation, target, WHOLE);
    match problem.and_then(|problem| choose(&problem, 1)) {
        Ok(_) => Ok(()),
        Err(Unscheduled::NoPlan(refusal)) => Err(refusal),
        Err(other) => Err(Refusal::NotScheduled(other.to_string())),
    }
}

/// The targets that run a scheme.
pub fn supported(scheme: &Scheme) -> impl Iterator<Item = &'static Target> {
    TARGETS.iter().filter(move |target| support(scheme, target).is_ok())
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

/// Refusals of the targets that the scheme's author insists on.
pub fn refused_targets(scheme: &Scheme) -> Vec<Refusal> {
    let refusal = |name: &String| known(name).and_then(|target| support(scheme, target)).err();
    scheme.targets.iter().filter_map(refusal).collect()
}
