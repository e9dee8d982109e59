//! A prepared expert layer on a GPU: what an engine holds.
//!
//! In: a description, the matrices of its experts one at a time, and an executor. Out: the stacked
//! constant buffers of both products, and plans of their launches by M. The op for the host's memory is in
//! `call`, its launches in `plan`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::{ExpertLayer, ExpertProduct};
use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::Shape;

use super::super::kept_plans::KeptPlans;
use super::plan::{LayerPlan, PlanKey};
use super::stack::{Sizes, Stack, Stacks};
use crate::experts::{
    ExpertError, ExpertMap, ExpertOptions, ExpertSource, ExpertsNotScheduled, check_bias,
    same_length,
};
use crate::gpu::executor::Executor;
use crate::op::NotScheduled;
use crate::source::{BufferRole, Refusal};

/// An expert layer in the memory of a GPU, with all that its calls need.
pub struct GpuExpertLayer<E: Executor> {
    pub(super) executor: Arc<E>,
    pub(super) layer: ExpertLayer,
    pub(super) schemes: [Arc<Scheme>; 2],
    pub(super) score_bias: Vec<f32>,
    pub(super) map: Option<ExpertMap>,
    /// L.
    pub(super) local: u32,
    pub(super) most_workspace: u64,
    pub(super) most_f32_parts: u64,
    /// By type of x.
    pub(super) products: Vec<Products<E::Memory>>,
    /// Types of x that kernels do not take, and why.
    refused: Vec<(FloatFormat, Refusal)>,
    /// The expert map and the score bias.
    constants: Vec<(BufferRole, Arc<E::Memory>)>,
    pub(super) plans: KeptPlans<PlanKey, LayerPlan<E>>,
}

/// The two products for x of one type.
pub(super) struct Products<M> {
    pub(super) element: FloatFormat,
    /// The first product and the second.
    pub(super) stacks: [Stack<M>; 2],
    /// Numbers of tokens of which kernels were measured at first use, or could not be: it is not tried again.
    pub(super) measured: Mutex<BTreeSet<u64>>,
}

impl<E: Executor> GpuExpertLayer<E> {
    /// Packs all matrices and uploads them, once for each type of x that kernels take.
    ///
    /// # Errors
    /// A description or options that do not fit, matrices that do not fit the description,
    /// [`ExpertError::NotScheduled`] where kernels do not compute such a layer, or what the device says.
    pub fn new(
        executor: Arc<E>,
        layer: &ExpertLayer,
        weights: &dyn ExpertSource,
        options: &ExpertOptions,
    ) -> Result<Self, ExpertError> {
        layer.check()?;
        let score_bias = options.score_bias.clone().unwrap_or_default();
        check_bias(layer, &score_bias)?;
        let local = match &options.map {
            None => layer.experts,
            Some(map) => {
                same_length("the expert map", layer.experts as usize, map.places().len())?;
                u32::try_from(map.local()).unwrap_or(u32::MAX)
            }
        };
        if local == 0 {
            return Err(ExpertsNotScheduled::NoExpert.into());
        }
        let (hidden, intermediate) = (layer.hidden, layer.intermediate);
        let shards = layer.gate.shards() as u32;
        let stacks = |product, shards, (n, k)| {
            let sizes = Sizes { product, experts: local, shards, shape: Shape::matrix(n, k) };
            Stacks::new(&*executor, weights, sizes, options.input_scales)
        };
        let first = stacks(ExpertProduct::GateUp, shards, (intermediate, hidden))?;
        let second = stacks(ExpertProduct::Down, 1, (hidden, intermediate))?;
        let mut refused = first.refused;
        refused.extend(second.refused);
        let mut others = second.stacks;
        let mut products = Vec::new();
        for stack in first.stacks {
            let element = stack.element;
            if let Some(at) = others.iter().position(|other| other.element == element) {
                let stacks = [stack, others.swap_remove(at)];
                products.push(Products { element, stacks, measured: Mutex::default() });
            }
        }
        if products.is_empty() {
            let why = refused.into_iter().next();
            let why = why.map_or(NotScheduled::NoActivation, |(_, why)| why.into());
            return Err(ExpertError::product(why));
        }
        let mut constants = Vec::new();
        let mut upload = |role, bytes: Vec<u8>| {
            let memory = executor.upload(&bytes);
            let memory = memory.map_err(ExpertError::product)?;
            constants.push((role, Arc::new(memory)));
            Ok::<(), ExpertError>(())
        };
        if let Some(map) = &options.map {
            let places = map.places().iter().flat_map(|place| place.to_le_bytes());
            upload(BufferRole::ExpertMap, places.collect())?;
        }
        if layer.routing.bias {
            let bias = score_bias.iter().flat_map(|bias| bias.to_le_bytes());
            upload(BufferRole::ScoreBias, bias.collect())?;
        }
        // From now on any stream may read it.
        executor.wait().map_err(ExpertError::product)?;
        let scheme = |product| Arc::new(weights.scheme(product).clone());
        Ok(Self {
            executor,
            layer: *layer,
            schemes: [ExpertProduct::GateUp, ExpertProduct::Down].map(scheme),
            score_bias,
            map: options.map.clone(),
            local,
            most_workspace: options.most_workspace,
            most_f32_parts: options.most_f32_parts,
            products,
            refused,
            constants,
            plans: KeptPlans::default(),
        })
    }

    /// The executor.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// The same layer and memory on another queue of the device.
    pub(super) fn on(&self, executor: Arc<E>) -> Self {
        let products = self.products.iter().map(|Products { element, stacks, .. }| Products {
            element: *element,
            stacks: stacks.each_ref().map(Stack::shared),
            measured: Mutex::default(),
        });
        Self {
            executor,
            layer: self.layer,
            schemes: self.schemes.clone(),
            score_bias: self.score_bias.clone(),
            map: self.map.clone(),
            local: self.local,
            most_workspace: self.most_workspace,
            most_f32_parts: self.most_f32_parts,
            products: products.collect(),
            refused: self.refused.clone(),
            constants: self.constants.clone(),
            plans: KeptPlans::default(),
        }
    }

    /// Forgets the plans, so that the source is asked for kernels again. Those that engines hold stay.
    pub(super) fn forget(&self) {
        self.plans.clear();
    }

    /// The products for x of a type.
    pub(super) fn products(
        &self,
        element: FloatFormat,
    ) -> Result<&Products<E::Memory>, ExpertError> {
        let found = self.products.iter().find(|products| products.element == element);
        found.ok_or_else(|| {
            let why = self.refused.iter().find(|(refused, _)| *refused == element);
            let known = self.products.iter().map(|products| products.element).collect();
            let why = why
                .map_or(NotScheduled::TypeOfX { x: element, known }, |(_, why)| why.clone().into());
            ExpertError::product(why)
        })
    }

    /// The memory of a constant buffer of a product, or of the layer.
    pub(super) fn constant<'l>(
        &'l self,
        products: &'l Products<E::Memory>,
        product: usize,
        role: BufferRole,
    ) -> Option<&'l Arc<E::Memory>> {
        let of_layer = self.constants.iter().find(|(known, _)| *known == role);
        let of_product = || products.stacks.get(product)?.constant(role);
        of_layer.map(|(_, memory)| memory).or_else(of_product)
    }
}
