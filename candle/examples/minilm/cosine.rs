//! How far embeddings of length 1 are from others of the same texts.

/// What a scheme does to embeddings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moved {
    /// The mean of the cosines of each embedding with its exact one.
    pub(crate) mean: f64,
    /// The least of them.
    pub(crate) least: f64,
    /// The most by which the cosine of two texts differs from the exact one.
    pub(crate) pairs: f64,
}

impl Moved {
    /// Of as many embeddings as exact ones.
    pub(crate) fn of(embeddings: &[Vec<f32>], exact: &[Vec<f32>]) -> Self {
        let own = embeddings.iter().zip(exact).map(|(one, exact)| cosine(one, exact));
        let own: Vec<f64> = own.collect();
        let mut pairs = 0f64;
        for (at, (one, exact_one)) in embeddings.iter().zip(exact).enumerate() {
            for (other, exact_other) in embeddings.iter().zip(exact).skip(at + 1) {
                pairs = pairs.max((cosine(one, other) - cosine(exact_one, exact_other)).abs());
            }
        }
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        Self { mean, least: own.into_iter().fold(1.0, f64::min), pairs }
    }
}

/// The cosine of two vectors.
pub(crate) fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let dot = |one: &[f32], other: &[f32]| -> f64 {
        one.iter().zip(other).map(|(one, other)| f64::from(*one) * f64::from(*other)).sum()
    };
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}
