//! What a scheme needs and what a target offers.

use quantloom_dsl::layout::{Component, Grain, Layout, Method, Recode, Shape, Transform};
use quantloom_dsl::{Activation, Scheme};

use crate::target::{TARGETS, Target, target};

/// Why a target does not run a scheme.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No kernels are generated for the target in this version.
    #[error("no kernels are generated for {0} in this version")]
    NoKernels(&'static str),
    /// The scheme's author lists a target that does not exist.
    #[error("there is no target `{name}`{}", nearest.map_or(String::new(), |near| format!("; did you mean `{near}`?")))]
    Unknown {
        /// The name.
        name: String,
        /// The nearest name that exists.
        nearest: Option<&'static str>,
    },
}

/// Whether the target runs the scheme.
///
/// # Errors
/// The reason why not.
pub fn support(_scheme: &Scheme, target: &Target) -> Result<(), Refusal> {
    // The portable path runs every value of the language.
    if target.has_kernels { Ok(()) } else { Err(Refusal::NoKernels(target.name)) }
}

/// The targets that run a scheme.
pub fn supported(scheme: &Scheme) -> impl Iterator<Item = &'static Target> {
    TARGETS.iter().filter(move |target| support(scheme, target).is_ok())
}

/// The target of a name that a scheme's author wrote.
///
/// # Errors
/// There is none; the nearest name, if one is near.
pub fn known(name: &str) -> Result<&'static Target, Refusal> {
    target(name).ok_or_else(|| {
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

/// What the portable path does with a scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortablePlan {
    /// Per stored tensor of codes: how it is moved to plain codes.
    pub transforms: Vec<(String, Method)>,
    /// Entries of the code table.
    pub table: usize,
    /// Columns that share their scales and zero point, `None` = the whole row; 1 with act-order.
    pub run: Option<u32>,
    /// Numbers that each weight is multiplied with or divided by.
    pub levels: usize,
    /// Whether the activation is quantised first.
    pub quantises: bool,
}

/// Derives the portable plan.
pub fn portable(scheme: &Scheme) -> PortablePlan {
    fn gcd(a: u32, b: u32) -> u32 {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    // Large and divisible by every usual digit, so that the plan is the common case's.
    let shape =
        Shape { experts: if scheme.experts.is_some() { 6 } else { 1 }, n: 1 << 13, k: 15 << 13 };
    let transform = |store: &quantloom_dsl::Store| {
        let grains = scheme.grains(Component::Code)?;
        let plain = Layout::plain(Component::Code, grains.bits).bind(shape, &|_| Some(grains));
        let source = scheme.bind(store, shape).ok()?;
        let transform =
            Transform::new(Component::Code, &source, &plain.ok()?, Recode::Keep).ok()?;
        Some((store.name.clone(), transform.method()))
    };
    let groups = scheme.scales.iter().map(|scale| scale.group.cols);
    let groups = groups.chain(scheme.zero.map(|zero| zero.group.cols));
    let groups = groups.chain(scheme.shift.map(|shift| shift.group.cols));
    let run = groups.fold(0, |run, cols| match cols {
        Grain::Each(cols) => gcd(run, cols),
        Grain::All => run,
    });
    PortablePlan {
        transforms: scheme.stores_of(Component::Code).filter_map(transform).collect(),
        table: 1 << scheme.weight.code.bits(),
        run: match (scheme.index, run) {
            (Some(_), _) => Some(1),
            (None, 0) => None,
            (None, run) => Some(run),
        },
        levels: scheme.scales.len(),
        quantises: matches!(scheme.activations.first(), Some(Activation::Quantised(_))),
    }
}
