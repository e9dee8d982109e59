//! What a process of this test does; it says what came of it on standard output.

use std::borrow::Cow;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use quantloom_dsl::format::{BF16, Number};
use quantloom_dsl::layout::{Component, Granularity, GroupSize, Recode, Shape};
use quantloom_dsl::{Scheme, parse, parse_layout};
use quantloom_runtime::cuda::{
    Argument, Buffer, Context, Cuda, CudaError, DeviceSlice, DeviceSliceMut, Event, Graph,
    ImageCache, Kernel, Loader, Origin, Stream, devices, load,
};
use quantloom_runtime::element::{Values, ValuesMut, bf16};
use quantloom_runtime::gpu::{
    Arrangement, Basis, Choice, Form, GpuDevice, GpuWeight, NativePart, Products, Request, Trusted,
};
use quantloom_runtime::op::{Op as _, Workspace};
use quantloom_runtime::source::{
    Access, BufferRole, Count, KernelKey, KernelSource, KernelText, LaunchRule, Parameter, Problem,
    Refusal, Schedule, Work,
};
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tools::cuda::selftest;

/// Runs a scenario by its name.
pub(crate) fn run(scenario: &str) {
    let result = match scenario {
        "devices" => list(),
        "context" => Context::new(0).map(drop),
        "other device" => Context::new(1).map(drop),
        "stream" => Context::new(0).and_then(|context| Stream::new(&context)).map(drop),
        "selftest" => {
            let good = selftest::run(0, &mut |check| println!("{check}"));
            println!("good: {good}");
            Ok(())
        }
        "load" => vector_add().map(|(kernel, origin)| println!("{}: {origin}", kernel.entry())),
        "loader" => loader(),
        "refused" => refused(),
        "launch" => launch(),
        "product" => product(),
        "other tensors" => other_tensors(),
        "graph keeps" => graph_keeps(),
        "graph keeps what joins" => graph_keeps_what_joins(),
        "captured" => captured(),
        "streams" => streams(),
        "engine" => engine(),
        "not warm" => not_warm(),
        "unload" => unload(),
        _ => panic!("no scenario {scenario}"),
    };
    if let Err(error) = result {
        println!("{error}");
    }
}

fn list() -> Result<(), CudaError> {
    for device in devices()? {
        println!("{device}; {}", device.target().unwrap_or("no target"));
    }
    Ok(())
}

fn text() -> KernelText<'static> {
    selftest::texts::all().into_iter().find(|text| text.entry == "vector_add").unwrap()
}

fn vector_add() -> Result<(Arc<Kernel>, Origin), CudaError> {
    load(&Context::new(0)?, &ImageCache::from_environment(), &text())
}

/// Gives one text for every key and counts how often it is asked.
struct Counting(AtomicU32);

impl KernelSource for Counting {
    fn text(&self, _: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(text())
    }
}

struct Refusing;

impl KernelSource for Refusing {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let known = vec!["sm_80".to_owned()];
        Err(Refusal::Target { target: key.target.clone(), known })
    }
}

fn scheme() -> Scheme {
    parse("W4 { weight: u4 - 8, scale: bf16 per 1x128, pack: u32 [k:8 | k, n], activation: bf16 }")
        .unwrap()
}

fn key() -> KernelKey {
    let scheme = scheme();
    KernelKey {
        work: Work::product(&scheme, &scheme.activations[0], Number::Float(BF16)),
        schedule: Schedule::new("decode", [("rows", 2)]),
        target: "sm_90a".to_owned(),
    }
}

fn loader() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let source = Arc::new(Counting(AtomicU32::new(0)));
    let loader = Loader::new(&context, ImageCache::from_environment(), source.clone());
    let (first, second) = (loader.kernel(&key())?, loader.kernel(&key())?);
    let kernels = if Arc::ptr_eq(&first, &second) { 1 } else { 2 };
    println!("texts: {}, kernels: {kernels}", source.0.load(Ordering::Relaxed));
    Ok(())
}

