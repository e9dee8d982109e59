//! A call of an expert layer with the host's memory: inputs are checked and uploaded, y comes back.

use std::any::Any;

use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::{F32, FloatFormat};
use quantloom_dsl::{Activation, Scheme};

use super::layer::{GpuExpertLayer, Products};
use super::plan::{LayerPlan, PlanKey, RoutedBy, product_kernels};
use super::tensors::ExpertTensors;
use crate::accumulation::{Decoded, Sums};
use crate::buffer::Workspace;
use crate::element::ValuesMut;
use crate::experts::{
    ExpertCall, ExpertError, ExpertOp, ExpertsNotScheduled, Routed, route, same_length,
};
use crate::float_mode::standard;
use crate::gpu::executor::Executor;
use crate::gpu::launch::bytes;
use crate::gpu::matmul::store;
use crate::gpu::products::StackedChoice;
use crate::op::ProductError;
use crate::source::{BufferRole, KernelKey};

/// A call as the plan's kernels read it.
struct Uploaded {
    key: PlanKey,
    /// Bytes of each input, all tokens.
    inputs: Vec<(BufferRole, Vec<u8>)>,
}

impl<E: Executor> GpuExpertLayer<E> {
    /// Checks a call and brings its inputs into the order of the kernels.
    fn uploaded(
        &self,
        call: &ExpertCall<'_>,
        output: FloatFormat,
    ) -> Result<Uploaded, ExpertError> {
        let hidden = self.layer.hidden as usize;
        let (values, element) = (call.x.len(), call.x.format());
        let tokens = self.tokens(call)?;
        let pairs = tokens * self.layer.top_k as usize;
        let mut x = bytes(call.x);
        let (routed, mut inputs) = match call.routed {
            Routed::Logits(logits) => {
                self.check_logits(tokens, logits)?;
                (RoutedBy::Logits, vec![(BufferRole::Logits, floats(logits))])
            }
            Routed::Chosen { ids, weights } => {
                same_length("the ids of experts", pairs, ids.len())?;
                same_length("the router weights", pairs, weights.len())?;
                self.check_ids(ids)?;
                let ids = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                let weights = (BufferRole::RouterWeights, floats(weights));
                (RoutedBy::Chosen, vec![(BufferRole::Ids, ids), weights])
            }
            Routed::Batched { counts, most } => {
                same_length("the counts of rows", self.local as usize, counts.len())?;
                let rows = (self.local as usize).saturating_mul(most);
                same_length("x", rows.saturating_mul(hidden), values)?;
                if let Some(count) = counts.iter().find(|count| **count as usize > most) {
                    return Err(ExpertError::Length {
                        what: "x of an expert",
                        expected: (*count).into(),
                        found: most as u64,
                    });
                }
                let ids = counts.iter().zip(0i32..).flat_map(|(count, expert)| {
                    (0..most).map(move |row| if row < *count as usize { expert } else { -1 })
                });
                let ids: Vec<i32> = ids.collect();
                // Rows that no expert has are not read: another row's scale could depend on them.
                let row = x.len() / ids.len().max(1);
                for (row, id) in x.chunks_exact_mut(row.max(1)).zip(&ids) {
                    if *id < 0 {
                        row.fill(0);
                    }
                }
                let weights = floats(&vec![1.0; ids.len()]);
                let ids = ids.into_iter().flat_map(i32::to_le_bytes).collect();
                let weights = (BufferRole::RouterWeights, weights);
                (RoutedBy::Batched, vec![(BufferRole::Ids, ids), weights])
            }
        };
        self.check_x(call)?;
        inputs.push((BufferRole::X, x));
        if let Some(shared) = call.shared {
            same_length("the result of shared experts", values, shared.len())?;
            inputs.push((BufferRole::Shared, bytes(shared)));
        }
        let tokens = tokens as u64;
        let shared = call.shared.map(|shared| shared.format());
        let key = PlanKey { element, output, tokens, routed, shared };
        Ok(Uploaded { key, inputs })
    }

    /// M, if x is whole rows.
    fn tokens(&self, call: &ExpertCall<'_>) -> Result<usize, ExpertError> {
        let (hidden, found) = (self.layer.hidden, call.x.len() as u64);
        match found.is_multiple_of(hidden) {
            true => Ok((found / hidden) as usize),
            false => Err(ExpertError::Rows { hidden, found }),
        }
    }

