//! Sums of a product in f64. Tests wait for them, so that this package is optimised where tests are not.

/// The sum of x times what weights are, and of the sizes of its terms: of each weight its code times its scale, and what
/// is added to that.
pub fn of(x: &[f64], weights: &[(f64, f64)]) -> (f64, f64) {
    let (mut sum, mut size) = (0.0, 0.0);
    for (x, (scaled, added)) in x.iter().zip(weights) {
        sum += x * (scaled + added);
        size += x.abs() * (scaled.abs() + added.abs());
    }
    (sum, size)
}
