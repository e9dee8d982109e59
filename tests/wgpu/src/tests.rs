//! Products on a device through wgpu, with the kernels that the simulator runs: packing on the
//! host, the catalogue, a third-party file. If no driver reports a device, each test prints that it
//! is skipped; Mesa's llvmpipe is such a device.

#![allow(clippy::print_stdout, reason = "reports a skipped test")]

use std::borrow::Cow;
use std::sync::Arc;

use quantloom::codegen::emit::wgsl;
use quantloom::codegen::ir::{
    self, Access, Address, Binary, Builder, Cache, Extent, Special, Type, Unary, Width, Word,
    verify,
};
use quantloom::codegen::jit::Jit;
use quantloom::codegen::target::target;
use quantloom::runtime::backend::Backend;
use quantloom::runtime::gpu::{
    Arrangement, ChosenKernel, Executor as _, GpuDevice, Launch, LaunchBuffer, NativeBuffer,
    Products, Request,
};
use quantloom::runtime::pack::pack;
use quantloom::runtime::source::{
    self, BufferRole, Count, KernelKey, KernelSource, KernelText, LaunchRule, Parameter, Refusal,
    Schedule, Work,
};
use quantloom::runtime::unpacked::Unpacked;
use quantloom::runtime::wgpu::{Wgpu, devices};
use quantloom_dsl::Scheme;
use quantloom_dsl::format::{BF16, F16, F32};
use quantloom_dsl::layout::Shape;
use quantloom_runtime::checkpoint::{Checkpoint, Options};
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::skip;
use quantloom_tests::{golden_file, golden_layers};
use quantloom_tools::check::{Subject, Verdict, check};
use quantloom_tools::conformance::experts::{ExpertSuite, GATES, RoutingKind};
use quantloom_tools::conformance::{Failure, Suite, draw};

fn device() -> Option<GpuDevice<Wgpu>> {
    if devices().is_empty() {
        skip("no device for Vulkan, Metal or Direct3D 12 found");
        return None;
    }
    Some(GpuDevice::new(Wgpu::new(0, Arc::new(Jit)).unwrap()))
}

/// A device for the kernels of a target.
fn device_of(target: &str, source: impl Products + 'static) -> Option<GpuDevice<Wgpu>> {
    device()?;
    let wgpu = match target {
        "wgsl" => Wgpu::without_subgroups(0, Arc::new(source)),
        _ => Wgpu::new(0, Arc::new(source)),
    };
    let wgpu = wgpu.unwrap();
    if wgpu.target() != target {
        // Its subgroups are as wide as the CPU's vectors.
        assert!(!devices()[0].name.contains("llvmpipe"), "{:?}", devices());
        println!("skipped: the device has no subgroups of one size");
        return None;
    }
    Some(GpuDevice::new(wgpu))
}

const BUFFERS: [BufferRole; 5] = [
    BufferRole::Codes,
    BufferRole::Scale,
    BufferRole::Correction,
    BufferRole::ChannelScale,
    BufferRole::Bias,
];

/// A shape that all packings of the catalogue support.
const SHAPE: (u64, u64) = (40, 384);

