//! What times calls on a device, as a trait.

/// Times calls that meet their weights in memory, as a model does: they rotate over copies of the weights that exceed the
/// caches.
pub trait Clock<Error> {
    /// Copies of weights of `bytes` bytes, over which calls rotate.
    fn copies(&self, bytes: u64) -> usize;

    /// Microseconds of a call. `call` queues the one on the copy of a number below `copies`, the same at every time.
    ///
    /// # Errors
    /// The error of `call`, or what the device says.
    fn time(
        &self,
        copies: usize,
        call: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<f64, Error>;
}
