//! Errors of the API as values: it reports them beside its calls, to whoever has opened a scope.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use ::wgpu::{Device, Error, ErrorFilter};

use super::error::WgpuError;

/// Makes calls, and says what the API found wrong with them.
pub(super) fn checked<T>(
    device: &Device,
    doing: impl Fn() -> String,
    calls: impl FnOnce() -> T,
) -> Result<T, WgpuError> {
    let memory = device.push_error_scope(ErrorFilter::OutOfMemory);
    let internal = device.push_error_scope(ErrorFilter::Internal);
    let validation = device.push_error_scope(ErrorFilter::Validation);
    let done = calls();
    // The scope that was opened last ends first.
    let errors = [ready(validation.pop()), ready(internal.pop()), ready(memory.pop())];
    match errors.into_iter().flatten().next() {
        None => Ok(done),
        Some(Error::OutOfMemory { .. }) => Err(WgpuError::OutOfMemory { doing: doing() }),
        Some(error) => Err(WgpuError::Call { doing: doing(), why: error.to_string() }),
    }
}

/// The value of a future that waits for nothing but its own thread, as those of devices on this machine
/// do.
pub(super) fn ready<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}
