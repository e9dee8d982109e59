//! `quantloom bench --backend cuda --transforms`: how fast stored tensors become what products read,
//! and come back, compared with a copy of as many bytes by the device, in the same run.
//!
//! As in `gpu`, buffers rotate past the L2 and a graph holds one call a copy. A figure counts the
//! bytes that are read and those that are written; the copy moves half of their sum, which it reads
//! and writes.

use anyhow::{Context as _, Result};
use quantloom::dsl::Scheme;
use quantloom::dsl::layout::Shape;
use quantloom::runtime::cuda::Cuda;
use quantloom::runtime::cuda::timing::{Lead, Timing, copies, time};
use quantloom::runtime::gpu::{ColumnOrder, Executor as _, GpuDevice, Request, Transform};
use quantloom::runtime::op::ProductError;
use quantloom::runtime::unpacked::Unpacked;
use serde_json::json;

use super::super::{print_line, table};
use super::{Arguments, normal_weight, own_type};
use crate::atomic_write::write_and_say;
use crate::progress::Progress;

/// What is measured where nothing is asked for: each layout of codes, and each kind of number.
const USUAL: [&str; 13] = [
    "ct_w4a16",
    "awq4",
    "gptq4_v1",
    "gptq4_v1_actorder",
    "gptq3_v1",
    "gptq8_v1",
    "ct_w3a16",
    "ct_w7a16",
    "ct_w8a8",
    "ct_w4a8",
    "ct_fp8_block",
    "ct_nvfp4a16",
    "quark_w_mxfp6_e3m2",
];

/// Columns of the table.
const HEADER: [&str; 8] =
    ["scheme", "buffer", "way", "MB", "microseconds", "GB/s", "copy GB/s", "of the copy"];

/// One transform, or why there is none.
struct Cell {
    scheme: String,
    buffer: String,
    way: &'static str,
    outcome: Result<Timed, String>,
}

struct Timed {
    /// Read and written.
    bytes: u64,
    time: Timing,
    /// Of the device's copy of as many.
    copy: Timing,
}

pub(super) fn run(arguments: &Arguments, device: &GpuDevice<Cuda>) -> Result<bool> {
    let executor = device.executor();
    let names: Vec<&str> = match arguments.schemes.as_slice() {
        [] => USUAL.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let schemes: Vec<Scheme> =
        names.into_iter().map(|name| arguments.products.scheme(name)).collect::<Result<_>>()?;
    print_line(format_args!("{}", executor.stream().context().info()))?;
    let (n, k) = arguments.shape;
    let progress = Progress::new("measuring", schemes.len() as u64);
    let mut cells = Vec::new();
    for scheme in &schemes {
        let measured = measured(device, scheme, Shape::matrix(n, k));
        let of = || format!("scheme {}, N x K = {n} x {k}", scheme.name);
        cells.extend(measured.with_context(of)?);
        progress.advance(1);
    }
    drop(progress);
    show((n, k), &cells)?;
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&as_json((n, k), executor, &cells))?;
        write_and_say(path, &(text + "\n"))?;
    }
    Ok(cells.iter().any(|cell| cell.outcome.is_ok()))
}

/// All buffers of a scheme's products with its usual type of x, both ways.
fn measured(device: &GpuDevice<Cuda>, scheme: &Scheme, shape: Shape) -> Result<Vec<Cell>> {
    let executor = device.executor();
    let own = own_type(scheme);
    let cell = |buffer: &str, way, outcome| Cell {
        scheme: scheme.name.clone(),
        buffer: buffer.to_owned(),
        way,
        outcome,
    };
    let Some(activation) = scheme.activations.first() else { return Ok(Vec::new()) };
    let packed = normal_weight(scheme, shape, 0)?;
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    let (target, Shape { n, k, .. }) = (executor.target(), shape);
    let request = Request::new(scheme, activation, own, target, [n, k]);
    let source = executor.source();
    let order = match source.arrangement(&request) {
        Ok(None) => None,
        Ok(Some(arrangement)) => {
            Some(ColumnOrder::of(&arrangement, &Unpacked::new(scheme, shape, &stored)?))
        }
        Err(why) => return Ok(vec![cell("", "", Err(why.to_string()))]),
    };
    let Shape { k, .. } = order.as_ref().map_or(shape, |order| order.shape(shape));
    let request = Request { k, ..request };
    let parts = match source.native(&request) {
        Ok(parts) => parts,
        Err(why) => return Ok(vec![cell("", "", Err(why.to_string()))]),
    };
    let mut cells = Vec::new();
    for part in parts {
        let moves = match source.repack_kernels(&request, &part) {
            Ok(moves) => moves,
            Err(why) => {
                cells.push(cell(&part.role.to_string(), "to native", Err(why.to_string())));
                continue;
            }
        };
        if let Err(why) = source.text(&moves.to_native) {
            cells.push(cell(&part.role.to_string(), "to native", Err(why.to_string())));
            continue;
        }
        let order = order.as_ref();
        let (native, timed) =
            timed(executor, || device.to_native(&request, &part, order, &stored))?;
        cells.push(cell(&part.role.to_string(), "to native", Ok(timed)));
        // One that is computed of several stores has no way back.
        if source.text(&moves.from_native).is_ok() {
            let back = || device.from_native(&request, &part, &native);
            let (_, back) = self::timed(executor, back)?;
            cells.push(cell(&part.role.to_string(), "back", Ok(back)));
        }
    }
    Ok(cells)
}

