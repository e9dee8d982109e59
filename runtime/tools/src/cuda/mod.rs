//! NVIDIA GPUs: whether everything works that the backend rests on, and how fast kernels are.
//!
//! In: [`quantloom_runtime::cuda`], which times kernels too. Out: checks of a real device ([`selftest`]), random data on it
//! ([`random`]), the time of reading a weight once ([`ReadRoofline`]).

pub mod random;
mod read_roofline;
pub mod selftest;

pub use read_roofline::ReadRoofline;
