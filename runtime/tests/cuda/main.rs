//! What of the CUDA backend can be tested without a device: kept images, launches and tensor maps
//! up to the driver's call, kernel keys, and the hand-written texts with the real assembler.
//! `cuda_driver` has the rest.

mod images;
mod launches;
mod sources;
mod tensors;
mod texts;
