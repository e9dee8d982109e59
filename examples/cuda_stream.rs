//! A layer of a checkpoint on an engine's own stream, in the engine's own memory, and in its CUDA graph.
//!
//! The engine here is a few lines with `cudarc`. A machine without an NVIDIA GPU builds this program too.
//!
//! ```text
//! cargo run --release --example cuda_stream -- tests/golden/gptq4.safetensors
//! ```

#![allow(clippy::print_stdout)]

use std::error::Error;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut};
use quantloom::dsl::format::BF16;
use quantloom::prelude::*;
use quantloom::runtime::cuda::{
    Context, Cuda, CudaError, DeviceSlice, DeviceSliceMut, Stream, devices,
};
use quantloom::runtime::element::{bf16_to_f32, f32_to_bf16};
use quantloom::runtime::gpu::GpuDevice;

/// Rows of x.
const TOKENS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).unwrap_or("tests/golden/gptq4.safetensors".to_owned());
    // `cudarc` panics where there is no driver; this is an error.
    devices()?;

    // The engine's context and stream.
    let engine = CudaContext::new(0)?;
    let stream = engine.new_stream()?;

    // The same as a device of ours.
    // SAFETY: the engine's context and stream exist until the end of `main`. While the stream is captured,
    // below, nothing is called on it but a launch of a plan.
    let cuda = unsafe {
        let context = Context::from_raw(engine.cu_ctx().cast())?;
        Cuda::on(Stream::from_raw(&context, stream.cu_stream().cast()), quantloom::jit::source())?
    };
    let device = GpuDevice::new(cuda);

    // The first layer of the checkpoint, and its kernels for so many tokens.
    let checkpoint = Checkpoint::open(path)?;
    let (name, layer) =
        checkpoint.layers().next().ok_or("the checkpoint has no quantised layer")?;
    let layer = layer?;
    let Shape { n, k, .. } = layer.shape();
    let stored = |store: &str| layer.store(store);
    let weight = device.prepare_stored(layer.scheme(), layer.shape(), &stored)?;
    weight.warm(BF16, &[TOKENS as u64])?;
    let plan = weight.plan(BF16, TOKENS as u64)?;
    println!("{name}: N = {n}, K = {k}, {} kernels for {TOKENS} tokens", plan.launches());

    // The engine's memory. The workspace begins as 0; one serves all layers of the stream. Rows of x that
    // are a part of a wider tensor need the larger one.
    let mut x = stream.clone_htod(&values(TOKENS * k as usize, 1))?;
    let mut y = stream.alloc_zeros::<u16>(TOKENS * n as usize)?;
    let needed = plan.strided_workspace().total();
    let mut workspace = stream.alloc_zeros::<u8>(needed.max(1) as usize)?;

    // One stream uses all of it, so that nothing has to be put in order by `cudarc`'s guards, which are
    // dropped here: no event of theirs may come into the capture.
    let (to_x, to_y) = (x.device_ptr(&stream).0, y.device_ptr_mut(&stream).0);
    let to_workspace = workspace.device_ptr_mut(&stream).0;
    let launch = || -> Result<(), CudaError> {
        // SAFETY: the engine's memory of this context, of the lengths that the plan says; the workspace
        // is 0, and only this stream uses any of it. All of it outlives the graph.
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

    // A product on the stream, then one that is recorded into a graph instead of run.
    launch()?;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    launch()?;
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?.ok_or("nothing was captured")?;
    compare("on the stream", &weight, &values(TOKENS * k as usize, 1), &stream.clone_dtoh(&y)?)?;

    // A replay multiplies what is in x by then.
    let other = values(TOKENS * k as usize, 2);
    stream.memcpy_htod(&other, &mut x)?;
    graph.launch()?;
    compare("replayed with other x", &weight, &other, &stream.clone_dtoh(&y)?)?;

    // x as the first columns of a wider tensor, into a graph as well.
    let stride = k as usize + 24;
    let wide = values(TOKENS * stride, 3);
    let mut x = stream.clone_htod(&wide)?;
    let (to_x, bytes) = (x.device_ptr_mut(&stream).0, (TOKENS * stride * size_of::<u16>()) as u64);
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    // SAFETY: as above.
    unsafe {
        plan.launch_strided(
            stream.cu_stream().cast(),
            (DeviceSlice::from_raw(to_x, bytes), stride as u64),
            DeviceSliceMut::from_raw(to_y, plan.y_bytes()),
            DeviceSliceMut::from_raw(to_workspace, needed),
            false,
        )
    }?;
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?.ok_or("nothing was captured")?;
    graph.launch()?;
    let rows =
        |wide: &[u16]| wide.chunks(stride).flat_map(|row| row[..k as usize].to_vec()).collect();
    let first: Vec<u16> = rows(&wide);
    compare("rows of a wider tensor", &weight, &first, &stream.clone_dtoh(&y)?)?;
    let wide = values(TOKENS * stride, 4);
    stream.memcpy_htod(&wide, &mut x)?;
    graph.launch()?;
    let second: Vec<u16> = rows(&wide);
    compare("replayed with other rows", &weight, &second, &stream.clone_dtoh(&y)?)?;
    Ok(())
}

/// Numbers between -1 and 1 in bf16.
fn values(count: usize, seed: u32) -> Vec<u16> {
    let value = |at: u32| {
        let bits = (at ^ seed.rotate_left(16)).wrapping_mul(0x9E37_79B1) >> 8;
        f32_to_bf16(bits as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..count as u32).map(value).collect()
}

/// Compares y with the product that uploads x and downloads y by itself.
fn compare(
    what: &str,
    weight: &quantloom::runtime::gpu::GpuWeight<Cuda>,
    x: &[u16],
    y: &[u16],
) -> Result<(), Box<dyn Error>> {
    use quantloom::runtime::element::{Values, bf16};
    use quantloom::runtime::op::Op as _;
    let x: Vec<bf16> = x.iter().map(|bits| bf16::from_bits(*bits)).collect();
    let expected = weight.matmul(0, Values::Bf16(&x))?;
    let same = expected.iter().zip(y).all(|(expected, y)| *expected == bf16_to_f32(*y));
    println!("{what}: {}", if same { "y is right" } else { "y is WRONG" });
    if same { Ok(()) } else { Err("y differs".into()) }
}
