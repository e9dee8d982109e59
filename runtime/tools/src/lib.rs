//! Tools for work on products: they check and measure the runtime, and no program that multiplies needs them.
//!
//! In: a scheme, a checkpoint or a device. Out: verdicts and figures. [`conformance`] compares a scheme's
//! products with the scalar reference, [`check`] those of a checkpoint with the results of its own
//! software ([`forward`] is how that software calls a layer), and [`measure`] gives the machine's own
//! rates. `cuda` has the self-test of NVIDIA GPUs and the timing of their kernels.

pub mod check;
pub mod conformance;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod forward;
pub mod measure;