    /// Refuses rows that are not finite where kernels quantise x. Rows that no expert here has are not read.
    fn check_x(&self, call: &ExpertCall<'_>) -> Result<(), ExpertError> {
        let products = self.products(call.x.format())?;
        if !matches!(products.stacks[0].activation, Activation::Quantised(_)) {
            return Ok(());
        }
        let (hidden, k) = (self.layer.hidden as usize, self.layer.top_k as usize);
        let is_here = |id: &i32| match (usize::try_from(*id), &self.map) {
            (Ok(expert), Some(map)) => map.places().get(expert).is_some_and(|place| *place >= 0),
            (id, _) => id.is_ok(),
        };
        let is_read = |token: usize| match call.routed {
            Routed::Logits(_) => true,
            Routed::Chosen { ids, .. } => ids[token * k..][..k].iter().any(is_here),
            Routed::Batched { counts, most } => token % most < counts[token / most] as usize,
        };
        for token in (0..call.x.len() / hidden).filter(|token| is_read(*token)) {
            let row = call.x.part(token * hidden..(token + 1) * hidden);
            if let Some((k, value)) = row.non_finite() {
                return Err(ExpertError::product(ProductError::NotFinite { token, k, value }));
            }
        }
        Ok(())
    }

    fn check_logits(&self, tokens: usize, logits: &[f32]) -> Result<(), ExpertError> {
        let experts = self.layer.experts as usize;
        same_length("the router's logits", tokens * experts, logits.len())?;
        let wrong = |value: &f32| value.is_nan() || *value == f32::INFINITY;
        match logits.iter().position(wrong) {
            None => Ok(()),
            Some(at) => Err(ExpertError::NotFinite {
                what: "logits",
                token: at / experts,
                expert: at % experts,
                value: logits[at],
            }),
        }
    }

    fn check_ids(&self, ids: &[i32]) -> Result<(), ExpertError> {
        let (experts, k) = (self.layer.experts, self.layer.top_k as usize);
        match ids.iter().position(|id| u32::try_from(*id).is_ok_and(|id| id >= experts)) {
            None => Ok(()),
            Some(at) => {
                let (token, choice, id) = (at / k, at % k, ids[at]);
                Err(ExpertError::Expert { token, choice, id, experts })
            }
        }
    }

    /// Uploads the inputs of a call, and makes room for y and the workspace: for work that stays on the
    /// device, such as timing. Experts of logits are chosen there; y is of the type of x.
    ///
    /// # Errors
    /// A call that does not fit the layer, or that is cut into chunks; what the device says.
    pub fn tensors(&self, call: &ExpertCall<'_>) -> Result<ExpertTensors<E>, ExpertError> {
        let Uploaded { key, inputs } = self.uploaded(call, call.x.format())?;
        let plan = self.plan(key)?;
        let [(_, chunk)] = &plan.chunks[..] else {
            return Err(ExpertsNotScheduled::Chunks(key.tokens).into());
        };
        let tensors = ExpertTensors::new(&*self.executor, chunk.clone(), inputs);
        tensors.map_err(ExpertError::product)
    }

    /// The plan of a call with ids, if there is one.
    fn usual(&self, element: FloatFormat, tokens: usize) -> Option<std::sync::Arc<LayerPlan<E>>> {
        let (tokens, routed) = (tokens as u64, RoutedBy::Chosen);
        self.plan(PlanKey { element, output: element, tokens, routed, shared: None }).ok()
    }

    fn first_element(&self) -> FloatFormat {
        self.products.first().map_or(F32, |products| products.element)
    }
}

