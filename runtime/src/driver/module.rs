//! Kernels on a device: a loaded image, its entry point and what the driver says of it.

use std::ffi::{CString, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::api::DriverApi;
use super::context::{Context, Current};
use super::error::DriverError;
use super::functions::Handle;
use crate::source::LaunchRule;

/// A loaded image: a kernel has it, and each graph that was captured with it.
pub(crate) struct Module<D: DriverApi> {
    context: Context<D>,
    handle: Handle,
}

impl<D: DriverApi> Drop for Module<D> {
    fn drop(&mut self) {
        let Ok(current) = self.context.enter() else { return };
        // Launches may be queued still, and the driver does not say that unloading waits for them.
        let waited = current.call(
            || "waiting for a device".to_owned(),
            // SAFETY: the context is the thread's current one.
            |driver| unsafe { (driver.synchronize)() },
        );
        match waited {
            Ok(()) => {
                // SAFETY: loaded by `LoadedKernel::load`, named by no kernel and no graph any more, and no
                // launch of it is queued.
                current.release("unloading a kernel", |driver| unsafe {
                    (driver.module_unload)(self.handle)
                });
            }
            // As on a thread that captures: the code stays where it is.
            Err(error) => tracing::warn!(%error, "a kernel is not unloaded"),
        }
    }
}

/// What the driver says of a compiled kernel.
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

/// A kernel that can be launched.
pub struct LoadedKernel<D: DriverApi> {
    module: Arc<Module<D>>,
    function: Handle,
    entry: String,
    facts: KernelFacts,
    rule: LaunchRule,
    /// Whether it may use all of the device's shared memory.
    opted_in: AtomicBool,
}

impl<D: DriverApi> LoadedKernel<D> {
    /// Loads an image, or a text that ends in a zero byte, and finds its entry point.
    ///
    /// Spilled registers are said in the log: a kernel of ours has none, so that the compiler has met a
    /// text that it cannot do well.
    pub(crate) fn load(
        context: &Context<D>,
        image: &[u8],
        entry: &str,
        rule: LaunchRule,
    ) -> Result<Arc<Self>, DriverError> {
        let name = CString::new(entry).map_err(|_| DriverError::Text {
            entry: entry.to_owned(),
            what: "its name holds a zero byte",
        })?;
        let current = context.enter()?;
        let mut handle = Handle::NULL;
        current.call(
            || format!("loading {entry}"),
            // SAFETY: `handle` may be written; the image is whole: it comes from the driver's
            // compiler, or from the cache, which compares a digest, or is a text that ends in 0.
            |driver| unsafe { (driver.module_load)(&mut handle, image.as_ptr().cast()) },
        )?;
        let module = Arc::new(Module { context: context.clone(), handle });
        let mut function = Handle::NULL;
        current.call(
            || format!("finding {entry} in its image"),
            // SAFETY: `function` may be written, the name ends in 0.
            |driver| unsafe { (driver.module_function)(&mut function, handle, name.as_ptr()) },
        )?;
        let facts = facts(&current, function, entry)?;
        drop(current);
        if facts.local_bytes > 0 {
            let bytes = facts.local_bytes;
            tracing::warn!(entry, bytes, "the compiler put registers in local memory");
        }
        let opted_in = AtomicBool::new(false);
        Ok(Arc::new(Self { module, function, entry: entry.to_owned(), facts, rule, opted_in }))
    }

    /// The entry point's name.
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// What the driver says of it.
    pub fn facts(&self) -> KernelFacts {
        self.facts
    }

    /// How it is launched.
    pub fn rule(&self) -> &LaunchRule {
        &self.rule
    }

    /// The context that it was loaded in.
    pub fn context(&self) -> &Context<D> {
        &self.module.context
    }

    pub(crate) fn module(&self) -> &Arc<Module<D>> {
        &self.module
    }

    pub(crate) fn function(&self) -> Handle {
        self.function
    }

    /// The most dynamic shared memory that a block of it can have, in bytes.
    pub fn most_shared_bytes(&self) -> u32 {
        self.context().info().shared_bytes.saturating_sub(self.facts.static_shared_bytes)
    }

    /// Opts in to more shared memory than any kernel has where a launch needs it: to all there is, so
    /// that two threads that need different amounts cannot undo each other's.
    pub(crate) fn allow_shared(&self, bytes: u32) -> Result<(), DriverError> {
        let whole = bytes.saturating_add(self.facts.static_shared_bytes);
        if whole <= D::SHARED_WITHOUT_OPT_IN || self.opted_in.load(Ordering::Acquire) {
            return Ok(());
        }
        let value = i32::try_from(self.most_shared_bytes()).unwrap_or(i32::MAX);
        self.context().enter()?.call(
            || format!("giving {} {value} bytes of shared memory", self.entry),
            // SAFETY: the function lives as long as its module, which `self` owns.
            |driver| unsafe { driver.opt_in(self.function, value) },
        )?;
        self.opted_in.store(true, Ordering::Release);
        Ok(())
    }
}

/// Numbers of attributes of a function, the same in both drivers.
mod attribute {
    use super::c_int;

    pub(super) const THREADS: c_int = 0;
    pub(super) const SHARED_BYTES: c_int = 1;
    pub(super) const LOCAL_BYTES: c_int = 3;
    pub(super) const REGISTERS: c_int = 4;
}

fn facts<D: DriverApi>(
    current: &Current<'_, D>,
    function: Handle,
    entry: &str,
) -> Result<KernelFacts, DriverError> {
    let attribute = |attribute: c_int| {
        let mut value = 0;
        current.call(
            || format!("asking what {entry} takes"),
            // SAFETY: `value` may be written, the function's module is loaded.
            |driver| unsafe { (driver.function_attribute)(&mut value, attribute, function) },
        )?;
        Ok::<_, DriverError>(value.unsigned_abs())
    };
    Ok(KernelFacts {
        registers: attribute(attribute::REGISTERS)?,
        local_bytes: attribute(attribute::LOCAL_BYTES)?,
        static_shared_bytes: attribute(attribute::SHARED_BYTES)?,
        threads: attribute(attribute::THREADS)?,
    })
}
