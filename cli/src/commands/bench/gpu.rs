//! `quantloom bench --backend cuda`: times as a model meets them, next to the time of reading.
//!
//! The weights rotate over copies that exceed the L2 twice; a graph holds one call a copy; a figure
//! is the median over replays. x and y are the same for all copies, as the peers have it.

use std::time::Instant;

use anyhow::{Context as _, Result};
use quantloom::dsl::format::FloatFormat;
use quantloom::dsl::layout::Shape;
use quantloom::dsl::{Accuracy, Scheme};
use quantloom::runtime::cuda::timing::{Lead, Timings, copies, time_both};
use quantloom::runtime::cuda::{Cuda, ImageCache, Stream};
use quantloom::runtime::gpu::{ChosenKernel, Executor as _, GpuDevice, GpuWeight, ProductTensors};
use quantloom::runtime::op::ProductError;
use quantloom_tools::cuda::ReadRoofline;
use serde_json::json;

use super::super::sizes::Tokens;
use super::super::{print_line, table};
use super::{Arguments, NormalX, normal_weight, own_type};
use crate::atomic_write::write_and_say;
use crate::progress::Progress;

/// What is measured where nothing is asked for.
const USUAL: [&str; 2] = ["ct_w4a16", "ct_w4a16_asym"];

/// Columns of the table.
const HEADER: [&str; 11] = [
    "scheme",
    "M",
    "programmatic",
    "serial",
    "product alone",
    "floor",
    "floor, serial",
    "GB/s",
    "TFLOP/s",
    "first use",
    "kernel",
];

/// A product of one M, or why there is none.
struct Cell {
    scheme: String,
    accuracy: Accuracy,
    tokens: usize,
    outcome: Result<Timed, String>,
}

struct Timed {
    kernel: String,
    /// Milliseconds from the choice to a loaded kernel: emitted, then read from the cache of images
    /// or compiled; next to nothing if an earlier cell has loaded it.
    first_use: f64,
    /// Bytes of codes, scales and zero points.
    bytes: u64,
    times: Timings,
    /// The product alone, where a kernel of its own makes its operand of x.
    product: Option<Timings>,
    /// Reading those bytes.
    floor: Timings,
}

pub(super) fn run(arguments: &Arguments, device: &GpuDevice<Cuda>) -> Result<bool> {
    let executor = device.executor();
    let context = executor.stream().context();
    let names: Vec<&str> = match arguments.schemes.as_slice() {
        [] => USUAL.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let schemes: Vec<Scheme> =
        names.into_iter().map(|name| arguments.products.scheme(name)).collect::<Result<_>>()?;
    let floor = ReadRoofline::new(Stream::new(context)?, &ImageCache::from_environment())?;
    print_line(format_args!("{}", context.info()))?;
    let (n, k) = arguments.shape;
    let Tokens(tokens) = &arguments.m;
    let progress = Progress::new("measuring", (schemes.len() * tokens.len()) as u64);
    let mut cells = Vec::new();
    for scheme in &schemes {
        let own = own_type(scheme);
        let cell = |tokens, outcome| Cell {
            scheme: scheme.name.clone(),
            accuracy: scheme.accuracy,
            tokens,
            outcome,
        };
        let bench =
            Bench::new((device, arguments.lead()), &floor, scheme, own, Shape::matrix(n, k))
                .with_context(|| format!("scheme {}, N x K = {n} x {k}", scheme.name))?;
        for tokens in tokens {
            cells.push(match &bench {
                Ok(bench) => cell(*tokens, bench.measure(*tokens)?),
                Err(why) => cell(*tokens, Err(why.clone())),
            });
            progress.advance(1);
        }
    }
    drop(progress);
    show(arguments, &cells)?;
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&as_json(arguments, device, &cells))?;
        write_and_say(path, &(text + "\n"))?;
    }
    Ok(cells.iter().any(|cell| cell.outcome.is_ok()))
}

/// A weight, as often as it takes to be beyond the L2.
struct Copies<'a> {
    device: &'a GpuDevice<Cuda>,
    lead: Lead,
    own: FloatFormat,
    weights: Vec<GpuWeight<Cuda>>,
}

