//! What CUDA's driver and the HIP runtime do each in their own way, as a trait; what they do alike is
//! [`Functions`].

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Deref;

use super::arguments::Sizes;
use super::context::Context;
use super::error::DriverError;
use super::executor::DriverExecutor;
use super::functions::{Functions, Handle};
use super::tensor_map::{RawTensorMap, TensorShape};
use crate::gpu::Clock;

pub(crate) mod sealed {
    /// Keeps the trait to this crate, whose safe code relies on what the functions do.
    pub trait Sealed {}
}

/// What an error of a driver says where there is no such function: `CUDA_ERROR_NOT_SUPPORTED`,
/// `hipErrorNotSupported`.
const NOT_SUPPORTED: i32 = 801;

/// A loaded and initialised driver: [`cuda::Driver`](crate::cuda::Driver) or
/// [`hip::Libraries`](crate::hip::Libraries).
///
/// Functions that return a number return 0 or the driver's number of an error.
pub trait DriverApi:
    sealed::Sealed + Sized + Deref<Target = Functions> + Send + Sync + 'static
{
    /// Its name: `CUDA`.
    const NAME: &'static str;
    /// What errors call it.
    const SHOWN: &'static str;
    /// The name of the executor of its first device, as on the command line.
    const BACKEND: &'static str;
    /// What a multiprocessor is called.
    const MULTIPROCESSORS: &'static str;
    /// The targets that kernels are made for, the best first, and the same in words.
    const TARGETS: (&'static [&'static str], &'static str);
    /// The numbers of three attributes of a device: multiprocessors, bytes of L2, most bytes of shared
    /// memory of a block.
    const ATTRIBUTES: [c_int; 3];
    /// Shared memory in bytes that a block has without opting in.
    const SHARED_WITHOUT_OPT_IN: u32;
    /// Most threads of a grid along x.
    const GRID_THREADS: u64;
    /// Most blocks of a cluster.
    const CLUSTER_BLOCKS: u32;
    /// Whether a kernel's text is loaded as it is, where the compiler gives no image.
    const LOADS_TEXT: bool;

    /// What is current on a thread: a `CUcontext`, or the number of a HIP device.
    type Raw: Copy + PartialEq + Send + Sync;
    /// None of them.
    const NO_CONTEXT: Self::Raw;

    /// The driver of this machine. The first call loads it, every later one gives the same answer.
    ///
    /// # Errors
    /// [`DriverError::LibraryNotFound`], [`DriverError::MissingFunction`], or the driver's own refusal
    /// to start, as where it sees no device.
    fn get() -> Result<&'static Self, DriverError>;

    /// Its version, as the driver counts.
    fn driver_version(&self) -> u32;

    /// The same in words.
    fn version_in_words(&self) -> String;

    /// The architecture of a device, as kernels' targets are called: `sm_90`, `gfx942`.
    ///
    /// # Errors
    /// What the driver answered.
    fn architecture(&self, device: c_int) -> Result<String, DriverError>;

    /// Whether a text for a target runs on an architecture.
    fn runs(target: &str, architecture: &str) -> bool;

    /// Opens the context of a device.
    ///
    /// # Errors
    /// What the driver answered.
    fn open(&self, device: c_int) -> Result<Self::Raw, DriverError>;

    /// Closes what [`Self::open`] opened.
    ///
    /// # Safety
    /// It was opened, and is used by nobody after this.
    unsafe fn close(&self, device: c_int) -> i32;

    /// Asks for the thread's current context.
    fn current(&self, to: &mut Self::Raw) -> i32;

    /// Makes a context the thread's current one.
    ///
    /// # Safety
    /// The context exists until [`Self::leave`].
    unsafe fn enter(&self, context: Self::Raw) -> i32;

    /// Makes the one current again that was so before [`Self::enter`].
    ///
    /// # Safety
    /// `before` was current on this thread before the last [`Self::enter`] that was not left.
    unsafe fn leave(&self, before: Self::Raw) -> i32;

    /// Compiles a text for the device of a context.
    ///
    /// # Errors
    /// A text for another device, or the compiler's refusal with what it printed.
    fn compile(context: &Context<Self>, entry: &str, text: &str) -> Result<Vec<u8>, DriverError>;

    /// Whether the module loader makes faster code of a text than [`Self::compile`]. It gives no image,
    /// so that nothing is kept but what the driver itself keeps.
    fn loader_compiles_better(_text: &str) -> bool {
        false
    }

    /// What times calls on an executor's stream; `None` where nothing does.
    fn clock(_executor: &DriverExecutor<Self>) -> Option<&dyn Clock<DriverError>> {
        None
    }

    /// Lets blocks of a kernel have so many bytes of dynamic shared memory.
    ///
    /// # Safety
    /// The function's module is loaded.
    unsafe fn opt_in(&self, _function: Handle, _bytes: c_int) -> i32 {
        NOT_SUPPORTED
    }

    /// Queues a kernel. With `overlap` it may start before what is queued before it has ended.
    ///
    /// # Safety
    /// The context of function and stream is the thread's current one. One of `values` points to a
    /// value of each parameter; what the kernel does with them is the caller's to answer for.
    unsafe fn launch(
        &self,
        function: Handle,
        sizes: &Sizes,
        overlap: bool,
        stream: Handle,
        values: *mut *mut c_void,
    ) -> i32;

    /// Queues a copy of rows to rows without gaps.
    ///
    /// # Safety
    /// From `to` on there is memory for `rows` rows of `bytes` bytes; from `from` on there are as many, each
    /// `pitch` bytes after the one before. Both sides stay until the copy is done.
    unsafe fn copy_rows(
        &self,
        to: u64,
        from: u64,
        pitch: usize,
        bytes: usize,
        rows: usize,
        stream: Handle,
    ) -> i32;

    /// Encodes the tensor map of a tensor at an address; the shape has been checked.
    fn encode(&self, _map: &mut RawTensorMap, _address: u64, _shape: &TensorShape) -> i32 {
        NOT_SUPPORTED
    }

    /// Starts it. Its version, as it counts.
    ///
    /// # Errors
    /// What the driver answered.
    fn start(&self) -> Result<u32, DriverError> {
        // SAFETY: 0 is the only value that the flags may have.
        let result = unsafe { (self.init)(0) };
        self.check(result, || format!("starting {}", Self::SHOWN))?;
        let mut version = 0;
        // SAFETY: `version` may be written.
        let result = unsafe { (self.version)(&mut version) };
        self.check(result, || format!("asking {} for its version", Self::SHOWN))?;
        Ok(version.unsigned_abs())
    }

    /// An error with the driver's own words unless the result is 0.
    ///
    /// # Errors
    /// [`DriverError::Driver`].
    fn check(&self, result: i32, doing: impl FnOnce() -> String) -> Result<(), DriverError> {
        if result == 0 {
            return Ok(());
        }
        let (name, text) = (words(self.error_name, result), words(self.error_string, result));
        Err(DriverError::of(doing(), result, name, text))
    }

    /// For a destructor: the result goes to the log, since nobody is left to take it.
    fn note(&self, result: i32, doing: &'static str) {
        if let Err(error) = self.check(result, || doing.to_owned()) {
            tracing::warn!(%error, "an object of {} was not released", Self::NAME);
        }
    }
}

fn words(ask: unsafe extern "C" fn(i32, *mut *const c_char) -> i32, code: i32) -> Option<String> {
    let mut words = std::ptr::null();
    // SAFETY: `words` may be written; an unknown code gives an error or a null pointer.
    let result = unsafe { ask(code, &mut words) };
    if result != 0 || words.is_null() {
        return None;
    }
    // SAFETY: the driver gives a string that ends in 0 and is never freed.
    Some(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}