/// The buffers of a scheme on the device are those of the host.
#[test]
fn a_device_packs_as_the_host_does() {
    let Some(device) = device() else { return };
    let (mut compared, mut wrong) = (0, Vec::new());
    let share = share(2);
    for scheme in share.of(quantloom_kernels::catalogue()) {
        if scheme.experts.is_some() {
            continue;
        }
        let (n, k) = SHAPE;
        let shape = Shape::matrix(n, k);
        let plain = draw::layer(scheme, shape, 3);
        let packed = pack(scheme, &plain).unwrap();
        let stored = |name: &str| packed.get(name).map(Vec::as_slice);
        let unpacked = Unpacked::new(scheme, shape, &stored).unwrap();
        let host = device.prepare(scheme, &unpacked).unwrap();
        let own = device.prepare_stored(scheme, shape, &stored).unwrap();
        for element in [BF16, F16, F32] {
            for buffer in BUFFERS {
                let [host, own] =
                    [&host, &own].map(|weight| weight.buffer(element, buffer).unwrap());
                compared += usize::from(host.is_some());
                let same = match (buffer, &host, &own) {
                    (BufferRole::Correction, Some(host), Some(own)) => equal_numbers(host, own),
                    _ => host == own,
                };
                if !same {
                    wrong.push(format!("{}: {buffer} for {element}", scheme.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 100 / share.parts(), "{compared} buffers");
}

/// Whether the f32 in both are the same numbers: nobody promises the sign of a zero in WGSL.
fn equal_numbers(host: &[u8], own: &[u8]) -> bool {
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
    };
    host.len() == own.len() && numbers(host) == numbers(own)
}

/// A ragged shape where the packing holds one, tokens of one block and of several.
fn suite(scheme: &Scheme, seeds: Vec<u64>) -> Suite {
    let experts = if scheme.experts.is_some() { 2 } else { 1 };
    let fits = |(n, k): &(u64, u64)| {
        let shape = Shape { experts, n: *n, k: *k };
        scheme.stores.iter().all(|store| scheme.bind(store, shape).is_ok())
    };
    let shape = [(41, 321), (40, 328), SHAPE].into_iter().find(fits).unwrap();
    Suite { shapes: vec![shape], tokens: vec![1, 3, 11], seeds, every: 1 }
}

/// Of the schemes, or files. A driver for processors compiles for seconds where it runs for milliseconds.
fn share(parts: u64) -> Share {
    Share::new(40, parts)
}

/// Schemes on the device, with so many tokens.
fn multiplies(device: &GpuDevice<Wgpu>, tokens: &[usize]) {
    let (mut wrong, mut products) = (Vec::new(), 0);
    let schemes = share(12).of(quantloom_kernels::catalogue().iter().enumerate());
    let count = schemes.len();
    for (number, scheme) in schemes {
        let suite = suite(scheme, vec![number as u64 % 6]);
        let suite = Suite { tokens: tokens.to_vec(), ..suite };
        match suite.run(scheme, &[device], &|_| {}).remove(0) {
            Ok(done) => {
                assert!(done.not_scheduled.is_empty(), "{}: {done:?}", scheme.name);
                products += done.products;
            }
            Err(failure) => wrong.push(failure.to_string()),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(products >= tokens.len() * count, "{products}");
}

#[test]
fn schemes_multiply_on_a_device() {
    let Some(device) = device_of("wgsl", Jit) else { return };
    multiplies(&device, &[1, 3, 11]);
}

/// Few tokens: with more, no thread is left to help another.
#[test]
fn schemes_multiply_with_subgroups_on_a_device() {
    let Some(device) = device_of("wgsl_subgroups", Jit) else { return };
    multiplies(&device, &[1, 3]);
    // A row of x that is long enough for four lanes to find the maximum of a group together.
    let scheme = quantloom_kernels::scheme("quark_w_mxfp4_a_mxfp4").unwrap();
    let long = Suite { shapes: vec![(16, 2048)], tokens: vec![1], seeds: vec![0, 1], every: 1 };
    let done = long.run(scheme, &[&device], &|_| {}).remove(0);
    assert!(done.is_ok_and(|done| done.products == 2));
}

/// The compiler, but for its texts.
struct Texts<F>(F);

impl<F> KernelSource for Texts<F>
where
    F: Fn(&KernelKey) -> Result<KernelText<'static>, Refusal> + Send + Sync,
{
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        self.0(key)
    }
}

impl<F> Products for Texts<F>
where
    Self: KernelSource,
{
    fn arrangement(&self, request: &Request<'_>) -> Result<Option<Arrangement>, Refusal> {
        Jit.arrangement(request)
    }

    fn native(&self, request: &Request<'_>) -> Result<Vec<NativeBuffer>, Refusal> {
        Jit.native(request)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<ChosenKernel, Refusal> {
        Jit.choose(request, tokens)
    }

    fn operand(
        &self,
        request: &Request<'_>,
        product: Option<&KernelKey>,
    ) -> Result<Vec<KernelKey>, Refusal> {
        Jit.operand(request, product)
    }
}

/// The compiler's text, with one mistake if it is a product's.
fn mistaken(key: &KernelKey, [from, to]: [&str; 2]) -> Result<KernelText<'static>, Refusal> {
    let right = Jit.text(key)?;
    let Work::Product { .. } = key.work else { return Ok(right) };
    assert!(right.text.contains(from), "{from}");
    Ok(KernelText { text: right.text.replace(from, to).into(), ..right })
}

#[test]
fn mistakes_of_texts_are_found() {
    const THREAD: &str = "subgroup * subgroup_size + of_subgroup;";
    let scheme = quantloom_kernels::scheme("ct_w4a16").unwrap();
    for (target, mistake) in [
        // A row of x less.
        ("wgsl", ["= parameters.m;", "= parameters.m - 1u;"]),
        // Values half as large; rounded towards zero.
        ("wgsl", ["f32(bitcast<i32>(", "0.5f * f32(bitcast<i32>("]),
        ("wgsl", ["bits + 0x7fffu", "bits"]),
        // The same neighbour twice; without one of them; threads whose neighbours are of other subgroups.
        ("wgsl_subgroups", [", 2u);\n", ", 1u);\n"]),
        ("wgsl_subgroups", [", 1u);\n", ", 1u) * 0.0f;\n"]),
        ("wgsl_subgroups", [THREAD, "of_subgroup * (256u / subgroup_size) + subgroup;"]),
    ] {
        let texts = Texts(move |key: &KernelKey| mistaken(key, mistake));
        let Some(wrong) = device_of(target, texts) else { continue };
        let failure = suite(scheme, vec![0]).run(scheme, &[&wrong], &|_| {}).remove(0);
        assert!(matches!(failure, Err(Failure::Mismatch { .. })), "{mistake:?}: {failure:?}");
    }
}

/// `z = x / y`, element by element; the text with a change.
fn division(n: u32, change: &str) -> KernelText<'static> {
    let threads = 64;
    let grid = [Extent::Constant(n / threads), Extent::Constant(1), Extent::Constant(1)];
    let launch = ir::LaunchConfig { grid, threads, min_blocks: 1, cluster: 1, programmatic: false };
    let mut b = Builder::new("divide", "z = x / y", target("wgsl").unwrap(), launch);
    let shape = [Extent::Constant(n)];
    let [x, y] = ["x", "y"].map(|name| b.buffer(name, Word::U32, Access::ReadOnly, &shape, "f32"));
    let z = b.buffer("z", Word::U32, Access::WriteOnce, &shape, "f32");
    let (block, thread) = (b.special(Special::Block(0)), b.special(Special::Thread));
    let at = b.mad(block, threads, thread);
    let [x, y] = [x, y].map(|buffer| {
        let word =
            b.load_as(Type::U32, Address::new(buffer, at), Width::B32, None, Cache::Default)[0];
        b.unary(Unary::AsF32, word)
    });
    let quotient = b.binary(Binary::DivF32, x, y);
    let quotient = b.unary(Unary::AsU32, quotient);
    b.store(Address::new(z, at), &[quotient], Width::B32, None);
    let kernel = verify(b.finish()).unwrap_or_else(|refusals| panic!("{refusals}"));
    let bytes = || Count::N * 4u64;
    let parameters = [
        Parameter::buffer("x", source::Access::Read, bytes()),
        Parameter::buffer("y", source::Access::Read, bytes()),
        Parameter::buffer("z", source::Access::Write, bytes()),
    ];
    let rule = LaunchRule::plain(Count::N.ceil_div(u64::from(threads)), threads, parameters.into());
    let text = wgsl::emit(&kernel).unwrap();
    let near = "* 16777216.0f)";
    assert!(text.contains(near), "{text}");
    let text = text.replace(near, &format!("{near}{change}")).into();
    KernelText { entry: "divide".into(), text, rule: Cow::Owned(rule) }
}

/// Numerators and denominators with normal quotients, half of these next to one of few digits.
fn pairs(count: u32) -> (Vec<f32>, Vec<f32>) {
    let mut state = 1u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bits = (state >> 32) as u32;
        // Exponents from 96 to 159.
        f32::from_bits((bits & 0x807f_ffff) | ((96 + (bits >> 23) % 64) << 23))
    };
    let pair = |at| {
        let (x, y) = (number(), number());
        let short = f32::from_bits(x.to_bits() & 0xfff8_0000);
        let beside = (short * y).to_bits() + at / 2 % 3 - 1;
        (if at % 2 == 0 { x } else { f32::from_bits(beside) }, y)
    };
    (0..count).map(pair).unzip()
}

/// What drivers divide is off by up to 2.5 units; quotients of kernels are those of IEEE 754, next to
/// ties of short floats too, and whatever is wrong with the first estimate.
#[test]
fn quotients_are_rounded_once() {
    if device().is_none() {
        return;
    }
    const PAIRS: u32 = 1 << 16;
    let (xs, ys) = pairs(PAIRS);
    let bytes = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    };
    let scheme = quantloom_kernels::scheme("ct_w4a16").unwrap();
    for change in ["", " - 7u", " + 7u"] {
        let texts = Texts(move |_: &KernelKey| Ok(division(PAIRS, change)));
        let wgpu = Wgpu::new(0, Arc::new(texts)).unwrap();
        let schedule = Schedule::new("divide", []);
        let key = KernelKey { work: Work::to_native(scheme), schedule, target: "wgsl".to_owned() };
        let kernel = wgpu.kernel(&key).unwrap();
        let (x, y) = (wgpu.upload(&bytes(&xs)).unwrap(), wgpu.upload(&bytes(&ys)).unwrap());
        let mut z = wgpu.output(u64::from(PAIRS) * 4).unwrap();
        let problem = source::ProblemSize::new(1, PAIRS.into(), 1, 1);
        let kernel = wgpu.ready(&kernel, &problem).unwrap();
        let slots =
            &mut [LaunchBuffer::Read(&x), LaunchBuffer::Read(&y), LaunchBuffer::Write(&mut z)];
        // SAFETY: this API checks what a text touches.
        wgpu.launch(unsafe { Launch::new(&kernel, false, slots) }).unwrap();
        let quotients = wgpu.download(&z).unwrap();
        for ((x, y), quotient) in xs.iter().zip(&ys).zip(quotients.as_chunks().0) {
            let (quotient, right) = (f32::from_le_bytes(*quotient), x / y);
            assert!(right.is_normal(), "{x:e} / {y:e}");
            assert_eq!(quotient.to_bits(), right.to_bits(), "{x:e} / {y:e}, {change}");
        }
    }
}

/// Products are within the bounds of the files' own results.
#[test]
fn a_device_meets_results_of_other_software() {
    let Some(device) = device() else { return };
    let (mut products, mut wrong) = (0, Vec::new());
    let share = share(2);
    for name in share.of(golden_layers()) {
        let checkpoint = Checkpoint::open_with(golden_file(&name), Options::default()).unwrap();
        for found in check(&checkpoint, &device) {
            products += usize::from(found.subject == Subject::Product);
            match found.verdict {
                Verdict::Pass => {}
                _ => wrong.push(format!("{name}: {found:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(products > 20 / share.parts(), "{products} products");
}

/// Small layers with the first gates, or with all, are within their bounds, in calls of so many tokens.
fn layers_conform(schemes: &[&str], gates: usize, routings: &[RoutingKind], tokens: &[usize]) {
    let Some(device) = device() else { return };
    let suite = ExpertSuite {
        experts: (4, 2),
        shapes: vec![(64, 96)],
        gates: GATES.iter().copied().take(gates).collect(),
        routings: routings.to_vec(),
        tokens: tokens.to_vec(),
        seeds: vec![0],
        every: 1,
    };
    for name in schemes {
        let scheme = quantloom_kernels::scheme(name).unwrap();
        let backends: [&dyn Backend; 1] = [&device];
        let done = suite.run(scheme, name, &backends, &|_| {}).remove(0);
        let done = done.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(done.not_scheduled.is_empty(), "{name}: {:?}", done.not_scheduled);
        assert!(done.calls >= suite.gates.len(), "{name}: {} calls", done.calls);
    }
}

#[test]
fn layers_of_experts_conform() {
    layers_conform(&["ct_w4a16"], 3, &[RoutingKind::Random], &[3]);
}

/// Activations that are quantised, with static scales of each matrix too; experts of each way to route.
#[test]
#[ignore = "a long sweep: .ci/run runs it"]
fn layers_of_experts_of_several_schemes_conform() {
    let schemes = ["gpt_oss_mxfp4_down", "ct_w4a8", "ct_nvfp4", "quark_w8a8_int8_tensor_static"];
    layers_conform(&["ct_w4a16"], GATES.len(), &RoutingKind::ALL, &[3]);
    layers_conform(&Share::new(1, 4).of(schemes), GATES.len(), &RoutingKind::ALL, &[1, 17]);
}

/// Whole layers of files, with what their own software computed.
#[test]
fn golden_layers_of_experts() {
    let Some(device) = device() else { return };
    for name in ["moe_ct_w4a16", "moe_quark_int8", "moe_gptq4_actorder"] {
        let checkpoint = Checkpoint::open_with(golden_file(name), Options::default()).unwrap();
        let findings = check(&checkpoint, &device);
        assert!(findings.iter().any(|found| found.subject == Subject::Product), "{name}");
        for found in findings {
            assert_eq!(found.verdict, Verdict::Pass, "{name}: {found:?}");
        }
    }
}

/// An unsupported product is an error with its reason, and does not pass.
#[test]
fn what_is_not_scheduled_is_said() {
    let Some(device) = device_of("wgsl", Jit) else { return };
    let scheme = quantloom_dsl::parse(
        "S { weight: u4 - 8, scale: bf16 per 1x32, pack: u32 [k:8 | k, n], \
         activation: i8 { scale: u32 per token } }",
    )
    .unwrap();
    let suite = Suite { shapes: vec![(16, 96)], tokens: vec![1], seeds: vec![0], every: 1 };
    let failure = suite.run(&scheme, &[&device], &|_| {}).remove(0).unwrap_err();
    let Failure::NotScheduled { why, .. } = &failure else { panic!("{failure}") };
    assert!(
        why.to_string().contains("no schedule on wgsl handles u32 scales of activations"),
        "{why}"
    );
}
