//! Compares a checkpoint with the results that its own software has stored in it.
//!
//! In: a checkpoint with `ref.*` tensors. Out: one [`Finding`] per comparison, with the measured
//! error, the bound and the derivation of the bound. For a layer P the references are
//! `ref.P.weight`, `ref.P.x`, `ref.P.y` (without `P.` if it is the only layer), or, for stacked
//! experts, `ref.X` with X the last part of the name, stored as [E, K, N]. If a file has a weight
//! and no product, both weights are multiplied with a random x. Whole expert layers are in `experts`.

use std::cell::RefCell;
use std::collections::BTreeSet;

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number, Overflow};
use quantloom_dsl::{ActivationChoice, Scheme};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::checkpoint::{Checkpoint, Layer, Tensor, Tensors};
use quantloom_runtime::float_mode::standard;
use quantloom_runtime::op::ProductError;
use quantloom_runtime::tensor::reals;
use quantloom_runtime::unpacked::Unpacked;

use crate::conformance::draw;
use crate::forward::{Input, as_called, forward};

mod experts;

pub use experts::expert_tokens;

/// What was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The decoded weight, element by element.
    Weight,
    /// The product, compared by its norm.
    Product,
    /// The layer could not be read.
    Layer,
    /// The experts that a router chooses, and their weights, compared by their norm.
    Routing,
    /// Nothing: no layer goes with a reference, or the other half of its pair is not there.
    Nothing,
    /// The result of a whole expert layer by the reference in f64, compared by its norm; what a device
    /// computes of the layer is a product.
    Reference,
}

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Within the bound.
    Pass,
    /// Beyond the bound, or not computable, with the reason.
    Fail(String),
    /// There is a reference, but this version does not compute the result, with the reason.
    NotChecked(String),
}

/// One comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The layer's name.
    pub layer: String,
    /// What was compared.
    pub subject: Subject,
    /// Measured error: roundings for a weight, relative norm for a product.
    pub error: Option<f64>,
    /// The largest error that passes, in the same unit.
    pub bound: Option<f64>,
    /// What the error is measured in.
    pub unit: &'static str,
    /// The verdict.
    pub verdict: Verdict,
}

/// Compares every layer that has references; the backend computes the products. A reference that was not
/// compared is [`Verdict::NotChecked`].
pub fn check(checkpoint: &Checkpoint, backend: &dyn Backend) -> Vec<Finding> {
    let references = References::new(checkpoint.tensors());
    let alone = checkpoint.layers().count() == 1;
    let mut findings = Vec::new();
    for (name, layer) in checkpoint.layers() {
        let references = references.of(name, alone);
        match layer {
            Ok(layer) => {
                standard(|| check_layer(layer, backend, &references, &mut findings));
            }
            Err(error) => {
                references.use_all();
                findings.push(failed(name, error));
            }
        }
    }
    standard(|| experts::check(checkpoint, backend, &references, &mut findings));
    findings.extend(references.unused().map(|name| Finding {
        layer: name.to_owned(),
        subject: Subject::Nothing,
        error: None,
        bound: None,
        unit: "",
        verdict: Verdict::NotChecked("no layer, or no other reference, goes with it".to_owned()),
    }));
    findings
}

/// The tensors `ref.*` of a checkpoint, and which of them were used.
struct References<'c> {
    tensors: &'c Tensors,
    used: RefCell<BTreeSet<String>>,
}

impl<'c> References<'c> {
    fn new(tensors: &'c Tensors) -> Self {
        Self { tensors, used: RefCell::default() }
    }

    /// Those of a layer, whose name may be left out if it is the only one.
    fn of<'r>(&'r self, layer: &'r str, alone: bool) -> LayerReferences<'r, 'c> {
        LayerReferences { all: self, layer, alone }
    }

    /// The names of those that were not used.
    fn unused(&self) -> impl Iterator<Item = &'c str> {
        let names = self.tensors.names().filter(|name| name.starts_with("ref."));
        names.filter(|name| !self.used.borrow().contains(*name))
    }
}

/// The references of a layer.
struct LayerReferences<'r, 'c> {
    all: &'r References<'c>,
    layer: &'r str,
    alone: bool,
}

