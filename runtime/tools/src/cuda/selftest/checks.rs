//! What is expected of each kernel of the self-test.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use quantloom_runtime::cuda::{
    Argument, Context, CudaError, DeviceBuffer, Event, Graph, ImageCache, LoadedKernel, Origin,
    Pinned, Stream, TensorMap, TensorShape, load, runs, text_target,
};
use quantloom_runtime::source::{KernelText, LaunchRule, ParameterKind, ProblemSize};

use super::{Failure, Machine, Row, texts};
use crate::cuda::random::{RandomFill, random_word};
use quantloom_runtime::cuda::timing::{Lead, time_both};

/// Every check, the simplest first, so that the first failure is the nearest to its cause.
pub(super) const CHECKS: &[Row] = &[
    Row { name: "vector add", since: (8, 0), run: vector_add },
    Row { name: "caller's stream", since: (8, 0), run: callers_stream },
    Row { name: "async copies", since: (8, 0), run: async_copies },
    Row { name: "shared memory", since: (8, 0), run: shared_memory },
    Row { name: "graph replay", since: (8, 0), run: graph_replay },
    Row { name: "random data", since: (8, 0), run: random_data },
    Row { name: "cluster", since: (9, 0), run: cluster },
    Row { name: "overlap", since: (9, 0), run: overlap },
    Row { name: "tensor map", since: (9, 0), run: tensor_map },
    Row { name: "image cache", since: (8, 0), run: image_cache },
    Row { name: "refusals", since: (8, 0), run: refusals },
    Row { name: "empty launch", since: (9, 0), run: empty_launch },
];

impl Machine {
    /// Loads without a cache. A kernel of ours spills nothing.
    fn kernel(&self, text: &KernelText<'_>) -> Result<Arc<LoadedKernel>, Failure> {
        let (kernel, _) = load(&self.context, &ImageCache::off(), text)?;
        match kernel.facts().local_bytes {
            0 => Ok(kernel),
            bytes => Err(Failure::Wrong(format!("{} has {bytes} local bytes", kernel.entry()))),
        }
    }

    fn problem(&self, n: usize) -> ProblemSize {
        let multiprocessors = u64::from(self.context.info().multiprocessors);
        ProblemSize::new(1, n as u64, 1, multiprocessors)
    }
}

/// The first place where two lists differ.
fn same<T: PartialEq + Debug>(found: &[T], expected: &[T]) -> Result<(), Failure> {
    if found.len() != expected.len() {
        let (found, expected) = (found.len(), expected.len());
        return Err(Failure::Wrong(format!("{found} elements, {expected} expected")));
    }
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => {
            let (found, expected) = (&found[at], &expected[at]);
            Err(Failure::Wrong(format!("element {at} is {found:?}, {expected:?} expected")))
        }
    }
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

fn add(
    kernel: &LoadedKernel,
    stream: &Stream,
    problem: &ProblemSize,
    a: &DeviceBuffer<u32>,
    b: &DeviceBuffer<u32>,
    c: &mut DeviceBuffer<u32>,
) -> Result<(), CudaError> {
    let arguments =
        [Argument::Read(a.read()), Argument::Read(b.read()), Argument::Write(c.write_to())];
    // SAFETY: the text reads n words of a and b and writes n of c, as its rule says; the checks
    // wait for the stream before they drop buffers or graphs.
    unsafe { kernel.launch(stream, problem, false, &arguments) }
}

fn sums(machine: &Machine, kernel: &LoadedKernel, stream: &Stream) -> Result<usize, Failure> {
    // No multiple of a block, so that the last one has threads without work.
    let n = 100_003;
    let a: Vec<u32> = (0..n as u32).map(|i| random_word(i, 1)).collect();
    let b: Vec<u32> = (0..n as u32).map(|i| random_word(i, 2)).collect();
    let expected: Vec<u32> = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect();
    let (a, b) = (DeviceBuffer::from_host(stream, &a)?, DeviceBuffer::from_host(stream, &b)?);
    let mut c = DeviceBuffer::zeroed(stream, n)?;
    add(kernel, stream, &machine.problem(n), &a, &b, &mut c)?;
    same(&c.to_host(stream)?, &expected)?;
    Ok(n)
}

fn vector_add(machine: &Machine) -> Result<String, Failure> {
    let start = Instant::now();
    let kernel = machine.kernel(&texts::vector_add())?;
    let loaded = milliseconds(start);
    let n = sums(machine, &kernel, &machine.stream)?;
    let registers = kernel.facts().registers;
    Ok(format!("{n} sums, {registers} registers, compiled and loaded in {loaded:.1} ms"))
}

