//! `quantloom bench`: here on the CPU, in `gpu` on a GPU.

mod experts;
pub(super) mod gpu;
mod portable;
mod transforms;

use std::path::{self, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use quantloom::device::Device;
use quantloom::dsl::experts::ExpertLayer;
use quantloom::dsl::format::{BF16, F16, F32, FloatFormat, Number, Overflow};
use quantloom::dsl::layout::Shape;
use quantloom::dsl::reference::StoredTensors;
use quantloom::dsl::{Activation, Scheme};
use quantloom::runtime::cpu::CpuDevice;
use quantloom::runtime::cpu::blocking::Instruction;
use quantloom::runtime::cpu::native::Path;
use quantloom::runtime::cpu::weight::CpuWeight;
use quantloom::runtime::cuda::timing::Lead;
use quantloom::runtime::element::{Values, ValuesMut, bf16, f16};
use quantloom::runtime::op::{Op as _, Workspace};
use quantloom::runtime::pack::pack;
use quantloom::runtime::unpacked::Unpacked;
use quantloom_tools::measure::{
    Arithmetic, Memory, Rate, last_level_cache, median, normal, rates, seconds,
};
use serde_json::json;

use super::backend;
use super::named_layers::named_layer;
use super::sizes::{Tokens, bytes, shape};
use super::{ProductOptions, print_line, table};
use crate::atomic_write::{Replace, write_and_say};
use crate::plot::{Line, plot};
use crate::progress::Progress;

/// How fast products are, compared with how fast this machine reads and multiplies.
#[derive(Args)]
#[command(
    after_help = "Weights and x are normal numbers, quantised; each call takes another copy of the weight (all copies \
    together are twice the last level of cache), times are medians; the read bandwidth is sampled \
    between the calls, since a shared machine's changes. On a GPU a graph holds one call a copy, \
    with and without programmatic launch; next to it is the time of a kernel that only reads \
    the weight.\n\n\
    Examples:\n  \
    quantloom bench\n  \
    quantloom bench --scheme ct_w4a8 --shape 14336x4096 --m 1,8,32,128\n  \
    quantloom bench --backend cpu --m 1,2,4,8,16,32,64,128 --plot rates.svg --json rates.json\n  \
    quantloom bench --backend cuda --scheme ct_w4a16 --shape 8192x8192 --m 1,2,4,8 --json gpu.json\n  \
    quantloom bench --backend cuda --transforms --shape 8192x8192\n  \
    quantloom bench --experts qwen3_30b --scheme ct_w4a16 --m 1,8,64
    quantloom bench --backend cuda --experts qwen3_30b --m 16 --launches\n  \
    quantloom bench --backend cuda --shape 8192x8192 --m 1024,4096 --sustained"
)]
pub(crate) struct Arguments {
    /// A catalogue name or a .scheme file; several may be given. Without one, seven that are
    /// much used.
    #[arg(long = "scheme", value_name = "SCHEME")]
    schemes: Vec<String>,
    /// The weight's shape.
    #[arg(long, value_name = "NxK", value_parser = shape, default_value = "4096x4096")]
    shape: (u64, u64),
    /// Values of M: 1,8,32 or 1-17.
    #[arg(long, value_name = "LIST", default_value = "1,8,32,128")]
    m: Tokens,
    /// What multiplies: `auto` (the fastest device), or a device by its name, as `quantloom devices` lists
    /// them.
    #[arg(long, default_value = "auto")]
    backend: String,
    /// Whole expert layers instead of products, on the CPU or an NVIDIA GPU: a model's (mixtral_8x7b,
    /// qwen3_30b, gpt_oss_20b, gpt_oss_120b, deepseek_v3, kimi_k2, llama4_scout), or the text of a layer.
    #[arg(long, value_name = "LAYER", value_parser = named_layer, conflicts_with_all = ["shape", "transforms", "plot"])]
    experts: Option<ExpertLayer>,
    /// Of expert layers on a GPU: the most bytes of parts in f32. Beyond, parts have the type of y. Without the
    /// option 8MiB, as calls have it.
    #[arg(long, value_name = "BYTES", value_parser = bytes, requires = "experts")]
    most_f32_parts: Option<u64>,
    /// Of expert layers on an NVIDIA GPU: also what each launch of a call adds to its time.
    #[arg(long, requires = "experts")]
    launches: bool,
    /// Of an NVIDIA GPU: times after a tenth of a second of the same work, when the clocks are those that its limit of power
    /// allows for long work. Without the option times are those of a burst, as other benchmarks take them.
    #[arg(long, conflicts_with = "transforms")]
    sustained: bool,
    #[command(flatten)]
    tuning: backend::Tuning,
    #[command(flatten)]
    products: ProductOptions,
    /// Of a GPU: instead of products, how fast its kernels bring stored tensors into place, compared
    /// with a copy of as many bytes.
    #[arg(long)]
    transforms: bool,
    /// Also write all numbers into this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draw operations a second over M, below what the machine allows; of the CPU alone.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    replace: Replace,
}

