//! What runs kernels: memory and launches.

use crate::op::ProductError;
use crate::source::{KernelKey, LaunchRule, ProblemSize, Refusal};

use super::clock::Clock;
use super::products::Products;

/// A buffer of a launch.
#[derive(Debug)]
pub enum LaunchBuffer<'a, M> {
    /// The kernel reads it.
    Read(&'a M),
    /// The kernel writes it, or reads and writes it.
    Write(&'a mut M),
}

/// A launch that somebody vouches for: what a kernel's text does is beyond the compiler's sight, and
/// not every device checks it.
///
/// ```compile_fail,E0133
/// use quantloom_runtime::gpu::{Executor, Launch, LaunchBuffer};
///
/// fn launch<E: Executor>(
///     executor: &E,
///     kernel: &E::Ready,
///     slots: &mut [LaunchBuffer<'_, E::Memory>],
/// ) -> Result<(), E::Error> {
///     executor.launch(Launch::new(kernel, false, slots))
/// }
/// ```
pub struct Launch<'l, 'm, E: Executor + ?Sized> {
    kernel: &'l E::Ready,
    overlap: bool,
    slots: &'l mut [LaunchBuffer<'m, E::Memory>],
}

impl<'l, 'm, E: Executor + ?Sized> Launch<'l, 'm, E> {
    /// A kernel on its buffers, which come in the order of its rule. With `overlap` it may start
    /// before what was launched before it has ended, where its rule says that it waits.
    ///
    /// # Safety
    /// - The kernel is one of the executor that launches it, for a key that its source gave.
    /// - Where numbers in a buffer decide what the kernel touches, they are in their range: an order of
    ///   columns ([`ColumnOrder`](super::ColumnOrder)) names columns that there are, and counters
    ///   ([`Storage::Counters`](crate::source::Storage)) are 0 before their first launch.
    ///
    /// The number of buffers and their sizes need no promise: the executor checks them.
    pub unsafe fn new(
        kernel: &'l E::Ready,
        overlap: bool,
        slots: &'l mut [LaunchBuffer<'m, E::Memory>],
    ) -> Self {
        Self { kernel, overlap, slots }
    }

    /// The kernel, with its sizes.
    pub fn kernel(&self) -> &'l E::Ready {
        self.kernel
    }

    /// Whether it may start before what was launched before it has ended.
    pub fn overlap(&self) -> bool {
        self.overlap
    }

    /// The buffers.
    pub fn slots(&mut self) -> &mut [LaunchBuffer<'m, E::Memory>] {
        self.slots
    }
}

/// What a device's compiler made of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Registers of a thread.
    pub of_thread: u32,
    /// Bytes of local memory of a thread: 0 unless registers were spilled.
    pub spilled_bytes: u32,
}

/// Runs the kernels of a source on one device, in the order in which they are launched.
///
/// All of it is safe to call: what is not checked is promised by whoever makes a [`Launch`], and by
/// whoever hands a source to a device that runs texts as they are ([`Trusted`](super::Trusted)).
pub trait Executor: Send + Sync {
    /// Memory of the device.
    type Memory: Send + Sync;
    /// A loaded kernel.
    type Kernel: Send + Sync + Clone;
    /// A kernel with its sizes for a problem: all of a launch but its buffers, checked and computed.
    type Ready: Send + Sync;
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

    /// Whether [`Self::kernel`] has the kernel of a key already.
    fn is_loaded(&self, key: &KernelKey) -> bool;

    /// How a kernel is launched.
    fn rule<'k>(&self, kernel: &'k Self::Kernel) -> &'k LaunchRule;

    /// A kernel with its sizes for a problem.
    ///
    /// # Errors
    /// A rule that gives no sizes for the problem, or sizes beyond the device's.
    fn ready(
        &self,
        kernel: &Self::Kernel,
        problem: &ProblemSize,
    ) -> Result<Self::Ready, Self::Error>;

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

    /// What the device's compiler says of a kernel's registers; `None` where it says nothing.
    fn registers(&self, _kernel: &Self::Kernel) -> Option<Registers> {
        None
    }

    /// Waits until everything that was queued is done, so that work elsewhere may use the memory.
    ///
    /// # Errors
    /// What the device says.
    fn wait(&self) -> Result<(), Self::Error>;

    /// The same device and its kernels with a queue of its own, on which nobody else's work is queued, so that calls can be timed there;
    /// `None` where nothing times calls now.
    ///
    /// # Errors
    /// What the device says.
    fn apart(&self) -> Result<Option<Self>, Self::Error>
    where
        Self: Sized,
    {
        Ok(None)
    }

    /// What times calls on this queue; `None` where nothing does.
    fn clock(&self) -> Option<&dyn Clock<Self::Error>> {
        None
    }

    /// Queues a launch.
    ///
    /// # Errors
    /// Buffers that do not fit the rule, or what the device says.
    fn launch(&self, launch: Launch<'_, '_, Self>) -> Result<(), Self::Error>;
}