fn callers_stream(machine: &Machine) -> Result<String, Failure> {
    let kernel = machine.kernel(&texts::vector_add())?;
    // SAFETY: the context lives as long as the machine; null is the legacy default stream, which is
    // always there.
    let stream = unsafe {
        let context = Context::from_raw(machine.context.as_raw())?;
        Stream::from_raw(&context, std::ptr::null_mut())
    };
    let n = sums(machine, &kernel, &stream)?;
    Ok(format!("{n} sums on the legacy default stream"))
}

fn async_copies(machine: &Machine) -> Result<String, Failure> {
    let (context, stream) = (&machine.context, &machine.stream);
    let n = 1 << 20;
    let mut there = Pinned::<u32>::zeroed(context, n)?;
    for (i, word) in there.iter_mut().enumerate() {
        *word = random_word(i as u32, 3);
    }
    let mut back = Pinned::<u32>::zeroed(context, n)?;
    let (mut first, mut second) =
        (DeviceBuffer::uninitialised(context, n)?, DeviceBuffer::uninitialised(context, n)?);
    // SAFETY: both pinned buffers stay untouched until `read` has passed, below.
    unsafe { first.queue_write(stream, &there) }?;
    second.copy_from(stream, &first)?;
    let (written, read, other) =
        (Event::new(context)?, Event::new(context)?, Stream::new(context)?);
    written.record(stream)?;
    other.wait(&written)?;
    // SAFETY: as above.
    unsafe { second.queue_read(&other, &mut back) }?;
    read.record(&other)?;
    read.synchronize()?;
    same(&back, &there)?;
    Ok(format!("{} MiB there, across and back on another stream", (n * 4) >> 20))
}

fn shared_memory(machine: &Machine) -> Result<String, Failure> {
    let kernel = machine.kernel(&texts::shared_mirror())?;
    let words = (100 << 10) / 4;
    let values: Vec<u32> = (0..words as u32).map(|i| random_word(i, 4)).collect();
    let x = DeviceBuffer::from_host(&machine.stream, &values)?;
    let mut y = DeviceBuffer::zeroed(&machine.stream, words)?;
    let arguments = [Argument::Read(x.read()), Argument::Write(y.write_to())];
    // SAFETY: the text reads and writes as many words as its rule says; `to_host` waits.
    unsafe { kernel.launch(&machine.stream, &machine.problem(words), false, &arguments) }?;
    let expected: Vec<u32> = values.iter().rev().copied().collect();
    same(&y.to_host(&machine.stream)?, &expected)?;
    Ok(format!("{} KiB of dynamic shared memory in a block", (words * 4) >> 10))
}

fn graph_replay(machine: &Machine) -> Result<String, Failure> {
    let (context, stream) = (&machine.context, &machine.stream);
    let kernel = machine.kernel(&texts::vector_add())?;
    let n = 1000;
    let step: Vec<u32> = (0..n as u32).map(|i| random_word(i, 5)).collect();
    let step_there = DeviceBuffer::from_host(stream, &step)?;
    let (mut a, mut b) = (DeviceBuffer::zeroed(stream, n)?, DeviceBuffer::zeroed(stream, n)?);
    stream.synchronize()?;
    let problem = machine.problem(n);
    let mut captured = stream.is_captured()?;
    let mut graph = Graph::capture(stream, |stream| {
        captured = !captured && stream.is_captured()?;
        add(&kernel, stream, &problem, &a, &step_there, &mut b)?;
        add(&kernel, stream, &problem, &b, &step_there, &mut a)
    })?;
    if !captured {
        return Err(Failure::Wrong("a captured stream is not said to be one".to_owned()));
    }
    same(&a.to_host(stream)?, &vec![0; n])?;
    let replays = 5;
    for _ in 0..replays {
        graph.launch(stream)?;
    }
    let expected: Vec<u32> = step.iter().map(|step| step.wrapping_mul(2 * replays)).collect();
    same(&a.to_host(stream)?, &expected)?;
    // A capture that fails leaves the stream as it was.
    let other = Stream::new(context)?;
    let fault = CudaError::Mixed("a capture that is meant to fail");
    match Graph::capture(&other, |_| Err(fault)) {
        Err(CudaError::Mixed(_)) => other.synchronize()?,
        Err(error) => return Err(error.into()),
        Ok(_) => return Err(Failure::Wrong("a failing capture gave a graph".to_owned())),
    }
    Ok(format!("{replays} replays of 2 kernels"))
}

