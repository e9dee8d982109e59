//! Whether matrices of different experts have the same scheme and sizes, and what differs first.

use quantloom_dsl::Experts;
use quantloom_dsl::layout::Shape;

use super::super::Layer;
use super::{ExpertSizes, ExpertsProblem};
use crate::experts::ExpertProduct;

/// Checks that a matrix of an expert has the scheme of the first matrix of its product.
pub(super) fn same_scheme(expert: u32, layer: &Layer, first: &Layer) -> Result<(), ExpertsProblem> {
    // Layers of one configuration share their scheme.
    if std::ptr::eq(layer.scheme(), first.scheme()) {
        return Ok(());
    }
    let matrix = || layer.name().to_owned();
    match layer.scheme().difference_of_meaning(first.scheme()) {
        None => Ok(()),
        Some(clause) if expert == 0 => {
            let gate = first.name().to_owned();
            Err(ExpertsProblem::Shards { gate, up: matrix(), clause })
        }
        Some(clause) => Err(ExpertsProblem::Scheme { expert, matrix: matrix(), clause }),
    }
}

/// Checks the sizes of a matrix of one expert.
pub(super) fn same_shape(
    expert: u32,
    name: &str,
    shape: Shape,
    expected: [u64; 2],
) -> Result<(), ExpertsProblem> {
    let [n, k] = expected;
    if shape == Shape::matrix(n, k) {
        return Ok(());
    }
    if shape.experts != 1 {
        let (found, expected) = (vec![shape.experts, shape.n, shape.k], vec![1, n, k]);
        return Err(ExpertsProblem::Stack { matrix: name.to_owned(), found, expected });
    }
    let found = [shape.n, shape.k];
    Err(ExpertsProblem::Shape { expert, matrix: name.to_owned(), found, expected })
}

/// The shards of the stack of a product.
pub(super) fn stack_shards(layer: &Layer, product: ExpertProduct) -> Result<usize, ExpertsProblem> {
    let stored = match (layer.scheme().experts, product) {
        (Some(Experts::Single), _) => return Ok(1),
        (Some(Experts::Concatenated | Experts::Interleaved), ExpertProduct::GateUp) => {
            return Ok(2);
        }
        (Some(Experts::Concatenated), _) => "`experts: concatenated`",
        (Some(Experts::Interleaved), _) => "`experts: interleaved`",
        (None, _) => "nothing of experts",
    };
    Err(ExpertsProblem::StackShards { matrix: layer.name().to_owned(), product, stored })
}

/// Checks the sizes of the stack of a product.
pub(super) fn stack_shape(
    layer: &Layer,
    sizes: ExpertSizes,
    product: ExpertProduct,
) -> Result<(), ExpertsProblem> {
    let [n, k] = sizes.matrix(product);
    let shards = match product {
        ExpertProduct::GateUp => sizes.shards as u64,
        ExpertProduct::Down => 1,
    };
    let Shape { experts, n: rows, k: columns } = layer.shape();
    let (found, n) = (vec![experts, rows, columns], n.saturating_mul(shards));
    let expected = vec![u64::from(sizes.experts), n, k];
    if found == expected {
        return Ok(());
    }
    Err(ExpertsProblem::Stack { matrix: layer.name().to_owned(), found, expected })
}
