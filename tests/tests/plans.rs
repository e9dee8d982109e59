//! The planner's statements about CPUs agree with what CPUs run.

use quantloom::codegen::plan::plan;
use quantloom::codegen::target::target;
use quantloom::runtime::cpu::CpuDevice;
use quantloom::runtime::cpu::native::Path;
use quantloom::runtime::cpu::select::select;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Accumulate, parse};

/// Integer sums in both, or in neither: groups shorter than half a chunk of codes, padded or not,
/// scales and zero points of x along columns, codes that are not integers, and quantisers for only some types of x.
#[test]
fn integer_sums_are_planned_where_they_run() {
    let mut integers = 0;
    for weight in ["u4 - 8", "i8", "e4m3", "e2m1", "codebook(0, 1, -1, 2)", "codebook(0, 0.3)"] {
        for group in ["1x4", "1x8", "1x16", "1x24", "1x32", "1x40", "1x128", "channel", "32x16"] {
            for activation in [
                "bf16",
                "i8 { scale: f32 per token }",
                "i4 { scale: own per tensor }",
                "i8 { zero: i8, scale: f32 per token }",
                "i8 { scale: f32 per 1x128 }",
                "i8 { scale: f16 per 1x16 }",
                "i8 { scale: f32 per 1x24 }",
                "i8 { scale: f32 per 1x48 }",
                "i8 { zero: i8, scale: f32 per 1x64 }",
                "u8 { zero: u8, scale: f32 per 1x48 }",
                "u8 { scale: f32 per token }",
                "u7 { scale: f32 per 1x16 }",
                "e2m1 { scale: e8m0 per 1x32 from pow2 }",
                "e2m3 { scale: f32 per token }",
                "e3m2 { scale: f32 per token }",
                "i4 { scale: e8m0 per 1x32, scale: f32 per token }",
                "e4m3 { scale: f32 per token }",
                "bf16 | i8 { scale: f32 per token }",
                "i8 { scale: f32 per token } | bf16",
            ] {
                let text = format!(
                    "s {{ weight: {weight}, scale: f32 per {group}, pack: [k, n], activation: \
                     {activation} }}"
                );
                let scheme = parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults}"));
                let shape = Shape::matrix(64, 4096);
                let runs = select(&CpuDevice::portable(), &scheme, shape).kernel.path == Path::Dot;
                for name in ["portable", "x86", "neon"] {
                    let mut planned = scheme.activations.iter().map(|activation| {
                        let plan = plan(&scheme, activation, target(name).unwrap());
                        let plan = plan.unwrap_or_else(|why| panic!("{text} on {name}: {why}"));
                        plan.compute.product.sum == Accumulate::I32
                    });
                    assert_eq!(planned.any(|sums| sums), runs, "{text} on {name}");
                }
                integers += usize::from(runs);
            }
        }
    }
    assert!(integers > 20, "{integers}");
}