fn random_data(machine: &Machine) -> Result<String, Failure> {
    let fill = RandomFill::new(&machine.context, &ImageCache::off())?;
    let n = 300_001;
    let buffer = fill.buffer(&machine.stream, n, 6)?;
    let expected: Vec<u32> = (0..n as u32).map(|i| random_word(i, 6)).collect();
    same(&buffer.to_host(&machine.stream)?, &expected)?;
    Ok(format!("{n} words, the host's own"))
}

fn cluster(machine: &Machine) -> Result<String, Failure> {
    let kernel = machine.kernel(&texts::cluster_ring())?;
    let blocks = 16;
    let mut y = DeviceBuffer::zeroed(&machine.stream, blocks)?;
    let arguments = [Argument::Write(y.write_to())];
    // SAFETY: the text writes one word a block, as its rule says; `to_host` waits.
    unsafe { kernel.launch(&machine.stream, &machine.problem(blocks), false, &arguments) }?;
    let next = |block: u32| block / 4 * 4 + (block + 1) % 4;
    let expected: Vec<u32> = (0..blocks as u32).map(|block| 4001 + next(block)).collect();
    same(&y.to_host(&machine.stream)?, &expected)?;
    Ok(format!("{blocks} blocks in clusters of 4 read each other's shared memory"))
}

fn overlap(machine: &Machine) -> Result<String, Failure> {
    let stream = &machine.stream;
    let first = machine.kernel(&texts::overlap_first())?;
    let second = machine.kernel(&texts::overlap_second())?;
    let n = 4000;
    let problem = machine.problem(n);
    let values: Vec<u32> = (0..n as u32).map(|i| random_word(i, 7)).collect();
    let expected: Vec<u32> =
        values.iter().map(|value| value.wrapping_add(1).wrapping_mul(2)).collect();
    let x = DeviceBuffer::from_host(stream, &values)?;
    let mut seen = Vec::new();
    for overlap in [false, true] {
        let mut y = DeviceBuffer::<u32>::zeroed(stream, n)?;
        let mut z = DeviceBuffer::<u32>::zeroed(stream, n)?;
        let mut times = DeviceBuffer::<u64>::zeroed(stream, 2)?;
        stream.synchronize()?;
        for kernel in [&first, &second] {
            let (from, to) = match kernel.entry() {
                "overlap_first" => (x.read(), y.write_to()),
                _ => (y.read(), z.write_to()),
            };
            let arguments =
                [Argument::Read(from), Argument::Write(to), Argument::Write(times.write_to())];
            let late = kernel.entry() == "overlap_second";
            // SAFETY: the texts touch n words and two times, as their rule says, and each
            // waits for the kernel before it; `to_host` waits for both.
            unsafe { kernel.launch(stream, &problem, overlap && late, &arguments) }?;
        }
        same(&z.to_host(stream)?, &expected)?;
        let times = times.to_host(stream)?;
        seen.push((times[1] as f64 - times[0] as f64) / 1e3);
    }
    let what = format!(
        "the second kernel began {:+.1} us from the first one's end, overlapping {:+.1} us",
        seen[0], seen[1]
    );
    // 50 us against a clock that steps by 1 us at the most.
    if seen[0] < 0.0 || seen[1] >= 0.0 { Err(Failure::Wrong(what)) } else { Ok(what) }
}

fn tensor_map(machine: &Machine) -> Result<String, Failure> {
    let kernel = machine.kernel(&texts::tma_box())?;
    // 20 rows of 100 words of 16 bits, 104 apart; what lies between rows is not of the tensor.
    let (columns, pitch, rows) = (100usize, 104usize, 20usize);
    let word = |row: usize, column: usize| (row * 1000 + column + 1) as u16;
    let mut memory = vec![0xFFFFu16; rows * pitch];
    for row in 0..rows {
        for column in 0..columns {
            memory[row * pitch + column] = word(row, column);
        }
    }
    let memory = DeviceBuffer::from_host(&machine.stream, &memory)?;
    let problem = ProblemSize { k: columns as u64, ..machine.problem(rows) };
    let rules = kernel.rule().parameters.iter().find_map(|parameter| match &parameter.kind {
        ParameterKind::TensorMap(rule) => Some(TensorShape::of(rule, &problem)),
        _ => None,
    });
    let Some(Ok(shape)) = rules else {
        return Err(Failure::Wrong("the kernel's rule has no tensor".to_owned()));
    };
    let map = TensorMap::new(&machine.context, memory.read(), &shape)?;
    // Beyond the last column and the last row, where the engine fills with 0; six rows inside, so
    // that each of the three bits of the swizzle moves something. A box begins at a multiple of 16
    // bytes of its row: another column is an illegal instruction.
    let (column, row) = (56usize, 14usize);
    let mut y = DeviceBuffer::<u32>::zeroed(&machine.stream, 257)?;
    let arguments = [
        Argument::Read(memory.read()),
        Argument::Write(y.write_to()),
        Argument::U32(column as u32),
        Argument::U32(row as u32),
        Argument::Map(&map),
    ];
    // SAFETY: the text reads one box of the map's tensor and writes 257 words; `to_host` waits.
    unsafe { kernel.launch(&machine.stream, &problem, false, &arguments) }?;
    let y = y.to_host(&machine.stream)?;
    if y[256] != 1 {
        return Err(Failure::Wrong("the copy did not come".to_owned()));
    }
    // 16-byte vectors of a 128-byte row change places with the row's number (PTX ISA, swizzle
    // modes).
    let mut expected = vec![0u16; 512];
    for r in 0..8 {
        for c in 0..64 {
            let at = r * 64 + ((c / 8) ^ (r % 8)) * 8 + c % 8;
            let inside = row + r < rows && column + c < columns;
            expected[at] = if inside { word(row + r, column + c) } else { 0 };
        }
    }
    let found: Vec<u16> =
        y[..256].iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]).collect();
    same(&found, &expected)?;
    Ok("a box of 64 x 8 across the tensor's corner, swizzled over 128 bytes".to_owned())
}

