//! One layer of a suite: prepared on each backend, called with every routing and M, and compared.

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number, Overflow};
use quantloom_dsl::reference::experts::{Pair, route};
use quantloom_dsl::reference::{ReferenceError, StaticInput};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::element::{OwnedValues, ValuesMut, bf16, f16};
use quantloom_runtime::experts::{
    ExpertCall, ExpertError, ExpertMap, ExpertMatrices, ExpertOp, ExpertOptions, InputScales,
    Routed, take_largest,
};
use quantloom_runtime::op::Workspace;

use super::super::{draw as plain_draw, error_over_bound};
use super::draw::{self, Drawn, RoutingKind};
use super::expected::{Element, Expecting, LayerMagnitudes, Rounding, routed};
use super::matrices::Matrix;
use super::{ExpertCase, ExpertFailure, ExpertSummary};

/// One layer and seed, all its calls.
pub(super) struct Step<'a> {
    pub(super) scheme: &'a Scheme,
    pub(super) argument: &'a str,
    pub(super) layer: ExpertLayer,
    pub(super) seed: u64,
    pub(super) calls: Vec<(RoutingKind, usize)>,
}

/// What a backend prepares.
struct Prepared {
    drawn: Drawn,
    matrices: Option<ExpertMatrices>,
    options: ExpertOptions,
    /// T.
    own: FloatFormat,
}

/// The numbers of a call.
struct Numbers {
    x: Vec<f64>,
    logits: Vec<f32>,
    ids: Vec<i32>,
    weights: Vec<f32>,
    counts: Vec<u32>,
    shared: Vec<f64>,
}

