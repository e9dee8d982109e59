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
    /// The experts that a map has here.
    ///
    /// # Errors
    /// [`ExpertsProblem::EmptyPlace`], [`ExpertsProblem::TwoAtPlace`].
    pub(super) fn new(
        source: &'a dyn ExpertSource,
        map: &ExpertMap,
    ) -> Result<Self, ExpertsProblem> {
        let at = |place: usize| {
            let here = |found: &i32| usize::try_from(*found) == Ok(place);
            let mut experts = (0u32..).zip(map.places()).filter(|(_, found)| here(found));
            match (experts.next(), experts.next()) {
                (None, _) => Err(ExpertsProblem::EmptyPlace(place)),
                (Some((expert, _)), None) => Ok(expert),
                (Some((first, _)), Some((second, _))) => {
                    Err(ExpertsProblem::TwoAtPlace { place, experts: [first, second] })
                }
            }
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
