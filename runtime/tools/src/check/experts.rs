//! Whole expert layers, compared with what their own software computed.
//!
//! For an expert layer P the references are `ref.P.x` [M, H] and `ref.P.y` [M, H], and of routing
//! `ref.P.router_0` (logits [M, E]), `ref.P.router_1` (router weights [M, k]) and `ref.P.router_2` (ids
//! [M, k]); `P.` may be left out if there is one expert layer. Three comparisons: the router's choice;
//! y of the reference in f64; y of the device.

use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::{F32, FloatFormat};
use quantloom_dsl::reference::StaticInput;
use quantloom_dsl::reference::experts::{
    Choices, ExpertWeights, LayerReference, ProductInput, route,
};
use quantloom_dsl::{ActivationChoice, Scheme};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::checkpoint::{
    Checkpoint, CheckpointExperts, CheckpointExpertsError, Dtype, ExpertsProblem, StoredExperts,
    Tensor,
};
use quantloom_runtime::experts::{ExpertOptions, ExpertProduct, ExpertSource, Routed};
use quantloom_runtime::tensor::reals;

mod bound;

use self::bound::device_bound;
use super::{Finding, References, Subject, Verdict, failed, finding, relative_norm};
use crate::conformance::experts::Choice;
use crate::forward::Input;
use crate::forward::experts::{PreparedExperts, converts, sums};

/// The largest relative norm of the difference in f32, and of logits and router weights. The files' y is
/// the sum of some hundred products in f32, which round by 2^-24 each: 2.5e-7 to 2.8e-7 was found.
const IN_F32: f64 = 1e-6;

/// The same of y in a 16-bit type, from the reference. Both round h and y once, and differ only where
/// another order of a sum in f64 crosses a tie: of less than one value in a hundred, by a unit of 2^-8 at
/// most, 0.1 * 2^-8.
const ROUNDED: f64 = 4e-4;

/// Compares every expert layer that has references; the backend computes y.
pub(super) fn check(
    checkpoint: &Checkpoint,
    backend: &dyn Backend,
    references: &References<'_>,
    findings: &mut Vec<Finding>,
) {
    let layers: Vec<_> = checkpoint.expert_layers().collect();
    let alone = layers.len() == 1;
    for (name, experts) in layers {
        let references = references.of(&name, alone);
        let experts = match experts {
            Ok(experts) => experts,
            // A layer of floats may be anything that is named so.
            Err(error) if references.find("y").is_some() || !is_float(&error) => {
                references.use_all();
                findings.push(failed(&name, error));
                continue;
            }
            Err(_) => continue,
        };
        if let Some((x, y)) = references.product() {
            let router = [0, 1, 2].map(|n| references.one(&format!("router_{n}")));
            let references = LayerTensors { x, y, router };
            if let Err(verdict) = compare(&experts, &references, backend, findings) {
                findings.push(finding(&name, Subject::Product, Err(verdict), None));
            }
        }
    }
}

/// Rows of x in the reference of an expert layer; 1 if there is no reference.
pub fn expert_tokens(checkpoint: &Checkpoint, experts: &CheckpointExperts<'_>) -> usize {
    let alone = checkpoint.expert_layers().count() == 1;
    let references = References::new(checkpoint.tensors());
    let x = references.of(experts.name(), alone).one("x").map(Tensor::shape);
    x.and_then(|dims| dims.first().copied()).unwrap_or(1)
}

/// Whether the layer could be one of floats alone: no quantised matrix is named.
fn is_float(error: &CheckpointExpertsError) -> bool {
    matches!(*error.problem, ExpertsProblem::MissingStack(_) | ExpertsProblem::Stack { .. })
}

/// What the file says of an expert layer.
struct LayerTensors<'c> {
    x: &'c Tensor,
    y: &'c Tensor,
    /// Logits, router weights, ids.
    router: [Option<&'c Tensor>; 3],
}

fn fail(what: impl Into<String>) -> Verdict {
    Verdict::Fail(what.into())
}

