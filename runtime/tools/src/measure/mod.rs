//! The machine's own rates, the denominators of a roofline: memory bandwidth and multiplication
//! rate.
//!
//! In: nothing. Out: [`Memory`], which samples the read bandwidth (on a shared machine the
//! bandwidth changes from second to second, so sample it next to each measurement), [`rates`], the
//! peak of each multiplying instruction, sampled in the same way, [`seconds`] of a call and their
//! [`median`].

mod memory;
pub mod normal;
mod rates;

use std::time::Instant;

pub use memory::{Memory, last_level_cache};
pub use rates::{Arithmetic, Rate, rates};

/// Seconds of one call.
pub fn seconds(call: impl FnOnce()) -> f64 {
    let start = Instant::now();
    call();
    start.elapsed().as_secs_f64()
}

/// The middle value, the upper one of two; NaN of none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
