//! A device through wgpu, with texts written by hand: memory, launches, and what is refused. Where no
//! driver shows a device, each test says that it is skipped.

use std::borrow::Cow;
use std::sync::Arc;

use quantloom_dsl::parse;
use quantloom_runtime::gpu::{
    Arrangement, ChosenKernel, Executor as _, Launch, LaunchBuffer, NativeBuffer, Products, Request,
};
use quantloom_runtime::source::{
    Access, Count, KernelKey, KernelSource, KernelText, LaunchRule, Parameter, ProblemSize,
    Refusal, Scalar, Schedule, Work,
};
use quantloom_runtime::wgpu::{Memory, Pipeline, Wgpu, WgpuError, devices};
use quantloom_tests::tools::skip;

/// Kernels by the names of their schedules.
struct ByHand;

const ADD: &str = "
@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read_write> b: array<u32>;
struct Parameters { m: u32, n: u32 }
@group(0) @binding(2) var<uniform> parameters: Parameters;
@compute @workgroup_size(64)
fn add(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < parameters.m * parameters.n) {
        b[id.x] = a[id.x] + parameters.n;
    }
}
";

impl KernelSource for ByHand {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let wrong = ADD.replace("+ parameters.n", "+ parameters.k");
        let (text, scalar) = match key.schedule.name.as_str() {
            "add" => (ADD.to_owned(), None),
            "wrong" => (wrong, None),
            _ => (ADD.to_owned(), Some(Parameter::scalar("by", Scalar::F32))),
        };
        let bytes = || Count::M * Count::N * 4u64;
        let parameters = [
            Parameter::buffer("a", Access::Read, bytes()),
            Parameter::buffer("b", Access::Write, bytes()),
            Parameter::size("m", Count::M),
            Parameter::size("n", Count::N),
        ];
        let parameters = parameters.into_iter().chain(scalar).collect();
        let blocks = (Count::M * Count::N).ceil_div(64u64);
        let rule = Cow::Owned(LaunchRule::plain(blocks, 64, parameters));
        Ok(KernelText { entry: "add".into(), text: text.into(), rule })
    }
}

impl Products for ByHand {
    fn arrangement(&self, _: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Ok(None)
    }

    fn native(&self, _: &Request<'_>) -> Result<Vec<NativeBuffer>, Refusal> {
        Ok(Vec::new())
    }

    fn choose(&self, request: &Request<'_>, _: u64) -> Result<ChosenKernel, Refusal> {
        Err(Refusal::Target { target: request.target.to_owned(), known: Vec::new() })
    }

    fn operand(&self, _: &Request<'_>, _: Option<&KernelKey>) -> Result<Vec<KernelKey>, Refusal> {
        Ok(Vec::new())
    }
}

const SCHEME: &str =
    "S { weight: u4 - 8, scale: bf16 per 1x32, pack: u32 [k:8 | k, n], activation: bf16 }";

fn key(name: &str) -> KernelKey {
    let scheme = parse(SCHEME).unwrap();
    let schedule = Schedule::new(name, []);
    KernelKey { work: Work::to_native(&scheme), schedule, target: "wgsl".to_owned() }
}

fn device() -> Option<Wgpu> {
    if devices().is_empty() {
        skip("no device for Vulkan, Metal or Direct3D 12 found");
        return None;
    }
    Some(Wgpu::new(0, Arc::new(ByHand)).unwrap())
}

const fn problem(m: u64, n: u64) -> ProblemSize {
    ProblemSize::new(m, n, 1, 1)
}

#[test]
fn bytes_come_back_as_they_went() {
    let Some(device) = device() else { return };
    for length in [0usize, 1, 3, 4, 17, 4096, (1 << 20) + 5] {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
        let memory = device.upload(&bytes).unwrap();
        assert_eq!(device.download(&memory).unwrap(), bytes, "{length} bytes");
        let memory = device.output(length as u64).unwrap();
        assert_eq!(device.download(&memory).unwrap(), vec![0xff; length]);
        let memory = device.zeroed(length as u64).unwrap();
        assert_eq!(device.download(&memory).unwrap(), vec![0; length]);
    }
}

fn launch(
    device: &Wgpu,
    kernel: &Arc<Pipeline>,
    problem: &ProblemSize,
    slots: &mut [LaunchBuffer<'_, Memory>],
) -> Result<(), WgpuError> {
    let kernel = device.ready(kernel, problem)?;
    // SAFETY: this API checks what a text touches.
    device.launch(unsafe { Launch::new(&kernel, false, slots) })
}

#[test]
fn launches_run_in_order() {
    let Some(device) = device() else { return };
    let kernel = device.kernel(&key("add")).unwrap();
    let words: Vec<u8> = (0..300u32).flat_map(u32::to_le_bytes).collect();
    let a = device.upload(&words).unwrap();
    let (mut b, mut c) = (device.output(1200).unwrap(), device.output(1200).unwrap());
    let problem = problem(3, 100);
    launch(&device, &kernel, &problem, &mut [LaunchBuffer::Read(&a), LaunchBuffer::Write(&mut b)])
        .unwrap();
    launch(&device, &kernel, &problem, &mut [LaunchBuffer::Read(&b), LaunchBuffer::Write(&mut c)])
        .unwrap();
    let expected: Vec<u8> = (200..500u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(device.download(&c).unwrap(), expected);
}

#[test]
fn what_does_not_fit_is_an_error_with_names() {
    let Some(device) = device() else { return };
    let kernel = device.kernel(&key("add")).unwrap();
    let short = device.zeroed(16).unwrap();
    let mut b = device.zeroed(1200).unwrap();
    let launch = |problem: ProblemSize, slots: &mut [LaunchBuffer<'_, _>]| {
        launch(&device, &kernel, &problem, slots).unwrap_err().to_string()
    };
    let error =
        launch(problem(3, 100), &mut [LaunchBuffer::Read(&short), LaunchBuffer::Write(&mut b)]);
    assert_eq!(error, "launching add: buffer `a` has 16 bytes, the kernel touches 1200");
    let error = launch(problem(1, 1), &mut [LaunchBuffer::Read(&short)]);
    assert_eq!(error, "launching add: no buffer `b`");
    let error =
        launch(problem(0, 1 << 40), &mut [LaunchBuffer::Read(&short), LaunchBuffer::Write(&mut b)]);
    assert_eq!(error, "launching add: the parameter `n` has no 32-bit value");
    let error = device.kernel(&key("wrong")).unwrap_err();
    let WgpuError::Text { entry, why } = error else { panic!("{error}") };
    assert!(entry == "add" && why.contains("invalid field accessor `k`"), "{why}");
    // The line of the text.
    assert!(why.contains("wgsl:9:"), "{why}");
    let error = device.kernel(&key("scalar")).unwrap_err().to_string();
    assert_eq!(error, "compiling add: WGSL has no parameters like `by`");
    let error = device.zeroed(1 << 60).unwrap_err().to_string();
    assert!(error.starts_with("making room for 1152921504606846976 bytes: a buffer"), "{error}");
    // None of this has hurt the device.
    launches_run_in_order();
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let count = devices().len();
    let error = Wgpu::new(count + 1, Arc::new(ByHand)).unwrap_err();
    match error {
        WgpuError::NoAdapter => assert_eq!(count, 0),
        WgpuError::NoDevice { ordinal, .. } => assert_eq!(ordinal, count + 1),
        error => panic!("{error}"),
    }
}
