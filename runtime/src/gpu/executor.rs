//! What runs kernels: memory and launches.

use crate::op::ProductError;
use crate::source::{KernelKey, LaunchRule, Problem, Refusal};

use super::products::Products;

/// A buffer of a launch.
#[derive(Debug)]
pub enum Slot<'a, M> {
    /// The kernel reads it.
    Read(&'a M),
    /// The kernel writes it, or reads and writes it.
    Write(&'a mut M),
}

/// Runs the kernels of a source on one device, in the order in which they are launched.
pub trait Executor: Send + Sync {
    /// Memory of the device.
    type Memory: Send + Sync;
    /// A loaded kernel.
    type Kernel: Send + Sync + Clone;
    /// What can go wrong.
    type Error: std::error::Error + From<Refusal> + Into<ProductError>;

    /// The backend's name on the command line.
    fn name(&self) -> &str;

    /// The target whose kernels it runs.
    fn target(&self) -> &str;

    /// Multiprocessors of the device.
    fn multiprocessors(&self) -> u64;

    /// Where its kernels come from.
    fn source(&self) -> &dyn Products;

    /// A kernel, loaded once.
    ///
    /// # Errors
    /// The source's refusal, or what the device says.
    fn kernel(&self, key: &KernelKey) -> Result<Self::Kernel, Self::Error>;

    /// How a kernel is launched.
    fn rule<'k>(&self, kernel: &'k Self::Kernel) -> &'k LaunchRule;

    /// Memory with a copy of these bytes.
    ///
    /// # Errors
    /// What the device says.
    fn upload(&self, bytes: &[u8]) -> Result<Self::Memory, Self::Error>;

    /// Memory that a kernel writes before anybody reads it.
    ///
    /// # Errors
    /// What the device says.
    fn output(&self, bytes: u64) -> Result<Self::Memory, Self::Error>;

    /// Memory full of 0.
    ///
    /// # Errors
    /// What the device says.
    fn zeroed(&self, bytes: u64) -> Result<Self::Memory, Self::Error>;

    /// The bytes of memory, after all that was launched.
    ///
    /// # Errors
    /// What the device says.
    fn download(&self, memory: &Self::Memory) -> Result<Vec<u8>, Self::Error>;

    /// Queues a kernel on its buffers, which come in the order of its rule. With `overlap` it may
    /// start before what was launched before it has ended, where its rule says that it waits.
    ///
    /// # Errors
    /// Buffers that do not fit the rule, or what the device says.
    fn launch(
        &self,
        kernel: &Self::Kernel,
        problem: &Problem,
        overlap: bool,
        slots: &mut [Slot<'_, Self::Memory>],
    ) -> Result<(), Self::Error>;
}
