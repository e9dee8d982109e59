//! Random data on a device: the weights of kernels that are timed. Equal bits would draw less power and run at higher clocks.

use std::sync::Arc;

use quantloom_runtime::cuda::{
    Argument, Context, CudaError, DeviceBuffer, ImageCache, LoadedKernel, Stream, load,
};
use quantloom_runtime::source::{
    Access, Count, KernelText, LaunchRule, Parameter, ProblemSize, Scalar,
};

/// Word `at` of the random data of a seed: the 32-bit mixer "lowbias32" over a Weyl sequence.
pub fn random_word(at: u32, seed: u32) -> u32 {
    let mut x = at.wrapping_mul(0x9E37_79B1).wrapping_add(seed);
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB_352D);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846C_A68B);
    x ^ (x >> 16)
}

/// Makes buffers of [`random_word`]s, on the device.
pub struct RandomFill(Arc<LoadedKernel>);

impl RandomFill {
    /// Loads the kernel.
    ///
    /// # Errors
    /// As [`load`].
    pub fn new(context: &Context, cache: &ImageCache) -> Result<Self, CudaError> {
        Ok(Self(load(context, cache, &fill_text())?.0))
    }

    /// A buffer of random words, filled in the order of the stream. 2^32 words or more are refused.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn buffer(
        &self,
        stream: &Stream,
        words: usize,
        seed: u32,
    ) -> Result<DeviceBuffer<u32>, CudaError> {
        let mut buffer = DeviceBuffer::uninitialised(stream.context(), words)?;
        if buffer.is_empty() {
            return Ok(buffer);
        }
        let multiprocessors = u64::from(stream.context().info().multiprocessors);
        let problem = ProblemSize::new(1, words as u64, 1, multiprocessors);
        let arguments = [Argument::Write(buffer.write_to()), Argument::U32(seed)];
        // SAFETY: the text writes n words from y on, as its rule says; no other stream uses new memory.
        unsafe { self.0.launch(stream, &problem, false, &arguments) }?;
        Ok(buffer)
    }
}

/// The fill as a text with its rule.
pub(super) fn fill_text() -> KernelText<'static> {
    let blocks = Count::N.ceil_div(256).min(Count::Multiprocessors * 8);
    let parameters = vec![
        Parameter::buffer("y", Access::Write, Count::N * 4),
        Parameter::size("n", Count::N),
        Parameter::scalar("seed", Scalar::U32),
    ];
    KernelText {
        entry: "fill_random".into(),
        text: include_str!("ptx/fill_random.ptx").into(),
        rule: std::borrow::Cow::Owned(LaunchRule::plain(blocks, 256, parameters)),
    }
}
