//! Quantloom as a Python module: quantised layers of checkpoints, multiplied with arrays of any library that
//! knows DLPack.
//!
//! In: a path, and x as a DLPack exporter in host memory. Out: y as one (`tensor::Tensor`), in memory that
//! is not copied on its way to numpy, JAX or torch. Start with `checkpoint`; `quantloom.pyi` is the module as
//! Python sees it.

mod checkpoint;
mod device;
mod element;
mod error;
mod input;
mod prepared;
mod tensor;

use pyo3::prelude::*;

/// Products of quantised layers: open a checkpoint, prepare a layer, multiply.
///
/// Arrays come and go by DLPack, so that numpy, JAX and torch work alike, and none of them is needed.
#[pymodule]
mod quantloom {
    #[pymodule_export]
    use crate::checkpoint::{Checkpoint, Layer, open};
    #[pymodule_export]
    use crate::device::devices;
    #[pymodule_export]
    use crate::error::QuantloomError;
    #[pymodule_export]
    use crate::prepared::Prepared;
    #[pymodule_export]
    use crate::tensor::Tensor;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name of it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