fn compare(
    experts: &CheckpointExperts<'_>,
    references: &LayerTensors<'_>,
    backend: &dyn Backend,
    findings: &mut Vec<Finding>,
) -> Result<(), Verdict> {
    let name = experts.name();
    let layer = experts.layer().map_err(|error| fail(error.to_string()))?;
    let x = match experts.schemes() {
        Some([scheme, _]) => Input::of(references.x, scheme),
        None => Input::of_type(references.x),
    };
    let x = x.ok_or_else(|| fail("ref.x is not a float tensor"))?;
    let y = reals(references.y).ok_or_else(|| fail("ref.y is not a float tensor"))?;
    if x.shape.last() != Some(&layer.hidden) || y.len() != x.values.len() {
        let (x, y) = (&x.shape, references.y.shape());
        return Err(fail(format!(
            "ref.x is {x:?} and ref.y {y:?}, expected [M, {}]",
            layer.hidden
        )));
    }
    let (choices, logits) = choices(experts, layer, references, &x, findings)?;

    let beside = if x.own == F32 { IN_F32 } else { ROUNDED };
    let ours = match by_reference(experts, layer, &x, &choices) {
        Ok(ours) => ours,
        Err(verdict) => {
            findings.push(finding(name, Subject::Reference, Err(verdict), None));
            return Ok(());
        }
    };
    let error = relative_norm(ours.iter().copied(), &y);
    findings.push(finding(name, Subject::Reference, error, Some(beside)));
    if let Some(schemes) = experts.schemes() {
        let prepared = prepared(experts, schemes, backend, &x)?;
        let weights: Vec<f32> = choices.weights.iter().map(|weight| *weight as f32).collect();
        let (mut ids, mut weights) = (choices.ids, weights);
        if let Some(logits) = &logits {
            // Weights as the device's caller has them.
            let routed = prepared.op().route(logits, &mut ids, &mut weights);
            routed.map_err(|error| fail(error.to_string()))?;
        }
        let routed = match &logits {
            Some(logits) => Routed::Logits(logits),
            None => Routed::Chosen { ids: &ids, weights: &weights },
        };
        let device = on_device(&prepared, &x, routed)?;
        let choice = Choice { ids: &ids, weights: &weights };
        let bound = device_bound(experts, &prepared, (&x, choice), (&ours, &y), beside)?;
        let error = relative_norm(device.iter().map(|y| f64::from(*y)), &y);
        findings.push(finding(name, Subject::Product, error, Some(bound)));
    }
    Ok(())
}