fn image_cache(machine: &Machine) -> Result<String, Failure> {
    let wrong = |error: std::io::Error| Failure::Wrong(format!("a temporary directory: {error}"));
    let directory = tempfile::tempdir().map_err(wrong)?;
    let cache = ImageCache::in_directory(directory.path(), 1 << 20);
    let mut times = Vec::new();
    // The `a` target takes the linker's own way.
    let all = [texts::vector_add(), texts::tma_box()];
    let here = |text: &&KernelText<'_>| {
        let target = text_target(&text.text);
        target.is_some_and(|target| runs(target, machine.context.compute()))
    };
    for text in all.iter().filter(here) {
        for expected in [Origin::Compiled, Origin::Kept].map(|origin| origin.to_string()) {
            let start = Instant::now();
            let (kernel, origin) = load(&machine.context, &cache, text)?;
            times.push(format!("{:.1}", milliseconds(start)));
            if origin.to_string() != expected {
                let entry = kernel.entry();
                let what = format!("{entry} is {origin}, {expected} expected");
                return Err(Failure::Wrong(what));
            }
            if kernel.entry() == "vector_add" {
                sums(machine, &kernel, &machine.stream)?;
            }
        }
    }
    Ok(format!("compiled, then kept: {} ms", times.join(", ")))
}

fn refusals(machine: &Machine) -> Result<String, Failure> {
    let wrong = |what: &str| Err(Failure::Wrong(what.to_owned()));
    let text = |text: &'static str| KernelText {
        entry: "broken".into(),
        text: text.into(),
        rule: std::borrow::Cow::Owned(LaunchRule::plain(1, 32, Vec::new())),
    };
    let broken =
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry broken()\n{ nonsense; }\n";
    let log = match load(&machine.context, &ImageCache::off(), &text(broken)) {
        Err(CudaError::Compile { log, .. }) => log,
        Err(error) => return Err(error.into()),
        Ok(_) => return wrong("nonsense was compiled"),
    };
    if !log.contains("nonsense") {
        return wrong("the compiler's log does not name what it refuses");
    }
    let elsewhere = ".version 8.8\n.target sm_121a\n.address_size 64\n";
    match load(&machine.context, &ImageCache::off(), &text(elsewhere)) {
        Err(CudaError::Target { .. }) => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return wrong("a text for another device was loaded"),
    }
    match DeviceBuffer::<u8>::uninitialised(&machine.context, 1 << 50) {
        Err(CudaError::Driver { code: 2, .. }) => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return wrong("a petabyte was allocated"),
    }
    let first = log.lines().find(|line| line.contains("nonsense")).unwrap_or_default();
    Ok(format!("the compiler says: {}", first.trim()))
}

fn empty_launch(machine: &Machine) -> Result<String, Failure> {
    let kernel = machine.kernel(&texts::empty())?;
    let problem = machine.problem(1);
    let timings = time_both(&machine.stream, (24, Lead::Burst), |_, stream, overlap| {
        // SAFETY: the text touches nothing.
        unsafe { kernel.launch(stream, &problem, overlap, &[]) }
    })?;
    let (serial, overlapped) = (timings.serial.microseconds, timings.overlapped.microseconds);
    Ok(format!("in a graph {serial:.2} us, overlapping {overlapped:.2} us"))
}