fn refused() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let loader = Loader::new(&context, ImageCache::off(), Arc::new(Refusing));
    loader.kernel(&key()).map(|kernel| println!("{}", Cow::Borrowed(kernel.entry())))
}

/// A buffer that is too small.
fn launch() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let (kernel, _) = load(&context, &ImageCache::from_environment(), &text())?;
    let a = Buffer::<u32>::zeroed(&stream, 100)?;
    let mut c = Buffer::<u32>::zeroed(&stream, 99)?;
    let arguments =
        [Argument::Read(a.read()), Argument::Read(a.read()), Argument::Write(c.write_to())];
    let problem = Problem::new(1, 100, 1, 132);
    // SAFETY: the launch is refused; the text does what its rule says.
    unsafe { kernel.launch(&stream, &problem, false, &arguments) }
}

fn add(
    kernel: &Kernel,
    stream: &Stream,
    [a, b]: [&Buffer<u32>; 2],
    c: &mut Buffer<u32>,
) -> Result<(), CudaError> {
    let problem = Problem::new(1, a.len() as u64, 1, 132);
    let arguments =
        [Argument::Read(a.read()), Argument::Read(b.read()), Argument::Write(c.write_to())];
    // SAFETY: the text does what its rule says; all is on one stream.
    unsafe { kernel.launch(stream, &problem, false, &arguments) }
}

/// Everything that a graph's work uses is dropped before it is launched, and the graph before its
/// replays are done.
fn graph_keeps() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let (kernel, _) = load(&context, &ImageCache::off(), &text())?;
    let made = || Buffer::<u32>::uninitialised(&context, 100);
    let (mut a, mut b, mut c, mut out) = (made()?, made()?, made()?, made()?);
    let mut graph = Graph::capture(&stream, |stream| {
        a.fill_bytes(stream, 1)?;
        b.copy_from(stream, &a)?;
        add(&kernel, stream, [&a, &b], &mut c)?;
        out.copy_from(stream, &c)
    })?;
    drop((a, b, c, kernel));
    graph.launch(&stream)?;
    drop(graph);
    println!("replayed: {}", out.to_host(&stream)? == [0x0202_0202; 100]);
    Ok(())
}

/// The same of a stream that takes part in a capture since it waits for an event in it.
fn graph_keeps_what_joins() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let (stream, other) = (Stream::new(&context)?, Stream::new(&context)?);
    let (forked, joined) = (Event::new(&context)?, Event::new(&context)?);
    let mut a = Buffer::<u8>::uninitialised(&context, 4)?;
    let mut out = Buffer::zeroed(&stream, 4)?;
    let mut graph = Graph::capture(&stream, |stream| {
        forked.record(stream)?;
        other.wait(&forked)?;
        a.fill_bytes(&other, 5)?;
        out.copy_from(&other, &a)?;
        joined.record(&other)?;
        stream.wait(&joined)
    })?;
    drop(a);
    println!("not run: {:?}", out.to_host(&stream)?);
    graph.launch(&other)?;
    println!("replayed: {:?}", out.to_host(&stream)?);
    // The other stream is captured no more.
    println!("alone: {:?}", Buffer::from_host(&other, &[6u8])?.to_host(&other)?);
    Ok(())
}

/// What a graph could not keep.
fn captured() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let mut a = Buffer::<u8>::zeroed(&stream, 4)?;
    let mut inner = Graph::capture(&stream, |stream| a.fill_bytes(stream, 8))?;
    let say = |result: Result<(), CudaError>| match result {
        Ok(()) => println!("nothing was wrong"),
        Err(error) => println!("{error}"),
    };
    let mut graph = Graph::capture(&stream, |stream| {
        // Gone before the graph is.
        let values = vec![1u8; 4];
        say(a.write(stream, &values));
        say(a.to_host(stream).map(drop));
        say(inner.launch(stream));
        say(Graph::capture(stream, |_| Ok(())).map(drop));
        a.fill_bytes(stream, 9)
    })?;
    graph.launch(&stream)?;
    println!("replayed: {:?}", a.to_host(&stream)?);
    Ok(())
}