/// The router's choice, compared with the file's; the file's own if the checkpoint has no router. The
/// logits are the router's.
fn choices(
    experts: &CheckpointExperts<'_>,
    layer: &ExpertLayer,
    references: &LayerTensors<'_>,
    x: &Input,
    findings: &mut Vec<Finding>,
) -> Result<(Choices, Option<Vec<f32>>), Verdict> {
    let [logits, weights, ids] = references.router;
    let not_floats = |what: &str| fail(format!("ref.{what} is not a float tensor"));
    let weights = weights.map(|of| reals(of).ok_or_else(|| not_floats("router_1"))).transpose()?;
    let ids = ids.map(integers).transpose()?;
    let router = match experts.router() {
        Ok(router) => router,
        Err(error) => {
            // Logits alone are a router's.
            let verdict = match *error.problem {
                ExpertsProblem::NoRouter { .. } if logits.is_none() => None,
                ExpertsProblem::Router { .. } => Some(fail(error.to_string())),
                _ => Some(Verdict::NotChecked(error.to_string())),
            };
            match ids.zip(weights) {
                Some((ids, weights)) => {
                    let found =
                        verdict.map(|of| finding(experts.name(), Subject::Routing, Err(of), None));
                    findings.extend(found);
                    return Ok((Choices { ids, weights }, None));
                }
                None => return Err(verdict.unwrap_or(Verdict::NotChecked(error.to_string()))),
            }
        }
    };
    let values: Vec<f32> = x.values.iter().map(|value| *value as f32).collect();
    let ours = router.logits(&values);
    let wide: Vec<f64> = ours.iter().map(|logit| f64::from(*logit)).collect();
    let bias = experts.score_bias().filter(|_| layer.routing.bias).unwrap_or_default();
    let bias: Vec<f64> = bias.iter().map(|bias| f64::from(*bias)).collect();
    let choices = route(layer, &wide, &bias).map_err(|error| fail(error.to_string()))?;

    let mut worst: Option<Result<f64, Verdict>> = None;
    let mut compare = |ours: &[f64], theirs: &[f64]| {
        let error = relative_norm(ours.iter().copied(), theirs);
        worst = Some(match (worst.take(), error) {
            (Some(Ok(before)), Ok(error)) => Ok(before.max(error)),
            (Some(Err(before)), _) => Err(before),
            (_, error) => error,
        });
    };
    if let Some(logits) = logits {
        compare(&wide, &reals(logits).ok_or_else(|| not_floats("router_0"))?);
    }
    if let Some(weights) = weights {
        compare(&choices.weights, &weights);
    }
    if let Some(ids) = ids {
        let other = ids.iter().zip(&choices.ids).position(|(theirs, ours)| theirs != ours);
        let k = layer.top_k as usize;
        if ids.len() != choices.ids.len() {
            worst = Some(Err(fail(format!("{} ids, expected {}", ids.len(), choices.ids.len()))));
        } else if let Some(at) = other {
            worst = Some(Err(fail(format!(
                "token {}, choice {}: expert {}, the file has {}",
                at / k,
                at % k,
                choices.ids[at],
                ids[at]
            ))));
        }
    }
    if let Some(error) = worst {
        findings.push(finding(experts.name(), Subject::Routing, error, Some(IN_F32)));
    }
    Ok((choices, Some(ours)))
}

/// The values of an integer tensor.
fn integers(tensor: &Tensor) -> Result<Vec<i32>, Verdict> {
    let width = match tensor.dtype() {
        Dtype::I64 => 8,
        Dtype::I32 => 4,
        other => return Err(fail(format!("ref.router_2 is of type {other:?}"))),
    };
    let value = |bytes: &[u8]| {
        let negative = bytes.last().is_some_and(|top| top & 0x80 != 0);
        let mut eight = [if negative { 0xff } else { 0 }; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        i32::try_from(i64::from_le_bytes(eight))
            .map_err(|_| fail("ref.router_2 has an id beyond i32"))
    };
    tensor.bytes().chunks_exact(width).map(value).collect()
}

/// How each expert reads the inputs of both products.
struct Inputs {
    given: [Vec<StaticInput>; 2],
}

impl Inputs {
    fn of(experts: &CheckpointExperts<'_>) -> Result<Self, Verdict> {
        let StoredExperts::Quantised(source) = experts.weights() else {
            return Ok(Self { given: [Vec::new(), Vec::new()] });
        };
        let sizes = experts.sizes();
        let read = |product, expert, shard| {
            let matrix = source.matrix(product, expert, shard);
            matrix.map(|matrix| matrix.input(0)).map_err(|error| fail(error.to_string()))
        };
        let of = |product, shards| {
            (0..sizes.experts).map(move |expert| {
                let first = read(product, expert, 0)?;
                for shard in 1..shards {
                    if read(product, expert, shard)? != first {
                        let what = "gate and up take x with different static scales, and the \
                                    reference with one";
                        return Err(Verdict::NotChecked(what.to_owned()));
                    }
                }
                Ok(first)
            })
        };
        let given = [
            of(ExpertProduct::GateUp, sizes.shards as u32).collect::<Result<_, _>>()?,
            of(ExpertProduct::Down, 1).collect::<Result<_, _>>()?,
        ];
        Ok(Self { given })
    }

    /// As the schemes say, except that x in a type that a scheme does not list is taken as it is: the
    /// file's software computed in that type.
    fn product<'a>(
        &'a self,
        experts: &'a CheckpointExperts<'_>,
        product: usize,
        own: FloatFormat,
    ) -> ProductInput<'a> {
        let Some(schemes) = experts.schemes() else { return ProductInput::Exact };
        let scheme = schemes[product];
        match scheme.activation_for(own).and_then(ActivationChoice::converted) {
            Some(_) => ProductInput::Exact,
            None => ProductInput::Activation { scheme, given: &self.given[product] },
        }
    }
}