impl Step<'_> {
    fn case(&self, backend: &str, routing: RoutingKind, tokens: usize) -> Box<ExpertCase> {
        let (argument, layer, seed) = (self.argument.to_owned(), self.layer, self.seed);
        Box::new(ExpertCase { argument, backend: backend.to_owned(), layer, routing, tokens, seed })
    }

    pub(super) fn run(
        &self,
        backends: &[&dyn Backend],
        results: &mut [Result<ExpertSummary, ExpertFailure>],
    ) {
        let case = || {
            let (routing, tokens) = self.calls.first().copied().unwrap_or((RoutingKind::None, 0));
            self.case("all", routing, tokens)
        };
        let prepared = self.prepare(&case);
        let magnitudes = prepared.as_ref().map_err(Clone::clone).and_then(|prepared| {
            LayerMagnitudes::new([self.scheme; 2], &prepared.drawn.matrices).map_err(|error| {
                let error = Box::new(error);
                ExpertFailure::Reference { case: case(), error }
            })
        });
        let both = || {
            let magnitudes = magnitudes.as_ref().map_err(Clone::clone)?;
            Ok((prepared.as_ref().map_err(Clone::clone)?, magnitudes))
        };
        // The expected y depends on how a backend adds.
        let mut known: Vec<(usize, Rounding, Vec<Element>)> = Vec::new();
        for (backend, result) in backends.iter().zip(results) {
            let Ok(summary) = result else { continue };
            let done = both().and_then(|(prepared, magnitudes)| {
                self.compare(*backend, prepared, magnitudes, summary, &mut known)
            });
            if let Err(failure) = done {
                *result = Err(failure);
            }
        }
    }

    fn prepare(&self, case: &dyn Fn() -> Box<ExpertCase>) -> Result<Prepared, ExpertFailure> {
        let of_reference = |error: ReferenceError| {
            let error = Box::new(error);
            ExpertFailure::Reference { case: case(), error }
        };
        let experts = self.layer.experts as usize;
        // Every third layer has a map that sends an expert elsewhere and two to one place.
        let mapped = self.seed.wrapping_add(self.layer.hidden).is_multiple_of(3) && experts > 2;
        let local = if mapped { experts - 1 } else { experts };
        let drawn = Drawn::new(self.scheme, &self.layer, local, self.seed).map_err(of_reference)?;
        let single = drawn.matrices(self.scheme);
        let matrices =
            single.map_err(|error| ExpertFailure::Pack { case: case(), error: Box::new(error) })?;
        let place = |expert: usize| match expert {
            0 => -1,
            expert => (expert * 5 % local) as i32,
        };
        let map = mapped.then(|| ExpertMap::new((0..experts).map(place).collect(), local));
        let (_, bias) = draw::logits(&self.layer, 0, self.seed);
        let mut options = ExpertOptions::default();
        options.map = map.transpose().map_err(|error| self.refused(case(), error))?;
        options.score_bias = self.layer.routing.bias.then_some(bias);
        let largest = self.seed % 2 == 1;
        options.input_scales = if largest { InputScales::Largest } else { InputScales::Each };
        // In every other layer parts are rounded as if they were many, if y is.
        if self.seed.wrapping_add(self.layer.intermediate / 8).is_multiple_of(2) {
            options.most_f32_parts = 0;
        }
        let own = plain_draw::own_type(self.scheme, self.seed + self.layer.intermediate);
        Ok(Prepared { drawn, matrices, options, own })
    }

    fn refused(&self, case: Box<ExpertCase>, error: ExpertError) -> ExpertFailure {
        ExpertFailure::Refused { case, error: Box::new(error) }
    }

    fn compare(
        &self,
        backend: &dyn Backend,
        prepared: &Prepared,
        magnitudes: &LayerMagnitudes<'_>,
        summary: &mut ExpertSummary,
        known: &mut Vec<(usize, Rounding, Vec<Element>)>,
    ) -> Result<(), ExpertFailure> {
        let Some(matrices) = &prepared.matrices else { return Ok(()) };
        let op = match backend.prepare_experts(&self.layer, matrices, &prepared.options) {
            Ok(op) => op,
            Err(ExpertError::NotScheduled(why)) => {
                self.note(summary, backend, why.to_string());
                return Ok(());
            }
            Err(error) => {
                let case = self.case(backend.name(), RoutingKind::Random, 1);
                return Err(self.refused(case, error));
            }
        };
        let mut workspace = Workspace::default();
        for (at, (routing, tokens)) in self.calls.iter().enumerate() {
            let case = || self.case(backend.name(), *routing, *tokens);
            let mut numbers = self.numbers(prepared, *routing, *tokens);
            if *routing == RoutingKind::Logits {
                self.routed(&*op, prepared, &mut numbers, &case)?;
            }
            // Rows that are sorted are as many of each expert.
            let rows = numbers.x.len() / self.layer.hidden as usize;
            // Every third result is in the type of x.
            let own = prepared.own;
            let third = (rows as u64 + self.seed).is_multiple_of(3);
            let output = if third { own } else { F32 };
            let rounding = Rounding::of(&*op, (own, output), rows);
            let found = known.iter().position(|(of, by, _)| (*of, *by) == (at, rounding));
            let found = match found {
                Some(found) => found,
                None => {
                    let expected =
                        self.expected(prepared, magnitudes, &numbers, *routing, rounding);
                    let expected = expected.map_err(|error| ExpertFailure::Reference {
                        case: case(),
                        error: Box::new(error),
                    })?;
                    known.push((at, rounding, expected));
                    known.len() - 1
                }
            };
            let y = match self.y(&*op, &numbers, *routing, (own, output), &mut workspace) {
                Ok(y) => y,
                Err(ExpertError::NotScheduled(why)) => {
                    self.note(summary, backend, why.to_string());
                    continue;
                }
                // The host's quantiser refuses h that overflows.
                Err(ExpertError::Intermediate { token, .. })
                    if known[found].2[token * self.layer.hidden as usize..]
                        .iter()
                        .take(self.layer.hidden as usize)
                        .any(Element::overflows) =>
                {
                    continue;
                }
                Err(error) => return Err(self.refused(case(), error)),
            };
            let unwritten = self.unwritten(&numbers, *routing);
            judge(&y, &known[found].2, output, &unwritten, self.layer.hidden as usize, &case)
                .map(|share| summary.share = summary.share.max(share))?;
            summary.calls += 1;
            summary.elements += y.len();
            for kernel in op.kernels(rows.max(1)) {
                if !summary.kernels.contains(&kernel) {
                    summary.kernels.push(kernel);
                }
            }
        }
        Ok(())
    }

    fn note(&self, summary: &mut ExpertSummary, backend: &dyn Backend, why: String) {
        if summary.not_scheduled.iter().all(|(_, known)| *known != why) {
            let (routing, tokens) = self.calls.first().copied().unwrap_or((RoutingKind::None, 0));
            summary.not_scheduled.push((*self.case(backend.name(), routing, tokens), why));
        }
    }

    fn numbers(&self, prepared: &Prepared, routing: RoutingKind, tokens: usize) -> Numbers {
        let (layer, hidden) = (&self.layer, self.layer.hidden as usize);
        let local = prepared.drawn.matrices.down.len();
        let rows = if routing == RoutingKind::Batched { local * tokens } else { tokens };
        // Products of large sums stay below 65504.
        let narrow = if prepared.own == F16 { 0.25 } else { 1.0 };
        let factor = (self.seed, prepared.drawn.factor * narrow);
        let x = draw::tokens(self.scheme, prepared.own, rows, hidden, factor);
        let (ids, weights) = draw::choices(layer, routing, rows, self.seed);
        let (logits, _) = draw::logits(layer, rows, self.seed);
        let counts = draw::counts(local, tokens, self.seed);
        // A result of shared experts in some calls.
        let with = (tokens as u64 + self.seed).is_multiple_of(2);
        let shared = if with { x.iter().rev().copied().collect() } else { Vec::new() };
        Numbers { x, logits, ids, weights, counts, shared }
    }

    /// Routes on the host, and compares with the reference: equal ids, and weights within 4 units.
    fn routed(
        &self,
        op: &dyn ExpertOp,
        prepared: &Prepared,
        numbers: &mut Numbers,
        case: &dyn Fn() -> Box<ExpertCase>,
    ) -> Result<(), ExpertFailure> {
        let exact = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        let bias = prepared.options.score_bias.as_deref().unwrap_or_default();
        let expected = route(&self.layer, &exact(&numbers.logits), &exact(bias));
        let expected = expected.map_err(|error| {
            let error = Box::new(error);
            ExpertFailure::Reference { case: case(), error }
        })?;
        op.route(&numbers.logits, &mut numbers.ids, &mut numbers.weights)
            .map_err(|error| self.refused(case(), error))?;
        let far = |(ours, exact): (&f32, &f64)| {
            let error = (f64::from(*ours) - exact).abs();
            error > 4.0 * 2f64.powi(-24) * exact.abs() + f64::from(f32::MIN_POSITIVE)
        };
        let mut weights = numbers.weights.iter().zip(&expected.weights);
        if numbers.ids != expected.ids || weights.any(far) {
            let text = format!(
                "experts {:?} with {:?}, the reference has {:?} with {:?}",
                numbers.ids, numbers.weights, expected.ids, expected.weights
            );
            return Err(ExpertFailure::Routing { case: case(), text });
        }
        Ok(())
    }

    /// The static parameters that matrices use, by product.
    fn inputs(&self, prepared: &Prepared) -> [Vec<Vec<StaticInput>>; 2] {
        let of = |matrix: &Matrix| StaticInput::of(self.scheme, &matrix.plain, 0);
        let first =
            prepared.drawn.matrices.gate_up.iter().map(|shards| shards.iter().map(of).collect());
        let second = prepared.drawn.matrices.down.iter().map(|matrix| vec![of(matrix)]);
        let mut inputs = [first.collect::<Vec<Vec<_>>>(), second.collect()];
        if let (InputScales::Largest, Some(quantiser)) =
            (prepared.options.input_scales, self.scheme.quantiser())
        {
            for inputs in &mut inputs {
                take_largest(quantiser, &mut inputs.iter_mut().flatten().collect::<Vec<_>>());
            }
        }
        inputs
    }

    fn expected(
        &self,
        prepared: &Prepared,
        magnitudes: &LayerMagnitudes<'_>,
        numbers: &Numbers,
        routing: RoutingKind,
        rounding: Rounding,
    ) -> Result<Vec<Element>, ReferenceError> {
        let (layer, hidden) = (&self.layer, self.layer.hidden as usize);
        if routing == RoutingKind::Batched {
            let (a, mut pairs) = (&numbers.x, Vec::new());
            let most = a.len() / hidden / numbers.counts.len().max(1);
            let mut rows = Vec::new();
            for (expert, count) in numbers.counts.iter().enumerate() {
                for row in 0..*count as usize {
                    pairs.push(Pair { token: rows.len(), expert, weight: 1.0 });
                    rows.push(expert * most + row);
                }
            }
            // Only rows that are there share scales.
            let own = |of: &[f64]| -> Vec<f64> {
                rows.iter()
                    .flat_map(|row| of.get(row * hidden..(row + 1) * hidden))
                    .flatten()
                    .copied()
                    .collect()
            };
            let y = self.expecting(prepared, magnitudes, rounding).y(
                &own(a),
                &pairs,
                &own(&numbers.shared),
            )?;
            let mut all = vec![Element { y: 0.0, error: 0.0 }; a.len()];
            for (at, row) in rows.iter().enumerate() {
                all[row * hidden..][..hidden].copy_from_slice(&y[at * hidden..][..hidden]);
            }
            return Ok(all);
        }
        let (map, choices) = (prepared.options.map.as_ref(), (&*numbers.ids, &*numbers.weights));
        let (a, pairs) = routed(layer, (map, prepared.own), &numbers.x, choices);
        self.expecting(prepared, magnitudes, rounding).y(&a, &pairs, &numbers.shared)
    }

    fn expecting<'a>(
        &'a self,
        prepared: &'a Prepared,
        magnitudes: &'a LayerMagnitudes<'a>,
        rounding: Rounding,
    ) -> Expecting<'a> {
        Expecting {
            schemes: [self.scheme; 2],
            layer: &self.layer,
            matrices: &prepared.drawn.matrices,
            magnitudes,
            own: prepared.own,
            rounding,
            inputs: self.inputs(prepared),
        }
    }

    /// Rows of y that the call does not write.
    fn unwritten(&self, numbers: &Numbers, routing: RoutingKind) -> Vec<bool> {
        let rows = numbers.x.len() / self.layer.hidden as usize;
        if routing != RoutingKind::Batched {
            return vec![false; rows];
        }
        let most = rows / numbers.counts.len().max(1);
        let of = |count: u32| (0..most).map(move |row| row >= count as usize);
        numbers.counts.iter().copied().flat_map(of).collect()
    }

    /// y as f64. Rows that are sorted already have NaN beyond their counts.
    fn y(
        &self,
        op: &dyn ExpertOp,
        numbers: &Numbers,
        routing: RoutingKind,
        (own, output): (FloatFormat, FloatFormat),
        workspace: &mut Workspace,
    ) -> Result<Vec<f64>, ExpertError> {
        let hidden = self.layer.hidden as usize;
        let mut x = numbers.x.clone();
        for (row, unwritten) in self.unwritten(numbers, routing).into_iter().enumerate() {
            if unwritten {
                x[row * hidden..][..hidden].fill(f64::NAN);
            }
        }
        let (x, shared) = (typed(&x, own), typed(&numbers.shared, own));
        let most = numbers.x.len() / hidden / numbers.counts.len().max(1);
        let (ids, weights) = (&numbers.ids, &numbers.weights);
        let routed = match routing {
            RoutingKind::Logits => Routed::Logits(&numbers.logits),
            RoutingKind::Batched => Routed::Batched { counts: &numbers.counts, most },
            _ => Routed::Chosen { ids, weights },
        };
        let shared = (!numbers.shared.is_empty()).then(|| shared.values());
        let call = ExpertCall { x: x.values(), routed, shared };
        let number = |bits: u16| Number::Float(output).decode(u32::from(bits));
        match output {
            F16 => {
                let mut y = vec![f16::from_bits(u16::MAX); numbers.x.len()];
                op.forward_into(&call, ValuesMut::F16(&mut y), workspace)?;
                Ok(y.into_iter().map(|y| number(y.to_bits())).collect())
            }
            BF16 => {
                let mut y = vec![bf16::from_bits(u16::MAX); numbers.x.len()];
                op.forward_into(&call, ValuesMut::Bf16(&mut y), workspace)?;
                Ok(y.into_iter().map(|y| number(y.to_bits())).collect())
            }
            _ => {
                let mut y = vec![f32::NAN; numbers.x.len()];
                op.forward_into(&call, ValuesMut::F32(&mut y), workspace)?;
                Ok(y.into_iter().map(f64::from).collect())
            }
        }
    }
}