/// Calls on two streams, without an event of the caller's.
fn streams() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let (first, second) = (Stream::new(&context)?, Stream::new(&context)?);
    let made = || Buffer::<u8>::uninitialised(&context, 4);
    let (mut a, mut b) = (made()?, made()?);
    a.fill_bytes(&first, 7)?;
    println!("read after write: {:?}", a.to_host(&second)?);
    b.copy_from(&second, &a)?;
    a.fill_bytes(&first, 9)?;
    first.synchronize()?;
    println!("write after read: {:?}", b.to_host(&second)?);
    let mut graph = Graph::capture(&second, |stream| b.copy_from(stream, &a))?;
    a.fill_bytes(&first, 3)?;
    graph.launch(&second)?;
    println!("graph after write: {:?}", b.to_host(&second)?);
    graph.launch(&second)?;
    a.fill_bytes(&first, 4)?;
    first.synchronize()?;
    println!("write after graph: {:?}", b.to_host(&second)?);
    // The stream that wrote is dropped.
    a.fill_bytes(&first, 6)?;
    drop(first);
    println!("read after drop: {:?}", a.to_host(&second)?);
    Ok(())
}

/// A kernel is dropped while a launch of it is queued.
fn unload() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let (kernel, _) = load(&context, &ImageCache::off(), &text())?;
    let a = Buffer::from_host(&stream, &[20u32; 100])?;
    let mut c = Buffer::zeroed(&stream, 100)?;
    add(&kernel, &stream, [&a, &a], &mut c)?;
    drop(kernel);
    println!("added: {}", c.to_host(&stream)? == [40; 100]);
    Ok(())
}

/// "Products" of this driver, which knows no matrices: y = w + x, words of the packed codes and of
/// pairs of x, a row of x a launch.
struct Sums;

impl KernelSource for Sums {
    fn text(&self, _: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let parameters = vec![
            Parameter::of(BufferRole::Codes, Access::Read, Count::K * 2),
            Parameter::of(BufferRole::X, Access::Read, Count::M * Count::K * 2),
            Parameter::of(BufferRole::Y, Access::Write, Count::M * Count::N * 2),
            Parameter::size("n", Count::K.ceil_div(2)),
        ];
        let rule = LaunchRule::plain(Count::K.ceil_div(512), 256, parameters);
        Ok(KernelText { rule: Cow::Owned(rule), ..text() })
    }
}

impl Products for Sums {
    fn operand(&self, _: &Request<'_>) -> Result<Vec<KernelKey>, Refusal> {
        Ok(Vec::new())
    }

    fn arrangement(&self, _: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Ok(None)
    }

    fn native(&self, _: &Request<'_>) -> Result<Vec<NativePart>, Refusal> {
        let layout = parse_layout("u32 [k:8 | k, n]", Component::Code).unwrap();
        let granularity =
            Granularity { bits: 4, rows: GroupSize::Each(1), cols: GroupSize::Each(1) };
        let (component, form) = (Component::Code, Form::Codes(Recode::Keep));
        Ok(vec![NativePart { role: BufferRole::Codes, component, layout, granularity, form }])
    }

    fn choose(&self, request: &Request<'_>, _: u64) -> Result<Choice, Refusal> {
        Ok(Choice {
            key: KernelKey { target: request.target.to_owned(), ..key() },
            tokens: 1,
            meeting: "in bf16".to_owned(),
            sums: quantloom_runtime::accumulation::Sums::Matrix,
            decoded: quantloom_runtime::accumulation::Decoded::default(),
            by: Basis::Model,
        })
    }
}

fn device() -> Result<GpuDevice<Cuda>, CudaError> {
    // SAFETY: the text does what its rule says.
    let source = unsafe { Trusted::new(Arc::new(Sums)) };
    Ok(GpuDevice::new(Cuda::new(0, source)?))
}

