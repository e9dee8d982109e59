//! The main job, without a subcommand: the checkpoint that ships with the program, whole.

use std::time::Duration;

use anyhow::Result;
use quantloom::dsl::Scheme;
use quantloom::dsl::format::F32;
use quantloom::dsl::layout::{Component, Grain, Shape};
use quantloom::dsl::reference::Plain;
use quantloom::runtime::check::{Finding, Subject, Verdict, check};
use quantloom::runtime::checkpoint::{Checkpoint, Options};
use quantloom::runtime::device::Device;
use quantloom::runtime::measure::{Arithmetic, Memory, median_seconds, rates};
use quantloom::runtime::op::{Op as _, Values, ValuesMut, Workspace};
use quantloom::runtime::pack::{pack, quantise_rows};
use quantloom::runtime::select::select;
use quantloom::runtime::unpacked::Unpacked;

use super::{label, say, say_error, shape, table};
use crate::progress::Progress;

/// Seven layers in seven schemes, written by compressed-tensors 0.20 (assets/README.md).
const CHECKPOINT: &[u8] = include_bytes!("../../assets/demo.safetensors");

/// N = K of the synthetic layer.
const WIDE: u64 = 4096;

pub(crate) fn run() -> Result<bool> {
    let device = super::backend::device("auto")?;
    let checkpoint = Checkpoint::from_bytes(CHECKPOINT.to_vec(), Options::default())?;
    say(format_args!(
        "The checkpoint that ships with this program, written by {}: each layer recognised, \
         unpacked, multiplied, and compared with the results in the file.",
        checkpoint.family().name()
    ))?;
    let findings = check(&checkpoint, &device);
    let mut rows = table(&["layer", "scheme", "shape", "backend, kernel", "weight", "product", ""]);
    let mut schemes: Vec<Scheme> = Vec::new();
    for (name, layer) in checkpoint.layers() {
        let Ok(layer) = layer else { continue };
        let of =
            |subject: Subject| findings.iter().find(|f| f.layer == name && f.subject == subject);
        let (weight, product) = (of(Subject::Weight), of(Subject::Product));
        let well = [weight, product].iter().all(|finding| {
            finding.is_some_and(|finding: &Finding| finding.verdict == Verdict::Pass)
        });
        let weight = weight.and_then(|finding| finding.error);
        let product = product.and_then(|finding| finding.error);
        rows.add_row([
            name.to_owned(),
            label(layer.scheme()),
            shape(layer.shape()),
            select(&device, layer.scheme(), layer.shape()).kernel.to_string(),
            weight.map_or("not compared".to_owned(), |error| format!("{error:.2} roundings")),
            product.map_or("not compared".to_owned(), |error| format!("{:.2}%", error * 100.0)),
            if well { "ok".to_owned() } else { "FAILED".to_owned() },
        ]);
        if !schemes.iter().any(|scheme| scheme.same_meaning(layer.scheme())) {
            schemes.push(layer.scheme().clone());
        }
    }
    say(rows)?;
    say("weight: largest error in roundings of the type that the file's software computed in;")?;
    say("product: norm of the difference over the norm of the file's own result.")?;
    let mut well = true;
    for finding in &findings {
        if let Verdict::Fail(what) = &finding.verdict {
            well = false;
            say_error(&format!("quantloom: {}: {what}", finding.layer));
        }
    }
    speed(device, &schemes)?;
    Ok(well)
}

fn speed(device: Device, schemes: &[Scheme]) -> Result<()> {
    let read = Memory::beyond_the_caches().best_of(5);
    let fma = rates().into_iter().find(|rate| rate.arithmetic == Arithmetic::F32Fma);
    let multiply = fma.map_or(f64::NAN, |rate| rate.giga);
    say(format_args!(
        "\nThe same schemes on a synthetic {WIDE} x {WIDE} layer, one token. This machine reads \
         {read:.1} GB/s and multiplies {multiply:.0} GOP/s (f32) on {} threads.",
        std::thread::available_parallelism().map_or(1, usize::from)
    ))?;
    let mut rows = table(&["scheme", "time", "weights read", "of read peak", "GOP/s", "of peak"]);
    let progress = Progress::new("measuring", schemes.len() as u64);
    for scheme in schemes {
        let weight = device.prepare(scheme, &synthetic(scheme)?)?;
        let x: Vec<f32> = (0..WIDE).map(|k| normal(k ^ 0x5eed) as f32).collect();
        let mut y = vec![0.0; WIDE as usize];
        let mut workspace = Workspace::new(weight.workspace_size(1));
        let seconds = median_seconds(5, Duration::from_millis(300), || {
            let y = ValuesMut::F32(&mut y);
            let product = weight.matmul_into(0, Values::F32(&x), y, &mut workspace);
            std::hint::black_box(product.ok());
        });
        let rate = weight.bytes() as f64 / seconds / 1e9;
        let operations = 2.0 * (WIDE * WIDE) as f64 / seconds / 1e9;
        rows.add_row([
            label(scheme),
            format!("{:.2} ms", seconds * 1e3),
            format!("{rate:.1} GB/s"),
            format!("{:.0}%", rate / read * 100.0),
            format!("{operations:.1}"),
            format!("{:.0}%", operations / multiply * 100.0),
        ]);
        progress.advance(1);
    }
    drop(progress);
    say(rows)?;
    say(
        "weights read: native codes, scales and zero points. One layer is measured again and again:",
    )?;
    say("where it fits the last cache, it is read from there, faster than from memory.")?;
    Ok(())
}

/// A layer of random normal weights: 256 rows quantised, stacked to N rows.
fn synthetic(scheme: &Scheme) -> Result<Unpacked> {
    const ROWS: u64 = 256;
    let few = Shape::matrix(ROWS, WIDE);
    let w: Vec<f64> = (0..ROWS * WIDE).map(normal).collect();
    let plain = quantise_rows(scheme, few, &w, F32, None, &|_| {})?;
    let stacked = |component: Component, codes: &Vec<u32>| {
        let once = scheme.grains(component).is_none_or(|grains| grains.rows == Grain::All);
        codes.repeat(if once { 1 } else { (WIDE / ROWS) as usize })
    };
    let components = plain.components.iter();
    let components = components.map(|(component, codes)| (*component, stacked(*component, codes)));
    let plain = Plain { shape: Shape::matrix(WIDE, WIDE), components: components.collect() };
    let packed = pack(scheme, &plain)?;
    Ok(Unpacked::new(scheme, plain.shape, &|name| packed.get(name).map(Vec::as_slice))?)
}

/// A fixed sequence of nearly normal values: the sum of four uniform ones.
fn normal(at: u64) -> f64 {
    let mut state = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut sum = 0.0;
    for _ in 0..4 {
        state ^= state >> 31;
        state = state.wrapping_mul(0xd6e8_feb8_6659_fd93);
        sum += (state >> 40) as f64 / (1u64 << 24) as f64 - 0.5;
    }
    f64::from((sum * 1.7) as f32)
}
