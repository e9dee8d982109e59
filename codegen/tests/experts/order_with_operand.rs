//! One kernel that sorts pairs and writes the operand of x: the same bytes as the kernels that do one of both.

use quantloom_codegen::ir::{Binary, Compare, Kernel, Op, Operand};
use quantloom_codegen::jit::{Jit, JitWithOverrides};
use quantloom_dsl::experts::{ExpertLayer, ExpertProduct, OperandOf};
use quantloom_dsl::format::{BF16, F32, Number, Overflow};
use quantloom_dsl::parse;
use quantloom_runtime::gpu::{ExpertRequest, Products as _, Request, Stacked};
use quantloom_runtime::source::KernelKey;
use quantloom_tests::sweep::Share;

use super::mutations::found;
use super::sort::Pairs;
use super::{Launched, TARGETS, random};
use crate::kernels::mutation::{Mutation, gone};

/// Scales of groups in the order of tokens and in tiles, of rows, below a prescale, and one that is given; all experts read x
/// alike.
const SCHEMES: [&str; 5] = [
    "weight: e4m3, scale: f32 per 128x128, pack: [k, n], activation: e4m3 { scale: f32 per 1x128 }",
    "weight: i8, scale: f32 per channel, pack: [k, n], activation: i8 { scale: f32 per token }",
    "weight: e2m1, scale: e8m0 per 1x32, pack: [k, n], activation: e2m1 { scale: e8m0 per 1x32 }",
    "weight: i8, scale: f32 per channel, prescale: bf16, pack: [k, n], \
     activation: i8 { scale: f32 per token from amax / 127 }",
    "weight: i8, scale: f32 per channel, pack: [k, n], \
     activation: i8 { scale: f32 per tensor from amax / 127 static }",
];
/// Columns of x: two blocks of a row, of which the second one has vectors beyond it; of rows with one scale two vectors a
/// thread.
const K: u64 = 2088;
/// Tokens and their experts: pairs of two chunks, the second one not full.
const TOKENS: usize = 90;
const TOP_K: u64 = 4;

/// The kernel that does both, and the kernels that do one of both.
struct Keys {
    slots: u32,
    both: KernelKey,
    apart: Vec<KernelKey>,
}

/// Why there are no keys.
#[derive(Debug, PartialEq)]
enum Without {
    Product,
    /// There is a product, but no kernel does both.
    Kernel,
}

/// The keys for a scheme on a target and so many tokens.
fn keys(
    scheme: &str,
    target: &str,
    (warp_groups, tokens): (bool, u64),
    experts: (u64, u64),
) -> Result<Keys, Without> {
    let scheme = parse(&format!("s {{ {scheme} }}")).unwrap();
    let (n, k) = (64, K);
    let request = Request::new(&scheme, &scheme.activations[0], BF16, target, [n, k]);
    let stacked = Stacked {
        product: ExpertProduct::GateUp,
        experts: experts.1,
        chosen_from: experts.0,
        shards: 2,
        top_k: TOP_K,
        slots: None,
        gate: None,
        output: F32,
        direct: false,
        weighted: false,
        combined: false,
        shared: None,
        operand: OperandOf::Row,
    };
    let only = JitWithOverrides::new("use warp_group".parse().unwrap());
    let made = match warp_groups {
        true => only.choose_stacked(&request, &stacked, tokens),
        false => Jit.choose_stacked(&request, &stacked, tokens),
    };
    let made = made.map_err(|_| Without::Product)?;
    let text = format!("{} experts of 2088 x 64, top {TOP_K}, softmax, silu", experts.0);
    let layer: ExpertLayer = text.parse().unwrap();
    let of_layer = ExpertRequest {
        layer: &layer,
        experts: experts.0,
        local: experts.1,
        mapped: experts.0 != experts.1,
        top_k: TOP_K,
        input_dtype: BF16,
        parts: F32,
        output: BF16,
        target,
        weighted: true,
        shared: None,
    };
    let product = &made.choice.key;
    let of = (&of_layer, made.slots, tokens);
    let both = Jit.order_with_operand(&request, product, of).unwrap();
    let both = both.ok_or(Without::Kernel)?;
    let mut apart = Jit.operand(&request, Some(product)).unwrap();
    apart.extend(Jit.expert_kernels(&of_layer, made.slots, tokens).unwrap().order);
    assert_eq!(apart.len(), 2);
    Ok(Keys { slots: made.slots as u32, both, apart })
}

