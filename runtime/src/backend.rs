//! What prepares weights: the one interface of the CPU, of GPUs and of their simulators.

use quantloom_dsl::experts::ExpertLayer;

use crate::experts::{ExpertError, ExpertOp, ExpertOptions, ExpertSource, ExpertsNotScheduled};
use crate::op::{Op, ProductError};
use crate::weight_data::WeightData;

/// A device that prepares weights and multiplies with them.
pub trait Backend: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &str;

    /// Brings a weight into the layout that the kernels of this device read.
    ///
    /// Programs call it through [`WeightData::prepare`], `Layer::prepare` or a declared scheme.
    ///
    /// # Errors
    /// See [`ProductError`].
    fn prepare_weight(&self, weight: &WeightData<'_>) -> Result<Box<dyn Op>, ProductError>;

    /// Prepares an expert layer: each matrix is dropped when it is packed. It may be asked for again ([`ExpertSource::matrix`]).
    ///
    /// # Errors
    /// See [`ExpertError`]; [`ExpertError::NotScheduled`] from a device that has no expert layers.
    fn prepare_experts(
        &self,
        layer: &ExpertLayer,
        weights: &dyn ExpertSource,
        options: &ExpertOptions,
    ) -> Result<Box<dyn ExpertOp>, ExpertError> {
        let _ = (layer, weights, options);
        Err(ExpertsNotScheduled::Device(self.name().to_owned()).into())
    }
}