/// What a transform writes, and its time.
fn timed(
    executor: &Cuda,
    make: impl Fn() -> Result<Transform<Cuda>, ProductError>,
) -> Result<(Vec<u8>, Timed)> {
    let mut transforms = vec![make()?];
    let bytes = transforms[0].bytes();
    let stream = executor.stream();
    let copies = copies(bytes, stream.context().info().l2_bytes);
    while transforms.len() < copies {
        transforms.push(make()?);
    }
    let time_of_transform =
        time(stream, (copies, Lead::Burst), |copy, _| transforms[copy].queue())?;
    let native = transforms[0].result()?;
    drop(transforms);
    let mut memory = Vec::new();
    for _ in 0..copies {
        memory.push((executor.zeroed(bytes.div_ceil(2))?, executor.output(bytes.div_ceil(2))?));
    }
    let copy = time(stream, (copies, Lead::Burst), |copy, stream| {
        let (from, to) = &mut memory[copy];
        to.copy_from(stream, from)
    })?;
    Ok((native, Timed { bytes, time: time_of_transform, copy }))
}

fn show((n, k): (u64, u64), cells: &[Cell]) -> Result<()> {
    print_line(format_args!("\nN x K = {n} x {k}; bytes that are read and written"))?;
    let mut rows = table(&HEADER);
    for Cell { scheme, buffer, way, outcome } in cells {
        match outcome {
            Err(why) => {
                let mut row = vec![String::new(); HEADER.len()];
                row[0].clone_from(scheme);
                row[1].clone_from(buffer);
                row[HEADER.len() - 1] = format!("by the host: {why}");
                rows.add_row(row);
            }
            Ok(Timed { bytes, time, copy }) => {
                let rate = time.gigabytes_per_second(*bytes);
                let of_copy = copy.gigabytes_per_second(*bytes);
                rows.add_row([
                    scheme.clone(),
                    buffer.clone(),
                    (*way).to_owned(),
                    format!("{:.2}", *bytes as f64 / 1e6),
                    format!("{:.2}", time.microseconds),
                    format!("{rate:.0}"),
                    format!("{of_copy:.0}"),
                    format!("{:.0}%", 100.0 * rate / of_copy),
                ]);
            }
        }
    }
    print_line(rows)
}

fn as_json((n, k): (u64, u64), executor: &Cuda, cells: &[Cell]) -> serde_json::Value {
    let info = executor.stream().context().info();
    let cell = |Cell { scheme, buffer, way, outcome }: &Cell| match outcome {
        Err(why) => json!({ "scheme": scheme, "buffer": buffer, "by_the_host": why }),
        Ok(Timed { bytes, time, copy }) => json!({
            "scheme": scheme,
            "buffer": buffer,
            "way": way,
            "bytes": bytes,
            "us": time.microseconds,
            "us_copy": copy.microseconds,
            "replays": time.replays,
            "replays_copy": copy.replays,
        }),
    };
    json!({
        "backend": "cuda",
        "device": info.name,
        "driver": info.driver_version,
        "n": n,
        "k": k,
        "transforms": cells.iter().map(cell).collect::<Vec<_>>(),
    })
}
