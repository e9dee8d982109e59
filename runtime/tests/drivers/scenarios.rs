//! What a process of this test does with either driver; it says what came of it on standard output.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use quantloom_dsl::format::{BF16, Number};
use quantloom_dsl::layout::Shape;
use quantloom_runtime::driver::{
    Argument, Context, DeviceBuffer, DeviceSlice, DeviceSliceMut, DriverApi, DriverError,
    DriverExecutor, Event, LoadedKernel, Loader, Origin, Stream, devices, load,
};
use quantloom_runtime::element::{Values, ValuesMut, bf16};
use quantloom_runtime::gpu::{GpuDevice, GpuWeight, Trusted};
use quantloom_runtime::image_cache::ImageCache;
use quantloom_runtime::op::{Op as _, ProductError, Workspace};
use quantloom_runtime::source::{KernelText, ProblemSize, Work};
use quantloom_runtime::unpacked::Unpacked;

use crate::sources::{Counting, Doubled, Refusing, Sums, key, scheme, text};

/// A driver without a GPU, as the scenarios see it.
pub(crate) trait Fake: DriverApi {
    /// `vector_add`.
    const TEXT: &'static str;
    /// A target of device 0, and one that is not.
    const TARGETS: [&'static str; 2];
    /// The file of the library.
    const LIBRARY: &'static str;
    /// The functions that an engine calls by itself: those of [`Call`], in that order.
    const CALLS: [&'static str; 7];

    /// Makes the context of device 0 the thread's, as an engine does; `false` ends that.
    fn bind(engine: &Engine<Self>, context: &Context<Self>, on: bool);

    /// A scenario of this driver alone.
    fn own(scenario: &str) -> Result<(), DriverError>;
}

/// Runs a scenario by its name.
pub(crate) fn run<D: Fake>(scenario: &str) {
    let result = match scenario {
        "devices" => list::<D>(),
        "other device" => Context::<D>::new(2).map(drop),
        "unsupported" => DriverExecutor::<D>::new(1, source::<D>()).map(drop),
        "current" => current::<D>(),
        "memory" => memory::<D>(),
        "compile" => compile::<D>(),
        "load" => {
            vector_add::<D>().map(|(kernel, origin)| println!("{}: {origin}", kernel.entry()))
        }
        "load with roles" => with_roles::<D>(text::<D>()),
        "compile with roles" => with_roles::<D>(nonsense::<D>()),
        "loader" => loader::<D>(<D as Fake>::TARGETS[0]),
        "wrong target" => loader::<D>(<D as Fake>::TARGETS[1]),
        "refused" => refused::<D>(),
        "launch" => launch::<D>(),
        "product" => product::<D>(),
        "tune" => crate::tune::tune::<D>(),
        "tune at first use" => crate::tune::at_first_use::<D>(),
        "tune experts" => crate::tune_experts::tune::<D>(),
        "tune experts at first use" => crate::tune_experts::at_first_use::<D>(),
        "other tensors" => other_tensors::<D>(),
        "streams" => streams::<D>(),
        "events" => events::<D>(),
        "engine" => engine::<D>(),
        "experts" => crate::experts::layer::<D>(),
        "first launches" => crate::tune_experts::first_launches::<D>(),
        "strided" => strided::<D>(),
        "not warm" => not_warm::<D>(),
        "unload" => unload::<D>(),
        "tour" => tour::<D>(),
        own => D::own(own),
    };
    if let Err(error) = result {
        println!("{error}");
    }
}

fn list<D: Fake>() -> Result<(), DriverError> {
    for device in devices::<D>()? {
        println!("{device}; {}", device.target.unwrap_or("no target"));
    }
    Ok(())
}

fn vector_add<D: Fake>() -> Result<(Arc<LoadedKernel<D>>, Origin), DriverError> {
    load(&Context::new(0)?, &ImageCache::from_environment(), &text::<D>())
}

/// A text whose warps have different numbers of registers.
fn with_roles<D: Fake>(
    KernelText { entry, text, rule }: KernelText<'_>,
) -> Result<(), DriverError> {
    let text = format!("{text}\n// setmaxnreg.inc.sync.aligned.u32 232;\n").into();
    let text = KernelText { entry, text, rule };
    let (kernel, origin) = load(&Context::<D>::new(0)?, &ImageCache::from_environment(), &text)?;
    println!("{}: {origin}", kernel.entry());
    Ok(())
}

/// What was current is so again; memory of another device.
fn current<D: Fake>() -> Result<(), DriverError> {
    let other = Stream::new(&Context::<D>::new(1)?)?;
    other.synchronize()?;
    let stream = Stream::new(&Context::new(0)?)?;
    let here = DeviceBuffer::from_host(&stream, &[1u8])?;
    let mut there = DeviceBuffer::from_host(&other, &[1u8])?;
    let (kernel, _) = load(stream.context(), &ImageCache::off(), &text::<D>())?;
    let event = Event::new(stream.context())?;
    let mixed = [
        here.to_host(&other).map(drop),
        there.copy_from(&other, &here),
        there.fill_bytes(&stream, 1),
        event.record(&other),
        other.wait(&event),
        add(&kernel, &other, [&words(&stream, 0)?, &words(&stream, 0)?], &mut words(&stream, 0)?),
        add(&kernel, &stream, [&words(&stream, 0)?, &words(&other, 0)?], &mut words(&stream, 0)?),
    ];
    mixed.into_iter().for_each(print_result);
    Ok(())
}

pub(crate) fn print_result(result: Result<(), DriverError>) {
    match result {
        Ok(()) => println!("nothing was wrong"),
        Err(error) => println!("{error}"),
    }
}

/// 100 words of four equal bytes.
fn words<D: Fake>(stream: &Stream<D>, byte: u8) -> Result<DeviceBuffer<D, u32>, DriverError> {
    let mut words = DeviceBuffer::uninitialised(stream.context(), 100)?;
    words.fill_bytes(stream, byte)?;
    Ok(words)
}

fn memory<D: Fake>() -> Result<(), DriverError> {
    let context = Context::<D>::new(0)?;
    let stream = Stream::new(&context)?;
    let bytes: Vec<u8> = (0..=255).collect();
    println!("copied: {}", DeviceBuffer::from_host(&stream, &bytes)?.to_host(&stream)? == bytes);
    let mut filled = DeviceBuffer::<D, u8>::zeroed(&stream, 3)?;
    filled.fill_bytes(&stream, 7)?;
    println!("filled: {:?}", filled.to_host(&stream)?);
    println!("empty: {:?}", DeviceBuffer::<D, u8>::from_host(&stream, &[])?.to_host(&stream)?);
    print_result(filled.write(&stream, &[1, 2]));
    DeviceBuffer::<D, u8>::uninitialised(&context, 1 << 41).map(drop)
}

fn nonsense<D: Fake>() -> KernelText<'static> {
    KernelText { text: D::TEXT.replacen('{', "{ nonsense", 1).into(), ..text::<D>() }
}

fn compile<D: Fake>() -> Result<(), DriverError> {
    load(&Context::<D>::new(0)?, &ImageCache::off(), &nonsense::<D>()).map(drop)
}

fn loader<D: Fake>(target: &str) -> Result<(), DriverError> {
    let source = Arc::new(Counting::<D>(AtomicU32::new(0), PhantomData));
    let cache = ImageCache::from_environment();
    let loader = Loader::new(&Context::<D>::new(0)?, cache, source.clone());
    let (first, second) = (loader.kernel(&key(target))?, loader.kernel(&key(target))?);
    let kernels = if Arc::ptr_eq(&first, &second) { 1 } else { 2 };
    println!("texts: {}, kernels: {kernels}", source.0.load(Ordering::Relaxed));
    Ok(())
}

fn refused<D: Fake>() -> Result<(), DriverError> {
    let loader = Loader::new(&Context::<D>::new(0)?, ImageCache::off(), Arc::new(Refusing));
    loader.kernel(&key(<D as Fake>::TARGETS[0])).map(drop)
}

/// A buffer that is too small, and an argument that is none.
fn launch<D: Fake>() -> Result<(), DriverError> {
    let (kernel, _) = vector_add::<D>()?;
    let stream = Stream::new(kernel.context())?;
    let a = DeviceBuffer::<D, u32>::zeroed(&stream, 100)?;
    let mut c = DeviceBuffer::<D, u32>::zeroed(&stream, 99)?;
    let arguments =
        [Argument::Read(a.read()), Argument::Read(a.read()), Argument::Write(c.write_to())];
    let problem = ProblemSize::new(1, 100, 1, 132);
    for count in [3, 2] {
        // SAFETY: the launch is refused.
        print_result(unsafe { kernel.launch(&stream, &problem, false, &arguments[..count]) });
    }
    Ok(())
}

pub(crate) fn add<D: Fake>(
    kernel: &LoadedKernel<D>,
    stream: &Stream<D>,
    [a, b]: [&DeviceBuffer<D, u32>; 2],
    c: &mut DeviceBuffer<D, u32>,
) -> Result<(), DriverError> {
    let problem = ProblemSize::new(1, a.len() as u64, 1, 132);
    let arguments =
        [Argument::Read(a.read()), Argument::Read(b.read()), Argument::Write(c.write_to())];
    // SAFETY: the text does what its rule says; all is on one stream.
    unsafe { kernel.launch(stream, &problem, false, &arguments) }
}

/// Calls on two streams, without an event of the caller's.
fn streams<D: Fake>() -> Result<(), DriverError> {
    let (kernel, _) = load(&Context::<D>::new(0)?, &ImageCache::off(), &text::<D>())?;
    let context = kernel.context();
    let (first, second) = (Stream::new(context)?, Stream::new(context)?);
    let mut a = words(&first, 7)?;
    let mut b = DeviceBuffer::uninitialised(context, 100)?;
    println!("read after write: {}", a.to_host(&second)? == [0x0707_0707; 100]);
    b.copy_from(&second, &a)?;
    a.fill_bytes(&first, 9)?;
    first.synchronize()?;
    println!("write after read: {}", b.to_host(&second)? == [0x0707_0707; 100]);
    let mut c = DeviceBuffer::zeroed(&first, 100)?;
    add(&kernel, &first, [&a, &a], &mut c)?;
    println!("read after launch: {}", c.to_host(&second)? == [0x1212_1212; 100]);
    // The stream that wrote is dropped.
    a.fill_bytes(&first, 6)?;
    drop(first);
    println!("read after drop: {}", a.to_host(&second)? == [0x0606_0606; 100]);
    Ok(())
}

/// Copies that do not wait, ordered and timed by events of the caller's.
fn events<D: Fake>() -> Result<(), DriverError> {
    let context = Context::<D>::new(0)?;
    let (first, second) = (Stream::new(&context)?, Stream::new(&context)?);
    let (start, written, read) =
        (Event::new(&context)?, Event::new(&context)?, Event::new(&context)?);
    let (there, mut back) = ([5u32; 100], [0u32; 100]);
    let (mut a, mut b) = (words(&first, 0)?, DeviceBuffer::uninitialised(&context, 100)?);
    start.record(&first)?;
    // SAFETY: both lists are untouched until `read` has passed; events order the streams.
    unsafe { a.queue_write(&first, &there) }?;
    written.record(&first)?;
    second.wait(&written)?;
    b.copy_from(&second, &a)?;
    // SAFETY: as above.
    unsafe { b.queue_read(&second, &mut back) }?;
    read.record(&second)?;
    read.synchronize()?;
    println!("there and back: {}", back == there);
    println!("in time: {:?}", read.since(&start)?);
    Ok(())
}

/// A kernel is dropped while a launch of it is queued, and so is a buffer.
fn unload<D: Fake>() -> Result<(), DriverError> {
    let (kernel, _) = load(&Context::<D>::new(0)?, &ImageCache::off(), &text::<D>())?;
    let stream = Stream::new(kernel.context())?;
    let (a, mut c) = (words(&stream, 20)?, words(&stream, 0)?);
    add(&kernel, &stream, [&a, &a], &mut c)?;
    drop(a);
    let (b, stream) = (words(&stream, 1)?, Stream::new(kernel.context())?);
    let mut d = words(&stream, 0)?;
    add(&kernel, &stream, [&c, &c], &mut d)?;
    drop(kernel);
    println!("added: {}", d.to_host(&stream)? == [0x5050_5050; 100]);
    drop(b);
    Ok(())
}

fn source<D: Fake>() -> Trusted {
    // SAFETY: the text does what its rule says.
    unsafe { Trusted::new(Arc::new(Sums::<D>(PhantomData))) }
}

/// Codes 3, 0, 0, ... of a row, the first word of w.
pub(crate) fn weight_on<D: Fake>(
    device: &GpuDevice<DriverExecutor<D>>,
) -> Result<GpuWeight<DriverExecutor<D>>, ProductError> {
    let codes: Vec<u8> = (0..64 * 64 / 2).map(|at| if at == 0 { 3 } else { 0 }).collect();
    let scales = [0x80, 0x3f].repeat(64);
    let stored = |name: &str| Some(if name.contains("scale") { &scales[..] } else { &codes[..] });
    let weight = Unpacked::new(&scheme(), Shape::matrix(64, 64), &stored).unwrap();
    device.prepare(&scheme(), &weight)
}

/// A weight on the device and its op: three rows of x in three launches.
fn product<D: Fake>() -> Result<(), DriverError> {
    let device = GpuDevice::new(DriverExecutor::<D>::new(0, source::<D>())?);
    let x: Vec<bf16> = (0..3 * 64).map(|at| bf16::from_bits(0x3f80 + at)).collect();
    let mut y = vec![bf16::ZERO; 3 * 64];
    let mut multiply = || -> Result<String, ProductError> {
        let weight = weight_on(&device)?;
        let (y, mut workspace) = (ValuesMut::Bf16(&mut y), Workspace::default());
        weight.matmul_into(0, Values::Bf16(&x), y, &mut workspace)?;
        Ok(weight.explain(3))
    };
    match multiply() {
        Ok(explained) => {
            let sum = |(at, x): (usize, &bf16)| x.to_bits() + if at % 64 == 0 { 3 } else { 0 };
            let right = x.iter().enumerate().map(sum).eq(y.iter().map(|y| y.to_bits()));
            println!("{explained}: y is right: {right}");
        }
        Err(error) => println!("{error}"),
    }
    Ok(())
}

/// Tensors that were made for a weight of another shape.
fn other_tensors<D: Fake>() -> Result<(), DriverError> {
    let device = GpuDevice::new(DriverExecutor::<D>::new(0, source::<D>())?);
    let bytes = vec![0; 128 * 128];
    let weight = |n, k| {
        let (scheme, shape) = (scheme(), Shape::matrix(n, k));
        let stored = |name: &str| {
            let store = scheme.stores.iter().find(|store| store.name == name)?;
            let bound = scheme.bind(store, shape).ok()?;
            bytes.get(..bound.bytes() as usize)
        };
        let weight = Unpacked::new(&scheme, shape, &stored).unwrap();
        device.prepare(&scheme, &weight).unwrap()
    };
    let (one, other) = (weight(64, 64), weight(64, 128));
    let x = [bf16::ONE; 64];
    let mut tensors = one.tensors(Values::Bf16(&x)).unwrap();
    println!("{}", other.queue(&mut tensors, false).unwrap_err());
    one.queue(&mut tensors, false)?;
    let mut choice = one.choice(BF16, 1).unwrap();
    choice.key.work = Work::operand(&scheme(), &scheme().activations[0], Number::Float(BF16));
    match one.tensors_for(&choice, Values::Bf16(&x)) {
        Ok(_) => println!("nothing was wrong"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}

/// The functions of the driver that an engine calls by itself.
pub(crate) struct Engine<D>(libloading::Library, PhantomData<D>);

pub(crate) type Handle = *mut c_void;

/// What an engine calls.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    Version,
    BeginCapture,
    EndCapture,
    Instantiate,
    Launch,
    DestroyGraph,
    DestroyExecutable,
}

impl<D: Fake> Engine<D> {
    pub(crate) fn new() -> Self {
        // SAFETY: the library is the one that the backend has loaded.
        Self(unsafe { libloading::Library::new(D::LIBRARY) }.unwrap(), PhantomData)
    }

    pub(crate) fn named(&self, call: Call, arguments: [usize; 3]) {
        self.call(D::CALLS[call as usize], arguments);
    }

    /// Calls a function, whose arguments are as wide as pointers or narrower.
    pub(crate) fn call(&self, name: &str, [first, second, third]: [usize; 3]) {
        // SAFETY: the functions below take three such arguments or fewer, pointers to live variables
        // and handles that exist.
        let result = unsafe {
            let function: libloading::Symbol<'_, unsafe extern "C" fn(usize, usize, usize) -> i32> =
                self.0.get(name.as_bytes()).unwrap();
            function(first, second, third)
        };
        assert_eq!(result, 0, "{name}");
    }

    /// A line in the log of calls.
    fn mark(&self) {
        let mut version = 0;
        self.named(Call::Version, [(&raw mut version).addr(), 0, 0]);
    }

    /// Captures what `work` queues on the stream.
    pub(crate) fn captured(&self, stream: &Stream<D>, work: impl FnOnce()) -> Handle {
        let stream = stream.as_raw().addr();
        let (mut graph, mut executable): (Handle, Handle) = (null_mut(), null_mut());
        self.named(Call::BeginCapture, [stream, 1, 0]);
        work();
        self.named(Call::EndCapture, [stream, (&raw mut graph).addr(), 0]);
        let to = (&raw mut executable).addr();
        self.named(Call::Instantiate, [to, graph.addr(), 0]);
        self.named(Call::DestroyGraph, [graph.addr(), 0, 0]);
        executable
    }
}

/// A device on an engine's stream.
fn device_on<D: Fake>(stream: &Stream<D>) -> Result<GpuDevice<DriverExecutor<D>>, DriverError> {
    // SAFETY: the stream exists as long as the scenario; the text does what its rule says.
    let (stream, source) = unsafe {
        let stream = Stream::from_raw(stream.context(), stream.as_raw());
        (stream, Trusted::new(Arc::new(Doubled::<D>(PhantomData))))
    };
    Ok(GpuDevice::new(DriverExecutor::on(stream, source)?))
}

/// An engine's memory, stream and graph.
fn engine<D: Fake>() -> Result<(), DriverError> {
    let context = Context::<D>::new(0)?;
    let stream = Stream::new(&context)?;
    let engine = Engine::<D>::new();
    let weight = weight_on(&device_on(&stream)?).unwrap();
    weight.warm(BF16, &[3]).unwrap();
    let plan = weight.plan(BF16, 3).unwrap();
    println!("{} launches, workspace {:?}", plan.launches(), plan.workspace());
    let words = |first: u32| -> Vec<u32> { (first..first + 3 * 32).collect() };
    let mut x = DeviceBuffer::from_host(&stream, &words(5))?;
    let y = DeviceBuffer::from_host(&stream, &[0u32; 3 * 32])?;
    // Longer than needed, and no multiple of anything: scratch ends at 768.
    let workspace = DeviceBuffer::from_host(&stream, &[0u8; 1000])?;
    let [to_x, to_y, to_workspace] =
        [x.read().address(), y.read().address(), workspace.read().address()];
    let launch = |x_bytes: u64, workspace_bytes: u64| {
        // SAFETY: all of it is memory of the context, lives longer, and is used on this stream alone.
        unsafe {
            let x = DeviceSlice::from_raw(to_x, x_bytes);
            let y = DeviceSliceMut::from_raw(to_y, 3 * 128);
            let workspace = DeviceSliceMut::from_raw(to_workspace, workspace_bytes);
            plan.launch(stream.as_raw(), x, y, workspace, false)
        }
    };
    println!("{}", launch(383, 1000).unwrap_err());
    println!("{}", launch(384, 511).unwrap_err());
    // As an engine has it.
    D::bind(&engine, &context, true);
    engine.mark();
    launch(384, 1000)?;
    engine.mark();
    let expected = |first: u32| -> Vec<u32> {
        let of = |(at, x): (usize, u32)| 2 * x + if at % 32 == 0 { 3 } else { 0 };
        words(first).into_iter().enumerate().map(of).collect()
    };
    println!("y is right: {}", y.to_host(&stream)? == expected(5));
    let left = workspace.to_host(&stream)?;
    let scratch: Vec<u8> = words(5)[64..].iter().flat_map(|x| (2 * x).to_le_bytes()).collect();
    println!(
        "counters are untouched: {}, scratch is at the end: {}",
        left[..512] == [0; 512],
        left[512..640] == scratch
    );
    let graph = engine.captured(&stream, || launch(384, 1000).unwrap());
    x.write(&stream, &words(1000))?;
    engine.named(Call::Launch, [graph.addr(), stream.as_raw().addr(), 0]);
    println!("replayed with other x: {}", y.to_host(&stream)? == expected(1000));
    engine.named(Call::DestroyExecutable, [graph.addr(), 0, 0]);
    D::bind(&engine, &context, false);
    Ok(())
}

/// Three rows of x that are 80 elements apart, of which 64 count, from an odd element on.
fn strided<D: Fake>() -> Result<(), DriverError> {
    let stream = Stream::new(&Context::<D>::new(0)?)?;
    let plan = device_on(&stream)
        .map_err(ProductError::from)
        .and_then(|device| weight_on(&device)?.plan(BF16, 3));
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            println!("{error}");
            return Ok(());
        }
    };
    println!("a strided workspace: {:?}", plan.strided_workspace());
    let values: Vec<u16> = (0..1 + 2 * 80 + 64).collect();
    let x = DeviceBuffer::from_host(&stream, &values)?;
    let y = DeviceBuffer::from_host(&stream, &[0u16; 3 * 64])?;
    let workspace = DeviceBuffer::from_host(&stream, &[0u8; 1100])?;
    let [to_x, to_y, to_workspace] =
        [x.read().address() + 2, y.read().address(), workspace.read().address()];
    let launch = |x_bytes: u64, stride: u64, workspace_bytes: u64| {
        // SAFETY: all of it is memory of the context, lives longer, and is used on this stream alone.
        unsafe {
            let x = DeviceSlice::from_raw(to_x, x_bytes);
            let y = DeviceSliceMut::from_raw(to_y, 3 * 128);
            let workspace = DeviceSliceMut::from_raw(to_workspace, workspace_bytes);
            plan.launch_strided(stream.as_raw(), (x, stride), y, workspace, true)
        }
    };
    print_result(launch(448, 63, 1024));
    print_result(launch(447, 80, 1024));
    print_result(launch(448, 80, 1023));
    print_result(launch(448, u64::MAX, 1024));
    // Rows without gaps are not copied, and begin at a multiple of 16 bytes.
    let aligned = launch(384, 64, 1024).map_err(|error| error.to_string());
    println!("{}", aligned.unwrap_err().replace(&format!("{to_x:#x}"), "ADDRESS"));
    launch(448, 80, 1100)?;
    // Pairs of x are words, without a carry from the lower to the upper.
    let first = |at: usize| if at.is_multiple_of(64) { 3 } else { 0 };
    let expected = |at: usize| 2 * values[1 + at / 64 * 80 + at % 64] + first(at);
    println!("y is right: {}", y.to_host(&stream)?.iter().copied().eq((0..3 * 64).map(expected)));
    Ok(())
}