impl<'c> LayerReferences<'_, 'c> {
    /// A tensor by the names that it may have.
    fn first(&self, names: impl IntoIterator<Item = String>) -> Option<(String, &'c Tensor)> {
        names.into_iter().find_map(|name| {
            let tensor = self.all.tensors.get(&name)?;
            Some((name, tensor))
        })
    }

    /// The reference of a kind: `weight`, `x`, `y`.
    fn find(&self, what: &str) -> Option<(String, &'c Tensor)> {
        let short = self.alone.then(|| format!("ref.{what}"));
        self.first([format!("ref.{}.{what}", self.layer)].into_iter().chain(short))
    }

    fn take(&self, (name, tensor): (String, &'c Tensor)) -> &'c Tensor {
        self.all.used.borrow_mut().insert(name);
        tensor
    }

    /// The reference of a kind, which is used.
    fn one(&self, what: &str) -> Option<&'c Tensor> {
        Some(self.take(self.find(what)?))
    }

    /// The weights of stacked experts, by the last part of the layer's name.
    fn stack(&self) -> Option<&'c Tensor> {
        let last = self.layer.rsplit('.').next().unwrap_or_default();
        Some(self.take(self.first([format!("ref.{last}")])?))
    }

    /// x and y, which are used if both are there.
    fn product(&self) -> Option<(&'c Tensor, &'c Tensor)> {
        let (x, y) = self.find("x").zip(self.find("y"))?;
        Some((self.take(x), self.take(y)))
    }

    /// Takes all of the layer for used, since what is wrong with the layer is said.
    fn use_all(&self) {
        let own = format!("ref.{}.", self.layer);
        let names = self.all.unused().filter(|name| self.alone || name.starts_with(&own));
        let names: Vec<String> = names.map(str::to_owned).collect();
        self.all.used.borrow_mut().extend(names);
    }
}

fn failed(layer: &str, error: impl std::fmt::Display) -> Finding {
    Finding {
        layer: layer.to_owned(),
        subject: Subject::Layer,
        error: None,
        bound: None,
        unit: "",
        verdict: Verdict::Fail(error.to_string()),
    }
}

/// The tokens that [`check`] multiplies a layer with.
pub fn tokens(checkpoint: &Checkpoint, layer: &Layer) -> usize {
    let alone = checkpoint.layers().count() == 1;
    let references = References::new(checkpoint.tensors());
    match references.of(layer.name(), alone).one("x").map(Tensor::shape) {
        Some([rows @ .., _]) => rows.iter().product(),
        _ => OWN_TOKENS,
    }
}

fn check_layer(
    layer: &Layer,
    backend: &dyn Backend,
    references: &LayerReferences<'_, '_>,
    findings: &mut Vec<Finding>,
) {
    let weight = references.one("weight");
    let stacked = match weight {
        Some(_) => None,
        None => references.stack(),
    };
    let product = references.product();
    if weight.is_none() && stacked.is_none() && product.is_none() {
        return;
    }
    let unpacked = match layer.unpack() {
        Ok(unpacked) => unpacked,
        Err(error) => return findings.push(failed(layer.name(), error)),
    };
    let expected = weight.map(|tensor| (tensor, false));
    if let Some((tensor, transposed)) = expected.or(stacked.map(|tensor| (tensor, true))) {
        findings.push(check_weight(layer, &unpacked, tensor, transposed));
    }
    match (product, weight) {
        (Some((x, y)), _) => findings.push(check_product(layer, backend, &unpacked, x, y)),
        (None, Some(weight)) => {
            findings.extend(check_own_product(layer, backend, &unpacked, weight));
        }
        (None, None) => {}
    }
}

/// The narrowest of bf16, f16 and f32 that represents every value: the type that the reference was
/// rounded to, which may be narrower than the type in which it is stored.
fn computed_in(values: &[f64]) -> FloatFormat {
    let holds = |format: &FloatFormat| values.iter().all(|value| format.round(*value) == *value);
    [BF16, F16].into_iter().find(holds).unwrap_or(F32)
}

/// Half the distance to the next value of the format.
fn half_ulp(format: FloatFormat, value: f64) -> f64 {
    let number = Number::Float(format);
    let code = number.encode(value.abs(), Overflow::Saturate);
    let below = if code + 1 > format.max_code() { code - 1 } else { code };
    (number.decode(below + 1) - number.decode(below)) / 2.0
}

