//! Products on a device through wgpu, with the kernels that the simulator runs.

#[cfg(test)]
mod tests;
