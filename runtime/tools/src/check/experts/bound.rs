//! How far a device's y of an expert layer may be from the file's.
//!
//! With the reference's y (`ours`, rounded), the file's (`theirs`), and what the conformance kit expects of
//! the device (`e` within `d`, both derived from the op's own roundings, see [`crate::conformance::experts`]),
//! an element of the device's y is within `d` and half a unit of its type of `e`, so that
//!
//! ```text
//! |device - theirs| <= |d + half a unit + |e - ours|| + |ours - theirs|
//! ```
//!
//! in norm. The last term has a bound of its own; `e` differs from `ours` where the device rounds x or h to
//! another type before it multiplies.

use quantloom_dsl::format::{F32, FloatFormat};
use quantloom_dsl::reference::experts::Choices;
use quantloom_runtime::checkpoint::{CheckpointExperts, StoredExperts};
use quantloom_runtime::experts::ExpertOp;

use super::{by_sums, fail};
use crate::check::Verdict;
use crate::conformance::experts::{Choice, Element, GivenLayer};
use crate::forward::Input;
use crate::forward::experts::PreparedExperts;

/// The largest relative norm of the difference of a device's y to the file's; `beside` is that of the
/// reference's y.
pub(super) fn device_bound(
    experts: &CheckpointExperts<'_>,
    prepared: &PreparedExperts<'_>,
    (x, choice): (&Input, Choice<'_>),
    (ours, theirs): (&[f64], &[f64]),
    beside: f64,
) -> Result<f64, Verdict> {
    let shared = of_shared(experts, prepared, x)?;
    let values: Vec<f64> = shared.iter().map(|element| element.y).collect();
    let expected = elements(experts, prepared.op(), (x, choice), &values)?;
    let of_shared = shared.iter().map(|element| element.error).chain(std::iter::repeat(0.0));
    let far = expected.iter().zip(of_shared).zip(ours).map(|((element, shared), ours)| {
        let Element { y, error } = *element;
        let error = error + shared;
        error + half_unit(y.abs() + error, x.own) + (y - ours).abs()
    });
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let (far, size) = (squares(&mut { far }), squares(&mut theirs.iter().copied()));
    Ok(far.sqrt() / size.sqrt() + beside)
}

/// Half a unit in the last place of a number up to this size.
fn half_unit(largest: f64, format: FloatFormat) -> f64 {
    (largest * format.epsilon() / 2.0).max(format.decode(1) / 2.0)
}

/// y of an op, before it is rounded.
fn elements(
    experts: &CheckpointExperts<'_>,
    op: &dyn ExpertOp,
    (x, choice): (&Input, Choice<'_>),
    shared: &[f64],
) -> Result<Vec<Element>, Verdict> {
    let StoredExperts::Quantised(source) = experts.weights() else {
        return Err(fail("the layer is not quantised"));
    };
    let layer = GivenLayer::new(op, source).map_err(|error| fail(error.to_string()))?;
    let expected = layer.expected(op, (&x.values, x.own), choice, shared);
    expected.map_err(|error| fail(error.to_string()))
}

/// The result [M, H] of the expert that every token meets, as the layer's op is given it: in f32. Empty
/// without one.
fn of_shared(
    experts: &CheckpointExperts<'_>,
    prepared: &PreparedExperts<'_>,
    x: &Input,
) -> Result<Vec<Element>, Verdict> {
    let Some(shared) = experts.shared() else { return Ok(Vec::new()) };
    let wide: Vec<f32> = x.values.iter().map(|value| *value as f32).collect();
    let weights = shared.weights(&wide);
    let ids = vec![0; weights.len()];
    let exact = match prepared.shared_op() {
        Some(op) => {
            let choice = Choice { ids: &ids, weights: &weights };
            elements(shared.layer(), op, (x, choice), &[])?
        }
        None => {
            let weights = weights.into_iter().map(f64::from).collect();
            let sums = by_sums(shared.layer(), x, &Choices { ids, weights })?;
            sums.into_iter().map(|y| Element { y, error: 0.0 }).collect()
        }
    };
    let rounded = exact
        .into_iter()
        .map(|Element { y, error }| Element { y, error: error + half_unit(y.abs() + error, F32) });
    Ok(rounded.collect())
}
