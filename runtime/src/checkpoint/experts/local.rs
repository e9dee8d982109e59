//! The experts of an expert map: those that are here, at their places.

use quantloom_dsl::Scheme;

use super::ExpertsProblem;
use crate::experts::{ExpertError, ExpertMap, ExpertProduct, ExpertSource};
use crate::unpacked::{UnpackError, Unpacked};

/// Some experts of a source that has all of the model.
pub(super) struct LocalExperts<'a> {
    source: &'a dyn ExpertSource,
    /// `[L]`: the expert at each place.
    experts: Vec<u32>,
}

impl<'a> LocalExperts<'a> {
    /// The experts that a map has here. Of several experts at one place the first is taken.
    ///
    /// # Errors
    /// [`ExpertsProblem::EmptyPlace`].
    pub(super) fn new(
        source: &'a dyn ExpertSource,
        map: &ExpertMap,
    ) -> Result<Self, ExpertsProblem> {
        let at = |place: usize| {
            let here = |found: &i32| usize::try_from(*found) == Ok(place);
            let expert = map.places().iter().position(here);
            let expert = expert.and_then(|expert| u32::try_from(expert).ok());
            expert.ok_or(ExpertsProblem::EmptyPlace(place))
        };
        Ok(Self { source, experts: (0..map.local()).map(at).collect::<Result<_, _>>()? })
    }
}

impl ExpertSource for LocalExperts<'_> {
    fn scheme(&self, product: ExpertProduct) -> &Scheme {
        self.source.scheme(product)
    }

    fn matrix(
        &self,
        product: ExpertProduct,
        expert: u32,
        shard: u32,
    ) -> Result<Unpacked, ExpertError> {
        let none = UnpackError::NoShard { expert: expert.into(), shard: shard.into() };
        let expert = self.experts.get(expert as usize).ok_or(none)?;
        self.source.matrix(product, *expert, shard)
    }
}