impl<'a> Copies<'a> {
    /// The inner error is the reason why nothing is scheduled.
    fn new(
        (device, lead): (&'a GpuDevice<Cuda>, Lead),
        scheme: &Scheme,
        own: FloatFormat,
        shape: Shape,
    ) -> Result<Result<Self, String>> {
        // With one type of x, so that the weight is there once.
        let only = scheme.with_input(own);
        let packed = normal_weight(scheme, shape, 0)?;
        let stored = |name: &str| packed.get(name).map(Vec::as_slice);
        let first = match device.prepare_stored(&only, shape, &stored) {
            Ok(weight) => weight,
            Err(ProductError::NotScheduled(why)) => return Ok(Err(why.to_string())),
            Err(error) => return Err(error.into()),
        };
        drop(packed);
        let info = device.executor().stream().context().info();
        let bytes = first.bytes(own);
        let mut weights = vec![first];
        while weights.len() < copies(bytes, info.l2_bytes) {
            weights.push(weights[0].copied()?);
        }
        Ok(Ok(Self { device, lead, own, weights }))
    }

    /// One of them.
    fn weight(&self) -> &GpuWeight<Cuda> {
        &self.weights[0]
    }

    /// The time of a call: of all its kernels.
    fn time(&self, tokens: usize, choice: &ChosenKernel) -> Result<Timings> {
        let mut tensors = self.tensors(tokens, choice)?;
        let stream = self.device.executor().stream();
        Ok(time_both(stream, (self.weights.len(), self.lead), |copy, _, overlap| {
            self.weights[copy].queue(&mut tensors, overlap)
        })?)
    }

    /// The time of the product alone, where a kernel of its own makes its operand of x.
    fn time_product(&self, tokens: usize, choice: &ChosenKernel) -> Result<Option<Timings>> {
        let mut tensors = self.tensors(tokens, choice)?;
        if !tensors.has_operand() {
            return Ok(None);
        }
        let stream = self.device.executor().stream();
        self.weight().queue(&mut tensors, false)?;
        Ok(Some(time_both(stream, (self.weights.len(), self.lead), |copy, _, overlap| {
            self.weights[copy].queue_product(&mut tensors, overlap)
        })?))
    }

    /// x, and room for y.
    fn tensors(&self, tokens: usize, choice: &ChosenKernel) -> Result<ProductTensors<Cuda>> {
        let x = NormalX::tokens(self.own, tokens, self.shape().k);
        Ok(self.weight().tensors_for(choice, x.values())?)
    }

    fn shape(&self) -> Shape {
        use quantloom::runtime::op::Op as _;
        self.weight().shape()
    }
}

/// Copies of a weight, and the time of reading one.
struct Bench<'a> {
    copies: Copies<'a>,
    floor: Timings,
}

