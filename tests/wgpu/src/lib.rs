//! Products on a device through wgpu, by the kernels that the simulator runs.

#[cfg(test)]
mod tests;