/// Tensors that were made for a weight of another shape.
fn other_tensors() -> Result<(), CudaError> {
    let device = device()?;
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

/// A weight on the device and its op: three rows of x in three launches.
fn product() -> Result<(), CudaError> {
    let device = device()?;
    // Codes 3, 0, 0, ... a row: the first word of w is 3, its others are 0.
    let codes: Vec<u8> = (0..64 * 64 / 2).map(|at| if at == 0 { 3 } else { 0 }).collect();
    let scales = [0x80, 0x3f].repeat(64);
    let stored = |name: &str| Some(if name.contains("scale") { &scales[..] } else { &codes[..] });
    let weight = Unpacked::new(&scheme(), Shape::matrix(64, 64), &stored).unwrap();
    let weight = device.prepare(&scheme(), &weight).unwrap();
    let x: Vec<bf16> = (0..3 * 64).map(|at| bf16::from_bits(0x3f80 + at)).collect();
    let mut y = vec![bf16::ZERO; 3 * 64];
    let mut workspace = Workspace::default();
    weight.matmul_into(0, Values::Bf16(&x), ValuesMut::Bf16(&mut y), &mut workspace).unwrap();
    let sum = |(at, x): (usize, &bf16)| x.to_bits() + if at % 64 == 0 { 3 } else { 0 };
    let expected = x.iter().enumerate().map(sum).map(bf16::from_bits);
    let right = expected.eq(y.iter().copied());
    println!("{}: y is right: {right}", weight.explain(3));
    Ok(())
}

/// "Products" whose operand is x + x, words of pairs, and y = w + operand; the product has a counter too.
struct Doubled;

impl KernelSource for Doubled {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let x = || Parameter::of(BufferRole::X, Access::Read, Count::M * Count::K * 2);
        let words = Parameter::size("n", Count::K.ceil_div(2));
        let parameters = match key.work {
            Work::Operand { .. } => {
                let made =
                    Parameter::of(BufferRole::Operand, Access::Write, Count::M * Count::K * 2);
                vec![x(), x(), made, words]
            }
            _ => vec![
                Parameter::of(BufferRole::Codes, Access::Read, Count::K * 2),
                x(),
                Parameter::of(BufferRole::Y, Access::Write, Count::M * Count::N * 2),
                words,
                Parameter::of(BufferRole::Arrivals, Access::ReadWrite, 4),
            ],
        };
        let rule = LaunchRule::plain(Count::K.ceil_div(512), 256, parameters);
        Ok(KernelText { rule: Cow::Owned(rule), ..text() })
    }
}

impl Products for Doubled {
    fn operand(&self, _: &Request<'_>) -> Result<Vec<KernelKey>, Refusal> {
        let work = Work::operand(&scheme(), &scheme().activations[0], Number::Float(BF16));
        Ok(vec![KernelKey { work, schedule: Schedule::new("double", []), ..key() }])
    }

