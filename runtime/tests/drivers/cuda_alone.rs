//! What only CUDA has: the self-test, graphs, contexts of the caller.

use std::ptr::null_mut;

use quantloom_runtime::cuda::timing::{Lead, time};
use quantloom_runtime::cuda::{
    Context, CudaError, DeviceBuffer, Driver, Event, Graph, ImageCache, Stream, load,
};
use quantloom_tools::cuda::selftest;

use crate::scenarios::{Engine, Fake, Handle, add};
use crate::sources::text;

impl Fake for Driver {
    const TEXT: &'static str = include_str!("../../tools/src/cuda/ptx/vector_add.ptx");
    const TARGETS: [&'static str; 2] = ["sm_90a", "sm_120"];
    const LIBRARY: &'static str = "libcuda.so.1";
    const CALLS: [&'static str; 7] = [
        "cuDriverGetVersion",
        "cuStreamBeginCapture_v2",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuGraphDestroy",
        "cuGraphExecDestroy",
    ];

    fn bind(engine: &Engine<Self>, context: &Context, on: bool) {
        let mut popped: Handle = null_mut();
        match on {
            true => engine.call("cuCtxPushCurrent_v2", [context.as_raw().addr(), 0, 0]),
            false => engine.call("cuCtxPopCurrent_v2", [(&raw mut popped).addr(), 0, 0]),
        }
    }

    fn own(scenario: &str) -> Result<(), CudaError> {
        match scenario {
            "selftest" | "tour" => {
                let good = selftest::run(0, &mut |check| println!("{check}"));
                println!("good: {good}");
                Ok(())
            }
            "callers context" => callers_context(),
            "graph keeps" => graph_keeps(),
            "graph keeps what joins" => graph_keeps_what_joins(),
            "graph streams" => graph_streams(),
            "captured" => captured(),
            "leads" => leads(),
            "tune in a capture" => crate::tune::captured(),
            "tune experts in a capture" => crate::tune_experts::captured(),
            _ => panic!("no scenario {scenario}"),
        }
    }
}

/// A context of the caller's is that of its device, and stays the caller's.
fn callers_context() -> Result<(), CudaError> {
    let (first, second) = (Context::new(0)?, Context::new(1)?);
    for context in [&first, &second] {
        // SAFETY: the context exists as long as the loop.
        let same = unsafe { Context::from_raw(context.as_raw()) }?;
        println!("the caller's: {}, {}", same.info().ordinal, same.info().architecture);
    }
    Ok(())
}

/// Everything that a graph's work uses is dropped before it is launched, and the graph before its
/// replays are done.
fn graph_keeps() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let (kernel, _) = load(&context, &ImageCache::off(), &text::<Driver>())?;
    let made = || DeviceBuffer::<u32>::uninitialised(&context, 100);
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
    let mut a = DeviceBuffer::<u8>::uninitialised(&context, 4)?;
    let mut out = DeviceBuffer::zeroed(&stream, 4)?;
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
    println!("alone: {:?}", DeviceBuffer::from_host(&other, &[6u8])?.to_host(&other)?);
    Ok(())
}

/// What a graph could not keep.
fn captured() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let mut a = DeviceBuffer::<u8>::zeroed(&stream, 4)?;
    let mut inner = Graph::capture(&stream, |stream| a.fill_bytes(stream, 8))?;
    let print_result = |result: Result<(), CudaError>| match result {
        Ok(()) => println!("nothing was wrong"),
        Err(error) => println!("{error}"),
    };
    let mut graph = Graph::capture(&stream, |stream| {
        // Gone before the graph is.
        let values = vec![1u8; 4];
        print_result(a.write(stream, &values));
        print_result(a.to_host(stream).map(drop));
        print_result(inner.launch(stream));
        print_result(Graph::capture(stream, |_| Ok(())).map(drop));
        a.fill_bytes(stream, 9)
    })?;
    graph.launch(&stream)?;
    println!("replayed: {:?}", a.to_host(&stream)?);
    Ok(())
}

/// How often a graph is replayed before the replays whose times count: calls count themselves.
fn leads() -> Result<(), CudaError> {
    const COPIES: usize = 24;
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let (kernel, _) = load(&context, &ImageCache::off(), &text::<Driver>())?;
    let one = DeviceBuffer::from_host(&stream, &[1u32])?;
    for lead in [Lead::Burst, Lead::Sustained] {
        let counted = || DeviceBuffer::<u32>::zeroed(&stream, 1);
        let (mut count, mut next) = (counted()?, counted()?);
        let timing = time(&stream, (COPIES, lead), |_, stream| {
            add(&kernel, stream, [&one, &count], &mut next)?;
            count.copy_from(stream, &next)
        })?;
        // Each copy is called before the graph is captured, and two of them once more.
        let calls = count.to_host(&stream)?[0] as usize - COPIES - 2;
        let before = calls / COPIES - timing.replays.len();
        println!("{lead:?}: {before} replays, then {}", timing.replays.len());
        let longest = timing.replays.iter().fold(0.0, |longest: f64, us| longest.max(*us));
        let microseconds = before as f64 * longest * COPIES as f64;
        println!("a tenth of a second: {}", (0.99e5..1.02e5).contains(&microseconds));
    }
    Ok(())
}

/// Graphs on one stream, and writes on another.
fn graph_streams() -> Result<(), CudaError> {
    let context = Context::new(0)?;
    let (first, second) = (Stream::new(&context)?, Stream::new(&context)?);
    let made = || DeviceBuffer::<u8>::uninitialised(&context, 4);
    let (mut a, mut b) = (made()?, made()?);
    let mut graph = Graph::capture(&second, |stream| b.copy_from(stream, &a))?;
    a.fill_bytes(&first, 3)?;
    graph.launch(&second)?;
    println!("graph after write: {:?}", b.to_host(&second)?);
    graph.launch(&second)?;
    a.fill_bytes(&first, 4)?;
    first.synchronize()?;
    println!("write after graph: {:?}", b.to_host(&second)?);
    Ok(())
}
