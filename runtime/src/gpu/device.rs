//! The device of an executor: where weights are prepared.

use std::path::Path;
use std::sync::Arc;

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::layout::Shape;

use super::executor::Executor;
use super::experts::{GpuExpertLayer, GpuExperts};
use super::saved::SavedError;
use super::weight::GpuWeight;
use crate::backend::Backend;
use crate::experts::{ExpertError, ExpertOp, ExpertOptions, ExpertSource};
use crate::float_mode::standard;
use crate::op::{Op, ProductError};
use crate::unpacked::Unpacked;
use crate::weight_data::{Stored, WeightData};

/// A device that products run on through an executor.
pub struct GpuDevice<E>(Arc<E>);

impl<E> Clone for GpuDevice<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E: Executor> GpuDevice<E> {
    /// The device of an executor.
    pub fn new(executor: E) -> Self {
        Self(Arc::new(executor))
    }

    /// Its executor.
    pub fn executor(&self) -> &E {
        &self.0
    }

    /// The same, to be kept.
    pub(super) fn shared(&self) -> &Arc<E> {
        &self.0
    }

    /// Packs a weight for products as `scheme` says (that of the weight, or with another
    /// activation), once for each type of x that kernels take.
    ///
    /// # Errors
    /// [`ProductError::Scheme`], [`ProductError::NotScheduled`], or what the device says.
    pub fn prepare(
        &self,
        scheme: &Scheme,
        weight: &Unpacked,
    ) -> Result<GpuWeight<E>, ProductError> {
        standard(|| GpuWeight::new(self.0.clone(), scheme, weight))
    }

    /// The same from a checkpoint's own bytes, which kernels on the device bring into place.
    ///
    /// # Errors
    /// See [`GpuWeight::of_stored`].
    pub fn prepare_stored(
        &self,
        scheme: &Scheme,
        shape: Shape,
        stored: Stored<'_, '_>,
    ) -> Result<GpuWeight<E>, ProductError> {
        standard(|| GpuWeight::of_stored(self.0.clone(), scheme, shape, stored))
    }

    /// Packs both products of an expert layer, once for each type of x that kernels take.
    ///
    /// # Errors
    /// See [`GpuExpertLayer::new`].
    pub fn prepare_layer(
        &self,
        layer: &ExpertLayer,
        weights: &dyn ExpertSource,
        options: &ExpertOptions,
    ) -> Result<GpuExpertLayer<E>, ExpertError> {
        standard(|| GpuExpertLayer::new(self.0.clone(), layer, weights, options))
    }

    /// A weight that [`GpuWeight::save`] wrote.
    ///
    /// # Errors
    /// See [`GpuWeight::load`].
    pub fn load(
        &self,
        scheme: &Scheme,
        shape: Shape,
        path: &Path,
    ) -> Result<GpuWeight<E>, SavedError> {
        GpuWeight::load(self.0.clone(), scheme, shape, path)
    }
}

impl<E: Executor + 'static> Backend for GpuDevice<E> {
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Stored tensors are uploaded as they are and brought into place by kernels; stacked experts and
    /// a weight without stored tensors are unpacked by the host.
    fn prepare_weight(&self, weight: &WeightData<'_>) -> Result<Box<dyn Op>, ProductError> {
        let scheme = weight.scheme();
        if scheme.experts.is_some() {
            return Ok(Box::new(standard(|| GpuExperts::new(self, scheme, weight.unpack()?))?));
        }
        Ok(Box::new(match weight.stores() {
            Some(stored) => self.prepare_stored(scheme, weight.shape(), stored)?,
            None => self.prepare(scheme, weight.unpack()?)?,
        }))
    }

    fn prepare_experts(
        &self,
        layer: &ExpertLayer,
        weights: &dyn ExpertSource,
        options: &ExpertOptions,
    ) -> Result<Box<dyn ExpertOp>, ExpertError> {
        Ok(Box::new(self.prepare_layer(layer, weights, options)?))
    }
}