/// The distance in half units in the last place of the reference; two NaNs are equal, and a NaN is
/// infinitely far from a number.
fn roundings(format: FloatFormat, ours: f64, other: f64) -> f64 {
    if ours == other || ours.is_nan() && other.is_nan() {
        return 0.0;
    }
    let roundings = (ours - other).abs() / half_ulp(format, other);
    if roundings.is_nan() { f64::INFINITY } else { roundings }
}

fn check_weight(layer: &Layer, unpacked: &Unpacked, tensor: &Tensor, transposed: bool) -> Finding {
    let shape = layer.shape();
    let mut finding = Finding {
        layer: layer.name().to_owned(),
        subject: Subject::Weight,
        error: None,
        bound: None,
        unit: "roundings",
        verdict: Verdict::Pass,
    };
    let (e, n, k) = (shape.experts, shape.n, shape.k);
    let expected: Vec<u64> = match (transposed, e) {
        (true, _) => vec![e, k, n],
        (false, 1) => vec![n, k],
        (false, _) => vec![e, n, k],
    };
    let found: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
    let Some(reference) = reals(tensor).filter(|_| found == expected) else {
        let what =
            format!("the reference is {found:?} {:?}, expected {expected:?}", tensor.dtype());
        finding.verdict = Verdict::Fail(what);
        return finding;
    };
    let format = computed_in(&reference);
    let bound = weight_bound(format);
    finding.bound = Some(bound);
    let ours = unpacked.decode_rows(0..e * n);
    let mut worst = (0.0f64, 0);
    for (at, value) in ours.iter().enumerate() {
        let other = if transposed {
            let (row, k_at) = (at as u64 / k, at as u64 % k);
            let (expert, n_at) = (row / n, row % n);
            reference[((expert * k + k_at) * n + n_at) as usize]
        } else {
            reference[at]
        };
        let roundings = roundings(format, f64::from(*value), other);
        if roundings > worst.0 {
            worst = (roundings, at);
        }
    }
    finding.error = Some(worst.0);
    if worst.0 > bound {
        let (row, column) = (worst.1 as u64 / k, worst.1 as u64 % k);
        let what = format!(
            "w[{row}, {column}] is {}, which differs from the reference by {:.2} roundings of {format}",
            ours[worst.1], worst.0
        );
        finding.verdict = Verdict::Fail(what);
    }
    finding
}

/// In half units in the last place of the type that the reference was computed in.
///
/// One rounding: products of codes of at most 8 bits and scale levels of at most 8 are exact in
/// f32, so that only the last multiplication rounds, and our result is the exact value rounded
/// once. If software computes in a 16-bit type, it first rounds the product of two levels to f32,
/// which changes the result by at most 2^-13 of an f16 rounding or 2^-16 of a bf16 rounding.
fn weight_bound(format: FloatFormat) -> f64 {
    match format {
        F32 => 1.0,
        _ => 1.0 + 1.0 / 4096.0,
    }
}

/// The largest relative norm of the difference that passes.
///
/// The reference multiplies weights and activations that it rounded to its 16-bit type (unit
/// roundoff u = 2^-8 for bf16, each rounding at most u/2 and u/sqrt(12) on average over a binade),
/// and rounds the sum: three independent roundings, sqrt(3) * 2^-8 / sqrt(3) = 0.4% relative at the
/// worst phase of the binades, 0.6% with room for the summation order. There is no other error if
/// the activation has the same codes as in the reference. Software that divides in another type
/// differs by a step in a few codes: a share p of flipped codes of b bits adds about sqrt(p) *
/// 2^(1-b) * 3.5 (a step against the deviation of normal data); the bounds of 2, 4 and 8% are p =
/// 1/2 at 8 bits, 1/8 at 6, and 1/30 at 4.
fn product_bound(scheme: &Scheme, own: FloatFormat) -> f64 {
    match scheme.activation_for(own).and_then(ActivationChoice::quantiser) {
        Some(quantiser) => match quantiser.code.bits() {
            7.. => 0.02,
            5..=6 => 0.04,
            _ => 0.08,
        },
        _ => 0.006,
    }
}

fn check_product(
    layer: &Layer,
    backend: &dyn Backend,
    unpacked: &Unpacked,
    x: &Tensor,
    y: &Tensor,
) -> Finding {
    let own = Input::of(x, layer.scheme()).map_or(F32, |input| input.own);
    let bound = product_bound(layer.scheme(), own);
    let error = product_error(layer, backend, unpacked, x, y);
    finding(layer.name(), Subject::Product, error, Some(bound))
}