impl Arguments {
    /// What comes before the times of an NVIDIA GPU that count.
    fn lead(&self) -> Lead {
        if self.sustained { Lead::Sustained } else { Lead::Burst }
    }

    /// What a table says of its times, after what it says of its columns.
    fn note(&self) -> &'static str {
        match self.lead() {
            Lead::Burst => "",
            Lead::Sustained => {
                "; times, but that of the floor, after a tenth of a second of the same work"
            }
        }
    }
}

/// What is measured where nothing is asked for.
const USUAL: [&str; 7] = [
    "ct_w4a8",
    "ct_w8a8",
    "ct_w4a16",
    "ct_w4a16_asym",
    "ct_fp8_dynamic",
    "ct_mxfp4a16",
    "ct_nvfp4a16",
];

/// One product of one M.
pub(super) struct Cell {
    scheme: String,
    kernel: String,
    tokens: usize,
    seconds: f64,
    /// Bytes of the weight.
    bytes: usize,
    operations: f64,
    /// 10^9 bytes a second that the machine read between the calls.
    read: f64,
    /// 10^9 operations a second that the machine multiplies from registers.
    peak: f64,
}

impl Cell {
    fn read_rate(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }

    fn rate(&self) -> f64 {
        self.operations / self.seconds / 1e9
    }

    /// What reading the weight once and multiplying at the peak would allow.
    fn roof(&self) -> f64 {
        let bound_by_reading = self.operations / (self.bytes as f64 / self.read);
        bound_by_reading.min(self.peak)
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let outputs = [("--json", &arguments.json), ("--plot", &arguments.plot)];
    let outputs: Vec<(&str, &path::Path)> =
        outputs.iter().filter_map(|(option, path)| Some((*option, path.as_deref()?))).collect();
    let schemes: Vec<&path::Path> = arguments.schemes.iter().map(path::Path::new).collect();
    arguments.replace.check(&outputs, &schemes)?;
    let device = backend::tuned(&arguments.backend, &arguments.tuning)?;
    if arguments.sustained && !matches!(device, Device::Cuda(_)) {
        bail!("`--sustained` is of an NVIDIA GPU: add `--backend cuda`");
    }
    if let Some(layer) = &arguments.experts {
        return experts::run(arguments, layer, &device);
    }
    let device = match device {
        Device::Cpu(_) if arguments.transforms => {
            bail!("`--transforms` are kernels of a GPU: add `--backend cuda`")
        }
        Device::Cpu(device) => device,
        _ if arguments.plot.is_some() => bail!("`--plot` is of the CPU: add `--backend cpu`"),
        Device::Cuda(device) if arguments.transforms => return transforms::run(arguments, &device),
        Device::Cuda(device) => return gpu::run(arguments, &device),
        #[cfg(feature = "wgpu")]
        Device::Wgpu(device) => return portable::run(arguments, &device),
        Device::Hip(device) => return portable::run(arguments, &device),
        Device::Simulated(_) => bail!(
            "the simulator counts what a kernel asks for and has no time; `quantloom sim` shows \
             the counts"
        ),
        other => bail!("there are no measurements on {}", other.name()),
    };
    let names: Vec<&str> = match arguments.schemes.as_slice() {
        [] => USUAL.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let schemes: Vec<Scheme> =
        names.into_iter().map(|name| arguments.products.scheme(name)).collect::<Result<_>>()?;
    let (n, k) = arguments.shape;
    let memory = Memory::beyond_the_caches();
    let peaks = rates();
    machine(&memory, &peaks)?;
    let Tokens(tokens) = &arguments.m;
    let cells = measure(device, &schemes, arguments.shape, tokens, &memory, &peaks)?;
    print_line(format_args!("\nN x K = {n} x {k}, {}", device.name()))?;
    show(&cells)?;
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&as_json(arguments.shape, device, &peaks, &cells))?;
        write_and_say(path, &(text + "\n"))?;
    }
    if let Some(path) = &arguments.plot {
        write_and_say(path, &drawn(arguments.shape, device, &cells))?;
    }
    Ok(true)
}

