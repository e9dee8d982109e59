//! Kernels with table lookups: vendors' compilers accept them without spills, with the table in
//! shared memory next to the pipeline's stages.

use std::collections::BTreeSet;

use quantloom_codegen::emit::{hip, ptx};
use quantloom_codegen::ir::{Kernel, Verified, verify};
use quantloom_codegen::schedule::{Problem, choose};
use quantloom_codegen::target::target;
use quantloom_dsl::parse;
use quantloom_tests::sweep::Share;
use quantloom_tests::tools::{clang, ptxas};
use rayon::prelude::*;

/// Values that use all mantissa bits: 8-bit codes, codes in bit planes, and floats out of f16's
/// range.
const WEIGHTS: [(&str, &str); 4] =
    [("book 256", "bf16"), ("book 32", "f16"), ("e6m1", "f16"), ("book 8", "bf16")];

fn weight(text: &str) -> String {
    let Some(len) = text.strip_prefix("book ") else { return text.to_owned() };
    let values = (0..len.parse::<u32>().unwrap()).map(|code| f64::from(code).sin().to_string());
    format!("codebook({})", values.collect::<Vec<_>>().join(", "))
}

/// The kernels for few and for many tokens on a target, and whether each has a table.
fn kernels_for(name: &str) -> Vec<(Verified<Kernel>, bool)> {
    let mut all = Vec::new();
    for (code, x) in WEIGHTS {
        let text = format!(
            "a {{ weight: {}, scale: f16 per 1x32, pack: [k, n], activation: {x} }}",
            weight(code)
        );
        let scheme = parse(&text).unwrap_or_else(|faults| panic!("{text}: {faults}"));
        let problem =
            Problem::new(&scheme, &scheme.activations[0], target(name).unwrap(), (4096, 4096));
        let problem = problem.unwrap_or_else(|why| panic!("{code} on {name}: {why}"));
        for tokens in [1, 16, 64] {
            let kernel = choose(&problem, tokens).unwrap().write(&problem).unwrap();
            let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
            all.push((kernel, code != "book 8"));
        }
    }
    all
}

/// What vendors' compilers are given: a few kernels by `cargo test`, all by `.ci/run`.
fn few<T>(kernels: Vec<T>) -> Vec<T> {
    Share::new(3, 1).of(kernels)
}

#[test]
fn tables_are_in_shared_memory() {
    for name in ["sm_80", "sm_90a", "gfx942", "gfx950", "gfx1100", "gfx1201"] {
        for (kernel, has_table) in kernels_for(name) {
            let table = kernel.shared.iter().find(|block| block.name == "table");
            assert_eq!(table.is_some(), has_table, "{}", kernel.name);
        }
    }
    // A shader has a table for every codebook.
    assert!(kernels_for("wgsl").iter().all(|(kernel, _)| {
        kernel.shared.iter().any(|block| block.name == "table") || kernel.name.starts_with("e6m1")
    }));
}

#[test]
fn tables_assemble() {
    let Some(ptxas) = ptxas::find() else { return };
    let wrong = ["sm_80", "sm_89", "sm_90a", "sm_120"].par_iter().flat_map_iter(|sm| {
        few(kernels_for(sm)).into_iter().filter_map(|(kernel, _)| {
            let assembled = ptxas.assemble(&ptx::emit(&kernel).unwrap(), sm);
            (!assembled.is_clean()).then(|| format!("{}: {}", kernel.name, assembled.report))
        })
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tables_compile_for_amd() {
    let Some(clang) = clang::find() else { return };
    let wrong = ["gfx942", "gfx950", "gfx1100", "gfx1201"].par_iter().flat_map_iter(|chip| {
        few(kernels_for(chip)).into_iter().filter_map(|(kernel, _)| {
            let compiled = clang.compile(&hip::emit(&kernel).unwrap(), chip);
            let planned = compiled.shared == kernel.shared_map().bytes;
            (!compiled.is_clean() || !planned).then(|| format!("{}: {compiled:?}", kernel.name))
        })
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Of the two words of a table of bytes that a permutation reads one is in a register all the time, since the assembler copies a
/// constant for each use: as many words as tables, each no constant to it.
#[test]
fn byte_tables_stay_in_registers() {
    let integers: Vec<String> = (0..16).map(|code| (code * code - 100).to_string()).collect();
    let halves: Vec<String> =
        (0..16).map(|code| format!("{}", f64::from(code * code * 7 + 5) / 64.0)).collect();
    for (values, x, tables) in [(&integers, "bf16", 2), (&integers, "f16", 2), (&halves, "f16", 4)]
    {
        let text = format!(
            "a {{ weight: codebook({}), scale: f16 per 1x32, pack: [k, n], activation: {x} }}",
            values.join(", ")
        );
        let scheme = parse(&text).unwrap();
        let target = target("sm_90a").unwrap();
        let problem = Problem::new(&scheme, &scheme.activations[0], target, (4096, 4096)).unwrap();
        for tokens in [1, 16, 64] {
            let kernel = choose(&problem, tokens).unwrap().write(&problem).unwrap();
            let text = ptx::emit(&verify(kernel).unwrap()).unwrap();
            let permutations =
                text.lines().filter_map(|line| line.trim().strip_prefix("prmt.b32 "));
            let low: BTreeSet<&str> =
                permutations.filter_map(|operands| operands.split(", ").nth(1)).collect();
            assert!(low.iter().all(|low| low.starts_with(['%', '$'])), "{low:?}");
            let words: Vec<&str> = low.into_iter().filter(|low| low.starts_with("%u")).collect();
            assert_eq!(words.len(), tables, "{text}");
            for word in words {
                let made = format!("xor.b32 {word}, %no_thread, 0x{};", &word[2..]);
                assert!(text.contains(&made), "{made}");
            }
            if let Some(ptxas) = ptxas::find() {
                let assembled = ptxas.assemble(&text, "sm_90a");
                assert!(assembled.is_clean(), "{}", assembled.report);
            }
        }
    }
}
