//! Whether a target runs a scheme: whether there is a plan, and on a GPU a schedule that takes it.

use quantloom_dsl::{Activation, Scheme};

use crate::plan::{Refusal, judged, known, planned};
use crate::schedule::{Problem, Unscheduled, choose};
use crate::target::{TARGETS, Target};

/// Whether the target runs the scheme, with at least one of its activations.
///
/// # Errors
/// The reason why not.
pub fn support(scheme: &Scheme, target: &'static Target) -> Result<(), Refusal> {
    match target.gpu {
        None => planned(scheme, target),
        Some(_) => judged(scheme, target, |activation| scheduled(scheme, activation, target)),
    }
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

/// Refusals of the targets that the scheme's author insists on.
pub fn refused_targets(scheme: &Scheme) -> Vec<Refusal> {
    let refusal = |name: &String| known(name).and_then(|target| support(scheme, target)).err();
    scheme.targets.iter().filter_map(refusal).collect()
}