/// Tokens of a random x.
const OWN_TOKENS: usize = 5;

/// The product of the file's own weight with a random x, if x is not larger than the weight; the
/// reference is summed in f64.
fn check_own_product(
    layer: &Layer,
    backend: &dyn Backend,
    unpacked: &Unpacked,
    weight: &Tensor,
) -> Option<Finding> {
    let (scheme, shape) = (layer.scheme(), layer.shape());
    let (n, k) = (shape.n as usize, shape.k as usize);
    let weight = reals(weight).filter(|weight| weight.len() == n * k)?;
    // The reference is the product of w and x alone.
    if scheme.quantiser().is_some() || scheme.bias.is_some() || scheme.prescale.is_some() {
        return None;
    }
    let own = draw::own_type(scheme, 0);
    let values = draw::tokens(scheme, own, OWN_TOKENS, k, 0);
    let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
    let row = |x| weight.chunks(k).map(move |w| dot(x, w));
    let reference: Vec<f64> = values.chunks(k).flat_map(row).collect();
    let input = Input { values, shape: vec![OWN_TOKENS as u64, shape.k], own };
    let ours = forward(backend, scheme, layer, unpacked, 0, &input).map_err(refused);
    let error = ours.and_then(|ours| relative_error(&ours, &reference));
    Some(finding(layer.name(), Subject::Product, error, Some(product_bound(scheme, own))))
}

/// The finding of an error with a bound.
fn finding(
    layer: &str,
    subject: Subject,
    error: Result<f64, Verdict>,
    bound: Option<f64>,
) -> Finding {
    let mut finding = Finding {
        layer: layer.to_owned(),
        subject,
        error: None,
        bound,
        unit: "relative norm",
        verdict: Verdict::Pass,
    };
    match error {
        Err(verdict) => finding.verdict = verdict,
        Ok(error) => {
            finding.error = Some(error);
            // A NaN is beyond every bound.
            if !bound.is_some_and(|bound| error <= bound) {
                let what = format!("the relative norm of the difference is {error:.2e}");
                finding.verdict = Verdict::Fail(what);
            }
        }
    }
    finding
}

fn product_error(
    layer: &Layer,
    backend: &dyn Backend,
    unpacked: &Unpacked,
    x: &Tensor,
    y: &Tensor,
) -> Result<f64, Verdict> {
    let fail = |what: &str| Verdict::Fail(what.to_owned());
    let reference = reals(y).ok_or_else(|| fail("ref.y is not a float tensor"))?;
    let input = Input::of(x, layer.scheme()).ok_or_else(|| fail("ref.x is not a float tensor"))?;
    // Checked before the product, which may be larger than its operands if x and the weight are
    // narrow.
    let rows = input.values.len() as u64 / layer.shape().k;
    let expected = rows.saturating_mul(layer.shape().n);
    if input.shape.last() == Some(&layer.shape().k) && expected != reference.len() as u64 {
        let what = format!("ref.y has {} values, the product {expected}", reference.len());
        return Err(Verdict::Fail(what));
    }
    let scheme = as_called(layer.scheme(), layer.format(), input.shape.len());
    let ours = forward(backend, &scheme, layer, unpacked, 0, &input).map_err(refused)?;
    relative_error(&ours, &reference)
}

fn refused(error: ProductError) -> Verdict {
    match error {
        ProductError::NotScheduled(_) => Verdict::NotChecked(error.to_string()),
        error => Verdict::Fail(error.to_string()),
    }
}

/// The norm of the difference divided by that of the reference.
fn relative_error(ours: &[f32], reference: &[f64]) -> Result<f64, Verdict> {
    relative_norm(ours.iter().map(|value| f64::from(*value)), reference)
}

/// The same of values in f64.
fn relative_norm(ours: impl Iterator<Item = f64>, reference: &[f64]) -> Result<f64, Verdict> {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let mut differences = ours.zip(reference).map(|(a, b)| a - b);
    let error = norm(&mut differences) / norm(&mut reference.iter().copied());
    if error.is_nan() {
        return Err(Verdict::Fail("the result or its reference is NaN".to_owned()));
    }
    Ok(error)
}
