//! Products on a device through wgpu, by the kernels that the simulator runs: what the host packs, the
//! catalogue, a file of somebody else's. Where no driver shows a device, each test says that it is
//! skipped; Mesa's llvmpipe is one.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use std::sync::Arc;

use quantloom::codegen::jit::Jit;
use quantloom::runtime::check::{Subject, Verdict, check};
use quantloom::runtime::conformance::{Failure, Suite, draw};
use quantloom::runtime::gpu::{Choice, GpuDevice, NativePart, Products, Request};
use quantloom::runtime::pack::pack;
use quantloom::runtime::source::{KernelKey, KernelSource, KernelText, Refusal, Work};
use quantloom::runtime::unpacked::Unpacked;
use quantloom::runtime::wgpu::{Wgpu, devices};
use quantloom_dsl::Scheme;
use quantloom_dsl::format::{BF16, F16, F32};
use quantloom_dsl::layout::Shape;
use quantloom_runtime::checkpoint::{Checkpoint, Options};
use quantloom_tests::golden_file;

fn device() -> Option<GpuDevice<Wgpu>> {
    if devices().is_empty() {
        println!("skipped: no device for Vulkan, Metal or Direct3D 12 found");
        return None;
    }
    Some(GpuDevice::new(Wgpu::new(0, Arc::new(Jit)).unwrap()))
}

const BUFFERS: [&str; 5] = ["w", "scale", "addend", "factor", "bias"];

/// A shape that all packings of the catalogue hold.
const SHAPE: (u64, u64) = (40, 384);

#[test]
fn the_device_packs_as_the_host_does() {
    let Some(device) = device() else { return };
    let (mut compared, mut wrong) = (0, Vec::new());
    for scheme in quantloom_kernels::catalogue() {
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
                    (ADDEND, Some(host), Some(own)) => equal_numbers(host, own),
                    _ => host == own,
                };
                if !same {
                    wrong.push(format!("{}: {buffer} for {element}", scheme.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 200, "{compared} buffers");
}

/// The buffer of f32 that are computed on the device.
const ADDEND: &str = "addend";

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

#[test]
fn every_scheme_multiplies() {
    let Some(device) = device() else { return };
    let (mut wrong, mut products) = (Vec::new(), 0);
    for (number, scheme) in quantloom_kernels::catalogue().iter().enumerate() {
        let suite = suite(scheme, vec![number as u64 % 6]);
        match suite.run(scheme, &[&device], &|_| {}).remove(0) {
            Ok(done) => {
                assert!(done.not_scheduled.is_empty(), "{}: {done:?}", scheme.name);
                products += done.products;
            }
            Err(failure) => wrong.push(failure.to_string()),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(products >= 3 * quantloom_kernels::catalogue().len(), "{products}");
}

/// The compiler, with one mistake in its products' texts.
struct Mistaken([&'static str; 2]);

impl KernelSource for Mistaken {
    fn text(&self, key: &KernelKey) -> Result<KernelText<'_>, Refusal> {
        let right = Jit.text(key)?;
        let Work::Product { .. } = key.work else { return Ok(right) };
        let [from, to] = self.0;
        assert!(right.text.contains(from), "{from}");
        Ok(KernelText { text: right.text.replace(from, to).into(), ..right })
    }
}

impl Products for Mistaken {
    fn native(&self, request: &Request<'_>) -> Result<Vec<NativePart>, Refusal> {
        Jit.native(request)
    }

    fn choose(&self, request: &Request<'_>, tokens: u64) -> Result<Choice, Refusal> {
        Jit.choose(request, tokens)
    }

    fn operand(&self, request: &Request<'_>) -> Result<Vec<KernelKey>, Refusal> {
        Jit.operand(request)
    }
}

#[test]
fn mistakes_are_found() {
    if device().is_none() {
        return;
    }
    let scheme = quantloom_kernels::scheme("ct_w4a16").unwrap();
    for mistake in [
        // A row of x less.
        ["= parameters.m;", "= parameters.m - 1u;"],
        // Values half as large; rounded towards zero.
        ["f32(bitcast<i32>(", "0.5f * f32(bitcast<i32>("],
        ["bits + 0x7fffu", "bits"],
    ] {
        let wrong = GpuDevice::new(Wgpu::new(0, Arc::new(Mistaken(mistake))).unwrap());
        let failure = suite(scheme, vec![0]).run(scheme, &[&wrong], &|_| {}).remove(0);
        assert!(matches!(failure, Err(Failure::Miss { .. })), "{mistake:?}: {failure:?}");
    }
}

/// Files of other people, with results to compare.
fn files() -> Vec<String> {
    let files = std::fs::read_dir(quantloom_tests::golden()).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
    let mut names: Vec<String> =
        files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    // Numbers of each format, and layers of experts without results: no layer to compare.
    names.retain(|name| name != "codes_ml_dtypes" && !name.starts_with("moe_"));
    names.sort();
    names
}

#[test]
fn other_peoples_results_are_met() {
    let Some(device) = device() else { return };
    let (mut products, mut wrong) = (0, Vec::new());
    for name in files() {
        let checkpoint = Checkpoint::open_with(golden_file(&name), Options::default()).unwrap();
        for found in check(&checkpoint, &device) {
            products += usize::from(found.subject == Subject::Product);
            match found.verdict {
                Verdict::Pass => {}
                // The layer of all experts together, which is no product.
                Verdict::NotChecked(_) if name == "gpt_oss_mxfp4" => {}
                _ => wrong.push(format!("{name}: {found:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(products > 40, "{products} products");
}

/// What no kernel takes is refused with its reason, and no pass.
#[test]
fn what_is_not_scheduled_is_said() {
    let Some(device) = device() else { return };
    let scheme = quantloom_dsl::parse(
        "S { weight: u4 - 8, scale: bf16 per 1x48, pack: u32 [k:8 | k, n], activation: bf16 }",
    )
    .unwrap();
    let suite = Suite { shapes: vec![(16, 96)], tokens: vec![1], seeds: vec![0], every: 1 };
    let failure = suite.run(&scheme, &[&device], &|_| {}).remove(0).unwrap_err();
    let Failure::NotScheduled { why, .. } = &failure else { panic!("{failure}") };
    assert!(why.contains("no schedule on wgsl handles runs of 48 columns"), "{why}");
}