/// Products of random weights [N, K] of some schemes with so many tokens each.
pub(super) fn measure(
    device: CpuDevice,
    schemes: &[Scheme],
    (n, k): (u64, u64),
    tokens: &[usize],
    memory: &Memory,
    peaks: &[Rate],
) -> Result<Vec<Cell>> {
    let progress = Progress::new("measuring", (schemes.len() * tokens.len()) as u64);
    let mut cells = Vec::new();
    for scheme in schemes {
        let bench = Bench::new(device, scheme, Shape::matrix(n, k))
            .with_context(|| format!("scheme {}, N x K = {n} x {k}", scheme.name))?;
        for tokens in tokens {
            cells.push(bench.measure(*tokens, memory, peaks)?);
            progress.advance(1);
        }
    }
    Ok(cells)
}

/// What the machine does at best, on all threads.
fn machine(memory: &Memory, peaks: &[Rate]) -> Result<()> {
    print_line(format_args!(
        "This machine, {} threads, reads {:.1} GB/s at best. From registers it computes:",
        rayon_threads(),
        memory.best_of(5)
    ))?;
    let mut rows = table(&["", "instruction", "set", "GOP/s"]);
    for rate in peaks {
        let (kind, giga) = (rate.arithmetic.name(), format!("{:.0}", rate.giga));
        rows.add_row([kind, rate.instruction, rate.set, &giga]);
    }
    print_line(rows)
}

fn rayon_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A weight, as often as it takes to be beyond the caches.
struct Bench<'a> {
    scheme: &'a Scheme,
    copies: Vec<CpuWeight>,
}

/// Time of a cell.
const BUDGET: Duration = Duration::from_millis(400);

impl<'a> Bench<'a> {
    fn new(device: CpuDevice, scheme: &'a Scheme, shape: Shape) -> Result<Self> {
        let packed = normal_weight(scheme, shape, 0)?;
        let stored = |name: &str| packed.get(name).map(Vec::as_slice);
        let weight = device.prepare(scheme, &Unpacked::new(scheme, shape, &stored)?)?;
        let count = (2 * last_level_cache()).div_ceil(weight.bytes().max(1)).clamp(1, 256);
        Ok(Self { scheme, copies: vec![weight; count] })
    }

    fn measure(&self, tokens: usize, memory: &Memory, peaks: &[Rate]) -> Result<Cell> {
        let weight = &self.copies[0];
        let Shape { n, k, .. } = weight.shape();
        let own = own_type(self.scheme);
        let x = NormalX::tokens(own, tokens, k);
        let mut y = vec![0.0f32; tokens * n as usize];
        let mut workspace = Workspace::default();
        let name = &weight.selection().kernel;
        use Arithmetic::{Bf16Dot, Bf16Matrix, F32Fma, Int8Dot, Int8Matrix};
        // Arm's `bfmmla` is counted among dot products.
        let (kinds, what) = match (weight.blocking(tokens, own).instruction, name.path) {
            (Some(Instruction::Bf16Dot(_)), _) => (&[Bf16Dot][..], "bf16 dot"),
            (Some(Instruction::SplitBf16 { .. }), _) => (&[Bf16Matrix, Bf16Dot][..], "bf16 matrix"),
            (Some(Instruction::Bytes), _) => (&[Int8Matrix][..], "i8 matrix"),
            (None, Path::Dot) => (&[Int8Dot][..], "i8 dot"),
            (None, Path::Fma) => (&[F32Fma][..], "f32 fma"),
        };
        let kernel = format!("{}, {} decode, {what}", name.isa, name.decoder);
        let peak = kinds.iter().find_map(|kind| peaks.iter().find(|rate| rate.arithmetic == *kind));
        let (mut times, mut reads, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        let start = Instant::now();
        let mut turn = 0;
        while times.len() < 9 || start.elapsed() < BUDGET {
            reads.push(memory.sample());
            rates.extend(peak.map(Rate::sample));
            // The first call of a round is not counted: it meets what the samples left behind.
            for call in 0..5 {
                let weight = &self.copies[turn % self.copies.len()];
                turn += 1;
                let mut done = Ok(());
                let time = seconds(|| {
                    done =
                        weight.matmul_into(0, x.values(), ValuesMut::F32(&mut y), &mut workspace);
                });
                done?;
                if call > 0 {
                    times.push(time);
                }
            }
        }
        Ok(Cell {
            scheme: self.scheme.name.clone(),
            kernel,
            tokens,
            seconds: median(&mut times),
            bytes: weight.bytes(),
            operations: 2.0 * (n * k) as f64 * tokens as f64,
            read: median(&mut reads),
            peak: median(&mut rates),
        })
    }
}

/// A weight of normal numbers as its scheme stores it.
pub(super) fn normal_weight(scheme: &Scheme, shape: Shape, seed: u64) -> Result<StoredTensors> {
    Ok(pack(scheme, &normal::layer(scheme, shape, seed)?)?)
}

/// x of normal numbers.
enum NormalX {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl NormalX {
    /// So many rows for a weight of K columns.
    fn tokens(own: FloatFormat, tokens: usize, k: u64) -> Self {
        let x = normal::tokens(own, tokens, k as usize, 0);
        let codes = x.iter().map(|x| Number::Float(own).encode(*x, Overflow::Saturate) as u16);
        match own {
            F32 => Self::F32(x.iter().map(|x| *x as f32).collect()),
            F16 => Self::F16(codes.map(f16::from_bits).collect()),
            _ => Self::Bf16(codes.map(bf16::from_bits).collect()),
        }
    }

