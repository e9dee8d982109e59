//! NVIDIA GPUs: whether everything works that the backend rests on, and how fast kernels are.
//!
//! In: [`quantloom_runtime::cuda`]. Out: checks of a real device ([`selftest`]), the time of a kernel as a
//! model meets it ([`mod@bench`]), the time of reading a weight once ([`ReadRoofline`]).

pub mod bench;
mod read_roofline;
pub mod selftest;

pub use read_roofline::ReadRoofline;
