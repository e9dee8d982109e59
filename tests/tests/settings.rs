//! Settings of checkpoints that change the product: each is computed here by its software's rule,
//! or is an error that names it. The files are assembled as the software writes them.

mod bitsandbytes;
mod configurations;
mod fp8;
mod gptqmodel;
mod modelopt;
mod page;
mod quark;

use quantloom::codegen::jit::Simulator;
use quantloom_dsl::format::{BF16, Number};
use quantloom_runtime::backend::Backend;
use quantloom_runtime::checkpoint::{Checkpoint, Options};
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::gpu::GpuDevice;
use quantloom_tests::Random;
use quantloom_tools::forward::{Input, forward};
use serde_json::{Map, Value, json};

type Stored = (String, &'static str, Vec<usize>, Vec<u8>);

fn open(config: &Value, tensors: &[Stored]) -> Result<Checkpoint, String> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"quantization_config": config.to_string()}));
    let mut body: Vec<u8> = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let start = body.len();
        body.extend(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, body.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Value::from(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(body);
    Checkpoint::from_bytes(file, Options::default()).map_err(|error| error.to_string())
}

fn stored(name: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Stored {
    (format!("l.{name}"), dtype, shape.to_vec(), bytes)
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bf16s(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| ((*value as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec())
        .collect()
}

/// The error of the file or of its layer `l`.
fn fault(config: &Value, tensors: &[Stored]) -> String {
    match open(config, tensors) {
        Err(error) => error,
        Ok(file) => file.layer("l").map(|_| String::new()).unwrap_or_else(|e| e.to_string()),
    }
}

#[track_caller]
fn refused(config: &Value, tensors: &[Stored], words: &[&str]) {
    let error = fault(config, tensors);
    for word in words {
        assert!(error.contains(word), "{word}: {error}");
    }
}

fn e4m3() -> Number {
    Number::from_name("e4m3").unwrap()
}

/// Bytes that are e4m3 numbers.
fn e4m3_codes(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count)
        .map(|_| random.bits() as u8)
        .map(|b| if b & 0x7f == 0x7f { b & 0x47 } else { b })
        .collect()
}

/// Numbers of bf16, about normal, of several magnitudes.
fn tokens(random: &mut Random, count: usize) -> Vec<f64> {
    let unit = |random: &mut Random| random.below(1 << 20) as f64 / f64::from(1 << 20) - 0.5;
    (0..count)
        .map(|at| BF16.round(unit(random) * f64::from((at as i32 / 128) % 7 - 3).exp2()))
        .collect()
}

fn product(file: &Checkpoint, x: &[f64], k: usize) -> Vec<f32> {
    product_on(&CpuDevice::best(), file, x, k)
}

fn product_on(backend: &dyn Backend, file: &Checkpoint, x: &[f64], k: usize) -> Vec<f32> {
    let layer = file.layer("l").unwrap();
    let shape = vec![(x.len() / k) as u64, k as u64];
    let input = Input { values: x.to_vec(), shape, own: BF16 };
    forward(backend, layer.scheme(), layer, &layer.unpack().unwrap(), 0, &input).unwrap()
}

/// A GPU of each kind of kernels.
fn simulated() -> impl Iterator<Item = GpuDevice<Simulator>> {
    let targets = ["sm_80", "sm_89", "sm_90a", "gfx942", "gfx950", "wgsl", "wgsl_subgroups"];
    targets.into_iter().map(|target| GpuDevice::new(Simulator::new(target).unwrap()))
}

/// A file with factors on x gives what the file without them gives on the multiplied x.
fn assert_multiplied(
    backend: &dyn Backend,
    [with, without]: [&Checkpoint; 2],
    (x, factors): (&[f64], &[f64]),
) {
    let (k, name) = (factors.len(), backend.name());
    let multiplied = prescaled(x, factors);
    let plain = product_on(backend, without, &multiplied, k);
    assert_eq!(product_on(backend, with, x, k), plain, "{name}");
    assert_ne!(product_on(backend, with, &multiplied, k), plain, "{name}");
}

/// y compared with sums of x~ w, which differ by the rounding of f32 sums.
fn assert_product(ours: &[f32], x: &[f64], w: &[f64], k: usize) {
    let n = w.len() / k;
    assert_eq!(ours.len(), x.len() / k * n);
    for (at, ours) in ours.iter().enumerate() {
        let pairs = x[at / n * k..][..k].iter().zip(&w[at % n * k..][..k]);
        let (exact, size) =
            pairs.fold((0.0, 0.0), |(sum, size), (x, w)| (sum + x * w, size + (x * w).abs()));
        assert!((f64::from(*ours) - exact).abs() <= size * 1e-5, "y[{at}] is {ours}, not {exact}");
    }
}

fn prescaled(x: &[f64], factors: &[f64]) -> Vec<f64> {
    x.iter().zip(factors.iter().cycle()).map(|(x, factor)| BF16.round(x * factor)).collect()
}
