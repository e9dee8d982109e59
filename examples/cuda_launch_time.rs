//! How long the host takes to queue a product outside of a graph, on a stream of `cudarc`'s.
//!
//! Median over 10,000 launches of a plan, after a warm-up; the queue is emptied every 100 launches, which
//! is not timed. Beside it stands what the driver's own call takes: a kernel that does nothing, with as
//! many parameters. Without arguments a golden file of the repository is taken, its first layer and three M.
//!
//! ```text
//! cargo run --release --example cuda_launch_time -- tests/golden/gptq4.safetensors 1,16,64
//! ```

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::time::{Duration, Instant};

use cudarc::driver::result::{launch_kernel, module};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut};
use quantloom::dsl::format::BF16;
use quantloom::prelude::*;
use quantloom::runtime::cuda::{
    Context, Cuda, CudaError, DeviceSlice, DeviceSliceMut, Stream, devices,
};
use quantloom::runtime::gpu::{GpuDevice, WorkspaceBytes};

const LAUNCHES: usize = 10_000;
/// Launches between two waits: fewer than a stream's queue holds.
const BURST: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or("tests/golden/gptq4.safetensors".to_owned());
    let tokens = arguments.next().unwrap_or("1,16,64".to_owned());
    let tokens: Vec<u64> = tokens.split(',').map(str::parse).collect::<Result<_, _>>()?;
    println!("{}", devices()?.first().ok_or("there is no device")?);

    let engine = CudaContext::new(0)?;
    let stream = engine.new_stream()?;
    // SAFETY: the engine's context and stream exist until the end of `main`; what is captured on the
    // stream, below, is launches of plans alone.
    let cuda = unsafe {
        let context = Context::from_raw(engine.cu_ctx().cast())?;
        Cuda::on(Stream::from_raw(&context, stream.cu_stream().cast()), quantloom::jit::source())?
    };
    let device = GpuDevice::new(cuda);
    let checkpoint = Checkpoint::open(path)?;
    let (name, layer) =
        checkpoint.layers().next().ok_or("the checkpoint has no quantised layer")?;
    let layer = layer?;
    let Shape { n, k, .. } = layer.shape();
    let stored = |store: &str| layer.store(store);
    let weight = device.prepare_stored(layer.scheme(), layer.shape(), &stored)?;
    weight.warm(BF16, &tokens)?;
    println!("{name}: N = {n}, K = {k}");

    // Memory for the largest product, and a workspace for all of them.
    let plans = tokens.iter().map(|tokens| weight.plan(BF16, *tokens));
    let plans = plans.collect::<Result<Vec<_>, _>>()?;
    let most = tokens.iter().copied().max().unwrap_or(1);
    let needed = plans.iter().map(|plan| plan.workspace());
    let needed = needed.fold(WorkspaceBytes::default(), WorkspaceBytes::max).total();
    let mut x = stream.clone_htod(&vec![0x3f80u16; (most * k) as usize])?;
    let mut y = stream.alloc_zeros::<u16>((most * n) as usize)?;
    let mut workspace = stream.alloc_zeros::<u8>(needed.max(1) as usize)?;
    let (to_x, to_y) = (x.device_ptr(&stream).0, y.device_ptr_mut(&stream).0);
    let to_workspace = workspace.device_ptr_mut(&stream).0;
    stream.synchronize()?;

    for plan in &plans {
        let launch = || -> Result<(), CudaError> {
            // SAFETY: the engine's memory of this context, long enough for the largest plan; the
            // workspace began as 0, and only this stream uses any of it. All of it lives until the end.
            unsafe {
                plan.launch(
                    stream.cu_stream().cast(),
                    DeviceSlice::from_raw(to_x, plan.x_bytes()),
                    DeviceSliceMut::from_raw(to_y, plan.y_bytes()),
                    DeviceSliceMut::from_raw(to_workspace, needed),
                    false,
                )
            }
        };
        let ours = timed(&stream, launch)?;
        println!("M = {}: {} kernels, {ours}", plan.tokens(), plan.launches());
        println!("the driver's call alone, of one kernel: {}", driver_alone(&stream)?);
    }

    // A graph of the caller's multiplies what is in x when it is replayed.
    let plan = plans.first().ok_or("no M was given")?;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    // SAFETY: as above.
    unsafe {
        plan.launch(
            stream.cu_stream().cast(),
            DeviceSlice::from_raw(to_x, plan.x_bytes()),
            DeviceSliceMut::from_raw(to_y, plan.y_bytes()),
            DeviceSliceMut::from_raw(to_workspace, needed),
            false,
        )
    }?;
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?.ok_or("nothing was captured")?;
    let mut results = Vec::new();
    for bits in [0x3f80u16, 0xbf80] {
        stream.memcpy_htod(&vec![bits; (most * k) as usize], &mut x)?;
        graph.launch()?;
        let found = stream.clone_dtoh(&y)?;
        results.push(found[..(plan.tokens() * n) as usize].to_vec());
    }
    // x of the other sign gives y of the other sign, where there is no bias.
    let opposite =
        |(one, other): (&u16, &u16)| one ^ other == 0x8000 || (one | other) & 0x7fff == 0;
    let replayed = results[0].iter().zip(&results[1]).all(opposite);
    let empty = results[0].iter().all(|bits| bits & 0x7fff == 0);
    println!(
        "replayed with other x: {}",
        if replayed && !empty { "y follows" } else { "y is WRONG" }
    );
    if replayed && !empty { Ok(()) } else { Err("a replay is wrong".into()) }
}

/// The times of launches on the host.
fn timed<E: Error + 'static>(
    stream: &CudaStream,
    launch: impl Fn() -> Result<(), E>,
) -> Result<String, Box<dyn Error>> {
    for _ in 0..BURST {
        launch()?;
    }
    stream.synchronize()?;
    let mut times = Vec::with_capacity(LAUNCHES);
    while times.len() < LAUNCHES {
        for _ in 0..BURST {
            let start = Instant::now();
            launch()?;
            times.push(start.elapsed());
        }
        stream.synchronize()?;
    }
    times.sort_unstable();
    let at = |part: usize| microseconds(times[times.len() * part / 100]);
    Ok(format!("{:.2} us on the host (median; {:.2} at 10%, {:.2} at 90%)", at(50), at(10), at(90)))
}

/// A kernel with the parameters of a product that does nothing.
const EMPTY: &CStr = c".version 8.0
.target sm_70
.address_size 64
.visible .entry empty(.param .u32 m, .param .u64 w, .param .u64 x, .param .u64 y, .param .u64 scale)
{
    ret;
}
";

/// The times of the driver's own call, with a kernel of one block that does nothing.
fn driver_alone(stream: &CudaStream) -> Result<String, Box<dyn Error>> {
    // SAFETY: the text ends with 0; its entry has the five parameters that are given, and reads none of
    // them. The module stays loaded until its context goes.
    let function = unsafe {
        let module = module::load_data(EMPTY.as_ptr().cast())?;
        module::get_function(module, c"empty".to_owned())?
    };
    timed(stream, || {
        let mut values = [0u64; 5];
        let mut parameters = values.each_mut().map(|value| (&raw mut *value).cast::<c_void>());
        let (grid, block) = ((1, 1, 1), (128, 1, 1));
        // SAFETY: as above.
        unsafe { launch_kernel(function, grid, block, 0, stream.cu_stream(), &mut parameters) }
    })
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
