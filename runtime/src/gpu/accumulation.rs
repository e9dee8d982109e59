//! Where the kernels of a weight round: as its source of kernels says of each choice.

use quantloom_dsl::format::{F32, FloatFormat};

use super::executor::Executor;
use super::weight::GpuWeight;
use crate::accumulation::{Accumulation, Decoded, Sums};

impl<E: Executor> Accumulation for GpuWeight<E> {
    fn sums(&self, x: FloatFormat, tokens: usize) -> Sums {
        self.choice(x, tokens as u64).map_or(Sums::Matrix, |choice| choice.sums)
    }

    fn rounds_x(&self, x: FloatFormat) -> FloatFormat {
        self.product(x).map_or(x, |product| product.rounded)
    }

    fn decoded(&self, x: FloatFormat, tokens: usize) -> Decoded {
        self.choice(x, tokens as u64).map_or(Decoded::default(), |choice| choice.decoded)
    }

    /// Kernels round y to the scheme's type, or that of x.
    fn rounds_y(&self, x: FloatFormat, y: FloatFormat) -> FloatFormat {
        match self.product(x) {
            Ok(product) if y == F32 => product.output,
            _ => y,
        }
    }
}
