//! Kernels on a device: a loaded image, its entry point and what the driver says of it.

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};

use super::device::{Context, Current};
use super::error::CudaError;
use crate::source::LaunchRule;

/// A loaded image: a kernel has it, and each graph that was captured with it.
pub(super) struct Module {
    context: Context,
    handle: sys::CUmodule,
}

// SAFETY: modules may be used from any thread; the driver locks where it must.
unsafe impl Send for Module {}
// SAFETY: as for `Send`.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        let Ok(current) = self.context.enter() else { return };
        // Launches may be queued still, and the driver does not say that unloading waits for them.
        let waited = current.call(
            || "waiting for a device".to_owned(),
            // SAFETY: the context is the thread's current one.
            |driver| unsafe { (driver.cuCtxSynchronize)() },
        );
        match waited {
            Ok(()) => {
                // SAFETY: loaded by `Kernel::load`, named by no kernel and no graph any more, and no
                // launch of it is queued.
                current.release("unloading a kernel", |driver| unsafe {
                    (driver.cuModuleUnload)(self.handle)
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
pub struct Kernel {
    module: Arc<Module>,
    function: sys::CUfunction,
    entry: String,
    facts: KernelFacts,
    rule: LaunchRule,
    /// Whether it may use all of the device's shared memory, or 48 KiB.
    opted_in: AtomicBool,
}

// SAFETY: modules and functions may be used from any thread; the driver locks where it must.
unsafe impl Send for Kernel {}
// SAFETY: as for `Send`.
unsafe impl Sync for Kernel {}

/// Shared memory that a block has without opting in (CUDA programming guide, "Shared memory").
const SHARED_WITHOUT_OPT_IN: u32 = 48 << 10;

impl Kernel {
    /// Loads an image, or a PTX text that ends in a zero byte, and finds its entry point.
    ///
    /// Spilled registers are said in the log: a kernel of ours has none, so that the driver's
    /// compiler has met a text that it cannot do well.
    pub(super) fn load(
        context: &Context,
        image: &[u8],
        entry: &str,
        rule: LaunchRule,
    ) -> Result<Arc<Self>, CudaError> {
        let name = CString::new(entry).map_err(|_| CudaError::Text {
            entry: entry.to_owned(),
            what: "its name holds a zero byte",
        })?;
        let current = context.enter()?;
        let mut handle = null_mut();
        current.call(
            || format!("loading {entry}"),
            // SAFETY: `handle` may be written; the image is whole: it comes from the driver's
            // linker, or from the cache, which compares a digest, or is a text that ends in 0.
            |driver| unsafe { (driver.cuModuleLoadData)(&mut handle, image.as_ptr().cast()) },
        )?;
        let module = Arc::new(Module { context: context.clone(), handle });
        let mut function = null_mut();
        current.call(
            || format!("finding {entry} in its image"),
            // SAFETY: `function` may be written, the name ends in 0.
            |driver| unsafe { (driver.cuModuleGetFunction)(&mut function, handle, name.as_ptr()) },
        )?;
        let facts = facts(&current, function, entry)?;
        drop(current);
        if facts.local_bytes > 0 {
            let bytes = facts.local_bytes;
            tracing::warn!(entry, bytes, "the driver's compiler put registers in local memory");
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
    pub fn context(&self) -> &Context {
        &self.module.context
    }

    pub(super) fn module(&self) -> &Arc<Module> {
        &self.module
    }

    pub(super) fn function(&self) -> sys::CUfunction {
        self.function
    }

    /// The most dynamic shared memory that a block of it can have, in bytes.
    pub fn most_shared_bytes(&self) -> u32 {
        self.context().info().shared_bytes.saturating_sub(self.facts.static_shared_bytes)
    }

    /// Opts in to more than 48 KiB of shared memory where a launch needs it: to all there is, so
    /// that two threads that need different amounts cannot undo each other's.
    pub(super) fn allow_shared(&self, current: &Current<'_>, bytes: u32) -> Result<(), CudaError> {
        let whole = bytes.saturating_add(self.facts.static_shared_bytes);
        if whole <= SHARED_WITHOUT_OPT_IN || self.opted_in.load(Ordering::Acquire) {
            return Ok(());
        }
        let value = i32::try_from(self.most_shared_bytes()).unwrap_or(i32::MAX);
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        current.call(
            || format!("giving {} {value} bytes of shared memory", self.entry),
            // SAFETY: the function lives as long as its module, which `self` owns.
            |driver| unsafe { (driver.cuFuncSetAttribute)(self.function, attribute, value) },
        )?;
        self.opted_in.store(true, Ordering::Release);
        Ok(())
    }
}

fn facts(
    current: &Current<'_>,
    function: sys::CUfunction,
    entry: &str,
) -> Result<KernelFacts, CudaError> {
    let attribute = |attribute: Attribute| {
        let mut value = 0;
        current.call(
            || format!("asking what {entry} takes"),
            // SAFETY: `value` may be written, the function's module is loaded.
            |driver| unsafe { (driver.cuFuncGetAttribute)(&mut value, attribute, function) },
        )?;
        Ok::<_, CudaError>(value.unsigned_abs())
    };
    Ok(KernelFacts {
        registers: attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
        local_bytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        static_shared_bytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        threads: attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
    })
}
