//! What of the CUDA backend can be tested without a device: kept images, launches and tensor maps
//! up to the driver's call, kernel keys, and for which device a text is.
//! `cuda_driver` has the rest.

mod images;
mod launches;
mod sources;
mod targets;
mod tensors;
