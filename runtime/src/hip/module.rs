//! Kernels on a device: a loaded code object, its entry point, and launching it.

use std::convert::Infallible;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::Arc;

use super::buffer::Memory;
use super::device::{Current, Device};
use super::error::HipError;
use super::library::Handle;
use super::stream::{Stream, Use};
use crate::gpu::arguments::{self, LaunchFault, Limits, Prepared, Sizes};
use crate::source::{Access, LaunchRule, Problem};

/// An argument, of the kind that the kernel's rule says at its place. There are no tensor maps.
pub type Argument<'a> = arguments::Argument<'a, Infallible>;

/// Threads of a grid along one axis: the hardware counts them in 32 bits.
const GRID_THREADS: u64 = u32::MAX as u64;

/// A loaded code object.
struct Module {
    device: Device,
    handle: Handle,
}

impl Drop for Module {
    fn drop(&mut self) {
        let Ok(current) = self.device.enter() else { return };
        // Launches may be queued still, and the runtime does not say that unloading waits for them.
        let waited = current.call(
            || "waiting for a device".to_owned(),
            // SAFETY: the device is the thread's current one.
            |runtime| unsafe { (runtime.hipDeviceSynchronize)() },
        );
        match waited {
            Ok(()) => {
                // SAFETY: loaded by `Kernel::load`, used by nobody after this, and no launch is queued.
                current.release("unloading a kernel", |runtime| unsafe {
                    (runtime.hipModuleUnload)(self.handle)
                });
            }
            Err(error) => tracing::warn!(%error, "a kernel is not unloaded"),
        }
    }
}

/// What the runtime says of a compiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// Registers of a thread.
    pub registers: u32,
    /// Local memory of a thread in bytes: 0 unless registers were spilled.
    pub local_bytes: u32,
    /// Static shared memory of a block in bytes.
    pub static_shared_bytes: u32,
    /// Most threads of a block.
    pub threads: u32,
}

/// Numbers of `hipFunction_attribute`.
mod attribute {
    pub(super) const THREADS: i32 = 0;
    pub(super) const SHARED_BYTES: i32 = 1;
    pub(super) const LOCAL_BYTES: i32 = 3;
    pub(super) const REGISTERS: i32 = 4;
}

/// A kernel that can be launched.
pub struct Kernel {
    module: Module,
    function: Handle,
    entry: String,
    facts: KernelFacts,
    rule: LaunchRule,
}