/// y [M, H] of the reference.
fn by_reference(
    experts: &CheckpointExperts<'_>,
    layer: &ExpertLayer,
    x: &Input,
    choices: &Choices,
) -> Result<Vec<f64>, Verdict> {
    let told = |error: quantloom_dsl::reference::ReferenceError| fail(error.to_string());
    let shared = match experts.shared() {
        None => Vec::new(),
        Some(shared) => {
            let wide: Vec<f32> = x.values.iter().map(|value| *value as f32).collect();
            let weights: Vec<f64> = shared.weights(&wide).into_iter().map(f64::from).collect();
            let choices = Choices { ids: vec![0; weights.len()], weights };
            by_sums(shared.layer(), x, &choices)?
        }
    };
    let forward = |reference: &LayerReference<'_>| reference.forward(&x.values, choices, &shared);
    debug_assert_eq!(experts.layer().ok(), Some(layer));
    with_reference(experts, x, forward)?.map_err(told)
}

/// y [M, H] of the reference before it is rounded.
fn by_sums(
    experts: &CheckpointExperts<'_>,
    x: &Input,
    choices: &Choices,
) -> Result<Vec<f64>, Verdict> {
    let y = with_reference(experts, x, |reference| sums(reference, x, choices))?;
    y.map_err(|error| fail(error.to_string()))
}

/// What a function makes of the reference of an expert layer.
fn with_reference<T>(
    experts: &CheckpointExperts<'_>,
    x: &Input,
    make: impl FnOnce(&LayerReference<'_>) -> T,
) -> Result<T, Verdict> {
    let told = |error: CheckpointExpertsError| fail(error.to_string());
    let all = 0..experts.sizes().experts;
    let weights: Vec<ExpertWeights> =
        all.map(|expert| experts.expert_weights(expert)).collect::<Result<_, _>>().map_err(told)?;
    let inputs = Inputs::of(experts)?;
    Ok(make(&LayerReference {
        layer: experts.layer().map_err(told)?,
        weights: &weights,
        map: None,
        gate_up_input: inputs.product(experts, 0, x.own),
        down_input: inputs.product(experts, 1, x.own),
        dtype: x.own,
    }))
}

/// The layer on a device, for x of a type. x in f32 is taken as it is, if the device has products for that.
fn prepared<'c>(
    experts: &CheckpointExperts<'c>,
    schemes: [&Scheme; 2],
    backend: &dyn Backend,
    x: &Input,
) -> Result<PreparedExperts<'c>, Verdict> {
    let options = ExpertOptions::default();
    let prepare = |exact| PreparedExperts::new(experts, backend, &options, exact);
    let converted = converts(schemes, x.own);
    let prepared = match prepare(x.own == F32 && converted) {
        Err(error) if converted && refused(&error) => prepare(false),
        prepared => prepared,
    };
    prepared.map_err(|error| match refused(&error) {
        true => Verdict::NotChecked(error.to_string()),
        false => fail(error.to_string()),
    })
}

/// y [M, H] of the device.
fn on_device(
    prepared: &PreparedExperts<'_>,
    x: &Input,
    routed: Routed<'_>,
) -> Result<Vec<f32>, Verdict> {
    prepared.forward(x, routed).map_err(|error| match error.is_not_scheduled() {
        true => Verdict::NotChecked(error.to_string()),
        false => fail(error.to_string()),
    })
}

fn refused(error: &CheckpointExpertsError) -> bool {
    matches!(&*error.problem, ExpertsProblem::Expert(error) if error.is_not_scheduled())
}
