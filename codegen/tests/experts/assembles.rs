//! The vendors' compilers accept the kernels, without spills; naga accepts those in WGSL.

use std::collections::BTreeMap;

use quantloom_codegen::emit;
use quantloom_codegen::ir::{Kernel, verify};
use quantloom_codegen::jit::Jit;
use quantloom_codegen::schedule::Stack;
use quantloom_codegen::schedule::experts::{
    CombineProblem, GateProblem, RouteProblem, SortProblem, WeighProblem, activate, combine, route,
    sort, weigh,
};
use quantloom_codegen::target::{Target, target};
use quantloom_dsl::experts::{ExpertLayer, ExpertProduct, Gate, OperandOf};
use quantloom_dsl::format::{BF16, F16, F32, Number};
use quantloom_dsl::{Activation, parse};
use quantloom_runtime::gpu::{ColumnOrder, ExpertRequest, Products as _, Request};
use quantloom_runtime::source::KernelSource as _;
use quantloom_tests::tools::{clang, ptxas};
use rayon::prelude::*;

use super::function::GATES;
use crate::kernels::products::catalogue;
use crate::kernels::stacked::{asked, stack};
use quantloom_tests::sweep::Share;

/// Kernels of layers of published sizes, and of ragged ones.
fn kernels(target: &'static Target) -> Vec<Kernel> {
    let mut all = Vec::new();
    for text in [
        "128 experts of 2048 x 768, top 8, softmax renormalised, silu",
        "256 experts of 7168 x 2048, top 8, sigmoid with bias in 4 of 8 groups renormalised times 2.5, \
         silu",
        "1024 experts of 41 x 41, top 32, sqrtsoftplus with bias, silu",
    ] {
        let ExpertLayer { routing, experts, top_k, .. } = text.parse().unwrap();
        all.push(route(&RouteProblem { target, routing, experts, top_k }));
    }
    for (experts, local, slots, counted) in
        [(128, 128, 8, true), (1024, 700, 64, true), (8, 8, 16, false)]
    {
        let mapped = experts != local;
        all.extend(sort(&SortProblem { target, experts, local, mapped, slots, counted }));
    }
    for (gate, (own, intermediate)) in
        GATES.into_iter().zip([(BF16, 2880), (F16, 41), (F32, 14_336)].into_iter().cycle())
    {
        all.push(activate(&GateProblem { target, gate, own, intermediate, local: 128, slots: 16 }));
    }
    for (parts, own, output, hidden, top_k, slots) in [
        (F32, BF16, BF16, 2880, 4, Some(8)),
        (BF16, BF16, BF16, 2880, 8, Some(80)),
        (F16, F16, F16, 41, 8, Some(64)),
        (F32, F16, F32, 7168, 32, Some(64)),
        (F32, F32, F32, 41, 8, None),
    ] {
        let (local, weighted, shared) = (128, own != F16 && parts == F32, own != BF16);
        let problem = CombineProblem {
            target,
            parts,
            own,
            output,
            hidden,
            top_k,
            local,
            slots,
            weighted,
            shared,
        };
        all.push(combine(&problem));
        all.push(weigh(&WeighProblem { target, own, hidden }));
    }
    all
}

/// Schemes whose experts may read x in different ways: a static scale, under scales of groups too; a prescale;
/// columns in the order of an index, also with scales of groups of x.
const READ: [&str; 4] = [
    "weight: e2m1, scale: e4m3 per 1x16, scale: f32 per tensor, pack: [k, n], \
     activation: e2m1 { scale: e4m3 per 1x16, scale: f32 per tensor from amax / 2688 static }",
    "weight: i8, scale: f32 per channel, prescale: bf16, pack: [k, n], \
     activation: i8 { scale: f32 per tensor from amax / 127 }",
    "weight: u4 - 8, scale: f16 per 1x32, index: i32, pack: [k, n], activation: f16",
    "weight: u4 - 8, scale: f16 per 1x32, index: i32, pack: [k, n], \
     activation: i8 { scale: f32 per 1x32 from amax / 127 }",
];

/// Kernels that sort pairs and write what the first product reads of x.
fn with_operands(target: &str) -> Vec<(String, String)> {
    let layer: ExpertLayer =
        "128 experts of 2880 x 768, top 8, softmax renormalised, silu".parse().unwrap();
    let mut all = Vec::new();
    for text in [
        "weight: e4m3, scale: f32 per 128x128, pack: [k, n], activation: e4m3 { scale: f32 per 1x128 }",
        "weight: i8, scale: f32 per channel, pack: [k, n], activation: i8 { scale: f32 per token }",
    ] {
        let scheme = parse(&format!("s {{ {text} }}")).unwrap();
        let request = Request::new(&scheme, &scheme.activations[0], BF16, target, [768, 2880]);
        let of = Stack { gate: Some(Gate::Silu), ..stack(ExpertProduct::GateUp, 128, 8) };
        let stacked = asked(of, None, BF16);
        let Ok(made) = Jit.choose_stacked(&request, &stacked, 256) else { continue };
        let of_layer = ExpertRequest {
            layer: &layer,
            experts: 128,
            local: 128,
            mapped: false,
            top_k: 8,
            input_dtype: BF16,
            parts: F32,
            output: BF16,
            target,
            weighted: true,
            shared: None,
        };
        let of = (&of_layer, made.slots, 256);
        let key = Jit.order_with_operand(&request, &made.choice.key, of).unwrap();
        all.extend(key.map(|key| {
            let text = Jit.text(&key).unwrap();
            (text.entry.into_owned(), text.text.into_owned())
        }));
    }
    assert_eq!(all.is_empty(), target.starts_with("wgsl"), "{target}");
    all
}

