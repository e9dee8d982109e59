//! Where a device gets the matrices of an expert layer: one at a time, so that the host needs memory
//! for one.

pub use quantloom_dsl::experts::ExpertProduct;
use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::{Accuracy, Scheme};

use super::error::ExpertError;
use crate::unpacked::Unpacked;

/// The matrices of a layer.
pub trait ExpertSource {
    /// The scheme of a product's matrices, with `experts: single`.
    fn scheme(&self, product: ExpertProduct) -> &Scheme;

    /// One matrix: of expert 0 to L - 1, shard 0 (gate) or 1 (up). [`ExpertProduct::Down`] has shard 0
    /// alone. Its own scales, zero points, bias and static parameters of the input come with it. A device may ask for it again:
    /// for the order of its columns, or if it takes another layout.
    ///
    /// # Errors
    /// What the stored tensors have wrong.
    fn matrix(
        &self,
        product: ExpertProduct,
        expert: u32,
        shard: u32,
    ) -> Result<Unpacked, ExpertError>;
}

/// The matrices of a source with other products: with x and h in one float type alone, or of another accuracy.
pub struct WithProducts<'s> {
    source: &'s dyn ExpertSource,
    schemes: [Scheme; 2],
}

impl<'s> WithProducts<'s> {
    /// With x and h in this float type alone, where the schemes list that: see
    /// [`Layer::with_input`](crate::checkpoint::Layer::with_input).
    pub fn of_input(source: &'s dyn ExpertSource, own: FloatFormat) -> Self {
        Self::new(source, |scheme| scheme.with_input(own))
    }

    /// Of this accuracy: see [`Layer::with_accuracy`](crate::checkpoint::Layer::with_accuracy).
    pub fn of_accuracy(source: &'s dyn ExpertSource, accuracy: Accuracy) -> Self {
        Self::new(source, |scheme| scheme.with_accuracy(accuracy))
    }

    /// With each scheme changed.
    pub fn new(source: &'s dyn ExpertSource, changed: impl Fn(&Scheme) -> Scheme) -> Self {
        let products = [ExpertProduct::GateUp, ExpertProduct::Down];
        Self { source, schemes: products.map(|product| changed(source.scheme(product))) }
    }
}

impl ExpertSource for WithProducts<'_> {
    fn scheme(&self, product: ExpertProduct) -> &Scheme {
        product.of(&self.schemes)
    }

    fn matrix(
        &self,
        product: ExpertProduct,
        expert: u32,
        shard: u32,
    ) -> Result<Unpacked, ExpertError> {
        self.source.matrix(product, expert, shard)
    }
}

/// The matrices of a layer in memory.
#[derive(Clone, Debug)]
pub struct ExpertMatrices {
    schemes: [Scheme; 2],
    /// `[expert][shard]`.
    gate_up: Vec<Vec<Unpacked>>,
    /// `[expert]`.
    down: Vec<Unpacked>,
}

impl ExpertMatrices {
    /// The shards of the first product and the second matrix, `[expert][shard]` and `[expert]`, each
    /// of one expert. `None` if there is no expert or no shard.
    pub fn new(gate_up: Vec<Vec<Unpacked>>, down: Vec<Unpacked>) -> Option<Self> {
        let first = gate_up.first()?.first()?.scheme().clone();
        let schemes = [first, down.first()?.scheme().clone()];
        Some(Self { schemes, gate_up, down })
    }
}

impl ExpertSource for ExpertMatrices {
    fn scheme(&self, product: ExpertProduct) -> &Scheme {
        product.of(&self.schemes)
    }

    fn matrix(
        &self,
        product: ExpertProduct,
        expert: u32,
        shard: u32,
    ) -> Result<Unpacked, ExpertError> {
        let at = expert as usize;
        let matrix = match product {
            ExpertProduct::GateUp => {
                self.gate_up.get(at).and_then(|shards| shards.get(shard as usize))
            }
            ExpertProduct::Down => self.down.get(at).filter(|_| shard == 0),
        };
        let missing = ExpertError::Length {
            what: "the source of experts",
            expected: u64::from(expert) + 1,
            found: self.down.len() as u64,
        };
        matrix.cloned().ok_or(missing)
    }
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::format::{BF16, F16};

    use super::*;

    /// A source of schemes alone.
    struct Schemes(Scheme);

    impl ExpertSource for Schemes {
        fn scheme(&self, _: ExpertProduct) -> &Scheme {
            &self.0
        }

        fn matrix(&self, _: ExpertProduct, _: u32, _: u32) -> Result<Unpacked, ExpertError> {
            Err(ExpertError::Length { what: "matrices", expected: 1, found: 0 })
        }
    }

    #[test]
    fn both_products_change_alike() {
        let text = "s { weight: u4 - 8, scale: bf16 per 1x32, pack: u32 [k:8 | k, n], activation: bf16 | f16 }";
        let source = Schemes(quantloom_dsl::parse(text).expect("a scheme"));
        for own in [BF16, F16] {
            let exact = WithProducts::of_accuracy(&source, Accuracy::Exact);
            let changed = WithProducts::of_input(&exact, own);
            for product in [ExpertProduct::GateUp, ExpertProduct::Down] {
                let [before, scheme] = [exact.scheme(product), changed.scheme(product)];
                assert_eq!(*before, source.0.with_accuracy(Accuracy::Exact));
                assert_eq!(*scheme, before.with_input(own));
                assert_eq!((scheme.activations.len(), scheme.accuracy), (1, Accuracy::Exact));
            }
            assert!(changed.matrix(ExpertProduct::Down, 0, 0).is_err());
        }
    }
}
