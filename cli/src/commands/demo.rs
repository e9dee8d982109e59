//! The main job, without a subcommand: the checkpoint that ships with the program, whole.

use anyhow::Result;
use quantloom::dsl::Scheme;
use quantloom::runtime::checkpoint::{Checkpoint, Options};
use quantloom::runtime::cpu::CpuDevice;
use quantloom::runtime::cpu::select::select;
use quantloom_tools::check::{Finding, Subject, Verdict, check};
use quantloom_tools::measure::{Memory, rates};

use super::{bench, eprint_line, label, print_line, shape, table};

/// Seven layers in seven schemes, written by compressed-tensors 0.20 (cli/assets/README.md).
const CHECKPOINT: &[u8] = include_bytes!("../../assets/demo.safetensors");

/// N x K of the layer that is timed.
const WIDE: (u64, u64) = (4096, 4096);

pub(crate) fn run() -> Result<bool> {
    let device = super::backend::cpu();
    let checkpoint = Checkpoint::from_bytes(CHECKPOINT.to_vec(), Options::default())?;
    print_line(format_args!(
        "The checkpoint that ships with this program, written by {}: each layer recognised, \
         unpacked, multiplied, and compared with the results in the file.",
        checkpoint.format().name()
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
            schemes.push(Scheme { name: label(layer.scheme()), ..layer.scheme().clone() });
        }
    }
    print_line(rows)?;
    print_line(
        "weight: largest error in roundings of the type that the file's software computed in;",
    )?;
    print_line("product: norm of the difference over the norm of the file's own result.")?;
    let mut well = true;
    for finding in &findings {
        if let Verdict::Fail(what) = &finding.verdict {
            well = false;
            eprint_line(&format!("quantloom: {}: {what}", finding.layer));
        }
    }
    speed(device, &schemes)?;
    Ok(well)
}

/// Times of the same schemes, on weights that are read from memory.
fn speed(device: CpuDevice, schemes: &[Scheme]) -> Result<()> {
    let cells =
        bench::measure(device, schemes, WIDE, &[1], &Memory::beyond_the_caches(), &rates())?;
    print_line(format_args!(
        "\nThe same schemes on a random {} x {} layer, one token, on {} threads.",
        WIDE.0,
        WIDE.1,
        std::thread::available_parallelism().map_or(1, usize::from)
    ))?;
    bench::show(&cells)
}
