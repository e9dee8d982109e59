//! Whether a target runs a scheme: whether there is a plan, and on a GPU a schedule that supports the
//! plan.

use quantloom_dsl::{Activation, Scheme};

use crate::plan::{judged, known, planned};
use crate::schedule::{Problem, Unscheduled, choose};
use crate::target::{TARGETS, Target};

/// Whether the target runs the scheme, with at least one of its activations.
///
/// # Errors
/// [`Unscheduled::NoPlan`] without a plan, otherwise the refusal of the GPU's schedules.
pub fn support(scheme: &Scheme, target: &'static Target) -> Result<(), Unscheduled> {
    match target.gpu {
        None => Ok(planned(scheme, target)?),
        Some(_) => judged(scheme, target, |activation| scheduled(scheme, activation, target)),
    }
}

/// Whether a schedule supports the product of a shape without remainders with one token.
fn scheduled(
    scheme: &Scheme,
    activation: &Activation,
    target: &'static Target,
) -> Result<(), Unscheduled> {
    const WHOLE: (u32, u32) = (4096, 4096);
    // Each expert is multiplied as a weight of its own.
    let dense = Scheme { experts: None, ..scheme.clone() };
    let problem = Problem::new(&dense, activation, target, WHOLE)?;
    choose(&problem, 1).map(|_| ())
}

/// The targets that run a scheme.
pub fn supported(scheme: &Scheme) -> impl Iterator<Item = &'static Target> {
    TARGETS.iter().filter(move |target| support(scheme, target).is_ok())
}

/// The refusals of the targets in the scheme's `targets` clause.
pub fn refused_targets(scheme: &Scheme) -> Vec<Unscheduled> {
    let check = |name: &String| support(scheme, known(name)?);
    scheme.targets.iter().filter_map(|name| check(name).err()).collect()
}
