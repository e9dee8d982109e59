//! `quantloom bench` on a GPU through HIP or wgpu: the time of a call in a row of calls, by the clock of
//! the host.
//!
//! Calls are queued one behind the other on the same weight, and the last result is awaited: what is
//! measured is the kernels and what the API adds to each launch, without uploads.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quantloom::dsl::Scheme;
use quantloom::dsl::layout::Shape;
use quantloom::runtime::gpu::{Executor, GpuDevice};
use quantloom::runtime::op::ProductError;

use super::super::sizes::Tokens;
use super::super::{print_line, table};
use super::{Arguments, NormalX, USUAL, normal_weight, own_type};

/// What a row of calls takes at least.
const LONG_ENOUGH: Duration = Duration::from_millis(200);

pub(super) fn run<E: Executor>(arguments: &Arguments, device: &GpuDevice<E>) -> Result<bool> {
    let names: Vec<&str> = match arguments.schemes.as_slice() {
        [] => USUAL.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let (n, k) = arguments.shape;
    let Tokens(tokens) = &arguments.m;
    let mut rows = table(&["scheme", "M", "us", "GB/s", "GFLOP/s", "kernel"]);
    let mut any = false;
    for scheme in names.into_iter().map(|name| arguments.products.scheme(name)) {
        let scheme = scheme?;
        for tokens in tokens {
            let cell = measured(device, &scheme, Shape::matrix(n, k), *tokens)
                .with_context(|| format!("scheme {}, N x K = {n} x {k}", scheme.name))?;
            let name = scheme.name.clone();
            match cell {
                Ok(cell) => {
                    let rate = |count: f64| format!("{:.1}", count / cell.seconds / 1e9);
                    let operations = 2.0 * (*tokens as f64) * (n as f64) * (k as f64);
                    let micros = format!("{:.1}", 1e6 * cell.seconds);
                    let (read, done) = (rate(cell.bytes as f64), rate(operations));
                    rows.add_row([name, tokens.to_string(), micros, read, done, cell.kernel]);
                    any = true;
                }
                Err(why) => {
                    let none = String::new;
                    let why = format!("not scheduled: {why}");
                    rows.add_row([name, tokens.to_string(), none(), none(), none(), why]);
                }
            }
        }
    }
    print_line(rows)?;
    Ok(any)
}

struct Cell {
    seconds: f64,
    /// Of codes and numbers.
    bytes: u64,
    kernel: String,
}

/// The inner error is the reason why nothing is scheduled.
fn measured<E: Executor>(
    device: &GpuDevice<E>,
    scheme: &Scheme,
    shape: Shape,
    tokens: usize,
) -> Result<Result<Cell, String>> {
    let own = own_type(scheme);
    let packed = normal_weight(scheme, shape, 0)?;
    let stored = |name: &str| packed.get(name).map(Vec::as_slice);
    let weight = match device.prepare_stored(scheme, shape, &stored) {
        Ok(weight) => weight,
        Err(ProductError::NotScheduled(why)) => return Ok(Err(why.to_string())),
        Err(error) => return Err(error.into()),
    };
    let x = NormalX::tokens(own, tokens, shape.k);
    let choice = weight.choice(own, tokens as u64)?;
    let mut tensors = weight.tensors(x.values())?;
    let mut row = |calls: u32| -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..calls {
            weight.queue(&mut tensors, false).map_err(Into::<ProductError>::into)?;
        }
        weight.result(&tensors).map_err(Into::<ProductError>::into)?;
        Ok(start.elapsed())
    };
    // The first call compiles nothing any more, but the driver may still be at it.
    row(1)?;
    let mut calls = 1;
    loop {
        let time = row(calls)?;
        if time >= LONG_ENOUGH {
            let seconds = time.as_secs_f64() / f64::from(calls);
            let kernel = choice.key.schedule.to_string();
            return Ok(Ok(Cell { seconds, bytes: weight.bytes(own), kernel }));
        }
        calls *= 2;
    }
}