impl<'a> Bench<'a> {
    /// The inner error is the reason why nothing is scheduled.
    fn new(
        device: (&'a GpuDevice<Cuda>, Lead),
        floor: &ReadRoofline,
        scheme: &Scheme,
        own: FloatFormat,
        shape: Shape,
    ) -> Result<Result<Self, String>> {
        let copies = match Copies::new(device, scheme, own, shape)? {
            Ok(copies) => copies,
            Err(why) => return Ok(Err(why)),
        };
        let floor = floor.time(copies.weight().bytes(own))?;
        Ok(Ok(Self { copies, floor }))
    }

    fn measure(&self, tokens: usize) -> Result<Result<Timed, String>> {
        let (own, weight) = (self.copies.own, self.copies.weight());
        let choice = match weight.choice(own, tokens as u64) {
            Ok(choice) if choice.tokens >= tokens as u64 => choice,
            Ok(choice) => {
                return Ok(Err(format!("a launch takes {} rows of x at most", choice.tokens)));
            }
            Err(ProductError::NotScheduled(why)) => return Ok(Err(why.to_string())),
            Err(error) => return Err(error.into()),
        };
        let start = Instant::now();
        self.copies.device.executor().kernel(&choice.key)?;
        let first_use = start.elapsed().as_secs_f64() * 1e3;
        let times = self.copies.time(tokens, &choice)?;
        let product = self.copies.time_product(tokens, &choice)?;
        let kernel = choice.key.schedule.to_string();
        let bytes = weight.bytes(own);
        Ok(Ok(Timed { kernel, first_use, bytes, times, product, floor: self.floor.clone() }))
    }
}

fn show(arguments: &Arguments, cells: &[Cell]) -> Result<()> {
    let (n, k) = arguments.shape;
    print_line(format_args!(
        "\nN x K = {n} x {k}; microseconds a call, in brackets over the floor"
    ))?;
    let mut rows = table(&HEADER);
    for cell in cells {
        let (scheme, tokens) = (cell.scheme.clone(), cell.tokens.to_string());
        let timed = match &cell.outcome {
            Ok(timed) => timed,
            Err(why) => {
                let mut row = vec![String::new(); HEADER.len()];
                row[0] = scheme;
                row[1] = tokens;
                row[HEADER.len() - 1] = format!("not scheduled: {why}");
                rows.add_row(row);
                continue;
            }
        };
        let Timings { serial, overlapped } = &timed.times;
        let alone = timed.product.as_ref().map_or_else(String::new, |product| {
            let [early, late] =
                [&product.overlapped, &product.serial].map(|time| time.microseconds);
            format!("{early:.2} / {late:.2}")
        });
        let over = |time: f64, floor: f64| format!("{time:.2} ({:.2})", time / floor);
        let (early, late) = (overlapped.microseconds, serial.microseconds);
        let operations = 2.0 * (n * k) as f64 * cell.tokens as f64;
        rows.add_row([
            scheme,
            tokens,
            over(early, timed.floor.overlapped.microseconds),
            over(late, timed.floor.serial.microseconds),
            alone,
            format!("{:.2}", timed.floor.overlapped.microseconds),
            format!("{:.2}", timed.floor.serial.microseconds),
            format!("{:.0}", overlapped.gigabytes_per_second(timed.bytes)),
            format!("{:.1}", operations / early / 1e6),
            format!("{:.1} ms", timed.first_use),
            timed.kernel.clone(),
        ]);
    }
    print_line(rows)?;
    print_line(format_args!(
        "programmatic: a launch may start before the one before it has ended; product alone: without the \
         kernel that quantises, gathers or pads x, programmatic / serial; floor: a kernel that only reads \
         codes, scales and zero points, launched in the same way{}",
        arguments.note()
    ))
}

fn as_json(arguments: &Arguments, device: &GpuDevice<Cuda>, cells: &[Cell]) -> serde_json::Value {
    let (n, k) = arguments.shape;
    let info = device.executor().stream().context().info();
    let cell = |cell: &Cell| match &cell.outcome {
        Err(why) => json!({ "scheme": cell.scheme, "m": cell.tokens, "not_scheduled": why }),
        Ok(timed) => json!({
            "scheme": cell.scheme,
            "accuracy": cell.accuracy.name(),
            "m": cell.tokens,
            "kernel": timed.kernel,
            "ms_first_use": timed.first_use,
            "weight_bytes": timed.bytes,
            "copies": timed.times.serial.calls,
            "us_programmatic": timed.times.overlapped.microseconds,
            "us_serial": timed.times.serial.microseconds,
            "us_product_programmatic":
                timed.product.as_ref().map(|product| product.overlapped.microseconds),
            "us_product_serial":
                timed.product.as_ref().map(|product| product.serial.microseconds),
            "us_floor_programmatic": timed.floor.overlapped.microseconds,
            "us_floor_serial": timed.floor.serial.microseconds,
            "replays_programmatic": timed.times.overlapped.replays,
            "replays_serial": timed.times.serial.replays,
        }),
    };
    json!({
        "backend": "cuda",
        "device": info.name,
        "driver": info.driver_version,
        "n": n,
        "k": k,
        "sustained": arguments.sustained,
        "results": cells.iter().map(cell).collect::<Vec<_>>(),
    })
}
