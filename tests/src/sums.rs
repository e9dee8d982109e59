//! Sums of a product in f64. They are here because tests spend their time in them: this package is optimised, tests are not.

/// The sum of x times weights, and of the sizes of its terms: of each weight its code times its scale, and what
/// is added to that.
pub fn of(x: &[f64], weights: &[(f64, f64)]) -> (f64, f64) {
    let (mut sum, mut size) = (0.0, 0.0);
    for (x, (scaled, added)) in x.iter().zip(weights) {
        sum += x * (scaled + added);
        size += x.abs() * (scaled.abs() + added.abs());
    }
    (sum, size)
}