    fn values(&self) -> Values<'_> {
        match self {
            Self::F32(x) => Values::F32(x),
            Self::F16(x) => Values::F16(x),
            Self::Bf16(x) => Values::Bf16(x),
        }
    }
}

/// The type that x has: the scheme's first alternative, bf16 where that is quantised.
pub(super) fn own_type(scheme: &Scheme) -> FloatFormat {
    let float = |activation: &Activation| match activation {
        Activation::Float(Number::Float(format)) => Some(*format),
        _ => None,
    };
    scheme.activations.first().and_then(float).unwrap_or(BF16)
}

/// A table of products, and what its columns mean.
pub(super) fn show(cells: &[Cell]) -> Result<()> {
    let mut rows = table(&[
        "scheme",
        "kernel",
        "M",
        "time",
        "weight read",
        "of bandwidth",
        "GOP/s",
        "of peak",
        "of roof",
    ]);
    for cell in cells {
        rows.add_row([
            cell.scheme.clone(),
            cell.kernel.clone(),
            cell.tokens.to_string(),
            format!("{:.3} ms", cell.seconds * 1e3),
            format!("{:.1} GB/s", cell.read_rate()),
            format!("{:.0}%", cell.read_rate() / cell.read * 100.0),
            format!("{:.1}", cell.rate()),
            format!("{:.0}%", cell.rate() / cell.peak * 100.0),
            format!("{:.0}%", cell.rate() / cell.roof() * 100.0),
        ]);
    }
    print_line(rows)?;
    print_line(
        "of bandwidth: of what the machine read between the calls; of peak: of what the fastest \
         instruction of the kernel's kind computed between the calls; of roof: of the lower of the \
         two limits",
    )
}

fn as_json(
    (n, k): (u64, u64),
    device: CpuDevice,
    peaks: &[Rate],
    cells: &[Cell],
) -> serde_json::Value {
    let rate = |rate: &Rate| {
        json!({
            "arithmetic": rate.arithmetic.name(),
            "instruction": rate.instruction,
            "set": rate.set,
            "gop_per_second": rate.giga,
        })
    };
    let cell = |cell: &Cell| {
        json!({
            "scheme": cell.scheme,
            "kernel": cell.kernel,
            "m": cell.tokens,
            "seconds": cell.seconds,
            "weight_bytes": cell.bytes,
            "gb_per_second": cell.read_rate(),
            "machine_gb_per_second": cell.read,
            "gop_per_second": cell.rate(),
            "machine_gop_per_second": cell.peak,
        })
    };
    json!({
        "backend": device.name(),
        "threads": rayon_threads(),
        "n": n,
        "k": k,
        "rates": peaks.iter().map(rate).collect::<Vec<_>>(),
        "results": cells.iter().map(cell).collect::<Vec<_>>(),
    })
}

fn drawn((n, k): (u64, u64), device: CpuDevice, cells: &[Cell]) -> String {
    let mut lines: Vec<Line> = Vec::new();
    for cell in cells {
        if lines.last().is_none_or(|line| line.name != cell.scheme) {
            let bits = 8.0 * cell.bytes as f64 / (n * k) as f64;
            let kernel = cell.kernel.split_once(", ").map_or("", |(_, kernel)| kernel);
            let note = format!("{bits:.2} bits a weight, {kernel}");
            lines.push(Line { name: cell.scheme.clone(), note, points: Vec::new() });
        }
        if let Some(line) = lines.last_mut() {
            line.points.push((cell.tokens as f64, cell.rate(), cell.roof()));
        }
    }
    let title = format!("y = x wᵀ, N × K = {n} × {k}, {}", device.name());
    let mut reads: Vec<f64> = cells.iter().map(|cell| cell.read).collect();
    let notes = [
        format!(
            "Solid: measured on {} threads, medians, weights beyond the caches.",
            rayon_threads()
        ),
        format!(
            "Dashed: the roof, reading the weights once ({:.0} GB/s) or multiplying at the peak.",
            median(&mut reads)
        ),
    ];
    plot(&title, &notes, &lines)
}
