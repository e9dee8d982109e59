//! Results do not depend on the mode of floating-point arithmetic in which the caller and the threads
//! of its pool are.

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::arch::asm;
use std::path::{Path, PathBuf};

use quantloom_dsl::format::{BF16, F16, F32, FloatFormat, Number, Overflow};
use quantloom_dsl::layout::Shape;
use quantloom_dsl::reference::PlainCodes;
use quantloom_dsl::{Scheme, parse};
use quantloom_runtime::checkpoint::Tensors;
use quantloom_runtime::cpu::CpuDevice;
use quantloom_runtime::cpu::isa::Isa;
use quantloom_runtime::op::{Op, Values, bf16, f16};
use quantloom_runtime::pack::pack;
use quantloom_runtime::quantise::{candidates, quantise_checkpoint};
use quantloom_runtime::unpacked::Unpacked;
use quantloom_tools::conformance::draw;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize_to_file};

/// Subnormal numbers are 0 as operands and as results, and results are rounded towards 0.
#[cfg(target_arch = "x86_64")]
const OTHER: u32 = 0x1f80 | 1 << 15 | 1 << 6 | 0b11 << 13;
#[cfg(target_arch = "aarch64")]
const OTHER: u64 = 1 << 24 | 0b11 << 22;

/// Sets the mode of this thread.
#[cfg(target_arch = "x86_64")]
fn set(mode: u32) {
    // SAFETY: four bytes are read; the mode is other code's than the compiler expects, for the calls
    // that this test makes.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack)) };
}
#[cfg(target_arch = "aarch64")]
fn set(mode: u64) {
    // SAFETY: a register of arithmetic alone, for the calls that this test makes.
    unsafe { asm!("msr fpcr, {}", in(reg) mode, options(nostack)) };
}

#[cfg(target_arch = "x86_64")]
fn mode() -> u32 {
    let mut mode = 0u32;
    // SAFETY: four bytes are written.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack)) };
    mode & !0x3f
}
#[cfg(target_arch = "aarch64")]
fn mode() -> u64 {
    let mode;
    // SAFETY: a register is read.
    unsafe { asm!("mrs {}, fpcr", out(reg) mode, options(nostack)) };
    mode
}

/// Schemes of the catalogue, and some whose numbers are all subnormal.
fn schemes() -> Vec<Scheme> {
    let catalogue = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels-generated/schemes");
    let mut files: Vec<_> =
        std::fs::read_dir(catalogue).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path| std::fs::read_to_string(path).unwrap();
    let texts = files.into_iter().map(read).chain(
        [
            "weight: i8, scale: f16 per 1x32, pack: [k, n], activation: f32",
            "weight: e2m1, scale: e8m0 per 1x32, pack: u8 [k:2 | k, n], \
             activation: e2m1 { scale: e8m0 per 1x32, scale: f32 per token }",
            "weight: i8, scale: f32 per 1x32, pack: [k, n], activation: i8 { scale: own per token }",
        ]
        .map(|clauses| format!("s {{ {clauses} }}")),
    );
    texts.map(|text| parse(&text).unwrap()).filter(|scheme| scheme.experts.is_none()).collect()
}

/// x of a type, of usual and of the smallest numbers, and of zeros.
fn tokens(own: FloatFormat, k: usize) -> Vec<f64> {
    let value = |at: usize| {
        let fraction = ((at * 7919) % 201) as f64 / 100.0 - 1.0;
        match at / k {
            0 => fraction,
            1 => own.round(own.decode(1) * 40.0 * fraction),
            2 => 0.0,
            _ => own.round(own.max() * fraction),
        }
    };
    (0..4 * k).map(|at| own.round(value(at))).collect()
}

/// What is multiplied, and quantised.
struct Case<'s> {
    scheme: &'s Scheme,
    shape: Shape,
    own: FloatFormat,
    f32s: Vec<f32>,
    f16s: Vec<f16>,
    bf16s: Vec<bf16>,
    /// A layer of the smallest scales.
    smallest: PlainCodes,
    /// A file of small weights.
    float: PathBuf,
}

