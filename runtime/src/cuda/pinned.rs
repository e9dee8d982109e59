//! Page-locked memory of the host.

use super::{Context, CudaError, Element};

/// `len` elements of page-locked host memory: copies from and to it run beside the host.
pub struct Pinned<T> {
    context: Context,
    values: *mut T,
    len: usize,
}

// SAFETY: it owns its memory, and the elements are plain numbers.
unsafe impl<T: Element> Send for Pinned<T> {}
// SAFETY: as for `Send`; writing needs `&mut`.
unsafe impl<T: Element> Sync for Pinned<T> {}

impl<T: Element> Pinned<T> {
    /// Memory full of 0.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn zeroed(context: &Context, len: usize) -> Result<Self, CudaError> {
        let bytes = size_of::<T>().saturating_mul(len).max(1);
        let mut values = std::ptr::null_mut();
        context.enter()?.call(
            || format!("allocating {bytes} bytes of page-locked memory"),
            // SAFETY: `values` may be written.
            |driver| unsafe { (driver.own.cuMemAllocHost_v2)(&mut values, bytes) },
        )?;
        // SAFETY: the driver has just given `bytes` bytes.
        unsafe { values.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { context: context.clone(), values: values.cast(), len })
    }
}

impl<T> std::ops::Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were allocated, page-aligned, and set to 0.
        unsafe { std::slice::from_raw_parts(self.values, self.len) }
    }
}

impl<T> std::ops::DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.values, self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: allocated by `zeroed` and used by nobody after this.
            current.release("freeing page-locked memory", |driver| unsafe {
                (driver.own.cuMemFreeHost)(self.values.cast())
            });
        }
    }
}