/// Compares what both ways write.
///
/// # Errors
/// The first buffer that differs, or the simulator's fault.
fn check(keys: &Keys, mapped: bool, change: impl Fn(&mut Kernel)) -> Result<(), String> {
    let pairs = Pairs::draw(24, TOKENS * TOP_K as usize, keys.slots, 7);
    let pairs = if mapped { pairs.mapped() } else { pairs };
    let mut random = random(5);
    let mut value = || f64::from(random(1 << 12)) / 256.0 - 8.0;
    let bf16 = |value| Number::Float(BF16).encode(value, Overflow::Special) as u16;
    let x = (0..TOKENS as u64 * K).flat_map(|_| bf16(value()).to_le_bytes()).collect::<Vec<u8>>();
    let words = |values: &[i32]| values.iter().map(|one| one.cast_unsigned()).collect::<Vec<_>>();
    let launched = |keys: &[KernelKey], change: &dyn Fn(&mut Kernel)| {
        let mut launched = Launched::new(TOKENS, TOP_K as u32)
            .bytes("x", x.clone())
            .words("ids", &words(&pairs.ids))
            .words("expert_map", &words(&pairs.map))
            .floats("router_weights", &pairs.weights)
            .floats("prescale", &(0..K).map(|k| 1.0 + k as f32 / 4096.0).collect::<Vec<_>>())
            .floats("input_scale_0", &[0.0625]);
        for key in keys {
            let mut kernel = Kernel::clone(&Jit.kernel(key).unwrap());
            change(&mut kernel);
            launched.run(kernel)?;
        }
        Ok::<_, String>(launched)
    };
    let both = launched(std::slice::from_ref(&keys.both), &change)?;
    let apart = launched(&keys.apart, &|_| {})?;
    assert_eq!(apart.found("slots"), pairs.order());
    for buffer in ["slots", "operand", "x_scale"] {
        if both.bytes_of(buffer) != apart.bytes_of(buffer) {
            return Err(format!("{buffer} differs"));
        }
    }
    Ok(())
}

#[test]
fn both_are_written_as_by_a_kernel_each() {
    let (share, mut kernels, mut checked) = (Share::new(3, 3), 0, 0);
    for target in TARGETS {
        for (at, scheme) in SCHEMES.into_iter().enumerate() {
            for warp_groups in [false, true] {
                let mapped = at % 2 == 1;
                let experts = if mapped { (24, 16) } else { (24, 24) };
                let of = (warp_groups, TOKENS as u64);
                let Ok(keys) = keys(scheme, target, of, experts) else { continue };
                kernels += 1;
                if !share.takes(kernels) {
                    continue;
                }
                check(&keys, mapped, |_| {})
                    .unwrap_or_else(|why| panic!("{target}, {scheme}: {why}"));
                checked += 1;
            }
        }
    }
    assert!(kernels >= 20 && checked >= 5, "{kernels}, {checked}");
}

/// WebGPU has too few buffers for a kernel, more than 16,384 pairs are counted by a kernel of their own, and a scale of all of x
/// is chosen by another one.
#[test]
fn only_where_each_is_one_kernel() {
    let found = |scheme, target, tokens| keys(scheme, target, (false, tokens), (24, 24)).err();
    assert_eq!(found(SCHEMES[0], "sm_90a", 90), None);
    assert_eq!(found(SCHEMES[0], "sm_90a", 4096), None);
    assert_eq!(found(SCHEMES[0], "sm_90a", 4097), Some(Without::Kernel));
    assert_eq!(found(SCHEMES[1], "wgsl", 90), Some(Without::Kernel));
    let of_tensor = "weight: i8, scale: f32 per channel, pack: [k, n], \
                     activation: i8 { scale: f32 per tensor }";
    assert_eq!(found(of_tensor, "sm_90a", 90), Some(Without::Kernel));
}

#[test]
fn mistakes_in_a_kernel_for_both_are_found() {
    let mutations: [(&str, Mutation); 4] = [
        ("no wait for the grid before", |_, op| {
            if *op == Op::GridWait {
                gone(op);
            }
        }),
        ("the second row of blocks for the first part", |_, op| {
            if let Op::Binary { op: Binary::Sub, b: one @ Operand::U32(1), .. } = op {
                *one = 2u32.into();
            }
        }),
        ("a chunk fewer", |_, op| {
            if let Op::Binary { op: Binary::Add, b: up @ Operand::U32(255), .. } = op {
                *up = 0u32.into();
            }
        }),
        ("the second row of blocks sorts", |_, op| {
            if let Op::Compare { op: Compare::Equal, b: line @ Operand::U32(0), .. } = op {
                *line = 1u32.into();
            }
        }),
    ];
    let keys = keys(SCHEMES[0], "sm_90a", (true, TOKENS as u64), (24, 24)).unwrap();
    for (what, mutation) in mutations {
        found(what, mutation, |change| check(&keys, false, change));
    }
}