/// The kernels of a product whose experts, or all matrices, read x in different ways: those that make the
/// operand, and the product.
fn read_by_slots(target: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (at, text) in READ.into_iter().enumerate() {
        let scheme = parse(&format!("s {{ {text} }}")).unwrap();
        let activation = &scheme.activations[0];
        let k = 2880;
        let own = match activation {
            Activation::Float(Number::Float(listed)) => *listed,
            _ => BF16,
        };
        let request = Request::new(&scheme, activation, own, target, [2880, k]);
        let columns = Jit.arrangement(&request).unwrap().map(|arrangement| {
            let index: Vec<u32> = (0..k as u32).map(|column| column * 7 % 90).collect();
            ColumnOrder::new(&arrangement, Some(&index), k).columns().len() as u64
        });
        let request = Request { k: columns.unwrap_or(k), ..request };
        // Half of them with a gate, which takes experts whose shards read alike.
        let (operand, gate) = match at % 2 {
            0 => (OperandOf::Expert, Some(Gate::Silu)),
            _ => (OperandOf::Matrix, None),
        };
        let of = Stack { gate, operand, ..stack(ExpertProduct::GateUp, 128, 4) };
        let stacked = asked(of, None, if gate.is_some() { own } else { F32 });
        let made = Jit.choose_stacked(&request, &stacked, 16).unwrap();
        let product = Some(&made.choice.key);
        let mut keys = Jit.operand_stacked(&request, &stacked, product, made.slots).unwrap();
        assert!(!keys.is_empty(), "{text}");
        keys.push(made.choice.key);
        all.extend(keys.iter().map(|key| {
            let text = Jit.text(key).unwrap();
            (text.entry.into_owned(), text.text.into_owned())
        }));
    }
    all
}

/// The products of a small expert layer with many tokens, of every scheme of the catalogue. A block of two warps
/// copies rows of x from as many places as it has rows.
fn tiles(target: &str, share: Share) -> Vec<(String, String)> {
    let mut all = BTreeMap::new();
    let schemes = catalogue().into_iter().filter(|scheme| scheme.experts.is_none());
    for scheme in &share.of(schemes) {
        for activation in &scheme.activations {
            for (product, n, k) in
                [(ExpertProduct::GateUp, 408, 264), (ExpertProduct::Down, 264, 408)]
            {
                let up = product == ExpertProduct::GateUp;
                let request = Request {
                    scheme,
                    activation,
                    input_dtype: BF16,
                    target,
                    n,
                    k,
                    x_columns: k,
                    scales_in_range: true,
                    layout_of_range: true,
                };
                let (gate, weighted) = (up.then_some(Gate::Silu), !up);
                let of = Stack { gate, weighted, ..stack(product, 8, 2) };
                let stacked = asked(of, None, if up { BF16 } else { F32 });
                let made = Jit.choose_stacked(&request, &stacked, 200);
                let made = made.unwrap_or_else(|why| panic!("{}: {why}", scheme.name));
                let text = Jit.text(&made.choice.key).unwrap();
                all.insert(text.entry.into_owned(), text.text.into_owned());
            }
        }
    }
    all.into_iter().collect()
}

/// The source of each kernel, with its name.
fn sources(name: &str) -> Vec<(String, String)> {
    let emitted = |kernel: Kernel| {
        let kernel = verify(kernel).unwrap_or_else(|refusals| panic!("{refusals}"));
        (kernel.name.clone(), emit::source(&kernel).unwrap())
    };
    let own = kernels(target(name).unwrap()).into_iter().map(emitted);
    own.chain(read_by_slots(name)).chain(with_operands(name)).collect()
}

/// The kernels are compiled without a complaint.
fn all_clean(sources: &[(String, String)], complaint: impl Fn(&str) -> Option<String> + Sync) {
    let wrong = sources.par_iter().filter_map(|(kernel, source)| {
        complaint(source).map(|complaint| format!("{kernel}: {complaint}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn kernels_assemble_without_spills() {
    let Some(ptxas) = ptxas::find() else { return };
    for name in ["sm_80", "sm_90a"] {
        all_clean(&Share::new(4, 2).of(sources(name)), |source| {
            let assembled = ptxas.assemble(source, name);
            (!assembled.is_clean()).then_some(assembled.report)
        });
    }
}

#[test]
fn kernels_compile_for_amd_without_spills() {
    let Some(clang) = clang::find() else { return };
    for name in ["gfx942", "gfx950", "gfx1100", "gfx1201"] {
        let mut all = Share::new(4, 4).of(sources(name));
        all.extend(tiles(name, Share::new(40, 16)));
        all_clean(&all, |source| {
            let compiled = clang.compile(source, name);
            (!compiled.is_clean()).then(|| format!("{compiled:?}"))
        });
    }
}

#[test]
fn kernels_are_wgsl() {
    for name in ["wgsl", "wgsl_subgroups"] {
        for (_, source) in Share::new(8, 4).of(sources(name)) {
            crate::wgsl::check_on(name, &source);
        }
    }
}