/// A plan whose kernel is not loaded, while somebody else captures the stream.
fn not_warm<D: Fake>() -> Result<(), DriverError> {
    let context = Context::<D>::new(0)?;
    let stream = Stream::new(&context)?;
    let engine = Engine::<D>::new();
    let weight = weight_on(&device_on(&stream)?).unwrap();
    println!("captured: {}", stream.is_captured()?);
    let graph = engine.captured(&stream, || {
        match weight.plan(BF16, 1) {
            Ok(_) => println!("nothing was wrong"),
            Err(error) => println!("{error}"),
        }
        println!("captured: {}", stream.is_captured().unwrap());
    });
    engine.named(Call::DestroyExecutable, [graph.addr(), 0, 0]);
    println!("loaded after the capture: {}", weight.plan(BF16, 1).is_ok());
    // Of another M, and with the kernels of the first.
    let graph = engine.captured(&stream, || {
        println!("in a capture, once loaded: {}", weight.plan(BF16, 2).is_ok());
    });
    engine.named(Call::DestroyExecutable, [graph.addr(), 0, 0]);
    Ok(())
}

/// Every function of the library at least once, whatever the others print_result.
fn tour<D: Fake>() -> Result<(), DriverError> {
    let parts = [
        list::<D>,
        product::<D>,
        current::<D>,
        compile::<D>,
        streams::<D>,
        events::<D>,
        strided::<D>,
    ];
    parts.iter().for_each(|part| print_result(part()));
    D::own("tour")
}