    fn arrangement(&self, request: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Sums.arrangement(request)
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativePart>, Refusal> {
        Sums.native(request)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<Choice, Refusal> {
        Sums.choose(request, tokens)
    }
}

/// The functions of the driver that an engine calls by itself.
struct Engine(libloading::Library);

type Handle = *mut c_void;

impl Engine {
    fn new() -> Self {
        // SAFETY: the library is the one that the backend has loaded.
        Self(unsafe { libloading::Library::new("libcuda.so.1") }.unwrap())
    }

    /// Calls a function, whose arguments are as wide as pointers or narrower.
    fn call(&self, name: &str, [first, second, third]: [usize; 3]) {
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
        self.call("cuDriverGetVersion", [(&raw mut version).addr(), 0, 0]);
    }

    /// Captures what `work` queues on the stream.
    fn captured(&self, stream: &Stream, work: impl FnOnce()) -> Handle {
        let stream = stream.as_raw().addr();
        let (mut graph, mut executable): (Handle, Handle) = (null_mut(), null_mut());
        self.call("cuStreamBeginCapture_v2", [stream, 1, 0]);
        work();
        self.call("cuStreamEndCapture", [stream, (&raw mut graph).addr(), 0]);
        let to = (&raw mut executable).addr();
        self.call("cuGraphInstantiateWithFlags", [to, graph.addr(), 0]);
        self.call("cuGraphDestroy", [graph.addr(), 0, 0]);
        executable
    }
}

/// A device on an engine's context and stream.
fn device_on(stream: &Stream) -> Result<GpuDevice<Cuda>, CudaError> {
    // SAFETY: the context and the stream exist as long as the scenario; the text does what its rule says.
    let (stream, source) = unsafe {
        let context = Context::from_raw(stream.context().as_raw())?;
        let stream = Stream::from_raw(&context, stream.as_raw());
        (stream, Trusted::new(Arc::new(Doubled)))
    };
    Ok(GpuDevice::new(Cuda::on(stream, source)?))
}

/// Codes 3, 0, 0, ... of a row, the first word of w.
fn weight_on(device: &GpuDevice<Cuda>) -> GpuWeight<Cuda> {
    let codes: Vec<u8> = (0..64 * 64 / 2).map(|at| if at == 0 { 3 } else { 0 }).collect();
    let scales = [0x80, 0x3f].repeat(64);
    let stored = |name: &str| Some(if name.contains("scale") { &scales[..] } else { &codes[..] });
    let weight = Unpacked::new(&scheme(), Shape::matrix(64, 64), &stored).unwrap();
    device.prepare(&scheme(), &weight).unwrap()
}

/// An engine's memory, stream and graph.
fn engine() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let engine = Engine::new();
    let weight = weight_on(&device_on(&stream)?);
    weight.warm(BF16, &[3]).unwrap();
    let plan = weight.plan(BF16, 3).unwrap();
    println!("{} launches, workspace {:?}", plan.launches(), plan.workspace());
    let words = |first: u32| -> Vec<u32> { (first..first + 3 * 32).collect() };
    let mut x = Buffer::from_host(&stream, &words(5))?;
    let y = Buffer::from_host(&stream, &[0u32; 3 * 32])?;
    // Longer than needed, and no multiple of anything: scratch ends at 768.
    let workspace = Buffer::from_host(&stream, &[0u8; 1000])?;
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
    engine.call("cuCtxPushCurrent_v2", [context.as_raw().addr(), 0, 0]);
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
    engine.call("cuGraphLaunch", [graph.addr(), stream.as_raw().addr(), 0]);
    println!("replayed with other x: {}", y.to_host(&stream)? == expected(1000));
    engine.call("cuGraphExecDestroy", [graph.addr(), 0, 0]);
    let mut popped: Handle = null_mut();
    engine.call("cuCtxPopCurrent_v2", [(&raw mut popped).addr(), 0, 0]);
    Ok(())
}

/// A plan whose kernel is not loaded, while somebody else captures the stream.
fn not_warm() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let engine = Engine::new();
    let weight = weight_on(&device_on(&stream)?);
    println!("captured: {}", stream.is_captured()?);
    let graph = engine.captured(&stream, || {
        match weight.plan(BF16, 1) {
            Ok(_) => println!("nothing was wrong"),
            Err(error) => println!("{error}"),
        }
        println!("captured: {}", stream.is_captured().unwrap());
    });
    engine.call("cuGraphExecDestroy", [graph.addr(), 0, 0]);
    println!("loaded after the capture: {}", weight.plan(BF16, 1).is_ok());
    // Of another M, and with the kernels of the first.
    let graph = engine.captured(&stream, || {
        println!("in a capture, once loaded: {}", weight.plan(BF16, 2).is_ok());
    });
    engine.call("cuGraphExecDestroy", [graph.addr(), 0, 0]);
    Ok(())
}