/// A file with one f32 weight of subnormal numbers and some that are a little larger.
fn float_file(folder: &Path, shape: Shape) -> PathBuf {
    let value = |at: u64| ((at * 104_729 % 2003) as f32 / 1000.0 - 1.0) * 1e-38;
    let bytes: Vec<u8> = (0..shape.n * shape.k).flat_map(|at| value(at).to_le_bytes()).collect();
    let dims = vec![shape.n as usize, shape.k as usize];
    let view = TensorView::new(Dtype::F32, dims, &bytes).unwrap();
    let path = folder.join("float.safetensors");
    serialize_to_file([("layer.weight", view)], None, &path).unwrap();
    path
}

impl<'s> Case<'s> {
    fn new(scheme: &'s Scheme, shape: Shape, own: FloatFormat, float: &Path) -> Self {
        let x = tokens(own, shape.k as usize);
        let code = |x: &f64| Number::Float(own).encode(*x, Overflow::Special) as u16;
        Self {
            scheme,
            shape,
            own,
            f32s: x.iter().map(|x| *x as f32).collect(),
            f16s: x.iter().map(code).map(f16::from_bits).collect(),
            bf16s: x.iter().map(code).map(bf16::from_bits).collect(),
            smallest: draw::layer(scheme, shape, 2),
            float: float.to_owned(),
        }
    }

    fn x(&self) -> Values<'_> {
        match self.own {
            F16 => Values::F16(&self.f16s),
            BF16 => Values::Bf16(&self.bf16s),
            _ => Values::F32(&self.f32s),
        }
    }

    /// What is to be the same: the bytes of a file that is quantised; the weights of a layer, and
    /// products on every set.
    fn results(&self) -> Vec<u32> {
        let Self { scheme, shape, .. } = *self;
        let k = shape.k as usize;
        let mut all = Vec::new();
        if self.own == F32 {
            let out = self.float.with_file_name("out.safetensors");
            let tensors = Tensors::open(&self.float).unwrap();
            let chosen = candidates(&tensors, scheme);
            quantise_checkpoint(&tensors, scheme, &chosen, &out, &|_| {}).unwrap();
            all.extend(std::fs::read(&out).unwrap().into_iter().map(u32::from));
        }
        let packed = pack(scheme, &self.smallest).unwrap();
        let stored = |name: &str| packed.get(name).map(Vec::as_slice);
        let weight = Unpacked::new(scheme, shape, &stored).unwrap();
        all.extend(weight.decode_rows(0..shape.n).iter().map(|w| w.to_bits()));
        for isa in Isa::present() {
            let op = CpuDevice::of(isa).unwrap().prepare(scheme, &weight).unwrap();
            for m in [1, 4] {
                let y = op.matmul(0, self.x().part(4 * k - m * k..4 * k)).unwrap();
                all.extend(y.iter().map(|y| if y.is_nan() { u32::MAX } else { y.to_bits() }));
            }
        }
        all
    }
}

#[test]
fn flushing_and_rounding_of_the_host_change_nothing() {
    // The threads of the pool have the mode, and so has the thread that calls.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).start_handler(|_| set(OTHER));
    let pool = pool.build().unwrap();
    let usual = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let shape = Shape::matrix(33, 160);
    let folder = tempfile::tempdir().unwrap();
    let float = float_file(folder.path(), shape);
    for scheme in schemes() {
        if scheme.stores.iter().any(|store| scheme.bind(store, shape).is_err()) {
            continue;
        }
        for own in [F32, BF16, F16] {
            let case = Case::new(&scheme, shape, own, &float);
            let expected = usual.install(|| case.results());
            let found = pool.install(|| {
                assert_eq!(mode(), OTHER);
                let found = case.results();
                assert_eq!(mode(), OTHER, "the caller's mode is left as it was");
                found
            });
            let first = expected.iter().zip(&found).position(|(a, b)| a != b);
            assert_eq!(first, None, "{}, x of {own}", scheme.name);
        }
    }
}