// SAFETY: modules and functions may be used from any thread; the runtime locks where it must.
unsafe impl Send for Kernel {}
// SAFETY: as for `Send`.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Loads a code object and finds its entry point.
    ///
    /// Spilled registers are said in the log: a kernel of ours has none.
    pub(super) fn load(
        device: &Device,
        image: &[u8],
        entry: &str,
        rule: LaunchRule,
    ) -> Result<Arc<Self>, HipError> {
        let name = CString::new(entry).map_err(|_| HipError::Text { entry: entry.to_owned() })?;
        let current = device.enter()?;
        let mut handle = null_mut();
        current.call(
            || format!("loading {entry}"),
            // SAFETY: `handle` may be written; the image is whole: it comes from hiprtc, or from the
            // cache, which compares a digest.
            |runtime| unsafe { (runtime.hipModuleLoadData)(&mut handle, image.as_ptr().cast()) },
        )?;
        let module = Module { device: device.clone(), handle };
        let mut function = null_mut();
        current.call(
            || format!("finding {entry} in its code object"),
            // SAFETY: `function` may be written, the name ends in 0.
            |runtime| unsafe {
                (runtime.hipModuleGetFunction)(&mut function, handle, name.as_ptr())
            },
        )?;
        let facts = facts(&current, function, entry)?;
        drop(current);
        if facts.local_bytes > 0 {
            let bytes = facts.local_bytes;
            tracing::warn!(entry, bytes, "the compiler put registers in local memory");
        }
        Ok(Arc::new(Self { module, function, entry: entry.to_owned(), facts, rule }))
    }

    /// The entry point's name.
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// What the runtime says of it.
    pub fn facts(&self) -> KernelFacts {
        self.facts
    }

    /// How it is launched.
    pub fn rule(&self) -> &LaunchRule {
        &self.rule
    }

    /// The device that it was loaded on.
    pub fn device(&self) -> &Device {
        &self.module.device
    }

    /// Queues the kernel on a stream for a problem.
    ///
    /// Buffers and the kernel need not outlive the launch: freeing and unloading wait.
    ///
    /// # Safety
    /// - The kernel's text does what its rule says: it takes these parameters and touches no more than
    ///   the rule's bytes of each buffer, for any sizes that the rule gives numbers for, whatever numbers
    ///   the buffers hold; where what it touches depends on those (as with the order of columns), they
    ///   are such that it keeps to that.
    /// - No other stream uses the buffers meanwhile, where it or this kernel writes: there are no events
    ///   here, so one of them is waited for ([`Stream::synchronize`]). Safe calls that come later wait by
    ///   themselves.
    ///
    /// # Errors
    /// Arguments that do not fit the rule, sizes beyond the hardware, or what the runtime answered.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        problem: &Problem,
        arguments: &[Argument<'_>],
    ) -> Result<(), HipError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_sized(stream, &self.sizes(problem)?, arguments) }
    }

    /// The sizes of a launch for a problem.
    pub(super) fn sizes(&self, problem: &Problem) -> Result<Sizes, HipError> {
        let refused = |fault| HipError::Launch { entry: self.entry.clone(), fault };
        let shared_bytes =
            self.device().info().shared_bytes.saturating_sub(self.facts.static_shared_bytes);
        let limits = Limits { threads: self.facts.threads, shared_bytes };
        let sizes = Sizes::new(&self.rule, problem, limits).map_err(refused)?;
        let found = u64::from(sizes.grid[0]) * u64::from(sizes.threads);
        if found > GRID_THREADS {
            let what = "the number of threads along x".to_owned();
            return Err(refused(LaunchFault::Limit { what, found, limit: GRID_THREADS }));
        }
        if sizes.cluster != [1, 1, 1] {
            let [cluster, ..] = sizes.cluster;
            return Err(refused(LaunchFault::Cluster { axis: 'x', blocks: 1, cluster }));
        }
        Ok(sizes)
    }

    /// As [`Self::launch`], with the sizes of this kernel for a problem.
    ///
    /// # Safety
    /// As [`Self::launch`].
    ///
    /// # Errors
    /// As [`Self::launch`].
    unsafe fn launch_sized(
        &self,
        stream: &Stream,
        sizes: &Sizes,
        arguments: &[Argument<'_>],
    ) -> Result<(), HipError> {
        self.of_one_device(stream, arguments)?;
        let refused = |fault| HipError::Launch { entry: self.entry.clone(), fault };
        let mut prepared = Prepared::of(sizes, &self.rule, arguments).map_err(refused)?;
        let ([x, y, z], threads) = (prepared.grid, prepared.threads);
        let shared = prepared.shared_bytes;
        let mut pointers = prepared.pointers(|none| match *none {});
        stream.queue(
            uses(arguments),
            || format!("launching {}", self.entry),
            // SAFETY: one pointer a parameter of the rule, which the caller says is the text's; each
            // points to a value at least as wide as the parameter. The runtime copies the values
            // before it returns.
            |runtime, stream| unsafe {
                let (function, none) = (self.function, null_mut());
                let values = pointers.as_mut_ptr();
                (runtime.hipModuleLaunchKernel)(
                    function, x, y, z, threads, 1, 1, shared, stream, values, none,
                )
            },
        )
    }

    /// As [`Self::launch`], after what other streams do with the buffers.
    ///
    /// # Safety
    /// As [`Self::launch`], but for the order of streams.
    ///
    /// # Errors
    /// As [`Self::launch`].
    pub(super) unsafe fn launch_in_order(
        &self,
        stream: &Stream,
        sizes: &Sizes,
        arguments: &[Argument<'_>],
    ) -> Result<(), HipError> {
        self.of_one_device(stream, arguments)?;
        stream.order(uses(arguments))?;
        // SAFETY: the caller's promise, and the order has just been made.
        unsafe { self.launch_sized(stream, sizes, arguments) }
    }

    /// Whether stream and buffers are of the kernel's device.
    fn of_one_device(&self, stream: &Stream, arguments: &[Argument<'_>]) -> Result<(), HipError> {
        let device = self.device();
        // Memory of another backend has an owner of another type.
        let here = |argument: &Argument<'_>| match owner(argument) {
            None => true,
            Some(owner) => owner.is_some_and(|(memory, _)| memory.device().is(device)),
        };
        if device.is(stream.device()) && arguments.iter().all(here) {
            return Ok(());
        }
        Err(HipError::Mixed("launching a kernel"))
    }
}

/// The buffer of an argument, if it is memory that a backend allocated; inside, if it is this one.
fn owner<'a>(argument: &'a Argument<'_>) -> Option<Option<Use<'a>>> {
    let (owner, access) = match argument {
        Argument::Read(slice) => (slice.owner(), Access::Read),
        Argument::Write(slice) => (slice.owner(), Access::ReadWrite),
        _ => return None,
    };
    let memory = owner?.downcast_ref::<Memory>();
    Some(memory.map(|memory| (memory, access)))
}

/// The buffers of a launch.
fn uses<'a>(arguments: &'a [Argument<'_>]) -> impl Iterator<Item = Use<'a>> {
    arguments.iter().filter_map(|argument| owner(argument)?)
}

fn facts(current: &Current<'_>, function: Handle, entry: &str) -> Result<KernelFacts, HipError> {
    let attribute = |attribute: i32| {
        let mut value = 0;
        current.call(
            || format!("asking what {entry} takes"),
            // SAFETY: `value` may be written, the function's module is loaded.
            |runtime| unsafe { (runtime.hipFuncGetAttribute)(&mut value, attribute, function) },
        )?;
        Ok::<_, HipError>(value.unsigned_abs())
    };
    Ok(KernelFacts {
        registers: attribute(attribute::REGISTERS)?,
        local_bytes: attribute(attribute::LOCAL_BYTES)?,
        static_shared_bytes: attribute(attribute::SHARED_BYTES)?,
        threads: attribute(attribute::THREADS)?,
    })
}