impl<E: Executor + 'static> ExpertOp for GpuExpertLayer<E>
where
    Self: Any,
{
    fn layer(&self) -> &ExpertLayer {
        &self.layer
    }

    fn schemes(&self) -> [&Scheme; 2] {
        [&self.schemes[0], &self.schemes[1]]
    }

    /// Those of a call with ids.
    fn kernels(&self, tokens: usize) -> Vec<String> {
        let plan = self.usual(self.first_element(), tokens);
        let kernels = plan.iter().flat_map(|plan| &plan.steps);
        kernels.map(|step| step.kernel.to_string()).collect()
    }

    fn explain(&self, tokens: usize) -> String {
        let (routed, shared) = (RoutedBy::Chosen, None);
        let of = |element: FloatFormat| {
            let tokens = tokens as u64;
            let key = PlanKey { element, output: element, tokens, routed, shared };
            let plan = self.plan(key);
            let plan = match plan {
                Ok(plan) => plan,
                Err(why) => return format!("x in {element}: {why}"),
            };
            let mut lines = vec![format!(
                "x in {element}: {} launches, {} bytes of workspace",
                plan.launches(),
                plan.workspace().total()
            )];
            let stacks = self.products(element).into_iter().flat_map(|products| &products.stacks);
            for (what, stack) in ["x", "h"].into_iter().zip(stacks) {
                if stack.rounded != element {
                    lines.push(format!("{what} in {element} is rounded to {}", stack.rounded));
                }
            }
            let launched: Vec<&KernelKey> = product_kernels(&plan.steps).collect();
            let names = ["first product", "second product"];
            for (at, (name, choice)) in names.into_iter().zip(&plan.choices).enumerate() {
                let &StackedChoice { ref choice, slots, groups_pairs } = choice;
                let kernel = match launched[..] {
                    [first, second] => [first, second][at],
                    _ => &choice.key,
                };
                let how = format!("{kernel}, {}; multiplied {}", choice.by, choice.compute_dtype);
                let blocks = match groups_pairs {
                    true => "blocks that find the pairs of an expert by themselves".to_owned(),
                    false => format!("token blocks of {slots} slots"),
                };
                lines.push(format!("{name}: {how}; {blocks}"));
            }
            if plan.parts != F32 {
                let most = self.most_f32_parts;
                lines.push(format!(
                    "parts are rounded to {}: in f32 they are more than {most} bytes",
                    plan.parts
                ));
            }
            if plan.chunks.len() > 1 {
                lines.push(format!(
                    "tokens in {} chunks: the workspace is limited",
                    plan.chunks.len()
                ));
            }
            lines.extend(plan.refused.iter().cloned());
            lines.extend(plan.steps.iter().map(|step| format!("kernel: {}", step.kernel)));
            lines.join("\n")
        };
        let all = self.products.iter().map(|products| of(products.element));
        all.collect::<Vec<_>>().join("\n")
    }

    fn sums(&self, x: FloatFormat, tokens: usize) -> [Sums; 2] {
        let plan = self.usual(x, tokens);
        plan.map_or([Sums::Matrix; 2], |plan| [0, 1].map(|at| plan.choices[at].choice.sums))
    }

    fn decoded(&self, x: FloatFormat, tokens: usize) -> [Decoded; 2] {
        let plan = self.usual(x, tokens);
        plan.map_or_else(Default::default, |plan| [0, 1].map(|at| plan.choices[at].choice.decoded))
    }

    fn rounds_x(&self, x: FloatFormat) -> [FloatFormat; 2] {
        let rounded = |products: &Products<E::Memory>| {
            let [first, second] = &products.stacks;
            [first.rounded, second.rounded]
        };
        self.products(x).map_or([x; 2], rounded)
    }

    fn rounds_parts(&self, x: FloatFormat, y: FloatFormat, tokens: usize) -> FloatFormat {
        let (tokens, routed) = (tokens as u64, RoutedBy::Chosen);
        let plan = self.plan(PlanKey { element: x, output: y, tokens, routed, shared: None });
        plan.map_or(F32, |plan| plan.parts)
    }

    /// Bytes on the device, of which each call makes its own: the caller's workspace is not used.
    fn workspace_size(&self, tokens: usize) -> usize {
        let plan = self.usual(self.first_element(), tokens);
        plan.map_or(0, |plan| usize::try_from(plan.workspace().total()).unwrap_or(usize::MAX))
    }

    fn route(
        &self,
        logits: &[f32],
        ids: &mut [i32],
        weights: &mut [f32],
    ) -> Result<(), ExpertError> {
        route(&self.layer, logits, &self.score_bias, ids, weights)
    }

    fn forward_into(
        &self,
        call: &ExpertCall<'_>,
        mut y: ValuesMut<'_>,
        _workspace: &mut Workspace,
    ) -> Result<(), ExpertError> {
        same_length("y", call.x.len(), y.len())?;
        let tokens = self.tokens(call)?;
        // The experts of logits are chosen here: as `route` says, in the host's precision.
        let mut chosen = (Vec::new(), Vec::new());
        let mut call = *call;
        if let Routed::Logits(logits) = call.routed {
            self.check_logits(tokens, logits)?;
            let pairs = tokens * self.layer.top_k as usize;
            let (ids, weights) = &mut chosen;
            ids.resize(pairs, 0);
            weights.resize(pairs, 0.0);
            self.route(logits, ids, weights)?;
            call.routed = Routed::Chosen { ids, weights };
        }
        let output = y.format();
        let Uploaded { key, inputs } = self.uploaded(&call, output)?;
        self.products(key.element)?;
        if key.tokens == 0 {
            return Ok(());
        }
        let plan = self.plan(key)?;
        let mut result: Vec<u8> = Vec::new();
        for (first, chunk) in &plan.chunks {
            let (first, rows) = (*first as usize, chunk.problem.m as usize);
            let all = key.tokens as usize;
            let part = |bytes: &[u8]| {
                let row = bytes.len() / all;
                bytes[first * row..(first + rows) * row].to_vec()
            };
            let inputs = inputs.iter().map(|(role, bytes)| (*role, part(bytes)));
            // A kernel is perhaps simulated, with this thread's arithmetic.
            let part = standard(|| {
                let executor = &*self.executor;
                let mut tensors = ExpertTensors::new(executor, chunk.clone(), inputs)?;
                self.queue(&mut tensors, false)?;
                self.result(&tensors)
            });
            result.extend(part.map_err(Into::<ProductError>::into)?);
        }
        match call.routed {
            Routed::Logits(_) | Routed::Chosen { .. } => store(&result, output, &mut y),
            Routed::Batched { counts, most } => {
                let width = (output.bits() / 8) as usize;
                let hidden = self.layer.hidden as usize;
                for (expert, count) in counts.iter().enumerate() {
                    let of = expert * most * hidden..(expert * most + *count as usize) * hidden;
                    let bytes = &result[of.start * width..of.end * width];
                    store(bytes, output, &mut y.part(of));
                }
            }
        }
        Ok(())
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