/// Numbers of a type.
fn typed(values: &[f64], own: FloatFormat) -> OwnedValues {
    let code = |value: &f64| Number::Float(own).encode(*value, Overflow::Special) as u16;
    match own {
        F16 => OwnedValues::F16(values.iter().map(|v| f16::from_bits(code(v))).collect()),
        BF16 => OwnedValues::Bf16(values.iter().map(|v| bf16::from_bits(code(v))).collect()),
        _ => OwnedValues::F32(values.iter().map(|v| *v as f32).collect()),
    }
}

/// The largest error of an `f32` result over its bound, or the first element that is wrong. y was NaN
/// before the call, and still is in rows that are not written.
fn judge(
    y: &[f64],
    expected: &[Element],
    output: FloatFormat,
    unwritten: &[bool],
    hidden: usize,
    case: &dyn Fn() -> Box<ExpertCase>,
) -> Result<f64, ExpertFailure> {
    let (mut most, mut misses, mut first) = (0.0f64, 0, None);
    for (at, (y, element)) in y.iter().zip(expected).enumerate() {
        let (token, column) = (at / hidden, at % hidden);
        let smallest = output.decode(1) / 2.0;
        let largest = element.y.abs() + element.error;
        let bound = element.error + (largest * output.epsilon() / 2.0).max(smallest);
        let share = match unwritten[token] {
            true if y.is_nan() => 0.0,
            true => f64::INFINITY,
            // Sums that overflow are infinite, or no number.
            false if element.overflows() && !y.is_finite() => 0.0,
            false => error_over_bound(*y, element.y, bound, output),
        };
        if share > 1.0 {
            misses += 1;
            first = first.or(Some((token, column, *y, element.y, bound)));
        } else if output == F32 {
            most = most.max(share);
        }
    }
    let Some((token, column, y, reference, bound)) = first else { return Ok(most) };
    let (case, elements) = (case(), expected.len());
    let miss =
        ExpertFailure::Mismatch { case, token, column, y, reference, bound, misses, elements };
    Err(miss)
}
