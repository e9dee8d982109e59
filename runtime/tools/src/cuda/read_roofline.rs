//! How fast this device reads a weight once: the roofline of every product of few tokens.
//!
//! In: a number of bytes. Out: the [`Timings`] of a kernel that only reads them, taken as a
//! product's are ([`quantloom_runtime::cuda::timing`]), with the launch attributes that a product has.

use std::borrow::Cow;
use std::sync::Arc;

use quantloom_runtime::cuda::timing::{Lead, Timing, Timings, copies, time_both};
use quantloom_runtime::cuda::{
    Argument, CudaError, DeviceBuffer, ImageCache, LoadedKernel, Stream, load,
};
use quantloom_runtime::source::{Access, Count, KernelText, LaunchRule, Parameter, ProblemSize};

use super::random::RandomFill;

/// Threads of a block, and blocks a multiprocessor, of which the faster counts: 64 KiB in flight a
/// multiprocessor or twice that.
const SHAPES: [(u32, u64); 3] = [(512, 2), (512, 4), (256, 4)];

/// Kernels that read a weight once and do nothing else.
pub struct ReadRoofline {
    stream: Stream,
    kernels: Vec<[Arc<LoadedKernel>; 2]>,
    fill: RandomFill,
}

impl ReadRoofline {
    /// Loads the kernels; a device without programmatic launch reads the same way twice.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn new(stream: Stream, cache: &ImageCache) -> Result<Self, CudaError> {
        let context = stream.context();
        let programmatic = context.compute() >= (9, 0);
        let loaded = |text: &KernelText<'_>| Ok::<_, CudaError>(load(context, cache, text)?.0);
        let both = |(threads, blocks)| {
            let plain = loaded(&read_once(threads, blocks, false))?;
            let overlapping = if programmatic {
                loaded(&read_once(threads, blocks, true))?
            } else {
                plain.clone()
            };
            Ok::<_, CudaError>([plain, overlapping])
        };
        let kernels = SHAPES.into_iter().map(both).collect::<Result<_, _>>()?;
        let fill = RandomFill::new(context, cache)?;
        Ok(Self { stream, kernels, fill })
    }

    /// The time of reading so many bytes (whole vectors of 16), rotated past the L2.
    ///
    /// # Errors
    /// What the driver answered.
    pub fn time(&self, bytes: u64) -> Result<Timings, CudaError> {
        let info = self.stream.context().info();
        let vectors = bytes / 16;
        let copies = copies(bytes, info.l2_bytes);
        let mut data = Vec::new();
        for seed in 0..copies as u32 {
            let words = usize::try_from(vectors * 4).unwrap_or(usize::MAX);
            data.push(self.fill.buffer(&self.stream, words, seed)?);
        }
        let mut found = DeviceBuffer::<u32>::zeroed(&self.stream, 4)?;
        let multiprocessors = u64::from(info.multiprocessors);
        let problem = ProblemSize::new(1, vectors, 1, multiprocessors);
        let unknown = || Timing { microseconds: f64::INFINITY, replays: Vec::new(), calls: 0 };
        let mut best = Timings { serial: unknown(), overlapped: unknown() };
        for kernels in &self.kernels {
            let timings =
                time_both(&self.stream, (copies, Lead::Burst), |copy, stream, overlap| {
                    let arguments =
                        [Argument::Read(data[copy].read()), Argument::Write(found.write_to())];
                    let kernel = &kernels[usize::from(overlap)];
                    // SAFETY: the text reads `vectors` vectors and may store one word, as its rule says; no
                    // other stream uses the buffers.
                    unsafe { kernel.launch(stream, &problem, overlap, &arguments) }
                })?;
            best = Timings {
                serial: faster(best.serial, timings.serial),
                overlapped: faster(best.overlapped, timings.overlapped),
            };
        }
        Ok(best)
    }
}

fn faster(a: Timing, b: Timing) -> Timing {
    if a.microseconds <= b.microseconds { a } else { b }
}

/// The source: as it is, or with the lines of programmatic dependent launch.
pub(super) fn read_once(threads: u32, blocks: u64, programmatic: bool) -> KernelText<'static> {
    let plain = include_str!("ptx/read_once.ptx");
    let text = if programmatic {
        let newer = plain.replace(".version 7.4\n.target sm_80", ".version 7.8\n.target sm_90");
        Cow::Owned(newer.replace("// programmatic: ", ""))
    } else {
        Cow::Borrowed(plain)
    };
    let parameters = vec![
        Parameter::buffer("data", Access::Read, Count::N * 16),
        Parameter::buffer("found", Access::Write, 4),
        Parameter::size("vectors", Count::N),
    ];
    let rule = LaunchRule::plain(Count::Multiprocessors * blocks, threads, parameters);
    let rule = LaunchRule { overlaps: programmatic, ..rule };
    KernelText { entry: "read_once".into(), text, rule: Cow::Owned(rule) }
}
