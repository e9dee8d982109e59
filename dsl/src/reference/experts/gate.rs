//! What is between the two products of an expert, one element at a time.

use crate::experts::Gate;

/// `h = f(g, u)`; see [`Gate`] for the formulas and their sources. `u` is not read if the gate has
/// one shard.
///
/// NaN in a value that is read gives NaN, through limits too. Infinities give what the formula gives
/// in IEEE arithmetic: of g = -infinity that is NaN, unless the gate is relu2.
///
/// # Panics
/// If a limit is negative or NaN, which [`ExpertLayer::check`](crate::experts::ExpertLayer::check)
/// refuses.
pub fn gate(gate: Gate, g: f64, u: f64) -> f64 {
    if g.is_nan() || gate.shards() == 2 && u.is_nan() {
        return f64::NAN;
    }
    let clamp = |value: f64, limit: f32| value.clamp(-f64::from(limit), f64::from(limit));
    match gate {
        Gate::Silu => silu(g) * u,
        Gate::SiluLimit { limit } => silu(g.min(limit.into())) * clamp(u, limit),
        Gate::SwigluOai { alpha, limit } => {
            let g = g.min(limit.into());
            g * sigmoid(f64::from(alpha) * g) * (clamp(u, limit) + 1.0)
        }
        Gate::SwigluStep { limit } => {
            let left = silu(g);
            // The minimum of NaN and a number is the number.
            let left = if left.is_nan() { left } else { left.min(limit.into()) };
            left * clamp(u, limit)
        }
        Gate::Gelu => gelu(g) * u,
        Gate::GeluTanh => gelu_tanh(g) * u,
        Gate::UngatedSilu => silu(g),
        Gate::UngatedGelu => gelu(g),
        Gate::UngatedGeluTanh => gelu_tanh(g),
        Gate::UngatedRelu2 => g.max(0.0).powi(2),
    }
}

/// `1 / (1 + exp(-v))`.
pub fn sigmoid(v: f64) -> f64 {
    1.0 / (1.0 + (-v).exp())
}

/// `v * sigmoid(v)`.
fn silu(v: f64) -> f64 {
    v * sigmoid(v)
}

/// `v * normal(v)` with `normal(v) = erfc(-v / sqrt(2)) / 2`, which keeps its digits where v is far
/// below 0.
fn gelu(v: f64) -> f64 {
    v * libm::erfc(-v * std::f64::consts::FRAC_1_SQRT_2) / 2.0
}

/// `v * (1 + tanh(t)) / 2` with `t = sqrt(2 / pi) * (v + 0.044715 v^3)`. `(1 + tanh(t)) / 2` is
/// `sigmoid(2 t)`, which keeps its digits where v is far below 0.
fn gelu_tanh(v: f64) -> f64 {
    let t = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3));
    v * sigmoid(2.0 * t)
}
